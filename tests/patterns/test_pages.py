"""Pages of what only the client can decide: full, cut anywhere, and gone on with by anybody."""

import base64
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from partita.errors import UsageError
from partita.patterns import entity, index, list_index
from partita.patterns.operations import bulk, continuations, verbs
from partita.patterns.operations.continuations import Position, Slice
from partita.patterns.operations.run_query import Ask, fingerprint_of, reader_of
from partita.patterns.planning.columns import Columns
from partita.patterns.planning.plans import plan_query
from partita.patterns.protocol.calls import QueryRows, Steps
from partita.patterns.protocol.capabilities import COSMOS
from partita.patterns.types.decorators import entity_type
from partita.patterns.writing.context import Context
from support.fake_world import FakeWorld
from support.repeats import repeat
from support.simulated import begin, drain, ignore

NOTHING = lambda _partition, _row, _name: False  # noqa: E731
"""A resolver might encrypt any property, so that conditions are decided by the client."""


@entity(table="stones", partition="{quarry}", row="is_{name:esc}_{id:04d}", encrypt=NOTHING)
class Stone:
    quarry: str
    name: str
    id: int
    weight: int = 0


by_name = index(Stone, row="by_{name:esc}_{id:04d}", copy=["weight"])


@entity(table="shards", partition="{id:hash4}", row="{id:04d}", encrypt=NOTHING)
class Shard:
    id: int
    weight: int = 0


# Between U+10000 and U+FFFF the orders of code points and of UTF-16 units differ.
NAMES = ["a", "b", "\uff5e", "\U0001f600", "~", "z"]
STONE, SHARD = entity_type(Stone), entity_type(Shard)


def quarry(
    seed: int | None = None, count: int = 60, *, is_ordered: bool = True
) -> tuple[FakeWorld, Context]:
    world = FakeWorld(seed=seed, is_hostile=seed is not None, is_ordered=is_ordered)
    context = begin(world, models=(STONE, SHARD))
    stones = [
        Stone(quarry=f"q{number % 3}", name=NAMES[number % 6], id=number, weight=number)
        for number in range(count)
    ]
    shards = [Shard(id=number, weight=number) for number in range(count)]
    for model, entities in ((STONE, stones), (SHARD, shards)):
        world.run(
            bulk.write_all(
                context, model, entities, "save", rate=None, concurrency=1, progress=ignore
            )
        )
    return world, context


def heavy(least: int, given: dict[str, Any], **how: Any) -> Ask:
    return Ask(plan_query(STONE, given, Columns(STONE).weight >= least, **how), True)


QUERIES: dict[str, Callable[[int], Ask]] = {
    "range": lambda least: heavy(least, {"quarry": "q1"}),
    "scan": lambda least: heavy(least, {}),
    "index": lambda least: heavy(least, {"quarry": "q1"}, via=by_name),
    "spread": lambda least: Ask(
        plan_query(SHARD, {}, Columns(SHARD).weight >= least),
        True,
    ),
}


def read_page(
    context: Context, query: Ask, text: str | None, size: int, limit: int | None
) -> Steps[Slice]:
    return continuations.read_page(reader_of(context, query, limit), text, size)


def print_continuation(query: Ask, position: Position | None) -> str | None:
    return continuations.print_continuation(fingerprint_of(query), position)


def pages(world: FakeWorld, context: Context, query: Ask, size: int) -> list[list[int]]:
    found: list[list[int]] = []
    text = None
    while True:
        piece = world.run(read_page(context, query, text, size, None))
        found.append([each.id for each in piece.entities])
        text = print_continuation(query, piece.position)
        if text is None:
            return found


@pytest.mark.parametrize("way", QUERIES)
@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize("least", [0, 30, 59])
def test_pages_leave_nothing_out_repeat_nothing_and_are_full(
    way: str, size: int, least: int
) -> None:
    world, context = quarry()
    query = QUERIES[way](least)
    assert query.plan.client is not None
    wanted = [number for number in range(least, 60) if way in ("scan", "spread") or number % 3 == 1]

    found = pages(world, context, query, size)

    assert sorted(number for page in found for number in page) == wanted
    assert all(len(page) == size for page in found[:-1])


@pytest.mark.repeated
@pytest.mark.parametrize("way", QUERIES)
@pytest.mark.parametrize("seed", range(repeat(3, 10, 10)))
def test_pages_of_a_service_that_gives_short_and_empty_ones_are_whole(way: str, seed: int) -> None:
    world, context = quarry(seed)
    query = QUERIES[way](20)
    expected = pages(*quarry(), query, 100)[0]

    for size in (1, 3, 8):
        found = pages(world, context, query, size)
        assert [number for page in found for number in page] == expected, size
        assert all(len(page) == size for page in found[:-1])


@pytest.mark.parametrize("way", QUERIES)
def test_a_page_that_is_rare_takes_few_requests(way: str) -> None:
    world, context = quarry(count=600)
    query = QUERIES[way](598)
    before = sum(isinstance(call, QueryRows) for call in world.history)

    world.run(read_page(context, query, None, 1, None))

    parts = len(query.plan.requests)
    assert sum(isinstance(call, QueryRows) for call in world.history) - before <= 6 * parts


def test_a_page_of_which_everything_is_wanted_reads_no_row_too_many() -> None:
    world, context = quarry()

    world.run(read_page(context, QUERIES["range"](0), None, 5, None))

    sent = [call for call in world.history if isinstance(call, QueryRows)][-1]
    assert sent.size == 5


@pytest.mark.parametrize("way", ["range", "scan"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_page_goes_on_behind_a_row_that_was_deleted_since(way: str, size: int) -> None:
    world, context = quarry()
    query = QUERIES[way](17)
    expected = [number for page in pages(world, context, query, 100) for number in page]
    text, found = None, list[int]()

    while True:
        piece = world.run(read_page(context, query, text, size, None))
        found += [each.id for each in piece.entities]
        for stone in piece.entities:
            del world.tables["stones"][STONE.key(STONE.values(stone))]
        text = print_continuation(query, piece.position)
        if text is None:
            break

    assert found == expected


def test_a_limit_is_kept_over_pages_that_are_cut() -> None:
    world, context = quarry()
    query = QUERIES["range"](30)
    first = world.run(read_page(context, query, None, 3, 5))
    text = print_continuation(query, first.position)

    rest = world.run(read_page(context, query, text, 3, 5))

    assert (len(first.entities), len(rest.entities), rest.position) == (3, 2, None)


def test_a_service_without_order_is_not_read_ahead() -> None:
    world, _ = quarry(is_ordered=False)
    context = Context(world.clock, COSMOS)
    context.know(STONE)
    query = QUERIES["scan"](55)

    found = pages(world, context, query, 2)

    assert sorted(number for page in found for number in page) == [55, 56, 57, 58, 59]
    sizes = [call.size or 0 for call in world.history if isinstance(call, QueryRows)]
    assert max(sizes[-10:]) <= 2


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
