"""The key ranges of a grant: within one partition, and without neighbouring keys. Pure.

The range of a token is over the pair of keys, with both ends inclusive. Therefore the partition
is always one whole key, and the last row key is chosen so that no other value is below it:
`user1` does not include `user10`. A token treats an empty end as unbounded, so an empty key
cannot be granted.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from partita.errors import LimitExceededError, UsageError
from partita.patterns.keys.intervals import Interval
from partita.patterns.keys.key_parts import Bucket, KeyPart
from partita.patterns.keys.key_text import Bounds, is_legal, successor
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.row_layout import HIDDEN_MARK, LAST_TEXT, PART_MARK, ROWS_MAX

GRANTS_MAX = 256
"""The maximum number of tokens of one grant: each bucket of a partition needs its own."""

_LEAST = " "
"""The least character of a key."""
_ORDERS_DIFFER = "\ud800"
"""From here on, code points sort differently from UTF-16 units, which Azure compares."""


class GrantedRange(msgspec.Struct, frozen=True):
    """The keys from one pair to another, both inclusive; "" is unbounded.

    It is within one partition, unless the caller asked for partitions or for the whole table.
    """

    start_pk: str
    start_rk: str
    end_pk: str
    end_rk: str

    def holds(self, key: RowKey) -> bool:
        """Return whether the service grants access to a key with a token for this range."""
        pair = (_utf16(key.partition), _utf16(key.row))
        if self.start_pk and pair < (_utf16(self.start_pk), _utf16(self.start_rk)):
            return False
        if self.end_pk and not self.end_rk:
            return pair[0] <= _utf16(self.end_pk)
        return not self.end_pk or pair <= (_utf16(self.end_pk), _utf16(self.end_rk))


def partitions_between(table: str, first: str, last: str) -> GrantedRange:
    """Return the range of whole partitions from one partition key to another.

    Everything in them is included: hidden rows, rows of indexes, entities of other types.
    """
    if any(character >= _ORDERS_DIFFER for character in first + last):
        raise UsageError(
            "GrantNotExpressible",
            "Services sort partition keys with characters above U+D7FF differently.",
            facts={"table": table},
            hint="Use bounds without such characters.",
        )
    if first and last and _utf16(first) > _utf16(last):
        raise UsageError(
            "GrantNotExpressible",
            "The first partition key is greater than the last.",
            facts={"table": table, "first": first, "last": last},
            hint="Exchange them.",
        )
    return GrantedRange(first, "", last, "")


def ranges(model: EntityType[Any], given: Mapping[str, Any]) -> list[GrantedRange]:
    """Return the ranges with exactly the rows of the entities that have these key fields.

    All fields of the partition key are required, and any number of leading fields of the row key;
    the last one may be an interval. A partition key with a hash gives one range per bucket. Hidden
    rows are never included. Rows of other types whose keys begin like those of this type are
    included, because a range cannot tell them apart.
    """
    _check_fields(model, given)
    stretches = list(_stretches(model, given))
    partitions = _partitions(model, given)
    if len(partitions) * len(stretches) > GRANTS_MAX:
        raise LimitExceededError(
            "TooManyGrants",
            f"{len(partitions) * len(stretches)} tokens are needed, more than {GRANTS_MAX}.",
            facts={"type": model.name},
            hint="Give the field that is hashed in the partition key, or use fewer buckets.",
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
            f"The field {others[0]!r} is not a key field.",
            f"Use the key fields: {', '.join(model.key_fields)}.",
        )
    for name, value in given.items():
        if not isinstance(value, Interval):
            continue
        if name in _fields_in_full(model.partition):
            raise _refused(
                model,
                f"The field {name!r} of the partition key is given as an interval.",
                "Make a grant for each partition.",
            )
        if not model.row.is_ordered(name):
            raise _refused(
                model,
                f"Row keys do not sort by the field {name!r}, so an interval is not a range.",
                "Give a single value.",
            )
        if value.prefix is not None and value.prefix[-1:].isalnum():
            raise _refused(
                model,
                f"A prefix of {name!r} that ends with a letter or digit includes other values: "
                "'user1' is a prefix of 'user10'.",
                "Give the whole value, or a prefix that ends with a separator.",
            )


def _partitions(model: EntityType[Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    template = model.partition
    missing = [part for part in template.parts() if _is_open(given, part.field)]
    if not all(isinstance(part, Bucket) for part in missing):
        raise _refused(
            model,
            "A grant is restricted to one partition, whose key is not given.",
            f"Give {', '.join(template.fields)}.",
        )
    keys = template.spread_values(given) if missing else (template.format(given),)
    if not all(keys):
        raise _refused(
            model,
            "The partition key is empty, which a token would treat as unbounded.",
            "Store the granted entities in a partition with a non-empty key.",
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
        conditions[following] = Interval()  # any value of the field, but no other keys
    bounds = template.bounds(conditions)
    not_expressed = [
        name
        for name in given
        if name not in _fields_in_full(model.partition) and name not in bounds.expressed
    ]
    if not_expressed:
        raise _refused(
            model,
            f"The condition on {not_expressed[0]!r} is not a range of row keys.",
            f"Give leading fields of the row key, in the order {', '.join(template.fields)}.",
        )
    if bounds.is_empty:
        raise _refused(model, "The interval is empty.", "Give the lower end first.")
    _check_order(model, bounds)
    last = LAST_TEXT if model.is_wide or not _ends_with(template, following) else ""
    for part in _without_hidden_rows(bounds):
        yield part.lower, "" if part.upper is None else _last_before(part.upper, last)


def _one_entity(model: EntityType[Any], key: str) -> Iterator[tuple[str, str]]:
    if not key:
        raise _refused(
            model,
            "The row key is empty, which a token would treat as unbounded.",
            "Begin the row template of the type with a literal.",
        )
    yield key, key
    if model.is_wide:
        # One range from the key to its last row would include longer keys of other entities.
        yield f"{key}{PART_MARK}1", f"{key}{PART_MARK}{ROWS_MAX - 1}"


def _is_open(given: Mapping[str, Any], name: str) -> bool:
    """Return whether a field can have several values."""
    return name not in given or isinstance(given[name], Interval)


def _fields_in_full(template: KeyTemplate) -> set[str]:
    """Return the fields that a key contains in full, not only as a hash."""
    return {part.field for part in template.parts() if part.is_full}


def _check_order(model: EntityType[Any], bounds: Bounds) -> None:
    """Raise if services sort the ends differently; keys with one prefix are always adjacent."""
    if bounds.upper == successor(bounds.lower):
        return
    if max(bounds.lower + (bounds.upper or ""), default="") >= _ORDERS_DIFFER:
        raise _refused(
            model,
            "Services sort the characters of these ends differently.",
            "Use ends without characters above U+D7FF.",
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
    """Return whether the field is last and none of its values is a prefix of another."""
    last = template.pieces[-1]
    return isinstance(last, KeyPart) and last.field == field and last.is_prefix_free


def _last_before(upper: str, last_text: str) -> str:
    """Return the inclusive end of a range whose exclusive end is `upper`.

    It is below `upper` and not below any key of the range, in the order of UTF-16 units;
    `last_text` is the greatest suffix of a key.
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
