"""Proposals of indexes for a query, as source text.

Every proposal is compiled and planned: an invalid template, or an index that does not make the
query cheaper, is not proposed.
"""

import re
from collections.abc import Iterator, Sequence
from datetime import date
from decimal import Decimal
from typing import Any

import msgspec

from partita.errors import DefinitionError
from partita.patterns.fields.fields import Field
from partita.patterns.planning.columns import (
    Compare,
    Condition,
    IsIn,
    StartsWith,
    conjuncts,
    plain_type,
)
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.indexes import AnyIndex, Index, ListIndex, Storage, compile_keys

_INT_DIGITS = 8
"""The width of numbers in proposed keys."""


class Proposal(msgspec.Struct, frozen=True):
    """An index that is not declared, and its declaration as text."""

    text: str
    index: AnyIndex


class Compared(msgspec.Struct, frozen=True):
    """The fields that a condition compares, in the best order for a key."""

    equal: tuple[Field, ...]
    ordered: Field | None = None
    """At most one: the order of keys after it does not help the query."""

    @property
    def fields(self) -> tuple[Field, ...]:
        return self.equal if self.ordered is None else (*self.equal, self.ordered)


def compared_in(condition: Condition | None, known: frozenset[str]) -> Compared:
    """Return the fields of a condition that a key could express; `known` are the key fields."""
    equal: dict[str, Field] = {}
    ordered: dict[str, Field] = {}
    for each in conjuncts(condition):
        match each:
            case Compare(field, "eq") | IsIn(field):
                equal[field.name] = field
            case StartsWith(field) | Compare(field, "lt" | "le" | "gt" | "ge"):
                ordered[field.name] = field
            case _:
                pass
    wanted = [field for name, field in equal.items() if name not in known]
    ranges = [field for name, field in ordered.items() if name not in known and name not in equal]
    return Compared(tuple(wanted), ranges[0] if ranges else None)


def propose_near(model: EntityType[Any], compared: Compared) -> Iterator[Proposal]:
    """Propose indexes in the entity's own partition."""
    if not compared.fields:
        return
    first = compared.fields[0]
    if len(compared.fields) == 1 and plain_type(first) is str:
        row = f"{first.name}_{{{first.name}}}"
        yield from _lists(model, row)
        return
    rest = [model.fields[name] for name in model.row.fields]
    row = _key(model, [*compared.fields, *rest], lead=f"{first.name}_")
    yield from _copies(model, row, None, "" if _is_apart(model, row) else _table(model, compared))


def propose_elsewhere(model: EntityType[Any], compared: Compared) -> Iterator[Proposal]:
    """Propose indexes whose partition key has the values that the query gives."""
    if not compared.equal:
        return
    keys = [model.fields[name] for name in model.key_fields]
    row = [*([compared.ordered] if compared.ordered else []), *_texts_last(keys)]
    partition = _key(model, compared.equal)
    yield from _copies(model, _key(model, row), partition, _table(model, compared))


def _table(model: EntityType[Any], compared: Compared) -> str:
    return f"{model.table}by{re.sub('[^A-Za-z0-9]', '', compared.fields[0].name)}"


def _is_apart(model: EntityType[Any], row: str) -> bool:
    """Return whether row keys differ from all other row keys in the table."""
    mine = row.partition("{")[0]
    taken = [model.row, *(index.row for index in model.indexes if index.table == model.table)]
    prefixes = [template.literal_prefix for template in taken]
    return not any(mine.startswith(each) or each.startswith(mine) for each in prefixes)


# ---------------------------------------------------------------------------------------------
# Keys


def _texts_last(fields: Sequence[Field]) -> list[Field]:
    return sorted(fields, key=lambda field: plain_type(field) is str)


def _key(model: EntityType[Any], fields: Sequence[Field], lead: str = "") -> str:
    """Return a key template of these fields, each once."""
    unique = list({field.name: field for field in fields}.values())
    parts = [part_text(model, field, is_last=field is unique[-1]) for field in unique]
    return lead + "_".join(parts)


def part_text(model: EntityType[Any], field: Field, *, is_last: bool) -> str:
    """Return a field as a part of a key template, in the form that the type already uses."""
    kind = plain_type(field)
    if kind is str:
        return f"{{{field.name}}}" if is_last else f"{{{field.name}:esc}}"
    for template in (
        template for keyed in (model, *model.indexes) for template in (keyed.partition, keyed.row)
    ):
        known = re.search(rf"\{{{field.name}(:(?!hash|%|lower)[^}}]*)?\}}", template.text)
        if known:
            return known[0]
    return f"{{{field.name}{_spec(kind)}}}"


def _spec(kind: Any) -> str:
    if not isinstance(kind, type) or issubclass(kind, bool):
        return ""
    if issubclass(kind, int):
        return f":0{_INT_DIGITS}d"
    if issubclass(kind, date):
        return ":asc"
    return ":D12.2" if issubclass(kind, Decimal) else ""


# ---------------------------------------------------------------------------------------------
# Compiled proposals


def _copies(
    model: EntityType[Any], row: str, partition: str | None, table: str
) -> Iterator[Proposal]:
    try:
        keys = compile_keys(model, partition, row)
    except DefinitionError:
        return
    copied = tuple(name for name, field in model.fields.items() if field.series is None)
    arguments = [f'table="{table}"'] if table else []
    arguments += [f'partition="{partition}"'] if partition is not None else []
    arguments.append(f'row="{row}"')
    made = Index(
        model, "proposed", table or model.table, *keys,
        is_unique=False, copied=copied, condition=None,
    )  # fmt: skip
    yield Proposal(f"index({model.cls.__name__}, {', '.join(arguments)})", made)


def _lists(model: EntityType[Any], row: str) -> Iterator[Proposal]:
    table = "" if _is_apart(model, row) else f"{model.table}by{row.partition('_')[0]}"
    try:
        keys = compile_keys(model, None, row, no_tilde=True)
    except DefinitionError:
        return
    arguments = [f'table="{table}"'] if table else []
    arguments.append(f'row="{row}"')
    made = ListIndex(model, "proposed", table or model.table, *keys, Storage.ROWS, container="")
    yield Proposal(f"list_index({model.cls.__name__}, {', '.join(arguments)})", made)
