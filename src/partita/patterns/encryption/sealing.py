"""Sealing: each property is encrypted before it leaves the process, and bound to its entity.

    property      nonce 12 | AES-256-GCM of (type 1 | value) | tag 16, as Edm.Binary
    bound to      "P1", "value", table, partition key, row key, property, type, with their lengths
    _PartitaEnc   JSON: protocol, kid, algorithm, wrapped content key, sealed {property: type},
                  tag: nonce 12 | tag 16 over "P1", "list", table, keys and that list

Each write has its own content key. The format is described in docs/formats/sealed-properties.md.
Everything is pure except for the keyring: keys in a vault do I/O.
"""

import struct
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from uuid import UUID

import msgspec

from partita.errors import (
    EncryptionKeyError,
    FormatVersionError,
    InvalidPropertyError,
    LimitExceededError,
    SealBrokenError,
)
from partita.patterns.encryption import dotnet_v1
from partita.patterns.encryption.ciphers import AESGCM, FAILURES, NONCE_BYTES
from partita.patterns.encryption.keyring import KEY_BYTES, Keyring, WrappedKey
from partita.patterns.protocol.values import Instant, Int32, RowKey, Value
from partita.tables import edm, limits
from partita.ticks import Clock

SEAL = "_PartitaEnc"
"""The property that describes how an entity is sealed."""
PROTOCOL = "P1"
SEALED_BYTES_MORE = NONCE_BYTES + 1 + 16
"""The bytes that sealing adds to a value: nonce, type, tag."""

_METADATA = dotnet_v1.METADATA | {SEAL}
# Part of the wrapped key, so that a key of another version cannot be mistaken for this one.
_VERSION = PROTOCOL.encode().ljust(8, b"\0")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TYPES = {
    "String": b"\x01",
    "Binary": b"\x02",
    "Boolean": b"\x03",
    "Int32": b"\x04",
    "Int64": b"\x05",
    "Double": b"\x06",
    "DateTime": b"\x07",
    "Guid": b"\x08",
}


class _Seal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of `_PartitaEnc`; `sealed` is sorted by name."""

    protocol: str
    kid: str
    algorithm: str
    key: bytes
    sealed: dict[str, str]
    tag: bytes


class _Heading(msgspec.Struct, frozen=True):
    """The members that every version of `_PartitaEnc` has."""

    protocol: str


_decoder = msgspec.json.Decoder(_Seal)
_heading_decoder = msgspec.json.Decoder(_Heading)


class _BoundEntity(msgspec.Struct, frozen=True):
    """The entity that sealed values are bound to."""

    table: str
    key: RowKey

    def bind(self, kind: str, *parts: str) -> bytes:
        # Table names are case-insensitive.
        everything = (PROTOCOL, kind, self.table.lower(), self.key.partition, self.key.row, *parts)
        encoded = [part.encode("utf-8", "surrogatepass") for part in everything]
        return b"".join(len(part).to_bytes(4, "big") + part for part in encoded)

    def bind_list(self, sealed: Mapping[str, str]) -> bytes:
        """Return the bytes that bind the list of sealed names and types."""
        return self.bind("list", *(part for pair in sealed.items() for part in pair))

    def facts(self) -> dict[str, object]:
        return {
            "table": self.table,
            "partition_key": self.key.partition,
            "row_key": self.key.row,
        }


def is_sealed(properties: Mapping[str, Value]) -> bool:
    """Return whether some properties are sealed by Partita or encrypted by an old SDK."""
    return not _METADATA.isdisjoint(properties)


def sealed_names(properties: Mapping[str, Value]) -> frozenset[str]:
    """Return the names listed in `_PartitaEnc`, unverified; none for the format of an old SDK."""
    return frozenset(_parse(properties[SEAL], {}).sealed) if SEAL in properties else frozenset()


def needed_for(select: Collection[str], keyring: Keyring | None = None) -> tuple[str, ...]:
    """Return the properties that a projection needs besides `select` to be decrypted."""
    is_v1_read = keyring is not None and keyring.allow_dotnet_v1
    wanted = (SEAL, *sorted(dotnet_v1.METADATA)) if is_v1_read else (SEAL,)
    return tuple(name for name in wanted if name not in select)


def seal(
    properties: Mapping[str, Value],
    names: Collection[str],
    *,
    table: str,
    key: RowKey,
    keyring: Keyring | None,
    clock: Clock,
) -> dict[str, Value]:
    """Return the properties to store, with those of `names` that are present sealed.

    Properties that are already sealed raise AlreadySealed.
    """
    place = _BoundEntity(table, key)
    if is_sealed(properties):
        raise InvalidPropertyError(
            "AlreadySealed",
            "The entity is already sealed, or encrypted by an old SDK.",
            facts=place.facts(),
            hint="Call unseal() on the properties before changing and writing them.",
        )
    chosen = sorted(name for name in set(names) if properties.get(name) is not None)
    if not chosen:
        return dict(properties)
    if keyring is None:
        raise _no_keyring(place)
    random = clock.random_bytes(KEY_BYTES + NONCE_BYTES * (len(chosen) + 1))
    content_key, nonces = random[:KEY_BYTES], _nonces(random[KEY_BYTES:])
    box = AESGCM(content_key)
    stored = dict(properties)
    sealed: dict[str, str] = {}
    for name, nonce in zip(chosen, nonces[1:], strict=True):
        sealed[name], encoded = _encode(name, properties[name])
        bound = place.bind("value", name, sealed[name])
        stored[name] = _checked(name, nonce + box.encrypt(nonce, encoded, bound))
    tag = nonces[0] + box.encrypt(nonces[0], b"", place.bind_list(sealed))
    wrapped = keyring.wrap(_VERSION + content_key)
    stored[SEAL] = _print(wrapped, sealed, tag)
    return stored


def unseal(
    properties: Mapping[str, Value],
    *,
    table: str,
    key: RowKey,
    keyring: Keyring | None,
    required: Collection[str] = (),
    is_projection: bool = False,
) -> dict[str, Value]:
    """Return the decrypted properties, without the metadata of sealing.

    A change to a sealed property or to the list of sealed properties raises SealBrokenError, as
    does a property of `required` that is not encrypted. A projection may lack sealed properties.
    """
    place = _BoundEntity(table, key)
    if not is_sealed(properties):
        opened, names = dict(properties), frozenset[str]()
    elif keyring is None:
        raise _no_keyring(place)
    elif SEAL in properties:
        parsed = _parse(properties[SEAL], place.facts())
        opened, names = _open(properties, parsed, place, keyring), frozenset(parsed.sealed)
        if not is_projection and not names <= opened.keys():
            missing = min(names - opened.keys())
            raise _broken("A sealed property was removed.", place.facts(), missing)
    else:
        opened, names = dotnet_v1.unseal(properties, key=key, keyring=keyring, facts=place.facts())
    for name in required:
        if name in opened and name not in names:
            raise SealBrokenError(
                "SealMissing",
                f"The property {name!r} must be encrypted, but is stored unencrypted.",
                facts={**place.facts(), "property": name},
                hint="If it was written before the field was Encrypted, read it once as a plain "
                "field and save it; otherwise it was changed.",
            )
    return opened


def rewrap(metadata: str, keyring: Keyring) -> str:
    """Return the `_PartitaEnc` of an entity with its content key wrapped by the current key.

    The sealed values do not change. Write it with a merge conditional on the etag that was read
    with it: over a newer write it would make that write unreadable.
    """
    parsed = _parse(metadata, {})
    if parsed.kid == keyring.current:
        return metadata
    wrapped = keyring.wrap(_VERSION + _content_key(parsed, keyring, {}))
    return _print(wrapped, parsed.sealed, parsed.tag)


def _open(
    properties: Mapping[str, Value], parsed: _Seal, place: _BoundEntity, keyring: Keyring
) -> dict[str, Value]:
    box = AESGCM(_content_key(parsed, keyring, place.facts()))
    # Verify the list first, because only the list tells which properties are sealed.
    if _decrypt(box, parsed.tag, place.bind_list(parsed.sealed)) is None:
        raise _broken("The seal was changed, or is not of this entity.", place.facts(), SEAL)
    opened = {name: value for name, value in properties.items() if name not in _METADATA}
    for name, type_name in parsed.sealed.items():
        if name not in opened:
            continue
        encoded = _decrypt(box, opened[name], place.bind("value", name, type_name))
        value = None if encoded is None else _decode(type_name, encoded)
        if value is None:
            raise _broken(
                "A sealed property was changed, or is not of this entity.", place.facts(), name
            )
        opened[name] = value
    return opened


def _content_key(parsed: _Seal, keyring: Keyring, facts: Mapping[str, object]) -> bytes:
    versioned = keyring.unwrap(WrappedKey(parsed.kid, parsed.algorithm, parsed.key), facts)
    content_key = versioned.removeprefix(_VERSION)
    if len(versioned) != len(_VERSION) + KEY_BYTES or len(content_key) != KEY_BYTES:
        raise _broken("The content key is not of this version.", facts, SEAL)
    return content_key


def _decrypt(box: AESGCM, stored: Value, bound: bytes) -> bytes | None:
    if not isinstance(stored, bytes):
        return None
    try:
        return box.decrypt(stored[:NONCE_BYTES], stored[NONCE_BYTES:], bound)
    except FAILURES:
        return None


def _nonces(random: bytes) -> list[bytes]:
    return [random[at : at + NONCE_BYTES] for at in range(0, len(random), NONCE_BYTES)]


# ---------------------------------------------------------------------------------------------
# _PartitaEnc


def _parse(text: Value, facts: Mapping[str, object]) -> _Seal:
    if not isinstance(text, str):
        raise _broken("The seal is not text.", facts, SEAL)
    protocol, parsed = PROTOCOL, None
    try:
        protocol = _heading_decoder.decode(text).protocol
        parsed = _decoder.decode(text)
        # Only the canonical text is accepted, so that any change is detected.
        if protocol == PROTOCOL and msgspec.json.encode(parsed).decode() == text:
            return parsed
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        pass  # it is broken, or a later protocol
    # A later protocol has other members than this one: with the same, its name is damaged.
    if protocol != PROTOCOL and parsed is None:
        raise FormatVersionError(
            "SealVersion",
            f"The entity is sealed with protocol {protocol!r}; this version supports {PROTOCOL}.",
            facts=facts,
            hint="Install a newer version of Partita: pip install --upgrade partita.",
        )
    raise _broken("The seal is malformed.", facts, SEAL)


def _print(wrapped: WrappedKey, sealed: dict[str, str], tag: bytes) -> str:
    made = _Seal(PROTOCOL, wrapped.kid, wrapped.algorithm, wrapped.key, sealed, tag)
    text = msgspec.json.encode(made).decode()
    if 2 * edm.utf16_length(text) > limits.PROPERTY_BYTES_MAX:
        raise _too_large(SEAL, "The list of sealed properties is too long.")
    return text


# ---------------------------------------------------------------------------------------------
# Values


def _encode(name: str, value: Value) -> tuple[str, bytes]:
    type_name, encoded = _encode_value(name, value)
    return type_name, _TYPES[type_name] + encoded


def _encode_value(name: str, value: Value) -> tuple[str, bytes]:  # noqa: PLR0911 - one each
    match value:
        case str():
            return "String", value.encode("utf-8", "surrogatepass")
        case bytes():
            return "Binary", value
        case bool():
            return "Boolean", bytes([value])
        case Int32() if edm.INT32_MIN <= value <= edm.INT32_MAX:
            return "Int32", value.to_bytes(4, "big", signed=True)
        case int() if edm.INT64_MIN <= value <= edm.INT64_MAX and not isinstance(value, Int32):
            return "Int64", value.to_bytes(8, "big", signed=True)
        case float():
            return "Double", struct.pack(">d", value)
        case datetime() if value.tzinfo is not None:
            return "DateTime", _ticks(value).to_bytes(8, "big", signed=True)
        case UUID():
            return "Guid", value.bytes
        case _:
            raise InvalidPropertyError(
                "ValueNotSealable",
                f"The value of {name!r} cannot be stored in a property.",
                facts={"property": name, "type": type(value).__name__},
                hint="Use an int of 64 bits, an Int32 of 32 bits, or a datetime with a time zone.",
            )


def _ticks(moment: datetime) -> int:
    # Only an Instant that was read has its text; one computed from it has six digits.
    text = getattr(moment, "text", None)
    ticks = None if text is None else edm.ticks_of(text)
    return (moment - _EPOCH) // timedelta(microseconds=1) * 10 if ticks is None else ticks


def _decode(type_name: str, encoded: bytes) -> Value | None:
    """Return the value; None for invalid bytes, which only a holder of the key can make."""
    if _TYPES.get(type_name) != encoded[:1]:
        return None
    try:
        return _decode_value(type_name, encoded[1:])
    except (ValueError, OverflowError, struct.error):
        return None


def _decode_value(type_name: str, encoded: bytes) -> Value | None:  # noqa: PLR0911 - one each
    match type_name, len(encoded):
        case "String", _:
            return encoded.decode("utf-8", "surrogatepass")
        case "Binary", _:
            return encoded
        case "Boolean", 1:
            return encoded != b"\0"
        case "Int32", 4:
            return Int32(int.from_bytes(encoded, "big", signed=True))
        case "Int64", 8:
            return int.from_bytes(encoded, "big", signed=True)
        case "Double", 8:
            return float(struct.unpack(">d", encoded)[0])
        case "DateTime", 8:
            ticks = int.from_bytes(encoded, "big", signed=True)
            return Instant.of(_EPOCH + timedelta(microseconds=ticks // 10), edm.text_of(ticks))
        case "Guid", 16:
            return UUID(bytes=encoded)
        case _:
            return None


def _checked(name: str, stored: bytes) -> bytes:
    if len(stored) > limits.PROPERTY_BYTES_MAX:
        raise _too_large(name, f"The property {name!r} has {len(stored)} bytes when sealed.")
    return stored


# ---------------------------------------------------------------------------------------------
# Errors


def _too_large(name: str, message: str) -> LimitExceededError:
    return LimitExceededError(
        "PropertyValueTooLarge",
        message,
        facts={"property": name},
        hint=f"Stay below {limits.PROPERTY_BYTES_MAX} bytes; sealing adds {SEALED_BYTES_MORE}, "
        "and text is stored in UTF-8.",
    )


def _no_keyring(place: _BoundEntity) -> EncryptionKeyError:
    return EncryptionKeyError(
        "KeyringMissing",
        "The entity has encrypted properties, but no keyring was given.",
        facts=place.facts(),
        hint="Use connect(..., keyring=Keyring(...)).",
    )


def _broken(message: str, facts: Mapping[str, object], name: str) -> SealBrokenError:
    return SealBrokenError(
        "SealBroken",
        message,
        facts={**facts, "property": name},
        hint="Restore the entity from a backup, or delete it: it was changed, or copied from "
        "another entity, property or table.",
    )
