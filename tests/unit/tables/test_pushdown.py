import json
import math
from collections.abc import Sequence

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.tables import edm, pushdown
from partita.tables.filters import (
    Comparison,
    Filter,
    Literal,
    Not,
    compile_filter,
    literal_text,
    parse,
)
from support.filter_strategies import (
    OPERATORS,
    POOLS,
    filters,
    literals_of,
    many_entities,
)
from support.reference_filter import Typed, TypedEntity, Value, build, decode
from support.repeats import repeat

SCHEMA = """
CREATE TABLE entity (
  number INTEGER PRIMARY KEY, pk TEXT, rk TEXT, ticks INTEGER, marks INTEGER, short BLOB
)
"""


class Described:
    """Entities as the store describes them, and what SQL and closure select of them."""

    def __init__(self, entities: Sequence[TypedEntity]) -> None:
        self.entities = [build(typed) for typed in entities]
        self.members = [decode(entity) for entity in self.entities]
        self.connection = apsw.Connection(":memory:")
        self.connection.execute(SCHEMA)
        for number, entity in enumerate(self.entities):
            short = pushdown.describe(entity.properties())
            marks = pushdown.marks_of(entity.properties())
            values = (number, *entity.key, entity.ticks, marks, short)
            self.connection.execute("INSERT INTO entity VALUES (?, ?, ?, ?, ?, jsonb(?))", values)

    def candidates(self, tree: Filter) -> set[int]:
        sql = pushdown.translate(tree)
        if sql is None:
            return set(range(len(self.entities)))
        statement = f"SELECT number FROM entity WHERE {sql[0]}"
        return {number for (number,) in self.connection.execute(statement, sql[1])}

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


def described(**custom: Typed) -> object:
    short = pushdown.describe(build(an_entity(**custom)).properties())
    return None if short is None else json.loads(short)


def translated(text: str) -> tuple[str, tuple[object, ...]] | None:
    tree = parse(text)
    assert tree is not None
    return pushdown.translate(tree)


MANY = Described(many_entities())
EVERY_VALUE = Described(
    [
        an_entity(),
        *[an_entity(A=(kind, value)) for kind, values in POOLS.items() for value in values],
    ]
)


# What is stored


@pytest.mark.parametrize(
    ("kind", "value", "short"),
    [
        (edm.STRING, "text", "text"),
        (edm.STRING, "", ""),
        (edm.STRING, "x" * 100, "x" * 32),
        (edm.INT32, 5, 5),
        (edm.INT64, 2**60 + 1, 2**60 + 1),
        (edm.DOUBLE, 5.0, 5.0),
        (edm.BOOLEAN, True, "\x01t"),
        (edm.BOOLEAN, False, "\x01f"),
        (edm.DATETIME, 5_000_000, "\x021970-01-01T00:00:00.5"),
        (
            edm.GUID,
            "c9da6455-213d-42c9-9a79-3e9149a57833",
            "\x03c9da6455-213d-42c9-9a79-3e9149a57833",
        ),
        (edm.BINARY, b"\xff\x00", "\x04ff00"),
        (edm.BINARY, b"a" * 99, "\x04" + "61" * 16),
    ],
)
def test_short_value_of_each_type(kind: str, value: Value, short: object) -> None:
    assert described(A=(kind, value)) == {"A": short}


def test_whole_double_is_told_from_an_integer() -> None:
    assert pushdown.describe({"A": 5.0, "B": 1e22}) == '{"A":5.0,"B":1e22}'


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (edm.STRING, "\x01t"),
        (edm.STRING, "\x05"),
        (edm.STRING, "a\x00b"),
        (edm.DOUBLE, math.nan),
        (edm.DOUBLE, math.inf),
    ],
)
def test_entity_with_an_indescribable_value_is_always_a_candidate(kind: str, value: Value) -> None:
    odd = Described([an_entity(A=(kind, value), B=(edm.INT32, 1))])

    assert described(A=(kind, value), B=(edm.INT32, 1)) is None
    assert odd.candidates(Comparison("B", "eq", Literal(edm.INT32, 2))) == {0}


# What is asked


def test_common_equality_is_one_lookup() -> None:
    for text, name, value in (("Age eq 5", "Age", 5), ("Name eq 'x'", "Name", "x")):
        sql, parameters = translated(text) or ("", ())
        assert sql == "(short IS NULL OR (marks & ? = ? AND short ->> ? = ?))"
        assert parameters[0] == parameters[1]
        assert parameters[2:] == (name, value)


def test_most_marks_of_another_value_rule_an_entity_out() -> None:
    entities = Described([an_entity(A=(edm.INT32, number)) for number in range(400)])
    sql, parameters = translated("A eq 17") or ("", ())
    looked_up = entities.connection.execute(
        "SELECT count(*) FROM entity WHERE marks & ? = ?", parameters[:2]
    ).get

    assert "marks" in sql
    assert 1 <= looked_up < 20


def test_equal_numbers_of_all_types_have_the_same_marks() -> None:
    kinds = [(edm.INT32, 17), (edm.INT64, 17), (edm.DOUBLE, 17.0)]
    marks = {pushdown.marks_of(build(an_entity(A=(k, v))).properties()) for k, v in kinds}

    assert len(marks) == 1


def test_conditions_on_system_properties_use_their_columns() -> None:
    assert translated("PartitionKey ge 'a' and not (RowKey eq 'b')") == (
        "(pk >= ? AND rk <> ?)",
        ("a", "b"),
    )
    assert translated("Timestamp lt datetime'1970-01-01T00:00:01Z'") == ("ticks < ?", (10_000_000,))


def test_system_property_of_another_type_follows_the_mismatch_row() -> None:
    assert translated("PartitionKey eq 5") == ("0", ())
    assert translated("Timestamp lt 'x'") is None


def test_what_rules_nothing_out_is_not_translated() -> None:
    assert translated("true") is None
    assert translated(f"not (A eq '{'x' * 64}')") is None
    assert translated(f"A eq 1 or not (B lt '{'x' * 64}')") is None


def test_conjunction_keeps_what_can_be_translated() -> None:
    assert translated(f"A eq 1 and not (B eq '{'x' * 64}')") == translated("A eq 1")


def test_literal_as_long_as_what_is_kept_asks_only_for_the_property() -> None:
    assert translated(f"A eq '{'x' * 64}'") == (
        "(short IS NULL OR short ->> ? IS NOT NULL)",
        ("A",),
    )


def test_very_long_filters_are_left_to_the_closure() -> None:
    allowed = " or ".join(["A eq 1"] * pushdown.LEAVES_MAX)
    too_long = allowed + " or A eq 1"

    assert translated(too_long) is None
    assert MANY.candidates(tree_of(allowed)) == MANY.matches(tree_of("A eq 1")) | UNDESCRIBED


def test_very_deep_filters_are_cut_where_they_get_deep() -> None:
    depth = 2 * pushdown.DEPTH_MAX
    tree = tree_of("(A eq 1 or B eq 2 and " * depth + "A eq 5" + ")" * depth)

    assert MANY.candidates(tree) >= MANY.matches(tree)
    assert MANY.candidates(tree) < set(range(len(MANY.entities)))


def tree_of(text: str) -> Filter:
    tree = parse(text)
    assert tree is not None
    return tree


UNDESCRIBED = {
    number
    for number, entity in enumerate(MANY.entities)
    if pushdown.describe(entity.properties()) is None
}


@pytest.mark.parametrize("negate", [False, True], ids=["plain", "negated"])
@pytest.mark.parametrize("comparison", OPERATORS)
@pytest.mark.parametrize("kind", POOLS)
def test_no_value_is_lost_by_any_comparison(kind: str, comparison: str, negate: bool) -> None:
    for value in POOLS[kind]:
        leaf = Comparison("A", comparison, Literal(kind, value))
        tree = Not(leaf) if negate else leaf

        lost = EVERY_VALUE.matches(tree) - EVERY_VALUE.candidates(tree)
        assert not lost, f"{comparison} {literal_text(leaf.literal)}"


@pytest.mark.repeated
@settings(max_examples=repeat(50, 1000, 1000), deadline=None)
@given(filters())
def test_no_entity_is_lost_by_any_filter(tree: Filter) -> None:
    assert MANY.candidates(tree) >= MANY.matches(tree)


@settings(max_examples=repeat(100, 300, 300), deadline=None)
@given(st.floats(allow_nan=False), st.sampled_from(OPERATORS), st.booleans())
def test_no_double_is_lost_by_rounding(number: float, comparison: str, negate: bool) -> None:
    near = [number, math.nextafter(number, math.inf), math.nextafter(number, -math.inf)]
    doubles = Described([an_entity(A=(edm.DOUBLE, each)) for each in near])
    leaf = Comparison("A", comparison, Literal(edm.DOUBLE, number or 0.0))
    tree = Not(leaf) if negate else leaf

    assert doubles.candidates(tree) >= doubles.matches(tree)


ORDINARY: dict[str, tuple[Value, ...]] = {
    edm.STRING: ("", "a", "ab", "b", "é", "\U0001f600", "it's", "x" * 31),
    edm.INT32: (-1, 0, 1, 40, 41, 2**31 - 1),
    edm.INT64: (-1, 0, 40, 2**31, 2**53 + 1, 2**63 - 1, 10**18, 10**18 + 1),
    edm.DOUBLE: (-1.0, 0.0, 4.1, 4.2, 40.0, 1e22, 0.1 + 0.2),
    edm.BOOLEAN: (True, False),
    edm.DATETIME: (0, 1, 10_000_000, 16_000_000_000_000_000),
    edm.GUID: POOLS[edm.GUID],
    edm.BINARY: (b"", b"a", b"ab", b"x" * 15),
}


@pytest.mark.parametrize("kind", ORDINARY)
def test_equality_selects_no_ordinary_value_too_many(kind: str) -> None:
    ordinary = Described([an_entity(), *[an_entity(A=(kind, value)) for value in ORDINARY[kind]]])

    for value in ORDINARY[kind]:
        tree = Comparison("A", "eq", Literal(kind, value))
        assert ordinary.candidates(tree) == ordinary.matches(tree)


@pytest.mark.parametrize("comparison", OPERATORS)
def test_every_comparison_of_whole_numbers_and_strings_is_exact(comparison: str) -> None:
    kinds = (edm.INT32, edm.STRING, edm.BOOLEAN, edm.DATETIME, edm.GUID, edm.BINARY)
    mixed = Described(
        [an_entity(), *[an_entity(A=(kind, value)) for kind in kinds for value in ORDINARY[kind]]]
    )

    # Around the empty string alone, the SQL takes in what lies next to it.
    for literal in [Literal(k, value) for k in kinds for value in ORDINARY[k] if value != ""]:
        tree = Comparison("A", comparison, literal)
        assert mixed.candidates(tree) == mixed.matches(tree), literal_text(literal)


@settings(max_examples=100, deadline=None)
@given(literals_of(edm.INT32), st.sampled_from(["Größe", "ꀕ", "_x9", "a" * 255]))
def test_any_property_name_can_be_looked_up(literal: Literal, name: str) -> None:
    one = Described([an_entity(**{name: (literal.type, literal.value)}), an_entity()])

    assert one.candidates(Comparison(name, "eq", literal)) == {0}
