"""Bring the followers of an entity up to date: index rows elsewhere, derived fields, blobs.

Everything here uses the current entity, and may be done twice, late, or by two workers at once. The
order of requests makes that safe: read the follower, read the entity, write the follower under the
etag that was read, then check that the entity is unchanged. Two workers cannot both write under one
etag, and a worker that wrote stale data sees the newer entity and starts again.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from partita.errors import (
    ConflictError,
    DamageError,
    EncryptionKeyError,
    EntityExistsError,
    EntityNotFoundError,
    StoreBusyError,
    UniqueViolationError,
    UnknownTypeError,
)
from partita.patterns.encryption import sealing as encryption
from partita.patterns.fields.markers import CopiedFrom
from partita.patterns.protocol.calls import (
    DeleteBlob,
    GetBlob,
    GetRow,
    Invoke,
    ListedBlob,
    PutBlob,
    RowOperation,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import Dependent, EntityType
from partita.patterns.types.indexes import AnyIndex, ListIndex, Storage
from partita.patterns.types.row_layout import GENERATION
from partita.patterns.writing import derived_fields, index_rows
from partita.patterns.writing.chunks import put_blob
from partita.patterns.writing.claims import is_claimed_elsewhere, is_held, unique_violation
from partita.patterns.writing.context import Context
from partita.patterns.writing.index_rows import Version
from partita.patterns.writing.load import find, find_rows, keys_between, load, summarise
from partita.patterns.writing.outbox_entry import Touched
from partita.patterns.writing.rows import Stored, open_row, shows_secrets
from partita.patterns.writing.write import Change, too_many_conflicts, write

_NAME_PART_MAX = 60
"""The most characters of a key in the name of a blob, which has 1,024 in all."""
_HASHED = "~~"
"""The prefix of the hash of a longer key."""
ROUNDS_MAX = 50
"""How often an update is attempted if the follower or its entity changes concurrently."""


def model_of(context: Context, name: str) -> EntityType[Any]:
    model = context.models.get(name)
    if model is None:
        raise UnknownTypeError(
            "UnknownType",
            f"An outbox entry names the type {name!r}, which is not declared in this program.",
            hint="Call db.table(...) for every type before the worker starts.",
        )
    return model


def _run_all(parts: Iterable[Steps[None]]) -> Steps[None]:
    """Run all steps, even if some fail, and raise the first error at the end."""
    errors: list[Exception] = []
    for part in parts:
        try:
            yield from part
        except Exception as error:  # noqa: BLE001 - users' functions raise anything
            errors.append(error)
    if errors:
        raise errors[0]


def settle(context: Context, touched: Touched) -> Steps[None]:
    """Bring all followers of one entity up to date that are declared in this program.

    A follower that fails does not prevent the update of the others.
    """
    yield from _run_all(_followers_of(context, model_of(context, touched.type), touched))


def _followers_of(
    context: Context, model: EntityType[Any], touched: Touched
) -> Iterator[Steps[None]]:
    for index in context.live_indexes(model):
        if index.name in touched.indexes:
            keys = [RowKey(*key) for key in touched.indexes[index.name]]
            yield settle_index(context, model, index, touched.key, keys)
    for name, partition, lower, upper in touched.owners:
        for dependent in model.followers.dependents:
            if dependent.name == name:
                yield _settle_owners(context, dependent, partition, lower, upper)
    for name in touched.derived:
        for dependent in derived_fields.dependents_of(model, name):
            yield settle_owner(context, dependent, touched.key)
    for name in touched.views:
        for view in model.followers.views:
            if view.name == name:
                yield call_view(context, model, view, touched.key)
    if touched.blobs:
        yield _remove_blobs(context, model, touched)


def _settle_owners(
    context: Context, dependent: Dependent, partition: str, lower: str, upper: str | None
) -> Steps[None]:
    keys = yield from keys_between(dependent.owner, partition, lower, upper)
    yield from _run_all(settle_owner(context, dependent, key) for key in keys)


def call_view(context: Context, model: EntityType[Any], view: Any, key: RowKey) -> Steps[None]:
    """Call a view with the current entity, and again if the entity changed during the call."""
    given = {**model.partition.parse(key.partition), **model.row.parse(key.row)}
    for _ in range(ROUNDS_MAX):
        stored, etag = yield from load_as(context, model, key)
        entity = None
        if stored is not None:
            entity = yield from find(context, stored.model, key)
        yield from ask(Invoke(view.function, (context.database, given, entity)))
        again = yield from ask(GetRow(model.table, key))
        if _etag(again) == etag:
            return
    raise _source_kept_changing(view.name, key)


# ---------------------------------------------------------------------------------------------
# Indexes


def settle_index(
    context: Context,
    model: EntityType[Any],
    index: AnyIndex,
    key: RowKey,
    known: Sequence[RowKey],
) -> Steps[None]:
    """Bring the rows of an index up to date with the current entity."""
    keys = list(dict.fromkeys(known))
    for _ in range(ROUNDS_MAX):
        followers = yield from _followers(index, keys)
        stored, etag = yield from load_as(context, index.owner, key)
        version = version_of(stored)
        index_rows.check_public(index, version)
        wanted = index_rows.key_of(index, version)
        if wanted is not None and wanted not in keys:
            keys.append(wanted)
            continue  # because the follower must be read before its entity
        try:
            for each in keys:
                yield from _settle_key(context, index, key, version, followers[each], each)
        except UniqueViolationError:
            raise
        except ConflictError:
            continue  # because another worker wrote it
        again = yield from ask(GetRow(model.table, key))
        if _etag(again) == etag:
            return
    raise _source_kept_changing(index.name, key)


def settle_absent(context: Context, index: AnyIndex, key: RowKey) -> Steps[None]:
    """Add an entity to an index that most likely has no row for it, with three requests.

    If the insert succeeds, there was no row: reading it first is not necessary.
    """
    stored, etag = yield from load_as(context, index.owner, key)
    version = version_of(stored)
    index_rows.check_public(index, version)
    row = None if version is None else index_rows.row_of(index, version, context.sealing)
    if row is None:
        return  # because nothing was written that could be stale
    try:
        yield from ask(WriteRows(index.table, (RowOperation(Verb.INSERT, row),)))
    except EntityExistsError:
        yield from settle_index(context, index.owner, index, key, [row.key])
        return
    again = yield from ask(GetRow(index.owner.table, key))
    if _etag(again) != etag:
        yield from settle_index(context, index.owner, index, key, [row.key])


def load_as(
    context: Context, model: EntityType[Any], key: RowKey
) -> Steps[tuple[Stored | None, str]]:
    """Read an entity of a type, and the etag of whatever is stored under the key.

    None: there is no entity, or one of another type.
    """
    *_, root = model.lineage()
    try:
        stored = yield from load(context, root, key)
    except UnknownTypeError:
        row = yield from ask(GetRow(model.table, key))
        said = None if row is None else row.properties.get(root.type_property or "")
        if said is not None and said not in context.models:
            raise
        return None, _etag(row)
    if stored is None:
        return None, ""
    is_of = any(each.name == stored.model.name for each in model.family())
    return (stored if is_of else None), stored.origin.etags[0]


def version_of(stored: Stored | None) -> Version | None:
    """Return what indexes need of an entity."""
    if stored is None:
        return None
    generation = stored.origin.system.get(GENERATION, 0)
    return Version(
        stored.origin.key,
        stored.values,
        stored.references(),
        generation if isinstance(generation, int) else 0,
    )


def _etag(row: Row | None) -> str:
    return "" if row is None else row.etag


class _Listed(msgspec.Struct, frozen=True):
    """The content of a blob of a list index; without an etag if the blob does not exist."""

    members: list[list[str]]
    etag: str = ""


def _followers(index: AnyIndex, keys: Sequence[RowKey]) -> Steps[Mapping[RowKey, Any]]:
    if isinstance(index, ListIndex) and index.storage is Storage.BLOB:
        found: dict[RowKey, Any] = {}
        for key in keys:
            found[key] = yield from read_list_blob(index, key)
        return found
    return (yield from find_rows(index.table, keys)) if keys else {}


def _settle_key(
    context: Context,
    index: AnyIndex,
    member: RowKey,
    version: Version | None,
    there: Any,
    key: RowKey,
) -> Steps[None]:
    is_wanted = index_rows.key_of(index, version) == key
    if isinstance(index, ListIndex) and index.storage is not Storage.ROWS:
        name = index_rows.member_name(index, member)
        if isinstance(there, _Listed):
            yield from _settle_blob(index, key, there, name, is_wanted=is_wanted)
        else:
            yield from _settle_list(index, key, there, name, is_wanted=is_wanted)
        return
    if not is_wanted or version is None:
        if there is not None and index_rows.member_of(there, is_local=index.is_local) == member:
            if is_claimed_elsewhere(index) and (yield from is_held(context, index, there)):
                raise ConflictError("ConditionNotMet", "The entity got the value again.")
            yield from _change(index.table, RowOperation(Verb.DELETE, Row(key, {}), there.etag))
        return
    row = index_rows.row_of(index, version, context.sealing)
    assert row is not None
    if there is not None and is_claimed_elsewhere(index):
        other = index_rows.member_of(there, is_local=False)
        if other != member and (yield from is_held(context, index, there)):
            raise unique_violation(index, key, None)
    if there is None:
        yield from _change(index.table, RowOperation(Verb.INSERT, row))
    elif not _is_current(context, index, there, row):
        yield from _change(index.table, RowOperation(Verb.REPLACE, row, there.etag))


def _is_current(context: Context, index: AnyIndex, there: Row, wanted: Row) -> bool:
    """Return whether a copy has the expected content, of this generation of its entity."""
    if shows_secrets(there, wanted):
        return False
    try:
        return _content_of(context, index, there) == _content_of(context, index, wanted)
    except (DamageError, EncryptionKeyError):
        return False  # because an unreadable copy is written again


def _content_of(context: Context, index: AnyIndex, row: Row) -> dict[str, Any]:
    opened = open_row(row, index.owner, context.sealing, table=index.table)
    return {name: each for name, each in opened.properties.items() if name != encryption.SEAL}


def _change(table: str, operation: RowOperation) -> Steps[None]:
    try:
        yield from ask(WriteRows(table, (operation,)))
    except EntityNotFoundError:
        if operation.verb is not Verb.DELETE:
            raise


def _settle_list(
    index: ListIndex[Any], key: RowKey, there: Row | None, name: list[str], *, is_wanted: bool
) -> Steps[None]:
    members = [] if there is None else index_rows.members_in(there.properties)
    if (name in members) == is_wanted:
        return
    kept = [*members, name] if is_wanted else [each for each in members if each != name]
    row = index_rows.list_row(index, key, kept, _etag(there))
    verb = Verb.INSERT if there is None else Verb.REPLACE if kept else Verb.DELETE
    yield from _change(index.table, RowOperation(verb, row, row.etag or "*"))


def list_blob_prefix(index: ListIndex[Any]) -> str:
    return f"{index.owner.name}/{index.name}/"


def list_blob_name(index: ListIndex[Any], key: RowKey) -> str:
    """Return the name of the blob of one value (the guide's option 1)."""
    return f"{list_blob_prefix(index)}{_hex(key.partition)}/{_hex(key.row)}"


def list_blob_key(index: ListIndex[Any], blob: ListedBlob) -> RowKey:
    """Return the key of the list that a blob holds."""
    partition, _, row = blob.name.removeprefix(list_blob_prefix(index)).partition("/")
    metadata = {name.lower(): unquote(text) for name, text in blob.metadata.items()}
    return RowKey(
        metadata["partition"] if partition.startswith(_HASHED) else _unhex(partition),
        metadata["row"] if row.startswith(_HASHED) else _unhex(row),
    )


def _list_blob_metadata(key: RowKey) -> dict[str, str]:
    """Return the parts of a key that are too long for a blob name."""
    parts = {"partition": key.partition, "row": key.row}
    return {
        name: quote(text, safe="") for name, text in parts.items() if _hex(text).startswith(_HASHED)
    }


def _hex(text: str) -> str:
    is_plain = text.isascii() and text.replace("-", "").replace("_", "").isalnum()
    if len(text) > _NAME_PART_MAX:
        return _HASHED + sha256(text.encode()).hexdigest()
    return text if is_plain else "~" + text.encode().hex()


def _unhex(text: str) -> str:
    return bytes.fromhex(text[1:]).decode() if text.startswith("~") else text


def read_list_blob(index: ListIndex[Any], key: RowKey) -> Steps[_Listed]:
    try:
        blob = yield from ask(GetBlob(index.container, list_blob_name(index, key)))
    except ConflictError as error:
        if error.code != "ContainerNotFound":
            raise
        blob = None
    if blob is None:
        return _Listed([])
    return _Listed(index_rows.read_members(blob.content), blob.etag)


def _settle_blob(
    index: ListIndex[Any], key: RowKey, there: _Listed, name: list[str], *, is_wanted: bool
) -> Steps[None]:
    if (name in there.members) == is_wanted:
        return
    kept = [each for each in there.members if each != name] + ([name] if is_wanted else [])
    blob_name = list_blob_name(index, key)
    if not kept:
        if not (yield from ask(DeleteBlob(index.container, blob_name, there.etag))):
            raise _list_changed()
        return
    content, metadata = msgspec.json.encode(sorted(kept)), _list_blob_metadata(key)
    put = PutBlob(index.container, blob_name, content, metadata, there.etag)
    if (yield from put_blob(put)) is None:
        raise _list_changed()


def _list_changed() -> ConflictError:
    return ConflictError("ConditionNotMet", "The list was changed by another worker.")


# ---------------------------------------------------------------------------------------------
# Derived fields of owners elsewhere


def settle_owner(context: Context, dependent: Dependent, key: RowKey) -> Steps[None]:
    """Derive a field of one owner again, from the stored sources."""
    owner, field, marker = dependent.owner, dependent.field, dependent.marker
    for _ in range(ROUNDS_MAX):
        stored, _ = yield from load_as(context, owner, key)
        if stored is None or field.name not in stored.model.fields:
            return
        source = stored.model.source_of(field)
        if isinstance(marker, CopiedFrom):
            source_key = derived_fields.source_key(source, marker, stored.values)
            found = None
            if source_key is not None:
                derived_fields.check_public(source, marker, source_key)
                found, _ = yield from load_as(context, source, source_key)
            value = None if found is None else found.values[marker.field]
        else:
            value = yield from summarise(context, source, marker, stored.values)
        if value == stored.values[field.name]:
            return
        change = Change(
            stored.model,
            stored.origin,
            dict(stored.values),
            derived={field.name: value},
        )
        try:
            yield from write(context, [change])
        except ConflictError:
            continue  # because the owner changed: read it again
        # Check once more: the source may have changed after it was read.
    raise _source_kept_changing(dependent.name, key)


# ---------------------------------------------------------------------------------------------
# Blobs


def _remove_blobs(context: Context, model: EntityType[Any], touched: Touched) -> Steps[None]:
    """Remove blobs that the entity does not refer to any more; they belonged to no other entity."""
    stored, _ = yield from load_as(context, model, touched.key)
    for container, name in touched.blobs:
        if not refers_to(stored, container, name):
            yield from ask(DeleteBlob(container, name))


def remove_blob(container: str, name: str, etag: str) -> Steps[None]:
    """Remove a blob if its etag is unchanged."""
    yield from ask(DeleteBlob(container, name, etag))


def refers_to(stored: Stored | None, container: str, name: str) -> bool:
    """Return whether an entity refers to a blob, even in a property that its type does not know."""
    if stored is None:
        return False
    references = stored.references().values()
    return any(each.container == container and each.name == name for each in references) or any(
        isinstance(value, str) and name in value for value in stored.origin.extra.values()
    )


def _source_kept_changing(what: str, key: RowKey) -> StoreBusyError:
    return too_many_conflicts(
        f"The source of {what!r} kept changing; gave up after {ROUNDS_MAX} attempts.",
        facts=key.facts,
        hint="Nothing needs to be done: it is retried later.",
    )
