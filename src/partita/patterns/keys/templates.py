"""Key templates: the layout of a key as a format string, such as `emp_{id:06d}`.

Compiling a template proves that two entities never get the same key, that ordered parts sort as
text, that literals are valid and that the key can fit. `key_parts.py` lists the written forms.

>>> row = KeyTemplate.compile("emp_{id:06d}", {"id": int}, role="row", owner="Employee")
>>> row.format({"id": 123}), row.parse("emp_000123")
('emp_000123', {'id': 123})
"""

import re
from collections.abc import Iterator, Mapping, Set
from itertools import repeat
from typing import Any

import msgspec

from partita.errors import DefinitionError, InvalidKeyError
from partita.patterns.keys.coarse_parts import Lowered, Period
from partita.patterns.keys.fixed_width_parts import CodePart, Day, Moment, PaddedInt
from partita.patterns.keys.format_specs import Role
from partita.patterns.keys.intervals import Interval
from partita.patterns.keys.key_parts import Bucket, KeyPart, too_long
from partita.patterns.keys.key_text import (
    RESERVED,
    WIDE_SUFFIX_CHARACTERS_MAX,
    Bounds,
    fits,
    just_above,
    successor,
)
from partita.patterns.keys.template_parser import TemplateText
from partita.tables import edm, limits

__all__ = ["Bounds", "KeyTemplate", "Role", "Spread"]

_SEQUENCE_WORDS = frozenset(
    {
        *("sequence", "seq", "number", "no", "nr", "serial", "ordinal", "counter", "increment"),
        *("offset", "position", "revision", "tick", "ticks", "timestamp", "ts", "epoch"),
        *("time", "at", "year", "month", "week", "day", "date", "hour", "minute", "second"),
    }
)
"""The last words of the names of numbers that grow with every new entity."""


class Spread(msgspec.Struct, frozen=True):
    """A field whose hash distributes the keys, and the number of buckets."""

    field: str
    buckets: int


class KeyTemplate(msgspec.Struct, frozen=True, eq=False):
    """The layout of the partition key or the row key of a type. Made by `compile`."""

    text: str
    role: Role
    owner: str
    pieces: tuple[str | KeyPart, ...]
    """Literals and parts, from left to right."""
    fields: tuple[str, ...]
    literal_prefix: str
    pattern: re.Pattern[str]
    reserve_tilde: bool = False

    @classmethod
    def compile(
        cls,
        text: str,
        annotations: Mapping[str, object],
        *,
        role: Role,
        owner: str,
        optional: bool = False,
        no_tilde: bool = False,
    ) -> "KeyTemplate":
        """Check and compile a template; a DefinitionError suggests a valid one.

        `optional` accepts fields that can be None; formatting a key with None in it raises
        KeyValueAbsent. `no_tilde` excludes `~` from the keys, so that keys with `~` and a suffix
        can be told apart from them.
        """
        source = TemplateText(text, role, owner, is_optional=optional, is_wide=no_tilde)
        pieces = source.prove(annotations)
        return cls(
            text,
            role,
            owner,
            pieces,
            fields=tuple(dict.fromkeys(p.field for p in pieces if isinstance(p, KeyPart))),
            literal_prefix=pieces[0] if pieces and isinstance(pieces[0], str) else "",
            pattern=_pattern(pieces),
            reserve_tilde=no_tilde,
        )

    @staticmethod
    def check_pair(
        partition: "KeyTemplate", row: "KeyTemplate"
    ) -> tuple["KeyTemplate", "KeyTemplate"]:
        """Return both templates if they together identify one entity.

        Each field must be written in full in one of them; a hash is not enough. A period or a
        text in lower case without that accepts only the values that it can give back.
        """
        whole = {part.field for part in (*partition.parts(), *row.parts()) if part.is_full}
        partition, row = partition.made_whole(whole), row.made_whole(whole)
        full = {part.field for part in (*partition.parts(), *row.parts()) if part.is_full}
        for template in (partition, row):
            lost = [field for field in template.fields if field not in full]
            if lost:
                raise DefinitionError(
                    "TemplateNotInjective",
                    f"{template.owner}: The keys have only a hash of {lost[0]!r}, so two entities "
                    "could get the same keys.",
                    facts={"owner": template.owner, "partition": partition.text, "row": row.text},
                    hint=f"Write the field {lost[0]!r} in full in the row key too.",
                )
        return partition, row

    def made_whole(self, known: Set[str]) -> "KeyTemplate":
        """Return the template with coarse parts made whole, unless their fields are known."""
        pieces = tuple(
            piece.whole()
            if isinstance(piece, Period | Lowered) and piece.field not in known
            else piece
            for piece in self.pieces
        )
        return self if pieces == self.pieces else msgspec.structs.replace(self, pieces=pieces)

    def __repr__(self) -> str:
        return f"KeyTemplate({self.text!r})"

    def parts(self) -> Iterator[KeyPart]:
        return (piece for piece in self.pieces if isinstance(piece, KeyPart))

    @property
    def spread(self) -> Spread | None:
        buckets = (part for part in self.parts() if isinstance(part, Bucket))
        return next((Spread(part.field, part.buckets) for part in buckets), None)

    def may_meet(self, other: "KeyTemplate") -> bool:
        """Return whether a key of one template can equal, or be a prefix of, a key of the other.

        They cannot if at some position their sets of possible characters are disjoint.
        """
        places = zip(self.leading(), other.leading(), strict=False)
        return all(mine & theirs for mine, theirs in places)

    def may_equal(self, other: "KeyTemplate") -> bool:
        """Return whether a key of one template can equal a key of the other."""
        mine, theirs = self.length, other.length
        return self.may_meet(other) and (mine is None or theirs is None or mine == theirs)

    @property
    def length(self) -> int | None:
        """The length of every key; None if it varies."""
        lengths = [
            len(piece) if isinstance(piece, str) else piece.length_min
            for piece in self.pieces
            if isinstance(piece, str | CodePart | Bucket)
        ]
        return sum(lengths) if len(lengths) == len(self.pieces) else None

    def may_begin_with(self, text: str) -> bool:
        """Return whether a key can begin with a text, or be a prefix of it."""
        places = zip(text, self.leading(), strict=False)
        return all(letter in letters for letter, letters in places)

    def leading(self) -> Iterator[frozenset[str]]:
        """Yield the possible characters of each position, up to a part of variable length."""
        for piece in self.pieces:
            if isinstance(piece, str):
                yield from map(frozenset, piece)
            elif isinstance(piece, CodePart | Bucket):
                letters = piece.letters if isinstance(piece, CodePart) else "0123456789"
                yield from repeat(frozenset(letters), piece.length_min)
            else:
                return

    @property
    def is_prefix_free(self) -> bool:
        """Whether no key is a prefix of another.

        If so, only the additional rows of a wide entity begin with its key.
        """
        last = self.pieces[-1] if self.pieces else ""
        return last.is_prefix_free if isinstance(last, KeyPart) else bool(last)

    @property
    def is_monotone(self) -> bool:
        """Whether the keys of new entities only increase or only decrease.

        Assumed if the first part is a time, or a number that is named like a sequence.
        """
        first = next(self.parts(), None)
        if isinstance(first, PaddedInt) and not first.offset:
            words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", first.field)
            return bool(words) and words[-1].lower() in _SEQUENCE_WORDS
        return isinstance(first, Moment | Day | Period)

    def is_ordered(self, field: str) -> bool:
        """Return whether keys that are equal up to this field sort by it."""
        parts = [part for part in self.parts() if part.field == field]
        is_coarse = any(isinstance(part, Period | Lowered) and not part.is_full for part in parts)
        return not is_coarse and any(part.is_ordered for part in parts)

    def is_descending(self, field: str) -> bool:
        return any(part.is_descending for part in self.parts() if part.field == field)

    def format(self, values: Mapping[str, Any]) -> str:
        """Return the key of an entity that has these values."""
        key = "".join(
            piece if isinstance(piece, str) else piece.encode(self._value(values, piece.field))
            for piece in self.pieces
        )
        self._check(key)
        return key

    def parse(self, key: str) -> dict[str, Any]:
        """Return the fields that the key contains in full."""
        found = self.pattern.fullmatch(key) if fits(key) else None
        if found:
            try:
                return self._decode(found.groups())
            except ValueError:
                pass  # because digits may not form a date, nor escapes valid UTF-8
        raise InvalidKeyError(
            "KeyNotOfTemplate",
            f"The {self.role} key does not match the template {self.text!r} of {self.owner}.",
            facts={"owner": self.owner, "template": self.text},
            hint='Use misfits("skip") or misfits("raw") on the query, or read it with raw(): '
            "another type, or another version of this one, may have written it.",
        )

    def matches(self, key: str) -> bool:
        try:
            self.parse(key)
        except InvalidKeyError:
            return False
        return True

    def bounds(self, given: Mapping[str, Any], *, is_tight: bool = False) -> Bounds:
        """Return the smallest range with the keys of all entities that satisfy the conditions.

        A condition is a value or an Interval. Fields are used from the left: values first, then
        one interval. The range includes the additional rows of wide entities (`~1` after the key).
        `is_tight` excludes keys that no value of the first field without a condition can have,
        such as keys without digits there.
        """
        prefix, expressed = "", set[str]()
        for piece in self.pieces:
            if isinstance(piece, str):
                prefix += piece
                continue
            condition = given.get(piece.field, _NOT_GIVEN)
            if condition is _NOT_GIVEN and is_tight:
                any_value = self._open(prefix, piece, Interval(), expressed)
                return msgspec.structs.replace(any_value, expressed=frozenset(expressed))
            if condition is _NOT_GIVEN or isinstance(condition, Interval):
                return self._open(prefix, piece, condition, expressed)
            prefix += piece.encode(self._value(given, piece.field))
            if piece.is_full:
                expressed.add(piece.field)
        self._check(prefix)
        return self._whole(prefix, expressed)

    def spread_values(self, given: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Return the prefixes of the keys of entities with these values, one per bucket or period.

        If all fields but the hashed one are given, these are whole keys. Without a hash, or with
        the hashed field given, there is one prefix. Periods need an interval with two ends.
        """
        given = given or {}
        found = [""]
        for piece in self.pieces:
            if isinstance(piece, str):
                found = [prefix + piece for prefix in found]
            elif piece.field in given and not isinstance(given[piece.field], Interval):
                form = piece.encode(self._value(given, piece.field))
                found = [prefix + form for prefix in found]
            elif isinstance(piece, Bucket):
                forms = [piece.write(bucket) for bucket in range(piece.buckets)]
                found = [prefix + form for prefix in found for form in forms]
            elif (periods := _periods(piece, given)) is not None:
                found = [prefix + form for prefix in found for form in periods]
            else:
                break
        return tuple(found)

    def is_countable(self, given: Mapping[str, Any]) -> bool:
        """Return whether `spread_values` returns whole keys, and not too many of them."""
        missing = [
            part
            for part in self.parts()
            if part.field not in given or isinstance(given[part.field], Interval)
        ]
        periods = [_periods(part, given) for part in missing if not isinstance(part, Bucket)]
        return len(periods) <= 1 and None not in periods

    def _value(self, values: Mapping[str, Any], field: str) -> Any:
        if field not in values:
            raise InvalidKeyError(
                "KeyFieldMissing",
                f"The {self.role} key of {self.owner} requires the field {field!r}.",
                facts={"owner": self.owner, "template": self.text, "field": field},
                hint=f"Give {', '.join(self.fields)}.",
            )
        value = values[field]
        if value is None:
            raise InvalidKeyError(
                "KeyValueAbsent",
                f"The field {field!r} of {self.owner} is None, which a key cannot represent.",
                facts={"owner": self.owner, "template": self.text, "field": field},
            )
        return value

    def _check(self, key: str) -> None:
        spare = WIDE_SUFFIX_CHARACTERS_MAX if self.reserve_tilde else 0
        characters_max = limits.KEY_CHARACTERS_MAX - spare
        if edm.utf16_length(key) > characters_max:
            raise too_long(characters_max)
        # The suffix after an empty row key would begin with the reserved character.
        is_empty = self.reserve_tilde and self.role == "row" and not key
        if key.startswith(RESERVED) or is_empty:
            raise InvalidKeyError(
                "KeyReserved",
                f"The {self.role} key of {self.owner} would begin with {RESERVED}, which is "
                "reserved for hidden rows.",
                facts={"owner": self.owner, "template": self.text},
                hint="Begin the template with a literal, or write the text with :esc.",
            )

    def _decode(self, texts: tuple[str, ...]) -> dict[str, Any]:
        parts = list(zip(self.parts(), texts, strict=True))
        values = {part.field: part.decode(text) for part, text in parts if part.is_full}
        for part, text in parts:
            if not part.is_full:
                part.decode(text)
                if part.field in values and part.encode(values[part.field]) != text:
                    raise ValueError(text)
        return values

    def _open(self, prefix: str, part: KeyPart, condition: object, expressed: set[str]) -> Bounds:
        if not fits(prefix):
            raise too_long(limits.KEY_CHARACTERS_MAX)
        narrow = part.narrow(prefix, condition) if isinstance(condition, Interval) else None
        if narrow is None:
            return Bounds(prefix, successor(prefix), frozenset(expressed))
        return msgspec.structs.replace(narrow, expressed=narrow.expressed | expressed)

    def _whole(self, key: str, expressed: set[str]) -> Bounds:
        if self.is_prefix_free:
            return Bounds(key, successor(key), frozenset(expressed))
        if not self.reserve_tilde:
            return Bounds(key, just_above(key), frozenset(expressed))
        # Other keys that begin with this one sort before its additional rows.
        last = {part.field for part in self.parts() if part is self.pieces[-1]}
        return Bounds(key, successor(key + RESERVED), frozenset(expressed - last))


_NOT_GIVEN = object()


def _periods(part: KeyPart, given: Mapping[str, Any]) -> list[str] | None:
    """Return the written periods of an interval; None if they cannot be enumerated."""
    interval = given.get(part.field)
    if not isinstance(part, Period) or not isinstance(interval, Interval):
        return None
    return part.forms_in(interval)


def _pattern(pieces: tuple[str | KeyPart, ...]) -> re.Pattern[str]:
    sources = (re.escape(p) if isinstance(p, str) else f"({p.pattern})" for p in pieces)
    # Keys that begin with the reserved character belong to hidden rows.
    return re.compile(f"(?!{RESERVED})" + "".join(sources))
