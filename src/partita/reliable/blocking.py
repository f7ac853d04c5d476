"""The part of `partita.reliable.sync` that is written by hand."""

from asyncio import _get_running_loop

from partita.errors import StateClosedError, UsageError
from partita.loop_thread import LoopThread


class StateThread(LoopThread):
    """The thread that a state runs in; refuses calls that could not work."""

    def __init__(self) -> None:
        refuse_running_loop()
        super().__init__("partita-state", _closed)

    def check(self) -> None:
        if self.is_forked:
            raise UsageError(
                "StateForked",
                "The state was opened before this process was forked; its thread is not here.",
                hint="Open the state after the fork: in the worker, not while the program is "
                "loaded.",
            )
        refuse_running_loop()
        super().check()


def refuse_running_loop() -> None:
    """Raise an error if an event loop runs in this thread, be it the state's own."""
    if _get_running_loop() is not None:
        raise UsageError(
            "LoopIsRunning",
            "This call would block the event loop that runs in this thread.",
            hint="Use `async with partita.open_state(...)` in asyncio code. A function that is "
            "given to a collection (update=, where=, an index) must not use the state.",
        )


def _closed() -> StateClosedError:
    return StateClosedError(
        "StateClosed",
        "The state was closed.",
        hint="Open it again: partita.reliable.sync.open_state(...).",
    )
