"""A model of departments and employees in plain dicts, and the database beside it.

Whatever is done, in whichever order, one after the other or at once: what indexes and counters
say is what a filter over all employees says, and after a drain that holds elsewhere too.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from partita.patterns import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    UniqueViolationError,
    connect,
    evolve,
)
from support.repeats import repeat
from support.staff import (
    KEYRING,
    Department,
    Employee,
    anywhere,
    by_email,
    by_last,
    person,
)

T = TypeVar("T")
K = TypeVar("K", str, tuple[str, int])
Key = tuple[str, int]

DEPARTMENTS = ("Sales", "Marketing")
NUMBERS = (0, 1, 2, 3)
EMAILS = ("a@x", "b@x", "c@x", "d@x", "e@x")
LASTS = ("Cao", "Caot", "Jones")

departments = st.sampled_from(DEPARTMENTS)
numbers = st.sampled_from(NUMBERS)
keys = st.tuples(departments, numbers)
emails = st.sampled_from(EMAILS)
lasts = st.sampled_from(LASTS)
choices = st.integers(0, 11)
"""Of whatever there is: what is drawn must not depend on who was faster in a test."""


class Worker(msgspec.Struct, frozen=True):
    """What the model knows of an employee."""

    email: str
    last: str
    age: int = 0
    messages: tuple[tuple[int, int], ...] = ()


def chosen(these: Mapping[K, object], which: int) -> K:
    return sorted(these)[which % len(these)]


def known(employee: Employee) -> Worker:
    return Worker(
        employee.email, employee.last, employee.age, tuple(sorted(employee.messages.items()))
    )


class Staff(RuleBasedStateMachine):
    """Every rule does one thing to both, and compares what was refused."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.workers: dict[Key, Worker] = {}
        self.managers: dict[str, int] = {}
        self.stale: dict[Key, Employee] = {}
        """Objects as they once were, to be written when they are out of date."""

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    @initialize()
    def open(self) -> None:
        self.db = self.do(connect("partita::memory:", keyring=KEYRING, direct=True).open())
        self.employees = self.db.table(Employee)
        self.departments = self.db.table(Department)
        self.do(self.db.create_tables())

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.do(self.db.close())
        self.runner.close()

    # -- helpers of the model

    def has_email(self, dept: str, email: str, *, but: int | None = None) -> bool:
        return any(
            key[0] == dept and key[1] != but and worker.email == email
            for key, worker in self.workers.items()
        )

    def expect(self, work: Coroutine[Any, Any, T], refusal: type[ConflictError] | None) -> T | None:
        """Do it, and demand that it is refused as the model says, or not at all."""
        outcome: T | None = None
        refused: ConflictError | None = None
        try:
            outcome = self.do(work)
        except ConflictError as error:
            refused = error
        if refusal is None:
            assert refused is None, repr(refused)
        else:
            assert isinstance(refused, refusal), f"{refusal.__name__} was expected, not {refused!r}"
        return outcome

    def load(self, key: Key) -> Employee:
        return self.do(self.employees.get(dept=key[0], id=key[1]))

    # -- employees

    @rule(key=keys, email=emails, last=lasts)
    def hire(self, key: Key, email: str, last: str) -> None:
        refusal: type[ConflictError] | None = None
        if key in self.workers:
            refusal = EntityExistsError
        elif self.has_email(key[0], email):
            refusal = UniqueViolationError
        new = person(key[1], dept=key[0], email=email, last=last, salary=7)
        if self.expect(self.employees.save(new), refusal) is not None:
            self.workers[key] = Worker(email, last)

    @rule(which=choices, email=emails, last=lasts, is_patch=st.booleans())
    def rename(self, which: int, email: str, last: str, *, is_patch: bool) -> None:
        if not self.workers:
            return
        key = chosen(self.workers, which)
        loaded = self.load(key)
        self.stale.setdefault(key, loaded)
        refusal = UniqueViolationError if self.has_email(key[0], email, but=key[1]) else None
        work = (
            self.employees.patch(loaded, email=email, last=last)
            if is_patch
            else self.employees.save(evolve(loaded, email=email, last=last))
        )
        if self.expect(work, refusal) is not None:
            old = self.workers[key]
            self.workers[key] = Worker(email, last, old.age, old.messages)

    @rule(which=choices, verb=st.sampled_from(["save", "patch", "delete", "move"]))
    def write_what_is_stale(self, which: int, verb: str) -> None:
        if not self.stale:
            return
        key = chosen(self.stale, which)
        old = self.stale.pop(key)
        stored = self.do(self.employees.get_or_none(dept=key[0], id=key[1]))
        if stored is not None:
            # Whatever it was changed to, and back: each write has an etag of its own.
            self.do(self.employees.save(evolve(stored, age=stored.age + 1)))
            worker = self.workers[key]
            self.workers[key] = Worker(worker.email, worker.last, worker.age + 1, worker.messages)
        work: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "save": lambda: self.employees.save(evolve(old, age=99)),
            "patch": lambda: self.employees.patch(old, age=99),
            "delete": lambda: self.employees.delete(old),
            "move": lambda: self.employees.move(old, id=9),
        }
        self.expect(work[verb](), EntityNotFoundError if stored is None else ETagMismatchError)

    @rule(which=choices, slot=st.sampled_from([0, 200, 300, 364]), field=st.booleans())
    def count(self, which: int, slot: int, *, field: bool) -> None:
        if not self.workers:
            return
        key = chosen(self.workers, which)
        loaded = self.load(key)
        worker = self.workers[key]
        if field:
            assert self.do(self.employees.increment(loaded, "age", by=2)) == worker.age + 2
            self.workers[key] = msgspec.structs.replace(worker, age=worker.age + 2)
            return
        slots = dict(worker.messages)
        slots[slot] = slots.get(slot, 0) + 1
        assert self.do(self.employees.increment(loaded, "messages", slot)) == slots[slot]
        messages = tuple(sorted(slots.items()))
        self.workers[key] = msgspec.structs.replace(worker, messages=messages)

    @rule(key=keys)
    def fire(self, key: Key) -> None:
        gone = self.do(self.employees.delete_if_exists(dept=key[0], id=key[1]))
        assert gone == (key in self.workers)
        self.workers.pop(key, None)

    @rule(which=choices, to=keys)
    def move(self, which: int, to: Key) -> None:
        if not self.workers:
            return
        key = chosen(self.workers, which)
        if key == to:
            return
        worker = self.workers[key]
        refusal: type[ConflictError] | None = None
        if to in self.workers:
            refusal = EntityExistsError
        elif to[0] != key[0] and self.has_email(to[0], worker.email):
            refusal = UniqueViolationError
        work = self.employees.move(self.load(key), dept=to[0], id=to[1])
        if self.expect(work, refusal) is not None:
            self.workers[to] = self.workers.pop(key)

    # -- departments

    @rule(name=departments, manager=numbers)
    def found(self, name: str, manager: int) -> None:
        refusal = EntityExistsError if name in self.managers else None
        work = self.departments.save(Department(name=name, manager_id=manager))
        if self.expect(work, refusal) is not None:
            self.managers[name] = manager

    @rule(which=choices, manager=numbers)
    def promote(self, which: int, manager: int) -> None:
        if not self.managers:
            return
        name = chosen(self.managers, which)
        self.do(self.departments.update(lambda old: evolve(old, manager_id=manager), name=name))
        self.managers[name] = manager

    @rule(name=departments)
    def close(self, name: str) -> None:
        gone = self.do(self.departments.delete_if_exists(name=name))
        assert gone == (name in self.managers)
        self.managers.pop(name, None)

    # -- several things

    @rule(name=departments, emails=st.lists(emails, min_size=2, max_size=2), manager=numbers)
    def reorganise(self, name: str, emails: list[str], manager: int) -> None:
        """Fire who has the first number, hire two others, appoint a manager, in one group."""
        department = self.do(self.departments.get_or_none(name=name))
        hired = [(name, 2), (name, 3)]
        refusal: type[ConflictError] | None = None
        if any(key in self.workers for key in hired):
            refusal = EntityExistsError
        elif emails[0] == emails[1] or any(self.has_email(name, email, but=0) for email in emails):
            refusal = UniqueViolationError

        async def work() -> bool:
            async with self.departments.partition(name=name).atomic() as group:
                if department is not None:
                    group.save(evolve(department, manager_id=manager))
                group.delete_if_exists(Employee, dept=name, id=0)
                for key, email in zip(hired, emails, strict=True):
                    group.save(person(key[1], dept=name, email=email, last="Cao"))
            return True

        if emails[0] == emails[1] and refusal is EntityExistsError:
            refusal = ConflictError  # both are true, and either may be told
        if self.expect(work(), refusal):
            self.workers.pop((name, 0), None)
            self.workers.update(
                {key: Worker(email, "Cao") for key, email in zip(hired, emails, strict=True)}
            )
            if department is not None:
                self.managers[name] = manager

    @rule(actions=st.lists(st.tuples(st.integers(0, 4), keys, emails), min_size=2, max_size=5))
    def act_at_once(self, actions: list[tuple[int, Key, str]]) -> None:
        """Do several things at once; whoever loses is refused, and the model looks what is."""

        async def act(kind: int, key: Key, email: str) -> None:
            dept, number = key
            match kind:
                case 0:
                    await self.employees.save(person(number, dept=dept, email=email, last="Cao"))
                case 1:
                    await self.employees.upsert(person(number, dept=dept, email=email, last="Caot"))
                case 2:
                    await self.employees.delete_if_exists(dept=dept, id=number)
                case 3:
                    found = await self.employees.get_or_none(dept=dept, id=number)
                    if found is not None:
                        await self.employees.move(found, id=(number + 1) % 4)
                case _:
                    await self.departments.upsert(Department(name=dept, manager_id=number))

        async def work() -> None:
            acts = [act(*each) for each in actions]
            for outcome in await asyncio.gather(*acts, return_exceptions=True):
                assert outcome is None or isinstance(outcome, ConflictError), repr(outcome)
            stored = await self.employees.all().allow_scan().list()
            self.workers = {(each.dept, each.id): known(each) for each in stored}
            found = await self.departments.all().allow_scan().list()
            self.managers = {each.name: each.manager_id for each in found}

        self.do(work())

    @rule(is_swept=st.booleans())
    def drain(self, *, is_swept: bool) -> None:
        self.do(self.db.drain(sweep=is_swept))
        self.do(self._check_elsewhere())

    async def _check_elsewhere(self) -> None:
        via = self.employees.via(anywhere)
        for email in EMAILS:
            found = await via.range(email=email).list()
            assert sorted((each.dept, each.id) for each in found) == sorted(
                key for key, worker in self.workers.items() if worker.email == email
            )
        assert await self.db.verify(Employee) == []
        assert await self.db.verify(Department) == []

    # -- what holds at any time

    @invariant()
    def indexes_and_counters_say_what_a_filter_says(self) -> None:
        if hasattr(self, "db"):
            self.do(self._check())

    async def _check(self) -> None:
        for dept in DEPARTMENTS:
            mine = {key[1]: worker for key, worker in self.workers.items() if key[0] == dept}
            stored = await self.employees.partition(dept=dept).all().list()
            assert {each.id: known(each) for each in stored} == mine
            by_mail = await self.employees.via(by_email).range(dept=dept).list()
            assert [(each.email, each.id) for each in by_mail] == sorted(
                (worker.email, number) for number, worker in mine.items()
            )
            for last in LASTS:
                listed = await self.employees.via(by_last).range(dept=dept, last=last).list()
                assert [each.id for each in listed] == sorted(
                    number for number, worker in mine.items() if worker.last == last
                )
            department = await self.departments.get_or_none(name=dept)
            assert (department is not None) == (dept in self.managers)
            if department is not None:
                manager = mine.get(self.managers[dept])
                assert department.manager_id == self.managers[dept]
                assert department.headcount == len(mine)
                assert department.manager_email == (None if manager is None else manager.email)


pytestmark = pytest.mark.timeout(1800)
TestStaff = pytest.mark.repeated(Staff.TestCase)
TestStaff.settings = settings(
    max_examples=repeat(8, 25, 400),
    stateful_step_count=repeat(20, 20, 40),
    deadline=None,
)
