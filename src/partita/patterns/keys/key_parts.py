"""How one field is written in a key: the parts of variable length.

Every part is injective. Ordered parts sort as text in the order of their values, or in reverse
order if they descend. Parts of fixed width are in `fixed_width_parts.py`. The written forms:

    int :0Nd        N digits with leading zeros; not negative
    int :0Nd:desc   N digits: 10^N - 1 minus the number; :int32:desc, :int64:desc the greatest int
                    of so many bits minus the number
    int :+0Nd       N + 1 digits: the number plus 10^N; :+0Nd:desc 2 * 10^N - 1 minus that
    int             its digits; partition keys only
    Decimal :Dp.s   p + 1 digits: the number in units of 10^-s, plus 10^p
    bool            0 or 1
    datetime :asc   19 digits: ticks of 100 ns since year 1, UTC; :desc the last tick minus that
    date :asc       8 digits: YYYYMMDD; :desc 99991231 minus that
    datetime, date :%Y%m%d%H   the period in UTC, by strftime; see `coarse_parts.py`
    UUID            36 characters, lower case
    Enum, Literal   the value
    str             the text itself; last in a key
    str :esc        the text, with =XX for each UTF-8 byte of an illegal or reserved character or
                    of a separator
    str :lower      the text in lower case; last in a key
    any :hashN      blake2b of the written value (:esc, :asc) modulo N, in as many digits as N - 1
                    has; in addition to the whole value
"""

import re
from abc import abstractmethod
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any, NoReturn

import msgspec

from partita.errors import InvalidKeyError
from partita.patterns.keys.intervals import Interval, comparable
from partita.patterns.keys.key_text import (
    ILLEGAL_CHARACTERS,
    RESERVED,
    Bounds,
    ceiling,
    is_legal,
    just_above,
    nothing,
    successor,
)
from partita.tables import limits

_ILLEGAL = re.compile(f"[{ILLEGAL_CHARACTERS}]")
_ILLEGAL_IF_WIDE = re.compile(f"[{ILLEGAL_CHARACTERS}{RESERVED}]")
_TOO_LONG = 10**limits.KEY_CHARACTERS_MAX
_EQUAL_TO_INT = (bool, float, complex, Decimal)
_SEPARATORS = "_-|:;,.!"
_SEVERAL = "Use between(first, last) for a range of values, or c.field.in_([...]) for a list."


class KeyPart(msgspec.Struct, frozen=True):
    """One field in a key. Only mypy checks its abstract methods: a Struct cannot be an ABC."""

    field: str

    @property
    def is_ordered(self) -> bool:
        return False

    @property
    def is_descending(self) -> bool:
        return False

    @property
    def is_prefix_free(self) -> bool:
        """Whether no written value is a prefix of another, so that another part may follow."""
        return False

    @property
    def is_full(self) -> bool:
        """Whether the value can be read from the key."""
        return True

    @property
    def length_min(self) -> int:
        return 0

    @property
    @abstractmethod
    def pattern(self) -> str:
        """A regular expression, without groups, that matches the written values."""

    @abstractmethod
    def encode(self, value: Any) -> str: ...

    @abstractmethod
    def decode(self, text: str) -> Any:
        """Return the value of a text that matches the pattern; ValueError if there is none."""

    def is_delimited_by(self, following: str) -> bool:  # noqa: ARG002 - overrides use it
        """Return whether the end of the value can be found if this literal follows it."""
        return self.is_prefix_free

    def delimited(self, following: str) -> str:  # noqa: ARG002 - as above
        """Return template text that makes the part end before this literal."""
        return f"{{{self.field}}}_"

    def narrow(self, prefix: str, interval: Interval) -> Bounds | None:  # noqa: ARG002 - as above
        """Return the keys with a prefix and a value of an interval; None if not a range."""
        return None

    def refuse_type(self, expected: str, value: object) -> NoReturn:
        raise InvalidKeyError(
            "KeyValueType",
            f"The key field {self.field!r} takes {expected}, not {type(value).__name__}.",
            facts={"field": self.field},
            hint=_SEVERAL if isinstance(value, tuple | list | set | range) else "",
        )


class PlainInt(KeyPart, frozen=True):
    """`{tenant}`: an int without padding, which does not sort."""

    kind: type[int]

    @property
    def length_min(self) -> int:
        return 1

    @property
    def pattern(self) -> str:
        return "0|-?[1-9][0-9]*"

    def encode(self, value: Any) -> str:
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse_type("an int", value)
        if abs(value) >= _TOO_LONG:
            raise too_long(limits.KEY_CHARACTERS_MAX)
        return int.__repr__(value)

    def decode(self, text: str) -> Any:
        return self.kind(text)

    def is_delimited_by(self, following: str) -> bool:
        return bool(following) and following[0] not in "0123456789"

    def delimited(self, following: str) -> str:  # noqa: ARG002 - digits need no separator
        return f"{{{self.field}:08d}}"


class Text(KeyPart, frozen=True):
    """`{name}`: a text without escapes, which can only be the last part."""

    is_wide: bool
    """Whether `~` is excluded, because `~` and a number after the key mark additional rows."""

    @property
    def is_ordered(self) -> bool:
        return True

    @property
    def pattern(self) -> str:
        return f"[^{self._refused.pattern[1:-1]}]*"

    @property
    def _refused(self) -> re.Pattern[str]:
        return _ILLEGAL_IF_WIDE if self.is_wide else _ILLEGAL

    def encode(self, value: Any) -> str:
        if not isinstance(value, str):
            self.refuse_type("a text", value)
        if self._refused.search(value):
            characters = r"/ \ # ? ~" if self.is_wide else r"/ \ # ?"
            raise InvalidKeyError(
                "InvalidKeyCharacter",
                f"The value of the key field {self.field!r} has a character that is not allowed "
                f"here: {characters}, a control character or a lone surrogate.",
                facts={"field": self.field},
                hint=f"Write {{{self.field}:esc}} in the template, which accepts any text.",
            )
        return value

    def decode(self, text: str) -> str:
        return text

    def delimited(self, following: str) -> str:
        return Escaped(self.field, "").delimited(following)

    def narrow(self, prefix: str, interval: Interval) -> Bounds:
        if interval.prefix is not None:
            return self._starting_with(prefix, interval.prefix)
        lower, upper = self._lower(prefix, interval), self._upper(prefix, interval)
        if lower is None:
            return nothing(prefix, self.field)
        return Bounds(lower, upper, frozenset(() if self.is_wide else (self.field,)))

    def _starting_with(self, prefix: str, text: str) -> Bounds:
        whole = prefix + text
        if not is_legal(whole) or whole.startswith(RESERVED) or (self.is_wide and RESERVED in text):
            return nothing(prefix, self.field)
        return Bounds(whole, successor(whole), frozenset((self.field,)))

    def _lower(self, prefix: str, interval: Interval) -> str | None:
        if interval.lower is None:
            return prefix
        text = prefix + self._end(interval.lower)
        return ceiling(text) if interval.has_lower_inside else just_above(text)

    def _upper(self, prefix: str, interval: Interval) -> str | None:
        if interval.upper is None:
            return successor(prefix)
        end = self._end(interval.upper)
        if self.is_wide:
            starts = (prefix + end[:length] for length in range(len(end) + 1))
            return above_additional_rows(*starts)
        return just_above(prefix + end) if interval.has_upper_inside else ceiling(prefix + end)

    def _end(self, end: Any) -> str:
        end = comparable(end)
        if not isinstance(end, str):
            self.refuse_type("a text", end)
        return end


class Escaped(KeyPart, frozen=True):
    """`{name:esc}`: any text, with the separator after it escaped; it does not sort."""

    separator: str
    """The character that follows in the template; empty at its end."""

    @property
    def pattern(self) -> str:
        return f"(?:[^{_escaped(self.separator).pattern[1:-1]}]|=[0-9A-F]{{2}})*"

    def encode(self, value: Any) -> str:
        if not isinstance(value, str):
            self.refuse_type("a text", value)
        try:
            return _escaped(self.separator).sub(_escape, value)
        except UnicodeEncodeError as error:
            raise InvalidKeyError(
                "InvalidKeyCharacter",
                f"The value of the key field {self.field!r} has a lone surrogate.",
                facts={"field": self.field},
            ) from error

    def decode(self, text: str) -> str:
        value = re.sub("(?:=[0-9A-F]{2})+", _unescape, text)
        if self.encode(value) != text:
            raise ValueError(text)  # an unnecessary escape: not the canonical key
        return value

    def is_delimited_by(self, following: str) -> bool:
        return bool(following) and following[0] != "="

    def delimited(self, following: str) -> str:
        separator = "" if self.is_delimited_by(following) else "_"
        return f"{{{self.field}:esc}}{separator}"

    def narrow(self, prefix: str, interval: Interval) -> Bounds | None:
        if interval.prefix is None:
            return None
        try:
            whole = prefix + self.encode(interval.prefix)
        except InvalidKeyError:
            return nothing(prefix, self.field)  # no text begins with a lone surrogate
        if not is_legal(whole):
            return nothing(prefix, self.field)
        return Bounds(whole, successor(whole), frozenset((self.field,)))


class Choice(KeyPart, frozen=True):
    """A value of a fixed set, by its text. Its claims are checked for every member."""

    forms: dict[Any, str]
    following: str
    """The literal after the part, up to the next field."""
    is_last: bool
    is_wide: bool

    @property
    def is_ordered(self) -> bool:
        in_key_order = sorted(self.forms, key=lambda value: self.forms[value] + self.following)
        return in_key_order == sorted(self.forms, key=comparable)

    @property
    def is_prefix_free(self) -> bool:
        return _is_prefix_free(self.forms.values())

    @property
    def length_min(self) -> int:
        return min(map(len, self.forms.values()))

    @property
    def pattern(self) -> str:
        return "|".join(map(re.escape, self.forms.values()))

    def encode(self, value: Any) -> str:
        # By equality, not by hash: a StrEnum equals its text but has another hash.
        found = (form for member, form in self.forms.items() if member == value)
        form = next(found, None) if type(value) not in _EQUAL_TO_INT else None
        if form is None:
            self.refuse_type("one of its declared values", value)
        return form

    def decode(self, text: str) -> Any:
        return next(value for value, form in self.forms.items() if form == text)

    def is_delimited_by(self, following: str) -> bool:
        return _is_prefix_free(form + following for form in self.forms.values())

    def delimited(self, following: str) -> str:
        fit = (mark for mark in _SEPARATORS if self.is_delimited_by(mark + following))
        return f"{{{self.field}}}{next(fit, '_')}"

    def narrow(self, prefix: str, interval: Interval) -> Bounds:
        keys = {prefix + form + self.following: value for value, form in self.forms.items()}
        try:
            inside = {key for key, value in keys.items() if interval.holds(value)}
        except TypeError:
            end = interval.upper if interval.lower is None else interval.lower
            self.refuse_type("an interval of its declared values", end)
        if not inside:
            return nothing(prefix, self.field)
        bounds = Bounds(min(inside), self._upper(inside))
        if any(bounds.holds(key) for key in keys.keys() - inside):
            return bounds
        return msgspec.structs.replace(bounds, expressed=frozenset((self.field,)))

    def _upper(self, inside: set[str]) -> str | None:
        if not self.is_last or self.is_prefix_free:
            return successor(max(inside))
        return above_additional_rows(*inside) if self.is_wide else just_above(max(inside))


class Bucket(KeyPart, frozen=True):
    """`{device:hash16}`: distributes values over partitions."""

    buckets: int
    written: KeyPart
    """The part whose written value is hashed."""

    @property
    def is_prefix_free(self) -> bool:
        return True

    @property
    def is_full(self) -> bool:
        return False

    @property
    def length_min(self) -> int:
        return len(str(self.buckets - 1))

    @property
    def pattern(self) -> str:
        return f"[0-9]{{{self.length_min}}}"

    def encode(self, value: Any) -> str:
        digest = blake2b(self.written.encode(value).encode(), digest_size=8).digest()
        return self.write(int.from_bytes(digest) % self.buckets)

    def decode(self, text: str) -> int:
        if int(text) >= self.buckets:
            raise ValueError(text)
        return int(text)

    def write(self, bucket: int) -> str:
        return f"{bucket:0{self.length_min}d}"


def above_additional_rows(*keys: str) -> str | None:
    """Return the least key above these keys and the additional rows of their wide entities.

    Additional rows do not directly follow their entity: `Jo~1` sorts after `Joan`, and `J~1` after
    both. A text that is not a valid key has no additional rows.
    """
    highest = [ceiling(max(keys)), *(successor(key + RESERVED) for key in keys if is_legal(key))]
    return None if None in highest else max(filter(None, highest))


def too_long(limit: int) -> InvalidKeyError:
    return InvalidKeyError(
        "KeyTooLong",
        f"The key would be longer than the limit of {limit} UTF-16 code units.",
        facts={"limit": limit},
        hint="Store long texts in properties.",
    )


def _is_prefix_free(texts: Iterable[str]) -> bool:
    ordered = sorted(texts)
    return not any(later.startswith(text) for text, later in pairwise(ordered))


@cache
def _escaped(separator: str) -> re.Pattern[str]:
    return re.compile(f"[=_{RESERVED}{ILLEGAL_CHARACTERS}{re.escape(separator)}]")


def _escape(match: re.Match[str]) -> str:
    return "".join(f"={byte:02X}" for byte in match[0].encode())


def _unescape(match: re.Match[str]) -> str:
    return bytes.fromhex(match[0].replace("=", "")).decode()
