"""Entity: its key, etag and size, and the JSON document that is stored.

The document is minimal-metadata JSON without its opening brace and without `odata.metadata`,
which depends on the host: `"odata.etag":…,"PartitionKey":…,"RowKey":…,"Timestamp":…,…}`.
A reader adds a prefix and copies the bytes. It is stored with a checksum:

    document | CRC-32C, 4 bytes big-endian, begun with the low 32 bits of the ticks | 0x02

Documents of format 1 have neither: they end with their closing brace.
"""

import json
import re
import unicodedata
from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from partita.errors import (
    ChecksumError,
    InvalidKeyError,
    InvalidPropertyError,
    LimitExceededError,
    PartitaError,
)
from partita.refusals import (
    invalid_input,
    invalid_name,
    invalid_name_length,
    invalid_syntax,
    out_of_range,
    unprocessable,
)
from partita.tables import edm, limits
from partita.tables.edm import TYPE_SUFFIX, Members
from partita.ticks import TICKS_PER_SECOND

SHAPES_KEPT = 256
"""Shapes of bodies (see `Shape`) that are kept, ..."""
SHAPE_MEMBERS_MAX = 64
"""... each of at most this many members."""
_NAME_MAX = limits.PROPERTY_NAME_CHARACTERS_MAX + len(TYPE_SUFFIX)


class EntityKey(NamedTuple):
    """Partition key and row key; tuples have the order of entities."""

    partition_key: str
    row_key: str


key_of_pair: Callable[[tuple[str, str]], EntityKey] = partial(tuple.__new__, EntityKey)
"""`EntityKey(*pair)` in a third of the instructions: each write makes one."""


class Entity(msgspec.Struct, frozen=True, gc=False):
    """One stored version of an entity. `ticks` is its Timestamp and determines its etag."""

    partition_key: str
    row_key: str
    ticks: int
    document: bytes
    """Empty if the stored one is damaged: the entity can be replaced or deleted, not read."""
    members: Members | None = None
    """The custom properties, if they are already decoded: after `build`."""

    @property
    def key(self) -> EntityKey:
        return EntityKey(self.partition_key, self.row_key)

    @property
    def etag(self) -> str:
        """The etag, copied from the document: cheaper than printing the time."""
        if not self.document:
            return etag_of(self.ticks)
        end = self.document.index(b"'", _TIME_START)
        return f"W/\"datetime'{self.document[_TIME_START:end].decode()}'\""

    def properties(self) -> Members:
        """Return the custom properties, annotations included."""
        if self.members is not None:
            return self.members
        if not self.document:
            raise _damaged(self.key)
        members: Members = _decode_document(b"{" + self.document)
        for name in ("odata.etag", "PartitionKey", "RowKey", "Timestamp"):
            del members[name]
        return members


class EntityBody(msgspec.Struct, frozen=True):
    """The entity in a request body; a missing key is None."""

    partition_key: str | None
    row_key: str | None
    properties: Members


_decode_document = msgspec.json.Decoder(dict[str, str | int | float | bool]).decode
decode_flat = msgspec.json.Decoder(dict[str, str | int | float | bool | None]).decode
_decode_nested = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

CHECKED = b"\x02"
"""The last byte of a stored document with a checksum."""
CHECKSUM_BYTES = 5
"""The checksum and this byte."""
_LOW_32_BITS = 0xFFFFFFFF
_SYSTEM_NAMES = frozenset({"PartitionKey", "RowKey", "Timestamp"})
QUOTES_MAX = 4 * limits.BODY_MEMBERS_MAX
_ETAG = "W/\"datetime'%s'\""
_DOCUMENT = (
    b'"odata.etag":"W/\\"datetime\'%b\'\\"","PartitionKey":%b,"RowKey":%b,"Timestamp":"%b"%b'
)
_TIME_START = len(b'"odata.etag":"W/\\"datetime\'')
FORBIDDEN_IN_KEY = re.compile(r"[/\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_TABLE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*")
_NAME_START = frozenset({"Lu", "Ll", "Lt", "Lm", "Lo", "Nl"})
_NAME_REST = _NAME_START | {"Mn", "Mc", "Nd", "Pc", "Cf"}


@lru_cache(maxsize=4096)
def etag_of(ticks: int) -> str:
    """Return the etag of a version."""
    return _ETAG % _texts_of(ticks)[1].decode()


def ticks_of_etag(etag: str) -> int | None:
    """Return the ticks that `etag_of` prints exactly so; None for any other text."""
    start, end = _ETAG.split("%s")
    if not (etag.startswith(start) and etag.endswith(end)):
        return None
    ticks = edm.ticks_of(etag[len(start) : -len(end)].replace("%3A", ":"))
    if ticks is None or not edm.TICKS_MIN <= ticks <= edm.TICKS_MAX:
        return None
    return ticks if etag_of(ticks) == etag else None


def pack_document(ticks: int, document: bytes) -> bytes:
    """Return the stored form of a document."""
    return document + crc32c(document, ticks & _LOW_32_BITS).to_bytes(4) + CHECKED


def unpack_document(ticks: int, stored: bytes) -> bytes | None:
    """Return the document of a stored form; None if it is damaged."""
    if stored[-1:] != CHECKED:
        return stored if stored[-1:] == b"}" else None  # format 1 has no checksum
    document = stored[:-CHECKSUM_BYTES]
    is_sound = crc32c(document, ticks & _LOW_32_BITS).to_bytes(4) == stored[-CHECKSUM_BYTES:-1]
    return document if is_sound else None


class _Keys(msgspec.Struct, gc=False):
    partition_key: str = msgspec.field(name="PartitionKey")
    row_key: str = msgspec.field(name="RowKey")


_decode_keys = msgspec.json.Decoder(_Keys).decode


def key_in_document(document: bytes) -> EntityKey:
    """Return the key that a document contains."""
    # In a JSON text, each quote has a backslash before it, so that this is not part of a key.
    end = document.index(b',"Timestamp":"', _TIME_START)
    keys = _decode_keys(b"{%b}" % document[:end])
    return EntityKey(keys.partition_key, keys.row_key)


def stored_entity(partition_key: str, row_key: str, ticks: int, stored: bytes) -> Entity:
    """Return the entity of a row; raise ChecksumError if its document is damaged."""
    document = unpack_document(ticks, stored)
    if document is None:
        raise _damaged(EntityKey(partition_key, row_key))
    return Entity(partition_key, row_key, ticks, document)


def replaceable_entity(partition_key: str, row_key: str, ticks: int, stored: bytes) -> Entity:
    """Return the entity of a row for a write, which may replace or delete a damaged one."""
    return Entity(partition_key, row_key, ticks, unpack_document(ticks, stored) or b"")


def _damaged(key: EntityKey) -> ChecksumError:
    return ChecksumError(
        "EntityDamaged",
        "The stored entity is damaged: its bytes do not match their checksum.",
        facts={"partition_key": key.partition_key, "row_key": key.row_key},
        hint="Replace or delete the entity, or restore a backup.",
    )


def build(key: tuple[str, str], ticks: int, properties: Members) -> Entity:
    """Return the entity to store, checked against the limits of a whole entity."""
    partition_key, row_key = key
    text, time = _texts_of(ticks)
    # Put together from parts: to build one dict of all members costs a quarter more.
    document = _DOCUMENT % (
        time,
        _encode(partition_key),
        _encode(row_key),
        text,
        b"," + _encode(properties)[1:] if properties else b"}",
    )
    # Each property counts at most two bytes per JSON byte plus 16, so that only documents near
    # the limit need the exact sum.
    if 2 * len(document) + 16 * len(properties) > limits.ENTITY_BYTES_MAX and (
        size_of(key, properties) > limits.ENTITY_BYTES_MAX
    ):
        raise _entity_too_large()
    if len(properties) > limits.PROPERTIES_MAX:
        check_property_count(properties)
    return Entity(partition_key, row_key, ticks, document, properties)


def _texts_of(ticks: int) -> tuple[bytes, bytes]:
    """Return the time of a version, also as in its etag; the entities of a group have the same."""
    global _last_texts  # noqa: PLW0603 - of the last version only: single writes never repeat one
    last, text, escaped = _last_texts
    if last != ticks:
        # As edm.text_of, without its call: this is the hot path of every write.
        seconds, fraction = divmod(ticks, TICKS_PER_SECOND)
        text, escaped = _texts_of_second(seconds)
        if fraction:
            digits = f".{str(TICKS_PER_SECOND + fraction)[1:]}".encode()
            digits = digits.rstrip(b"0") if fraction % 10 == 0 else digits
            text, escaped = text + digits, escaped + digits
        text, escaped = text + b"Z", escaped + b"Z"
        _last_texts = ticks, text, escaped
    return text, escaped


_last_texts = (-1, b"", b"")


@lru_cache(maxsize=64)
def _texts_of_second(seconds: int) -> tuple[bytes, bytes]:
    text = edm.text_of_second(seconds)
    return text.encode(), text.replace(":", "%3A").encode()


def size_of(key: tuple[str, str], properties: Members) -> int:
    """Return the size of an entity as the service computes it."""
    size = 4 + 2 * (edm.utf16_length(key[0]) + edm.utf16_length(key[1]))
    for name in properties:
        if not name.endswith(TYPE_SUFFIX):
            size += 8 + 2 * edm.utf16_length(name) + edm.size_of(properties, name)
    return size


def check_property_count(properties: Members) -> None:
    count = sum(not name.endswith(TYPE_SUFFIX) for name in properties)
    if count > limits.PROPERTIES_MAX:
        raise _too_many_properties()


def _entity_too_large() -> LimitExceededError:
    return LimitExceededError(
        "EntityTooLarge", "The entity is larger than the maximum allowed size (1MB)."
    )


def _too_many_properties() -> LimitExceededError:
    return LimitExceededError(
        "TooManyProperties",
        "The entity contains more properties than allowed. Each entity can include up to 252"
        " properties to store data. Each entity also has 3 system properties.",
    )


def check_key(name: str, value: object) -> str:
    """Check a key of a request body; `name` names it in the error."""
    if not isinstance(value, str):
        raise unprocessable(InvalidKeyError, {"key": name})
    check_key_length(value)
    if FORBIDDEN_IN_KEY.search(value):
        raise InvalidKeyError(
            "OutOfRangeInput",
            f"The '{name}' parameter of value '{printable(value)}' is out of range.",
        )
    return value


def check_key_length(value: str) -> None:
    if len(value) * 2 > limits.KEY_CHARACTERS_MAX and (
        edm.utf16_length(value) > limits.KEY_CHARACTERS_MAX
    ):
        raise LimitExceededError(
            "PropertyValueTooLarge",
            "The property value exceeds the maximum allowed size (64KB). If the property value is"
            " a string, it is UTF-16 encoded and the maximum number of characters should be 32K"
            " or less.",
            hint="Use at most 512 characters (1 KiB) in a key.",
        )


def check_key_in_address(value: str) -> str:
    """Check a key of a URI: its errors have other messages."""
    if "/" in value or "\\" in value:
        raise invalid_syntax(InvalidKeyError)
    check_key_length(value)
    if FORBIDDEN_IN_KEY.search(value):
        raise out_of_range(InvalidKeyError)
    return value


def printable(text: str) -> str:
    """Return a text for a message: short, encodable, one line."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:512])
    return shown if len(text) <= 512 else shown + "…"


_TABLE_NAME_HINT = (
    f"A table name has {limits.TABLE_NAME_CHARACTERS_MIN} to {limits.TABLE_NAME_CHARACTERS_MAX} "
    "letters and digits and starts with a letter."
)


def check_table_name(name: str) -> str:
    """Check the name of a new table."""
    if not _TABLE_NAME.fullmatch(name):
        raise invalid_name(InvalidKeyError, _TABLE_NAME_HINT)
    if not limits.TABLE_NAME_CHARACTERS_MIN <= len(name) <= limits.TABLE_NAME_CHARACTERS_MAX:
        raise invalid_name_length(InvalidKeyError, _TABLE_NAME_HINT)
    if name.lower() == "tables":
        raise invalid_input(InvalidKeyError)
    return name


def is_system_table(name: str) -> bool:
    """Return whether a table is one of Storage Analytics; see `partita.tables.system_tables`."""
    return name.startswith("$")


@lru_cache(maxsize=4096)
def check_property_name(name: str) -> str:
    """Check that a property name is a C# identifier; results are cached."""
    if len(name) > limits.PROPERTY_NAME_CHARACTERS_MAX:
        raise LimitExceededError(
            "PropertyNameTooLong", "The property name exceeds the maximum allowed length (255)."
        )
    if name.isascii() and name.isidentifier():
        return name
    if (
        name
        and (name[0] == "_" or unicodedata.category(name[0]) in _NAME_START)
        and all(unicodedata.category(character) in _NAME_REST for character in name[1:])
    ):
        return name
    raise InvalidPropertyError(
        "PropertyNameInvalid",
        "The property name is invalid.",
        hint="Start a name with a letter or '_' and use letters, digits and '_' in it.",
    )


def parse_object(body: bytes) -> dict[str, object]:
    """Decode a JSON object and refuse repeated members, which fast parsers accept.

    Of too many members, only the first are decoded, to find another fault. Nested values, which
    an entity does not have, are decoded in short bodies only: the checks then say what is wrong.
    """
    quotes = body.count(b'"')
    if quotes > QUOTES_MAX:
        # A member has at least one quote that no backslash precedes, and at most four.
        if quotes - body.count(b'\\"') > QUOTES_MAX:
            front = body[: limits.NESTED_BODY_BYTES_MAX]
            front = (front.rpartition(b",")[0] or front) + b"}"
            _parse_members(front, front.count(b'"'))
            raise _too_many_properties()
        if quotes > limits.ENTITY_BYTES_MAX:
            raise _entity_too_large()
    return _parse_members(body, quotes)


def _parse_members(body: bytes, quotes: int) -> dict[str, object]:
    try:
        decoded = _decode_body(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _bad_body() from None
    if not isinstance(decoded, dict):
        raise _bad_body()
    refuse_repeated_members(body, decoded, quotes)
    return decoded


def _decode_body(body: bytes) -> object:
    try:
        return decode_flat(body)
    except msgspec.ValidationError:
        if len(body) > limits.NESTED_BODY_BYTES_MAX:
            raise
        return _decode_nested(body)


def refuse_repeated_members(body: bytes, members: Mapping[str, object], quotes: int) -> None:
    """Raise if the parser has dropped repeated members; `quotes` are those in the body."""
    # Each member and each text value has two quotes. More quotes than that are escaped ones,
    # nested values, or repeated members: check exactly.
    texts = list(map(type, members.values())).count(str)
    if quotes == 2 * (len(members) + texts):
        return

    def checked(pairs: list[tuple[str, object]]) -> None:
        if len({name for name, _ in pairs}) != len(pairs):
            raise InvalidPropertyError(
                "DuplicatePropertiesSpecified", "A property is specified more than one time."
            )

    try:
        json.loads(body, object_pairs_hook=checked)
    except (ValueError, RecursionError):
        raise _bad_body() from None


def _bad_body() -> InvalidPropertyError:
    return unprocessable(InvalidPropertyError, hint="Send a JSON object.")


class Shape(NamedTuple):
    """What the names of the members of a body say. The bodies of a client have few shapes."""

    types: tuple[str, ...]
    """The members with the types of properties."""
    properties: tuple[tuple[str, str | None], ...]
    """Each property, and the member with its type, if there is one."""
    is_checked: bool
    """Whether all names of properties are valid."""


_shapes: dict[tuple[str, ...], Shape] = {}


def parse_body(body: bytes, *, is_insert: bool = True) -> EntityBody:
    """Parse the body of an insert, or of another write, whose keys are in its address."""
    return body_of(parse_object(body), is_insert=is_insert)


def find_shape(members: Mapping[str, object]) -> Shape:
    """Return the shape of a body; raise for an annotation that it must not have."""
    names = tuple(members)
    return _shapes.get(names) or _shape_of(names, members)


def body_of(members: Mapping[str, object], *, is_insert: bool) -> EntityBody:
    """Return the entity that the members of a body describe."""
    shape = find_shape(members)
    for name in shape.types:
        if type(members[name]) is not str and members[name] is not None:
            raise _bad_body()
    properties: Members = {}
    for name, type_name in shape.properties:
        value: Any = members[name]
        if value is None:
            continue
        if not shape.is_checked:
            check_property_name(name)
        annotation: Any = None if type_name is None else members[type_name]
        if annotation is None and (
            (type(value) is str and len(value) <= edm.SHORT_TEXT)
            or type(value) is bool
            or (type(value) is int and edm.INT32_MIN <= value <= edm.INT32_MAX)
        ):
            properties[name] = value
            continue
        kept, stored = edm.canonical(name, value, annotation)
        if kept is not None:
            properties[type_name or name + TYPE_SUFFIX] = kept
        properties[name] = stored
    if len(properties) > limits.PROPERTIES_MAX:
        check_property_count(properties)
    if not is_insert:
        return EntityBody(None, None, properties)  # the keys are in the address
    return EntityBody(
        _key_of(members, "PartitionKey"),
        _key_of(members, "RowKey"),
        properties,
    )


def _key_of(members: Mapping[str, object], name: str) -> str | None:
    value = members.get(name)
    if value is None:
        return None
    if members.get(name + TYPE_SUFFIX) not in (None, edm.STRING):
        raise unprocessable(InvalidKeyError, {"key": name}, "Use the type Edm.String for keys.")
    return check_key(name, value)


def _shape_of(names: tuple[str, ...], members: Mapping[str, object]) -> Shape:
    types: dict[str, str] = {}
    properties: list[str] = []
    for name in names:
        if "@" not in name and "." not in name:
            if name not in _SYSTEM_NAMES:
                properties.append(name)
        elif not name.endswith(TYPE_SUFFIX):
            _check_annotation(name)
        elif members[name] is None or isinstance(members[name], str):
            types[name[: -len(TYPE_SUFFIX)]] = name
        else:
            raise _bad_body()
    is_checked = all(is_property_name(name) for name in properties)
    found = tuple([(name, types.get(name)) for name in properties])
    shape = Shape(tuple(types.values()), found, is_checked)
    if (
        is_checked
        and len(names) <= SHAPE_MEMBERS_MAX
        and max(map(len, names), default=0) <= _NAME_MAX
    ):
        if len(_shapes) >= SHAPES_KEPT:
            _shapes.clear()
        _shapes[names] = shape
    return shape


def is_property_name(name: str) -> bool:
    """Return whether a property can have this name."""
    try:
        check_property_name(name)
    except PartitaError:
        return False
    return True


def _check_annotation(name: str) -> None:
    before, _, after = name.partition("@")
    if name.startswith("odata.") or (before and after.startswith("odata.")):
        return  # an annotation of another kind: ignored
    raise InvalidPropertyError("PropertyNameInvalid", "The property name is invalid.")
