"""What a collection's description says about its values, and which types it refuses."""

from itertools import islice

import msgspec

from partita.errors import SchemaError
from partita.reliable.collections.concurrent_queue import HEADER_BYTES
from partita.reliable.state.state import Collection, Description
from partita.reliable.values.layout import Misfit, combined
from partita.reliable.values.serialization import ValueCodec

ROWS_TRIED = 100
"""Rows that are read with a type where the description has no layout to compare it with."""


def described(collection: Collection, values: ValueCodec[object]) -> Description:
    """Return the description with the layout of a type added; refuse a type that does not fit."""
    description, version = collection.description, values.version
    written = description.written_version
    layouts = {key: kept for key, kept in description.layouts.items() if key >= written}
    stored = layouts.get(version)
    if not layouts and version == written and description.fingerprint != values.fingerprint:
        _refuse_unreadable(collection, values)
    try:
        layouts[version] = values.layout if stored is None else combined(stored, values.layout)
    except Misfit as misfit:
        raise _changed(description, values, misfit.path, misfit.reason) from None
    if layouts == description.layouts:
        return description
    layouts = dict(sorted(layouts.items()))
    if version < max(layouts):
        return msgspec.structs.replace(description, layouts=layouts)
    return msgspec.structs.replace(
        description, layouts=layouts, value=values.type_name, fingerprint=values.fingerprint
    )


def _refuse_unreadable(collection: Collection, values: ValueCodec[object]) -> None:
    """Try a type on rows that an older release has described by a hash alone."""
    start = HEADER_BYTES if collection.description.kind == "concurrent_queue" else 0
    rows = list(islice(collection.rows.values.values(), ROWS_TRIED))
    if rows and not any(values.can_read(row[start:]) for row in rows):
        reason = f"none of {len(rows)} rows can be read as one"
        raise _changed(collection.description, values, "", reason)


def _changed(
    description: Description, values: ValueCodec[object], path: str, reason: str
) -> SchemaError:
    where = f" at {path}" if path else ""
    return SchemaError(
        "ValueTypeChanged",
        f"{description.name!r} holds values of type {description.value} in version "
        f"{values.version}; {values.type_name} does not fit{where}: {reason}.",
        facts={
            "collection": description.name,
            "stored": description.value,
            "given": values.type_name,
            "version": values.version,
            "path": path,
        },
        hint=f"Open it with the type that it was written with, or with version="
        f"{values.version + 1} and an @upcast that changes older values where they must change.",
    )
