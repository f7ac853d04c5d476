"""Groups of changes, and where ranges of keys are divided."""

import asyncio
from typing import Any

import hypothesis.strategies as st
from hypothesis import given

from partita.bulk.batches import GROUP_BYTES_MAX, Change, Kind
from partita.bulk.grouping import Planned, in_rounds
from partita.bulk.ranges import Span, both, midpoint
from partita.bulk.scanning import Scan
from partita.bulk.wire import Continuation, Page, Query

SMALL_KEYS = st.tuples(st.sampled_from("pq"), st.sampled_from("abcd"))
SIZES = st.sampled_from([10, 10, 10, 1_500_000, 3_000_000])


def planned(key: tuple[str, str], size: int, place: int) -> Planned:
    return Planned(Change(Kind.UPSERT_REPLACE, key[0], key[1], b"x" * size), place)


@given(st.lists(st.tuples(SMALL_KEYS, SIZES), max_size=30))
def test_rounds_have_all_changes_within_the_limits_and_in_order(
    found: list[tuple[tuple[str, str], int]],
) -> None:
    changes = [planned(key, size, place) for place, (key, size) in enumerate(found)]

    rounds = in_rounds(changes)

    places = [each.place for groups in rounds for group in groups for each in group]
    assert sorted(places) == list(range(len(changes)))
    for groups in rounds:
        keys = [(p.change.partition_key, p.change.row_key) for group in groups for p in group]
        assert len(keys) == len(set(keys))
        for group in groups:
            assert len({each.change.partition_key for each in group}) == 1
            total = sum(each.change.wire_bytes for each in group)
            assert len(group) == 1 or total <= GROUP_BYTES_MAX
    for key, _ in found:
        own = [p for p in places if found[p][0] == key]
        assert own == sorted(own)


def test_a_partition_is_cut_into_hundreds() -> None:
    changes = [planned(("p", str(n)), 10, n) for n in range(250)]

    assert [len(group) for group in in_rounds(changes)[0]] == [100, 100, 50]


@given(st.text(max_size=6), st.text(max_size=6))
def test_a_midpoint_is_between_both_ends(one: str, other: str) -> None:
    low, high = sorted((one, other))
    found = midpoint(low, high)

    assert found is None or low < found <= high
    assert found is None or not any("\ud800" <= c <= "\udfff" for c in found[len(low) :])


def test_conditions_of_ranges() -> None:
    assert Span().condition() == ""
    assert Span("", "m").condition() == "PartitionKey lt 'm'"
    assert Span("a", "m", "p").condition() == (
        "PartitionKey eq 'p' and RowKey ge 'a' and RowKey lt 'm'"
    )
    assert both("A eq 1 or B eq 2", "C eq 3") == "(A eq 1 or B eq 2) and (C eq 3)"


class _EmptyPages:
    """A service that answers probes for further partitions with empty pages, as Azure may."""

    endpoint = "http://127.0.0.1"

    async def query(
        self, _table: str, query: Query, start: Continuation | None = None, **_options: bool
    ) -> Page:
        await asyncio.sleep(0)
        is_in_partition = "PartitionKey eq" in query.filter
        if query.top == 1 and not is_in_partition:
            return Page(b'{"value":[]}', Continuation("x"))
        if is_in_partition:
            is_found = query.top == 1 and query.filter.partition("RowKey ge '")[2] <= "z"
            return Page(b'{"value":[%s]}' % (b'{"PartitionKey":"p","RowKey":"z"}' * is_found))
        place = 0 if start is None else int(start.partition_key)
        body = b'{"value":[{"PartitionKey":"p%03d","RowKey":"r"}]}' % place
        return Page(body, Continuation(str(place + 1)) if place < 99 else None)


async def test_a_probe_without_an_answer_divides_nothing() -> None:
    client: Any = _EmptyPages()
    scan = Scan(client, "Staff", Query(), concurrency=2)

    found = [page async for _, page in scan.pages()]

    assert sum(len(page.entities) for page in found) == 100
