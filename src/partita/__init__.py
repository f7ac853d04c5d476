"""Partitioned, transactional state for Python.

`open_account` gives the official Azure SDK clients on a folder of this machine, `open_state`
transactional dictionaries and queues in your own process, `open_service` many such states under
one name on NATS. The names are imported when first used, so that a program that needs one
system does not pay for the others.
"""

import importlib
from typing import TYPE_CHECKING

from partita.moved_modules import keep_old_paths

if TYPE_CHECKING:
    from partita.reliable.opening import open_state
    from partita.reliable.service.service import open_service
    from partita.service.hosting.in_process import open_account

keep_old_paths()

__version__ = "0.1.0"
__all__ = ["__version__", "open_account", "open_service", "open_state"]


def __getattr__(name: str) -> object:
    if name == "open_account":
        from partita.service.hosting.in_process import open_account  # noqa: PLC0415 - lazy by design

        return open_account
    if name == "open_state":
        from partita.reliable.opening import open_state  # noqa: PLC0415 - lazy by design

        return open_state
    if name == "open_service":
        from partita.reliable.service.service import open_service  # noqa: PLC0415 - lazy by design

        return open_service
    if name in ("reliable", "shards"):
        return importlib.import_module(f"partita.{name}")
    message = f"module 'partita' has no attribute {name!r}"
    raise AttributeError(message)


def __dir__() -> list[str]:
    return sorted(__all__)
