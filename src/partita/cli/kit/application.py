"""What the modules of an application declare.

Rule: an error of a module of the application becomes one line, without a traceback.
"""

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from partita.cli.kit.imports import import_module, import_name, unimportable
from partita.errors import ConfigurationError
from partita.patterns.encryption.keyring import Keyring
from partita.patterns.following.eventual_transactions import NamedSteps
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.types.entity_types import PLACE
from partita.patterns.types.indexes import AnyIndex, Index, ListIndex
from partita.patterns.types.table_series import TableSeries


class Application(msgspec.Struct, frozen=True):
    """The entity types and transactions of some modules, in the order of their names."""

    models: dict[str, EntityType[Any]]
    transactions: dict[str, NamedSteps]

    @property
    def indexes(self) -> list[AnyIndex]:
        return [index for model in self.models.values() for index in model.indexes]


def load(names: Iterable[str]) -> Application:
    """Import modules, each `module` or `module:name`, and collect what they declare."""
    models: dict[str, EntityType[Any]] = {}
    transactions: dict[str, NamedSteps] = {}
    for name in names:
        module = import_module(name.partition(":")[0])
        for value in list(vars(module).values()):
            for model in _models_of(value):
                _add(models, model)
            if isinstance(value, NamedSteps):
                transactions[value.name] = value
    if not models and not transactions:
        raise ConfigurationError(
            "NothingDeclared",
            f"No entity type was found in {', '.join(names)}.",
            hint="Name the modules that have your @entity classes, such as app.models.",
        )
    return Application(dict(sorted(models.items())), dict(sorted(transactions.items())))


def _models_of(value: object) -> list[EntityType[Any]]:
    if isinstance(value, Index | ListIndex):
        return [value.owner]
    if isinstance(value, type) and _is_entity(value):
        return [entity_type(value)]
    return []


def _is_entity(value: type) -> bool:
    found = vars(value).get(PLACE)
    return isinstance(found, EntityType)


def _add(models: dict[str, EntityType[Any]], model: EntityType[Any]) -> None:
    if models.setdefault(model.name, model) is not model:
        raise ConfigurationError(
            "TypeNameTaken",
            f"Two entity types are called {model.name!r}.",
            hint="Give one of them another name: @entity(..., name=...).",
        )


def choose_models(names: Sequence[str], application: Application) -> list[EntityType[Any]]:
    """Return the named types: `module:Class`, or all of `module`."""
    chosen: dict[str, EntityType[Any]] = {}
    for name in names:
        if ":" in name:
            found = import_name(name)
            models = _models_of(found) if isinstance(found, type) else []
            if not models:
                raise _not(name, "an entity type", "a class with @entity: app.models:Employee")
        else:
            models = [each for each in load([name]).models.values() if not each.is_abstract]
        chosen |= {model.name: application.models.get(model.name, model) for model in models}
    return list(chosen.values())


def choose_series(names: Sequence[str]) -> list[TableSeries]:
    """Return the named series of tables: `module:name`, or all of `module`."""
    found: dict[TableSeries, None] = {}
    for name in names:
        module, _, wanted = name.partition(":")
        values = vars(import_module(module))
        candidates = [values.get(wanted)] if wanted else list(values.values())
        found |= {each: None for each in candidates if isinstance(each, TableSeries)}
    return list(found)


def is_series(name: str) -> bool:
    """Return whether a name is that of one series of tables."""
    return ":" in name and bool(choose_series([name]))


def choose_index(name: str, application: Application) -> AnyIndex:
    """Return an index by its variable in the module, or by its own name."""
    module, _, wanted = name.partition(":")
    found = getattr(import_module(module), wanted, None) if wanted.isidentifier() else None
    if isinstance(found, Index | ListIndex):
        return found
    named = [index for index in application.indexes if index.name == wanted]
    if len(named) == 1:
        return named[0]
    known = ", ".join(index.name for index in application.indexes) or "none"
    raise _not(name, "an index", f"one by its variable, or by its name ({known})")


def import_keyring(name: str | None) -> Keyring | None:
    """Import the keyring of the application, or call the function that makes it."""
    if name is None:
        return None
    found = import_name(name, "--keyring app.keys:keyring")
    if callable(found):
        try:
            found = found()
        except Exception as error:
            raise unimportable(name, error) from error
    if isinstance(found, Keyring):
        return found
    raise _not(name, "a keyring", "a Keyring, or a function that returns one")


def is_awaited(function: object) -> bool:
    """Return whether a function is asynchronous, by itself or by its __call__."""
    called = getattr(type(function), "__call__", None)  # noqa: B004 - what it is, not whether
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _not(name: str, what: str, wanted: str) -> ConfigurationError:
    return ConfigurationError("Configuration", f"{name} is not {what}.", hint=f"Name {wanted}.")
