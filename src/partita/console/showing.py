"""`show_state`: the console of a reliable state, served by the program that has the state open.

It runs on the event loop of the state, so that it sees the locks, and asks nothing while no page is
open. Rule: it listens on this machine only, and every request needs the token of its address.
"""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import overload

from partita.clock import SystemClock
from partita.console.hosting import CONSOLE_PORT, ConsoleSettings, address_of, open_console
from partita.console.services import Sources
from partita.console.sources.states import OpenState
from partita.console.token_file import new_token, read_or_create
from partita.reliable.blocking import beside
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.sync import StateManager as SyncStateManager

AnyPath = str | os.PathLike[str]


@overload
def show_state(
    state: StateManager, *, port: int = ..., token_file: AnyPath | None = ...
) -> contextlib.AbstractAsyncContextManager[str]: ...
@overload
def show_state(
    state: SyncStateManager, *, port: int = ..., token_file: AnyPath | None = ...
) -> contextlib.AbstractContextManager[str]: ...
def show_state(
    state: StateManager | SyncStateManager,
    *,
    port: int = CONSOLE_PORT,
    token_file: AnyPath | None = None,
) -> contextlib.AbstractAsyncContextManager[str] | contextlib.AbstractContextManager[str]:
    """Serve the console of an open state while the block runs; it gives the address to open.

    The console shows collections, rows, locks with their holders and waiters, log and checkpoint,
    and changes nothing. `port=0` takes a free port. The address contains a new token, or that of
    `token_file`, which is created if it is missing, so that the address stays the same.
    """
    if isinstance(state, StateManager):
        return _show(state, port, token_file)
    return beside(state, lambda inner: _show(inner, port, token_file))


@contextlib.asynccontextmanager
async def _show(state: StateManager, port: int, token_file: AnyPath | None) -> AsyncIterator[str]:
    clock = SystemClock()
    token = new_token(clock) if token_file is None else read_or_create(Path(token_file), clock)
    settings = ConsoleSettings(token, port=port)
    async with open_console([], settings, Sources(states=OpenState(state))) as server:
        await server.start()
        yield address_of(server, settings)
