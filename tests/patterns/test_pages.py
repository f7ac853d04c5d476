"""Pages of what only the client can decide: full, cut anywhere, and gone on with by anybody."""

from collections.abc import Callable
from typing import Any

import pytest

from partita.patterns import entity, index
from partita.patterns.operations import bulk
from partita.patterns.operations.run_query import Ask, print_continuation, read_page
from partita.patterns.planning.columns import Columns
from partita.patterns.planning.plans import plan_query
from partita.patterns.protocol.calls import QueryRows
from partita.patterns.protocol.capabilities import COSMOS
from partita.patterns.types.decorators import entity_type
from partita.patterns.writing.context import Context
from patterns.simulated import begin, ignore
from unit.patterns.fake_world import FakeWorld

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


@pytest.mark.parametrize("way", QUERIES)
@pytest.mark.parametrize("seed", range(10))
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
