"""Valid key texts and their order, which compares code points.

Range queries need the least valid key above a prefix: incrementing the last character could give
a text that the service rejects.
"""

import re

import msgspec

from partita.tables import edm, limits

ILLEGAL_CHARACTERS = r"/\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff"
"""The characters that a key cannot contain, as the inside of a character class."""
RESERVED = "~"
"""Begins the row keys of hidden rows; after a row key it numbers the rows of a wide entity."""
WIDE_SUFFIX_CHARACTERS_MAX = 4
"""Space reserved after the row key of a wide entity for `~` and a number."""

_ILLEGAL = re.compile(f"[{ILLEGAL_CHARACTERS}]")
_ILLEGAL_RANGES = (
    (0x00, 0x1F),
    *((ord(character), ord(character)) for character in "#/?\\"),
    (0x7F, 0x9F),
    (0xD800, 0xDFFF),
)
_LEAST = " "
"""The least valid character."""


class Bounds(msgspec.Struct, frozen=True):
    """The keys from `lower` (inclusive) to `upper` (exclusive; None for no upper bound).

    `expressed` names the fields whose conditions hold for exactly the keys in the range.
    """

    lower: str
    upper: str | None
    expressed: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return self.upper is not None and self.upper <= self.lower

    def holds(self, key: str) -> bool:
        return self.lower <= key and (self.upper is None or key < self.upper)


def is_legal(text: str) -> bool:
    return fits(text) and not _ILLEGAL.search(text)


def fits(text: str) -> bool:
    return edm.utf16_length(text) <= limits.KEY_CHARACTERS_MAX


def successor(prefix: str) -> str | None:
    """Return the least key above all keys that begin with `prefix`; None if there is none.

    >>> successor("emp_000199"), successor("v1.")
    ('emp_00019:', 'v10')
    """
    while prefix:
        stem, last = prefix[:-1], prefix[-1]
        following = _legal_from(ord(last) + 1)
        # A character above U+FFFF counts twice. If it does not fit here, it fits into no key.
        if following is not None and fits(stem + following):
            return stem + following
        prefix = stem
    return None


def ceiling(text: str) -> str | None:
    """Return the least valid key that is not below `text`, which need not be valid itself."""
    illegal = _ILLEGAL.search(text)
    legal = text[: illegal.start()] if illegal else text
    if not fits(legal):
        return successor(_cut(legal))
    return successor(text[: illegal.end()]) if illegal else text


def just_above(key: str) -> str | None:
    """Return the least key above this one."""
    return ceiling(key + _LEAST)


def nothing(at: str, *fields: str) -> Bounds:
    """Return empty bounds, because no key can satisfy the conditions on `fields`."""
    return Bounds(at, at, frozenset(fields))


def _legal_from(code: int) -> str | None:
    for first, last in _ILLEGAL_RANGES:
        if first <= code <= last:
            code = last + 1
    return chr(code) if code <= 0x10FFFF else None


def _cut(text: str) -> str:
    end = limits.KEY_CHARACTERS_MAX
    while not fits(text[:end]):
        end -= 1
    return text[:end]
