"""The template of a key, from the keys of similar rows.

A key is split at its separators. A part that is the same word everywhere is a literal; a part whose
texts all have one written form (digits of one width, a period of time, ticks of .NET, a UUID) is a
field of that type; anything else is text. A property with the same values gives a part its name,
and shows that a number is written highest first or with an offset.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from partita.keys import DOTNET_TICKS_MAX
from partita.patterns.adoption.drafts import FieldDraft, KeyDraft, identifier
from partita.patterns.keys.fixed_width_parts import moment
from partita.patterns.keys.format_specs import Role
from partita.patterns.protocol.values import Row, Value

DOMINANT_SHARE = 0.9
"""The share of keys that must have one form; the others are reported as rows that do not fit."""

_SEPARATORS = "_|:;-"
_STRONG_SEPARATORS = "_|"
_YEARS = range(1900, 2101)
_UUID = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_WORD = re.compile("[A-Za-z]+")
_CONSTANT = re.compile("[A-Za-z]+|[0-9]+")
_TICKS = 19
_PERIODS = {
    "[0-9]{10}": "%Y%m%d%H",
    "[0-9]{12}": "%Y%m%d%H%M",
    "[0-9]{14}": "%Y%m%d%H%M%S",
    "[0-9]{4}-[0-9]{2}": "%Y-%m",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}": "%Y-%m-%d",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}[T -][0-9]{2}": "%Y-%m-%d?%H",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}": "%Y-%m-%dT%H:%M",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z": "%Y-%m-%dT%H:%M:%SZ",
}


class _InferredPart(msgspec.Struct, frozen=True):
    """A part of a key that is a field."""

    spec: str
    annotation: str
    name: str
    """What the field is called if nothing else gives it a name."""
    texts: tuple[str, ...]
    read: Callable[[str], Any]
    source: str = ""
    """The property that has the same values."""

    @property
    def is_text(self) -> bool:
        return self.annotation == "str"


def structure(key: str) -> str:
    """Return a key with its runs of digits and letters replaced.

    >>> structure("000123_2012"), structure("empid_07")
    ('9_9', 'a_9')
    """
    return re.sub("[A-Za-z]+", "a", re.sub("[0-9]+", "9", key))


def infer_key(
    rows: Sequence[Row], role: Role, taken: set[str], *, is_exact: bool = False
) -> KeyDraft:
    """Return the template that most keys of the rows have."""
    usual = _usual(rows, role)
    keys = [_key(row, role) for row in usual]
    pieces = _pieces(keys, role, is_first=True, is_exact=is_exact)
    fields: list[FieldDraft] = []
    template, before, used = "", "", set(taken)
    for place, piece in enumerate(pieces):
        if isinstance(piece, str):
            template += piece.replace("{", "{{").replace("}", "}}")
            before = piece
            continue
        part = _matched(piece, usual)
        is_last = place == len(pieces) - 1
        if part.is_text and not is_last and not part.spec:
            part = msgspec.structs.replace(part, spec="esc")
        name = _name(part, before, role)
        if part.is_text and identifier(name) in used:
            name = role  # because a property of that name has other values
        name = identifier(name, used)
        used.add(name)
        note = f"the {role} key has {part.source!r} too" if part.source else ""
        fields.append(FieldDraft(name, part.annotation, note=note))
        template += f"{{{name}:{part.spec}}}" if part.spec else f"{{{name}}}"
        before = ""
    return KeyDraft(template, tuple(fields))


def text_key(role: Role, taken: set[str]) -> KeyDraft:
    """Return the template that every key has."""
    name = identifier(role, taken)
    return KeyDraft(f"{{{name}}}", (FieldDraft(name, "str"),))


def _key(row: Row, role: Role) -> str:
    return row.key.partition if role == "partition" else row.key.row


def _usual(rows: Sequence[Row], role: Role) -> Sequence[Row]:
    """Return the rows with the most frequent form of the key, if they are nearly all rows."""
    forms = Counter(_form(_key(row, role)) for row in rows)
    form, count = forms.most_common(1)[0]
    if count == len(rows) or count < DOMINANT_SHARE * len(rows):
        return rows
    return [row for row in rows if _form(_key(row, role)) == form]


def _form(key: str) -> str:
    """Return the structure of a key with the widths of its numbers."""
    numbers = ",".join(str(len(each)) for each in re.findall("[0-9]+", key))
    return f"{structure(key)} {numbers}"


def _pieces(
    keys: Sequence[str], role: Role, *, is_first: bool, is_exact: bool
) -> list[str | _InferredPart]:
    """Return literals and parts, from left to right."""
    is_one = len(set(keys)) == 1 and _WORD.fullmatch(keys[0])
    if is_one and role == "row" and is_first:
        return [keys[0]]
    if (found := _fixed(keys, role)) is not None:
        return [found]
    lead = _lead(keys)
    if lead:
        rest = [key[len(lead) :] for key in keys]
        return [lead, *_pieces(rest, role, is_first=False, is_exact=is_exact)]
    for separator in _SEPARATORS:
        split = _split(keys, separator, role, _CONSTANT if is_exact else _WORD)
        if split is not None:
            return split
    return [_InferredPart("", "str", role if is_first else "name", tuple(keys), str)]


def _lead(keys: Sequence[str]) -> str:
    """Return the words and separators that all keys begin with."""
    found = ""
    while match := re.match(rf"{re.escape(found)}[A-Za-z]+[{_SEPARATORS}]", keys[0]):
        if not all(key.startswith(match[0]) for key in keys):
            break
        found = match[0]
    return found


def _split(
    keys: Sequence[str], separator: str, role: Role, literal: re.Pattern[str]
) -> list[str | _InferredPart] | None:
    counts = {key.count(separator) for key in keys}
    if not min(counts):
        return None
    columns = list(zip(*(key.split(separator, min(counts)) for key in keys), strict=True))
    pieces: list[str | _InferredPart] = []
    for place, column in enumerate(columns):
        pieces += [separator] if place else []
        found = _fixed(column, role)
        is_word = len(set(column)) == 1 and literal.fullmatch(column[0]) and len(keys) > 1
        text = _InferredPart("", "str", "name", tuple(column), str)
        pieces.append(column[0] if is_word else text if found is None else found)
    texts = [each for each in pieces if isinstance(each, _InferredPart) and each.is_text]
    is_all_text = len(texts) == len(columns)
    if is_all_text and (separator not in _STRONG_SEPARATORS or len(counts) > 1):
        return None
    return _joined(pieces)


def _joined(pieces: Sequence[str | _InferredPart]) -> list[str | _InferredPart]:
    found: list[str | _InferredPart] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        else:
            found.append(piece)
    return found


# ---------------------------------------------------------------------------------------------
# Written forms


def _fixed(column: Sequence[str], role: Role) -> _InferredPart | None:
    """Return the part of texts that all have one written form; None if they are plain text."""
    texts = tuple(column)
    if all(_UUID.fullmatch(text) for text in texts):
        return _InferredPart("", "UUID", "id", texts, str)
    if (found := _period(texts)) is not None:
        return found
    if not all(text.isascii() and text.isdecimal() for text in texts):
        return None
    widths = {len(text) for text in texts}
    if len(widths) > 1:
        is_plain = role == "partition" and all(str(int(text)) == text for text in texts)
        return _InferredPart("", "int", "number", texts, int) if is_plain else None
    return _digits(texts, widths.pop())


def _digits(texts: tuple[str, ...], width: int) -> _InferredPart:
    numbers = [int(text) for text in texts]
    if width == 8 and all(_is_time(text, "%Y%m%d") for text in texts):
        return _InferredPart("asc", "date", "day", texts, lambda text: _time(text, "%Y%m%d").date())
    if width == _TICKS:
        for spec in ("asc", "desc"):
            if all(_ticks_year(number, spec) in _YEARS for number in numbers):
                return _InferredPart(
                    spec, "datetime", "at", texts, moment("", descends=spec == "desc").decode
                )
    is_year = width == 4 and all(number in _YEARS for number in numbers)
    return _InferredPart(f"0{width}d", "int", "year" if is_year else "id", texts, int)


def _ticks_year(number: int, spec: str) -> int:
    ticks = DOTNET_TICKS_MAX - number if spec == "desc" else number
    return ticks // (10_000_000 * 86_400 * 365) + 1 if 0 <= ticks <= DOTNET_TICKS_MAX else 0


def _period(texts: tuple[str, ...]) -> _InferredPart | None:
    for pattern, form in _PERIODS.items():
        if not all(re.fullmatch(pattern, text) for text in texts):
            continue
        exact = form.replace("?", texts[0][10:11])
        if all(_is_time(text, exact) for text in texts):
            is_day = exact == "%Y-%m-%d"
            read = _reader(exact, is_day=is_day)
            kind, name = ("date", "day") if is_day else ("datetime", "at")
            return _InferredPart(exact, kind, name, texts, read)
    return None


def _reader(form: str, *, is_day: bool) -> Callable[[str], Any]:
    return lambda text: _time(text, form).date() if is_day else _time(text, form)


def _time(text: str, form: str) -> datetime:
    return datetime.strptime(text, form).replace(tzinfo=UTC)


def _is_time(text: str, form: str) -> bool:
    try:
        return _time(text, form).year in _YEARS
    except ValueError:
        return False


# ---------------------------------------------------------------------------------------------
# Properties with the same values


def _matched(part: _InferredPart, rows: Sequence[Row]) -> _InferredPart:
    """Return a part with the property that has its values, and the form that this shows."""
    for name, values in _columns(rows).items():
        if part.is_text:
            if list(part.texts) == values:
                return msgspec.structs.replace(part, source=name)
            texts = [each.lower() if isinstance(each, str) else None for each in values]
            if not part.spec and list(part.texts) == texts:
                return msgspec.structs.replace(part, spec="lower", source=name)
        elif all(map(_same, map(part.read, part.texts), values)):
            return msgspec.structs.replace(part, source=name)
        elif part.annotation == "int" and (spec := _number_spec(part.texts, values)):
            return msgspec.structs.replace(part, spec=spec, source=name)
    return part


def _columns(rows: Sequence[Row]) -> Mapping[str, list[Value]]:
    shared = set.intersection(*(set(row.properties) for row in rows))
    names = [name for name in rows[0].properties if name in shared]
    return {name: [row.properties[name] for row in rows] for name in names}


def _same(read: Any, value: Value) -> bool:
    if isinstance(value, bool):
        return False
    return bool(read == value) or (not isinstance(read, int) and str(read) == value)


def _number_spec(texts: Sequence[str], values: Sequence[Value]) -> str:
    """Return the spec of numbers that are not written as they are; empty if none fits."""
    if not all(isinstance(each, int) and not isinstance(each, bool) for each in values):
        return ""
    width = len(texts[0])
    pairs = [(int(text), int(value)) for text, value in zip(texts, values, strict=True)
             if isinstance(value, int)]  # fmt: skip
    if len(set(pairs)) < 2:
        return ""
    for spec, code_max in _complements(width):
        if all(code_max - code == value for code, value in pairs):
            return spec
    offset = 10 ** (width - 1)
    is_signed = width > 1 and all(code - offset == value for code, value in pairs)
    return f"+0{width - 1}d" if is_signed else ""


def _complements(width: int) -> Iterator[tuple[str, int]]:
    yield f"0{width}d:desc", 10**width - 1
    yield from (("int32:desc", 2**31 - 1),) if width == 10 else ()
    yield from (("int64:desc", 2**63 - 1),) if width == 19 else ()


def _name(part: _InferredPart, before: str, role: Role) -> str:
    if part.source:
        return f"{part.source}Key"
    words = _WORD.findall(before)
    if words and (part.is_text or part.annotation in ("int", "UUID")):
        word = words[-1]
        return word if part.is_text or word.lower().endswith("id") else f"{word}_id"
    return part.name or role
