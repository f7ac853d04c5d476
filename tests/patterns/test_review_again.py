"""What a second review of the typed layer broke: pages, parents, caches, entries, near reads."""

import asyncio
import base64
import json
import random
import resource
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
import pytest_asyncio

from partita.clock import ManualClock
from partita.errors import (
    ConflictError,
    PartitaError,
    ProjectionError,
    StoreBusyError,
    UsageError,
)
from partita.patterns import CountOf, Database, Table, connect, entity, list_index, view
from partita.patterns.following import worker
from partita.patterns.following.worker import Report
from partita.patterns.operations import bulk, verbs
from partita.patterns.operations.groups import Collected
from partita.patterns.operations.joins import Cache
from partita.patterns.operations.run_query import Ask, Position, print_continuation, read_page
from partita.patterns.planning.columns import Columns
from partita.patterns.planning.plans import plan_query
from partita.patterns.ports.row_requests import request_of
from partita.patterns.protocol.calls import Call, RowOperation, Steps, Verb, WriteRows
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.writing.context import Context, Options
from partita.patterns.writing.outbox_entry import names_in, read_entry
from partita.service.formats.multipart import read_batch
from partita.service.hosting.in_process import open_account
from patterns.simulated import begin, drain, ignore, outbox_rows
from unit.patterns.fake_world import FakeWorld

# ---------------------------------------------------------------------------------------------
# Pages that end inside of a list


@entity(table="coins", partition="{box}", row="{id:04d}")
class Coin:
    box: str
    id: int
    metal: str = "tin"


beside = list_index(Coin, row="of_{metal}", store="partition", name="beside")
elsewhere = list_index(
    Coin, table="bymetal", partition="{metal}", row="all", store="table", name="elsewhere"
)
in_blobs = list_index(Coin, partition="{metal}", row="all", store="blob", name="in_blobs")

COIN = entity_type(Coin)
METALS = ("tin", "zinc", "lead")
WAYS: dict[str, Callable[[], Ask]] = {
    "one list": lambda: Ask(plan_query(COIN, {"box": "b1", "metal": "tin"}, via=beside)),
    "lists of a partition": lambda: Ask(plan_query(COIN, {"box": "b1"}, via=beside)),
    "lists of all partitions": lambda: Ask(plan_query(COIN, {}, via=beside), True),
    "a list elsewhere": lambda: Ask(plan_query(COIN, {"metal": "tin"}, via=elsewhere)),
    "all lists elsewhere": lambda: Ask(plan_query(COIN, {}, via=elsewhere), True),
    "a blob": lambda: Ask(plan_query(COIN, {"metal": "tin"}, via=in_blobs)),
}


def coin(number: int) -> Coin:
    return Coin(box=f"b{number % 3}", id=number, metal=METALS[number // 3 % 3])


def mint(seed: int | None = None) -> tuple[FakeWorld, Context]:
    world = FakeWorld(seed=seed, is_hostile=seed is not None)
    context = begin(world, models=(COIN,))
    put(world, context, *map(coin, range(0, 80, 2)))
    return world, context


def put(world: FakeWorld, context: Context, *coins: Coin) -> None:
    world.run(
        bulk.write_all(context, COIN, coins, "save", rate=None, concurrency=1, progress=ignore)
    )
    drain(world, context)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_what_comes_and_goes_between_pages_of_lists_hides_and_repeats_nothing(
    way: str, seed: int | None
) -> None:
    world, context = mint(seed)
    query, chance = WAYS[way](), random.Random(seed or 0)
    lasting = {one.id for one in world.run(read_page(context, query, None, 1000, None)).entities}
    assert lasting
    text, found, fresh = None, list[int](), iter(range(1, 80, 2))

    while True:
        piece = world.run(read_page(context, query, text, 2, None))
        assert len(piece.entities) <= 2
        found += [one.id for one in piece.entities]
        text = print_continuation(query, piece.position)
        if text is None:
            break
        gone = coin(chance.randrange(0, 80, 2))
        lasting.discard(gone.id)
        world.run(verbs.delete_key(context, COIN, COIN.key(COIN.values(gone))))
        put(world, context, coin(next(fresh)))

    assert lasting <= set(found)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("way", WAYS)
def test_a_page_of_lists_holds_no_more_than_its_size_and_no_more_than_the_limit(way: str) -> None:
    world, context = mint()
    query = WAYS[way]()

    first = world.run(read_page(context, query, None, 2, 3))
    text = print_continuation(query, first.position)
    rest = world.run(read_page(context, query, text, 2, 3))

    assert (len(first.entities), len(rest.entities), rest.position) == (2, 1, None)


def test_a_continuation_of_a_page_that_was_cut_is_of_a_version_that_older_programs_refuse() -> None:
    world, context = mint()
    query = WAYS["one list"]()
    text = print_continuation(query, world.run(read_page(context, query, None, 2, None)).position)

    assert text is not None
    assert json.loads(base64.urlsafe_b64decode(text + "=="))["version"] == 2


def test_a_continuation_that_tells_only_the_place_in_a_list_is_still_good() -> None:
    world, context = mint()
    query = WAYS["one list"]()
    expected = world.run(read_page(context, query, None, 1000, None)).entities
    text = print_continuation(query, Position(0, "b1", "of_tin", 2))

    rest = world.run(read_page(context, query, text, 1000, None))

    assert rest.entities == expected[2:]


def test_blobs_of_all_values_are_refused_and_not_taken_for_none() -> None:
    for condition in (None, Columns(COIN).metal >= "a"):
        with pytest.raises(UsageError, match="NotAKeyField"):
            plan_query(COIN, {}, condition, via=in_blobs)


# ---------------------------------------------------------------------------------------------
# Parents that cannot be stored


@entity(table="boats", partition="{port}", row="{id:04d}", abstract=True)
class Boat:
    port: str
    id: int


@entity(row="tug_{id:04d}")
class Tug(Boat):
    pass


@entity(row="ferry_{id:04d}")
class Ferry(Boat):
    pass


@entity()
class Canoe(Boat):
    pass


@pytest.mark.parametrize("verb", ["get", "get_or_none", "delete_if_exists"])
@pytest.mark.parametrize("pair", [(Tug, Ferry), (Tug, Canoe), (Ferry, Canoe)])
async def test_of_two_children_an_abstract_parent_means_neither(
    db: Database, verb: str, pair: tuple[type[Boat], type[Boat]]
) -> None:
    boats = db.table(Boat)
    await db.create_tables()
    await boats.save_all([one(port="p", id=1) for one in pair])

    with pytest.raises(UsageError, match="KeyAmbiguous"):
        await getattr(boats, verb)(port="p", id=1)

    assert len(await boats.partition(port="p").all().list()) == 2


@pytest.mark.parametrize("cls", [Tug, Ferry, Canoe])
async def test_an_abstract_parent_finds_and_deletes_the_one_child_that_there_is(
    db: Database, cls: type[Boat]
) -> None:
    boats = db.table(Boat)
    await db.create_tables()
    await boats.save(cls(port="p", id=1))

    assert await boats.get(port="p", id=1) == cls(port="p", id=1)
    assert await boats.delete_if_exists(port="p", id=1)
    assert await boats.get_or_none(port="p", id=1) is None
    assert not await boats.delete_if_exists(port="p", id=1)


# ---------------------------------------------------------------------------------------------
# Entries that name what a program does not know


class Post:
    """A version of a program that knows some of the views of its letters."""

    def __init__(self, *views: str) -> None:
        self.seen: dict[str, list[int]] = {name: [] for name in views}

        @entity(table="letters", partition="{town}", row="{id:04d}")
        class Letter:
            town: str
            id: int

        self.letter = Letter
        for name in views:
            view(Letter, name=name)(self._watch(name))

    def _watch(self, name: str) -> Callable[[Any, Any, Any], None]:
        def watch(_db: Any, key: Any, _letter: Any) -> None:
            self.seen[name].append(key["id"])

        return watch

    @property
    def model(self) -> EntityType[Any]:
        return entity_type(self.letter)

    def begin(self, world: FakeWorld) -> Context:
        return begin(world, models=(self.model,))

    def send(self, world: FakeWorld, number: int) -> None:
        group = Collected(self.begin(world), self.model, "t")
        group.save(self.letter(town="t", id=number))
        world.run(group.commit())


def named(world: FakeWorld) -> set[str]:
    return {
        name
        for table, key in outbox_rows(world)
        for name in names_in(read_entry(world.tables[table][key]))
    }


def before_writing(steps: Steps[Any], act: Callable[[], object]) -> Steps[Any]:
    """Let something happen just before the first write of some steps."""
    is_due, answer = True, None
    try:
        call: Call[Any] = next(steps)
        while True:
            if is_due and isinstance(call, WriteRows):
                is_due = False
                act()
            try:
                answer = yield call
            except PartitaError as error:
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as end:
        return end.value


def test_what_is_forgotten_goes_though_a_worker_cuts_the_entry_down_meanwhile() -> None:
    world, new, old = FakeWorld(), Post("kept", "gone"), Post("kept")
    new.send(world, 1)
    context = old.begin(world)

    def cut_down() -> None:
        world.run(worker.work(old.begin(world), "partita-outbox", Report()))
        assert named(world) == {"type:Letter", "view:Letter@gone"}

    forgetting = worker.forget(context, ["view:Letter@gone"])
    count = world.run(before_writing(forgetting, cut_down))

    assert (count, outbox_rows(world)) == (1, [])
    assert old.seen == {"kept": [1]}


def test_what_a_newer_worker_has_done_meanwhile_was_not_forgotten() -> None:
    world, new, old = FakeWorld(), Post("kept", "gone"), Post("kept")
    new.send(world, 1)
    forgetting = worker.forget(old.begin(world), ["view:Letter@gone"])

    count = world.run(before_writing(forgetting, lambda: drain(world, new.begin(world))))

    assert (count, outbox_rows(world)) == (0, [])
    assert new.seen == {"kept": [1], "gone": [1]}


@pytest.mark.parametrize("seed", range(30))
def test_workers_of_programs_that_know_different_halves_do_all_of_it_between_them(
    seed: int,
) -> None:
    world = FakeWorld(seed=seed)
    whole, left, right = Post("a", "b"), Post("a"), Post("b")
    for number in range(3):
        whole.send(world, number)
    halves = (left.begin(world), right.begin(world))

    for _ in range(6):
        world.clock.advance(61)
        world.run_all(*(worker.sweep(context, Report()) for context in halves))

    assert outbox_rows(world) == []
    assert (set(left.seen["a"]), set(right.seen["b"])) == ({0, 1, 2}, {0, 1, 2})


def test_an_owner_that_was_declared_after_its_source_was_in_use_is_known() -> None:
    @entity(table="guests", partition="{inn}", row="{id:04d}")
    class Guest:
        inn: str
        id: int

    world = FakeWorld()
    context = begin(world, models=(entity_type(Guest),))

    @entity(table="guests", partition="{inn}", row="inn")
    class Inn:
        inn: str
        guests: Annotated[int, CountOf(Guest, where={"inn": "inn"})] = 0

    @entity(table="guests", partition="all", row="{inn}")
    class Listed:
        inn: str
        guests: Annotated[int, CountOf(Guest, where={"inn": "inn"})] = 0

    world.run(verbs.save(context, entity_type(Guest), Guest(inn="i", id=1)))

    assert drain(world, context).left == 0
    assert outbox_rows(world) == []


# ---------------------------------------------------------------------------------------------
# Caches


@entity(table="rooms", partition="{house}", row="{id:04d}")
class Room:
    house: str
    id: int
    color: str = ""


@pytest_asyncio.fixture
async def rooms(db: Database) -> AsyncIterator[Table[Room]]:
    table = db.table(Room)
    await db.create_tables()
    await table.save(Room(house="h", id=1))
    yield table


@pytest.mark.parametrize("verb", ["save", "delete"])
async def test_a_cache_forgets_what_a_write_found_to_be_old(rooms: Table[Room], verb: str) -> None:
    cached = rooms.cached(ttl=3600)
    known = await cached.get(house="h", id=1)
    other = await rooms.get(house="h", id=1)
    other.color = "red"
    await rooms.save(other)
    known.color = "blue"

    with pytest.raises(ConflictError):
        await getattr(cached, verb)(known)

    assert (await cached.get(house="h", id=1)).color == "red"
    await getattr(cached, verb)(await cached.get(house="h", id=1))


@pytest.mark.parametrize("verb", ["save", "delete"])
async def test_a_cache_refuses_a_projection_as_a_table_does(rooms: Table[Room], verb: str) -> None:
    [part] = await rooms.partition(house="h").all().select("color").list()

    with pytest.raises(ProjectionError, match="PartialEntity"):
        await getattr(rooms.cached(ttl=60), verb)(part)


async def test_who_is_cancelled_in_its_turn_leaves_it_to_the_next(rooms: Table[Room]) -> None:
    cached = rooms.cached(ttl=60)
    asking = [asyncio.create_task(cached.get(house="h", id=1)) for _ in range(4)]
    await asyncio.sleep(0)
    asking[0].cancel()
    asking[2].cancel()

    found = await asyncio.gather(*asking, return_exceptions=True)

    assert [isinstance(each, asyncio.CancelledError) for each in found] == [True, False] * 2
    assert found[1] == found[3] == Room(house="h", id=1)


def test_threads_may_find_that_an_entry_is_over_at_the_same_moment() -> None:
    clock = ManualClock()
    cache = Cache(clock, 1.0, 4)
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def use(number: int) -> None:
        start.wait()
        try:
            for step in range(3000):
                key = RowKey("p", str((step + number) % 6))
                cache.find(key)
                cache.put(key, step, cache.now() - (step % 2))
        except (KeyError, RuntimeError, StopIteration) as error:
            failures.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert failures == []


# ---------------------------------------------------------------------------------------------
# Reads in the thread of the caller


@contextmanager
def no_further_file() -> Iterator[None]:
    """Let the process open none."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(each.name) for each in Path("/proc/self/fd").iterdir()}
    free = next(number for number in range(before[0]) if number not in used)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_who_reads_and_reads_lets_others_have_their_turn(tmp_path: Path) -> None:
    with open_account(tmp_path) as account:
        async with connect(account, direct=True) as db:
            rooms = db.table(Room)
            await db.create_tables()
            writing = asyncio.create_task(rooms.save(Room(house="h", id=1)))

            for _ in range(100_000):
                if await rooms.get_or_none(house="h", id=1) is not None:
                    break

            assert await rooms.get(house="h", id=1) == await writing


async def test_a_near_read_that_can_open_no_file_is_refused_and_may_come_again(
    tmp_path: Path,
) -> None:
    with open_account(tmp_path) as account:
        async with connect(account, direct=True) as db:
            rooms = db.table(Room)
            await db.create_tables()

            with no_further_file(), pytest.raises(StoreBusyError, match="ServerBusy"):
                await rooms.get(house="h", id=1)

            assert await rooms.get_or_none(house="h", id=1) is None


# ---------------------------------------------------------------------------------------------
# Cosmos DB


@pytest.mark.parametrize("verb", [Verb.MERGE, Verb.UPSERT_MERGE])
@pytest.mark.parametrize(
    ("root", "method"),
    [
        ("https://shop.table.cosmos.azure.com", "POST"),
        ("http://localhost:8902", "POST"),
        ("https://shop.table.core.windows.net", "PATCH"),
        ("http://localhost:10002/devstoreaccount1", "PATCH"),
    ],
)
def test_merges_in_a_group_are_said_to_cosmos_db_as_the_sdk_says_them(
    verb: Verb, root: str, method: str
) -> None:
    rows = [Row(RowKey("p", each), {"Age": 7}) for each in ("1", "2")]
    call = WriteRows("staff", tuple(RowOperation(verb, row, "*") for row in rows))

    made = request_of(call, root, "7")

    parts = read_batch(made.body or b"", made.headers["Content-Type"]).parts
    said = "MERGE" if method == "POST" else None
    assert [(one.method, one.headers.get("x-http-method")) for one in parts] == [(method, said)] * 2


# ---------------------------------------------------------------------------------------------
# Options


@pytest.mark.parametrize("option", ["queues", "poison_queue"])
def test_a_name_of_a_queue_that_is_refused_is_told_with_its_option(option: str) -> None:
    given: Any = "No_Name" if option == "poison_queue" else ("No_Name",)

    with pytest.raises(UsageError, match="OptionRefused") as refused:
        Options(**{option: given})

    assert refused.value.facts["option"] == option
