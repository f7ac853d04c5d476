import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import PartitaError
from partita.tables import edm
from partita.tables.entity import Entity, EntityKey, build, etag_of, ticks_of_etag
from partita.tables.expectations import ANYTHING, NOTHING, SOMETHING, assumed, expectation_of
from partita.tables.operations import (
    ANY_ETAG,
    Delete,
    Insert,
    InsertOrMerge,
    InsertOrReplace,
    Merge,
    Operation,
    Replace,
)

KEY = EntityKey("p", "r")
NOW = 17_000_000_000_000_000
EARLIER = NOW - 12_345


@pytest.mark.parametrize(
    ("operation", "expectation"),
    [
        (Insert(KEY, {}), NOTHING),
        (InsertOrReplace(KEY, {}), ANYTHING),
        (Replace(KEY, {}), SOMETHING),
        (Replace(KEY, {}, etag_of(NOW)), NOW),
        (Delete(KEY), SOMETHING),
        (Delete(KEY, etag_of(NOW)), NOW),
        (Merge(KEY, {}), None),
        (Merge(KEY, {}, etag_of(NOW)), None),
        (InsertOrMerge(KEY, {}), None),
    ],
)
def test_each_operation_has_its_expectation(operation: Operation, expectation: int | None) -> None:
    assert expectation_of(operation) == expectation


@pytest.mark.parametrize("ticks", [NOTHING, ANYTHING, SOMETHING, edm.TICKS_MIN])
def test_an_etag_before_1971_is_not_mistaken_for_a_constant(ticks: int) -> None:
    assert ticks_of_etag(etag_of(ticks)) == ticks
    assert expectation_of(Delete(KEY, etag_of(ticks))) is None


@pytest.mark.parametrize(
    "etag",
    [
        "",
        "x",
        "W/\"datetime''\"",
        "W/\"datetime'",
        "W/\"datetime'2023-11-14T22%3A13%3A20Z'",
        "\"datetime'2023-11-14T22%3A13%3A20Z'\"",
        "w/\"datetime'2023-11-14T22%3A13%3A20Z'\"",
        " W/\"datetime'2023-11-14T22%3A13%3A20Z'\"",
        "W/\"datetime'2023-11-14T22:13:20Z'\"",
        "W/\"datetime'2023-11-14T22%3a13%3a20Z'\"",
        "W/\"datetime'2023-11-14T22%3A13%3A20.0Z'\"",
        "W/\"datetime'2023-11-14T22%3A13%3A20.1234567890Z'\"",
        "W/\"datetime'2023-11-14T22%3A13%3A20'\"",
        "W/\"datetime'2023-11-14T22%3A13%3A20+00%3A00'\"",
        "W/\"datetime'2023-11-14T23%3A13%3A20+01%3A00'\"",
        "W/\"datetime'2023-11-14T22%3A13Z'\"",
        "W/\"datetime'2023-13-14T22%3A13%3A20Z'\"",
        "W/\"datetime'0001-01-01T00%3A00%3A00+12%3A00'\"",
        "W/\"datetime'9999-12-31T23%3A59%3A59-12%3A00'\"",
        "W/\"datetime'٢023-11-14T22%3A13%3A20Z'\"",
    ],
)
def test_an_etag_in_another_spelling_must_be_read(etag: str) -> None:
    assert ticks_of_etag(etag) is None
    assert expectation_of(Replace(KEY, {}, etag)) is None


@given(st.integers(edm.TICKS_MIN, edm.TICKS_MAX))
def test_the_ticks_of_an_etag_are_those_it_was_printed_from(ticks: int) -> None:
    assert ticks_of_etag(etag_of(ticks)) == ticks


@given(st.text() | st.from_regex(r"W/\"datetime'[-0-9T%3AZ.+:]{0,30}'\"", fullmatch=True))
def test_what_is_parsed_is_printed_back(etag: str) -> None:
    ticks = ticks_of_etag(etag)

    assert ticks is None or etag_of(ticks) == etag


@pytest.mark.parametrize("expectation", [ANYTHING, NOTHING])
def test_no_entity_is_assumed_where_none_is_expected(expectation: int) -> None:
    assert assumed(KEY, expectation) is None


def test_an_assumed_version_has_its_etag() -> None:
    entity = assumed(KEY, NOW)

    assert entity is not None
    assert (entity.key, entity.ticks, entity.etag) == (KEY, NOW, etag_of(NOW))


ETAGS = st.sampled_from([ANY_ETAG, etag_of(EARLIER), etag_of(EARLIER - 1), "x"])
LONG = {f"Text{n}": "x" * 32_000 for n in range(20)}
PROPERTIES = st.sampled_from([{}, {"A": 1}, LONG])
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    *(st.builds(kind, st.just(KEY), PROPERTIES) for kind in (Insert, InsertOrReplace)),
    st.builds(Replace, st.just(KEY), PROPERTIES, ETAGS),
    st.builds(Delete, st.just(KEY), ETAGS),
)
STORED = st.sampled_from([None, build(KEY, EARLIER, {"A": 2}), build(KEY, EARLIER + 1, {})])


def outcome(operation: Operation, before: Entity | None) -> object:
    try:
        return operation.apply(before, NOW)
    except PartitaError as error:
        return error.code


def is_met(expectation: int, before: Entity | None) -> bool:
    if before is None:
        return expectation in (ANYTHING, NOTHING)
    return expectation in (ANYTHING, SOMETHING, before.ticks)


@given(OPERATIONS, STORED)
def test_where_the_expectation_is_met_the_stand_in_has_the_same_outcome(
    operation: Operation, before: Entity | None
) -> None:
    expectation = expectation_of(operation)

    if expectation is not None and is_met(expectation, before):
        assert outcome(operation, assumed(KEY, expectation)) == outcome(operation, before)


@given(OPERATIONS, STORED)
def test_an_operation_that_succeeds_meets_its_expectation(
    operation: Operation, before: Entity | None
) -> None:
    expectation = expectation_of(operation)

    if isinstance(outcome(operation, before), Entity | None):
        assert expectation is not None
        assert is_met(expectation, before)
