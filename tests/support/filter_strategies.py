"""Filters and typed entities to try rules on: small pools, so that values often meet."""

import math
import random
from functools import cache

from hypothesis import strategies as st

from partita.tables import edm
from partita.tables.filters import (
    Comparison,
    Constant,
    Filter,
    Literal,
    Not,
    Truth,
    all_of,
    any_of,
)
from support.reference_filter import Typed, TypedEntity, Value

NAMES = ("A", "B", "Größe", "_x9")
OPERATORS = ("eq", "ne", "lt", "le", "gt", "ge")
KEYS = ("", "a", "a!", "aa", "b", "b c", "é", "\uffee", "\U0001f600")
TICKS = (16_000_000_000_000_000, 16_000_000_000_000_001, 16_000_000_005_000_000)
LONG = "long " * 20
"""Longer than what is described for the push-down."""

POOLS: dict[str, tuple[Value, ...]] = {
    edm.STRING: (
        *("", "a", "ab", "b", "é", "\uffee", "\U0001f600", "5", "it's", "true"),
        *(" ", "\t", "\x05", "\x06", "\x01t", "a\x00b", LONG, LONG + "x", "x" * 63, "x" * 64),
    ),
    edm.INT32: (0, 1, -1, 5, 40, 41, 2**31 - 1, -(2**31)),
    edm.INT64: (
        *(0, 1, -1, 5, 40, 2**31, -(2**31) - 1, 2**53, 2**53 + 1, 2**53 - 1),
        *(2**63 - 1, -(2**63), 2**31 - 1, 10**18, 10**18 + 1),
    ),
    edm.DOUBLE: (
        *(0.0, 1.0, -1.0, 5.0, 40.0, 4.1, math.nextafter(40.0, 99), math.nextafter(40.0, 0)),
        *(2.0**31, 2.0**53, 2.0**63, 1e22, 5e-324, 1.7976931348623157e308, -1e-7),
        *(math.inf, -math.inf, math.nan),
    ),
    edm.BOOLEAN: (True, False),
    edm.DATETIME: (*TICKS, 0, -1, edm.TICKS_MIN, edm.TICKS_MAX),
    edm.GUID: (
        "00000000-0000-0000-0000-000000000000",
        "c9da6455-213d-42c9-9a79-3e9149a57833",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ),
    edm.BINARY: (b"", b"\x00", b"a", b"ab", b"\xff", b"x" * 31, b"x" * 32, b"x" * 33, b"x" * 100),
}


def literals_of(kind: str) -> st.SearchStrategy[Literal]:
    return st.sampled_from(POOLS[kind]).map(lambda value: Literal(kind, value))


def literals() -> st.SearchStrategy[Literal]:
    wide = st.integers(edm.INT64_MIN, edm.INT64_MAX)
    return st.one_of(
        *[literals_of(kind) for kind in POOLS],
        st.text(max_size=8).map(lambda value: Literal(edm.STRING, value)),
        st.integers(edm.INT32_MIN, edm.INT32_MAX).map(lambda value: Literal(edm.INT32, value)),
        wide.map(lambda value: Literal(edm.INT64, value)),
        st.floats(allow_nan=False).map(lambda value: Literal(edm.DOUBLE, value or 0.0)),
        st.binary(max_size=6).map(lambda value: Literal(edm.BINARY, value)),
    )


def key_literals() -> st.SearchStrategy[Literal]:
    return st.sampled_from(KEYS).map(lambda value: Literal(edm.STRING, value))


def comparisons() -> st.SearchStrategy[Comparison]:
    operators = st.sampled_from(OPERATORS)
    return st.one_of(
        st.builds(Comparison, st.sampled_from(NAMES), operators, literals()),
        st.builds(Comparison, st.sampled_from(NAMES), operators, literals()),
        key_comparisons(),
        st.builds(Comparison, st.just("Timestamp"), operators, literals_of(edm.DATETIME)),
        st.builds(
            Comparison, st.sampled_from(["PartitionKey", "Timestamp"]), operators, literals()
        ),
    )


def key_comparisons() -> st.SearchStrategy[Comparison]:
    names = st.sampled_from(["PartitionKey", "RowKey"])
    return st.builds(Comparison, names, st.sampled_from(OPERATORS), key_literals())


def filters_over(leaves: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
    def deeper(children: st.SearchStrategy[Filter]) -> st.SearchStrategy[Filter]:
        several = st.lists(children, min_size=2, max_size=4)
        return st.one_of(several.map(all_of), several.map(any_of), children.map(Not))

    return st.recursive(leaves, deeper, max_leaves=6)


def filters() -> st.SearchStrategy[Filter]:
    truths = st.sampled_from(NAMES).map(Truth)
    return filters_over(
        st.one_of(comparisons(), comparisons(), truths, st.builds(Constant, st.booleans()))
    )


def key_filters() -> st.SearchStrategy[Filter]:
    """Filters mostly of conditions on keys, as planners like them."""
    other = st.builds(Comparison, st.just("A"), st.just("ge"), literals_of(edm.INT32))
    return filters_over(st.one_of(key_comparisons(), key_comparisons(), key_comparisons(), other))


def typed_values() -> st.SearchStrategy[Typed]:
    return literals().map(lambda literal: (literal.type, literal.value))


def typed_entities() -> st.SearchStrategy[TypedEntity]:
    system = st.fixed_dictionaries(
        {
            "PartitionKey": st.sampled_from(KEYS).map(lambda key: (edm.STRING, key)),
            "RowKey": st.sampled_from(KEYS).map(lambda key: (edm.STRING, key)),
            "Timestamp": st.sampled_from(TICKS).map(lambda ticks: (edm.DATETIME, ticks)),
        }
    )
    custom = st.dictionaries(st.sampled_from(NAMES), typed_values())
    return st.builds(lambda first, rest: {**first, **rest}, system, custom)


@cache
def many_entities(count: int = 200) -> tuple[TypedEntity, ...]:
    """Return the same entities in every run: each type under each name, values of the pools."""
    chance = random.Random(7)
    return tuple(an_entity(chance) for _ in range(count))


def an_entity(chance: random.Random) -> TypedEntity:
    properties: dict[str, Typed] = {
        "PartitionKey": (edm.STRING, chance.choice(KEYS)),
        "RowKey": (edm.STRING, chance.choice(KEYS)),
        "Timestamp": (edm.DATETIME, chance.choice(TICKS)),
    }
    for name in NAMES:
        if chance.random() < 0.8:
            kind = chance.choice(list(POOLS))
            properties[name] = (kind, chance.choice(POOLS[kind]))
    return properties
