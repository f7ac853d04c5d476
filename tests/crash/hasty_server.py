"""`partita` with its durability broken: a write is acknowledged a while before it is committed."""

import sys

from partita.cli.main import main
from partita.storage.database import Database

HASTE_SECONDS = 0.05

_start_commit = Database._start_commit


def _start_commit_later(self: Database) -> None:
    self._finish(self._members, None)
    self._loop.call_later(HASTE_SECONDS, _start_commit, self)


if __name__ == "__main__":
    Database._start_commit = _start_commit_later  # type: ignore[method-assign]
    sys.exit(main())
