"""Reading everything that an account stores, at a bounded rate: content files, rows, pages.

Blocks; runs in a thread beside a server, or in another process. Rows are read in short
transactions, so that the write-ahead log is not kept from restarting; only the check of the
database takes one long transaction. Nothing is changed here except through `quarantine`.
"""

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import msgspec

from partita.blobs.rules import stored_format
from partita.blobs.store.download import verified
from partita.blobs.store.rows import InlineRow
from partita.errors import DamageError
from partita.queues.message import unpack_text
from partita.service.backup.files import COPY_BYTES, opened_beneath, translating
from partita.service.backup.manifest import Content
from partita.storage.database import DATABASE_FILE
from partita.storage.reading_beside import open_source
from partita.tables import edm
from partita.tables.entity import unpack_document

ROWS_READ = 200
"""Rows that one transaction reads."""
BLOBS_NAMED_MAX = 20
"""Blobs that are listed for a damaged content."""
PROGRESS_INSTRUCTIONS = 100_000
"""SQLite instructions between two checks whether to stop: some milliseconds."""

_CONTENTS = "SELECT hash, max(size) FROM extent WHERE hash > ? GROUP BY hash ORDER BY hash LIMIT ?"
_BLOBS = (
    "SELECT DISTINCT c.name || '/' || b.name FROM extent e JOIN piece p ON p.extent = e.id"
    " JOIN blob b ON b.content = p.content JOIN container c ON c.id = b.container"
    " WHERE {} = ? ORDER BY 1 LIMIT ?"
)
_BLOBS_OF_HASH, _BLOBS_OF_EXTENT = _BLOBS.format("e.hash"), _BLOBS.format("e.id")


class Damage(msgspec.Struct, frozen=True):
    """Something that is not as it was written."""

    place: str
    """The content file, the row, or the database."""
    reason: str
    blobs: list[str] = []
    """The blobs that need it, at most BLOBS_NAMED_MAX."""
    is_quarantined: bool = False

    @property
    def text(self) -> str:
        parts = [f"{self.place}: {self.reason}"]
        if self.is_quarantined:
            parts.append("moved to quarantine")
        if self.blobs:
            parts.append(f"blobs: {', '.join(self.blobs)}")
        return "; ".join(parts)


class Verified(msgspec.Struct, frozen=True):
    """What was read, and what of it is damaged."""

    files: int
    file_bytes: int
    rows: int
    database_bytes: int
    damage: list[Damage]


class Stopped(Exception):  # noqa: N818 - not an error
    """The verification was stopped."""


class Pace:
    """The bounded rate: `spend` waits until the bytes read so far are due."""

    def __init__(
        self,
        bytes_per_second: float,
        monotonic: Callable[[], float],
        wait: Callable[[float], bool],
    ) -> None:
        self._bytes_per_second = bytes_per_second
        self._monotonic = monotonic
        self._wait = wait
        """Waits some seconds; returns True if the verification must stop."""
        self._due = monotonic()

    def spend(self, size: int) -> None:
        # Time in which nothing was read is not made up for by reading faster.
        self._due = max(self._due, self._monotonic()) + size / self._bytes_per_second
        if self._wait(max(0.0, self._due - self._monotonic())):
            raise Stopped

    def is_stopped(self) -> bool:
        return self._wait(0.0)


Quarantine = Callable[[bytes], bool]
"""Moves the file of a damaged content aside; returns whether it did."""
Reached = Callable[[Content], None]
"""Called with each content file that was read."""
Found = Callable[[Damage], None]
"""Called with each damage when it is found."""


def ignore(_event: object) -> None:
    """Do not record the progress."""


def verify_account(
    folder: Path,
    pace: Pace,
    quarantine: Quarantine,
    *,
    after: bytes = b"",
    reached: Reached = ignore,
    found: Found = ignore,
) -> Verified:
    """Read everything of an account; `after` continues after this content file."""
    with translating(folder), contextlib.closing(open_source(folder)) as source:
        return _Verification(folder, source, pace, quarantine, found).run(after, reached)


def stored_bytes(folder: Path) -> int:
    """Return the bytes that a verification reads."""
    with translating(folder), contextlib.closing(open_source(folder)) as source:
        files: Any = 0
        if _has(source, "extent"):
            files = source.execute(
                "SELECT coalesce(sum(size), 0) FROM"
                " (SELECT max(size) AS size FROM extent WHERE hash IS NOT NULL GROUP BY hash)"
            ).get
        return int(files) + (folder / DATABASE_FILE).stat().st_size


def is_sound(content: Content, descriptor: int, pace: Pace) -> bool:
    """Return whether an open content file has the bytes that its name promises."""
    digest, size = hashlib.sha256(), 0
    while piece := os.pread(descriptor, COPY_BYTES, size):
        digest.update(piece)
        size += len(piece)
        pace.spend(len(piece))
    return (size, digest.digest()) == (content.size, content.digest)


class _Verification:
    """One run."""

    def __init__(
        self,
        folder: Path,
        source: apsw.Connection,
        pace: Pace,
        quarantine: Quarantine,
        found: Found,
    ) -> None:
        self._folder = folder
        self._source = source
        self._pace = pace
        self._quarantine = quarantine
        self._found = found
        self._files = self._file_bytes = self._rows = 0
        self._damage: list[Damage] = []

    def run(self, after: bytes, reached: Reached) -> Verified:
        if _has(self._source, "extent"):
            self._collect(lambda: self._read_contents(after, reached))
            self._collect(self._read_blob_rows)
        if _has(self._source, "entity"):
            self._collect(self._read_entities)
        if _has(self._source, "message"):
            self._collect(self._read_messages)
        self._collect(self._check_database)
        size = (self._folder / DATABASE_FILE).stat().st_size
        self._pace.spend(size)
        return Verified(self._files, self._file_bytes, self._rows, size, self._damage)

    def _collect(self, work: Callable[[], None]) -> None:
        """Do a part of the work; a damaged page ends that part only."""
        try:
            work()
        except (apsw.CorruptError, UnicodeDecodeError) as error:
            self._note(DATABASE_FILE, str(error))

    # Content files

    def _read_contents(self, after: bytes, reached: Reached) -> None:
        while found := self._rows_of(_CONTENTS, (after, ROWS_READ)):
            for content in map(Content._make, found):
                self._read_content(content)
                reached(content)
                after = content.digest

    def _read_content(self, content: Content) -> None:
        reason = self._problem_of(content)
        # A file may have been replaced or removed while it was read: only a second look counts.
        if reason is not None and self._is_named(content):
            reason = self._problem_of(content)
        self._files += 1
        self._file_bytes += content.size
        if reason is None or not self._is_named(content):
            return
        blobs = self._blobs(_BLOBS_OF_HASH, content.digest)
        is_quarantined = self._quarantine(content.digest)
        self._note("/".join(content.parts), reason, blobs, is_quarantined=is_quarantined)

    def _problem_of(self, content: Content) -> str | None:
        try:
            with opened_beneath(self._folder, content.parts) as descriptor:
                if is_sound(content, descriptor, self._pace):
                    return None
        except FileNotFoundError:
            return "the file is missing"
        except OSError as error:
            return f"the file cannot be read: {error.strerror}"
        return "the bytes are not those that were written"

    def _is_named(self, content: Content) -> bool:
        return bool(
            self._source.execute(
                "SELECT EXISTS (SELECT 1 FROM extent WHERE hash = ?)", (content.digest,)
            ).get
        )

    def _blobs(self, statement: str, key: bytes | int) -> list[str]:
        found = self._source.execute(statement, (key, BLOBS_NAMED_MAX)).fetchall()
        return [str(name) for (name,) in found]

    # Rows

    def _read_blob_rows(self) -> None:
        for identity, size, checks, content in self._pages(
            "SELECT id, size, checks, bytes FROM extent WHERE (id) > ({}) AND hash IS NULL", 1
        ):
            row = InlineRow(size, checks, content)
            if (reason := _problem(partial(verified, row))) is not None:
                self._note(f"extent {identity}", reason, self._blobs(_BLOBS_OF_EXTENT, identity))
        for identity, name, facts in self._pages(
            "SELECT id, name, facts FROM container WHERE (id) > ({})", 1
        ):
            reason = _problem(partial(stored_format.decode_container, facts))
            if reason is not None:
                self._note(f"container {identity} {name}", reason)
        for container, name, snapshot, facts in self._pages(
            "SELECT container, name, snapshot, facts FROM blob"
            " WHERE (container, name, snapshot) > ({})",
            3,
        ):
            if (reason := _problem(partial(stored_format.decode_blob, facts))) is not None:
                self._note(f"blob {name} of container {container}, snapshot {snapshot}", reason)

    def _read_entities(self) -> None:
        for table, partition, row, ticks, document in self._pages(
            "SELECT tid, pk, rk, ticks, document FROM entity WHERE (tid, pk, rk) > ({})", 3
        ):
            reason = problem_of_entity(partition, row, ticks, document)
            if reason is not None:
                self._note(f"entity {partition!r}, {row!r} of table {table}", reason)

    def _read_messages(self) -> None:
        for sequence, nonce, text in self._pages(
            "SELECT sequence, nonce, text FROM message WHERE (sequence) > ({})", 1
        ):
            if unpack_text(nonce, text) is None:
                self._note(f"message {sequence}", "its text does not match its checksum")

    def _pages(self, statement: str, width: int) -> Iterator[Any]:
        """Yield the rows of a statement, in the order of its first columns, page by page."""
        marks, order = ", ".join("?" * width), ", ".join(str(n + 1) for n in range(width))
        text = f"{statement.format(marks)} ORDER BY {order} LIMIT {ROWS_READ}"
        after: tuple[Any, ...] = (-1, "", "")[:width]
        while found := self._rows_of(text, after):
            yield from found
            self._rows += len(found)
            after = found[-1][:width]
            self._pace.spend(sum(len(row[-1]) for row in found))

    def _rows_of(self, statement: str, parameters: tuple[Any, ...]) -> list[Any]:
        return self._source.execute(statement, parameters).fetchall()

    def _note(
        self, place: str, reason: str, blobs: Sequence[str] = (), *, is_quarantined: bool = False
    ) -> None:
        damage = Damage(place, reason, list(blobs), is_quarantined)
        self._damage.append(damage)
        self._found(damage)

    # Pages

    def _check_database(self) -> None:
        """Check the structure of every page."""
        self._source.set_progress_handler(self._pace.is_stopped, PROGRESS_INSTRUCTIONS)
        try:
            for (found,) in self._source.execute("PRAGMA integrity_check").fetchall():
                if found != "ok":
                    self._note(DATABASE_FILE, str(found))
        except apsw.InterruptError as error:
            raise Stopped from error
        finally:
            self._source.set_progress_handler(None)


class _Document(msgspec.Struct, frozen=True):
    """The part of the document of an entity that its row repeats."""

    partition_key: str = msgspec.field(name="PartitionKey")
    row_key: str = msgspec.field(name="RowKey")
    timestamp: str = msgspec.field(name="Timestamp")


def problem_of_entity(partition: str, row: str, ticks: int, stored: bytes) -> str | None:
    """Return why the row of an entity is damaged; None if it is sound."""
    document = unpack_document(ticks, stored)
    if document is None:
        return "its bytes do not match their checksum"
    try:
        found = msgspec.json.decode(b"{" + document, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "its document cannot be decoded"
    if found != _Document(partition, row, edm.text_of(ticks)):
        return "its document does not match its row"
    return None


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except DamageError as error:
        return error.message
    return None


def _has(source: apsw.Connection, table: str) -> bool:
    """Return whether a table exists: an account has those of the services that were used."""
    return source.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).get is not None
