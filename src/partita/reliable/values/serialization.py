"""The encoding of values, which all later versions of the code can read.

    value      header | expiry, if the header says so | MessagePack
    header     2 bytes big-endian: top bit has expiry, low 15 bits schema version
    expiry     8 bytes big-endian, ticks

Structs and dataclasses are maps with field names, never arrays. Older rows are converted by
upcasts when they are read; fields that this code does not know are kept when it writes a row.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, Generic, Literal, TypeVar

import msgspec

from partita.errors import DamageError, LimitExceededError, PartitaError, SchemaError
from partita.reliable.values import limits
from partita.reliable.values.differences import differences, first_difference
from partita.reliable.values.foreign_types import read, written
from partita.reliable.values.frozen_types import (
    check_frozen,
    check_storable,
    fingerprint,
    has_lookalikes,
    type_node,
    type_text,
)
from partita.reliable.values.layout import layout_of
from partita.reliable.values.schema import VERSION_MAX, Schema, Step, Steps, downcast, upcast
from partita.reliable.values.value_shape import Outline, encode_plain, merge_into

__all__ = [
    "Schema",
    "ValueCache",
    "ValueCodec",
    "check_frozen",
    "decode_result",
    "downcast",
    "encode_result",
    "stored_expiry",
    "stored_version",
    "upcast",
]

V = TypeVar("V")

CACHED_ROWS_MAX = 65_536
"""Decoded values that one dictionary keeps beside their bytes."""
DROPPED_AT_ONCE = 256
"""Decoded values that a full cache drops in one turn of the event loop."""
MANY_BYTES_MAX = 256 * 1024
"""More bytes are not copied together: their values are decoded one by one."""
_HAS_EXPIRY = 0x8000
_ARRAY = 0xDD
"""The first byte of an array of MessagePack; its length follows in four bytes."""
_ARRAY_OF = struct.Struct(">BI")
_head_of = itemgetter(slice(2))
_payload_of = itemgetter(slice(2, None))
_ordered = msgspec.msgpack.Encoder(order="deterministic", enc_hook=written)
_unordered = msgspec.msgpack.Encoder(enc_hook=written)
_plain = msgspec.msgpack.Decoder()


class Cached(msgspec.Struct, Generic[V], gc=False):
    """A value with the bytes that it was decoded from.

    The garbage collector does not visit it, as there may be many; no value refers to the cache.
    """

    stored: bytes
    value: V


class ValueCache(Generic[V]):
    """Decoded values by encoded key, each with the bytes that it was decoded from."""

    def __init__(self) -> None:
        self._values: dict[bytes, Cached[V]] = {}

    def find(self, key: bytes, stored: bytes) -> Cached[V] | None:
        """Return the value of these bytes; None if they are not cached."""
        cached = self._values.get(key)
        return cached if cached is not None and cached.stored is stored else None

    def find_many(self, keys: Iterable[bytes]) -> Iterator[Cached[V] | None]:
        """Yield what is kept of some keys, perhaps of other bytes; nothing if it is empty."""
        return map(self._values.get, keys) if self._values else iter(())

    def put(self, key: bytes, stored: bytes, value: V) -> None:
        """Keep a value; a full cache drops some of the oldest."""
        values = self._values
        if len(values) >= CACHED_ROWS_MAX and key not in values:
            for oldest in list(islice(values, DROPPED_AT_ONCE)):
                del values[oldest]
        values[key] = Cached(stored, value)

    def discard(self, key: bytes) -> None:
        self._values.pop(key, None)

    def clear(self) -> None:
        self._values.clear()


class ValueCodec(Generic[V]):
    """Encodes and decodes the values of one type."""

    def __init__(
        self,
        value_type: object,
        *,
        schema: Schema = Schema(),  # noqa: B008 - frozen
        steps: Sequence[Step] = (),
        mutable: Literal["refuse", "copy"] = "refuse",
        preserve_unknown: bool = True,
    ) -> None:
        if mutable not in ("refuse", "copy"):
            raise SchemaError(
                "InvalidSchema",
                f"mutable={mutable!r} is neither 'refuse' nor 'copy'.",
                hint='Pass mutable="copy" for types that can be changed in place.',
            )
        if mutable == "refuse":
            check_frozen(value_type)
        node = type_node(value_type)
        check_storable(node)
        self.is_copied = mutable == "copy"
        """Whether each read returns a new object, which can be changed in place."""
        self.type_name = type_text(node)
        self.fingerprint = fingerprint(node)
        self.layout = layout_of(node)
        self.schema = schema
        self.version = schema.version
        self._outline = Outline(node)
        self._preserves = preserve_unknown and self._outline.has_fields
        self._has_lookalikes = mutable == "refuse" and has_lookalikes(node)
        self._decoder: msgspec.msgpack.Decoder[V] = msgspec.msgpack.Decoder(
            value_type, dec_hook=read
        )
        self._many_decoder: msgspec.msgpack.Decoder[list[V]] = msgspec.msgpack.Decoder(
            list[value_type],  # type: ignore[valid-type]  # a type that the caller has given
            dec_hook=read,
        )
        self._steps = Steps(schema, steps)
        self._header = schema.version.to_bytes(2)
        self._header_with_expiry = (_HAS_EXPIRY | schema.version).to_bytes(2)

    @property
    def keeps_unknown(self) -> bool:
        """Whether values may have fields that this type does not know, which are kept."""
        return self._preserves

    @property
    def loses_unknown(self) -> tuple[str, ...]:
        """Paths of lists and sets whose changed elements lose the fields unknown to this type.

        No field is lost if the field that identifies an element is marked with IDENTITY.
        """
        return tuple(self._outline.loses) if self._preserves else ()

    def encode(
        self, value: V, *, version: int, stored: bytes | None = None, expires: int = 0
    ) -> bytes:
        """Return the bytes to store, which this codec can decode.

        `stored` is the current row, whose fields that this type does not know are kept.
        """
        payload = self._checked_payload(value)
        if stored is not None and self._preserves and self._knows_less_than(stored):
            payload = self._merged(payload, stored)
        if version != self.version:
            payload = self._downcasted(payload, version)
        if len(payload) > limits.VALUE_BYTES_MAX:
            raise _too_large("value", "ValueTooLarge", len(payload), limits.VALUE_BYTES_MAX)
        if expires:
            return (_HAS_EXPIRY | version).to_bytes(2) + expires.to_bytes(8) + payload
        return version.to_bytes(2) + payload

    def decode(self, stored: bytes) -> V:
        """Return the value of stored bytes, a new object on each call."""
        if stored[:2] == self._header:
            return self._decode_payload(stored[2:])
        if stored[:2] == self._header_with_expiry:
            return self._decode_payload(stored[10:])
        version, payload = _opened(stored)
        return self._decode_payload(self._steps.up(payload, version))

    def decode_many(self, stored: Sequence[bytes]) -> list[V] | None:
        """Return the values of many stored bytes by one call; None if `decode` must read each.

        Only values of the newest version without an expiry are read so, and only without an error.
        """
        heads = b"".join(map(_head_of, stored))
        if heads != self._header * len(stored) or sum(map(len, stored)) > MANY_BYTES_MAX:
            return None
        front = _ARRAY_OF.pack(_ARRAY, len(stored))
        try:
            return self._many_decoder.decode(front + b"".join(map(_payload_of, stored)))
        except Exception:  # noqa: BLE001 - `decode` raises the error of the damaged one
            return None

    def can_read(self, stored: bytes) -> bool:
        """Return whether stored bytes decode as this type and have at least one of its fields."""
        try:
            version, payload = _opened(stored)
            payload = self._steps.up(payload, version)
            self._decode_payload(payload)
        except PartitaError:
            return False
        fields, names = _plain.decode(payload), self.layout[0].names
        return not (isinstance(fields, dict) and fields and names) or not fields.keys().isdisjoint(
            names
        )

    def mutated_path(self, value: V, stored: bytes) -> str | None:
        """Return the path at which a value differs from the bytes that it was encoded to.

        None means that it does not differ; the empty path is the value itself.
        """
        try:
            payload = self._dump(value)
        except Exception:  # noqa: BLE001 - a value that cannot be encoded any more was changed
            return first_difference(value, self.decode(stored)) or ""
        if payload == stored[2:] and stored[:2] == self._header:
            return None
        fresh = self.decode(stored)
        as_read = self._dump(fresh)
        if payload == as_read or self._is_as_written(payload, stored):
            return None
        # A default that is different on each call, for a field that the row does not have, is not
        # a change.
        unstable = set(differences(fresh, self.decode(stored)))
        return next((path for path in differences(value, fresh) if path not in unstable), None)

    def _is_as_written(self, payload: bytes, stored: bytes) -> bool:
        """Return whether writing the value over the row again would change nothing.

        A downcast may lose fields that the value still has, so that the row decodes to another.
        """
        version, before = _opened(stored)
        try:
            if self._preserves:
                payload = self._merged(payload, stored)
            after = self._downcasted(payload, version)
        except PartitaError:
            return False  # there is no downcast, or it does not accept the value
        return encode_plain(_plain.decode(after)) == encode_plain(_plain.decode(before))

    # Writing

    def _checked_payload(self, value: V) -> bytes:
        """Encode a value and verify that it decodes to an equal value.

        msgspec does not check types when it encodes, so that only decoding shows whether a value
        has its type. Decoding and comparing run in C and are faster than a check in Python.
        """
        try:
            payload = self._dump(value)
            again = self._decoder.decode(payload)
            is_same = again == value
        except Exception as error:
            raise self._unwritable(value, error) from error
        # A set equals a frozenset and a bytearray equals bytes, but neither has a hash.
        if not is_same or (self._has_lookalikes and not _has_hash(value)):
            path = first_difference(value, again)
            if path is not None:
                raise self._wrong_value(path, "it would decode to another value")
        return payload

    def _dump(self, value: object) -> bytes:
        if not self._outline.needs_order:
            try:
                return _ordered.encode(value)
            except TypeError:
                pass  # a map with keys other than text, or a type that cannot be sorted
        plain = _plain.decode(_unordered.encode(value))
        return encode_plain(self._outline.in_order(plain))

    def _knows_less_than(self, stored: bytes) -> bool:
        payload = stored[_start(stored) :]
        if stored[:2] != self._header and self._steps.has_upcast(stored_version(stored)):
            return True
        return self._dump(self._decode_payload(payload)) != payload

    def _merged(self, payload: bytes, stored: bytes) -> bytes:
        version, before = _opened(stored)
        before = self._steps.up(before, version)
        known = _plain.decode(self._dump(self._decode_payload(before)))
        new = _plain.decode(payload)
        assert self._outline.top is not None
        merge_into(self._outline.top, _plain.decode(before), known, new)
        merged = encode_plain(new)
        self._decode_payload(merged)
        return merged

    def _downcasted(self, payload: bytes, version: int) -> bytes:
        older = self._steps.down(payload, version)
        if older is not payload:
            self._decode_payload(self._steps.up(older, version))
        return older

    def _decode_payload(self, payload: bytes) -> V:
        try:
            return self._decoder.decode(payload)
        except Exception as error:
            raise self._unreadable(error) from error

    # Errors

    def _unwritable(self, value: object, error: Exception) -> PartitaError:
        if isinstance(error, OverflowError):
            return LimitExceededError(
                "IntegerTooLarge",
                "An integer exceeds 64 bits.",
                facts={"type": self.type_name},
                hint="Declare the field as Decimal or str.",
            )
        if isinstance(error, RecursionError):
            return LimitExceededError(
                "ValueTooDeep",
                "The value is nested too deeply, or contains itself.",
                facts={"type": self.type_name},
                hint="Store a deep tree as a dictionary of nodes that refer to each other by key.",
            )
        path, reason = _explained(error)
        return self._wrong_value(path, reason, given=type(value).__name__)

    def _wrong_value(self, path: str, reason: str, given: str | None = None) -> SchemaError:
        where = f" at {path}" if path else ""
        facts = {"expected": self.type_name, "path": path}
        return SchemaError(
            "WrongValueType",
            f"The value is not a {self.type_name}{where}: {reason}.",
            facts=facts if given is None else {**facts, "given": given},
            hint="Pass a value whose fields have the declared types, such as tuples and not lists.",
        )

    def _unreadable(self, error: Exception) -> PartitaError:
        if not isinstance(error, msgspec.ValidationError):
            return DamageError(
                "ValueUnreadable",
                "A stored value is not valid MessagePack.",
                facts={"type": self.type_name},
                hint="Run `partita state verify`, and restore a backup if the state is damaged.",
            )
        path, reason = _explained(error)
        where = f" at {path}" if path else ""
        return SchemaError(
            "ValueMismatch",
            f"A stored value is not a {self.type_name}{where}: {reason}.",
            facts={"type": self.type_name, "path": path},
            hint="Give new fields a default; for other changes increase the version and add an "
            "@upcast for older rows.",
        )


def stored_version(stored: bytes) -> int:
    """Return the schema version of stored bytes."""
    if len(stored) < 2:
        raise _incomplete()
    return int.from_bytes(stored[:2]) & VERSION_MAX


def stored_expiry(stored: bytes) -> int:
    """Return when stored bytes expire, in ticks; 0 means never."""
    if not stored or stored[0] < 0x80:
        return 0
    if len(stored) < 10:
        raise _incomplete()
    return int.from_bytes(stored[2:10])


def _opened(stored: bytes) -> tuple[int, bytes]:
    return stored_version(stored), stored[_start(stored) :]


def _start(stored: bytes) -> int:
    return 10 if stored[:1] >= b"\x80" else 2


def _has_hash(value: object) -> bool:
    try:
        hash(value)
    except (TypeError, ValueError):  # ValueError: a writable memoryview
        return False
    return True


def encode_result(value: object, result_type: object = Any) -> bytes:
    """Return the bytes of the result of an idempotent transaction."""
    try:
        raw = _ordered.encode(value)
    except Exception as error:
        raise _result_not_encodable(value) from error
    if len(raw) > limits.RESULT_BYTES_MAX:
        raise _too_large("result", "ResultTooLarge", len(raw), limits.RESULT_BYTES_MAX)
    decode_result(raw, result_type)
    return raw


def decode_result(raw: bytes, result_type: object = Any) -> Any:
    """Return a stored result as the declared type (Any: as plain values)."""
    try:
        return msgspec.msgpack.decode(raw, type=result_type, dec_hook=read)
    except (msgspec.ValidationError, TypeError) as error:
        raise SchemaError(
            "ResultMismatch",
            "The stored result is not of the return type that the function declares.",
            facts={"expected": str(result_type)},
            hint="Correct the return annotation of the function; change the type only so that "
            "older results can be decoded.",
        ) from error
    except Exception as error:
        raise DamageError("ValueUnreadable", "A stored result cannot be decoded.") from error


def _explained(error: Exception) -> tuple[str, str]:
    """Return the path and the reason of msgspec's message, without a value in it."""
    text, _, path = str(error).partition(" - at `$")
    if not isinstance(error, msgspec.ValidationError):
        return "", f"it cannot be encoded ({type(error).__name__})"
    reason = (
        text if text.startswith(("Expected", "Object")) else "it violates a constraint of the type"
    )
    return path.rstrip("`").lstrip("."), reason


def _too_large(what: str, code: str, size: int, bytes_max: int) -> LimitExceededError:
    return LimitExceededError(
        code,
        f"The encoded {what} has {size} bytes; at most {bytes_max} are allowed.",
        facts={"bytes": size, "bytes_max": bytes_max},
        hint="Split it into several keys, or store large content elsewhere and keep its address.",
    )


def _result_not_encodable(value: object) -> SchemaError:
    return SchemaError(
        "ResultNotEncodable",
        "The result of an idempotent transaction cannot be encoded.",
        facts={"given": type(value).__name__},
        hint="Return scalars, tuples, Structs or dataclasses of them, or None.",
    )


def _incomplete() -> DamageError:
    return DamageError("ValueUnreadable", "A stored value ends in its header.")
