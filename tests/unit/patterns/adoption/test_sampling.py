"""Which rows a sample of a table has."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from partita.patterns.adoption.sampling import sample_rows
from partita.patterns.protocol.calls import QueryRows
from partita.patterns.protocol.values import Row, RowKey
from support.fake_world import FakeWorld


def a_world(keys: list[tuple[str, str]]) -> FakeWorld:
    world = FakeWorld()
    world.tables["staff"] = {RowKey(*key): Row(RowKey(*key), {}, etag="1") for key in keys}
    world.table_names["staff"] = "staff"
    return world


def sampled(world: FakeWorld, rows_max: int) -> list[tuple[str, str]]:
    found = world.run(sample_rows("staff", rows_max))
    return [(row.key.partition, row.key.row) for row in found]


def test_a_large_partition_leaves_room_for_the_others() -> None:
    world = a_world([("a", f"{n:04d}") for n in range(2000)] + [("b", "0001"), ("c", "0001")])

    found = sampled(world, 500)

    assert len(found) == 500
    assert {("b", "0001"), ("c", "0001")} <= set(found)


def test_a_type_after_many_rows_of_another_one_is_sampled() -> None:
    keys = [("Sales", f"{n:06d}") for n in range(500)]
    keys += [("Sales", f"emp_{n:06d}") for n in range(500)]
    keys += [("Sales", "Department"), ("Sales", "rev_000123_2012")]

    found = sampled(a_world(keys), 300)

    assert {("Sales", "Department"), ("Sales", "rev_000123_2012")} <= set(found)


def test_one_partition_fills_the_sample() -> None:
    world = a_world([("Sales", f"{n:06d}") for n in range(3000)])

    assert len(sampled(world, 2500)) == 2500


def test_a_small_table_is_sampled_by_one_request() -> None:
    world = a_world([("Sales", f"{n:06d}") for n in range(30)])

    assert len(sampled(world, 10_000)) == 30
    assert world.requests(QueryRows) == 1


def test_progress_is_reported_up_to_the_number_of_rows() -> None:
    world = a_world([("Sales", f"{n:06d}") for n in range(200)])
    reported: list[int] = []

    world.run(sample_rows("staff", 120, report=reported.append))

    assert reported == sorted(reported)
    assert reported[-1] == 120


words = st.sampled_from(["", "emp_", "rev_", "~out_", "Jones", "1", "é'"])
keys = st.tuples(st.sampled_from("abc'"), st.builds("{}{:02d}".format, words, st.integers(0, 40)))


@given(
    st.sets(keys, max_size=80), st.integers(1, 100), st.integers(1, 30), st.booleans(), st.data()
)
def test_a_sample_has_every_row_once_if_there_is_room(
    stored: set[tuple[str, str]], rows_max: int, page: int, hostile: bool, data: st.DataObject
) -> None:
    world = FakeWorld(
        seed=data.draw(st.integers(0, 9)) if hostile else None, page_size=page, is_hostile=hostile
    )
    world.tables = a_world(sorted(stored)).tables
    world.table_names["staff"] = "staff"

    found = sampled(world, rows_max)

    assert len(found) == min(rows_max, len(stored))
    assert all(one < other for one, other in itertools.pairwise(found))
    assert set(found) <= stored
