"""Ranges of keys as SQL conditions. Pure.

PostgreSQL's text cannot have U+0000, and no stored key has it, but bounds do: `after(x)` is x and
U+0000. Then `k >= p + U+0000 + x` is `k > p`, and `k < p + U+0000 + x` is `k <= p`.
"""

from functools import lru_cache
from typing import NamedTuple

from partita.tables.entity import EntityKey
from partita.tables.paging import KeyRange
from partita.tables.pushdown import Sql

_NUL = "\x00"


class Bound(NamedTuple):
    """A lower end of keys, without U+0000: those from `values` on, or those after them."""

    columns: str
    values: tuple[str, ...]
    is_after: bool


def bound_of(key: EntityKey) -> Bound:
    r"""Return the bound that has the same stored keys before and behind it.

    >>> bound_of(EntityKey("p", "r\0"))
    Bound(columns='(pk, rk)', values=('p', 'r'), is_after=True)
    >>> bound_of(EntityKey("p\0", ""))
    Bound(columns='(pk)', values=('p',), is_after=True)
    """
    partition_key, nul, _ = key.partition_key.partition(_NUL)
    if nul:
        return Bound("(pk)", (partition_key,), is_after=True)
    row_key, nul, _ = key.row_key.partition(_NUL)
    return Bound("(pk, rk)", (partition_key, row_key), is_after=bool(nul))


def where_of(span: KeyRange) -> Sql:
    """Return the condition on the keys of a nonempty range."""
    lower = bound_of(span.lower)
    upper = bound_of(span.upper) if span.upper is not None else None
    if span.single_partition() is not None and len(lower.values) == 2:
        partition_key, row_key = lower.values
        conditions = ["pk = ?", "rk > ?" if lower.is_after else "rk >= ?"]
        values = [partition_key, row_key]
        if upper is not None and len(upper.values) == 2:
            conditions.append("rk <= ?" if upper.is_after else "rk < ?")
            values.append(upper.values[1])
        return " AND ".join(conditions), tuple(values)
    first = _compared(lower, ">" if lower.is_after else ">=")
    if upper is None:
        return first
    second = _compared(upper, "<=" if upper.is_after else "<")
    return f"{first[0]} AND {second[0]}", first[1] + second[1]


def _compared(bound: Bound, sign: str) -> Sql:
    places = ", ".join("?" for _ in bound.values)
    return f"{bound.columns} {sign} ({places})", bound.values


@lru_cache(maxsize=256)
def numbered(statement: str) -> str:
    """Number the parameters of a statement as PostgreSQL writes them.

    >>> numbered("a = ? AND b = ?")
    'a = $1 AND b = $2'
    """
    first, *rest = statement.split("?")
    return first + "".join([f"${number}{text}" for number, text in enumerate(rest, 1)])
