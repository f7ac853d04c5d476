"""The console in the browser: its guard, its API over the wire, its pages.

`show_state` serves it from a program of your own; `partita serve --console` and `partita console`
serve it from the command line.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from partita.console.showing import show_state

__all__ = ["show_state"]


def __getattr__(name: str) -> object:
    if name == "show_state":
        from partita.console.showing import show_state  # noqa: PLC0415 - lazy by design

        return show_state
    message = f"module 'partita.console' has no attribute {name!r}"
    raise AttributeError(message)
