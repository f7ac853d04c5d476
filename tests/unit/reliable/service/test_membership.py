"""The record of a service, and one that a newer version wrote."""

import msgspec
import pytest

from partita.errors import FormatVersionError
from partita.reliable.service.membership import ServiceRecord, decode_record

RECORD = ServiceRecord(1, 2, 1, ("a",), ((0,), (0,)))


def test_record_is_read() -> None:
    assert decode_record(msgspec.msgpack.encode(RECORD)) == RECORD


def test_record_of_a_newer_version_is_refused_because_a_write_would_lose_its_fields() -> None:
    newer = {"format": 2, "shape": {"partitions": 2}}

    with pytest.raises(FormatVersionError, match="has format 2; this version reads 1"):
        decode_record(msgspec.msgpack.encode(newer))
