"""Filters as SQL over jsonb: PostgreSQL rules entities out. Pure.

The columns are those of `partita.tables.pushdown`, and so is the rule: select too much, never too
little. jsonb orders strings before numbers, numbers exactly, and strings by the collation of the
database: unless it sorts by bytes, strings are compared for equality only. A short value is never
null, true, false, an array or an object.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec

from partita.tables import edm
from partita.tables.filters import Literal
from partita.tables.pushdown import (
    EXACT_MAX,
    LAST,
    MARK_TRUE,
    MARKS,
    SHORT_CHARACTERS_MAX,
    SIGNS,
    STRING_FIRST,
    Dialect,
    Sql,
    is_plain,
    joined,
    widened,
)

_VALUE = "(short -> ?::text)"
_BEFORE_NUMBERS = "'-1e400'::jsonb"
"""Greater than every string, less than every number that is stored."""
_NO_POINT = "strpos(V::text, '.') = 0"
"""Whether a number may be whole: a Double without a point in its text is large."""
_NUL = "\x00"

_encode = msgspec.json.Encoder().encode


def _test(name: str, form: str, *values: object) -> Sql:
    """Print a condition on the short value V of a property; each V takes the name."""
    parameters: list[object] = []
    rest = iter(values)
    for character in form:
        if character == "V":
            parameters.append(name)
        elif character == "?":
            parameters.append(next(rest))
    text = form.replace("?", "?::jsonb").replace("V", _VALUE)
    return text, tuple(parameters)


def _json(value: object) -> str:
    return _encode(value).decode()


class JsonbDialect:
    """The leaves of a filter as conditions of PostgreSQL."""

    nothing = "false"
    with_marks = "(marks & ?::bigint = ?::bigint AND {})"

    def __init__(self, *, sorts_by_bytes: bool) -> None:
        self._sorts_by_bytes = sorts_by_bytes

    def truth(self, name: str, *, negated: bool) -> Sql:
        return _test(name, "V IS DISTINCT FROM ?" if negated else "V = ?", _json(MARK_TRUE))

    def exists(self, name: str) -> Sql:
        return _test(name, "V IS NOT NULL")

    def compare_column(self, column: str, comparison: str, value: str | int) -> Sql | None:
        if isinstance(value, int):
            return f"{column} {SIGNS[comparison]} ?::bigint", (value,)
        if not _is_encodable(value):
            return None
        text, nul, _ = value.partition(_NUL)
        if nul:
            # No key has U+0000: it is not equal, and greater than what precedes it.
            if comparison in ("eq", "ne"):
                return None if comparison == "ne" else (self.nothing, ())
            comparison = "gt" if comparison in ("gt", "ge") else "le"
        return f"{column} {SIGNS[comparison]} ?::text", (text,)

    def compare(self, name: str, comparison: str, literal: Literal) -> Sql | None:
        kind, value = literal.type, literal.value
        if kind == edm.STRING:
            return self._string(name, comparison, str(value))
        if kind in _NUMBERS:
            return _NUMBERS[kind](name, comparison, value)
        return self._marked(name, comparison, MARKS[kind], _TEXTS[kind](value))

    def _string(self, name: str, comparison: str, text: str) -> Sql | None:
        if len(text) >= SHORT_CHARACTERS_MAX or not is_plain(text) or not _is_encodable(text):
            return None
        if comparison in ("eq", "ne"):
            return _test(name, f"V {SIGNS[comparison]} ?", _json(text))
        if not self._sorts_by_bytes:
            return None
        sign = SIGNS[comparison]
        if not text and comparison != "ge":
            # The empty string is the one string before the marked values.
            sign, text = ">=" if comparison == "gt" else "<", STRING_FIRST
        if comparison in ("lt", "le"):
            return _test(name, f"(V {sign} ? OR V > {_BEFORE_NUMBERS})", _json(text))
        return _test(name, f"(V {sign} ? AND V < {_BEFORE_NUMBERS})", _json(text))

    def _marked(self, name: str, comparison: str, mark: str, text: str) -> Sql | None:
        if mark == MARKS[edm.BINARY] and len(text) >= SHORT_CHARACTERS_MAX:
            return None
        value, last = _json(mark + text), _json(mark + LAST)
        if comparison in ("eq", "ne"):
            return _test(name, f"V {SIGNS[comparison]} ?", value)
        if not self._sorts_by_bytes:
            return None
        if comparison in ("ge", "gt"):
            return _test(name, f"(V {SIGNS[comparison]} ? AND V <= ?)", value, last)
        return _test(name, f"(V {SIGNS[comparison]} ? OR V > ?)", value, last)


_TEXTS: dict[str, Callable[[Any], str]] = {
    edm.BOOLEAN: lambda value: "t" if value else "f",
    edm.DATETIME: lambda ticks: edm.text_of(ticks)[:-1],
    edm.GUID: str,
    edm.BINARY: bytes.hex,
}
"""What follows the mark of a type."""

# ---------------------------------------------------------------------------------------------
# Numbers. They are the last of the values, so that `V >= number` selects numbers only. Above
# EXACT_MAX the text of a Double is not its exact value: bounds are a few steps wider.


def _whole(name: str, comparison: str, value: int) -> Sql | None:
    if abs(value) <= EXACT_MAX:
        return _test(name, f"V {SIGNS[comparison]} ?", _json(value))
    start, end = widened(float(value), -math.inf), widened(float(value), math.inf)
    match comparison:
        case "eq":
            return _test(name, "V BETWEEN ? AND ?", _json(start), _json(end))
        case "ne":
            return None
        case "gt" | "ge":
            return _test(name, "V >= ?", _json(start))
        case _:
            return _test(name, "V <= ?", _json(end))


def _int64(name: str, comparison: str, value: int) -> Sql | None:
    # An Int64 literal does not fit an Int32 property, which is therefore less than it; and what
    # is stored distinguishes the two only if the value is too large for an Int32.
    if comparison in ("ne", "lt", "le") and value <= edm.INT32_MAX:
        if comparison == "ne" and value >= edm.INT32_MIN:
            return None
        if comparison != "ne":
            return _test(name, "V <= ?", _json(edm.INT32_MAX))
    return _whole(name, comparison, value)


def _double(name: str, comparison: str, value: float) -> Sql | None:
    if not math.isfinite(value) or comparison == "ne":
        return None
    test = _test(name, f"V {SIGNS[comparison]} ?", _json(value))
    if comparison in ("lt", "le"):
        # Whole numbers do not fit a Double literal, so they are less than it.
        return joined([test, _test(name, _NO_POINT)], " OR ")
    return test


_NUMBERS: dict[str, Callable[[str, str, Any], Sql | None]] = {
    edm.INT32: _whole,
    edm.INT64: _int64,
    edm.DOUBLE: _double,
}


def _is_encodable(text: str) -> bool:
    return text.isprintable() or not any("\ud800" <= character <= "\udfff" for character in text)


BY_BYTES: Dialect = JsonbDialect(sorts_by_bytes=True)
BY_COLLATION: Dialect = JsonbDialect(sorts_by_bytes=False)
