"""Entities of a page of which only the stored documents are read. Pure.

A page of the usual metadata level is the documents one after the other: nothing needs the keys of
its entities, which their documents contain, or an object per entity. All checksums of a page are
computed and compared by a few calls in C, which takes a third of the instructions of a loop. The
one rule: on any doubt, `sound_entities` returns None, and `stored_entity` decides for each row.
"""

import struct
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import overload

from crc32c import crc32c

from partita.tables.entity import (
    CHECKED,
    CHECKSUM_BYTES,
    Entity,
    EntityKey,
    key_in_document,
    unpack_document,
)

_document_of = itemgetter(slice(None, -CHECKSUM_BYTES))
_seal_of = itemgetter(slice(-CHECKSUM_BYTES, None))


class StoredEntities(Sequence[Entity]):
    """Entities that are made from their documents when they are asked for."""

    __slots__ = ("_ticks", "documents")

    def __init__(self, ticks: Sequence[int], documents: Sequence[bytes]) -> None:
        self._ticks = ticks
        self.documents = documents

    def __len__(self) -> int:
        return len(self.documents)

    @overload
    def __getitem__(self, index: int) -> Entity: ...
    @overload
    def __getitem__(self, index: slice) -> "StoredEntities": ...
    def __getitem__(self, index: int | slice) -> "Entity | StoredEntities":
        if isinstance(index, slice):
            return StoredEntities(self._ticks[index], self.documents[index])
        document = self.documents[index]
        return Entity(*key_in_document(document), self._ticks[index], document)

    def __iter__(self) -> Iterator[Entity]:
        for ticks, document in zip(self._ticks, self.documents, strict=True):
            yield Entity(*key_in_document(document), ticks, document)

    def only(self, positions: Sequence[int]) -> "StoredEntities":
        """Return the entities at some positions."""
        ticks, documents = self._ticks, self.documents
        return StoredEntities(
            [ticks[position] for position in positions],
            [documents[position] for position in positions],
        )

    def key_of(self, index: int) -> EntityKey:
        return key_in_document(self.documents[index])


def printed_keys(document: bytes, *, has_etag: bool) -> bytes:
    """Return the members of a document up to its keys, with the closing brace of an entity.

    >>> document = b'"odata.etag":"e","PartitionKey":"p","RowKey":"r","Timestamp":"t"'
    >>> printed_keys(document, has_etag=False)
    b'"PartitionKey":"p","RowKey":"r"}'
    """
    start = 0 if has_etag else document.index(b'"PartitionKey":')
    # In a JSON text, each quote has a backslash before it, so that this is not part of a key.
    return document[start : document.index(b',"Timestamp":"', start)] + b"}"


def sound_entities(rows: Sequence[tuple[int, bytes]]) -> StoredEntities | None:
    """Return the entities of rows of ticks and stored documents; None if one is damaged."""
    if not rows:
        return StoredEntities((), ())
    ticks: tuple[int, ...]
    stored: tuple[bytes, ...]
    ticks, stored = zip(*rows, strict=True)
    documents = list(map(_document_of, stored))
    seals = bytearray().join(map(_seal_of, stored))
    if len(seals) == CHECKSUM_BYTES * len(rows):
        marks = seals[CHECKSUM_BYTES - 1 :: CHECKSUM_BYTES]
        del seals[CHECKSUM_BYTES - 1 :: CHECKSUM_BYTES]
        # As in `pack_document`; crc32c takes only the low 32 bits of the ticks.
        computed = struct.pack(f">{len(rows)}I", *map(crc32c, documents, ticks))
        if marks == CHECKED * len(rows) and seals == computed:
            return StoredEntities(ticks, documents)
    return _one_by_one(ticks, stored)


def _one_by_one(ticks: Sequence[int], stored: Sequence[bytes]) -> StoredEntities | None:
    """Accept documents without a checksum, too: those of format 1."""
    documents: list[bytes] = []
    for each, kept in zip(ticks, stored, strict=True):
        document = unpack_document(each, kept)
        if document is None:
            return None
        documents.append(document)
    return StoredEntities(ticks, documents)
