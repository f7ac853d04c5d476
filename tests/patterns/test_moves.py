"""Moves between partitions: never in neither place, at most in both until they are done.

No group can hold both places, so that an intent is stored with the source and carried out by
whoever comes by: the mover, a worker, two workers at once.
"""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from partita.errors import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    UniqueViolationError,
    UsageError,
)
from partita.patterns import connect, entity, evolve, index
from partita.patterns.following import moving
from partita.patterns.following.moving import finish_move
from partita.patterns.operations import verbs
from partita.patterns.protocol.calls import RowOperation, Steps, Verb, WriteRows, ask
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.writing import load as reading
from partita.patterns.writing import write as changes
from partita.patterns.writing.context import Context, OutboxReference
from partita.patterns.writing.outbox_entry import Move
from partita.service.hosting.in_process import LocalAccount
from support.fake_world import Crashed, FakeWorld, Fault
from support.repeats import IS_SOAK, repeat
from support.simulated import (
    PERSON,
    TEAM,
    Person,
    Team,
    begin,
    check_blobs,
    check_settled,
    company,
    drain,
    each_stop,
    fork,
    load,
    outbox_rows,
    people,
    recover,
    rows_of,
)

SEEDS = repeat(10, 30, 1000)
pytestmark = pytest.mark.timeout(1200 if IS_SOAK else 300)
SOURCE, TARGET = ("Sales", 1), ("Legal", 7)
MOVE = Move("Person", ("Sales", "p_0001"), ("Legal", "p_0007"))


@cache
def beginning() -> FakeWorld:
    return company()


def move(world: FakeWorld, context: Context) -> Any:
    jun = load(world, context, "Sales", 1)
    return world.run(verbs.move(context, PERSON, jun, {"dept": "Legal", "id": 7}))


def places(world: FakeWorld) -> set[tuple[str, int]]:
    return {SOURCE, TARGET} & set(people(world))


class Watched(FakeWorld):
    """A world that looks after every call where the entity is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[set[tuple[str, int]]] = []

    def perform(self, call: Any) -> Any:
        answer = super().perform(call)
        if isinstance(call, WriteRows):
            self.seen.append(places(self))
        return answer


def test_it_is_never_in_neither_place() -> None:
    world = Watched()
    base = beginning()
    world.tables = {name: dict(rows) for name, rows in base.tables.items()}
    world.containers = {name: dict(blobs) for name, blobs in base.containers.items()}
    world.queues = {name: list(queue) for name, queue in base.queues.items()}
    world.continue_etags(base)
    context = begin(world)
    world.seen.clear()

    moved = move(world, context)

    assert moved == Person(dept="Legal", id=7, last="Cao", email="jun@x", city="Rome", photo=b"jun")
    assert set() not in world.seen
    assert [sorted(each) for each in world.seen[:4]] == [
        [SOURCE],
        [TARGET, SOURCE],
        [TARGET],
        [TARGET],
    ]


def test_after_a_crash_it_is_in_one_place_or_both_and_then_in_one() -> None:
    seen = set()
    for world, outcome, told in each_stop(beginning(), move):
        assert isinstance(outcome, Crashed)
        seen.add(frozenset(places(world)))
        assert places(world), told
        context = recover(world)
        assert len(places(world)) == 1, told
        check_settled(world, context, told)
        check_blobs(world, context, told)
    assert seen == {frozenset({SOURCE}), frozenset({SOURCE, TARGET}), frozenset({TARGET})}


def test_who_reads_in_between_can_tell_where_it_goes() -> None:
    marks = set()
    for world, _, _ in each_stop(beginning(), move):
        if places(world) == {SOURCE, TARGET}:
            rows = {row.key.row: row.properties for row in rows_of(world, "people", "Person")}
            told = json.loads(str(rows["p_0007"]["_MovedFrom"]))[:2]
            marks.add((*json.loads(str(rows["p_0001"]["_MovedTo"]))[:2], *told))
    assert marks == {("Legal", "p_0007", "Sales", "p_0001")}


def test_a_started_move_goes_on_without_its_mover() -> None:
    world = fork(beginning())
    context = begin(world)
    world.fail(6, Fault.CRASH_AFTER)
    with pytest.raises(Crashed):
        move(world, context)
    assert places(world) == {SOURCE}
    assert len(outbox_rows(world)) == 1

    context = recover(world)

    assert places(world) == {TARGET}
    check_settled(world, context, "after the recovery")


# ---------------------------------------------------------------------------------------------
# Several workers, and writers in between


def started(seed: int | None = None) -> tuple[FakeWorld, Context]:
    """Return a world in which a move was started, and nothing more."""
    world = fork(beginning())
    context = begin(world)
    world.fail_when(lambda call: len(getattr(call, "operations", ())) == 2, Fault.CRASH_AFTER)
    with pytest.raises(Crashed):
        move(world, context)
    assert places(world) == {SOURCE}
    seeded = FakeWorld(seed=seed, clock=world.clock)
    seeded.tables, seeded.queues, seeded.containers = world.tables, world.queues, world.containers
    seeded.table_names = world.table_names
    seeded.continue_etags(world)
    return seeded, begin(seeded)


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(SEEDS))
def test_three_workers_at_once_move_it_once(seed: int) -> None:
    world, context = started(seed)

    outcomes = world.run_all(*(finish_move(context, MOVE) for _ in range(3)))

    assert outcomes == [None, None, None]
    assert places(world) == {TARGET}
    context = recover(world)
    check_settled(world, context, f"seed {seed}")
    check_blobs(world, context, f"seed {seed}")


def finish_without_a_second_look(context: Context, move: Move) -> Steps[None]:
    """Take an insert that met the other worker's for a target that is taken: the rule broken."""
    model = context.models[move.type]
    there = yield from reading.load(context, model, RowKey(*move.target))
    stored = yield from reading.load(context, model, RowKey(*move.source))
    if stored is None:
        return
    try:
        if there is None:
            yield from moving._write_target(context, stored, there, RowKey(*move.target))
        yield from changes.write(context, [changes.Change(stored.model, stored.origin, None)])
    except EntityExistsError:
        yield from moving._unmark_source(model, stored)
    except ConflictError:
        return


def test_workers_that_take_each_other_for_strangers_leave_two(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sibling of the test above: some seed must catch it."""
    monkeypatch.setitem(globals(), "finish_move", finish_without_a_second_look)

    assert any(fails(test_three_workers_at_once_move_it_once, seed) for seed in range(40))


def fails(test: Callable[[int], None], seed: int) -> bool:
    try:
        test(seed)
    except AssertionError:
        return True
    return False


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_a_change_of_the_source_by_a_stranger_comes_along(seed: int) -> None:
    world, context = started(seed)
    key = PERSON.key({"dept": "Sales", "id": 1})
    change = WriteRows("people", (RowOperation(Verb.MERGE, Row(key, {"City": "Lima"})),))

    changed, _ = world.run_all(ask(change), finish_move(context, MOVE))

    context = recover(world)
    is_changed = not isinstance(changed, Exception)
    assert people(world)["Legal", 7]["city"] == ("Lima" if is_changed else "Rome")


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_who_would_change_what_is_being_moved_moves_it_first(seed: int) -> None:
    world, context = started(seed)
    writer = begin(world)

    def rename(now: Person) -> Person:
        return evolve(now, last="Li")

    renamings = [
        verbs.update(writer, PERSON, PERSON.key({"dept": dept, "id": number}), rename)
        for dept, number in (SOURCE, TARGET)
    ]
    at_source, at_target, _ = world.run_all(*renamings, finish_move(context, MOVE))

    assert isinstance(at_source, EntityNotFoundError)
    is_renamed = not isinstance(at_target, EntityNotFoundError)
    assert people(world)[TARGET]["last"] == ("Li" if is_renamed else "Cao")
    context = recover(world)
    assert people(world)[TARGET]["last"] == ("Li" if is_renamed else "Cao")
    check_settled(world, context, f"seed {seed}")


def test_a_late_worker_does_not_undo_what_happened_to_the_target_since() -> None:
    """It has read the source; another one finishes; the target is changed; then it goes on."""
    world, context = started()
    other = begin(world)
    late = finish_move(context, MOVE)
    call = up_to_write(world, late)

    drain(world, other)
    arrived = load(world, other, "Legal", 7)
    world.run(verbs.save(other, PERSON, evolve(arrived, last="Li")))
    finish(world, late, call)

    assert people(world)["Legal", 7]["last"] == "Li"
    context = recover(world)
    check_settled(world, context, "after the late worker")


def up_to_write(world: FakeWorld, steps: Steps[Any]) -> WriteRows:
    """Drive steps until they would write for the first time."""
    call = next(steps)
    while not isinstance(call, WriteRows):
        call = steps.send(drive(world, call))
    return call


def drive(world: FakeWorld, call: Any) -> Any:
    """Perform one call of steps that are driven by hand, whatever it is."""

    def once() -> Any:
        return (yield call)

    return world.run(once())


def finish(world: FakeWorld, steps: Any, call: Any) -> Any:
    """Drive steps to their end from a call that they wait for."""

    def rest() -> Any:
        nonlocal call
        while True:
            try:
                answer = yield call
            except Exception as error:  # noqa: BLE001 - the steps decide
                following = steps.throw
                argument: Any = error
            else:
                following, argument = steps.send, answer
            try:
                call = following(argument)
            except StopIteration as end:
                return end.value

    return world.run(rest())


# ---------------------------------------------------------------------------------------------
# Refusals


def test_a_target_that_is_taken_is_refused_before_anything_is_changed() -> None:
    world = fork(beginning())
    context = begin(world)
    jun = load(world, context, "Sales", 1)
    before = dict(world.tables["people"])

    with pytest.raises(EntityExistsError) as caught:
        world.run(verbs.move(context, PERSON, jun, {"dept": "Legal", "id": 1}))

    assert caught.value.entity is jun
    assert world.tables["people"] == before


def test_a_target_that_is_taken_meanwhile_leaves_the_source_as_it_was() -> None:
    world, context = started()
    newcomer = Person(dept="Legal", id=7, last="New", email="new@x")
    world.run(verbs.save(begin(world), PERSON, newcomer))

    with pytest.raises(EntityExistsError):
        world.run(finish_move(context, MOVE))

    assert people(world)[TARGET]["last"] == "New"
    sources = [row for row in rows_of(world, "people", "Person") if row.key.row == "p_0001"]
    assert all("_MovedTo" not in row.properties for row in sources)
    context = recover(world)
    assert places(world) == {SOURCE, TARGET}
    check_settled(world, context, "after the refusal")


def test_an_entity_of_another_type_under_the_target_does_not_block_the_move() -> None:
    world, context = started()
    stranger = Team(name="Legal")
    row = world.tables["people"][TEAM.key(TEAM.values(stranger))]
    there = PERSON.key({"dept": "Legal", "id": 7})
    world.tables["people"][there] = type(row)(there, dict(row.properties), 'W/"x"')

    with pytest.raises(EntityExistsError):
        world.run(finish_move(context, MOVE))

    recover(world)
    del world.tables["people"][there]
    assert outbox_rows(world) == []
    assert places(world) == {SOURCE}


def test_a_unique_value_that_is_taken_there_ends_the_move() -> None:
    world = fork(beginning())
    context = begin(world)
    world.run(verbs.save(context, PERSON, Person(dept="Legal", id=2, last="Twin", email="jun@x")))

    with pytest.raises(UniqueViolationError):
        move(world, context)

    assert places(world) == {SOURCE}
    context = recover(world)
    assert places(world) == {SOURCE}
    check_settled(world, context, "after the refusal")
    assert load(world, context, "Sales", 1).email == "jun@x"


def test_changes_that_were_not_saved_are_not_lost_in_silence() -> None:
    world = fork(beginning())
    context = begin(world)
    changed = evolve(load(world, context, "Sales", 1), city="Lima")

    with pytest.raises(UsageError, match="MoveChangesFields"):
        world.run(verbs.move(context, PERSON, changed, {"dept": "Legal", "id": 7}))


def test_an_entry_of_a_move_that_was_given_up_does_not_start_another_one() -> None:
    world, context = started()
    world.run(verbs.save(context, PERSON, Person(dept="Legal", id=7, last="N", email="n@x")))
    with pytest.raises(EntityExistsError):
        world.run(finish_move(context, MOVE))
    jun = load(world, context, "Sales", 1)

    world.run(verbs.move(context, PERSON, jun, {"dept": "Legal", "id": 8}))
    world.run(verbs.delete_key(context, PERSON, PERSON.key({"dept": "Legal", "id": 7})))
    context = recover(world)

    assert set(people(world)) == {("Legal", 1), ("Legal", 8), ("Sales", 2)}
    check_settled(world, context, "after both")


# ---------------------------------------------------------------------------------------------
# Back and forth


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(SEEDS))
def test_moves_back_and_forth_and_changes_at_once_lose_nothing(seed: int) -> None:
    world = FakeWorld(seed=seed)
    base = fork(beginning())
    world.tables, world.queues, world.containers = base.tables, base.queues, base.containers
    world.table_names = base.table_names
    world.continue_etags(base)
    contexts = [begin(world) for _ in range(3)]
    chance = random.Random(seed)

    def wander(context: Context) -> Any:
        """Move whoever called Cao is found to the other department."""
        for _ in range(4):
            here, there = chance.sample(["Sales", "Legal"], 2)
            number = chance.choice([1, 2, 7])
            found = yield from reading.find(
                context, PERSON, PERSON.key({"dept": here, "id": number})
            )
            if found is None:
                continue
            try:
                yield from verbs.move(
                    context, PERSON, found, {"dept": there, "id": chance.choice([1, 2, 7])}
                )
            except ConflictError:
                continue

    outcomes = world.run_all(*(wander(context) for context in contexts))

    assert [each for each in outcomes if isinstance(each, Exception)] == []
    context = recover(world)
    assert sorted(each["email"] for each in people(world).values()) == ["dan@x", "jun@x", "ken@x"]
    check_settled(world, context, f"seed {seed}")
    check_blobs(world, context, f"seed {seed}")


def test_a_move_that_is_not_waited_for_leaves_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sibling of the test above, with the rule broken: some seed must catch it."""

    def go_on(*_: object) -> Steps[bool]:
        yield from ()
        return False

    monkeypatch.setattr(verbs, "complete_move_of", go_on)

    test = test_moves_back_and_forth_and_changes_at_once_lose_nothing
    assert any(fails(test, seed) for seed in range(40))


def test_a_target_that_comes_when_all_is_over_goes_again() -> None:
    """A worker has read that there is no target yet; then it is made, and deleted by its user."""
    world, context = started()
    late = finish_move(context, MOVE, *(OutboxReference(*each) for each in outbox_rows(world)))
    call = up_to_write(world, late)
    other = begin(world)
    drain(world, other)
    world.run(verbs.delete(other, PERSON, load(world, other, "Legal", 7)))

    finish(world, late, call)

    assert places(world) == set()
    check_settled(world, recover(world), "after the late worker")


# ---------------------------------------------------------------------------------------------
# Once on a real account


@entity(table="cards", partition="{board}", row="{number:04d}")
class Card:
    board: str
    number: int
    title: str


by_title = index(Card, table="cardsbytitle", partition="{title}", row="{number:04d}_{board}")


async def test_an_entity_moves_on_a_real_account(partita_account: LocalAccount) -> None:
    async with connect(partita_account) as db:
        cards = db.table(Card)
        await db.create_tables()
        card = await cards.save(Card(board="todo", number=1, title="write"))

        moved = await cards.move(card, board="done")

        await db.drain()
        assert moved == Card(board="done", number=1, title="write")
        assert await cards.get_or_none(board="todo", number=1) is None
        assert await cards.via(by_title).range(title="write").list() == [moved]
        assert await db.verify(Card) == []
