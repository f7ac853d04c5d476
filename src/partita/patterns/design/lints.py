"""Lints: the guide's anti-patterns, which work in a test and fail under load.

A lint is a warning, never an error. `@entity(..., allow_hot=True)` accepts the design, for a small
table with a few writes per second.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import date
from enum import Enum
from typing import Any, Literal, get_origin
from uuid import UUID

import msgspec

from partita.errors import DefinitionError
from partita.patterns.design.access_patterns import declared_access
from partita.patterns.fields.fields import Field
from partita.patterns.keys.fixed_width_parts import PaddedInt
from partita.patterns.keys.key_parts import Escaped, PlainInt, Text
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.planning.columns import plain_type
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.entity_types import type_of_given
from partita.patterns.types.indexes import AnyIndex, ListIndex

SPREAD_BUCKETS = 16
"""The number of buckets in advice: sixteen times the throughput target of one partition."""

_LOG_WORDS = frozenset(
    (
        *("log", "logs", "logged", "logging", "trace", "traces", "audit"),
        *("diagnostic", "diagnostics", "event", "events", "message", "messages"),
        *("severity", "level"),
    )
)
"""Words in the names of log tables and their fields."""
_TIME_WORDS = frozenset(
    (
        *("minute", "hour", "day", "date", "week", "month", "year", "quarter", "period"),
        *("time", "timestamp", "ticks"),
    )
)
"""The last words in the names of texts that contain a time, such as "2026-11-18"."""
_COUNTED_WORDS = frozenset(
    (
        *("order", "event", "invoice", "ticket", "message", "transaction", "payment", "booking"),
        *("entry", "record", "log", "request", "job", "task", "sequence"),
    )
)
"""Words before "id" in the names of numbers that are usually given in sequence."""
_OWN_WORDS = frozenset(("id", "key", "uuid", "guid"))


class Lint(msgspec.Struct, frozen=True):
    """One warning about a design."""

    code: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message} {self.hint}"


def lint(
    given: type[Any] | EntityType[Any],
    indexes: Iterable[AnyIndex] | None = None,
    *,
    neighbours: Iterable[EntityType[Any]] = (),
) -> list[Lint]:
    """Return the anti-patterns in the keys of a type and of its indexes.

    `neighbours` are the other types of the program, which may share partitions with this one.
    """
    model = type_of_given(given)
    declared: list[AnyIndex] = list(model.indexes if indexes is None else indexes)
    found: list[Lint] = []
    if not model.allow_hot:
        found += [*_log(model), *_monotone(model), *_single(model)]
        for index in declared:
            found += _hot_index(model, index)
    found += _lonely(model, declared, list(neighbours))
    found += _unused(model, declared)
    return found


# ---------------------------------------------------------------------------------------------
# Prepend and append


def _monotone(model: EntityType[Any]) -> Iterator[Lint]:
    if _is_monotone(model.partition):
        first = model.partition.fields[0]
        yield Lint(
            "MonotonePartition",
            f"The partition key of {model.name} begins with {first!r}, which only increases: all "
            "inserts go to the last partition (prepend/append anti-pattern).",
            f"{_rewritten(model)} Or set allow_hot=True for a few inserts per second.",
        )


def _is_monotone(template: KeyTemplate) -> bool:
    """Return whether keys only increase: by their type, or by the name of the first field."""
    if template.is_monotone:
        return True
    first = next(template.parts(), None)
    if isinstance(first, Text | Escaped):
        return _has_growing_name(first.field, is_text=True)
    return isinstance(first, PaddedInt | PlainInt) and _has_growing_name(first.field, is_text=False)


def _has_growing_name(name: str, *, is_text: bool) -> bool:
    words = [word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)]
    if is_text:
        return words[-1:] != [] and words[-1] in _TIME_WORDS
    return words[-1:] == ["id"] and bool(set(words[:-1]) & _COUNTED_WORDS)


def _rewritten(model: EntityType[Any]) -> str:
    for partition, row in _candidates(model):
        if _is_proven(model, partition, row):
            return f'Use partition="{partition}", row="{row}" instead.'
    return "Begin it with a field that differs between writers: a customer, a device, a user."


def _candidates(model: EntityType[Any]) -> Iterator[tuple[str, str]]:
    """Yield templates with the increasing parts after the others."""
    parts = {**_holes(model.partition), **_holes(model.row)}
    growing = {name: part for name, part in parts.items() if _grows(model, name)}
    steady = {name: part for name, part in parts.items() if name not in growing}
    # A field that is unique per entity goes into the row key, so that a partition has several.
    own = [name for name in steady if _is_own(model, name)]
    shared = [name for name in steady if name not in own]
    if len(shared) > 1 and not own:
        own.append(shared.pop())
    row = [*growing.values(), *(steady[name] for name in own)]
    if shared:
        partition = _separable(model, [steady[name] for name in shared])
        yield "_".join(partition), "_".join(_separable(model, row))
    # Only unique fields are left to hash.
    for name in (*own, *reversed(growing)):
        whole = _separable(model, [*growing.values(), *steady.values()])
        yield f"{{{name}:hash{SPREAD_BUCKETS}}}", "_".join(whole)


def _is_own(model: EntityType[Any], name: str) -> bool:
    """Return whether a field seems to be unique for each entity."""
    return name in _OWN_WORDS or plain_type(model.fields[name]) is UUID


def _holes(template: KeyTemplate) -> dict[str, str]:
    found = re.finditer(r"\{([A-Za-z_]\w*)(:(?!hash)[^}]*)?\}", template.text)
    return {match[1]: match[0] for match in found}


def _separable(model: EntityType[Any], parts: Sequence[str]) -> list[str]:
    """Return parts with every text but the last one escaped, so that they can be joined."""
    return [
        part.replace("}", ":esc}")
        if _is_bare_text(model, part) and place < len(parts) - 1
        else part
        for place, part in enumerate(parts)
    ]


def _is_bare_text(model: EntityType[Any], part: str) -> bool:
    name = part.strip("{}")
    return name in model.fields and plain_type(model.fields[name]) is str


def _grows(model: EntityType[Any], name: str) -> bool:
    kind = plain_type(model.fields[name])
    if _is_time(model.fields[name]) or (
        kind in (int, str) and _has_growing_name(name, is_text=kind is str)
    ):
        return True
    alone = KeyTemplate.compile(f"{{{name}:08d}}", {name: int}, role="partition", owner=model.name)
    return plain_type(model.fields[name]) is int and alone.is_monotone


def _is_time(field: Field) -> bool:
    kind = plain_type(field)
    return isinstance(kind, type) and issubclass(kind, date)


def _is_proven(model: EntityType[Any], partition: str, row: str) -> bool:
    annotations = {name: field.annotation for name, field in model.fields.items()}
    try:
        made = KeyTemplate.compile(partition, annotations, role="partition", owner=model.name)
        rows = KeyTemplate.compile(row, annotations, role="row", owner=model.name)
        KeyTemplate.check_pair(made, rows)
    except DefinitionError:
        return False
    return not _is_monotone(made)


def _hot_index(model: EntityType[Any], index: AnyIndex) -> Iterator[Lint]:
    if index.is_local or (index.table == model.table and index.partition is model.partition):
        return
    if _is_monotone(index.partition):
        yield Lint(
            "MonotonePartition",
            f"The partition key of the index {index.name!r} begins with "
            f"{index.partition.fields[0]!r}, which only increases: all copies go to the last "
            "partition (prepend/append anti-pattern).",
            "Begin it with a field that differs between writers, and use the time in the row key.",
        )
    if not index.partition.fields:
        yield _one_partition(f"The index {index.name!r}")


# ---------------------------------------------------------------------------------------------
# One partition, or one entity in each


def _single(model: EntityType[Any]) -> Iterator[Lint]:
    if not model.partition.fields:
        yield _one_partition(model.name)


def _one_partition(whose: str) -> Lint:
    return Lint(
        "SinglePartition",
        f"{whose} has a single partition: the service cannot distribute the load, and the limit "
        "is about 2,000 entities per second.",
        f"Use a field in the partition template, or a hash: {{id:hash{SPREAD_BUCKETS}}}. "
        "Or set allow_hot=True for a small table.",
    )


def _lonely(
    model: EntityType[Any], indexes: Sequence[AnyIndex], neighbours: Sequence[EntityType[Any]]
) -> Iterator[Lint]:
    if set(model.row.fields) - set(model.partition.fields):
        return
    shared = [each for each in neighbours if each is not model and _shares(model, each)]
    if shared or not model.partition.fields:
        return
    for reason in _groups(indexes):
        yield Lint(
            "OneEntityPerPartition",
            f"Each partition has one {model.name}, but {reason}.",
            "Use a field that several entities share in the partition template, and a unique "
            "field in the row template.",
        )


def _shares(model: EntityType[Any], other: EntityType[Any]) -> bool:
    """Return whether entities of another type can be in the same partitions."""
    mine, theirs = model.partition.literal_prefix, other.partition.literal_prefix
    return model.table == other.table and (mine.startswith(theirs) or theirs.startswith(mine))


def _groups(indexes: Sequence[AnyIndex]) -> Iterator[str]:
    for index in indexes:
        if index.is_local and isinstance(index, ListIndex):
            yield f"the index {index.name!r} lists the entities of one partition"
        elif index.is_local and getattr(index, "is_unique", False):
            yield f"the index {index.name!r} is unique within one partition"


# ---------------------------------------------------------------------------------------------
# Indexes without a query


def _unused(model: EntityType[Any], indexes: Sequence[AnyIndex]) -> Iterator[Lint]:
    """Find indexes that cost writes, while no declared access pattern reads them."""
    accesses = [each for relative in model.family() for each in declared_access(relative)]
    used = {each.via for each in accesses}
    for index in indexes:
        is_unique = getattr(index, "is_unique", False)  # then it is read by every write
        if accesses and index.name not in used and not is_unique:
            yield Lint(
                "UnusedIndex",
                f"No declared access pattern of {model.name} uses the index {index.name!r}, which "
                "every write of an indexed field updates.",
                f'Declare the query: access("...", via="{index.name}", ...), or remove the index.',
            )


# ---------------------------------------------------------------------------------------------
# Logs


def _log(model: EntityType[Any]) -> Iterator[Lint]:
    """Find tables of log lines: keyed by time, with text only, and named like logs."""
    in_keys = [field for field in model.fields.values() if field.is_key]
    others = [field for field in model.fields.values() if not field.is_key]
    if not others or not any(_is_time(field) for field in in_keys):
        return
    if not all(_is_text(field) for field in others):
        return
    if _is_monotone(model.partition) or _sounds_like_log(model, others):
        yield Lint(
            "LogData",
            f"{model.name} is text keyed by time: log data, which is written often and read in "
            "long ranges (log data anti-pattern).",
            "Write it to hourly blobs with db.log_writer(), and read it with db.log_lines().",
        )


def _is_text(field: Field) -> bool:
    kind = plain_type(field)
    is_choice = get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Enum))
    return kind is str or is_choice


def _sounds_like_log(model: EntityType[Any], others: Sequence[Field]) -> bool:
    names = [model.cls.__name__, model.table, *(field.name for field in others)]
    words = {word.lower() for name in names for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)}
    return bool(words & _LOG_WORDS)
