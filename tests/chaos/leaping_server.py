"""`partita` with an injected wall clock: `leaping_server.py OFFSET_FILE follow|check serve ...`.

The file has the seconds that the wall clock is ahead. With `follow`, the bound beyond which a leap
is not followed is removed: every leap expires what it passes.
"""

import sys
from pathlib import Path

from partita import clock as partita_clock
from partita.cli.main import main
from partita.clock import SystemClock
from partita.queues import sqlite_store
from partita.ticks import TICKS_PER_SECOND

SWEEP_SECONDS = 0.5
"""Often, so that a short leap meets several sweeps."""
NEVER_SECONDS = 10**9

if __name__ == "__main__":
    offset = Path(sys.argv.pop(1))
    ticks = SystemClock.ticks

    def leaping_ticks(self: SystemClock) -> int:
        return ticks(self) + int(offset.read_text()) * TICKS_PER_SECOND

    SystemClock.ticks = leaping_ticks  # type: ignore[method-assign]
    sqlite_store.SWEEP_SECONDS = SWEEP_SECONDS
    if sys.argv.pop(1) == "follow":
        partita_clock.LEAP_SECONDS_MAX = NEVER_SECONDS
    sys.exit(main())
