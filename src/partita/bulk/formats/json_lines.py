"""One entity per line, as minimal-metadata JSON; and JSON documents that contain entities.

A document is an array of entities or an object whose member `value` is one, as a table service
answers and as AzCopy 7.3 writes its data files. It is read in pieces: a file may be larger than
memory. Pure.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from partita.bulk.entities import decode_keys, keys_missing, parse_entity, print_entity
from partita.bulk.formats.rows import Reject, Row
from partita.errors import PartitaError

LINE_BYTES_MAX = 16 * 1024 * 1024
"""More than the JSON of any entity: 1 MiB of UTF-16, each unit escaped, plus its names."""

_BLANK = b" \t\r\n"
_BOM = b"\xef\xbb\xbf"
_MARK = re.compile(rb'["{}\[]')
_STRING_END = re.compile(rb'\\.|"', re.DOTALL)


def line_rows(pieces: Iterable[bytes]) -> Iterator[Row | Reject]:
    """Read entities from the pieces of a file of JSON lines; blank lines are skipped."""
    for place, line in enumerate(split_lines(pieces), 1):
        if line.strip(_BLANK):
            yield row_of(place, line)


def document_rows(pieces: Iterable[bytes]) -> Iterator[Row | Reject]:
    """Read entities from the pieces of a JSON document; the place is the number of the entity."""
    for place, text in enumerate(split_objects(pieces), 1):
        yield row_of(place, text)


def row_of(place: int, text: bytes) -> Row | Reject:
    """Return the entity of a JSON object.

    Only its syntax and its keys are checked here: the service checks the values, and what it
    refuses is checked again to find the reason.
    """
    if len(text) > LINE_BYTES_MAX:
        return Reject(place, f"The line is longer than {LINE_BYTES_MAX:,} bytes.", _shown(text))
    try:
        keys = decode_keys(text)
        document = text.strip(_BLANK)
        if b'"odata.' in text:  # an etag, or a property that is called so: decide exactly
            document = print_entity(parse_entity(text))
        return Row(place, keys.partition_key, keys.row_key, document)
    except msgspec.ValidationError:
        return Reject.of(place, _unusable(text), _shown(text))
    except (PartitaError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return Reject.of(place, error, _shown(text))


def _unusable(text: bytes) -> Exception:
    try:
        parse_entity(text)
    except (PartitaError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return error
    return keys_missing()


def _shown(text: bytes) -> str:
    return text[:4096].decode("utf-8", "replace").strip()


def split_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield lines without their ends; a byte order mark before the first one is dropped.

    Of a line above the limit the beginning is yielded, as one byte more than is allowed.
    """
    rest = b""
    is_first = True
    is_skipping = False
    for piece in pieces:
        if is_first and piece:
            piece = piece.removeprefix(_BOM)  # noqa: PLW2901
            is_first = False
        *lines, tail = piece.split(b"\n")
        if lines:
            lines[0] = rest + lines[0]
            yield from lines[1:] if is_skipping else lines
            rest, is_skipping = tail, False
        elif not is_skipping:
            rest += tail
        if len(rest) > LINE_BYTES_MAX and not is_skipping:
            yield rest[: LINE_BYTES_MAX + 1]
            rest, is_skipping = b"", True
        elif is_skipping:
            rest = b""
    if rest:
        yield rest


def split_objects(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the objects of a JSON document that can be entities, as text.

    An entity contains neither objects nor arrays, so that an object without them is an entity.
    """
    text = b""
    at, start = 0, -1
    in_string = False
    for piece in pieces:
        text += piece
        while True:
            found = (_STRING_END if in_string else _MARK).search(text, at)
            if found is None:
                break
            mark, at = found[0], found.end()
            if in_string:
                in_string = mark != b'"'
            elif mark == b'"':
                in_string = True
            elif mark == b"{":
                start = found.start()
            elif mark == b"[":
                start = -1
            elif start >= 0:
                yield text[start:at]
                start = -1
        keep = start if start >= 0 else at
        if start >= 0 and len(text) - start > LINE_BYTES_MAX:
            yield text[start : start + LINE_BYTES_MAX + 1]
            start, keep = -1, at
        # Text after the last mark may end in the first half of an escape: it is searched again.
        if not text.endswith(b"\\"):
            at = len(text)
            keep = start if start >= 0 else at
        text = text[keep:]
        at -= keep
        start = 0 if start >= 0 else -1
