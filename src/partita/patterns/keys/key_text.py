"""Texts that can be keys, and their order: code point by code point.

What looks for keys by range needs the least legal text above a prefix; plain arithmetic on the
last character would name texts that the service refuses.
"""

import re

import msgspec

from partita.tables import edm, limits

ILLEGAL_CHARACTERS = r"/\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff"
"""What a key cannot hold, as the inside of a character class."""
RESERVED = "~"
"""Row keys that begin with it are our own rows; behind a key it numbers rows of a wide entity."""
WIDE_SUFFIX_CHARACTERS_MAX = 4
"""Room kept behind the row key of a wide entity for `~` and a number."""

_ILLEGAL = re.compile(f"[{ILLEGAL_CHARACTERS}]")
_ILLEGAL_RANGES = (
    (0x00, 0x1F),
    *((ord(character), ord(character)) for character in "#/?\\"),
    (0x7F, 0x9F),
    (0xD800, 0xDFFF),
)
_LEAST = " "
"""The least legal character."""


class Bounds(msgspec.Struct, frozen=True):
    """The keys from `lower` to before `upper`; None has no end.

    `expressed` names the fields whose conditions hold for exactly the keys inside.
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
    """Return the least key above all that begin with `prefix`; None: there is none.

    >>> successor("emp_000199"), successor("v1.")
    ('emp_00019:', 'v10')
    """
    while prefix:
        stem, last = prefix[:-1], prefix[-1]
        following = _legal_from(ord(last) + 1)
        # A character beyond U+FFFF counts twice. Where it does not fit no key has one either.
        if following is not None and fits(stem + following):
            return stem + following
        prefix = stem
    return None


def ceiling(text: str) -> str | None:
    """Return the least key that is not below `text`, which need not be legal itself."""
    illegal = _ILLEGAL.search(text)
    legal = text[: illegal.start()] if illegal else text
    if not fits(legal):
        return successor(_cut(legal))
    return successor(text[: illegal.end()]) if illegal else text


def just_above(key: str) -> str | None:
    """Return the least key above this one."""
    return ceiling(key + _LEAST)


def nothing(at: str, *fields: str) -> Bounds:
    """Bounds that hold no key, because no key can satisfy the conditions on `fields`."""
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
