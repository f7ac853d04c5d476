"""The files of backups: copied with their hashes, synced, and never through a link.

The one rule: a folder gets its final name when everything in it is verified and synced. All
calls block.
"""

import contextlib
import errno
import hashlib
import itertools
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import apsw

from partita.blobs.store.rows import EARLIER_SCHEMA as BLOBS_EARLIER_SCHEMA
from partita.blobs.store.rows import SCHEMA as BLOBS_SCHEMA
from partita.errors import ConfigurationError, DamageError, PartitaError
from partita.queues.sqlite_store import SCHEMA as QUEUES_SCHEMA
from partita.service.backup.compression import Compression, Stream, compressed, expanded
from partita.service.backup.manifest import Content
from partita.storage import store_clock
from partita.storage.database import FORMAT_SCHEMA
from partita.storage.folder import full_sync, make_folder, sync_names
from partita.storage.format_numbers import APPLICATION_ID
from partita.storage.schema import check_all, distrust, schema_of
from partita.storage.sqlite_errors import translated
from partita.tables.sqlite_store import SCHEMA as TABLES_SCHEMA
from partita.ticks import Clock

T = TypeVar("T")
R = TypeVar("R")

COPY_BYTES = 1024 * 1024
COPY_THREADS = 4
OPEN_FILES_MAX = 256
"""Content files that are copied, or held open, at the same time."""

CHECK_STEPS_MIN = 1_000_000
CHECK_STEPS_PER_BYTE = 16
"""Steps of SQLite's virtual machine that the check of a database may take: the shortest rows need
less than one per byte."""

ACCOUNT_SCHEMAS = (
    FORMAT_SCHEMA,
    store_clock.SCHEMA,
    store_clock.STEADY_SCHEMA,
    TABLES_SCHEMA,
    QUEUES_SCHEMA,
    BLOBS_SCHEMA,
)
"""Everything that the database of an account may contain."""

Progress = Callable[[str, int, int], None]
"""Called with the step, its completed bytes and its total bytes."""

_NAMED = "SELECT hash, max(size) FROM extent WHERE hash IS NOT NULL GROUP BY hash ORDER BY hash"


def silent(_step: str, _done: int, _total: int) -> None:
    """Do not report progress."""


@contextlib.contextmanager
def arriving_folder(target: Path, clock: Clock) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to the target at the end, or removed."""
    if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
        message = f"The folder {target} already exists."
        raise unusable(message, "Choose another name, or move the folder: nothing is overwritten.")
    target = target.absolute()
    make_folder(target.parent)
    arriving = target.with_name(f"{target.name}.incomplete-{clock.new_id()[:8]}")
    arriving.mkdir(mode=0o700)
    try:
        yield arriving
        for folder, _, _ in os.walk(arriving, topdown=False):
            sync_names(Path(folder))
        arriving.rename(target)
        sync_names(target.parent)
    except BaseException:
        shutil.rmtree(arriving, ignore_errors=True)
        raise


@contextlib.contextmanager
def opened_beneath(folder: Path, parts: Sequence[str]) -> Iterator[int]:
    """Open a regular file below a folder; a link in its path is an OSError."""
    flags = os.O_RDONLY | os.O_CLOEXEC
    with contextlib.ExitStack() as opened:
        place = os.open(folder, flags | os.O_DIRECTORY)
        opened.callback(os.close, place)
        for part in parts[:-1]:
            place = os.open(part, flags | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=place)
            opened.callback(os.close, place)
        # Without O_NONBLOCK, opening a named pipe would block forever.
        file = os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=place)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise OSError(errno.EINVAL, "Not a regular file", parts[-1])
        yield file
    finally:
        os.close(file)


def copy_content(
    content: Content, stream: Stream, arriving: Path | None, how: Compression = Compression.NONE
) -> bool:
    """Copy one content file, if a target is given; return whether its bytes match its name."""
    target = None if arriving is None else arriving.joinpath(*content.parts_in(how))
    if target is not None:
        # Not parents=True: that makes the parent folders readable for all users.
        for folder in (target.parents[2], target.parents[1], target.parents[0]):
            folder.mkdir(mode=0o700, exist_ok=True)
    found = copy_hashed(pieces_of(stream, content.size), target, how)
    return found == (content.size, content.digest.hex())


def pieces_of(stream: Stream, size_max: int | None = None) -> Iterator[bytes]:
    """Yield what a file has; at most one piece more than it should have."""
    size = 0
    while (size_max is None or size <= size_max) and (piece := stream.read(COPY_BYTES)):
        size += len(piece)
        yield piece


def copy_hashed(
    pieces: Iterable[bytes], target: Path | None, how: Compression = Compression.NONE
) -> tuple[int, str]:
    """Write a file, if a target is given; return the size and the SHA-256 of the pieces."""
    digest, size = hashlib.sha256(), 0

    def hashed() -> Iterator[bytes]:
        nonlocal size
        for piece in pieces:
            digest.update(piece)
            size += len(piece)
            yield piece

    if target is None:
        for _ in hashed():
            pass
    else:
        write_new(target, compressed(hashed(), how))
    return size, digest.hexdigest()


def hash_of(folder: Path, name: str) -> tuple[int, str]:
    with opened_beneath(folder, (name,)) as descriptor:
        return copy_hashed(pieces_of(expanded(descriptor, Compression.NONE)), None)


def write_new(path: Path, pieces: Iterable[bytes]) -> None:
    """Write a new file and sync it."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.writelines(pieces)
        file.flush()
        full_sync(file.fileno())


def sync_file(path: Path) -> None:
    """Sync a file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        full_sync(descriptor)
    finally:
        os.close(descriptor)


def in_threads(work: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Run the work in a few threads, with bounded read-ahead of the results."""
    with ThreadPoolExecutor(COPY_THREADS, "partita-copying") as threads:
        for start in range(0, len(items), OPEN_FILES_MAX):
            yield from threads.map(work, items[start : start + OPEN_FILES_MAX])


def named_contents(connection: apsw.Connection) -> list[Content]:
    """Return the content files that rows refer to; none in an account without blobs."""
    has_blobs = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'extent'").get
    rows = connection.execute(_NAMED) if has_blobs else ()
    return [Content(bytes(digest), int(size)) for digest, size in rows]


def check_database(path: Path, contents: list[Content], progress: Progress) -> None:
    """Check every page, and that the rows refer to exactly these files."""
    total = path.stat().st_size
    progress("check", 0, total)
    name = f"{path.absolute().as_uri()}?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with contextlib.closing(apsw.Connection(name, flags)) as database:
        distrust(database)
        _limit_steps(database, CHECK_STEPS_MIN + CHECK_STEPS_PER_BYTE * total)
        try:
            _check_database(database, contents)
        except apsw.InterruptError as error:
            raise _database_damaged("its size does not explain the steps of a check") from error
    progress("check", total, total)


def _check_database(database: apsw.Connection, contents: list[Content]) -> None:
    if database.pragma("application_id") != APPLICATION_ID:
        raise _database_damaged("it was not written by Partita")
    check_all(database, schema_of(*ACCOUNT_SCHEMAS), schema_of(BLOBS_EARLIER_SCHEMA))
    found = str(database.pragma("integrity_check"))
    if found != "ok":
        raise _database_damaged(found.partition("\n")[0])
    if named_contents(database) != contents:
        raise _database_damaged("its rows refer to other files")


def _limit_steps(database: apsw.Connection, steps_max: int) -> None:
    """Interrupt what takes more steps of SQLite's virtual machine."""
    calls = itertools.count(1)
    every = CHECK_STEPS_MIN // 100
    database.set_progress_handler(lambda: next(calls) * every > steps_max, every)


def _database_damaged(reason: str) -> PartitaError:
    return DamageError(
        "StoreDamaged", f"The database is damaged: {reason}.", hint="Restore an older backup."
    )


@contextlib.contextmanager
def translating(folder: Path) -> Iterator[None]:
    """Translate errors of the operating system and of SQLite."""
    try:
        yield
    except apsw.Error as error:
        raise translated(error, folder) from error
    except OSError as error:
        message = f"{error.filename or folder} cannot be used: {error.strerror or error}."
        raise unusable(message, "Check the permissions and the free space of the disk.") from error


def unusable(message: str, hint: str) -> PartitaError:
    return ConfigurationError("FolderUnusable", message, hint=hint)
