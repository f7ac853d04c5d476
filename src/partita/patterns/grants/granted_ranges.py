"""Which keys a grant is for: ranges within one partition that no neighbour lies in. Pure.

The range of a token is over the pair of keys, and both its ends are inside. So the partition is
always one whole key, and the end of the row keys is chosen such that no other value lies below
it: `user1` does not reach `user10`. An end that is empty is none: an empty key cannot be granted.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from partita.errors import LimitExceededError, UsageError
from partita.patterns.keys.intervals import Interval
from partita.patterns.keys.key_parts import KeyPart
from partita.patterns.keys.key_text import Bounds, is_legal, successor
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.row_layout import HIDDEN_MARK, LAST_TEXT, PART_MARK, ROWS_MAX

GRANTS_MAX = 256
"""Tokens for one grant: each place of a spread partition needs its own."""

_LEAST = " "
"""The least character of a key."""
_ORDERS_DIFFER = "\ud800"
"""From here on the order of code points is not that of UTF-16 units, by which Azure sorts."""


class GrantedRange(msgspec.Struct, frozen=True):
    """Keys of one partition from `start_rk` to `end_rk`, both inside; "" is no end."""

    start_pk: str
    start_rk: str
    end_pk: str
    end_rk: str

    def holds(self, key: RowKey) -> bool:
        """Tell whether the service lets the holder of a grant for this range reach a key."""
        if key.partition != self.start_pk:
            return False
        row = _utf16(key.row)
        return _utf16(self.start_rk) <= row and (not self.end_rk or row <= _utf16(self.end_rk))


def ranges(model: EntityType[Any], given: Mapping[str, Any]) -> list[GrantedRange]:
    """Return the ranges that hold the rows of the entities with these key fields, and no others.

    All fields of the partition key are given, and of the row key the first ones, none, or all;
    the last one given may be an interval. A partition that is spread by a hash gives a range for
    each of its places. Our own hidden rows are never inside. Rows whose keys begin like those of
    the type, as keys of another type may, cannot be told from them by a range.
    """
    _check_fields(model, given)
    stretches = list(_stretches(model, given))
    partitions = _partitions(model, given)
    if len(partitions) * len(stretches) > GRANTS_MAX:
        raise LimitExceededError(
            "TooManyGrants",
            f"{len(partitions) * len(stretches)} tokens would be needed, more than {GRANTS_MAX}.",
            facts={"type": model.name},
            hint="Give the field by which the partition is spread, or spread it less.",
        )
    return [
        GrantedRange(partition, start, partition, end)
        for partition in partitions
        for start, end in stretches
    ]


def _check_fields(model: EntityType[Any], given: Mapping[str, Any]) -> None:
    others = [name for name in given if name not in model.key_fields]
    if others:
        raise _refused(
            model,
            f"The field {others[0]!r} is in neither key, and a range knows nothing else.",
            f"The fields of the keys are {', '.join(model.key_fields)}.",
        )
    for name, value in given.items():
        if not isinstance(value, Interval):
            continue
        if name in _fields_in_full(model.partition):
            raise _refused(
                model,
                f"The field {name!r} of the partition key is given as an interval.",
                "Ask for a grant for each partition.",
            )
        if not model.row.is_ordered(name):
            raise _refused(
                model,
                f"Row keys do not sort by the field {name!r}, so that no range says the interval.",
                "Give its whole value.",
            )
        if value.prefix is not None and value.prefix[-1:].isalnum():
            raise _refused(
                model,
                f"A prefix of {name!r} that ends with a letter or digit reaches neighbours: "
                "'user1' is the beginning of 'user10'.",
                "Give the whole value, or a prefix that ends with a separator.",
            )


def _partitions(model: EntityType[Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    template = model.partition
    missing = [part for part in template.parts() if _is_open(given, part.field)]
    if any(part.is_full for part in missing):
        raise _refused(
            model,
            "A range is a safe one only within a single partition, and its key is not given.",
            f"Give all of {', '.join(template.fields)}.",
        )
    keys = template.spread_values(given) if missing else (template.format(given),)
    if not all(keys):
        raise _refused(
            model,
            "The partition key is empty, and a token takes an empty key for no limit at all.",
            "Keep what is to be granted in a partition with a name.",
        )
    return keys


def _stretches(model: EntityType[Any], given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield start and end of row keys."""
    template = model.row
    following = next((name for name in template.fields if _is_open(given, name)), None)
    if following is None:
        yield from _one_entity(model, template.format(given))
        return
    conditions = dict(given)
    if following not in given and template.is_ordered(following):
        conditions[following] = Interval()  # every value of it, and nothing else
    bounds = template.bounds(conditions)
    unsaid = [
        name
        for name in given
        if name not in _fields_in_full(model.partition) and name not in bounds.expressed
    ]
    if unsaid:
        raise _refused(
            model,
            f"No range of row keys says what was given for {unsaid[0]!r}.",
            f"Row keys sort by {', '.join(template.fields)}, in this order: give the first ones.",
        )
    if bounds.is_empty:
        raise _refused(model, "No key lies in the interval.", "Its lower end comes first.")
    _check_order(model, bounds)
    last = LAST_TEXT if model.is_wide or not _ends_with(template, following) else ""
    for part in _without_hidden_rows(bounds):
        yield part.lower, "" if part.upper is None else _last_before(part.upper, last)


def _one_entity(model: EntityType[Any], key: str) -> Iterator[tuple[str, str]]:
    if not key:
        raise _refused(
            model,
            "The row key is empty, and a token takes an empty key for no limit at all.",
            "Begin the row keys of the type with a literal.",
        )
    yield key, key
    if model.is_wide:
        # One range from the key to its last row would hold longer keys of others in between.
        yield f"{key}{PART_MARK}1", f"{key}{PART_MARK}{ROWS_MAX - 1}"


def _is_open(given: Mapping[str, Any], name: str) -> bool:
    """Tell whether a field may have several values."""
    return name not in given or isinstance(given[name], Interval)


def _fields_in_full(template: KeyTemplate) -> set[str]:
    """Return the fields of a key but those of which it holds only a hash."""
    return {part.field for part in template.parts() if part.is_full}


def _check_order(model: EntityType[Any], bounds: Bounds) -> None:
    """Refuse ends that other services would sort differently.

    What begins with one prefix lies together in every order.
    """
    if bounds.upper == successor(bounds.lower):
        return
    if max(bounds.lower + (bounds.upper or ""), default="") >= _ORDERS_DIFFER:
        raise _refused(
            model,
            "Services sort the characters in these ends differently, so that the range is unsure.",
            "Give ends without characters beyond U+D7FF.",
        )


def _without_hidden_rows(bounds: Bounds) -> Iterator[Bounds]:
    end_of_hidden = successor(HIDDEN_MARK)
    assert end_of_hidden is not None
    lower, upper = bounds.lower, bounds.upper
    if lower < HIDDEN_MARK:
        before = HIDDEN_MARK if upper is None else min(upper, HIDDEN_MARK)
        yield Bounds(lower, before)
    if upper is None or upper > end_of_hidden:
        yield Bounds(max(lower, end_of_hidden), upper)


def _ends_with(template: KeyTemplate, field: str) -> bool:
    """Tell whether nothing follows the field, and no value of it is the beginning of another."""
    last = template.pieces[-1]
    return isinstance(last, KeyPart) and last.field == field and last.is_prefix_free


def _last_before(upper: str, last_text: str) -> str:
    """Return the end, itself inside, of a range up to before `upper`.

    It is below `upper` and not below any key there, in the order of UTF-16 units; `last_text`
    is what may come last behind the greatest of them.
    """
    stem, last = upper[:-1], upper[-1]
    if last == _LEAST:
        return stem
    code = ord(last) - 1
    while not is_legal(chr(code)):
        code -= 1
    return f"{stem}{chr(code)}{last_text}"


def _utf16(text: str) -> bytes:
    return text.encode("utf-16-be", "surrogatepass")


def _refused(model: EntityType[Any], message: str, hint: str) -> UsageError:
    return UsageError(
        "GrantNotExpressible", f"{model.name}: {message}", facts={"type": model.name}, hint=hint
    )
