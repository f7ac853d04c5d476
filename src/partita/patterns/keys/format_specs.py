"""Choice of the key part for a field, from its type and the format spec after the colon.

An UnfitPartError suggests how to write the part instead; `template_parser.py` inserts that into
the whole template.
"""

import re
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Literal, get_args, get_origin
from uuid import UUID

import msgspec

from partita.patterns.fields.annotations import plain, union_members
from partita.patterns.keys import fixed_width_parts
from partita.patterns.keys.coarse_parts import Lowered, period
from partita.patterns.keys.key_parts import Bucket, Choice, Escaped, KeyPart, PlainInt, Text
from partita.patterns.keys.key_text import RESERVED, is_legal
from partita.tables import limits

BUCKETS_MIN = 2
BUCKETS_MAX = 256
"""A query that does not give the field reads all buckets."""

Role = Literal["partition", "row"]


class PartContext(msgspec.Struct, frozen=True):
    """The position of a part in its template."""

    role: Role
    following: str
    """The literal after the part, up to the next field."""
    is_last: bool
    is_wide: bool = False
    is_optional: bool = False


class UnfitPartError(Exception):
    """The part is invalid; `instead` is template text that could replace it."""

    def __init__(self, code: str, message: str, *, instead: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.instead = instead
        self.hint = hint


def part_for(field: str, spec: str, annotation: object, context: PartContext) -> KeyPart:
    """Return the part for a field, or raise UnfitPartError."""
    annotation = _plain_type(field, annotation, context)
    buckets = re.fullmatch("hash([0-9]{1,4})", spec)
    if buckets:
        return _bucket(field, int(buckets[1]), annotation, context)
    if get_origin(annotation) is Literal:
        return _choice(field, spec, get_args(annotation), context)
    if not isinstance(annotation, type):
        raise _no_key_type(field, annotation)
    if issubclass(annotation, Enum):
        return _choice(field, spec, _members(field, annotation), context)
    for kind, make in _KINDS:
        if issubclass(annotation, kind):
            return make(field, spec, annotation, context)
    raise _no_key_type(field, annotation)


def _plain_type(field: str, annotation: object, context: PartContext) -> Any:
    annotation = plain(annotation)
    members = union_members(annotation)
    if members == (annotation,):
        return annotation
    if len(members) != 1:
        raise _no_key_type(field, annotation)
    if not context.is_optional:
        raise UnfitPartError(
            "KeyFieldOptional",
            f"The field {field!r} can be None, which a key cannot represent.",
            hint="Use a type without None, or remove the field from the key.",
        )
    return plain(members[0])


def _no_key_type(field: str, annotation: object) -> UnfitPartError:
    name = getattr(annotation, "__name__", str(annotation))
    return UnfitPartError(
        "KeyFieldType",
        f"The field {field!r} is of type {name}, which cannot be written in a key.",
        hint="Use str, int, Decimal, bool, datetime, date, UUID, Enum or Literal.",
    )


def _wrong_spec(field: str, spec: str, kind: str, *rest: str) -> UnfitPartError:
    colon = f":{spec}" if spec else ""
    named = " or ".join(f"{{{field}{':' if other else ''}{other}}}" for other in rest)
    return UnfitPartError(
        "TemplateSpec",
        f"A field of type {kind} cannot be written as {{{field}{colon}}}.",
        hint=f"Write {named}.",
    )


def _not_descending(field: str, hint: str) -> UnfitPartError:
    return UnfitPartError(
        "TemplateSpec",
        f"The number {field!r} cannot be written in descending order by :desc alone.",
        hint=hint,
    )


def _text(field: str, spec: str, _: type, context: PartContext) -> KeyPart:
    if spec == "esc":
        return Escaped(field, context.following[:1])
    if spec == "lower":
        return Lowered(field, context.is_wide)
    if spec:
        raise _wrong_spec(field, spec, "str", "", "esc", "lower")
    return Text(field, context.is_wide)


def _int(field: str, spec: str, kind: type, context: PartContext) -> KeyPart:
    padded = re.fullmatch(r"(\+?)0([1-9][0-9]{0,5})d(:desc)?", spec)
    if padded:
        digits, descends = _digits(field, padded[2]), padded[3] is not None
        make = fixed_width_parts.signed_int if padded[1] else fixed_width_parts.padded_int
        return make(field, digits, kind, descends=descends)
    if spec in _COMPLEMENTS:
        return fixed_width_parts.complement(field, _COMPLEMENTS[spec], kind)
    if spec == "" and context.role == "partition":
        return PlainInt(field, kind)
    if spec == "desc":
        raise _not_descending(field, f"Write :08d:desc, whose keys have 99999999 - {field}.")
    raise UnfitPartError(
        "TemplateSpec",
        f"The number {field!r} would not sort: as text, 10 comes before 9.",
        instead=f"{{{field}:08d}}",
    )


_COMPLEMENTS = {"int32:desc": 32, "int64:desc": 64}
"""The widths of int.MaxValue - n and long.MaxValue - n."""


def _decimal(field: str, spec: str, _: type, _context: PartContext) -> KeyPart:
    if spec == "desc":
        hint = f"Add an int field with a value such as 99999999 - {field}, and write it with :08d."
        raise _not_descending(field, hint)
    shape = re.fullmatch(r"D([1-9][0-9]{0,5})\.([0-9]{1,6})", spec)
    if not shape or int(shape[2]) > int(shape[1]):
        raise UnfitPartError(
            "TemplateSpec",
            f"The number {field!r} needs its number of digits, in total and after the point.",
            instead=f"{{{field}:D12.2}}",
        )
    return fixed_width_parts.fixed_point(field, _digits(field, shape[1]), int(shape[2]))


def _digits(field: str, text: str) -> int:
    digits = int(text)
    if digits > limits.KEY_CHARACTERS_MAX:
        raise UnfitPartError(
            "TemplateTooLong",
            f"The part {field!r} is longer than a key can be: "
            f"{limits.KEY_CHARACTERS_MAX} UTF-16 code units.",
            hint="Use fewer digits.",
        )
    return digits


def _bool(field: str, spec: str, _: type, _context: PartContext) -> KeyPart:
    if spec:
        raise _wrong_spec(field, spec, "bool", "")
    return fixed_width_parts.truth(field)


def _datetime(field: str, spec: str, _: type, _context: PartContext) -> KeyPart:
    if found := _period(field, spec, is_date=False):
        return found
    if spec not in ("asc", "desc"):
        raise _wrong_spec(field, spec, "datetime", "desc", "asc")
    return fixed_width_parts.moment(field, descends=spec == "desc")


def _period(field: str, spec: str, *, is_date: bool) -> KeyPart | None:
    if "%" not in spec:
        return None
    found = period(field, spec, is_date=is_date)
    if found is None or not is_legal(spec) or RESERVED in spec:
        raise UnfitPartError(
            "TemplateSpec",
            f"Periods of the form {spec} do not sort, or cannot be written in a key.",
            instead=f"{{{field}:%Y%m%d}}",
        )
    return found


def _date(field: str, spec: str, _: type, _context: PartContext) -> KeyPart:
    if found := _period(field, spec, is_date=True):
        return found
    if spec not in ("asc", "desc"):
        raise _wrong_spec(field, spec, "date", "asc", "desc")
    return fixed_width_parts.day(field, descends=spec == "desc")


def _uuid(field: str, spec: str, _: type, _context: PartContext) -> KeyPart:
    if spec not in ("", "uuid"):
        raise _wrong_spec(field, spec, "UUID", "")
    return fixed_width_parts.guid(field)


_KINDS = (
    (str, _text),
    (bool, _bool),
    (int, _int),
    (Decimal, _decimal),
    (datetime, _datetime),
    (date, _date),
    (UUID, _uuid),
)
"""In this order: a bool is an int, and a datetime a date."""


def _members(field: str, annotation: type[Enum]) -> Iterator[Enum]:
    if issubclass(annotation, Flag):
        raise _no_key_type(field, annotation)
    return iter(annotation)


def _choice(field: str, spec: str, members: Any, context: PartContext) -> KeyPart:
    if spec not in ("", "enum"):
        raise _wrong_spec(field, spec, "Enum or Literal", "")
    forms = {member: _form(field, member, context) for member in members}
    kinds = {isinstance(member.value if isinstance(member, Enum) else member, str)
             for member in forms}  # fmt: skip
    if len(kinds) != 1:
        raise UnfitPartError(
            "KeyFieldType",
            f"The values of {field!r} are not all str or all int, or there are none.",
            hint="Use an Enum or Literal whose values are all str or all int.",
        )
    return Choice(field, forms, "" if context.is_last else context.following, context.is_last,
                  context.is_wide)  # fmt: skip


def _form(field: str, member: object, context: PartContext) -> str:
    value = member.value if isinstance(member, Enum) else member
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise UnfitPartError(
            "KeyFieldType",
            f"{value!r}, a value of {field!r}, is neither a str nor an int.",
            hint="Use an Enum or Literal whose values are all str or all int.",
        )
    form = str.__str__(value) if isinstance(value, str) else int.__repr__(value)
    if not is_legal(form) or (context.is_wide and RESERVED in form):
        raise UnfitPartError(
            "TemplateCharacter",
            f"{form!r}, a value of {field!r}, has a character that is not allowed in keys.",
            hint="Choose another value, or remove the field from the key.",
        )
    return form


def _bucket(field: str, buckets: int, annotation: Any, context: PartContext) -> KeyPart:
    if not BUCKETS_MIN <= buckets <= BUCKETS_MAX:
        raise UnfitPartError(
            "TemplateSpec",
            f"The number of buckets is {BUCKETS_MIN} to {BUCKETS_MAX}, not {buckets}.",
            instead=f"{{{field}:hash16}}",
        )
    written = msgspec.structs.replace(context, role="partition", is_wide=False)
    for spec in ("esc", "", "asc"):
        try:
            return Bucket(field, buckets, part_for(field, spec, annotation, written))
        except UnfitPartError as error:
            if error.code != "TemplateSpec":
                raise
    raise UnfitPartError(
        "TemplateSpec",
        f"The field {field!r} cannot be hashed: equal numbers have several written forms.",
        hint="Hash another field of the key.",
    )
