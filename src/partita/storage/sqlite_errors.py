"""Translation of SQLite errors into those of Partita."""

from pathlib import Path

import apsw

from partita.errors import DamageError, PartitaError, StoreBusyError
from partita.refusals import store_full, store_stopped

DISK_ERRORS = (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.NotADBError)
"""Errors that are not caused by the block of a change."""


def closing() -> StoreBusyError:
    return StoreBusyError("ServerBusy", "The store is closing.")


def _is_short_of_shared_memory(error: BaseException) -> bool:
    """Return whether the index file of the log has no space: SQLite reports an I/O error."""
    code = getattr(error, "extendedresult", None)
    return isinstance(error, apsw.IOError) and code == apsw.SQLITE_IOERR_SHMSIZE


def translated(error: BaseException, folder: Path | None) -> PartitaError:
    """Translate an error of SQLite."""
    facts: dict[str, object] = {"folder": str(folder)}
    if isinstance(error, PartitaError):
        return error
    if isinstance(error, apsw.FullError) or _is_short_of_shared_memory(error):
        return store_full(facts)
    if isinstance(error, apsw.BusyError):
        return StoreBusyError("ServerBusy", "The database is busy.", facts=facts)
    if isinstance(error, apsw.CorruptError | apsw.NotADBError):
        return DamageError(
            "StoreDamaged", "The database file is damaged.", facts=facts, hint="Restore a backup."
        )
    return store_stopped()
