"""Plans of queries: the range of keys to read, and the filter that remains for each entity.

The span of a plan contains every entity that the filter selects; the residual is the filter
without the conditions that the span expresses exactly. Conditions on the partition key always
become bounds; those on the row key only within one partition, because keys are ordered by
partition key first.
"""

import enum
from typing import TypeGuard
from urllib.parse import quote

import msgspec

from partita.tables import edm
from partita.tables.entity import EntityKey
from partita.tables.filters import (
    OPPOSITES,
    PARTITION_KEY,
    ROW_KEY,
    And,
    Comparison,
    Constant,
    Filter,
    Not,
    Or,
    all_of,
    to_text,
)
from partita.tables.paging import FIRST, KeyRange, after


class PlanKind(enum.Enum):
    """The kinds of plans, from the cheapest to the most expensive."""

    POINT = "point"
    """One key; the span is not empty."""
    RANGE = "range"
    """A range of row keys in one partition, perhaps empty."""
    PARTITION = "partition"
    MULTI_PARTITION = "multi-partition"
    TABLE = "table"


class Plan(msgspec.Struct, frozen=True):
    """Read `span` in order and keep entities that `residual` (None: all) selects."""

    kind: PlanKind
    span: KeyRange
    residual: Filter | None = None


_EVERYTHING = KeyRange()
_NOTHING = KeyRange(FIRST, FIRST)


def plan(node: Filter | None, within: KeyRange = _EVERYTHING) -> Plan:
    """Plan a query within a range of keys, such as that of a SAS."""
    conjuncts = [] if node is None else _conjuncts(node, negated=False)
    box = _box_of_all(conjuncts)
    span = box.span() if within == _EVERYTHING else box.span().clip(within)
    if span.is_empty:
        return Plan(PlanKind.RANGE, _NOTHING)
    expressed = (PARTITION_KEY, ROW_KEY) if box.partition_keys.is_single else (PARTITION_KEY,)
    rest = [each for each in conjuncts if not _is_expressed(each, expressed)]
    return Plan(_kind_of(span), span, all_of(rest) if rest else None)


# ---------------------------------------------------------------------------------------------
# Conjunctions


def _conjuncts(node: Filter, *, negated: bool) -> list[Filter]:
    """Return equivalent conjuncts, with negations moved inwards.

    Only a comparison of a key with a text is replaced by its opposite: every entity has keys, so
    exactly one of the two is true. For other properties both may be false.
    """
    if isinstance(node, Not):
        return _conjuncts(node.child, negated=not negated)
    if isinstance(node, Or if negated else And):
        return [part for child in node.children for part in _conjuncts(child, negated=negated)]
    if not negated:
        return [node]
    if isinstance(node, Constant):
        return [Constant(not node.value)]
    if _is_key_comparison(node):
        return [Comparison(node.name, OPPOSITES[node.operator], node.literal)]
    return [Not(node)]


def _is_key_comparison(node: Filter) -> TypeGuard[Comparison]:
    return (
        isinstance(node, Comparison)
        and node.name in (PARTITION_KEY, ROW_KEY)
        and node.literal.type == edm.STRING
    )


def _is_expressed(node: Filter, names: tuple[str, ...]) -> bool:
    """Return whether the bounds of these keys express the condition completely."""
    if isinstance(node, Constant):
        return node.value
    return _is_key_comparison(node) and node.name in names and node.operator != "ne"


# ---------------------------------------------------------------------------------------------
# Bounds


class _Interval(msgspec.Struct, frozen=True, gc=False):
    """Texts from `lower` (inside) to `upper` (outside; None: no end)."""

    lower: str = ""
    upper: str | None = None

    @property
    def is_empty(self) -> bool:
        return self.upper is not None and self.lower >= self.upper

    @property
    def is_single(self) -> bool:
        return self.upper == after(self.lower)

    def clip(self, other: "_Interval") -> "_Interval":
        if self is _ALL_TEXTS or other is _ALL_TEXTS:
            return other if self is _ALL_TEXTS else self
        uppers = [upper for upper in (self.upper, other.upper) if upper is not None]
        return _Interval(max(self.lower, other.lower), min(uppers, default=None))

    def hull(self, other: "_Interval") -> "_Interval":
        no_end = self.upper is None or other.upper is None
        upper = None if no_end else max(str(self.upper), str(other.upper))
        return _Interval(min(self.lower, other.lower), upper)


_ALL_TEXTS = _Interval()
_NO_TEXTS = _Interval("", "")


class _Box(msgspec.Struct, frozen=True, gc=False):
    """Independent bounds of both keys."""

    partition_keys: _Interval = _ALL_TEXTS
    row_keys: _Interval = _ALL_TEXTS

    @property
    def is_empty(self) -> bool:
        return self.partition_keys.is_empty or self.row_keys.is_empty

    def clip(self, other: "_Box") -> "_Box":
        return _Box(
            self.partition_keys.clip(other.partition_keys), self.row_keys.clip(other.row_keys)
        )

    def hull(self, other: "_Box") -> "_Box":
        if self.is_empty or other.is_empty:
            return other if self.is_empty else self
        return _Box(
            self.partition_keys.hull(other.partition_keys), self.row_keys.hull(other.row_keys)
        )

    def span(self) -> KeyRange:
        """Return the smallest range of keys that contains the box."""
        if self.is_empty:
            return _NOTHING
        first, end = self.partition_keys.lower, self.partition_keys.upper
        if not self.partition_keys.is_single:
            return KeyRange(EntityKey(first, ""), None if end is None else EntityKey(end, ""))
        if self.row_keys.upper is None:
            return KeyRange(EntityKey(first, self.row_keys.lower), EntityKey(after(first), ""))
        return KeyRange(
            EntityKey(first, self.row_keys.lower), EntityKey(first, self.row_keys.upper)
        )


_ALL_KEYS = _Box()
_NO_KEYS = _Box(_NO_TEXTS)


def _box_of_all(conjuncts: list[Filter]) -> _Box:
    box = _ALL_KEYS
    for each in conjuncts:
        part = _box_of(each)
        if part is not _ALL_KEYS:
            box = part if box is _ALL_KEYS else box.clip(part)
    return box


def _box_of(node: Filter) -> _Box:
    if _is_key_comparison(node):
        interval = _interval_of(node.operator, str(node.literal.value))
        return _Box(interval) if node.name == PARTITION_KEY else _Box(row_keys=interval)
    if isinstance(node, Constant) and not node.value:
        return _NO_KEYS
    if isinstance(node, Or):
        box = _NO_KEYS
        for child in node.children:
            box = box.hull(_box_of_all(_conjuncts(child, negated=False)))
        return box
    return _ALL_KEYS


def _interval_of(comparison: str, text: str) -> _Interval:
    match comparison:
        case "eq":
            return _Interval(text, after(text))
        case "ge":
            return _Interval(text)
        case "gt":
            return _Interval(after(text))
        case "le":
            return _Interval("", after(text))
        case "lt":
            return _Interval("", text)
        case _:
            return _ALL_TEXTS


def _kind_of(span: KeyRange) -> PlanKind:
    partition_key = span.single_partition()
    if partition_key is None:
        return PlanKind.TABLE if span == _EVERYTHING else PlanKind.MULTI_PARTITION
    if span == KeyRange.of_partition(partition_key):
        return PlanKind.PARTITION
    if span.upper == (partition_key, after(span.lower.row_key)):
        return PlanKind.POINT
    return PlanKind.RANGE


# ---------------------------------------------------------------------------------------------
# Descriptions

_SHOWN_CHARACTERS_MAX = 200
_SHOWN_AS_IS = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def describe(chosen: Plan) -> str:
    """Describe a plan in one line of ASCII for a header; long parts are truncated."""
    if chosen.span.is_empty:
        return "nothing"
    parts = [chosen.kind.value, *_describe_span(chosen)]
    if chosen.residual is not None:
        parts.append(f"residual: {_shown(to_text(chosen.residual))}")
    return " ".join(parts)


def describe_bounds(chosen: Plan) -> str:
    """Describe which bounds the keys of a plan have, without the keys.

    >>> from partita.tables.filters import parse
    >>> describe_bounds(plan(parse("PartitionKey eq 'a' and RowKey ge 'b' and Age gt 40")))
    'pk=? rk>=?'
    """
    span = chosen.span
    if span.is_empty:
        return "nothing"
    upper = None if span.upper is None else _masked(span.upper)
    masked = Plan(chosen.kind, KeyRange(_masked(span.lower), upper))
    return " ".join(_describe_span(masked)).replace("'?'", "?") or "everything"


def _masked(key: EntityKey) -> EntityKey:
    """Return a key of which only is known whether its parts are empty or directly after a text."""
    return EntityKey(*(text and ("?\x00" if text.endswith("\x00") else "?") for text in key))


def _describe_span(chosen: Plan) -> list[str]:
    span = chosen.span
    match chosen.kind:
        case PlanKind.TABLE:
            return []
        case PlanKind.MULTI_PARTITION:
            return _describe_keys(span)
        case PlanKind.PARTITION:
            return [f"pk={_quoted(span.lower.partition_key)}"]
        case PlanKind.POINT:
            pair = span.lower
            return [f"pk={_quoted(pair.partition_key)}", f"rk={_quoted(pair.row_key)}"]
        case PlanKind.RANGE:
            one_partition = f"pk={_quoted(span.lower.partition_key)}"
            return [one_partition, *_describe_row_keys(span)]


def _describe_row_keys(span: KeyRange) -> list[str]:
    parts = [_lower_bound("rk", span.lower.row_key)] if span.lower.row_key else []
    if span.upper is not None and span.upper.partition_key == span.lower.partition_key:
        parts.append(_upper_bound("rk", span.upper.row_key))
    return parts


def _describe_keys(span: KeyRange) -> list[str]:
    parts: list[str] = []
    lower, upper = span.lower, span.upper
    if lower.row_key:
        parts.append(f"(pk,rk)>=({_quoted(lower.partition_key)},{_quoted(lower.row_key)})")
    elif lower.partition_key:
        parts.append(_lower_bound("pk", lower.partition_key))
    if upper is not None and upper.row_key:
        parts.append(f"(pk,rk)<({_quoted(upper.partition_key)},{_quoted(upper.row_key)})")
    elif upper is not None:
        parts.append(_upper_bound("pk", upper.partition_key))
    return parts


def _lower_bound(name: str, text: str) -> str:
    behind = text.removesuffix("\x00")
    return f"{name}>={_quoted(text)}" if behind == text else f"{name}>{_quoted(behind)}"


def _upper_bound(name: str, text: str) -> str:
    behind = text.removesuffix("\x00")
    return f"{name}<{_quoted(text)}" if behind == text else f"{name}<={_quoted(behind)}"


def _quoted(text: str) -> str:
    return f"'{_shown(text)}'"


def _shown(text: str) -> str:
    escaped = quote(text, safe=_SHOWN_AS_IS)
    if len(escaped) <= _SHOWN_CHARACTERS_MAX:
        return escaped
    cut = escaped[:_SHOWN_CHARACTERS_MAX]
    # Do not cut inside an escape.
    if "%" in cut[-2:]:
        cut = cut[: cut.rindex("%")]
    return cut + "..."
