"""The reading connections of a database: on the loop, in threads of callers, in own threads."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import apsw

from partita.errors import StoreBusyError
from partita.storage.sqlite_errors import DISK_ERRORS, closing, translated

T = TypeVar("T")

READER_THREADS = 2
READER_CACHE_KIB = 8 * 1024
READER_MAP_BYTES = 144 * 1024 * 1024
"""Scans, and short reads without concurrent commits, use a memory map of the first part of the
file: a point read then takes 5 us instead of 9. SQLite drops map and cache when it sees a commit
of another connection, and rebuilding the map costs far more than reading pages."""
CALM_READS = 1000
"""The number of reads without a commit after which the memory map is used."""

Connect = Callable[[int, int], apsw.Connection]
"""Opens a connection with a cache (in KiB) and a memory map (in bytes)."""


class Readers:
    """Connections that see only committed state; in memory, the writer's."""

    _reads_this_turn = 0
    """Short reads in this turn of the loop; from the second on they share a snapshot."""
    reads_since_commit = 0
    """Reset by the database after each commit."""

    def __init__(self, folder: Path | None, writer: apsw.Connection, connect: Connect) -> None:
        self._folder = folder
        self._connect = connect
        self._loop = asyncio.get_running_loop()
        self.short = connect(READER_CACHE_KIB, 0) if folder else writer
        """For short reads on the loop."""
        self._mapped = connect(READER_CACHE_KIB, READER_MAP_BYTES) if folder else writer
        self._turn_reader = writer
        self._threads = ThreadPoolExecutor(READER_THREADS, "partita-reader")
        self._thread_connection = threading.local()
        self._thread_connections: list[apsw.Connection] = []
        self._idle_readers: list[apsw.Connection] = []
        """Connections for reads in the threads of callers."""
        self._idle_lock = threading.Lock()
        self._is_closed = False

    def refuse(self) -> None:
        """Refuse further reads in the threads of callers."""
        with self._idle_lock:
            self._is_closed = True

    def stop(self) -> None:
        """Wait for the reads in threads."""
        self._threads.shutdown(wait=True)

    def close(self) -> None:
        for connection in (
            *self._thread_connections,
            *self._idle_readers,
            self._mapped,
            self.short,
        ):
            with suppress(apsw.Error):
                connection.close()

    def of_this_turn(self) -> apsw.Connection:
        """Return the connection for a short read on the loop.

        The reads of one turn of the loop share a snapshot: opening one costs two locks. Nothing
        is acknowledged within a turn, so every read sees all acknowledged changes.
        """
        if self._reads_this_turn == 0:
            self._loop.call_soon(self._end_turn)
            is_calm = self.reads_since_commit > CALM_READS
            self._turn_reader = self._mapped if is_calm else self.short
        elif self._reads_this_turn == 1 and self._folder is not None:
            self._turn_reader.execute("BEGIN")
        self._reads_this_turn += 1
        return self._turn_reader

    def _end_turn(self) -> None:
        if self._reads_this_turn > 1 and self._folder is not None:
            self._turn_reader.execute("COMMIT")
        self.reads_since_commit += self._reads_this_turn
        self._reads_this_turn = 0

    def read_here(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run a short read in the caller's thread; not for a database in memory.

        It sees all changes that were acknowledged before.
        """
        connection = self._take_reader()
        try:
            return read(connection)
        except (*DISK_ERRORS, apsw.BusyError) as error:
            raise translated(error, self._folder) from error
        finally:
            self._give_reader(connection)

    def _take_reader(self) -> apsw.Connection:
        with self._idle_lock:
            if self._is_closed:
                raise closing()
            if self._idle_readers:
                return self._idle_readers.pop()
        try:
            return self._connect(READER_CACHE_KIB, 0)
        except apsw.CantOpenError as error:  # too many open files, or the database was just closed
            raise StoreBusyError("ServerBusy", "Another reader cannot be opened now.") from error

    def _give_reader(self, connection: apsw.Connection) -> None:
        with self._idle_lock:
            if not self._is_closed:
                self._idle_readers.append(connection)
                return
        connection.close()

    async def in_thread(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run a long read in a thread with its own connection; in memory, on the loop."""
        if self._folder is None:
            result = read(self.short)
            await asyncio.sleep(0)
            return result
        return await self._loop.run_in_executor(self._threads, self._read_in_thread, read)

    def _read_in_thread(self, read: Callable[[apsw.Connection], T]) -> T:
        connection: apsw.Connection | None = getattr(self._thread_connection, "connection", None)
        if connection is None:
            connection = self._connect(READER_CACHE_KIB, READER_MAP_BYTES)
            self._thread_connection.connection = connection
            self._thread_connections.append(connection)
        try:
            return read(connection)
        except DISK_ERRORS as error:
            raise translated(error, self._folder) from error
