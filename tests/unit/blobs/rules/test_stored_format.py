"""The stored properties of blobs and containers, and those that a newer version wrote."""

import msgspec
import pytest
from crc32c import crc32c

from partita.blobs.rules.stored_format import (
    History,
    StoredBlob,
    StoredContainer,
    decode_blob,
    decode_container,
    encode,
)
from partita.errors import FormatVersionError

BLOB = StoredBlob("BlockBlob", 1, 2, length=3, metadata={"a": "b"})
CONTAINER = StoredContainer(1, metadata={"a": "b"})


def with_fields(facts: bytes, fields: list[object]) -> bytes:
    """Return the stored form with fields of a newer version, or without the last ones."""
    known = msgspec.msgpack.decode(facts[4:])
    raw = msgspec.msgpack.encode([*known, *fields])
    return crc32c(raw).to_bytes(4) + raw


def test_what_was_encoded_is_decoded() -> None:
    assert decode_blob(encode(BLOB)) == BLOB
    assert decode_container(encode(CONTAINER)) == CONTAINER


def test_fields_of_an_earlier_version_get_their_defaults() -> None:
    raw = msgspec.msgpack.encode(["BlockBlob", 1, 2, 3])

    assert decode_blob(crc32c(raw).to_bytes(4) + raw) == StoredBlob("BlockBlob", 1, 2, length=3)


def test_fields_of_a_newer_version_are_refused_because_a_write_would_lose_them() -> None:
    with pytest.raises(FormatVersionError, match="written by a newer version"):
        decode_blob(with_fields(encode(BLOB), [None, None, "retention"]))
    with pytest.raises(FormatVersionError, match="written by a newer version"):
        decode_container(with_fields(encode(CONTAINER), [None, False, None, None, "retention"]))


def test_fields_have_the_order_of_format_2() -> None:
    """A field that is added at the end raises FORMAT_VERSION of partita.blobs.store.rows."""
    assert len(StoredBlob.__struct_fields__) == 19
    assert len(StoredContainer.__struct_fields__) == 9


@pytest.mark.parametrize(
    "blob",
    [
        msgspec.structs.replace(BLOB, encryption_scope="scope"),
        msgspec.structs.replace(BLOB, history=History(1)),
        msgspec.structs.replace(BLOB, history=History(None, 1, 2, was_blob=True)),
    ],
)
def test_the_fields_of_format_2_are_written_if_they_have_a_value(blob: StoredBlob) -> None:
    assert decode_blob(encode(blob)) == blob
    assert len(msgspec.msgpack.decode(encode(blob)[4:])) == 19


def test_blobs_and_containers_without_the_fields_of_format_2_are_those_of_format_1() -> None:
    """Front ends of both versions work on one database during an upgrade."""
    assert len(msgspec.msgpack.decode(encode(BLOB)[4:])) == 17
    assert len(msgspec.msgpack.decode(encode(CONTAINER)[4:])) == 5
    assert decode_container(encode(CONTAINER)) == CONTAINER


@pytest.mark.parametrize(
    "container",
    [
        msgspec.structs.replace(CONTAINER, encryption_scope="scope"),
        msgspec.structs.replace(CONTAINER, denies_other_scopes=True),
        msgspec.structs.replace(CONTAINER, deleted_at=1, expires_at=2),
    ],
)
def test_containers_of_format_2_are_decoded(container: StoredContainer) -> None:
    assert decode_container(encode(container)) == container
