"""Reading the database of an account while a server may have it open."""

from pathlib import Path

import apsw

from partita.storage.database import DATABASE_FILE, check_sqlite, refuse_unfinished_copy
from partita.storage.format_numbers import refuse_foreign
from partita.storage.schema import distrust

BUSY_MS = 10_000


def open_source(folder: Path) -> apsw.Connection:
    """Open the database read-only; refuse one to which an account is being copied.

    The write-ahead log of a server grows while a snapshot is read.
    """
    check_sqlite()
    source = apsw.Connection(str(folder / DATABASE_FILE), flags=apsw.SQLITE_OPEN_READWRITE)
    source.set_busy_timeout(BUSY_MS)
    source.pragma("query_only", 1)
    source.pragma("mmap_size", 0)
    source.wal_autocheckpoint(0)
    source.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    distrust(source)
    try:
        refuse_foreign(source)
        refuse_unfinished_copy(source, folder)
    except BaseException:
        source.close()
        raise
    return source
