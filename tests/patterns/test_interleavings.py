"""Writers and workers at once, interleaved call by call as a seed says.

Two writers hire, rename, move and dismiss the same few people, and make and unmake those who
count them; three workers follow, each message comes twice, and sometimes claims end early. Rules
that hold always are looked at after every group (`WatchedWorld`), the others when all is quiet.
Each rule of the protocol has a sibling here that breaks it, which some seed must catch.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import cache, partial
from typing import Annotated, Any

import msgspec
import pytest

from partita.errors import ConflictError, PartitaError
from partita.patterns import CopiedFrom, CountOf, Database, connect, entity, evolve, index
from partita.patterns.following import bring_up_to_date as settling
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following import worker
from partita.patterns.following.worker import Report
from partita.patterns.operations import verbs
from partita.patterns.protocol.calls import (
    GetRow,
    PutBlob,
    RowOperation,
    Sleep,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.writing import index_rows as copies
from partita.patterns.writing import load as reading
from partita.patterns.writing import outbox_entry as outbox
from partita.patterns.writing import write as changes
from partita.patterns.writing.context import Context, OutboxReference
from partita.service.hosting.in_process import LocalAccount
from support.fake_world import FakeWorld
from support.repeats import IS_SOAK, repeat
from support.simulated import (
    BADGE,
    OFFICE,
    PERSON,
    TEAM,
    Badge,
    Office,
    Person,
    StallingWorld,
    Team,
    WatchedWorld,
    begin,
    check_blobs,
    check_settled,
    company,
    drift,
    ignore,
    outbox_rows,
    people,
    recover,
    rows_of,
)

SEEDS = repeat(20, 100, 4000)
DUELS = repeat(40, 300, 20_000)
DEATHS = repeat(8, 40, 600)
pytestmark = pytest.mark.timeout(1200 if IS_SOAK else 300)
QUEUE = "partita-outbox"
DEPTS, NUMBERS = ("Sales", "Legal"), (1, 2)
LASTS, CITIES, EMAILS = ("Cao", "Li"), ("Rome", "Oslo"), ("jun@x", "ken@x", "dan@x")


@cache
def beginning() -> FakeWorld:
    return company()


# ---------------------------------------------------------------------------------------------
# Processes


def hire_and_fire(context: Context, chance: random.Random, count: int) -> Steps[int]:
    """Do something to one of few people, again and again; a conflict is no failure."""
    done = 0
    for _ in range(count):
        try:
            yield from change_someone(context, chance)
            done += 1
        except ConflictError:
            continue  # because another writer was there, or a value is taken
    return done


def change_someone(context: Context, chance: random.Random) -> Steps[None]:
    dept, number = chance.choice(DEPTS), chance.choice(NUMBERS)
    key = PERSON.key({"dept": dept, "id": number})
    person = yield from reading.find(context, PERSON, key)
    drawn = someone(chance, dept, number)
    if person is None:
        yield from verbs.save(context, PERSON, drawn)
    elif chance.random() < 0.35:
        yield from verbs.delete(context, PERSON, person)
    else:
        changed = evolve(person, last=drawn.last, city=drawn.city, email=drawn.email)
        yield from verbs.save(context, PERSON, changed)


def someone(chance: random.Random, dept: str, number: int) -> Person:
    photo = chance.choice([None, b"a", b"b"])
    return Person(
        dept=dept,
        id=number,
        last=chance.choice(LASTS),
        email=chance.choice(EMAILS),
        city=chance.choice(CITIES),
        photo=photo,
    )


def make_and_unmake_owners(context: Context, chance: random.Random, count: int) -> Steps[int]:
    for _ in range(count):
        try:
            yield from change_owner(context, chance)
        except ConflictError:
            continue
    return count


def change_owner(context: Context, chance: random.Random) -> Steps[None]:
    dept = chance.choice(DEPTS)
    drawn: list[tuple[EntityType[Any], Any]] = [
        (TEAM, Team(name=dept, lead_id=chance.choice(NUMBERS))),
        (OFFICE, Office(dept=dept)),
        (BADGE, Badge(dept=dept, id=chance.choice(NUMBERS))),
    ]
    model, new = chance.choice(drawn)
    found = yield from reading.find(context, model, model.key(model.values(new)))
    if found is None:
        yield from verbs.save(context, model, new)
    elif chance.random() < 0.5:
        yield from verbs.delete(context, model, found)
    elif model is TEAM:
        number, city = chance.choice(NUMBERS), chance.choice(CITIES)
        yield from verbs.save(context, TEAM, evolve(found, lead_id=number, favourite=city))


def work(world: FakeWorld, context: Context, chance: random.Random, count: int) -> Steps[Report]:
    """Take messages; now and then their claims end at once, and others get them too."""
    report = Report()
    for _ in range(count):
        messages = yield from worker.receive(context, QUEUE, chance.choice([1, 2, 4]))
        if chance.random() < 0.4:
            for stored in world.queues[QUEUE]:
                stored.visible_at = 0.0
        yield from worker.do_messages(context, QUEUE, messages, report)
        if chance.random() < 0.1:
            yield from worker.sweep(context, report, age=-1.0)
        yield from ask(Sleep(0.001))
    return report


def live(seed: int, *, writes: int = 6, owners: int = 4, rounds: int = 8) -> WatchedWorld:
    """Let everybody act at once until all have done their share."""
    world = WatchedWorld(beginning(), seed)
    chance = random.Random(seed)
    processes: list[Steps[Any]] = [
        hire_and_fire(begin(world), chance, writes),
        hire_and_fire(begin(world), chance, writes),
        make_and_unmake_owners(begin(world), chance, owners),
        *(work(world, begin(world), chance, rounds) for _ in range(3)),
    ]
    outcomes = world.run_all(*processes)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return world


@pytest.mark.repeated
@pytest.mark.parametrize("some", range(10))
def test_everything_agrees_when_all_is_quiet(some: int) -> None:
    for seed in range(some, SEEDS, 10):
        check(seed)


def check(seed: int) -> None:
    world = live(seed)
    context = recover(world)
    check_settled(world, context, f"seed {seed}")
    check_blobs(world, context, f"seed {seed}")


def wander(context: Context, chance: random.Random, count: int) -> Steps[None]:
    """Move whoever is found to the other department."""
    for _ in range(count):
        here, there = chance.sample(DEPTS, 2)
        key = PERSON.key({"dept": here, "id": chance.choice(NUMBERS)})
        with contextlib.suppress(ConflictError):
            found = yield from reading.find(context, PERSON, key)
            if found is not None:
                target = {"dept": there, "id": chance.choice([*NUMBERS, 7])}
                yield from verbs.move(context, PERSON, found, target)


def check_with_moves_and_a_death(seed: int) -> None:
    world = WatchedWorld(beginning(), seed)
    chance = random.Random(seed)
    processes: list[Steps[Any]] = [
        hire_and_fire(begin(world), chance, 6),
        make_and_unmake_owners(begin(world), chance, 4),
        *(wander(begin(world), chance, 4) for _ in range(2)),
        *(work(world, begin(world), chance, 8) for _ in range(2)),
    ]
    dying = chance.randrange(len(processes))
    processes[dying] = dies_after(processes[dying], chance.randrange(1, 80))
    for outcome in world.run_all(*processes):
        if isinstance(outcome, BaseException):
            raise outcome
    context = recover(world)
    check_settled(world, context, f"seed {seed}")
    check_blobs(world, context, f"seed {seed}")


@pytest.mark.repeated
@pytest.mark.parametrize("some", range(4))
def test_everything_agrees_though_people_move_and_a_process_dies(some: int) -> None:
    for seed in range(some, DEATHS, 4):
        check_with_moves_and_a_death(seed)


# ---------------------------------------------------------------------------------------------
# Duels: one entity, one follower, everybody at once


@entity(table="pins", partition="{board}", row="pin_{number:02d}")
class Pin:
    board: str
    number: int
    color: str
    text: str = ""


@entity(table="boards", partition="{name}", row="board")
class Board:
    name: str
    pins: Annotated[int, CountOf("Pin", where={"board": "name"})] = 0
    first: Annotated[
        str | None, CopiedFrom("Pin", "text", where={"board": "name", "number": "first_number"})
    ] = None
    first_number: int = 1


pins_by_color = index(Pin, table="pinsbycolor", partition="{color}", row="{number:02d}_{board}")
PIN, BOARD = entity_type(Pin), entity_type(Board)


@cache
def empty_boards() -> FakeWorld:
    world = FakeWorld()
    begin(world, models=(PIN, BOARD))
    return world


def stick(context: Context, chance: random.Random, count: int) -> Steps[None]:
    """Put pins up, change them and take them off: the same ones, in the same colors."""
    for _ in range(count):
        key = PIN.key({"board": "b", "number": chance.choice([1, 2])})
        drawn = {"color": chance.choice(["red", "blue"]), "text": chance.choice(["x", "y"])}
        with contextlib.suppress(ConflictError):
            pin = yield from reading.find(context, PIN, key)
            if pin is None:
                number = int(key.row[-2:])
                yield from verbs.save(context, PIN, Pin(board="b", number=number, **drawn))
            elif chance.random() < 0.5:
                yield from verbs.delete(context, PIN, pin)
            else:
                yield from verbs.save(context, PIN, evolve(pin, **drawn))


def hang(context: Context, chance: random.Random, count: int) -> Steps[None]:
    """Hang the board up and take it down."""
    for _ in range(count):
        with contextlib.suppress(ConflictError):
            board = yield from reading.find(context, BOARD, BOARD.key({"name": "b"}))
            if board is None:
                yield from verbs.save(context, BOARD, Board(name="b"))
            elif chance.random() < 0.5:
                yield from verbs.delete(context, BOARD, board)
            else:
                number = chance.choice([1, 2])
                yield from verbs.save(context, BOARD, evolve(board, first_number=number))


def follow(
    context: Context, told: Sequence[Context], chance: random.Random, count: int
) -> Steps[None]:
    """Do entries that were just written, whoever else does them."""
    for _ in range(count):
        entries = [reference for each in told for reference in each.pending]
        if entries:
            yield from worker.do_entry(context, chance.choice(entries))
        else:
            yield from ask(Sleep(0.001))


def duel(seed: int) -> None:
    world = StallingWorld(empty_boards(), seed)
    chance = random.Random(seed)
    writers = [begin(world, models=(PIN, BOARD)) for _ in range(3)]
    workers = [begin(world, models=(PIN, BOARD)) for _ in range(3)]
    outcomes = world.run_all(
        stick(writers[0], chance, 5),
        stick(writers[1], chance, 5),
        hang(writers[2], chance, 4),
        *(follow(context, writers, chance, 10) for context in workers),
    )
    assert [each for each in outcomes if each is not None] == []
    check_boards(world, seed)


def check_boards(world: FakeWorld, seed: int) -> None:
    context = recover(world, models=(PIN, BOARD))
    for model in (PIN, BOARD):
        assert world.run(lifecycle.verify(context, model, ignore)) == [], f"seed {seed}"
    assert outbox_rows(world) == []
    pins = {
        (row.properties["Color"], f"{row.key.row[-2:]}_b", row.properties["Text"])
        for row in rows_of(world, "pins", "Pin")
    }
    assert pins == {
        (row.key.partition, row.key.row, row.properties["Text"])
        for row in rows_of(world, "pinsbycolor", f"Pin@{pins_by_color.name}")
    }
    for row in rows_of(world, "boards", "Board"):
        assert row.properties["Pins"] == len(pins), f"seed {seed}"


def first_board(seed: int) -> None:
    """Hang a board up while the first pin is put up and followed."""
    world = StallingWorld(empty_boards(), seed)
    hanging, sticking = begin(world, models=(PIN, BOARD)), begin(world, models=(PIN, BOARD))

    def stick_and_follow() -> Steps[None]:
        yield from verbs.save(sticking, PIN, Pin(board="b", number=1, color="red", text="x"))
        for reference in list(sticking.pending):
            yield from worker.do_entry(sticking, reference)

    world.run_all(verbs.save(hanging, BOARD, Board(name="b")), stick_and_follow())
    check_boards(world, seed)


def one_pin(seed: int) -> None:
    """Put a pin up, take it off, and follow both at once."""
    world = StallingWorld(empty_boards(), seed)
    one, other = begin(world, models=(PIN, BOARD)), begin(world, models=(PIN, BOARD))
    pin = world.run(verbs.save(one, PIN, Pin(board="b", number=1, color="red", text="x")))

    def take_off_and_follow() -> Steps[None]:
        yield from verbs.delete(other, PIN, pin)
        for reference in list(other.pending):
            yield from worker.do_entry(other, reference)

    put_up = [worker.do_entry(one, reference) for reference in one.pending]
    world.run_all(*put_up, take_off_and_follow())
    check_boards(world, seed)


@pytest.mark.repeated
@pytest.mark.parametrize("some", range(10))
def test_one_entity_that_everybody_changes_and_follows_is_followed_to_its_end(some: int) -> None:
    for seed in range(some, DUELS, 10):
        duel(seed)
        first_board(seed)
        one_pin(seed)


# ---------------------------------------------------------------------------------------------
# Siblings


def fails(check: Callable[[int], object], seed: int) -> bool:
    try:
        check(seed)
    except (AssertionError, PartitaError):
        return True
    return False


def is_caught(check: Callable[[int], object], seeds: int = 1500) -> bool:
    return any(fails(check, seed) for seed in range(seeds))


def settle_without_a_second_look(
    context: Context, _model: Any, index: Any, key: RowKey, known: Any
) -> Steps[None]:
    keys = list(dict.fromkeys(known))
    while True:
        followers = yield from settling._followers(index, keys)
        stored, _ = yield from settling.load_as(context, index.owner, key)
        version = settling.version_of(stored)
        wanted = copies.key_of(index, version)
        if wanted is not None and wanted not in keys:
            keys.append(wanted)
            continue
        try:
            for each in keys:
                there = followers[each]
                yield from settling._settle_key(context, index, key, version, there, each)
        except ConflictError:
            continue
        return


def test_a_worker_that_does_not_look_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "settle_index", settle_without_a_second_look)

    assert is_caught(one_pin)


def test_a_worker_that_writes_over_any_version_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = settling._change

    def change(table: str, operation: RowOperation) -> Steps[None]:
        verb = Verb.DELETE if operation.verb is Verb.DELETE else Verb.UPSERT_REPLACE
        return honest(table, msgspec.structs.replace(operation, verb=verb, etag="*"))

    monkeypatch.setattr(settling, "_change", change)

    assert is_caught(check)


def made_anew(seed: int) -> None:
    """Delete an entity and make it anew with the same clock: it has the generation it had."""
    world = StallingWorld(empty_boards(), seed)
    context = begin(world, models=(PIN, BOARD))
    pin = world.run(verbs.save(context, PIN, Pin(board="b", number=1, color="red", text="x")))
    world.run(worker.drain(context, Report()))
    world.run(verbs.delete(context, PIN, pin))
    world.run(verbs.save(context, PIN, Pin(board="b", number=1, color="red", text="y")))
    check_boards(world, seed)


def test_an_entity_that_is_made_anew_is_followed_whatever_the_clock_says() -> None:
    made_anew(0)


def test_copies_that_are_compared_by_generation_alone_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def is_current(_: Context, __: Any, there: Row, wanted: Row) -> bool:
        return there.properties["_Generation"] == wanted.properties["_Generation"]

    monkeypatch.setattr(settling, "_is_current", is_current)

    assert fails(made_anew, 0)


def test_owners_that_are_not_derived_once_more_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "_derived_elsewhere", lambda _: [])

    assert is_caught(first_board)


@pytest.mark.proof
def test_counters_without_guard_rows_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_guard(*_: object) -> Steps[None]:
        yield from ()

    monkeypatch.setattr(changes, "_put_guard", no_guard)

    assert is_caught(check)


@pytest.mark.proof
def test_a_list_in_a_blob_that_is_written_over_any_version_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def put(container: str, name: str, content: bytes, metadata: Any, _: str) -> PutBlob:
        return PutBlob(container, name, content, metadata)

    monkeypatch.setattr(settling, "PutBlob", put)

    assert is_caught(check)


def test_an_entry_that_is_removed_before_its_work_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only a worker that dies makes the difference: one that lives does the work all the same."""

    def do_entry(context: Context, reference: OutboxReference) -> Steps[bool]:
        row = yield from ask(GetRow(reference.table, reference.key))
        if row is None:
            return False
        yield from outbox.entry_removal(reference)
        for touched in outbox.read_entry(row).touched:
            yield from settling.settle(context, touched)
        return True

    monkeypatch.setattr(worker, "do_entry", do_entry)

    assert is_caught(duel_with_a_death)


@pytest.mark.repeated
@pytest.mark.parametrize("some", range(5))
def test_a_worker_that_dies_anywhere_leaves_its_work_to_others(some: int) -> None:
    for seed in range(some, DUELS, 5):
        duel_with_a_death(seed)


def duel_with_a_death(seed: int) -> None:
    """Let the only worker die somewhere."""
    world = StallingWorld(empty_boards(), seed)
    chance = random.Random(seed)
    writers = [begin(world, models=(PIN, BOARD)) for _ in range(2)]
    dying = follow(begin(world, models=(PIN, BOARD)), writers, chance, 10)
    world.run_all(
        stick(writers[0], chance, 5),
        hang(writers[1], chance, 3),
        dies_after(dying, chance.randrange(1, 60)),
    )
    check_boards(world, seed)


def dies_after(steps: Steps[Any], calls: int) -> Steps[None]:
    """Drive steps for some calls, and never again."""
    go_on: Callable[[], Any] = partial(next, steps)
    for _ in range(calls):
        try:
            call = go_on()
        except StopIteration:
            return
        try:
            go_on = partial(steps.send, (yield call))
        except PartitaError as error:
            go_on = partial(steps.throw, error)
    steps.close()  # it can ask for nothing more


# ---------------------------------------------------------------------------------------------
# Once on a real account


@pytest.mark.parametrize("direct", [False, True])
async def test_writers_and_workers_at_once_agree_on_a_real_account(
    partita_account: LocalAccount, direct: bool
) -> None:
    chance = random.Random(1)
    async with AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(connect(partita_account, direct=direct))
            for _ in range(5)
        ]
        for db in processes:
            db.table(Pin)
            db.table(Board)
            await db.create_tables()

        async def work(db: Database) -> None:
            for _ in range(12):
                await db.work_once()
                await asyncio.sleep(0)

        await asyncio.gather(
            processes[0].run(stick(processes[0].context, chance, 15)),
            processes[1].run(stick(processes[1].context, chance, 15)),
            processes[1].run(hang(processes[1].context, chance, 6)),
            *(work(db) for db in processes[2:]),
        )
        await processes[0].drain()
        assert await processes[0].verify(Pin) == []
        assert await processes[0].verify(Board) == []


# ---------------------------------------------------------------------------------------------
# The one race that is left


def test_a_worker_that_stalls_and_dies_can_leave_an_orphan_which_verify_finds() -> None:
    """It has read that there is no copy; another one makes it, and removes it with its entity.

    Then the first writes what it meant to, and dies before its second look. Its entry is gone:
    only `verify` tells. (See decision 0022.)
    """

    world = WatchedWorld(beginning())
    context, other = begin(world), begin(world)
    ann = world.run(
        verbs.save(context, PERSON, Person(dept="Sales", id=3, last="L", email="ann@x"))
    )
    (reference,) = context.pending
    stalled = worker.do_entry(context, reference)
    call: Any = next(stalled)
    while not isinstance(call, WriteRows):
        call = stalled.send(world.run(ask(call)))
    world.run(worker.drain(other, Report()))
    world.run(verbs.delete(other, PERSON, ann))
    world.run(worker.drain(other, Report()))

    world.run(ask(call))
    stalled.close()

    context = recover(world)
    assert drift(world) != []
    drifts = world.run(lifecycle.verify(context, PERSON, ignore))
    assert [(each.kind, each.what) for each in drifts] == [("orphan", "anywhere")]
    world.run(lifecycle.repair(context, PERSON, drifts, ignore))
    check_settled(world, context, "after the repair")
    assert ("Sales", 3) not in people(world)
