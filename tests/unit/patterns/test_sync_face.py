"""The synchronous API: generated from the asynchronous one, with the same names, and working."""

import inspect
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from partita.errors import ETagMismatchError, ScanRefusedError, UniqueViolationError, UsageError
from partita.patterns import aio, between, evolve, sync
from support.staff import (
    KEYRING,
    Department,
    Employee,
    Expense,
    Grade,
    Note,
    anywhere,
    by_email,
    by_last,
    person,
)

PROJECT = Path(__file__).parents[3]
AWAITED = re.compile(r"\b(async|await)\b|\b__a(enter|exit|iter|next)__\b|\bAsync[A-Z]")


def classes(face: ModuleType) -> dict[str, type]:
    return {
        name: item
        for name, item in vars(face).items()
        if inspect.isclass(item) and item.__module__ == face.__name__
    }


def methods(cls: type) -> dict[str, Any]:
    renamed = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__"}
    return {
        renamed.get(name, name): item
        for name, item in vars(cls).items()
        if inspect.isfunction(item) or isinstance(item, property)
    }


def signature(method: Any) -> list[tuple[str, object, object]]:
    function: Any = method.fget if isinstance(method, property) else method
    return [
        (each.name, each.kind, getattr(each.default, "__name__", each.default))
        for each in inspect.signature(inspect.unwrap(function)).parameters.values()
    ]


class TestTheTwoFaces:
    def test_nothing_is_awaited(self) -> None:
        stored = (PROJECT / "src/partita/patterns/sync.py").read_text("utf-8")

        assert AWAITED.findall(stored) == []

    def test_they_have_the_same_classes_and_functions(self) -> None:
        assert classes(sync).keys() == classes(aio).keys()
        assert {"Database", "Table", "Query", "Group", "Log"} <= classes(sync).keys()
        assert signature(sync.connect) == signature(aio.connect)

    @pytest.mark.parametrize("name", sorted(classes(aio)))
    def test_every_method_is_in_both_with_the_same_arguments(self, name: str) -> None:
        here, there = methods(classes(sync)[name]), methods(classes(aio)[name])

        assert here.keys() == there.keys()
        assert {each: signature(here[each]) for each in here} == {
            each: signature(there[each]) for each in there
        }


@pytest.fixture(params=["sdk", "direct"])
def db(request: pytest.FixtureRequest) -> Iterator[sync.Database]:
    is_direct = request.param == "direct"
    with sync.connect("partita::memory:", keyring=KEYRING, direct=is_direct) as opened:
        for cls in (Department, Employee, Expense, Note):
            opened.table(cls)
        opened.create_tables()
        yield opened


class TestVerbs:
    def test_what_is_saved_is_read_by_its_keys_and_by_its_index(self, db: sync.Database) -> None:
        employees = db.table(Employee)

        employees.save(person(7, email="ada@example.org", salary=70_000))

        assert employees.get(dept="Sales", id=7).salary == 70_000
        assert employees.via(by_email).get(dept="Sales", email="ada@example.org").id == 7
        assert employees.get_or_none(dept="Sales", id=8) is None

    def test_a_stale_object_is_refused_and_update_decides_again(self, db: sync.Database) -> None:
        notes = db.table(Note)
        first = notes.save(Note(topic="a", number=1, text="one"))
        notes.save(evolve(first, text="two"))

        with pytest.raises(ETagMismatchError):
            notes.save(evolve(first, text="three"))

        changed = notes.update(lambda note: evolve(note, text=note.text + "!"), topic="a", number=1)
        assert changed.text == "two!"

    def test_a_unique_value_is_kept_to_one(self, db: sync.Database) -> None:
        employees = db.table(Employee)
        employees.save(person(7, email="ada@example.org"))

        with pytest.raises(UniqueViolationError) as refused:
            employees.save(person(8, email="ada@example.org"))

        assert refused.value.index is by_email

    def test_ranges_lists_and_pages_are_plain_iterators(self, db: sync.Database) -> None:
        employees = db.table(Employee)
        employees.save_all(person(number, last="Cao") for number in range(9))
        in_sales = employees.partition(dept="Sales")

        assert [each.id for each in in_sales.range(id=between(2, 4))] == [2, 3, 4]
        assert len(list(employees.via(by_last).range(dept="Sales", last="Cao"))) == 9
        page = in_sales.range(id=between(0, 8)).page(size=4)
        rest = in_sales.range(id=between(0, 8)).page(size=9, continuation=page.continuation)
        assert [each.id for each in [*page.entities, *rest.entities]] == list(range(9))

    def test_a_scan_is_refused_until_it_is_asked_for(self, db: sync.Database) -> None:
        employees = db.table(Employee)
        employees.save(person(7, age=41))
        forties = employees.where(employees.c.age > 40)

        with pytest.raises(ScanRefusedError):
            forties.list()

        assert [each.id for each in forties.allow_scan()] == [7]

    def test_a_group_is_sent_when_its_block_ends(self, db: sync.Database) -> None:
        employees = db.table(Employee)
        saved = employees.save(person(7))

        with employees.partition(dept="Sales").atomic() as group:
            group.save(evolve(saved, grade=Grade.SENIOR))
            group.save(person(8, email="b@x"))

        assert employees.get(dept="Sales", id=7).grade is Grade.SENIOR
        assert employees.get(dept="Sales", id=8).email == "b@x"

    def test_a_group_whose_block_fails_is_not_sent(self, db: sync.Database) -> None:
        notes = db.table(Note)

        def fail() -> None:
            with notes.partition(topic="a").atomic() as group:
                group.save(Note(topic="a", number=1, text="one"))
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()

        assert notes.get_or_none(topic="a", number=1) is None

    def test_counters_follow_at_once_and_indexes_elsewhere_after_drain(
        self, db: sync.Database
    ) -> None:
        employees, departments = db.table(Employee), db.table(Department)
        departments.save(Department(name="Sales", manager_id=7))
        employees.save(person(7, email="ada@example.org"))

        assert departments.get(name="Sales").headcount == 1

        db.drain()
        assert employees.via(anywhere).get(email="ada@example.org", dept="Sales").id == 7

    def test_threads_share_a_database(self, db: sync.Database) -> None:
        notes = db.table(Note)
        notes.save(Note(topic="a", number=1, text=""))

        def add() -> None:
            for _ in range(3):
                notes.update(lambda note: evolve(note, text=note.text + "x"), topic="a", number=1)

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert notes.get(topic="a", number=1).text == "x" * 12

    def test_a_function_that_must_be_awaited_is_refused(self, db: sync.Database) -> None:
        notes = db.table(Note)
        notes.save(Note(topic="a", number=1, text="one"))

        async def later(note: Note) -> Note:
            return note

        with pytest.raises(UsageError) as refused:
            notes.update(later, topic="a", number=1)  # type: ignore[arg-type]

        assert refused.value.code == "AsynchronousFunction"

    def test_a_closed_database_says_so(self) -> None:
        with sync.connect("partita::memory:") as db:
            notes = db.table(Note)

        with pytest.raises(UsageError) as refused:
            notes.get(topic="a", number=1)

        assert refused.value.code == "DatabaseNotOpen"
