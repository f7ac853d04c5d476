"""`partita` with one part broken: `broken_front_end.py VARIANT serve ...`.

A variant changes the text of a function, so that it fails when the text is another one.
"""

import asyncio
import inspect
import sys
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any

from partita.cli.main import main
from partita.clock import SystemClock
from partita.scaleout.catalog import fleet_clock
from partita.scaleout.connections import link
from partita.scaleout.tables import trips
from partita.ticks import TICKS_PER_SECOND

HASTE_SECONDS = 0.2
COARSE_TICKS = TICKS_PER_SECOND


def change(module: ModuleType, owner: Any, name: str, old: str, new: str) -> None:
    """Replace a part of the text of a function."""
    text = textwrap.dedent(inspect.getsource(getattr(owner, name)))
    assert old in text, f"{name} has changed: {old!r}"
    made: dict[str, Any] = {}
    exec(text.replace(old, new), vars(module), made)
    setattr(owner, name, made[name])


def hasty() -> None:
    """Acknowledge a change of an entity before it is committed."""
    write = trips.Trips.write

    async def write_later(self: trips.Trips, item: trips.Change, keys: Any) -> Any:
        async def later() -> None:
            await asyncio.sleep(HASTE_SECONDS)
            await write(self, item, keys)

        task = asyncio.ensure_future(later())
        task.add_done_callback(lambda done: done.exception())

    trips.Trips.write = write_later  # type: ignore[method-assign]


def heedless() -> None:
    """Ignore the warning that a commit does not wait for a standby any more."""
    change(link, link.Link, "_commit", "self._warning is not None", "False")


def willful() -> None:
    """Make stamps by the wall clock of the front end."""
    clock = fleet_clock.FleetClock
    change(fleet_clock, clock, "_time", "(last := self._comparison) is None", "True")


VARIANTS: dict[str, Callable[[], None]] = {
    "hasty": hasty,
    "heedless": heedless,
    "whole": lambda: None,
    "willful": willful,
}


def set_clock(seconds_ahead: float, *, is_coarse: bool) -> None:
    """Make the wall clock of this process wrong; a coarse one shows whole seconds."""
    ticks = SystemClock.ticks

    def wrong_ticks(self: SystemClock) -> int:
        shown = ticks(self) + int(seconds_ahead * TICKS_PER_SECOND)
        return shown - shown % COARSE_TICKS if is_coarse else shown

    SystemClock.ticks = wrong_ticks  # type: ignore[method-assign]


if __name__ == "__main__":
    variant, _, ahead = sys.argv.pop(1).partition("@")
    VARIANTS[variant]()
    if ahead:
        set_clock(float(ahead), is_coarse=True)
    sys.exit(main())
