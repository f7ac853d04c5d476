"""Filters as conditions on jsonb, on a real PostgreSQL: nothing that matches may be ruled out."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.scaleout.tables.bounds import bound_of, numbered, where_of
from partita.scaleout.tables.dialect import BY_BYTES, BY_COLLATION
from partita.tables import edm, pushdown
from partita.tables.entity import EntityKey
from partita.tables.filters import Comparison, Filter, Literal, Not, compile_filter, literal_text
from partita.tables.paging import KeyRange
from support.filter_strategies import OPERATORS, POOLS, filters, many_entities
from support.front_ends import installed_url
from support.reference_filter import Typed, TypedEntity, build, decode
from support.repeats import repeat

SCHEMA = """
CREATE TEMPORARY TABLE {} (
  number int, pk text COLLATE "C", rk text COLLATE "C", ticks bigint, marks bigint, short jsonb
)
"""
INSERT = "INSERT INTO {} VALUES ($1, $2, $3, $4, $5, $6::jsonb)"
Cursor = psycopg.RawCursor[Any]
DIALECTS = {"by bytes": BY_BYTES, "by collation": BY_COLLATION}


class Described:
    """Entities as the store describes them, and what SQL and closure select of them."""

    numbers = itertools.count()

    def __init__(self, cursor: Cursor, entities: Sequence[TypedEntity]) -> None:
        self.entities = [build(typed) for typed in entities]
        self.members = [decode(entity) for entity in self.entities]
        self.cursor = cursor
        self.table = f"described{next(self.numbers)}"
        self.cursor.execute(SCHEMA.format(self.table).encode())
        for number, entity in enumerate(self.entities):
            short = pushdown.describe(entity.properties())
            marks = pushdown.marks_of(entity.properties())
            self.cursor.execute(
                INSERT.format(self.table).encode(),
                (number, *entity.key, entity.ticks, marks, short),
            )

    def candidates(self, tree: Filter, dialect: pushdown.Dialect) -> set[int]:
        sql = pushdown.translate(tree, dialect)
        if sql is None:
            return set(range(len(self.entities)))
        statement = numbered(f"SELECT number FROM {self.table} WHERE {sql[0]}")
        return {number for (number,) in self.cursor.execute(statement.encode(), sql[1])}

    def matches(self, tree: Filter) -> set[int]:
        selects = compile_filter(tree)
        return {number for number, members in enumerate(self.members) if selects(members)}


def an_entity(**custom: Typed) -> TypedEntity:
    return {
        "PartitionKey": (edm.STRING, "p"),
        "RowKey": (edm.STRING, "r"),
        "Timestamp": (edm.DATETIME, 16_000_000_000_000_000),
        **custom,
    }


@pytest.fixture(scope="module")
def cursor() -> Iterator[Cursor]:
    with psycopg.connect(installed_url(), autocommit=True) as connection:
        yield psycopg.RawCursor(connection)


@pytest.fixture(scope="module")
def many(cursor: Cursor) -> Described:
    return Described(cursor, many_entities())


@pytest.fixture(scope="module")
def every_value(cursor: Cursor) -> Described:
    values = [(kind, value) for kind, values in POOLS.items() for value in values]
    return Described(cursor, [an_entity(), *[an_entity(A=value) for value in values]])


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("negate", [False, True], ids=["plain", "negated"])
@pytest.mark.parametrize("comparison", OPERATORS)
def test_no_value_is_lost_by_any_comparison(
    every_value: Described, dialect: str, comparison: str, negate: bool
) -> None:
    for kind, values in POOLS.items():
        for value in values:
            leaf = Comparison("A", comparison, Literal(kind, value))
            tree = Not(leaf) if negate else leaf

            lost = every_value.matches(tree) - every_value.candidates(tree, DIALECTS[dialect])
            assert not lost, f"{comparison} {literal_text(leaf.literal)}"


@pytest.mark.repeated
@settings(max_examples=repeat(60, 400, 3000), deadline=None)
@given(tree=filters(), dialect=st.sampled_from(sorted(DIALECTS)))
def test_no_entity_is_lost_by_any_filter(many: Described, tree: Filter, dialect: str) -> None:
    assert many.candidates(tree, DIALECTS[dialect]) >= many.matches(tree)


@settings(max_examples=repeat(15, 200, 1000), deadline=None)
@given(
    number=st.one_of(
        st.floats(allow_nan=False), st.integers(edm.INT64_MIN, edm.INT64_MAX).map(float)
    ),
    negate=st.booleans(),
)
def test_no_number_is_lost_by_rounding(cursor: Cursor, number: float, negate: bool) -> None:
    near = [number, math.nextafter(number, math.inf), math.nextafter(number, -math.inf)]
    doubles = [an_entity(A=(edm.DOUBLE, each)) for each in near]
    literals = [Literal(edm.DOUBLE, number or 0.0)]
    if abs(number) < edm.INT64_MAX // 2:
        whole = int(number)
        around = [whole + step for step in (-100, -1, 0, 1, 100)]
        doubles += [an_entity(A=(edm.INT64, each)) for each in around]
        literals += [Literal(edm.INT64, each) for each in around]
    described = Described(cursor, doubles)
    for literal in literals:
        for comparison in OPERATORS:
            leaf = Comparison("A", comparison, literal)
            tree = Not(leaf) if negate else leaf
            assert described.candidates(tree, BY_BYTES) >= described.matches(tree), leaf


@pytest.mark.parametrize("comparison", OPERATORS)
def test_ordinary_values_are_selected_exactly(cursor: Cursor, comparison: str) -> None:
    ordinary: dict[str, tuple[Any, ...]] = {
        edm.STRING: ("a", "ab", "b", "é", "\U0001f600", "it's", "x" * 31),
        edm.INT32: (-1, 0, 1, 40, 41, 2**31 - 1),
        edm.BOOLEAN: (True, False),
        edm.DATETIME: (0, 1, 10_000_000, 16_000_000_000_000_000),
        edm.GUID: POOLS[edm.GUID],
        edm.BINARY: (b"", b"a", b"ab", b"x" * 15),
    }
    values = [(kind, value) for kind, values in ordinary.items() for value in values]
    mixed = Described(cursor, [an_entity(), *[an_entity(A=value) for value in values]])

    for kind, value in values:
        tree = Comparison("A", comparison, Literal(kind, value))
        assert mixed.candidates(tree, BY_BYTES) == mixed.matches(tree), (kind, value)


KEY_TEXTS = ("", "a", "a!", "aa", "b", "é", "\uffff", "\U00010000")
BOUND_TEXTS = st.lists(st.sampled_from(["a", "b", "\x00", "!", "é", "\U00010000"]), max_size=3).map(
    "".join
)


@pytest.fixture(scope="module")
def keys(cursor: Cursor) -> Cursor:
    cursor.execute(SCHEMA.format("keys").encode())
    for pk in KEY_TEXTS:
        for rk in KEY_TEXTS:
            cursor.execute("INSERT INTO keys (pk, rk) VALUES ($1, $2)", (pk, rk))
    return cursor


@settings(max_examples=repeat(60, 400, 3000), deadline=None)
@given(lower=st.tuples(BOUND_TEXTS, BOUND_TEXTS), upper=st.none() | st.tuples(*[BOUND_TEXTS] * 2))
def test_bounds_with_nul_have_the_keys_of_their_range(
    keys: Cursor, lower: tuple[str, str], upper: tuple[str, str] | None
) -> None:
    span = KeyRange(EntityKey(*lower), None if upper is None else EntityKey(*upper))
    stored = [EntityKey(pk, rk) for pk in KEY_TEXTS for rk in KEY_TEXTS]
    if span.is_empty:
        return

    where, values = where_of(span)
    statement = numbered(f"SELECT pk, rk FROM keys WHERE {where} ORDER BY pk, rk")
    found = [EntityKey(*row) for row in keys.execute(statement.encode(), values)]

    assert found == sorted(key for key in stored if span.contains(key))


def test_a_bound_keeps_a_key_without_nul() -> None:
    assert bound_of(EntityKey("p", "r")) == ("(pk, rk)", ("p", "r"), False)
