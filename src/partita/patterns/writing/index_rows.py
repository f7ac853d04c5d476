"""The operations on index rows that follow from a change of an entity. Pure.

If an index is readable, the row of the entity before is assumed to exist. Otherwise (an index being
built, a row removed by another program) the rows are read first, and only existing rows of the
entity are changed.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from partita.errors import DamageError, DefinitionError, LimitExceededError
from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.split_text import cut, join
from partita.patterns.protocol.untrusted_json import decode
from partita.patterns.protocol.values import Row, RowKey, Value, measure
from partita.patterns.types.indexes import AnyIndex, Index, ListIndex, Storage
from partita.patterns.types.row_layout import COPY_MARK, GENERATION
from partita.patterns.writing.rows import (
    References,
    Sealing,
    check_row,
    encode_field,
    marks_of,
    seal_row,
)
from partita.tables import limits

MEMBER_PARTITION = "_Partition"
MEMBER_ROW = "_Row"
IDS = "Ids"


class Version(msgspec.Struct, frozen=True):
    """An entity before or after a change, with what indexes need of it."""

    key: RowKey
    values: Mapping[str, Any]
    references: References
    generation: int = 0


def member_of(row: Row, *, is_local: bool) -> RowKey:
    """Return the key of the entity that an index row refers to."""
    partition = row.key.partition if is_local else str(row.properties.get(MEMBER_PARTITION, ""))
    return RowKey(partition, str(row.properties.get(MEMBER_ROW, "")))


def row_of(index: AnyIndex, version: Version, sealing: Sealing) -> Row | None:
    """Return the row of an entity in an index; None if the index excludes the entity."""
    if isinstance(index, ListIndex):
        key = index.member_key(version.values, version.key)
        return None if key is None else _member(index, key, version)
    key = index.key(version.values)
    return None if key is None else _copy(index, key, version, sealing)


def _member(index: ListIndex[Any], key: RowKey, version: Version) -> Row:
    properties = {**_marks(index), **_member_of(index, version.key)}
    if not index.is_local:
        properties[GENERATION] = version.generation
    return Row(key, properties)


def _copy(index: Index[Any], key: RowKey, version: Version, sealing: Sealing) -> Row:
    properties = {**_marks(index), **_member_of(index, version.key)}
    for name in index.copied:
        field = index.owner.fields[name]
        if field.is_key:
            stored = field.codec.encode(version.values[name])
            assert stored is not None
            properties[field.property] = stored
        else:
            properties.update(encode_field(field, version.values[name], version.references))
    if not index.is_local:
        properties[GENERATION] = version.generation
    return seal_row(index.owner, Row(key, properties), sealing, of=version.key, table=index.table)


def _marks(index: AnyIndex) -> dict[str, Value]:
    return marks_of(index.owner, COPY_MARK + index.name)


def _member_of(index: AnyIndex, key: RowKey) -> dict[str, Value]:
    if index.is_local:
        return {MEMBER_ROW: key.row}
    return {MEMBER_PARTITION: key.partition, MEMBER_ROW: key.row}


def key_of(index: AnyIndex, version: Version | None) -> RowKey | None:
    """Return the key of the row of an entity in an index."""
    if version is None:
        return None
    if isinstance(index, ListIndex) and index.storage is Storage.ROWS:
        return index.member_key(version.values, version.key)
    return index.key(version.values)


def check_public(index: AnyIndex, version: Version | None) -> None:
    """Refuse an index key with a field that the resolver of the type encrypts."""
    owner, encrypt = index.owner, index.owner.encrypt
    if encrypt is None or version is None:
        return
    for name in index.key_fields:
        field = owner.fields[name]
        if not field.is_key and encrypt(version.key.partition, version.key.row, field.property):
            raise DefinitionError(
                "IndexRefused",
                f"{name!r} is encrypted; an index key would reveal it.",
                facts={"type": owner.name, "index": index.name},
                hint="Index another field, or exclude this one in the resolver.",
            )


def is_touched(index: AnyIndex, before: Version | None, after: Version | None) -> bool:
    """Return whether a change affects an index."""
    if before is None or after is None:
        return True
    return before.key != after.key or any(
        before.values[name] != after.values[name]
        or before.references.get(name) != after.references.get(name)
        for name in index.needed_fields
    )


def expected_operations(
    index: AnyIndex, before: Version | None, after: Version | None, sealing: Sealing
) -> list[RowOperation]:
    """Return the operations, assuming that the row of the entity before exists."""
    old = key_of(index, before)
    new = None if after is None else row_of(index, after, sealing)
    operations: list[RowOperation] = []
    if old is not None and (new is None or new.key != old):
        operations.append(RowOperation(Verb.DELETE, Row(old, {})))
    if new is not None:
        is_insert = _is_unique(index) and new.key != old
        operations.append(RowOperation(Verb.INSERT if is_insert else Verb.UPSERT_REPLACE, new))
    return operations


def careful_operations(
    index: AnyIndex,
    before: Version | None,
    after: Version | None,
    found: Mapping[RowKey, Row | None],
    sealing: Sealing,
) -> list[RowOperation]:
    """Return the operations for the rows that were found; rows of other entities are kept."""
    old = key_of(index, before)
    new = None if after is None else row_of(index, after, sealing)
    operations: list[RowOperation] = []
    if old is not None and before is not None and (new is None or new.key != old):
        there = found[old]
        if there is not None and member_of(there, is_local=index.is_local) == before.key:
            operations.append(RowOperation(Verb.DELETE, Row(old, {}), there.etag))
    if new is not None and after is not None:
        there = found[new.key]
        owners = {after.key, after.key if before is None else before.key}
        if there is None:
            operations.append(RowOperation(Verb.INSERT, new))
        elif member_of(there, is_local=index.is_local) in owners or not _is_unique(index):
            operations.append(RowOperation(Verb.REPLACE, new, there.etag))
        else:
            operations.append(
                RowOperation(Verb.INSERT, new)
            )  # refused by the service: another entity has the value
    return operations


def _is_unique(index: AnyIndex) -> bool:
    return isinstance(index, Index) and index.is_unique


# ---------------------------------------------------------------------------------------------
# Index entities: one row holds the members of a value


def members_in(properties: Mapping[str, Value]) -> list[list[str]]:
    """Return the members in an index entity: [row] or [partition, row], sorted."""
    text = join(IDS, properties)
    return read_members(text) if text else []


def read_members(text: str | bytes) -> list[list[str]]:
    """Read the members of one value, of an index entity or of a blob."""
    try:
        return decode(text, list[list[str]])
    except msgspec.DecodeError as error:
        raise DamageError(
            "IndexDamaged",
            "The members of one value in an index cannot be read.",
            hint="Another program changed them: disable the index and rebuild it.",
        ) from error


def list_row(
    index: ListIndex[Any], key: RowKey, members: Sequence[Sequence[str]], etag: str
) -> Row:
    """Return an index entity. Raises if the members of one value do not fit."""
    text = msgspec.json.encode(sorted(map(list, members))).decode()
    row = Row(key, {**_marks(index), **cut(IDS, text)}, etag)
    if measure(row) > limits.ENTITY_BYTES_MAX or len(row.properties) > limits.PROPERTIES_MAX:
        raise LimitExceededError(
            "IndexEntityTooLarge",
            f"The {len(members)} members of one value do not fit into an index entity.",
            facts={"index": index.name, **key.facts},
            hint='Declare the index with store="rows" (no limit) or store="blob".',
        )
    check_row(index.owner, row)
    return row


def member_name(index: ListIndex[Any], key: RowKey) -> list[str]:
    return [key.row] if index.is_local else [key.partition, key.row]
