"""Key layouts as format strings: `emp_{id:06d}`, `{at:desc}_{number:04d}`.

A template is proven when it is compiled: two entities never get the same key, what is said to
be ordered sorts as text, every literal is legal, the key can fit. `key_parts.py` lists what a
field is written as.

>>> row = KeyTemplate.compile("emp_{id:06d}", {"id": int}, role="row", owner="Employee")
>>> row.format({"id": 123}), row.parse("emp_000123")
('emp_000123', {'id': 123})
"""

import re
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

import msgspec

from partita.errors import DefinitionError, InvalidKeyError
from partita.patterns.keys.fixed_width_parts import CodePart, Day, Guid, Moment, PaddedInt
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
"""Last words of the names of numbers that grow with every new entity."""


class Spread(msgspec.Struct, frozen=True):
    """A field by whose hash keys are spread, and over how many places."""

    field: str
    buckets: int


class KeyTemplate(msgspec.Struct, frozen=True, eq=False):
    """The layout of one of the two keys of a type. Make it with `compile`."""

    text: str
    role: Role
    owner: str
    pieces: tuple[str | KeyPart, ...]
    """Literals and parts, as they follow each other."""
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
        """Prove a template, or say in a DefinitionError how it could be written.

        `optional` takes fields that may be None; the key of an entity that has None there
        cannot be formatted (code KeyValueAbsent). `no_tilde` keeps `~` out of the keys, which
        are then told from those with `~` and more behind.
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
    def check_pair(partition: "KeyTemplate", row: "KeyTemplate") -> None:
        """Prove that both keys together tell any two entities apart.

        Either template does so for the fields that it writes in full; a hash does not.
        """
        full = {part.field for part in (*partition.parts(), *row.parts()) if part.is_full}
        for template in (partition, row):
            lost = [field for field in template.fields if field not in full]
            if lost:
                raise DefinitionError(
                    "TemplateNotInjective",
                    f"{template.owner}: The keys hold only a hash of {lost[0]!r}, so that two "
                    "entities could get the same keys.",
                    facts={"owner": template.owner, "partition": partition.text, "row": row.text},
                    hint=f"Write the field {lost[0]!r} in full in the row key as well.",
                )

    def __repr__(self) -> str:
        return f"KeyTemplate({self.text!r})"

    def parts(self) -> Iterator[KeyPart]:
        return (piece for piece in self.pieces if isinstance(piece, KeyPart))

    @property
    def spread(self) -> Spread | None:
        buckets = (part for part in self.parts() if isinstance(part, Bucket))
        return next((Spread(part.field, part.buckets) for part in buckets), None)

    def may_meet(self, other: "KeyTemplate") -> bool:
        """Tell whether a key of one may be a key of the other, or begin as one does.

        It is not so where they have characters at the same place that are never the same.
        """
        places = zip(self.leading(), other.leading(), strict=False)
        return all(mine & theirs for mine, theirs in places)

    def may_begin_with(self, text: str) -> bool:
        """Tell whether a key may begin so, or be the beginning of it."""
        places = zip(text, self.leading(), strict=False)
        return all(letter in letters for letter, letters in places)

    def leading(self) -> Iterator[frozenset[str]]:
        """Yield what may stand at each place, as far as the places are fixed."""
        for piece in self.pieces:
            if isinstance(piece, str):
                yield from map(frozenset, piece)
            elif isinstance(piece, CodePart | Bucket):
                letters = "0123456789abcdef-" if isinstance(piece, Guid) else "0123456789"
                yield from repeat(frozenset(letters), piece.length_min)
            else:
                return

    @property
    def is_prefix_free(self) -> bool:
        """Whether no key is the beginning of another.

        Then what begins with a key lies beside it: further rows of a wide entity.
        """
        last = self.pieces[-1] if self.pieces else ""
        return last.is_prefix_free if isinstance(last, KeyPart) else bool(last)

    @property
    def is_monotone(self) -> bool:
        """Whether new entities come with ever greater, or ever lesser, keys.

        It is so if what varies first is a time or a number that is named like a sequence.
        """
        first = next(self.parts(), None)
        if isinstance(first, PaddedInt):
            words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", first.field)
            return bool(words) and words[-1].lower() in _SEQUENCE_WORDS
        return isinstance(first, Moment | Day)

    def is_ordered(self, field: str) -> bool:
        """Tell whether keys that are equal up to this field sort by it."""
        return any(part.is_ordered for part in self.parts() if part.field == field)

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
        """Return the fields that the key holds in full."""
        found = self.pattern.fullmatch(key) if fits(key) else None
        if found:
            try:
                return self._decode(found.groups())
            except ValueError:
                pass  # because digits need not be a date, nor escapes UTF-8
        raise InvalidKeyError(
            "KeyNotOfTemplate",
            f"The {self.role} key is not one of {self.owner}: the template is {self.text!r}.",
            facts={"owner": self.owner, "template": self.text},
            hint="Another type, or another version of this one, may have written it: say "
            'misfits("skip") or misfits("raw") on the query, or read it with raw().',
        )

    def matches(self, key: str) -> bool:
        try:
            self.parse(key)
        except InvalidKeyError:
            return False
        return True

    def bounds(self, given: Mapping[str, Any], *, is_tight: bool = False) -> Bounds:
        """Return the least range that holds the keys of entities that satisfy the conditions.

        A condition is a value or an Interval. Fields are used from the left, as long as they
        are given as values, and then one interval. Further rows of wide entities (`~1` behind
        the key) are inside with their entity. `is_tight` leaves out keys that no value of the
        first field without a condition can have, such as those that have no digits there.
        """
        prefix, said = "", set[str]()
        for piece in self.pieces:
            if isinstance(piece, str):
                prefix += piece
                continue
            condition = given.get(piece.field, _NOT_GIVEN)
            if condition is _NOT_GIVEN and is_tight:
                any_value = self._open(prefix, piece, Interval(), said)
                return msgspec.structs.replace(any_value, expressed=frozenset(said))
            if condition is _NOT_GIVEN or isinstance(condition, Interval):
                return self._open(prefix, piece, condition, said)
            prefix += piece.encode(self._value(given, piece.field))
            if piece.is_full:
                said.add(piece.field)
        self._check(prefix)
        return self._whole(prefix, said)

    def spread_values(self, given: Mapping[str, Any] | None = None) -> tuple[str, ...]:
        """Return what the keys of entities with these values begin with: one text a bucket.

        They are the keys themselves where all fields but the spread one are given. Without a
        spread, or with its field given, there is one.
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
            else:
                break
        return tuple(found)

    def _value(self, values: Mapping[str, Any], field: str) -> Any:
        if field not in values:
            raise InvalidKeyError(
                "KeyFieldMissing",
                f"The {self.role} key of {self.owner} needs the field {field!r}.",
                facts={"owner": self.owner, "template": self.text, "field": field},
                hint=f"Give all of {', '.join(self.fields)}.",
            )
        value = values[field]
        if value is None:
            raise InvalidKeyError(
                "KeyValueAbsent",
                f"The field {field!r} of {self.owner} is None, and a key has no way to say None.",
                facts={"owner": self.owner, "template": self.text, "field": field},
            )
        return value

    def _check(self, key: str) -> None:
        spare = WIDE_SUFFIX_CHARACTERS_MAX if self.reserve_tilde else 0
        characters_max = limits.KEY_CHARACTERS_MAX - spare
        if edm.utf16_length(key) > characters_max:
            raise too_long(characters_max)
        # Behind an empty row key the mark of what follows would come first.
        is_empty = self.reserve_tilde and self.role == "row" and not key
        if key.startswith(RESERVED) or is_empty:
            raise InvalidKeyError(
                "KeyReserved",
                f"The {self.role} key of {self.owner} would begin with {RESERVED}: such keys are "
                "those of hidden rows.",
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

    def _open(self, prefix: str, part: KeyPart, condition: object, said: set[str]) -> Bounds:
        if not fits(prefix):
            raise too_long(limits.KEY_CHARACTERS_MAX)
        narrow = part.narrow(prefix, condition) if isinstance(condition, Interval) else None
        if narrow is None:
            return Bounds(prefix, successor(prefix), frozenset(said))
        return msgspec.structs.replace(narrow, expressed=narrow.expressed | said)

    def _whole(self, key: str, said: set[str]) -> Bounds:
        if self.is_prefix_free:
            return Bounds(key, successor(key), frozenset(said))
        if not self.reserve_tilde:
            return Bounds(key, just_above(key), frozenset(said))
        # Other keys that begin with this one lie before its further rows.
        last = {part.field for part in self.parts() if part is self.pieces[-1]}
        return Bounds(key, successor(key + RESERVED), frozenset(said - last))


_NOT_GIVEN = object()


def _pattern(pieces: tuple[str | KeyPart, ...]) -> re.Pattern[str]:
    sources = (re.escape(p) if isinstance(p, str) else f"({p.pattern})" for p in pieces)
    # Rows that begin with the mark are not the caller's, whatever a text part would take.
    return re.compile(f"(?!{RESERVED})" + "".join(sources))
