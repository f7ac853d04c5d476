"""The canonical form of an entity, and digests of many; pure.

The canonical form is what two servers agree on: the members of minimal-metadata JSON sorted by
name, without Timestamp, etag and other annotations, each value printed in one way. A digest is the
sum of SHA-256 over these forms modulo 2^256, so that it does not depend on their order.

The entities of a table mostly have the same members. A `_Shape` prints the canonical form of such
entities in a third of the time of `canonical`, which decides about all others.
"""

import hashlib
import re
from collections.abc import Callable
from itertools import repeat
from operator import attrgetter
from typing import Any, Literal

import msgspec

from partita.bulk.entities import TIMESTAMP
from partita.tables import edm
from partita.tables.edm import TYPE_SUFFIX

_MODULUS = 1 << 256
_SUFFIX_LENGTH = len(TYPE_SUFFIX)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SECOND_CHARACTERS = len("2024-01-01T00:00:00Z")


def _is_plain_time(text: str) -> bool:
    """Return whether a DateTime is in UTC and has no zeros at its end."""
    return text[-1:] == "Z" and (len(text) == _SECOND_CHARACTERS or text[-2:-1] != "0")


def _is_plain_whole(text: str) -> bool:
    return text.isdecimal() and text.isascii() and (text[0] != "0" or text == "0")


def _is_lower(text: str) -> bool:
    return text == text.lower()


def _is_plain_base64(text: str) -> bool:
    """Return whether a text has no padding, before which two spellings are possible."""
    return not len(text) % 4 and text[-1:] != "="


_IS_CANONICAL: dict[object, Callable[[str], bool]] = {
    edm.DATETIME: _is_plain_time,
    edm.GUID: _is_lower,
    edm.INT64: _is_plain_whole,
    edm.BINARY: _is_plain_base64,
}
"""Quick tests for texts that are already canonical; others are parsed and printed."""

_decode: Callable[[bytes | msgspec.Raw], dict[str, Any]] = msgspec.json.Decoder(
    dict[str, Any]
).decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


def canonical(document: bytes | msgspec.Raw) -> bytes:
    """Return the canonical form of a document that a service sent or that was checked."""
    members = _decode(document)
    members.pop(TIMESTAMP, None)
    values = members.values()
    if None in values or 0.0 in values:
        _clean(members)
    # Names of properties have no dot, annotations do.
    for annotation in [name for name in members if "." in name]:
        name = annotation[:-_SUFFIX_LENGTH]
        value = members.get(name)
        test = _IS_CANONICAL.get(members[annotation])
        if test is not None and type(value) is str and test(value):
            continue
        kind = members.pop(annotation)
        if value is not None and annotation.endswith(TYPE_SUFFIX):
            kept, members[name] = edm.canonical(name, value, kind)
            if kept is not None:
                members[annotation] = kept
    return _encode_sorted(members)


def _clean(members: dict[str, Any]) -> None:
    """Remove nulls, and write -0.0 as services do."""
    for name, value in list(members.items()):
        if value is None:
            del members[name]
        elif value == 0 and type(value) is float:
            members[name] = 0.0


class _Shape:
    """The names of members and the types of their values that a document has."""

    def __init__(self, members: dict[str, Any], kept: set[str]) -> None:
        """`kept` are the names that are in the canonical form."""
        fields = {name: f"f{number}" for number, name in enumerate(sorted(members))}
        self._left_out = [fields[name] for name in members if name not in kept]
        annotated = [name for name in kept if name + TYPE_SUFFIX in kept]
        self._checks = [
            (attrgetter(fields[name]), _match_lines(_PATTERNS[members[name + TYPE_SUFFIX]]))
            for name in annotated
        ]
        types: list[tuple[str, Any]] = []
        self._numbers: list[Callable[[Any], Any]] = []
        for name, field in fields.items():
            kind: Any = type(members[name])
            if name not in kept:
                kind = Any
            elif name.endswith(TYPE_SUFFIX):
                kind = Literal[members[name]]
            elif kind in (int, float):
                kind = int | float  # `float` alone would print 3 as 3.0
                self._numbers.append(attrgetter(field))
            types.append((field, kind))
        decoder = msgspec.json.Decoder(
            msgspec.defstruct(
                "Members",
                types,
                rename={field: name for name, field in fields.items()},
                forbid_unknown_fields=True,
                gc=False,
            )
        )
        self._decode, self._decode_lines = decoder.decode, decoder.decode_lines

    def print(self, document: bytes | msgspec.Raw) -> bytes | None:
        """Return the canonical form; None if the document may have another shape."""
        try:
            forms = self._print([self._decode(document)])
        except msgspec.ValidationError:
            return None
        return None if forms is None else forms[0]

    def print_lines(self, text: bytes) -> list[bytes] | None:
        """Return the canonical forms of documents, one per line, if all have the shape."""
        try:
            return self._print(self._decode_lines(text))
        except msgspec.MsgspecError:
            return None

    def _print(self, found: list[Any]) -> list[bytes] | None:
        for text_of, matches in self._checks:
            if not matches("\n".join(map(text_of, found)) + "\n"):
                return None
        for field in self._left_out:
            for _ in map(setattr, found, repeat(field), repeat(msgspec.UNSET)):
                pass
        for number_of in self._numbers:
            numbers = [*map(number_of, found)]
            if 0 in numbers and "-0.0" in map(repr, numbers):
                return None
        return [*map(_encode, found)]


def _match_lines(pattern: str) -> Callable[[str], object]:
    return re.compile(f"(?:{pattern}\n)*", re.ASCII).fullmatch


_PATTERNS = {
    edm.DATETIME: r"[0-9]{4}-[0-9-]{5}T[0-9:]{8}(?:\.[0-9]{0,6}[1-9])?Z",
    edm.GUID: r"[0-9a-f-]{36}",
    edm.INT64: r"(?:0|-?[1-9][0-9]{0,18})",
    edm.BINARY: r"[A-Za-z0-9+/]*(?:[AQgw]==|[AEIMQUYcgkosw048]=)?",
}
"""Valid texts that match are canonical."""


def _find_shape(document: bytes | msgspec.Raw, form: bytes) -> _Shape | None:
    """Return the shape of a document with this canonical form; None if it has no quick one."""
    members, kept = _decode(document), _decode(form)
    if any(name in kept and kept[name] != value for name, value in members.items()):
        return None
    if any(kept[name] not in _PATTERNS for name in kept if name.endswith(TYPE_SUFFIX)):
        return None
    # The canonical form has no nulls and not every annotation of a property, but another document
    # with the same members may have to keep them.
    if any(name not in kept and not _is_never_kept(name) for name in members):
        return None
    shape = _Shape(members, set(kept))
    return shape if shape.print(document) == form else None


def _is_never_kept(name: str) -> bool:
    return name == TIMESTAMP or name.startswith("odata.")


SHAPES_MAX = 4
MISSES_MAX = 100
"""So many documents in a row without a shape end the search: the table has too many shapes."""


class CanonicalForms:
    """Canonical forms of many documents, which are mostly of few shapes."""

    __slots__ = ("_misses", "_shapes")

    def __init__(self) -> None:
        self._shapes: list[_Shape] = []
        self._misses = 0

    def of(self, document: bytes | msgspec.Raw) -> bytes:
        """Return what `canonical` returns."""
        if self._misses > MISSES_MAX:
            return canonical(document)
        for number, shape in enumerate(self._shapes):
            found = shape.print(document)
            if found is not None:
                self._misses = 0
                if number:
                    self._shapes.insert(0, self._shapes.pop(number))
                return found
        return self._learn(document)

    def of_equal_lines(self, text: bytes) -> list[bytes] | None:
        """Return the canonical forms of documents, one per line; None if one has another shape."""
        return self._shapes[0].print_lines(text) if self._shapes else None

    def of_lines(self, text: bytes) -> list[bytes]:
        """Return the canonical forms of documents, one per line."""
        found = self.of_equal_lines(text)
        return [self.of(line) for line in text.split(b"\n") if line] if found is None else found

    def _learn(self, document: bytes | msgspec.Raw) -> bytes:
        self._misses += 1
        form = canonical(document)
        if len(self._shapes) < SHAPES_MAX:
            shape = _find_shape(document, form)
            if shape is not None:
                self._shapes.insert(0, shape)
        return form


class Digest:
    """The number of entities, and the sum of the digests of their canonical forms."""

    __slots__ = ("_forms", "count", "total")

    def __init__(self, count: int = 0, total: int = 0) -> None:
        self.count = count
        self.total = total
        self._forms = CanonicalForms()

    def add(self, document: bytes | msgspec.Raw) -> None:
        self._add([self._forms.of(document)])

    def add_lines(self, text: bytes) -> None:
        """Add documents, one per line."""
        self._add(self._forms.of_lines(text))

    def add_equal_lines(self, text: bytes) -> bool:
        """Add documents, one per line, if all have the shape of earlier ones; return whether."""
        forms = self._forms.of_equal_lines(text)
        if forms is None:
            return False
        self._add(forms)
        return True

    def _add(self, forms: list[bytes]) -> None:
        digests = [digest.digest() for digest in map(hashlib.sha256, forms)]
        self.total += sum(map(int.from_bytes, digests))
        self.count += len(forms)

    def merge(self, other: "Digest") -> None:
        self.count += other.count
        self.total += other.total

    @property
    def text(self) -> str:
        """The sum as 64 hexadecimal digits."""
        return f"{self.total % _MODULUS:064x}"

    @classmethod
    def parse(cls, count: int, text: str) -> "Digest":
        if not _DIGEST.fullmatch(text):
            raise ValueError(text)
        return cls(count, int(text, 16))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Digest):
            return NotImplemented
        return (self.count, self.total % _MODULUS) == (other.count, other.total % _MODULUS)

    __hash__ = None  # type: ignore[assignment]
