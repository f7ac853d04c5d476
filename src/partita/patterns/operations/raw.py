"""Entities without a type: property bags, for foreign tables.

Values are kept exactly as stored: an Int32 stays an Int32, a time keeps its seventh digit. (The
guide's second way to work with heterogeneous types.)
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from partita.errors import EntityNotFoundError, GroupRuleError, UsageError
from partita.patterns.operations.continuations import (
    PAGE_SIZE_MAX,
    Position,
    Slice,
    continuation_at,
    fingerprint,
    position_after,
)
from partita.patterns.planning.filter_text import literal
from partita.patterns.protocol.calls import (
    GetRow,
    QueryRows,
    RowOperation,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.values import Row, RowKey, Value


class RawEntity(msgspec.Struct):
    """One stored entity: two keys, properties, an etag."""

    partition_key: str
    row_key: str
    properties: dict[str, Value]
    etag: str = ""

    @property
    def key(self) -> RowKey:
        return RowKey(self.partition_key, self.row_key)


def to_raw(row: Row) -> RawEntity:
    return RawEntity(row.key.partition, row.key.row, dict(row.properties), row.etag)


def get_raw(table: str, key: RowKey) -> Steps[RawEntity]:
    row = yield from ask(GetRow(table, key))
    if row is None:
        raise EntityNotFoundError(
            "ResourceNotFound",
            "The entity does not exist.",
            facts={"table": table, **key.facts},
        )
    return to_raw(row)


class RawTerms(msgspec.Struct, frozen=True):
    """A query of a raw table."""

    table: str
    filter: str = ""
    selected: tuple[str, ...] | None = None
    count_max: int | None = None

    @property
    def fingerprint(self) -> str:
        return fingerprint((self.table, self.filter, ",".join(self.selected or ())))


def read_raw(terms: RawTerms, position: Position, size: int | None) -> Steps[Slice]:
    """Read up to `size` entities (None: one page of the service) from a position on."""
    found: list[RawEntity] = []
    at: Position | None = position
    while at is not None and (size is None or len(found) < size):
        wanted = None if size is None else min(size - len(found), PAGE_SIZE_MAX)
        page = yield from ask(
            QueryRows(terms.table, terms.filter, terms.selected, wanted, continuation_at(at))
        )
        found += [to_raw(row) for row in page.rows]
        at = position_after(page.continuation)
        if size is None:
            break
    return Slice(found, at)


_PARAMETER = re.compile(r"'(?:[^']|'')*'|@(\w+)")


def bind(filter_text: str, parameters: Mapping[str, Value]) -> str:
    """Return a filter with its parameters as literals; text inside quotes is left alone.

    >>> bind("Name eq @name and Note ne '@name'", {"name": "O'Brien"})
    "Name eq 'O''Brien' and Note ne '@name'"
    """
    used: set[str] = set()

    def literal_of(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0]
        if name not in parameters:
            raise UsageError(
                "ParameterMissing",
                f"The filter has a parameter @{name} without a value.",
                hint=f"Pass it by name: query(..., {name}=...).",
            )
        used.add(name)
        return literal(parameters[name])

    bound = _PARAMETER.sub(literal_of, filter_text)
    unused = sorted(set(parameters) - used)
    if unused:
        raise UsageError(
            "ParameterMissing",
            f"The filter has no parameter @{unused[0]}.",
            hint=f"Write @{unused[0]} in the filter, or leave the argument out.",
        )
    return bound


def patch_raw(table: str, raw: RawEntity, changes: Mapping[str, Value]) -> Steps[RawEntity]:
    """Merge properties into an entity of unknown type; the properties must exist."""
    missing = [name for name in changes if name not in raw.properties]
    if missing:
        raise UsageError(
            "PropertyMissing",
            f"The entity has no property {missing[0]!r}.",
            facts={"table": table, "partition_key": raw.partition_key, "row_key": raw.row_key},
            hint=f"Properties: {', '.join(raw.properties)}.",
        )
    for name, value in changes.items():
        if type(value) is not type(raw.properties[name]):
            raise UsageError(
                "PropertyTypeMismatch",
                f"The property {name!r} is of type {type(raw.properties[name]).__name__}.",
                hint="Pass a value of the same type; Int32(...) for a 32-bit number.",
            )
    operation = RowOperation(Verb.MERGE, Row(raw.key, dict(changes)), raw.etag or "*")
    [etag] = yield from ask(WriteRows(table, (operation,)))
    return RawEntity(raw.partition_key, raw.row_key, {**raw.properties, **changes}, etag)


# ---------------------------------------------------------------------------------------------
# Groups


class RawChange(msgspec.Struct, frozen=True):
    """One operation of a group, and the entity as it is after the group; None if deleted."""

    operation: RowOperation
    after: RawEntity | None


def insertion_or_replacement(raw: RawEntity) -> RawChange:
    verb = Verb.REPLACE if raw.etag else Verb.INSERT
    return RawChange(RowOperation(verb, Row(raw.key, dict(raw.properties)), raw.etag or "*"), raw)


def overwriting(raw: RawEntity, *, merge: bool) -> RawChange:
    verb = Verb.UPSERT_MERGE if merge else Verb.UPSERT_REPLACE
    return RawChange(RowOperation(verb, Row(raw.key, dict(raw.properties))), raw)


def deletion(raw: RawEntity) -> RawChange:
    return RawChange(RowOperation(Verb.DELETE, Row(raw.key, {}), raw.etag or "*"), None)


def write_group(table: str, partition: str, changes: Sequence[RawChange]) -> Steps[list[RawEntity]]:
    """Apply changes of one partition, all or none; return the written entities."""
    if not changes:
        return []
    others = [each for each in changes if each.operation.row.key.partition != partition]
    if others:
        raise GroupRuleError(
            "PartitionMismatch",
            "All entities of a group must be in one partition of one table.",
            facts={"table": table, "partition_key": partition},
            hint="Use one group for each partition.",
        )
    etags = yield from ask(WriteRows(table, tuple(each.operation for each in changes)))
    return [
        msgspec.structs.replace(change.after, properties=dict(change.after.properties), etag=etag)
        for change, etag in zip(changes, etags, strict=True)
        if change.after is not None
    ]
