"""Which fields a merge writes: the fields that the caller set.

- Of an object that was loaded or saved: the fields that differ from the stored values.
- Of a new pydantic model: the fields in `model_fields_set`.
- Of any other new object: the fields that are neither None nor equal to their default.
"""

from collections.abc import Collection, Mapping
from typing import Any

from partita.errors import UsageError
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.fields.load_state import are_same
from partita.patterns.types.blob_values import to_content
from partita.patterns.types.decorators import EntityType, Field, Origin

Merge = bool | Collection[str]
"""False: replace. True: merge the fields that were set. Names: merge exactly these fields."""


def values_to_merge(
    model: EntityType[Any], entity: Any, origin: Origin | None, merge: Merge
) -> dict[str, Any]:
    """Return the values that a merge writes, by field name; of a series, the changed slots."""
    values = model.values(entity)
    names = None if isinstance(merge, bool) else _checked_names(model, merge)
    fields_set = model.fields_set(entity)
    written: dict[str, Any] = {}
    for field in model.fields.values():
        name, value = field.name, values[field.name]
        if field.is_key or field.derived is not None:
            continue
        if names is not None:
            if name in names:
                written[name] = value
        elif origin is not None:
            if _differs(field, value, origin.values[name]):
                written[name] = _slots_changed(field, value, origin.values[name])
        elif name in fields_set if fields_set is not None else not _is_unset(field, value):
            written[name] = value
    return written


def _checked_names(model: EntityType[Any], names: Collection[str]) -> Collection[str]:
    for name in [names] if isinstance(names, str) else names:
        field = model.fields.get(name)
        if isinstance(names, str) or field is None or field.derived is not None:
            raise UsageError(
                "UnknownField",
                f"{name!r} is not a field of {model.name} that can be written.",
                facts={"type": model.name, "field": name},
                hint=f"Pass a list of names, such as merge=[{next(iter(model.fields))!r}]. Fields: "
                f"{', '.join(model.fields)}.",
            )
    return names


def _differs(field: Field, value: Any, stored: Any) -> bool:
    if isinstance(stored, LargeValue) and not field.is_lazy:
        content = to_content(field, value)
        return content is None or not stored.is_of(content)
    return not are_same(value, stored)


def _slots_changed(field: Field, value: Any, stored: Any) -> Any:
    if not field.slot_names:
        return value
    return {
        slot: each
        for slot, each in value.items()
        if slot not in stored or not are_same(each, stored[slot])
    }


def _is_unset(field: Field, value: Any) -> bool:
    return value is None or (field.default is not None and are_same(value, field.default()))


def can_stand_alone(model: EntityType[Any], entity: Any, written: Mapping[str, Any]) -> bool:
    """Return whether an entity with only these fields stored reads back equal to the object."""
    values = model.values(entity)
    return all(
        field.is_key
        or field.name in written
        or _is_value_of_absent_property(field, values[field.name])
        for field in model.fields.values()
    )


def _is_value_of_absent_property(field: Field, value: Any) -> bool:
    if field.slot_names:
        return not value
    if field.codec.is_optional:
        return value is None
    return field.default is not None and are_same(value, field.default())


def apply_merge(
    model: EntityType[Any], stored: Mapping[str, Any], written: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the fields of a stored entity after a merge; slots that are not given stay."""
    slots = {
        name: {**stored[name], **value}
        for name, value in written.items()
        if model.fields[name].slot_names
    }
    return {**stored, **written, **slots}
