"""Large values of an object, as steps: where they are, and how they are replaced in chunks."""

from typing import Any, TypeVar

from partita.errors import UsageError
from partita.patterns.fields.fields import Field
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.operations import verbs
from partita.patterns.planning.columns import find_field
from partita.patterns.protocol.calls import Steps
from partita.patterns.types.decorators import EntityType
from partita.patterns.writing.chunks import Upload
from partita.patterns.writing.context import Context
from partita.patterns.writing.write import write

T = TypeVar("T")


def large_field(model: EntityType[Any], name: str) -> Field:
    """Return a field whose value is in a blob."""
    field = find_field(model, name)
    if not field.is_in_blob:
        raise UsageError(
            "NotALargeValue",
            f"{model.name}.{name} is not stored in a blob.",
            facts={"type": model.name, "field": name},
            hint="Annotate it: Annotated[LargeValue | None, InBlob].",
        )
    return field


def large_value_of(model: EntityType[Any], entity: Any, name: str) -> LargeValue:
    """Return the reference to the large value of an object, as it was loaded or saved."""
    value = getattr(entity, name)
    origin = model.origin(entity)
    if not isinstance(value, LargeValue):
        value = None if origin is None else origin.values.get(name)
    if not isinstance(value, LargeValue):
        raise UsageError(
            "NotALargeValue",
            f"This {model.name} has no stored value in {name!r}.",
            facts={"type": model.name, "field": name},
            hint="Load or save the entity first; a value that is None has no blob.",
        )
    return value


def new_upload(context: Context, model: EntityType[Any], entity: Any, name: str) -> Upload:
    """Return a writer of a large value in chunks."""
    own = verbs.check_entity(model, entity)
    field = large_field(own, name)
    if not field.is_lazy:
        raise UsageError(
            "NotALargeValue",
            f"{model.name}.{name} holds its value in memory, and is written by save().",
            facts={"type": model.name, "field": name},
            hint="To write it in chunks, annotate it: Annotated[LargeValue | None, InBlob].",
        )
    write_id = context.clock.random_bytes(8).hex()
    return Upload(own.table, own.key(own.values(entity)), field, write_id)


def save_large(
    context: Context, model: EntityType[T], entity: T, name: str, value: LargeValue
) -> Steps[T]:
    """Save an entity with another large value."""
    own = verbs.check_entity(model, entity)
    changed = own.rebuild(entity, {name: value})
    own.set_origin(changed, own.origin(entity))
    change = verbs.change_of(model, changed)
    change.uploaded = value
    yield from verbs.find_etag(context, change)
    [written] = yield from write(context, [change])
    return verbs.remember(changed, written)
