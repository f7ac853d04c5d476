"""Modules of the application, imported for a verb.

Rule: an error that importing one raises becomes one line, without a traceback.
"""

import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

import partita
from partita.errors import ConfigurationError


def import_name(
    name: str, example: str = "app.models:Employee", *, form: str = "module:name"
) -> Any:
    """Import `module:name`; `form` is how an error writes that."""
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigurationError(
            "Configuration", f"{name!r} is not {form}.", hint=f"Write {example}."
        )
    found: Any = import_module(module)
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise unimportable(name, error) from error
    return found


def import_module(name: str) -> ModuleType:
    """Import a module, also from this folder, as `python -m` does."""
    look_here()
    try:
        return importlib.import_module(name)
    except Exception as error:  # the application may raise anything
        raise unimportable(name, error) from error


def look_here() -> None:
    """Look for modules in this folder, as `python -m` does: no installation is needed."""
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)


def unimportable(name: str, error: Exception) -> ConfigurationError:
    """Return in one line what importing a module of the application raised."""
    told = str(error).strip().splitlines()
    return ConfigurationError(
        "Configuration",
        f"{name} cannot be imported: {type(error).__name__}: {told[0] if told else ''}".rstrip(": ")
        + ("" if told and told[0].endswith(".") else "."),
        hint="Run the command in the folder of the module, or set PYTHONPATH."
        if isinstance(error, ModuleNotFoundError)
        else _place(error),
    )


def _place(error: Exception) -> str:
    """Return which line of the application an error came from."""
    ours = Path(partita.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_file() and not path.is_relative_to(ours):
            return f"Check line {frame.lineno} of {path.name}."
    return ""
