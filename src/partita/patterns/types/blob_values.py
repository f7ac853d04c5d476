"""Large values in blobs (the guide's large entities pattern): names and references.

A blob is written before the entity that references it, and removed after the last entity that
did: an entity never references a missing blob, and a crash leaves an orphan at worst. Every write
uses a new blob name, so that a blob without references can be removed immediately.
"""

import hashlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, unquote

from partita.errors import LimitExceededError
from partita.patterns.fields.fields import Field
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.protocol.values import RowKey
from partita.tables import edm

BLOB_BYTES_MAX = 256 * 1024 * 1024
"""The maximum size of one value, which is held in memory."""


def folder_of(table: str, key: RowKey) -> str:
    """Return the prefix of the names of all blobs of an entity."""
    return f"{table.lower()}/{_part(key.partition)}/{_part(key.row)}/"


def reference_to(
    content: bytes, *, folder: str, property_name: str, container: str, write_id: str
) -> LargeValue:
    digest = hashlib.sha256(content).hexdigest()
    name = f"{folder}{property_name}/{digest}-{write_id}"
    return LargeValue(name, len(content), digest, container)


def blob_metadata(table: str, key: RowKey) -> dict[str, str]:
    """Return the metadata that names the entity of a blob, for the removal of orphans."""
    return {
        "table": table,
        "partition": quote(key.partition, safe=""),
        "row": quote(key.row, safe=""),
    }


def entity_of(metadata: Mapping[str, str]) -> tuple[str, RowKey] | None:
    """Return table and key of the entity of a blob; None if it has no such metadata."""
    lowered = {name.lower(): value for name, value in metadata.items()}
    if not {"table", "partition", "row"} <= set(lowered):
        return None
    return lowered["table"], RowKey(unquote(lowered["partition"]), unquote(lowered["row"]))


def to_content(field: Field, value: Any) -> bytes | None:
    """Return the bytes of a value for a blob; None for None."""
    stored = field.codec.encode(value)
    if stored is None:
        return None
    content = stored.encode() if isinstance(stored, str) else stored
    assert isinstance(content, bytes)
    if len(content) > BLOB_BYTES_MAX:
        raise LimitExceededError(
            "ValueTooLarge",
            f"{field.name!r} has {len(content)} bytes; the limit is {BLOB_BYTES_MAX}.",
            facts={"field": field.name},
            hint="Declare the field as LargeValue, and write it in chunks: table.large(entity, "
            f"{field.name!r}).write(chunks).",
        )
    return content


def from_content(field: Field, content: bytes) -> Any:
    """Return the value of the bytes that `to_content` returned."""
    return field.codec.decode(content if field.codec.edm == edm.BINARY else content.decode())


def _part(text: str) -> str:
    # A hash replaces texts that are empty, long, or only dots, which clients would resolve.
    quoted = quote(text, safe="")
    if quoted and len(quoted) <= 200 and quoted.strip("."):
        return quoted
    return "~" + hashlib.sha256(text.encode()).hexdigest()


def upload_name(folder: str, property_name: str, write_id: str) -> str:
    """Return the name of a blob that is written in chunks, before its hash is known."""
    return f"{folder}{property_name}/chunks-{write_id}"
