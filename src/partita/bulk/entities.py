"""An entity as typed values, and as a line of JSON; pure."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from partita.errors import InvalidPropertyError
from partita.tables import edm
from partita.tables.edm import TYPE_SUFFIX, Members
from partita.tables.entity import check_key, parse_body

PARTITION_KEY, ROW_KEY, TIMESTAMP = "PartitionKey", "RowKey", "Timestamp"
SYSTEM = frozenset({PARTITION_KEY, ROW_KEY, TIMESTAMP})

_decode: Callable[[bytes | msgspec.Raw], dict[str, Any]] = msgspec.json.Decoder(
    dict[str, Any]
).decode
_encode = msgspec.json.Encoder().encode
_ETAG = b'{"odata.etag":"'
"""How each document of a page begins."""
_PAGE = re.compile(rb'\{(?:"odata\.metadata":"[^"\\]*",)?"value":\[')
_PAGE_END = b"]}"
_KEYS_FIRST = b'"PartitionKey":"'


class Typed(msgspec.Struct, frozen=True):
    """An entity; `properties` are in stored form: an annotation before each value that needs one.

    `partita.tables.edm.type_of` returns the type of a property.
    """

    partition_key: str
    row_key: str
    properties: Members
    timestamp: str | None = None


class Keys(msgspec.Struct, frozen=True, gc=False):
    """The keys of an entity in a document."""

    partition_key: str = msgspec.field(name=PARTITION_KEY)
    row_key: str = msgspec.field(name=ROW_KEY)
    etag: str = msgspec.field(name="odata.etag", default="*")


decode_keys = msgspec.json.Decoder(Keys).decode
"""Return the keys of a document; it is checked to be JSON, but its other members are skipped."""


def parse_entity(document: bytes | msgspec.Raw) -> Typed:
    """Parse and check a document; the errors are those of the service."""
    body = parse_body(bytes(document))
    if body.partition_key is None or body.row_key is None:
        raise keys_missing()
    stamp = _decode(document).get(TIMESTAMP)
    timestamp = stamp if isinstance(stamp, str) else None
    return Typed(body.partition_key, body.row_key, body.properties, timestamp)


def typed(
    partition_key: object, row_key: object, values: Iterable[tuple[str, str, object]]
) -> Typed:
    """Return an entity of named, typed values, checked and in stored form."""
    properties: Members = {}
    for name, kind, value in values:
        add_property(properties, name, kind, value)
    return Typed(check_key(PARTITION_KEY, partition_key), check_key(ROW_KEY, row_key), properties)


def add_property(properties: Members, name: str, kind: str, value: object) -> None:
    """Add a value in stored form; raises InvalidPropertyError if it does not fit its type."""
    annotation, stored = edm.canonical(name, value, kind)
    if annotation is not None:
        properties[name + TYPE_SUFFIX] = annotation
    properties[name] = stored


def print_entity(entity: Typed) -> bytes:
    """Return the document of an entity, without its Timestamp."""
    return _encode(
        {PARTITION_KEY: entity.partition_key, ROW_KEY: entity.row_key, **entity.properties}
    )


def lines_of(documents: Sequence[msgspec.Raw]) -> bytes:
    """Return the documents of a page without etags, as `without_etag` does, one per line."""
    texts = [*map(bytes, documents)]
    ends = [text.find(b'","', len(_ETAG)) for text in texts if text.startswith(_ETAG)]
    if texts and len(ends) == len(texts) and -1 not in ends:
        rests = [text[end + 2 :] for text, end in zip(texts, ends, strict=True)]
        if not any(rest.startswith(b'"odata.') for rest in rests):
            rests[0] = b"{" + rests[0]  # before they are joined: the text is large
            rests[-1] += b"\n"
            return b"\n{".join(rests)
    return b"".join([without_etag(text) + b"\n" for text in texts])


def cut_lines(body: bytes) -> bytes | None:
    """Return what `lines_of` returns for the documents of a page, without decoding them.

    Each line must be decoded before it is used: then the body was valid JSON, too. None if the body
    is not printed as services print it, without spaces, an etag first and then the PartitionKey.
    """
    start = _PAGE.match(body)
    if start is None or not body.endswith(b"}" + _PAGE_END) or b"\n" in body:
        return None
    if not body.startswith(_ETAG, start.end()):
        return None
    # A quote before `odata` cannot end a text in valid JSON: this is the beginning of a document.
    documents = body[start.end() + len(_ETAG) : -len(_PAGE_END)].split(b"}," + _ETAG)
    ends = [document.find(b'","') for document in documents]
    if -1 in ends:
        return None
    # An etag must be one text: all quotes in it are escaped.
    etags = b" ".join([text[:end] for text, end in zip(documents, ends, strict=True)])
    if b"\\\\" in etags or etags.count(b'"') != etags.count(b'\\"'):
        return None
    rests = [text[end + 2 :] for text, end in zip(documents, ends, strict=True)]
    if not all(rest.startswith(_KEYS_FIRST) for rest in rests):
        return None
    rests[0] = b"{" + rests[0]  # before they are joined: the text is large
    rests[-1] += b"\n"
    return b"}\n{".join(rests)


def last_document(body: bytes) -> bytes | None:
    """Return the last document of a page that `cut_lines` may cut; None if it is not found."""
    start = body.rfind(_ETAG)
    return body[start : -len(_PAGE_END)] if start > 0 and body.endswith(_PAGE_END) else None


def without_etag(document: bytes | msgspec.Raw) -> bytes:
    """Return a document of a page without its etag and other annotations of the whole entity.

    >>> without_etag(b'{"odata.etag":"W/1","PartitionKey":"p"}')
    b'{"PartitionKey":"p"}'
    """
    text = bytes(document)
    if text.startswith(_ETAG):
        end = text.find(b'","', len(_ETAG))
        rest = text[end + 2 :]
        if end > 0 and not rest.startswith(b'"odata.'):
            return b"{" + rest
    members = _decode(text)
    return _encode({name: value for name, value in members.items() if name[:6] != "odata."})


def keys_missing() -> InvalidPropertyError:
    return InvalidPropertyError(
        "PropertiesNeedValue",
        "The entity has no PartitionKey or no RowKey.",
        hint="Give each entity both keys.",
    )
