"""Drafts: a key, a field, a class, a module, before they are printed as Python."""

import keyword
import re
from collections.abc import Container

import msgspec

from partita.patterns.fields.naming import snake_case


class FieldDraft(msgspec.Struct, frozen=True):
    """One field of a class."""

    name: str
    annotation: str
    """The type as source text, without `| None`."""
    property: str = ""
    """The stored name; empty for a part of the keys."""
    is_optional: bool = False
    separator: str = ""
    """Separates the members of a list that is stored as text."""
    is_json: bool = False
    note: str = ""
    slots: int = 1
    """The number of properties of a series."""


class KeyDraft(msgspec.Struct, frozen=True):
    """A key template and the fields that it needs."""

    template: str
    fields: tuple[FieldDraft, ...] = ()


class ClassDraft(msgspec.Struct, frozen=True):
    """One entity class."""

    name: str
    stored_type: str | None
    """The value of the type property; None for a class without one."""
    type_property: str | None
    partition: KeyDraft
    row: KeyDraft
    fields: tuple[FieldDraft, ...]
    undeclared: tuple[str, ...] = ()
    """Properties that no field can have; they are kept when an entity is saved."""
    is_single_row: bool = False
    """Whether the fields have more properties than a row of the typed layer."""

    @property
    def key_fields(self) -> list[FieldDraft]:
        both = (*self.partition.fields, *self.row.fields)
        return list({each.name: each for each in both}.values())


def identifier(text: str, taken: Container[str] = (), default: str = "value") -> str:
    """Return a field name made of a text that is not taken.

    >>> identifier("ManagerIDs"), identifier("class"), identifier("2nd", {"value_2nd"})
    ('manager_ids', 'class_', 'value_2nd_2')
    """
    text = re.sub("([A-Z]{2,})s(?![a-z])", lambda match: match[1].capitalize() + "s", text)
    name = "_".join(re.findall("[a-z0-9]+", snake_case(re.sub("[^A-Za-z0-9]+", "_", text))))
    if not name or name[0].isdigit():
        name = f"{default}_{name}".rstrip("_")
    if keyword.iskeyword(name):
        name += "_"
    return _free(name, taken)


def class_name(text: str, taken: Container[str] = (), default: str = "Entity") -> str:
    """Return a class name made of a text that is not taken.

    >>> class_name("last-name index"), class_name("")
    ('LastNameIndex', 'Entity')
    """
    words = re.findall("[A-Za-z0-9]+", text)
    name = "".join(word[:1].upper() + word[1:] for word in words)
    if not name or name[0].isdigit():
        name = default + name
    return _free(f"{name}_" if keyword.iskeyword(name) else name, taken, mark="")


def _free(name: str, taken: Container[str], mark: str = "_") -> str:
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}{mark}{number}"
    return found


def quoted(text: str) -> str:
    """Return a literal in double quotes, unless it would need escapes."""
    literal = repr(text)
    if literal[0] == "'" and '"' not in text and "\\" not in literal:
        return f'"{literal[1:-1]}"'
    return literal
