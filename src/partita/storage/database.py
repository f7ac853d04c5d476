"""One SQLite file for one account: connections, group commit, checkpoints, lock, full disk.

Changes are applied on the event loop in one open transaction, each in its savepoint unless it is
one statement; COMMIT
with its sync runs in a thread while the next group collects, and a change returns after it. A
long change runs alone in that thread (`run_alone`), so that it does not hold the loop.
Reads use other connections and see only committed state. The block of a change must not await
anything that suspends: the transaction is shared. Free pages are returned to the disk in the
background (`vacuum`).

After a failed sync the kernel may have dropped the pages and report the next sync as successful,
so the database acknowledges nothing more; a restart recovers from the files on disk.
"""

import asyncio
import contextlib
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

import apsw

from partita.errors import (
    ConfigurationError,
    DamageError,
    FormatVersionError,
    PartitaError,
    StoreFullError,
    StoreStoppedError,
)
from partita.metrics.store_meter import StoreMeter
from partita.metrics.waits import WAITS
from partita.refusals import store_stopped
from partita.sqlite_versions import has_wal_reset_bug, version_of
from partita.storage.disk_reserve import RESERVE_BYTES, RESERVE_FILE, DiskReserve
from partita.storage.durability import Durability
from partita.storage.folder import FolderLock, full_sync, keep_private, make_folder, make_private
from partita.storage.format_numbers import APPLICATION_ID, guarded_numbers, refuse_foreign
from partita.storage.readers import Readers
from partita.storage.schema import check_tables, distrust, schema_of
from partita.storage.sqlite_errors import DISK_ERRORS, closing, translated
from partita.storage.vacuum import INCREMENTAL, Vacuum

logger = logging.getLogger("partita.storage.database")

DATABASE_FILE = "account.sqlite"

COPY_TABLE = "copy"
"""A database that has this table is the target of a copy that is not complete."""

FORMAT_SCHEMA = "CREATE TABLE format (system TEXT PRIMARY KEY, version INTEGER) WITHOUT ROWID"
"""The format number of each system whose tables are in the file."""

PAGE_BYTES = 8192
"""A quarter page must fit a usual entity, or SQLite spills it: 4 KiB take three times the space."""
WAL_CHECKPOINT_BYTES = 16 * 1024 * 1024
"""After this much new log a checkpoint runs concurrently with the writers."""
WAL_HOLD_BYTES = 64 * 1024 * 1024
"""Above this size writers wait while the (short) rest is checkpointed, so that the log restarts."""
ROOM_SHORT_BYTES = 256 * 1024 * 1024
"""Below this much free space the log is kept so short that it fits into the reserve."""
CHECKPOINT_BUSY_MS = 100
LOCK_CHECK_SECONDS = 5.0
"""How often the lock of the folder is checked without a commit; each commit checks it too."""
WRITER_CACHE_KIB = 64 * 1024
_OPEN_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


T = TypeVar("T")

Upgrades = Mapping[int, Callable[[apsw.Connection], object]]
"""By format number: the function that changes the tables from it to the next one."""
NO_UPGRADES: Upgrades = MappingProxyType({})


class Database:
    """The database of an account; build it with `open`. Only one process can open a folder."""

    _failure: BaseException | None = None
    """Set once by a failed sync; from then on every change is refused."""
    _is_full = False
    """Set by a full disk; cleared when there is space again."""
    _is_closing = False
    _is_committing = False
    """True while the commit thread owns the writer connection."""
    _alone_waiting = 0
    """Long changes that wait for the open transaction to end; further changes wait for them."""
    _is_held = False
    """True while writers wait for a checkpoint to catch up."""
    _is_checkpointing = False
    _is_checkpoint_wanted = False
    """Another checkpoint is to follow the one in progress."""
    _vacuum: Vacuum | None = None
    _commit_is_scheduled = False
    _lock_timer: asyncio.TimerHandle | None = None
    _wal_pages = 0
    """Size of the write-ahead log, reported by SQLite after each commit."""
    _wal_pages_checkpointed = 0
    """How much of it the last checkpoint has copied into the main file."""

    def __init__(
        self,
        folder: Path | None,
        durability: Durability,
        vfs: str | None,
        *,
        is_copying: bool = False,
    ) -> None:
        self.folder = folder
        self.durability = durability
        self.vfs = vfs
        self.on_failure: Callable[[BaseException], None] | None = None
        self.on_begin: list[Callable[[apsw.Connection], None]] = []
        """Run at the start of each transaction, outside all savepoints."""
        self.on_rollback: list[Callable[[], None]] = []
        """Run when a whole transaction was lost, so that caches drop its changes."""
        self._loop = asyncio.get_running_loop()
        self.meter = self._new_meter()
        self._members: list[asyncio.Future[None]] = []
        """Changes that wait for the commit of the open transaction."""
        self._committing: list[asyncio.Future[None]] = []
        """Changes that wait for the commit in progress."""
        self._waiters: deque[asyncio.Future[None]] = deque()
        """Changes that wait to enter, in order of arrival."""
        self._lock = FolderLock(folder, "account") if folder else None
        self._reserve = DiskReserve(folder or Path())  # not used in memory
        try:
            self._connect_even_if_full()
            if not is_copying:
                refuse_unfinished_copy(self._writer, folder)
        except apsw.Error as error:
            self._release()
            raise translated(error, folder) from error
        except BaseException:
            self._release()
            raise
        self.reader = self._readers.short
        self.reader_of_this_turn = self._readers.of_this_turn
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._commit_thread = threading.Thread(
            target=self._run_commands, name="partita-commit", daemon=True
        )
        self._commit_thread.start()
        self._checkpoint_thread = ThreadPoolExecutor(1, "partita-checkpoint")
        if folder:
            if not self._reserve.keep(RESERVE_BYTES):
                self._became_full()
            self._writer.set_wal_hook(self._saw_wal)
            self._start_background()

    @classmethod
    async def open(
        cls,
        folder: Path | None,
        *,
        durability: Durability = Durability.FULL,
        vfs: str | None = None,
        is_copying: bool = False,
    ) -> "Database":
        """Open or create the database of a folder; None keeps everything in memory.

        A database to which an account is being copied is refused, unless `is_copying`.
        """
        try:
            if folder is not None:
                check_sqlite()
                make_folder(folder)
            return cls(folder, durability, vfs, is_copying=is_copying)
        except OSError as error:
            raise ConfigurationError(
                "FolderUnusable",
                f"The folder {folder} cannot be used: {error.strerror or error}.",
                hint="Choose another folder, or check its permissions.",
            ) from error

    def _new_meter(self) -> StoreMeter:
        meter = StoreMeter()
        meter.queue_length = lambda: len(self._waiters)
        meter.wal_bytes = lambda: self.wal_bytes
        meter.store_bytes = lambda: self.store_bytes
        return meter

    @property
    def is_writable(self) -> bool:
        return self._failure is None and not self._is_closing

    @property
    def is_changing(self) -> bool:
        """Whether a transaction is open or being committed."""
        return self._is_committing or self._writer.in_transaction

    @property
    def why_not_ready(self) -> str:
        """Why no change is accepted any more; empty if changes are accepted."""
        if self._failure is not None:
            return "A write to the disk failed: restart the server."
        return "The database is closing." if self._is_closing else ""

    def find_room(self) -> int:
        """Return the free bytes of the disk; 0 while it counts as full, which ends with space."""
        if self._is_full:
            with contextlib.suppress(StoreFullError):
                self._refuse_if_still_full()
        return 0 if self._is_full else self._reserve.free_bytes()

    @property
    def wal_bytes(self) -> int:
        """Size of the write-ahead log after the last commit."""
        return self._wal_pages * PAGE_BYTES

    @property
    def store_bytes(self) -> int:
        """Size of the database file, without its log; in memory, of its pages."""
        if self.folder is not None:
            with contextlib.suppress(OSError):
                return (self.folder / DATABASE_FILE).stat().st_size
            return 0
        return int(self._writer.pragma("page_count")) * int(self._writer.pragma("page_size"))

    def prepare(
        self, system: str, version: int, statements: str, upgrades: Upgrades = NO_UPGRADES
    ) -> None:
        """Create the tables of one system, or upgrade those of an earlier version.

        The upgrade is one transaction; an interrupted one leaves the earlier version.
        """
        with self._writer, guarded_numbers(self._writer):
            if self._writer.table_exists("main", "format"):
                check_tables(self._writer, schema_of(FORMAT_SCHEMA))
            else:
                self._writer.execute(FORMAT_SCHEMA)
            found: Any = self._writer.execute(
                "SELECT version FROM format WHERE system = ?", (system,)
            ).get
            if found is None:
                self._writer.execute(statements)
                self._writer.execute("INSERT INTO format VALUES (?, ?)", (system, version))
                return
            if found not in (version, *upgrades):
                raise FormatVersionError(
                    "FormatVersion",
                    f"The folder has format {found} of {system}; this Partita reads {version}.",
                    facts={"folder": str(self.folder)},
                    hint="Install a version of Partita at least as new as the one that wrote it: "
                    "pip install --upgrade partita. Nothing was changed.",
                )
            for number in range(found, version):
                logger.warning("upgrading %s from format %d to %d", system, number, number + 1)
                upgrades[number](self._writer)
                self._writer.execute(
                    "UPDATE format SET version = ? WHERE system = ?", (number + 1, system)
                )
            check_tables(self._writer, schema_of(statements))

    def change(self, *, frees_space: bool = False, is_one_statement: bool = False) -> "Change":
        """Open a change: `async with database.change() as connection`.

        Leaving the block returns when the change is durable. An exception rolls the block back, and
        leaves when everything that the block has read is durable. `is_one_statement` promises that
        at most the last statement of the block changes something: SQLite rolls a failing statement
        back, so that the block needs no savepoint.
        """
        return Change(self, frees_space, is_one_statement)

    def read_here(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run a short read in the caller's thread; not for a database in memory."""
        return self._readers.read_here(read)

    async def in_reader(self, read: Callable[[apsw.Connection], T]) -> T:
        """Run a long read in a thread with its own connection; in memory, on the loop."""
        return await self._readers.in_thread(read)

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
            full_sync(descriptor)
        finally:
            os.close(descriptor)

    async def close(self) -> None:
        """Finish accepted changes, checkpoint, and release the folder."""
        if self._is_closing:
            return
        self._is_closing = True
        self._readers.refuse()
        if self._vacuum is not None:
            await self._vacuum.close()
        while self._members or self._is_committing or self._is_checkpointing:  # noqa: ASYNC110 - rare
            await asyncio.sleep(0.001)
        self._wake_waiters()
        if self._lock_timer is not None:
            self._lock_timer.cancel()
        self._commands.put(None)
        await self._loop.run_in_executor(None, self._commit_thread.join)
        self._readers.stop()
        self._checkpoint_thread.shutdown(wait=True)
        await self._loop.run_in_executor(None, self._release)

    # Long changes

    async def run_alone(
        self,
        work: Callable[[apsw.Connection], Coroutine[Any, Any, T]],
        *,
        frees_space: bool = False,
    ) -> T:
        """Run a long change in the commit thread; return when it is durable.

        `work` is as the block of `change`: it does not suspend. Other changes wait for it, reads
        do not. An exception rolls it back. In memory it runs on the loop: without a write-ahead
        log no other connection can read beside an open change (the VFS `memdb` answers Busy, and
        apsw is built without shared caches), and one connection would read the open change.
        """
        if self.folder is None:
            async with self.change(frees_space=frees_space) as connection:
                return await work(connection)
        self._refuse_if_unfit(frees_space=frees_space)
        self._alone_waiting += 1
        try:
            while self._is_committing or self._is_held or self._writer.in_transaction:
                await self._turn()
                self._refuse_if_unfit(frees_space=frees_space)
            self._is_committing = True
        finally:
            self._alone_waiting -= 1
            if not self._is_committing:
                self._wake_waiters()
        ended: asyncio.Future[T] = self._loop.create_future()
        self._commands.put(lambda: self._run_alone(work, ended))
        return await ended

    def _run_alone(
        self,
        work: Callable[[apsw.Connection], Coroutine[Any, Any, T]],
        ended: "asyncio.Future[T]",
    ) -> None:
        """Run a change in the commit thread, and hand its outcome to the loop."""
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for hook in self.on_begin:
                hook(self._writer)
            result = _finished(work(self._writer))
            started = self._loop.time()
            self._writer.execute("COMMIT")
            self.meter.commit_seconds.observe(self._loop.time() - started)
            self.meter.commit_changes.observe(1)
        except BaseException as error:  # noqa: BLE001 - handed to the loop, which decides
            self._loop.call_soon_threadsafe(self._alone_failed, ended, error)
        else:
            self._loop.call_soon_threadsafe(self._alone_succeeded, ended, result)

    def _alone_succeeded(self, ended: "asyncio.Future[T]", result: T) -> None:
        if not ended.done():  # its task was cancelled; the change is committed nevertheless
            ended.set_result(result)
        self._commit_ended(None)

    def _alone_failed(self, ended: "asyncio.Future[T]", error: BaseException) -> None:
        self._is_committing = False
        self._rollback()
        outcome = self.failed(error) if isinstance(error, DISK_ERRORS) else error
        if not ended.done():
            ended.set_exception(outcome)
            ended.exception()  # a cancelled task does not retrieve it
        self._commit_ended(None)

    # Entering and leaving a change

    async def _turn(self) -> None:
        """Wait until a transaction has ended."""
        turn = self._loop.create_future()
        self._waiters.append(turn)
        await turn

    async def _measured_turn(self) -> None:
        started = self._loop.time()
        await self._turn()
        seconds = self._loop.time() - started
        self.meter.queue_seconds.observe(seconds)
        waits = WAITS.get()  # only after a wait: until then, the request has no task of its own
        if waits is not None:
            waits.queue_seconds += seconds

    async def enter(self, *, frees_space: bool) -> apsw.Connection:
        """Wait for a transaction, and return the connection on which it is open."""
        self._refuse_if_unfit(frees_space=frees_space)
        while self._is_committing or self._is_held or self._alone_waiting:
            await self._measured_turn()
            self._refuse_if_unfit(frees_space=frees_space)
        if not self._writer.in_transaction:
            self._begin()
        return self._writer

    def enter_now(self) -> apsw.Connection | None:
        """Return the connection with its open transaction; None if a change must wait for one."""
        if (
            self._is_committing
            or self._is_held
            or self._alone_waiting
            or self._is_full
            or self._failure is not None
            or self._is_closing
        ):
            return None
        if not self._writer.in_transaction:
            self._begin()
        return self._writer

    def _begin(self) -> None:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            for hook in self.on_begin:
                hook(self._writer)
        except apsw.Error as error:
            self._rollback()
            raise self.failed(error) from error

    def leave(self, error: BaseException | None, *, has_savepoint: bool) -> asyncio.Future[None]:
        """Close the savepoint and return the future that the commit resolves."""
        if self._writer.in_transaction:
            try:
                if has_savepoint:
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

    async def durable(self, done: asyncio.Future[None]) -> None:
        """Wait for the commit of a change, and measure it for the request that waits."""
        if done.done():
            await done
            return
        started = self._loop.time()
        await done
        waits = WAITS.get()  # only after the wait: until then, the request has no task of its own
        if waits is not None:
            waits.commit_seconds += self._loop.time() - started

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
        started = self._loop.time()
        try:
            self._check_lock()
            self._writer.execute("COMMIT")
        except BaseException as failure:  # noqa: BLE001 - handed to the loop, which decides
            error = failure
        self.meter.commit_seconds.observe(self._loop.time() - started)
        self._loop.call_soon_threadsafe(self._commit_ended, error)

    def _commit_ended(self, error: BaseException | None) -> None:
        members, self._committing = self._committing, []
        if members:
            self.meter.commit_changes.observe(len(members))
        self._is_committing = False
        self._readers.reads_since_commit = 0
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
        self._wake_waiters()

    def _start_background(self) -> None:
        self._check_lock_later()
        self._vacuum = Vacuum(self, PAGE_BYTES)

    # The lock of the folder

    def _check_lock(self) -> None:
        """Raise if another process may have entered the folder, or would enter another one."""
        assert self._lock is not None
        with contextlib.suppress(OSError):  # a path is missing
            if [path.stat()[1:3] for path in self._lock.paths] == self._lock.identities:
                return
        raise self._lock.lost()

    def _check_lock_later(self) -> None:
        self._lock_timer = self._loop.call_later(
            LOCK_CHECK_SECONDS, self._commands.put, self._check_lock_now
        )

    def _check_lock_now(self) -> None:
        """Check the lock in the commit thread: a file system that hangs must not stop the loop."""
        with contextlib.suppress(RuntimeError):  # the loop has closed
            try:
                self._check_lock()
            except StoreStoppedError as error:
                self._loop.call_soon_threadsafe(self.failed, error)
            else:
                self._loop.call_soon_threadsafe(self._check_lock_later)

    # Failures

    def _refuse_if_unfit(self, *, frees_space: bool) -> None:
        if isinstance(self._failure, StoreStoppedError):
            raise copy(self._failure) from self._failure
        if self._failure is not None:
            raise store_stopped() from self._failure
        if self._is_closing:
            raise closing()
        if self._is_full and not frees_space:
            self._refuse_if_still_full()

    def failed(self, error: BaseException) -> PartitaError:
        """Return the error for the callers, and set the state of the database accordingly."""
        result = translated(error, self.folder)
        if isinstance(result, StoreFullError):
            self._became_full()
        elif isinstance(result, StoreStoppedError | DamageError) and self._failure is None:
            self._failure = error
            self.meter.sync_failures += 1
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
        self._reserve.drop()

    def _refuse_if_still_full(self) -> None:
        # Deletes leave space in the file, but a write needs space for its log, too.
        free = self._reserve.free_bytes()
        inside = self.reader.pragma("freelist_count") * PAGE_BYTES
        has_room = free >= RESERVE_BYTES // 2 and free + inside >= 2 * RESERVE_BYTES
        if not has_room or not self._reserve.keep(min(RESERVE_BYTES, free // 2)):
            raise translated(apsw.FullError(), self.folder)
        self._is_full = False
        logger.warning("the disk has space again: writes resume")

    # Checkpoints

    def checkpoint_soon(self) -> None:
        """Start a checkpoint that no writer waits for, although little log is new."""
        if self._is_checkpointing:
            self._is_checkpoint_wanted = True
        elif self._failure is None:
            self._start_checkpoint(is_held=False)

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
        if fresh < RESERVE_BYTES // 4 and self.wal_bytes < WAL_HOLD_BYTES:
            return
        if self._is_full or self._reserve.free_bytes() < ROOM_SHORT_BYTES:
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
        started = self._loop.time()
        try:
            return self._checkpoint_with(self._checkpointer, gives_space)
        finally:
            self.meter.checkpoint_seconds.observe(self._loop.time() - started)

    def _checkpoint_with(
        self,
        checkpointer: apsw.Connection,
        gives_space: bool,  # noqa: FBT001 - internal
    ) -> tuple[int, int]:
        pages, carried = checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        if gives_space and carried == pages:
            with contextlib.suppress(apsw.BusyError):  # a reader uses the log: next time
                checkpointer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
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
        if self._is_checkpoint_wanted and not self._is_checkpointing:
            self._is_checkpoint_wanted = False
            self.checkpoint_soon()
        if was_held and not self._is_held:
            self._wake_waiters()

    # Connections

    def _connect_even_if_full(self) -> None:
        try:
            self._connect_all()
        except apsw.Error as error:
            if not isinstance(translated(error, self.folder), StoreFullError):
                raise
            self._reserve.drop()
            self._connect_all()

    def _connect_all(self) -> None:
        if self.folder:
            # SQLite creates a file for all users, and its log with the permissions of the file.
            make_private(self.folder / DATABASE_FILE)
            for name in (*(f"{DATABASE_FILE}{end}" for end in ("", "-wal", "-shm")), RESERVE_FILE):
                keep_private(self.folder / name)
        self._writer = self._connect(WRITER_CACHE_KIB, 0)
        _prepare(self._writer, is_file=bool(self.folder), durability=self.durability)
        self._readers = Readers(self.folder, self._writer, self._connect)
        self._checkpointer = self._connect(0, 0) if self.folder else None
        if self._checkpointer is not None:
            # A connection that has never read does not see the log, and checkpoints nothing.
            self._checkpointer.pragma("schema_version")
            self._checkpointer.set_busy_timeout(CHECKPOINT_BUSY_MS)
        if self._lock is not None:
            self._lock.watch(DATABASE_FILE)

    def _connect(self, cache_kib: int, map_bytes: int) -> apsw.Connection:
        name = str(self.folder / DATABASE_FILE) if self.folder else ":memory:"
        flags = _OPEN_FLAGS
        if not self._loop.get_debug():
            # Each connection has one thread at a time, so that it needs no lock: a page of 1,000
            # takes a tenth less. In debug mode it has one, by which apsw finds a second thread.
            flags |= apsw.SQLITE_OPEN_NOMUTEX
        connection = apsw.Connection(name, flags=flags, vfs=self.vfs)
        connection.set_busy_timeout(5000)
        if cache_kib:
            connection.pragma("cache_size", -cache_kib)
        connection.pragma("mmap_size", map_bytes)
        connection.pragma("temp_store", "memory")
        distrust(connection)
        # Otherwise a statement is planned again when its parameters change: 10 us for a join.
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        # Otherwise a sync on macOS leaves the bytes in the drive's cache; ignored elsewhere.
        connection.pragma("fullfsync", 1)
        connection.pragma("checkpoint_fullfsync", 1)
        if self.folder:
            connection.wal_autocheckpoint(0)
            # Closing must not write: after a failed sync only the log is valid.
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
        return connection

    def _release(self) -> None:
        if self.folder and self._failure is None and hasattr(self, "_writer"):
            with contextlib.suppress(apsw.Error):  # closing loses nothing: the log is complete
                self._writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        if hasattr(self, "_readers"):
            self._readers.close()
        for name in ("_checkpointer", "_writer"):
            connection: apsw.Connection | None = getattr(self, name, None)
            if connection is not None:
                with contextlib.suppress(apsw.Error):
                    connection.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def check_sqlite() -> None:
    """Raise if the SQLite of apsw may lose committed pages of a database in WAL mode."""
    version = apsw.sqlite_lib_version()
    if has_wal_reset_bug(version_of(version)):
        raise ConfigurationError(
            "Configuration",
            f"SQLite {version}, which apsw uses, can lose committed pages (the WAL-reset bug).",
            hint="Install apsw 3.51.3 or later: `pip install --upgrade apsw`.",
        )


def refuse_unfinished_copy(connection: apsw.Connection, folder: Path | None) -> None:
    """Raise if an account was being copied to this database, and not all of it arrived."""
    if connection.table_exists("main", COPY_TABLE):
        raise ConfigurationError(
            "CopyIncomplete",
            f"The account in {folder} is being copied, and the copy is not complete.",
            hint="Run the same `partita account copy` again: it continues, or says what differs."
            " To give up the copy, remove the folder of the account.",
        )


class Change:
    """A part of the open transaction, usually a savepoint in it; see `Database.change`."""

    __slots__ = ("_database", "_frees_space", "_is_one_statement")

    def __init__(
        self,
        database: Database,
        frees_space: bool,  # noqa: FBT001 - internal
        is_one_statement: bool,  # noqa: FBT001 - internal
    ) -> None:
        self._database = database
        self._frees_space = frees_space
        self._is_one_statement = is_one_statement

    async def __aenter__(self) -> apsw.Connection:
        connection = await self._database.enter(frees_space=self._frees_space)
        if not self._is_one_statement:
            connection.execute("SAVEPOINT change")
        return connection

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        done = self._database.leave(error, has_savepoint=not self._is_one_statement)
        await self._database.durable(done)
        if isinstance(error, DISK_ERRORS):
            raise self._database.failed(error) from error


def _finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    raise AssertionError("a change suspended")


def _prepare(connection: apsw.Connection, *, is_file: bool, durability: Durability) -> None:
    found = connection.pragma("application_id")
    has_tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
    if has_tables:
        refuse_foreign(connection)
    connection.pragma("page_size", PAGE_BYTES)
    if is_file:
        if not has_tables:
            connection.pragma("auto_vacuum", INCREMENTAL)
        connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", "full" if durability is Durability.FULL else "normal")
    if found != APPLICATION_ID:
        connection.pragma("application_id", APPLICATION_ID)
