"""One SQLite file for one account: connections, group commit, checkpoints, lock, full disk.

Changes are applied on the event loop in one open transaction, each in its savepoint; COMMIT
with its sync runs in a thread while the next group collects, and a change returns after it.
Reads use other connections and see only committed state. The block of a change must not await
anything that suspends: the transaction is shared.

After a failed sync the kernel may have dropped the pages and report the next sync as successful,
so the database acknowledges nothing more; a restart recovers from the files on disk.
"""

import asyncio
import contextlib
import enum
import errno
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import apsw

from partita.errors import (
    ConfigurationError,
    DamageError,
    FormatVersionError,
    PartitaError,
    StoreBusyError,
    StoreFullError,
    StoreStoppedError,
)
from partita.refusals import store_full, store_stopped
from partita.storage.folder import lock_folder, make_folder, unlock_folder

T = TypeVar("T")

logger = logging.getLogger("partita.storage.database")

DATABASE_FILE = "account.sqlite"
RESERVE_FILE = "reserve"

APPLICATION_ID = 0x50415254
"""`PART` in the header of the file: other SQLite files are refused."""

PAGE_BYTES = 8192
"""A quarter page must fit a usual entity, or SQLite spills it: 4 KiB take three times the space."""
RESERVE_BYTES = 4 * 1024 * 1024
"""Freed on a full disk: the space for deletes and a checkpoint."""
READER_THREADS = 2
WAL_CHECKPOINT_BYTES = 16 * 1024 * 1024
"""After this much new log a checkpoint runs concurrently with the writers."""
WAL_HOLD_BYTES = 64 * 1024 * 1024
"""Above this size writers wait while the (short) rest is checkpointed, so that the log restarts."""
ROOM_SHORT_BYTES = 256 * 1024 * 1024
"""Below this much free space the log is kept so short that it fits into the reserve."""
CHECKPOINT_BUSY_MS = 100
WRITER_CACHE_KIB = 64 * 1024
READER_CACHE_KIB = 8 * 1024
READER_MAP_BYTES = 144 * 1024 * 1024
"""Scans, and short reads without concurrent commits, use a memory map of the first part of the
file: a point read then takes 5 us instead of 9. SQLite drops map and cache when it sees a commit
of another connection, and rebuilding the map costs far more than reading pages."""
CALM_READS = 1000
"""The number of reads without a commit after which the memory map is used."""

DISK_ERRORS = (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.NotADBError)
"""Errors that are not caused by the block of a change."""


class Durability(enum.Enum):
    """The durability of an acknowledged write."""

    FULL = "full"
    """It is on disk: it survives power loss if the disk honours sync."""
    FAST = "fast"
    """It survives a kill of the process; power loss may lose the last writes, each as a whole."""


class Database:
    """The database of an account; build it with `open`. Only one process can open a folder."""

    _failure: BaseException | None = None
    """Set once by a failed sync; from then on every change is refused."""
    _is_full = False
    """Set by a full disk; cleared when there is space again."""
    _is_closing = False
    _is_committing = False
    """True while the commit thread owns the writer connection."""
    _is_held = False
    """True while writers wait for a checkpoint to catch up."""
    _is_checkpointing = False
    _commit_is_scheduled = False
    _reads_this_turn = 0
    """Short reads in this turn of the loop; from the second on they share a snapshot."""
    _reads_since_commit = 0
    _wal_pages = 0
    """Size of the write-ahead log, reported by SQLite after each commit."""
    _wal_pages_checkpointed = 0
    """How much of it the last checkpoint has copied into the main file."""

    def __init__(self, folder: Path | None, durability: Durability, vfs: str | None) -> None:
        self.folder = folder
        self.durability = durability
        self.vfs = vfs
        self.on_failure: Callable[[BaseException], None] | None = None
        self.on_begin: list[Callable[[apsw.Connection], None]] = []
        """Run at the start of each transaction, outside all savepoints."""
        self.on_rollback: list[Callable[[], None]] = []
        """Run when a whole transaction was lost, so that caches drop its changes."""
        self._loop = asyncio.get_running_loop()
        self._members: list[asyncio.Future[None]] = []
        """Changes that wait for the commit of the open transaction."""
        self._committing: list[asyncio.Future[None]] = []
        """Changes that wait for the commit in progress."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Changes that wait to enter, in order of arrival."""
        self._lock = lock_folder(folder, "account") if folder else None
        try:
            self._connect_even_if_full()
        except apsw.Error as error:
            self._release()
            raise translated(error, folder) from error
        except BaseException:
            self._release()
            raise
        self._reader_threads = ThreadPoolExecutor(READER_THREADS, "partita-reader")
        self._idle_readers: list[apsw.Connection] = []
        """Connections for reads in the threads of callers."""
        self._idle_lock = threading.Lock()
        self._thread_connection = threading.local()
        self._thread_connections: list[apsw.Connection] = []
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._commit_thread = threading.Thread(
            target=self._run_commands, name="partita-commit", daemon=True
        )
        self._commit_thread.start()
        self._checkpoint_thread = ThreadPoolExecutor(1, "partita-checkpoint")
        if folder:
            if not self._keep_reserve(RESERVE_BYTES):
                self._became_full()
            self._writer.set_wal_hook(self._saw_wal)

    @classmethod
    async def open(
        cls,
        folder: Path | None,
        *,
        durability: Durability = Durability.FULL,
        vfs: str | None = None,
    ) -> "Database":
        """Open or create the database of a folder; None keeps everything in memory."""
        try:
            if folder is not None:
                make_folder(folder)
            return cls(folder, durability, vfs)
        except OSError as error:
            raise ConfigurationError(
                "FolderUnusable",
                f"The folder {folder} cannot be used: {error.strerror or error}.",
                hint="Choose another folder, or check its permissions.",
            ) from error

    @property
    def is_writable(self) -> bool:
        return self._failure is None and not self._is_closing

    @property
    def wal_bytes(self) -> int:
        """Size of the write-ahead log after the last commit."""
        return self._wal_pages * PAGE_BYTES

    def prepare(self, system: str, version: int, statements: str) -> None:
        """Create the tables of one system, or check that this version can read them."""
        with self._writer:
            self._writer.execute(
                "CREATE TABLE IF NOT EXISTS format (system TEXT PRIMARY KEY, version INTEGER)"
                " WITHOUT ROWID"
            )
            found = self._writer.execute(
                "SELECT version FROM format WHERE system = ?", (system,)
            ).get
            if found is None:
                self._writer.execute(statements)
                self._writer.execute("INSERT INTO format VALUES (?, ?)", (system, version))
            elif found != version:
                raise FormatVersionError(
                    "FormatVersion",
                    f"The folder has format {found} of {system}; this Partita reads {version}.",
                    facts={"folder": str(self.folder)},
                    hint="Open it with the version of Partita that wrote it.",
                )

    def change(self, *, frees_space: bool = False) -> "Change":
        """Open a change: `async with database.change() as connection`.

        Leaving the block returns when the change is durable. An exception rolls the block back, and
        leaves when everything that the block has read is durable.
        """
        return Change(self, frees_space)

    def reader_of_this_turn(self) -> apsw.Connection:
        """Return the connection for a short read on the loop.

        The reads of one turn of the loop share a snapshot: opening one costs two locks. Nothing
        is acknowledged within a turn, so every read sees all acknowledged changes.
        """
        if self._reads_this_turn == 0:
            self._loop.call_soon(self._end_turn)
            is_calm = self._reads_since_commit > CALM_READS
            self._turn_reader: apsw.Connection = self._mapped_reader if is_calm else self.reader
        elif self._reads_this_turn == 1 and self.folder is not None:
            self._turn_reader.execute("BEGIN")
        self._reads_this_turn += 1
        return self._turn_reader

    def _end_turn(self) -> None:
        if self._reads_this_turn > 1 and self.folder is not None:
            self._turn_reader.execute("COMMIT")
        self._reads_since_commit += self._reads_this_turn
        self._reads_this_turn = 0

    def read_here(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run a short read in the caller's thread; not for a database in memory.

        It sees all changes that were acknowledged before.
        """
        connection = self._take_reader()
        try:
            return read(connection)
        except (*DISK_ERRORS, apsw.BusyError) as error:
            raise translated(error, self.folder) from error
        finally:
            self._give_reader(connection)

    def _take_reader(self) -> apsw.Connection:
        with self._idle_lock:
            if self._is_closing:
                raise _closing()
            if self._idle_readers:
                return self._idle_readers.pop()
        try:
            return self._connect(READER_CACHE_KIB)
        except apsw.CantOpenError as error:  # too many open files, or the database was just closed
            raise StoreBusyError("ServerBusy", "Another reader cannot be opened now.") from error

    def _give_reader(self, connection: apsw.Connection) -> None:
        with self._idle_lock:
            if not self._is_closing:
                self._idle_readers.append(connection)
                return
        connection.close()

    async def in_reader(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run a long read in a thread with its own connection; in memory, on the loop."""
        if self.folder is None:
            result = read(self._writer)
            await asyncio.sleep(0)
            return result
        return await self._loop.run_in_executor(self._reader_threads, self._read_in_thread, read)

    async def harden(self) -> None:
        """Return when all commits survive a power failure, also with fast durability.

        For actions outside the database that a lost commit would not undo.
        """
        if self.folder is None or self.durability is Durability.FULL:
            return
        try:
            await self._loop.run_in_executor(self._checkpoint_thread, self._sync_log)
        except OSError as error:
            raise self.failed(error) from error

    def _sync_log(self) -> None:
        # SQLite has no lock on the log file, so closing a second descriptor releases none.
        descriptor = os.open(f"{self.folder}/{DATABASE_FILE}-wal", os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    async def close(self) -> None:
        """Finish accepted changes, checkpoint, and release the folder."""
        if self._is_closing:
            return
        with self._idle_lock:
            self._is_closing = True
        while self._members or self._committing or self._is_checkpointing:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.001)
        self._wake_waiters()
        self._commands.put(None)
        await self._loop.run_in_executor(None, self._commit_thread.join)
        self._reader_threads.shutdown(wait=True)
        self._checkpoint_thread.shutdown(wait=True)
        await self._loop.run_in_executor(None, self._release)

    # Entering and leaving a change

    async def enter(self, *, frees_space: bool) -> apsw.Connection:
        self._refuse_if_unfit(frees_space=frees_space)
        while self._is_committing or self._is_held:
            turn = self._loop.create_future()
            self._waiters.append(turn)
            await turn
            self._refuse_if_unfit(frees_space=frees_space)
        if not self._writer.in_transaction:
            self._begin()
        self._writer.execute("SAVEPOINT change")
        return self._writer

    def _begin(self) -> None:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for hook in self.on_begin:
                hook(self._writer)
        except apsw.Error as error:
            self._rollback()
            raise self.failed(error) from error

    def leave(self, error: BaseException | None) -> asyncio.Future[None]:
        """Close the savepoint and return the future that the commit resolves."""
        if self._writer.in_transaction:
            try:
                if error is not None:
                    self._writer.execute("ROLLBACK TO change")
                self._writer.execute("RELEASE change")
            except apsw.Error as failure:
                self._rollback()
                self._finish(self._members, self.failed(failure))
                self._members = []
                raise self.failed(failure) from failure
        else:
            # SQLite rolled back the transaction (a full disk, an I/O error): all changes fail.
            cause = self.failed(error) if isinstance(error, apsw.Error) else None
            lost = cause or StoreStoppedError("StoreStopped", "The transaction was lost.")
            self._rollback()
            self._finish(self._members, lost)
            self._members = []
            raise lost from error
        done = self._loop.create_future()
        self._members.append(done)
        if self.folder is None:
            self._commit_in_memory()
        elif not self._commit_is_scheduled:
            # Changes that are ready in this turn of the loop join the same commit.
            self._commit_is_scheduled = True
            self._loop.call_soon(self._start_commit)
        return done

    def _commit_in_memory(self) -> None:
        self._writer.execute("COMMIT")
        self._finish(self._members, None)
        self._members = []

    def _start_commit(self) -> None:
        self._commit_is_scheduled = False
        if not self._writer.in_transaction:
            return  # it was lost, and its changes have failed
        self._is_committing = True
        self._committing, self._members = self._members, []
        self._commands.put(self._commit)

    def _run_commands(self) -> None:
        while (command := self._commands.get()) is not None:
            command()

    def _commit(self) -> None:
        error: BaseException | None = None
        try:
            self._writer.execute("COMMIT")
        except BaseException as failure:  # noqa: BLE001 - handed to the loop, which decides
            error = failure
        self._loop.call_soon_threadsafe(self._commit_ended, error)

    def _commit_ended(self, error: BaseException | None) -> None:
        members, self._committing = self._committing, []
        self._is_committing = False
        self._reads_since_commit = 0
        outcome = None
        if error is not None:
            outcome = self.failed(error)
            self._rollback()
        self._finish(members, outcome)
        self._checkpoint_if_due()
        if not self._is_held:
            self._wake_waiters()

    def _finish(self, members: list[asyncio.Future[None]], outcome: PartitaError | None) -> None:
        for member in members:
            if member.done():
                continue  # its task was cancelled; the change is committed nevertheless
            if outcome is None:
                member.set_result(None)
            else:
                member.set_exception(outcome)
                member.exception()  # a cancelled task does not retrieve it

    def _wake_waiters(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)

    def _rollback(self) -> None:
        for hook in self.on_rollback:
            hook()
        if self._writer.in_transaction:
            with contextlib.suppress(apsw.Error):  # the transaction is lost in any case
                self._writer.execute("ROLLBACK")

    # Failures

    def _refuse_if_unfit(self, *, frees_space: bool) -> None:
        if self._failure is not None:
            raise store_stopped() from self._failure
        if self._is_closing:
            raise _closing()
        if self._is_full and not frees_space:
            self._refuse_if_still_full()

    def failed(self, error: BaseException) -> PartitaError:
        """Return the error for the callers, and set the state of the database accordingly."""
        result = translated(error, self.folder)
        if isinstance(result, StoreFullError):
            self._became_full()
        elif isinstance(result, StoreStoppedError | DamageError) and self._failure is None:
            self._failure = error
            logger.critical("the database stops acknowledging writes: %s", error)
            if self.on_failure is not None:
                self.on_failure(error)
        return result

    def _became_full(self) -> None:
        if self.folder is None:
            return
        if not self._is_full:
            logger.error("the disk is full: only reads and deletes are possible")
        self._is_full = True
        self._wal_pages_checkpointed = 0  # due again, now with the space of the reserve
        self._drop_reserve()

    def _refuse_if_still_full(self) -> None:
        # Deletes leave space in the file, but a write needs space for its log, too.
        free = self._free_bytes()
        inside = self.reader.pragma("freelist_count") * PAGE_BYTES
        has_room = free >= RESERVE_BYTES // 2 and free + inside >= 2 * RESERVE_BYTES
        if not has_room or not self._keep_reserve(min(RESERVE_BYTES, free // 2)):
            raise translated(apsw.FullError(), self.folder)
        self._is_full = False
        logger.warning("the disk has space again: writes resume")

    def _free_bytes(self) -> int:
        assert self.folder is not None
        space = os.statvfs(self.folder)
        return space.f_bavail * space.f_frsize

    def _keep_reserve(self, size: int) -> bool:
        """Allocate the reserve; return False if the disk has no space for it."""
        assert self.folder is not None
        path = self.folder / RESERVE_FILE
        kept = path.stat().st_size if path.exists() else 0
        if kept >= size:
            return True
        try:
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)
        except OSError as error:
            with contextlib.suppress(FileNotFoundError):
                os.truncate(path, kept)
            return kept > 0 or error.errno not in (errno.ENOSPC, errno.EDQUOT)
        return True

    def _drop_reserve(self) -> None:
        assert self.folder is not None
        with contextlib.suppress(FileNotFoundError):
            (self.folder / RESERVE_FILE).unlink()

    # Checkpoints

    def _saw_wal(self, _connection: apsw.Connection, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _checkpoint_if_due(self) -> None:
        if self._wal_pages < self._wal_pages_checkpointed:
            self._wal_pages_checkpointed = 0  # the log was restarted
        if self._failure is not None or self.folder is None:
            return
        if self._is_checkpointing:
            # Too much log: the checkpoint in progress does not keep up with the writers.
            self._is_held = self._is_held or self.wal_bytes >= 2 * WAL_HOLD_BYTES
            return
        fresh = (self._wal_pages - self._wal_pages_checkpointed) * PAGE_BYTES
        if self._is_full or self._free_bytes() < ROOM_SHORT_BYTES:
            # The pages in the log may need as much new space in the main file: that of the reserve.
            if fresh >= RESERVE_BYTES // 4:
                self._start_checkpoint(is_held=True, gives_space=True)
            return
        is_rest = fresh < WAL_CHECKPOINT_BYTES
        if self.wal_bytes >= WAL_HOLD_BYTES and (is_rest or self.wal_bytes >= 2 * WAL_HOLD_BYTES):
            self._start_checkpoint(is_held=True)
        elif not is_rest:
            self._start_checkpoint(is_held=False)

    def _start_checkpoint(self, *, is_held: bool, gives_space: bool = False) -> None:
        self._is_checkpointing = True
        self._is_held = is_held
        ended = self._loop.run_in_executor(
            self._checkpoint_thread, self._checkpoint, is_held and gives_space
        )
        ended.add_done_callback(self._checkpoint_ended)

    def _checkpoint(self, gives_space: bool) -> tuple[int, int]:  # noqa: FBT001 - internal
        """Return the pages of the log, and how many of them are in the main file."""
        assert self._checkpointer is not None
        pages, carried = self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if gives_space and carried == pages:
            with contextlib.suppress(apsw.BusyError):  # a reader uses the log: next time
                self._checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
                return 0, 0
        return pages, carried

    def _checkpoint_ended(self, ended: "asyncio.Future[tuple[int, int]]") -> None:
        self._is_checkpointing = False
        was_held, self._is_held = self._is_held, False
        was_full = self._is_full
        error = ended.exception()
        if error is None:
            pages, self._wal_pages_checkpointed = ended.result()
            if pages == 0:
                self._wal_pages = 0
        elif isinstance(self.failed(error), StoreFullError) and not was_full:
            self._checkpoint_if_due()  # again, with the space of the reserve
        if was_held and not self._is_held:
            self._wake_waiters()

    # Connections

    def _connect_even_if_full(self) -> None:
        try:
            self._connect_all()
        except apsw.Error as error:
            if not isinstance(translated(error, self.folder), StoreFullError):
                raise
            self._drop_reserve()
            self._connect_all()

    def _connect_all(self) -> None:
        self._writer = self._connect(WRITER_CACHE_KIB)
        _prepare(self._writer, is_file=bool(self.folder), durability=self.durability)
        self.reader = self._connect(READER_CACHE_KIB) if self.folder else self._writer
        self._mapped_reader: apsw.Connection = self._writer
        self._turn_reader = self._writer
        if self.folder:
            self._mapped_reader = self._connect(READER_CACHE_KIB, READER_MAP_BYTES)
        self._checkpointer = self._connect(0) if self.folder else None
        if self._checkpointer is not None:
            # A connection that has never read does not see the log, and checkpoints nothing.
            self._checkpointer.pragma("schema_version")
            self._checkpointer.set_busy_timeout(CHECKPOINT_BUSY_MS)

    def _connect(self, cache_kib: int, map_bytes: int = 0) -> apsw.Connection:
        name = str(self.folder / DATABASE_FILE) if self.folder else ":memory:"
        connection = apsw.Connection(name, vfs=self.vfs)
        connection.set_busy_timeout(5000)
        if cache_kib:
            connection.pragma("cache_size", -cache_kib)
        connection.pragma("mmap_size", map_bytes)
        connection.pragma("temp_store", "memory")
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        # Otherwise a statement is planned again when its parameters change: 10 us for a join.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        if self.folder:
            connection.wal_autocheckpoint(0)
            # Closing must not write: after a failed sync only the log is valid.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return connection

    def _read_in_thread(self, read: Callable[[apsw.Connection], T]) -> T:
        connection: apsw.Connection | None = getattr(self._thread_connection, "connection", None)
        if connection is None:
            connection = self._connect(READER_CACHE_KIB, READER_MAP_BYTES)
            self._thread_connection.connection = connection
            self._thread_connections.append(connection)
        try:
            return read(connection)
        except DISK_ERRORS as error:
            raise translated(error, self.folder) from error

    def _release(self) -> None:
        connections = [
            *getattr(self, "_thread_connections", []),
            *getattr(self, "_idle_readers", []),
        ]
        for name in ("_checkpointer", "_mapped_reader", "reader", "_writer"):
            connection = getattr(self, name, None)
            if connection is not None:
                connections.append(connection)
        if self.folder and self._failure is None and hasattr(self, "_writer"):
            with contextlib.suppress(apsw.Error):  # closing loses nothing: the log is complete
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        for connection in connections:
            with contextlib.suppress(apsw.Error):
                connection.close()
        if self._lock is not None:
            unlock_folder(self._lock)
            self._lock = None


class Change:
    """One savepoint in the open transaction; see `Database.change`."""

    __slots__ = ("_database", "_frees_space")

    def __init__(self, database: Database, frees_space: bool) -> None:  # noqa: FBT001 - internal
        self._database = database
        self._frees_space = frees_space

    async def __aenter__(self) -> apsw.Connection:
        return await self._database.enter(frees_space=self._frees_space)

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self._database.leave(error)
        if isinstance(error, DISK_ERRORS):
            raise self._database.failed(error) from error


def _prepare(connection: apsw.Connection, *, is_file: bool, durability: Durability) -> None:
    found = connection.pragma("application_id")
    has_tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if has_tables and found != APPLICATION_ID:
        raise FormatVersionError(
            "FormatVersion",
            "The database file was not written by Partita.",
            hint="Choose another folder.",
        )
    connection.pragma("page_size", PAGE_BYTES)
    if is_file:
        connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full" if durability is Durability.FULL else "normal")
    if found != APPLICATION_ID:
        connection.pragma("application_id", APPLICATION_ID)


def _closing() -> StoreBusyError:
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
