"""The size of an operation in the body of an entity group transaction. Pure."""

import json
from datetime import datetime
from json.encoder import encode_basestring_ascii
from urllib.parse import quote
from uuid import UUID

from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.row_json import Foreign
from partita.patterns.protocol.values import Value

ENVELOPE_BYTES = 512
"""The outer boundaries of a batch and the headers of its change set (measured: 300)."""
OPERATION_BYTES = 1024
"""Boundary, request line and headers of one operation, including the host (measured: 500)."""
MEMBER_BYTES = 40
"""Quotes, commas and the type annotation of one property (measured: at most 37)."""
_SCALAR_BYTES = 32
"""The text of a number, a bool or a time in quotes."""


def wire_bytes(operation: RowOperation) -> int:
    """Return the maximum size of an operation in a batch.

    Assumes the most verbose encoding: JSON in ASCII, every property with its type, keys in both
    address and body.
    """
    row = operation.row
    size = OPERATION_BYTES + len(operation.etag)
    for key in (row.key.partition, row.key.row):
        size += _address_bytes(key) + len(encode_basestring_ascii(key)) + MEMBER_BYTES
    if operation.verb is Verb.DELETE:
        return size
    for name, value in row.properties.items():
        size += MEMBER_BYTES + 2 * len(encode_basestring_ascii(name)) + _value_bytes(value)
    return size


def _address_bytes(key: str) -> int:
    if key.isascii() and key.isalnum():
        return len(key)
    return len(quote(key.replace("'", "''"), safe="", errors="replace"))


def _value_bytes(value: Value | Foreign) -> int:
    if isinstance(value, str):
        return len(encode_basestring_ascii(value))
    if isinstance(value, bytes):
        return 2 + (len(value) + 2) // 3 * 4
    if isinstance(value, bool | int | float | datetime):
        return _SCALAR_BYTES
    if isinstance(value, UUID):
        return 38
    return len(value.annotation) + len(json.dumps(value.stored))
