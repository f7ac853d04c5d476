"""Adoption: the classes of a table, from a sample of its rows, with the proof that they fit."""

import itertools
from collections.abc import Sequence
from datetime import date, datetime
from typing import Any
from uuid import UUID

import msgspec

from partita.errors import DefinitionError, PartitaError
from partita.patterns.adoption.drafts import ClassDraft, FieldDraft, KeyDraft, class_name
from partita.patterns.adoption.groups import RowGroup, find_type_property, group_rows, is_hidden
from partita.patterns.adoption.keys import infer_key, text_key
from partita.patterns.adoption.module_text import module_text
from partita.patterns.adoption.proof import Misfit, import_text, prove
from partita.patterns.adoption.properties import infer_fields
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.protocol.values import Row
from partita.patterns.types.decorators import entity_type
from partita.patterns.types.row_layout import ROW_PROPERTIES
from partita.tables.entity import check_table_name
from partita.ticks import Clock

_KEY_TYPES: dict[str, object] = {
    "str": str,
    "int": int,
    "date": date,
    "datetime": datetime,
    "UUID": UUID,
}


class AdoptedClass(msgspec.Struct, frozen=True):
    """A class of the module, and how many of its rows fit."""

    name: str
    stored_type: str | None
    partition: str
    row: str
    fields: dict[str, str]
    """The annotation of each field."""
    optional: list[str]
    rows: int
    fitting: int


class Adoption(msgspec.Struct, frozen=True):
    """What was inferred from the rows of a table."""

    table: str
    rows: int
    hidden: int
    """Rows that the typed layer keeps beside its entities."""
    type_property: str | None
    classes: list[AdoptedClass]
    misfits: list[Misfit]
    overlaps: list[tuple[str, str]]
    """Pairs of classes without a type property whose keys can be the same."""
    module: str
    """The source of the module."""


def adopt(table: str, rows: Sequence[Row], clock: Clock) -> Adoption:
    """Return the classes that read and write the rows of a table."""
    check_table_name(table)
    type_property = find_type_property(rows)
    own = [row for row in rows if not is_hidden(row, type_property)]
    drafted = _drafts(table, group_rows(own, type_property), type_property)
    source = module_text(table, [draft for draft, _ in drafted], len(own))
    module = import_text(source)
    classes: list[AdoptedClass] = []
    misfits: list[Misfit] = []
    for draft, members in drafted:
        json_properties = frozenset(each.property for each in draft.fields if each.is_json)
        unfit = prove(getattr(module, draft.name), members, json_properties, clock)
        misfits += unfit
        classes.append(_adopted(draft, len(members), len(members) - len(unfit)))
    untyped = [getattr(module, draft.name) for draft, _ in drafted if draft.stored_type is None]
    return Adoption(
        table=table,
        rows=len(own),
        hidden=len(rows) - len(own),
        type_property=type_property,
        classes=classes,
        misfits=misfits,
        overlaps=_overlaps(untyped),
        module=source,
    )


def _overlaps(classes: Sequence[type[Any]]) -> list[tuple[str, str]]:
    return [
        (one.__name__, other.__name__)
        for one, other in itertools.combinations(classes, 2)
        if entity_type(one).partition.may_equal(entity_type(other).partition)
        and entity_type(one).row.may_equal(entity_type(other).row)
    ]


def _adopted(draft: ClassDraft, rows: int, fitting: int) -> AdoptedClass:
    fields = (*draft.key_fields, *draft.fields)
    return AdoptedClass(
        draft.name,
        draft.stored_type,
        draft.partition.template,
        draft.row.template,
        {field.name: field.annotation for field in fields},
        [field.name for field in fields if field.is_optional],
        rows,
        fitting,
    )


def _drafts(
    table: str, groups: Sequence[RowGroup], type_property: str | None
) -> list[tuple[ClassDraft, tuple[Row, ...]]]:
    found: list[tuple[ClassDraft, tuple[Row, ...]]] = []
    taken: set[str] = set()
    for group, inferred in _merged(groups, type_property):
        name = class_name(_title(table, group, inferred.row), taken)
        taken.add(name)
        draft = _valid(table, msgspec.structs.replace(inferred, name=name))
        found.append((draft, group.rows))
    return found


def _merged(
    groups: Sequence[RowGroup], type_property: str | None
) -> list[tuple[RowGroup, ClassDraft]]:
    """Return groups whose keys differ: rows without a type are told apart by their keys only.

    Physical entities of one wide entity have a number in their row keys that tells them apart.
    """
    found: dict[object, tuple[RowGroup, ClassDraft]] = {}
    split: set[object] = set()
    for group in groups:
        draft = _inferred(group, type_property)
        if (place := _place(draft)) in found and place not in split:
            known, _ = found[place]
            exact = _inferred(known, type_property, is_exact=True)
            other = _inferred(group, type_property, is_exact=True)
            if len({place, _place(exact), _place(other)}) == 3:
                split.add(place)
                del found[place]
                found[_place(exact)] = known, exact
        if is_split := place in split:
            draft = _inferred(group, type_property, is_exact=True)
            place = _place(draft)
        if place in found:
            known, _ = found[place]
            group = msgspec.structs.replace(known, rows=known.rows + group.rows)  # noqa: PLW2901
            draft = _inferred(group, type_property, is_exact=is_split)
        found[place] = group, draft
    return list(found.values())


def _place(draft: ClassDraft) -> object:
    return draft.stored_type or (draft.partition.template, draft.row.template)


def _inferred(group: RowGroup, type_property: str | None, *, is_exact: bool = False) -> ClassDraft:
    """Return the class of a group, without a name.

    With `is_exact`, a number that all row keys have at one place is a literal.
    """
    own_type = None if group.stored_type is None else type_property
    fields, undeclared = infer_fields(group.rows, without={own_type})
    taken = {field.name for field in fields}
    partition = infer_key(group.rows, "partition", taken)
    taken |= {each.name for each in partition.fields}
    row = infer_key(group.rows, "row", taken, is_exact=is_exact)
    partition, row = _shared_time(group.rows, partition, row)
    return ClassDraft(
        "",
        group.stored_type,
        own_type,
        partition,
        row,
        tuple(fields),
        tuple(undeclared),
        is_single_row=sum(field.slots for field in fields) > ROW_PROPERTIES,
    )


def _shared_time(
    rows: Sequence[Row], partition: KeyDraft, row: KeyDraft
) -> tuple[KeyDraft, KeyDraft]:
    """Return keys that share one field, if the partition is the period of the time in the row."""
    periods = [each for each in partition.fields if each.annotation == "datetime"]
    times = [each for each in row.fields if each.annotation == "datetime"]
    if len(partition.fields) != 1 or len(periods) != 1 or len(times) != 1:
        return partition, row
    name, later = periods[0].name, times[0].name
    field = FieldDraft(name, "datetime", note=times[0].note)
    whole = KeyDraft(
        row.template.replace("{" + later, "{" + name),
        tuple(field if each.name == later else each for each in row.fields),
    )
    coarse = KeyDraft(partition.template, (field,))
    return (coarse, whole) if _agree(rows, coarse, whole) else (partition, row)


def _agree(rows: Sequence[Row], partition: KeyDraft, row: KeyDraft) -> bool:
    """Return whether the partition keys follow from the row keys."""
    types = {field.name: _KEY_TYPES[field.annotation] for field in row.fields}
    try:
        whole = KeyTemplate.compile(row.template, types, role="row", owner="adopted")
        coarse = KeyTemplate.compile(partition.template, types, role="partition", owner="adopted")
        return all(coarse.format(whole.parse(each.key.row)) == each.key.partition for each in rows)
    except PartitaError:
        return False


def _valid(table: str, draft: ClassDraft) -> ClassDraft:
    """Return the draft with the first keys that can be declared: at worst, plain text."""
    taken = {field.name for field in draft.fields}
    partition, row = text_key("partition", taken), text_key("row", taken)
    for keys in (
        (draft.partition, draft.row),
        (partition, draft.row),
        (draft.partition, row),
        (partition, row),
    ):
        tried = msgspec.structs.replace(draft, partition=keys[0], row=keys[1])
        if _is_valid(table, tried):
            return tried
    return draft


def _is_valid(table: str, draft: ClassDraft) -> bool:
    try:
        import_text(module_text(table, [draft], 0))
    except DefinitionError:
        return False
    return True


def _title(table: str, group: RowGroup, row: KeyDraft) -> str:
    if group.stored_type is not None:
        return group.stored_type
    if group.token:
        return group.token
    return row.template if not row.fields else table
