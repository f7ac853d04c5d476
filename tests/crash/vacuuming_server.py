"""`partita` that vacuums at once and in small steps, so that a kill meets a vacuum."""

import sys

from partita.cli.main import main
from partita.storage import vacuum
from partita.tables import sqlite_store

if __name__ == "__main__":
    vacuum.LOOK_SECONDS = 0.01
    vacuum.START_BYTES = vacuum.KEEP_BYTES = 0
    vacuum.STEP_PAGES_MAX = 8
    vacuum.PAUSE_SECONDS, vacuum.PAUSE_FACTOR = 0.0, 0
    sqlite_store.PURGE_PAUSE_SECONDS = 0.0
    sys.exit(main())
