"""Materialised views: functions that follow the entities of a type.

A view that is fed as things change holds in the end what one holds that is fed anew from what
is stored: after crashes, with messages twice and out of order, with workers that stall.
"""

import random
from collections.abc import Iterator
from dataclasses import field
from functools import cache
from typing import Annotated, Any

import pytest

from partita.errors import ConflictError, DefinitionError, UnavailableError, UsageError
from partita.patterns import InBlob, Series, connect, entity, eventual, evolve, idempotent, view
from partita.patterns.following import bring_up_to_date as settling
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following import worker
from partita.patterns.following.worker import Report
from partita.patterns.operations import verbs
from partita.patterns.operations.groups import Collected
from partita.patterns.protocol.calls import Invoke, Steps, ask
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import entity_type
from partita.patterns.writing import load as reading
from partita.patterns.writing.context import Context
from partita.patterns.writing.outbox_entry import read_entry
from partita.service.hosting.in_process import LocalAccount
from support.fake_world import FakeWorld
from support.repeats import IS_SOAK, repeat
from support.simulated import (
    StallingWorld,
    begin,
    drain,
    each_stop,
    fork,
    ignore,
    outbox_rows,
    rows_of,
)

SEEDS = repeat(40, 120, 3000)
pytestmark = pytest.mark.timeout(1200 if IS_SOAK else 300)


@entity(table="orders", partition="{shop}", row="{number:04d}")
class Order:
    shop: str
    number: int
    total: int


@entity(table="orderspaid", partition="{shop}", row="line_{number:04d}")
class Line:
    """What the view keeps of an order."""

    shop: str
    number: int
    text: str


ORDER, LINE = entity_type(Order), entity_type(Line)
mistakes: list[str] = []


@view(Order)
def lines(db: Any, key: dict[str, Any], order: Order | None) -> None:
    if mistakes:
        raise UnavailableError("OperationTimedOut", mistakes.pop())
    if order is None:
        db.run(verbs.delete_key(db.context, LINE, LINE.key(key)))
    else:
        line = Line(shop=order.shop, number=order.number, text=f"{order.total} EUR")
        db.run(verbs.upsert(db.context, LINE, line))


@pytest.fixture(autouse=True)
def no_mistakes() -> Iterator[None]:
    mistakes.clear()
    yield
    mistakes.clear()


def start(world: FakeWorld) -> Context:
    return begin(world, models=(ORDER, LINE))


@cache
def beginning() -> FakeWorld:
    world = FakeWorld()
    context = start(world)
    for number in (1, 2):
        world.run(verbs.save(context, ORDER, Order(shop="a", number=number, total=10 * number)))
    drain(world, context)
    return world


def kept(world: FakeWorld) -> dict[RowKey, object]:
    return {row.key: row.properties["Text"] for row in rows_of(world, "orderspaid", "Line")}


def rebuilt(world: FakeWorld) -> dict[RowKey, object]:
    """Return what the view holds after it was emptied and fed anew."""
    other = fork(world)
    other.tables["orderspaid"].clear()
    context = start(other)
    other.run(lifecycle.replay(context, ORDER, "lines", ignore))
    return kept(other)


def check(world: FakeWorld, told: str) -> None:
    assert kept(world) == rebuilt(world), told
    assert outbox_rows(world) == [], told


def trade(context: Context, chance: random.Random, count: int) -> Steps[None]:
    for _ in range(count):
        key = ORDER.key({"shop": "a", "number": chance.choice([1, 2, 3])})
        total = chance.randrange(100)
        try:
            order = yield from reading.find(context, ORDER, key)
            if order is None:
                number = int(key.row)
                yield from verbs.save(context, ORDER, Order(shop="a", number=number, total=total))
            elif chance.random() < 0.4:
                yield from verbs.delete(context, ORDER, order)
            else:
                yield from verbs.save(context, ORDER, evolve(order, total=total))
        except ConflictError:
            continue


def test_a_view_that_is_rebuilt_equals_one_that_followed() -> None:
    world = fork(beginning())
    context = start(world)

    world.run(trade(context, random.Random(1), 30))
    drain(world, context)

    assert kept(world)
    check(world, "after the trade")


def test_a_crash_anywhere_leaves_nothing_out() -> None:
    def change_and_follow(world: FakeWorld, context: Context) -> None:
        order = world.run(verbs.get(context, ORDER, {"shop": "a", "number": 1}))
        world.run(verbs.save(context, ORDER, evolve(order, total=99)))
        other = world.run(verbs.get(context, ORDER, {"shop": "a", "number": 2}))
        world.run(verbs.delete(context, ORDER, other))
        drain(world, context)

    for world, _, told in each_stop(beginning(), change_and_follow, start=start):
        world.clock.advance(120)
        drain(world, start(world))
        check(world, told)


def live(seed: int) -> None:
    """Trade in two shops' processes, with three workers that stall, and messages twice."""
    world = StallingWorld(beginning(), seed)
    chance = random.Random(seed)
    traders = [start(world) for _ in range(2)]
    workers = [start(world) for _ in range(3)]

    def follow(context: Context) -> Steps[None]:
        for _ in range(10):
            entries = [reference for each in traders for reference in each.pending]
            if entries:
                yield from worker.do_entry(context, chance.choice(entries))

    world.run_all(
        *(trade(context, chance, 5) for context in traders),
        *(follow(context) for context in workers),
    )
    context = start(world)
    drain(world, context)
    world.clock.advance(120)
    drain(world, context)
    check(world, f"seed {seed}")


@pytest.mark.parametrize("some", range(4))
def test_a_view_that_is_fed_late_twice_and_out_of_order_ends_up_right(some: int) -> None:
    for seed in range(some, SEEDS, 4):
        live(seed)


def overtaken(_: int = 0) -> None:
    """Let a worker show an old state after another one has shown the new one."""
    world = fork(beginning())
    context, other = start(world), start(world)
    order = world.run(verbs.get(context, ORDER, {"shop": "a", "number": 1}))
    order = world.run(verbs.save(context, ORDER, evolve(order, total=50)))
    (reference,) = context.pending
    late = worker.do_entry(context, reference)
    call: Any = next(late)
    while not isinstance(call, Invoke):
        call = late.send(world.run(ask(call)))
    world.run(verbs.save(other, ORDER, evolve(order, total=60)))
    for entry in list(other.pending):
        world.run(worker.do_entry(other, entry))

    while True:
        try:
            call = late.send(world.run(ask(call)))
        except StopIteration:
            break
    check(world, "after the late worker")


def test_the_last_word_of_a_view_is_the_right_one() -> None:
    overtaken()


def test_a_view_that_is_shown_an_entity_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sibling of the test above, with the rule broken."""

    def show(context: Context, model: Any, one: Any, key: RowKey) -> Steps[None]:
        given = {**model.partition.parse(key.partition), **model.row.parse(key.row)}
        found = yield from reading.find(context, model, key)
        yield from ask(Invoke(one.function, (context.database, given, found)))

    monkeypatch.setattr(settling, "call_view", show)

    with pytest.raises(AssertionError):
        overtaken()


def test_a_view_that_fails_is_called_again() -> None:
    world = fork(beginning())
    context = start(world)
    world.run(verbs.save(context, ORDER, Order(shop="a", number=3, total=30)))
    mistakes.append("the archive is down")
    report = Report()
    queue = context.options.queues[0]

    world.run(worker.work(context, queue, report))
    assert report.failures == 1
    world.clock.advance(31)
    world.run(worker.work(context, queue, report))

    check(world, "after the second call")


@entity(table="parcels", partition="{shop}", row="{number:04d}")
class Parcel:
    shop: str
    number: int


shown: list[int] = []


@view(Parcel)
def jam(_db: Any, key: dict[str, Any], _parcel: Parcel | None) -> None:
    if key["number"] == 1:
        raise KeyError("shelf")


@view(Parcel)
def post(_db: Any, key: dict[str, Any], _parcel: Parcel | None) -> None:
    shown.append(key["number"])


def test_a_view_that_fails_keeps_no_other_view_of_the_group_from_being_called() -> None:
    shown.clear()
    world, model = FakeWorld(), entity_type(Parcel)
    context = begin(world, models=(model,))
    group = Collected(context, model, "a")
    for number in (1, 2):
        group.save(Parcel(shop="a", number=number))
    world.run(group.commit())

    with pytest.raises(KeyError, match="shelf"):
        world.run(worker.work(context, context.options.queues[0], Report()))

    assert shown == [1, 2]
    assert len(outbox_rows(world)) == 1


def test_what_was_done_beside_a_failing_view_is_not_done_again() -> None:
    shown.clear()
    ran: list[int] = []
    once = eventual("once", idempotent(lambda _db, arguments: ran.append(arguments["number"])))
    world, model = FakeWorld(), entity_type(Parcel)
    context = begin(world, models=(model,))
    context.transactions[once.name] = once
    group = Collected(context, model, "a")
    for number in (1, 2):
        group.save(Parcel(shop="a", number=number))
    group.start(once, {"number": 7})
    world.run(group.commit())

    for _ in range(3):
        with pytest.raises(KeyError, match="shelf"):
            world.run(worker.drain(context, Report()))
        world.clock.advance(31)

    assert ran == [7]
    assert shown.count(2) == 1
    (place,) = outbox_rows(world)
    entry = read_entry(world.tables[place[0]][place[1]])
    assert (len(entry.touched), entry.started) == (1, [])


def test_a_replay_that_is_stopped_can_be_made_again() -> None:
    def replay(world: FakeWorld, context: Context) -> object:
        return world.run(lifecycle.replay(context, ORDER, "lines", ignore))

    world = fork(beginning())
    world.tables["orderspaid"].clear()
    for stopped, _, told in each_stop(world, replay, start=start):
        assert replay(stopped, start(stopped)) == 2, told
        check(stopped, told)


def test_a_view_of_another_name_is_refused() -> None:
    world = fork(beginning())

    with pytest.raises(UsageError, match="ViewUnknown"):
        world.run(lifecycle.replay(start(world), ORDER, "colons", ignore))
    with pytest.raises(DefinitionError, match="ViewRefused"):
        view(Order, name="lines")(lambda *_: None)


# ---------------------------------------------------------------------------------------------
# Once on a real account


@entity(table="albums", partition="{owner}", row="{title}")
class Album:
    owner: str
    title: str
    cover: Annotated[bytes | None, InBlob] = None
    plays: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = field(default_factory=dict)


shelf: dict[str, tuple[bytes | None, int]] = {}


@view(Album)
async def on_the_shelf(_: object, key: dict[str, Any], album: Album | None) -> None:
    if album is None:
        shelf.pop(key["title"], None)
    else:
        shelf[album.title] = album.cover, sum(album.plays.values())


async def test_a_view_follows_blobs_and_increments_on_a_real_account(
    partita_account: LocalAccount,
) -> None:
    shelf.clear()
    async with connect(partita_account) as db:
        albums = db.table(Album)
        await db.create_tables()
        blue = await albums.save(Album(owner="Jun", title="Blue", cover=b"blue"))
        await albums.save(Album(owner="Jun", title="Red"))
        await albums.increment(blue, "plays", 7, by=3)
        await albums.delete_if_exists(owner="Jun", title="Red")
        await db.drain()
        assert shelf == {"Blue": (b"blue", 3)}

        shelf.clear()
        assert await db.replay(Album, "on_the_shelf") == 1
        assert shelf == {"Blue": (b"blue", 3)}
