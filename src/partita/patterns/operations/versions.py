"""Versions of entities that leave the process: in a form, an HTTP header or a message.

`etag_of` is the version of an object, as text. `save` and `delete` with `if_match` accept an object
that was rebuilt from that message: the stored entity is read, compared with the version, and
replaced under its etags, so that indexes, unknown properties and blobs are handled as for a loaded
object. `patch_by_key` sends some fields without reading the entity where one merge suffices.
"""

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import unquote

from partita.errors import EntityExistsError, EntityNotFoundError, ETagMismatchError, UsageError
from partita.patterns.following.moving import load_unmoving
from partita.patterns.operations import verbs
from partita.patterns.planning.columns import find_field
from partita.patterns.protocol.calls import Steps
from partita.patterns.types.decorators import EntityType, Origin, entity_type
from partita.patterns.types.projections import refuse_partial
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import locate
from partita.patterns.writing.merges import apply_merge
from partita.patterns.writing.rows import Stored
from partita.patterns.writing.write import Change, Written, wait_before, write

T = TypeVar("T")

ANY = "*"
"""As in HTTP: whatever is stored matches, but something must be stored."""
_DATED = re.compile(r"""W/"datetime'([^']+)'"$""")
"""The etags of Azure Table storage, Azurite and Partita contain the timestamp."""


def etag_of(entity: object, /) -> str:
    """Return the version that was loaded or saved, as text for an ETag header or a hidden field.

    It is the etag of the service; of an entity in several rows, a hash of their etags.

    >>> from partita.patterns import entity
    >>> @entity(table="staff", partition="{dept}", row="{id:06d}")
    ... class Porter:
    ...     dept: str
    ...     id: int
    >>> etag_of(Porter(dept="Gate", id=1))
    Traceback (most recent call last):
    ...
    partita.errors.UsageError: NotLoaded: The version of this Porter is not known. ...
    """
    origin = _origin_of(entity)
    if origin is None or not origin.etags or not all(origin.etags):
        raise UsageError(
            "NotLoaded",
            f"The version of this {type(entity).__name__} is not known.",
            hint="Load it by its keys. An object that was merged or read from an index has no "
            "etag.",
        )
    return _text_of(origin)


def timestamp_of(entity: object, /) -> datetime | None:
    """Return when the loaded or saved version was written; None if the service did not say."""
    origin = _origin_of(entity)
    if origin is None:
        return None
    if origin.timestamp is not None:
        return origin.timestamp
    dated = _DATED.match(origin.etags[0]) if origin.etags else None
    if dated is None:
        return None
    seconds, _, fraction = unquote(dated[1]).rstrip("Z").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6]:<06}").replace(tzinfo=UTC)


def _origin_of(entity: object) -> Origin | None:
    refuse_partial(entity)
    return entity_type(type(entity)).origin(entity)


def _text_of(origin: Origin) -> str:
    if len(origin.etags) < 2:
        return "".join(origin.etags)
    digest = hashlib.blake2b("\0".join(origin.etags).encode(), digest_size=12).hexdigest()
    return f'W/"{digest}"'


# ---------------------------------------------------------------------------------------------
# Save and delete a given version


def save_version(context: Context, model: EntityType[T], entity: T, if_match: str) -> Steps[T]:
    """Replace the stored entity if it still has this version."""
    change = verbs.change_of(model, entity)
    written = yield from _write_version(context, change, if_match)
    return verbs.remember(entity, written)


def delete_version(
    context: Context, model: EntityType[Any], entity: Any, if_match: str
) -> Steps[None]:
    """Delete the stored entity if it still has this version."""
    change = verbs.change_of(model, entity)
    change.after = None
    yield from _write_version(context, change, if_match)
    change.model.set_origin(entity, None)


def _write_version(context: Context, change: Change, if_match: str) -> Steps[Written]:
    own, key = change.model, change.key
    for attempt in range(context.options.attempts_max):
        yield from wait_before(context, attempt)
        stored = yield from verbs.load_own(context, own, key)
        if stored is None:
            raise verbs.absent(own, key)
        _check_version(stored, if_match, change.entity)
        change.before = stored.origin
        try:
            [written] = yield from write(context, [change])
        except (EntityNotFoundError, ETagMismatchError):
            if if_match != ANY:
                raise
            continue  # because any version is accepted: read the current one
        return written
    raise verbs.busy(own, key, context.options.attempts_max)


def _check_version(stored: Stored, if_match: str, entity: object = None) -> None:
    if if_match in (ANY, _text_of(stored.origin)):
        return
    error = ETagMismatchError(
        "UpdateConditionNotSatisfied",
        f"The stored {stored.model.name} has another version than if_match=.",
        facts={"table": stored.model.table, **stored.origin.key.facts},
        hint="Load it, show the difference to the user, and apply the change again.",
    )
    error.entity = entity
    raise error


# ---------------------------------------------------------------------------------------------
# Some fields by key


def patch_by_key(
    context: Context,
    model: EntityType[Any],
    given: Mapping[str, Any],
    changes: Mapping[str, Any],
    *,
    if_match: str | None = None,
    create: bool = False,
) -> Steps[str]:
    """Write some fields of the entity with a key; return its new etag, "" if the answer was lost.

    One merge request if the type has no followers; else the entity is read first.
    """
    _check_changes(model, changes)
    if create:
        _check_creatable(model, changes, if_match)
    key = yield from locate(model, verbs.key_of(model, given))
    is_alone = model.parent is None and not model.children  # a merge would change the type
    if is_alone and verbs.can_merge_unread(model, changes, None):
        change = Change(model, None, {**given, **changes}, is_merge=True, is_blind=True)
        change.given, change.must_exist = dict(changes), not create
        change.if_match = ANY if if_match is None else if_match
        [written] = yield from write(context, [change])
        return written.etag
    for attempt in range(context.options.attempts_max):
        yield from wait_before(context, attempt)
        stored = yield from load_unmoving(context, model, key)
        if stored is None and not create:
            raise verbs.absent(model, key)
        if stored is not None and if_match is not None:
            _check_version(stored, if_match)
        try:
            [written] = yield from write(context, [_change_of(model, stored, given, changes)])
        except (EntityExistsError, EntityNotFoundError, ETagMismatchError):
            if if_match not in (None, ANY):
                raise
            continue  # because another writer changed it: merge with the current entity
        assert written.origin is not None
        return _text_of(written.origin)
    raise verbs.busy(model, key, context.options.attempts_max)


def _change_of(
    model: EntityType[Any],
    stored: Stored | None,
    given: Mapping[str, Any],
    changes: Mapping[str, Any],
) -> Change:
    if stored is None:
        return Change(model, None, model.values(model.build({**given, **changes})))
    after = apply_merge(stored.model, stored.values, changes)
    return Change(stored.model, stored.origin, after, is_merge=True)


def _check_changes(model: EntityType[Any], changes: Mapping[str, Any]) -> None:
    for name in changes:
        field = find_field(model, name)
        if field.is_key or field.derived is not None:
            raise UsageError(
                "UnknownField",
                f"{model.name}.{name} is a key field or derived from other entities.",
                facts={"type": model.name, "field": name},
                hint="Use move() to change key fields.",
            )
    if not changes:
        raise UsageError(
            "UnknownField",
            "patch_by_key() needs a field to write.",
            hint='Use patch_by_key({"dept": "Sales", "id": 7}, email="...").',
        )


def _check_creatable(
    model: EntityType[Any], changes: Mapping[str, Any], if_match: str | None
) -> None:
    """Refuse to create an entity that could not be read back."""
    if if_match is not None:
        raise UsageError(
            "UnknownOption",
            "create=True and if_match= exclude each other.",
            hint="Leave one of them out: a new entity has no version.",
        )
    missing = [
        field.name
        for field in model.fields.values()
        if not (
            field.is_key
            or field.name in changes
            or field.slot_names
            or field.codec.is_optional
            or field.default is not None
        )
    ]
    if missing:
        raise UsageError(
            "FieldMissing",
            f"{model.name}.{missing[0]} has no default; a new entity needs a value for it.",
            facts={"type": model.name, "fields": missing},
            hint="Pass it too, or leave create=True out to change an existing entity only.",
        )
