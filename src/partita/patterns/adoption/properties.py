"""The fields of a class, from the properties of its rows: EDM types, JSON, lists, series."""

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from datetime import date
from typing import Any

import msgspec

from partita.errors import PartitaError
from partita.patterns.adoption.drafts import FieldDraft, identifier, quoted
from partita.patterns.fields.codecs import edm_of
from partita.patterns.protocol.values import Row, Value
from partita.patterns.types.row_layout import ROW_PROPERTIES
from partita.tables import edm
from partita.tables.entity import check_property_name

SERIES_MIN = 3
"""Numbered properties that are taken as a series."""

_TYPES = {
    edm.BOOLEAN: "bool",
    edm.INT32: "Annotated[int, Int32]",
    edm.INT64: "int",
    edm.DOUBLE: "float",
    edm.STRING: "str",
    edm.BINARY: "bytes",
    edm.DATETIME: "datetime",
    edm.GUID: "UUID",
}
_WIDER = ((edm.INT32, edm.INT64, edm.DOUBLE), (edm.INT32, edm.INT64))
"""Sets of number types whose first member with all values of the set is their widest one."""
_NUMBERED = re.compile(r"(.*?[^0-9])([0-9]{1,4})")
_LIST_MARKS = ",;|"
_JSON_SCALARS = {str: "str", bool: "bool", int: "int", float: "float"}


def infer_fields(
    rows: Sequence[Row], *, without: Container[str | None]
) -> tuple[list[FieldDraft], list[str]]:
    """Return the fields of the properties, and the properties that no field can have."""
    names = Counter(name for row in rows for name in row.properties if name not in without)
    refused = [name for name in names if not _is_declarable(name)]
    series = _find_series([name for name in names if name not in refused], rows)
    in_series = {name for each in series for name in each.names}
    used: set[str] = set()
    fields: list[FieldDraft] = []
    for name, count in names.items():
        if name in refused:
            continue
        found = next((each for each in series if each.names[0] == name), None)
        if found is None and name in in_series:
            continue
        values = [row.properties[name] for row in rows if name in row.properties]
        draft = (
            _infer(name, values, used, is_optional=count < len(rows))
            if found is None
            else found.draft(used)
        )
        used.add(draft.name)
        fields.append(draft)
    return fields, refused


def _is_declarable(name: str) -> bool:
    try:
        check_property_name(name)
    except PartitaError:
        return False
    return not name.startswith("_") and name != "EntityVersion"


def _infer(
    name: str, values: Sequence[Value], taken: Container[str], *, is_optional: bool
) -> FieldDraft:
    kind = main_type(values)
    annotation, separator, is_json, note = _TYPES[kind], "", False, ""
    if kind == edm.STRING:
        texts = [value for value in values if isinstance(value, str)]
        annotation, separator, is_json = _of_texts(texts)
    kinds = sorted({edm_of(value) for value in values} - {kind})
    if kinds:
        note = f"also stored as {', '.join(kinds)}"
    field = identifier(name, taken)
    return FieldDraft(field, annotation, name, is_optional, separator, is_json, note)


def main_type(values: Sequence[Value]) -> str:
    """Return the EDM type that reads most of the values; numbers are read from narrower types."""
    counts = Counter(map(edm_of, values))
    for numbers in _WIDER:
        if counts.keys() <= set(numbers):
            return next(each for each in reversed(numbers) if each in counts)
    return counts.most_common(1)[0][0]


def _of_texts(texts: Sequence[str]) -> tuple[str, str, bool]:
    """Return the annotation of texts, the separator of a list, and whether they are JSON."""
    known = [text for text in texts if text]
    if not known:
        return "str", "", False
    documents = [_document(text) for text in known]
    if len(known) == len(texts) and all(each is not None for each in documents):
        return _json_type(documents), "", True
    if len(known) == len(texts) and all(_is_day(text) for text in known):
        return "date", "", False
    return "str", next((mark for mark in _LIST_MARKS if _is_list(known, mark)), ""), False


def _document(text: str) -> Any:
    """Return a JSON array or object; None for any other text."""
    if text[:1] not in ("{", "["):
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _json_type(documents: Sequence[Any]) -> str:
    if all(isinstance(each, list) for each in documents):
        return f"list[{_member_type(member for each in documents for member in each)}]"
    if all(isinstance(each, dict) for each in documents):
        return f"dict[str, {_member_type(m for each in documents for m in each.values())}]"
    return "list[Any]" if isinstance(documents[0], list) else "dict[str, Any]"


def _member_type(members: Iterable[Any]) -> str:
    kinds = {type(each) for each in members}
    return _JSON_SCALARS.get(kinds.pop(), "Any") if len(kinds) == 1 else "Any"


def _is_day(text: str) -> bool:
    try:
        return len(text) == 10 and date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def _is_list(texts: Sequence[str], mark: str) -> bool:
    """Return whether texts are lists of ids: short members of one form, without spaces inside."""
    members = [text.split(mark) for text in texts]
    if not any(len(each) > 1 for each in members):
        return False
    forms = {re.sub("[0-9]+", "9", member) for each in members for member in each}
    return len(forms) == 1 and not re.search(r"\s", forms.pop())


class _Series(msgspec.Struct, frozen=True):
    stem: str
    names: tuple[str, ...]
    pattern: str
    slots: int
    first: int
    kind: str

    def draft(self, taken: Container[str]) -> FieldDraft:
        member = "Int32" if self.kind == edm.INT32 else _TYPES[self.kind]
        first = f", first={self.first}" if self.first else ""
        marker = f"Series({quoted(self.pattern)}, slots={self.slots}{first})"
        return FieldDraft(
            identifier(self.stem, taken),
            f"Annotated[dict[int, {member}], {marker}]",
            self.stem,
            note="numbered properties",
            slots=self.slots,
        )


def _find_series(names: Iterable[str], rows: Sequence[Row]) -> list[_Series]:
    numbered: dict[str, dict[str, int]] = {}
    for name in names:
        if match := _NUMBERED.fullmatch(name):
            numbered.setdefault(match[1], {})[name] = int(match[2])
    found = (_series_of(stem, slots, rows) for stem, slots in numbered.items())
    return [each for each in found if each is not None]


def _series_of(stem: str, slots: Mapping[str, int], rows: Sequence[Row]) -> _Series | None:
    if len(slots) < SERIES_MIN:
        return None
    digits = min(len(name) - len(stem) for name in slots)
    form = f"{{:0{digits}d}}" if digits > 1 else "{}"
    pattern = stem.replace("{", "{{").replace("}", "}}") + form
    values = [row.properties[name] for row in rows for name in slots if name in row.properties]
    kinds = {edm_of(value) for value in values}
    is_regular = all(pattern.format(slot) == name for name, slot in slots.items())
    if not is_regular or len(kinds) != 1:
        return None
    # Rows that were not read may have the numbers from 0 on, unless a row has no room for them.
    first, end = min(slots.values()), max(slots.values()) + 1
    first = first if end > ROW_PROPERTIES else 0
    return _Series(stem, tuple(slots), pattern, end - first, first, kinds.pop())
