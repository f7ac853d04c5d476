"""The sizes of what an account in a folder has, read while a server may have it open.

Small tables and containers are counted. Of large ones the rows are estimated from a few pages of
their tree, and the bytes of blobs from the first ones; with `is_exact` everything is counted.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw

from partita.service.backup.files import translating
from partita.service.backup.taking import refuse_unless_account
from partita.storage.database import DATABASE_FILE, PAGE_BYTES
from partita.storage.reading_beside import open_source
from partita.storage.sizes import COUNTED_MAX, FolderSize, PartSize
from partita.storage.tree_estimate import ReadPage, Rows, estimate_rows, file_pages
from partita.storage.vacuum import INCREMENTAL

_ENTITIES = (
    "SELECT octet_length(pk) + octet_length(rk) + coalesce(octet_length(short), 0)"
    " + octet_length(document) + 24 AS bytes FROM entity WHERE tid = ?1"
)
"""With about what SQLite stores for a row besides its keys and values."""
_BLOBS = (
    "SELECT (SELECT coalesce(sum(p.size), 0) FROM piece p WHERE p.content = b.content) AS bytes"
    " FROM blob b WHERE container = ?1"
)
_MESSAGES = "SELECT octet_length(text) AS bytes FROM message WHERE queue_id = ?1"
_STAGED = "SELECT size AS bytes FROM block WHERE container = ?1"
_FILES = (
    "SELECT count(*), coalesce(sum(size), 0) FROM"
    " (SELECT max(size) AS size FROM extent WHERE hash IS NOT NULL GROUP BY hash)"
)

Measured = Callable[[str], None]
"""Called with the name of what is measured next."""


def measure(folder: Path, *, is_exact: bool = False, begins: Measured | None = None) -> FolderSize:
    """Return the sizes of an account."""
    refuse_unless_account(folder)
    path = folder / DATABASE_FILE
    with contextlib.ExitStack() as opened, translating(folder):
        # Closed last: closing a file releases the locks that SQLite has on it in this process.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        opened.callback(os.close, descriptor)
        source = opened.enter_context(contextlib.closing(open_source(folder)))
        source.execute("BEGIN")
        measuring = _Measuring(source, file_pages(descriptor, PAGE_BYTES), is_exact=is_exact)
        parts = []
        for kind, name, size in measuring.parts():
            if begins is not None:
                begins(f"{kind} {name}")
            parts.append(size())
        files, file_bytes = _row(source, _FILES) if measuring.has("extent") else (0, 0)
        return FolderSize(
            account=folder.absolute().name,
            parts=parts,
            database_bytes=os.fstat(descriptor).st_size,
            free_bytes=source.pragma("freelist_count") * PAGE_BYTES,
            log_bytes=_size(folder / f"{DATABASE_FILE}-wal"),
            files=files,
            file_bytes=file_bytes,
            is_vacuumed=source.pragma("auto_vacuum") == INCREMENTAL,
        )


class _Measuring:
    def __init__(self, source: apsw.Connection, read: ReadPage, *, is_exact: bool) -> None:
        self._source = source
        self._read = read
        self._limit = -1 if is_exact else COUNTED_MAX
        self._roots = dict(source.execute("SELECT name, rootpage FROM sqlite_schema"))

    def has(self, table: str) -> bool:
        """Return whether a table exists: an account has those of the services that were used."""
        return table in self._roots

    def parts(self) -> Iterator[tuple[str, str, Callable[[], PartSize]]]:
        """Yield what the account has: the kind, the name, and a function that measures it."""
        for kind, names, size in (
            ("table", "catalog", self._table),
            ("queue", "queue", self._queue),
            ("container", "container", self._container),
        ):
            if self.has(names):
                # Constant names of tables.
                found = self._source.execute(f"SELECT id, name FROM {names} ORDER BY name")  # noqa: S608
                for identity, name in found.fetchall():
                    yield kind, name, lambda i=identity, n=name, s=size: s(i, n)  # type: ignore[misc]

    def _table(self, identity: int, name: str) -> PartSize:
        count, size = self._counted(_ENTITIES, identity)
        if count != self._limit:
            return PartSize("table", name, count, size, is_exact=True)
        rows = estimate_rows(self._read, self._roots["entity"], identity)
        if rows.number < count:  # the rest is in the log only
            rows = Rows(count, size)
        return PartSize("table", name, round(rows.number), round(rows.size), is_exact=False)

    def _queue(self, identity: int, name: str) -> PartSize:
        stored = "SELECT messages FROM message_count WHERE queue_id = ?"
        messages = self._source.execute(stored, (identity,)).get or 0
        count, size = self._counted(_MESSAGES, identity)
        is_exact = count != self._limit
        scale = 1.0 if is_exact else messages / count
        return PartSize("queue", name, messages, round(size * scale), is_exact)

    def _container(self, identity: int, name: str) -> PartSize:
        count, size = self._counted(_BLOBS, identity)
        _, staged = self._counted(_STAGED, identity)
        is_exact = count != self._limit
        if not is_exact:
            rows = max(estimate_rows(self._read, self._roots["blob"], identity).number, count)
            count, size = round(rows), round(size * rows / count)
        return PartSize("container", name, count, size + staged, is_exact)

    def _counted(self, rows: str, identity: int) -> tuple[int, int]:
        """Count rows up to the limit, and add up their bytes."""
        return _row(
            self._source,
            f"SELECT count(*), coalesce(sum(bytes), 0) FROM ({rows} LIMIT {self._limit})",  # noqa: S608
            identity,
        )


def _row(source: apsw.Connection, statement: str, *parameters: int) -> tuple[int, int]:
    rows: list[tuple[Any, ...]] = source.execute(statement, parameters).fetchall()
    return int(rows[0][0]), int(rows[0][1])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
