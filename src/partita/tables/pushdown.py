"""Filters as SQL over a JSONB column of short values: SQLite rules entities out.

The one rule: the SQL may select too much, never too little; the exact closure then decides.
Columns: `pk` and `rk` TEXT, `ticks` INTEGER, `marks` INTEGER, `short` JSONB, or NULL if an entity
cannot be described and is therefore always a candidate.

    Int32, Int64   JSON integer                 Boolean    U+0001, then f or t
    Double         JSON number with a point     DateTime   U+0002, then the text without its Z
    String         its first 32 characters      Guid       U+0003, then the text
                                                Binary     U+0004, then 32 digits of hex

SQLite orders numbers before texts, and texts by bytes, so that each type is one interval and
strings come last. A comparison then costs one lookup: `v >= x` is an interval, `v < x` (true
for every other type as well) is all but an interval, and a missing property makes both NULL.

`marks` is a small Bloom filter: each pair of a name and a short value sets two of 64 bits. An
equality checks its two bits first, which avoids nearly all lookups in the JSONB. Types that are
rarely compared for equality (Boolean, DateTime, Binary) have none.
"""

import binascii
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, assert_never
from zlib import crc32

import msgspec

from partita.tables import edm
from partita.tables.edm import Members, Scalar
from partita.tables.filters import (
    OPPOSITES,
    PARTITION_KEY,
    ROW_KEY,
    TIMESTAMP,
    TRUE_ON_MISMATCH,
    And,
    Comparison,
    Constant,
    Filter,
    Literal,
    Not,
    Or,
    Truth,
)

SHORT_CHARACTERS_MAX = 32
"""Characters of a string, or hex digits of a binary; longer literals are not pushed down."""
LEAVES_MAX = 500
"""SQLite refuses expressions 1000 deep, and a chain of n is n deep."""
DEPTH_MAX = 16
"""Below this depth nothing is pushed down: older SQLite has a parser stack of 100."""

MARKS = {edm.BOOLEAN: "\x01", edm.DATETIME: "\x02", edm.GUID: "\x03", edm.BINARY: "\x04"}
MARK_FALSE, MARK_TRUE = MARKS[edm.BOOLEAN] + "f", MARKS[edm.BOOLEAN] + "t"
_MARK_DATETIME, _MARK_GUID = MARKS[edm.DATETIME], MARKS[edm.GUID]
_MARK_BINARY = MARKS[edm.BINARY]
EXACT_MAX = 2**53
"""Whole numbers up to this are equal as Int64 and as Double, whose text SQLite parses exactly."""
STRING_FIRST = "\x06"
"""No described string starts below this; every marked value does."""
LAST = "~"
"""Greater than everything that follows a mark."""

MARKED_CHARACTERS_MAX = SHORT_CHARACTERS_MAX + 4
PAIRS = [1 << (pair & 63) | 1 << (pair >> 6) for pair in range(64 * 64)]
"""The two marks that a checksum sets, by its lowest bits, ..."""
_PAIR = len(PAIRS) - 1
"""... which are these."""
_CHANCES_KEPT = 4096

Sql = tuple[str, tuple[object, ...]]

_encode = msgspec.json.Encoder().encode


# ---------------------------------------------------------------------------------------------
# Stored columns


class Described(Members):
    """Properties whose columns are known; nothing may change them."""

    __slots__ = ("columns",)
    columns: tuple[int, str | None]
    """As `columns_of` returns them."""


def columns_of(  # noqa: PLR0912, PLR0915 - one loop over all types, on the hot path of writes
    properties: Members,
) -> tuple[int, str | None]:
    """Return the columns `marks` and `short`: see `marks_of` and `describe`."""
    if type(properties) is Described:
        return properties.columns
    marks = 0
    short: dict[str, Scalar] = {}
    is_described = True
    annotation: Scalar | None = None
    for name, value in properties.items():
        if isinstance(value, str):
            if annotation is None:
                if "@" in name:
                    annotation = value  # it precedes its property
                    continue
                short[name] = cut = value[:SHORT_CHARACTERS_MAX]
                if not (cut.isprintable() or is_plain(cut)):
                    is_described = False
                if len(value) > MARKED_CHARACTERS_MAX:
                    continue
            else:
                kind, annotation = annotation, None
                if kind == edm.DATETIME:
                    short[name] = _MARK_DATETIME + value[:-1]
                    continue
                if kind == edm.GUID:
                    short[name] = _MARK_GUID + value
                elif kind == edm.INT64:
                    short[name] = int(value)
                elif kind == edm.BINARY:
                    short[name] = _MARK_BINARY + _hex_of(value)
                    continue
                else:
                    is_described = False  # a Double that is not finite
                    continue
            try:
                text = value.encode()
            except UnicodeEncodeError:
                text = value.encode("utf-8", "surrogatepass")
        elif isinstance(value, bool):
            short[name] = MARK_TRUE if value else MARK_FALSE
            continue
        else:
            short[name] = value
            if isinstance(value, float) and not (value.is_integer() and abs(value) <= EXACT_MAX):
                continue
            text = b"%d" % value
        marks |= PAIRS[crc32(text, CHANCES[name]) & _PAIR]
    if marks >> 63:
        marks -= 1 << 64  # SQLite and PostgreSQL have signed integers
    return marks, _encode(short).decode() if is_described else None


def describe(properties: Members) -> str | None:
    """Return the JSON text of the short values; None if one value has no exact description.

    Text and not bytes: `jsonb()` takes some JSON in a BLOB for JSONB.
    """
    return columns_of(properties)[1]


def marks_of(properties: Members) -> int:
    """Return the marks of all values that an equality may compare, as SQLite's integer."""
    return columns_of(properties)[0]


def _mark(name: str, value: str) -> int:
    marks = PAIRS[crc32(value.encode("utf-8", "surrogatepass"), CHANCES[name]) & _PAIR]
    return marks - (1 << 64) if marks >> 63 else marks


class _Chances(dict[str, int]):
    """By name: the checksum of the name and `=`, with which that of its value begins."""

    def __missing__(self, name: str) -> int:
        if len(self) >= _CHANCES_KEPT:
            self.clear()
        chance = self[name] = crc32(f"{name}=".encode("utf-8", "surrogatepass"))
        return chance


CHANCES = _Chances()


def _mark_of_literal(name: str, literal: Literal) -> int | None:
    """Return the marks of every entity that equals a literal; None if it may have none."""
    value = literal.value
    if literal.type in (edm.STRING, edm.GUID):
        return _mark(name, str(value)) if len(str(value)) <= MARKED_CHARACTERS_MAX else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    is_number = literal.type in (edm.INT32, edm.INT64, edm.DOUBLE)
    is_exact = abs(value) <= EXACT_MAX and float(value).is_integer()
    return _mark(name, str(int(value))) if is_number and is_exact else None


def _hex_of(text: str) -> str:
    """Return the first digits of a Binary."""
    # Four characters of base64 are three bytes: decode only the part that is stored.
    return binascii.a2b_base64(text[:SHORT_CHARACTERS_MAX]).hex()[:SHORT_CHARACTERS_MAX]


def is_plain(text: str) -> bool:
    """Return whether a string cannot be mistaken for a marked value or truncated at a NUL."""
    return not text or (text[0] >= STRING_FIRST and "\x00" not in text)


# ---------------------------------------------------------------------------------------------
# Conditions


class Dialect(Protocol):
    """How a database writes the leaves of a filter; `?` stands for a parameter."""

    nothing: str
    """The condition that is false."""
    with_marks: str
    """An equality, with its marks before it."""

    def truth(self, name: str, *, negated: bool) -> Sql: ...

    def exists(self, name: str) -> Sql: ...

    def compare_column(self, column: str, comparison: str, value: Any) -> Sql | None: ...

    def compare(self, name: str, comparison: str, literal: Literal) -> Sql | None:
        """Compare a short value: NULL for a missing property. None: nothing can be ruled out."""
        ...


def translate(node: Filter, dialect: Dialect | None = None) -> Sql | None:
    """Return an SQL condition that holds for every entity that the filter selects.

    None if nothing can be ruled out. Without a dialect, the SQL is SQLite's.
    """
    if _count_leaves(node) > LEAVES_MAX:
        return None
    sql = _translate(node, dialect or SQLITE, negated=False, depth=0)
    if sql is None or "short" not in sql[0]:
        return sql
    return f"(short IS NULL OR {sql[0]})", sql[1]


def _count_leaves(node: Filter) -> int:
    if isinstance(node, Not):
        return _count_leaves(node.child)
    if isinstance(node, And | Or):
        return sum([_count_leaves(child) for child in node.children])
    return 1


def _translate(node: Filter, dialect: Dialect, *, negated: bool, depth: int) -> Sql | None:
    """Translate a node or its negation: negations move down to the leaves."""
    match node:
        case Comparison():
            return _comparison(node, dialect, negated=negated)
        case Truth():
            return dialect.truth(node.name, negated=negated)
        case Constant():
            return None if node.value is not negated else (dialect.nothing, ())
        case Not():
            return _translate(node.child, dialect, negated=not negated, depth=depth)
        case And() | Or():
            if depth >= DEPTH_MAX:
                return None
            parts = [
                _translate(child, dialect, negated=negated, depth=depth + 1)
                for child in node.children
            ]
            return _all_of(parts) if isinstance(node, And) is not negated else _any_of(parts)
        case _:
            assert_never(node)


def _all_of(parts: list[Sql | None]) -> Sql | None:
    known = [part for part in parts if part is not None]
    return joined(known, " AND ") if known else None


def _any_of(parts: list[Sql | None]) -> Sql | None:
    known = [part for part in parts if part is not None]
    return joined(known, " OR ") if len(known) == len(parts) else None


def joined(parts: Sequence[Sql], word: str) -> Sql:
    if len(parts) == 1:
        return parts[0]
    values = tuple([value for part in parts for value in part[1]])
    return "(" + word.join([part[0] for part in parts]) + ")", values


# ---------------------------------------------------------------------------------------------
# Leaves

SIGNS = {"eq": "=", "ne": "<>", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
COLUMNS = {
    PARTITION_KEY: ("pk", edm.STRING),
    ROW_KEY: ("rk", edm.STRING),
    TIMESTAMP: ("ticks", edm.DATETIME),
}


def _comparison(node: Comparison, dialect: Dialect, *, negated: bool) -> Sql | None:
    # For an existing property exactly one of two opposites is true (NaN is not described).
    comparison = OPPOSITES[node.operator] if negated else node.operator
    if node.name in COLUMNS:
        column, kind = COLUMNS[node.name]
        if node.literal.type == kind:
            return dialect.compare_column(column, comparison, node.literal.value)
        return None if comparison in TRUE_ON_MISMATCH else (dialect.nothing, ())
    leaf = dialect.compare(node.name, comparison, node.literal)
    if leaf is None:
        return None if negated else dialect.exists(node.name)
    if negated:
        # Every leaf is NULL for a missing property, whose comparison is false: keep it.
        return f"({leaf[0]}) IS NOT FALSE", leaf[1]
    mark = _mark_of_literal(node.name, node.literal) if comparison == "eq" else None
    if mark is None:
        return leaf
    return dialect.with_marks.format(leaf[0]), (mark, mark, *leaf[1])


def _test(name: str, form: str, *values: object) -> Sql:
    """Print a condition on the short value V of a property."""
    return form.replace("V", "short ->> ?"), (name, *values)


def _string(name: str, comparison: str, text: str) -> Sql | None:
    if len(text) >= SHORT_CHARACTERS_MAX or not is_plain(text):
        return None
    if not text and comparison not in ("eq", "ne"):
        # The empty string is the one string before the marked values.
        is_upper = comparison in ("lt", "le")
        return _test(
            name, "V < ?" if is_upper else "V >= ?", "" if comparison == "ge" else STRING_FIRST
        )
    return _test(name, f"V {SIGNS[comparison]} ?", text)


def _marked(mark: str, text: str, name: str, comparison: str) -> Sql:
    value, last = mark + text, mark + LAST
    match comparison:
        case "eq" | "ne":
            return _test(name, f"V {SIGNS[comparison]} ?", value)
        case "ge":
            return _test(name, "V BETWEEN ? AND ?", value, last)
        case "gt":
            return _test(name, "V BETWEEN ? AND ?", value + mark, last)
        case "lt":
            return _test(name, "V NOT BETWEEN ? AND ?", value, last)
        case _:
            return _test(name, "V NOT BETWEEN ? AND ?", value + mark, last)


def _boolean(name: str, comparison: str, value: bool) -> Sql:  # noqa: FBT001 - a literal's value
    return _marked(MARKS[edm.BOOLEAN], "t" if value else "f", name, comparison)


def _datetime(name: str, comparison: str, ticks: int) -> Sql:
    return _marked(MARKS[edm.DATETIME], edm.text_of(ticks)[:-1], name, comparison)


def _guid(name: str, comparison: str, text: str) -> Sql:
    return _marked(MARKS[edm.GUID], text, name, comparison)


def _binary(name: str, comparison: str, raw: bytes) -> Sql | None:
    digits = raw.hex()
    if len(digits) >= SHORT_CHARACTERS_MAX:
        return None
    return _marked(MARKS[edm.BINARY], digits, name, comparison)


# ---------------------------------------------------------------------------------------------
# Numbers. SQLite parses the text of a Double at each lookup, and not every version rounds to
# the nearest: bounds for Doubles are a few steps wider than the literal.

_STEPS = 8
_UP = "V BETWEEN ? AND 9e999"
"""Numbers from a bound up; texts are greater than infinity."""
_NOT_UP = "V NOT BETWEEN ? AND 9e999"


def widened(value: float, towards: float) -> float:
    for _ in range(_STEPS):
        value = math.nextafter(value, towards)
    return value


def _int32(name: str, comparison: str, value: int) -> Sql:
    if comparison == "eq":
        return _equal(name, value)
    return _whole(name, comparison, value, widened(float(value), math.inf))


def _int64(name: str, comparison: str, value: int) -> Sql | None:
    if comparison == "eq":
        return _equal(name, value)
    # An Int64 literal does not fit an Int32 property, which is therefore less than it; and what
    # is stored distinguishes the two only if the value is too large for an Int32.
    if comparison == "ne" and edm.INT32_MIN <= value <= edm.INT32_MAX:
        return None
    end = max(widened(float(value), math.inf), float(edm.INT32_MAX + 1))
    if comparison == "lt":
        return _test(name, _NOT_UP, end)
    return _whole(name, comparison, value, end)


def _equal(name: str, value: int) -> Sql:
    if abs(value) <= EXACT_MAX:
        return _test(name, "V = ?", value)
    start, end = widened(float(value), -math.inf), widened(float(value), math.inf)
    equal = [_test(name, "V = ?", value), _test(name, "typeof(V) = 'real'")]
    return joined([_test(name, "V BETWEEN ? AND ?", start, end), joined(equal, " OR ")], " AND ")


def _unequal(name: str, value: int) -> Sql:
    """Rule out only whole numbers: a Double may differ by less than SQLite can distinguish."""
    return joined([_test(name, "V <> ?", value), _test(name, "typeof(V) = 'real'")], " OR ")


def _whole(name: str, comparison: str, value: int, end: float) -> Sql:
    """Compare with a whole number; a value that is not less than `end` is greater."""
    start = widened(float(value), -math.inf)
    match comparison:
        case "ne":
            return _unequal(name, value)
        case "ge":
            return _test(name, _UP, start)
        case "gt":
            return joined([_test(name, _UP, start), _unequal(name, value)], " AND ")
        case "lt":
            return joined([_test(name, _NOT_UP, end), _unequal(name, value)], " AND ")
        case _:
            return _test(name, _NOT_UP, end)


def _double(name: str, comparison: str, value: float) -> Sql | None:
    start, end = widened(value, -math.inf), widened(value, math.inf)
    if comparison in ("lt", "le") and end < math.inf:
        # Whole numbers do not fit a Double literal, so they are less than it.
        whole = _test(name, "typeof(V) = 'integer'")
        return joined([_test(name, _NOT_UP, end), whole], " OR ")
    if math.isnan(value) or comparison in TRUE_ON_MISMATCH:
        return None
    # Not "= 'real'": that would be false, and not NULL, for a missing property.
    real = _test(name, "typeof(V) <> 'integer'")
    if comparison == "eq":
        return joined([_test(name, "V BETWEEN ? AND ?", start, end), real], " AND ")
    return joined([_test(name, _UP, start), real], " AND ")


_LEAVES: dict[str, Callable[[str, str, Any], Sql | None]] = {
    edm.STRING: _string,
    edm.INT32: _int32,
    edm.INT64: _int64,
    edm.DOUBLE: _double,
    edm.BOOLEAN: _boolean,
    edm.DATETIME: _datetime,
    edm.GUID: _guid,
    edm.BINARY: _binary,
}


class _SqliteDialect:
    nothing = "0"
    with_marks = "(marks & ? = ? AND {})"

    def truth(self, name: str, *, negated: bool) -> Sql:
        return _test(name, "V IS NOT ?" if negated else "V = ?", MARK_TRUE)

    def exists(self, name: str) -> Sql:
        return _test(name, "V IS NOT NULL")

    def compare_column(self, column: str, comparison: str, value: object) -> Sql | None:
        return f"{column} {SIGNS[comparison]} ?", (value,)

    def compare(self, name: str, comparison: str, literal: Literal) -> Sql | None:
        return _LEAVES[literal.type](name, comparison, literal.value)


SQLITE: Dialect = _SqliteDialect()
