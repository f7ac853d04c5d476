"""The Python module of drafted classes.

Rule: nothing from the table is printed but as a literal, by `repr`, or as a name that
`drafts.identifier` made.
"""

import re
from collections.abc import Iterator, Sequence

from partita.patterns.adoption.drafts import ClassDraft, FieldDraft, quoted
from partita.patterns.fields.naming import pascal_case

_LINE = 100

_STRINGS = re.compile(r"'[^']*'|\"[^\"]*\"")


def module_text(table: str, classes: Sequence[ClassDraft], rows: int) -> str:
    """Return the source of a module that declares the classes."""
    title = f'"""Entity classes of the table {table}, inferred from {rows:,} rows."""'
    body = [line for each in classes for line in _class_lines(table, each)]
    return "\n".join([title, "", *_imports(classes, "\n".join(body)), *body]) + "\n"


def _imports(classes: Sequence[ClassDraft], body: str) -> Iterator[str]:
    fields = [field for each in classes for field in (*each.key_fields, *each.fields)]
    types = " ".join(_STRINGS.sub("", field.annotation) for field in fields)
    standard = {
        "datetime": ("date", "datetime"),
        "typing": ("Annotated", "Any"),
        "uuid": ("UUID",),
    }
    has_any = False
    for module, names in standard.items():
        text = body if module == "typing" else types
        used = [name for name in names if re.search(rf"\b{name}\b", text)]
        if used:
            has_any = True
            yield f"from {module} import {', '.join(used)}"
    if has_any:
        yield ""
    markers = [name for name in ("Int32", "Named", "Series") if re.search(rf"\b{name}\b", body)]
    yield f"from partita.patterns import {', '.join([*markers, 'entity'])}"


def _class_lines(table: str, draft: ClassDraft) -> Iterator[str]:
    yield ""
    yield ""
    yield from _decorator(table, draft)
    yield f"class {draft.name}:"
    for field in draft.key_fields:
        yield _field_line(field)
    for field in draft.fields:
        yield _field_line(field)
    if draft.undeclared:
        names = ", ".join(map(quoted, draft.undeclared))
        yield f"    # Kept when an entity is saved, but no field: {names}"
    for field in draft.fields:
        if field.separator:
            yield from _list_lines(field)


def _decorator(table: str, draft: ClassDraft) -> Iterator[str]:
    arguments = [
        f"table={quoted(table)}",
        f"partition={quoted(draft.partition.template)}",
        f"row={quoted(draft.row.template)}",
    ]
    if draft.stored_type is None:
        arguments.append("type_property=None")
    else:
        arguments += [f"name={quoted(draft.stored_type)}"] * (draft.stored_type != draft.name)
        if draft.type_property not in (None, "EntityType"):
            arguments.append(f"type_property={quoted(draft.type_property)}")
    if draft.is_single_row:
        arguments.append("single_row=True")
    line = f"@entity({', '.join(arguments)})"
    if len(line) <= _LINE:
        yield line
        return
    yield "@entity("
    yield from (f"    {each}," for each in arguments)
    yield ")"


def _field_line(field: FieldDraft) -> str:
    annotation = field.annotation
    marker = f"Named({quoted(field.property)})"
    is_named = field.property and "Series(" not in annotation
    if is_named and pascal_case(field.name) != field.property:
        if annotation.startswith("Annotated["):
            annotation = annotation.replace("]", f", {marker}]")
        else:
            inner = f"{annotation} | None" if field.is_optional else annotation
            annotation = f"Annotated[{inner}, {marker}]"
    if field.is_optional:
        is_inside = "| None" in annotation
        annotation = f"{annotation} = None" if is_inside else f"{annotation} | None = None"
    note = f"  # {field.note}" if field.note else ""
    return f"    {field.name}: {annotation}{note}"


def _list_lines(field: FieldDraft) -> Iterator[str]:
    yield ""
    yield "    @property"
    yield f"    def {field.name}_list(self) -> list[str]:"
    yield f'        """The members of {field.name}, separated by {field.separator!r}."""'
    value = f"self.{field.name}"
    yield f"        return {value}.split({quoted(field.separator)}) if {value} else []"
