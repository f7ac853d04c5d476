"""Key classes: they declare the key fields of an entity class once more, for a type checker.

>>> from typing import TypedDict
>>> from partita.patterns.types.decorators import entity, entity_type
>>> @entity(table="staff", partition="{dept}", row="{id:06d}")
... class Person:
...     dept: str
...     id: int
>>> class PersonKey(TypedDict):
...     dept: str
...     id: int
>>> check_key_class(entity_type(Person), PersonKey)
"""

from typing import Any, get_type_hints

from partita.errors import DefinitionError
from partita.patterns.fields.annotations import name_of, plain
from partita.patterns.types.decorators import EntityType


def check_key_class(model: EntityType[Any], key: object) -> None:
    """Raise DefinitionError if a class does not declare exactly the key fields of a type."""
    declared = {name: plain(kind) for name, kind in get_type_hints(key).items() if name != "return"}
    wanted = {name: plain(model.fields[name].annotation) for name in model.key_fields}
    if declared != wanted:
        listed = "; ".join(f"{name}: {name_of(kind)}" for name, kind in wanted.items())
        name = getattr(key, "__name__", key)
        raise DefinitionError(
            "KeyClassRefused",
            f"{name} does not declare the key fields of {model.name} with their types.",
            facts={"type": model.name},
            hint=f"Declare exactly: {listed}.",
        )
