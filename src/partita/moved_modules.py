"""Modules that were documented under another path: the old path works until version 0.3.

An import of an old path warns and returns the module at the new path.
"""

import importlib
import sys
import warnings
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "partita.patterns.capabilities": "partita.patterns.protocol.capabilities",
    "partita.patterns.keyring": "partita.patterns.encryption.keyring",
    "partita.patterns.lock": "partita.patterns.design.schema_lock",
    "partita.patterns.plans": "partita.patterns.planning.plans",
    "partita.patterns.values": "partita.patterns.protocol.values",
    "partita.reliable.nats_cluster": "partita.reliable.nats.cluster",
    "partita.reliable.serialization": "partita.reliable.values.serialization",
    "partita.reliable.value_shape": "partita.reliable.values.value_shape",
    "partita.service.in_process": "partita.service.hosting.in_process",
    "partita.service.services": "partita.service.hosting.services",
    "partita.shards.move": "partita.shards.moving.move",
}
"""Old path to new path, for every module that the documentation of 0.1 imports from."""


class _MovedModules:
    """Finds and loads a module under its old path."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        # importlib.abc, which has the class Loader, takes 13 ms to import.
        loader: Any = self
        return ModuleSpec(name, loader) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = MOVED[spec.name]
        warnings.warn(
            f"{spec.name} has moved: import {new} instead", DeprecationWarning, stacklevel=2
        )
        module = importlib.import_module(new)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its own description back: it was executed under its new path."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


def keep_old_paths() -> None:
    """Make imports of the old paths work in this process."""
    sys.meta_path.append(_MovedModules())
