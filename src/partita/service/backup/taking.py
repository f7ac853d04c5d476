"""Takes the backup of an account, whoever has it open.

The account's collector knows nothing of us: a content file whose row went may go at any time. So
nearly all files are copied before the moment of the backup, and at the moment the few that are
new are opened: an open file can be read when its name is gone. The server is not asked and does
not wait; its log grows while the database is copied.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import apsw

import partita
from partita.blobs.rules.checksums import damaged
from partita.errors import FormatVersionError, StoreBusyError
from partita.service.backup.files import (
    OPEN_FILES_MAX,
    Progress,
    arriving_folder,
    check_database,
    copy_content,
    hash_of,
    in_threads,
    named_contents,
    opened_beneath,
    silent,
    sync_file,
    translating,
    unusable,
    write_new,
)
from partita.service.backup.manifest import (
    CONTENTS_FILE,
    MANIFEST_FILE,
    Content,
    ContentFacts,
    FileFacts,
    Manifest,
    encode,
    encode_contents,
)
from partita.storage.database import APPLICATION_ID, DATABASE_FILE
from partita.ticks import TICKS_PER_SECOND, Clock

MOMENTS_MAX = 20
"""Times to look for a moment at which every named file can be opened."""
MISSING_MAX = 3
"""Moments at which a named file may be missing: it went and came back. More is damage."""
STEP_PAGES = 1024
"""Pages of the database between two reports of progress."""
BUSY_MS = 10_000


def back_up(folder: Path, target: Path, *, clock: Clock, progress: Progress = silent) -> Manifest:
    """Copy the account of a folder into a new folder and verify the copy.

    What was acknowledged before the call is in the backup; what is acknowledged during it may be.
    """
    if not (folder / DATABASE_FILE).is_file():
        message = f"The folder {folder} holds no account."
        raise unusable(message, "Give the folder of the data, or of an account in it.")
    with translating(folder), arriving_folder(target, clock) as arriving:
        with contextlib.closing(_source_of(folder)) as source:
            contents = _Copying(folder, arriving, progress).copy_all(source)
        write_new(arriving / CONTENTS_FILE, encode_contents(contents))
        check_database(arriving / DATABASE_FILE, contents, progress)
        manifest = _manifest_of(arriving, folder.absolute().name, contents, clock)
        write_new(arriving / MANIFEST_FILE, [encode(manifest)])
    return manifest


def _source_of(folder: Path) -> apsw.Connection:
    """Open the database beside the server that may have it open, to read only."""
    source = apsw.Connection(str(folder / DATABASE_FILE), flags=apsw.SQLITE_OPEN_READWRITE)
    source.set_busy_timeout(BUSY_MS)
    source.pragma("query_only", 1)
    source.pragma("mmap_size", 0)
    source.wal_autocheckpoint(0)
    source.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    source.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    if source.pragma("application_id") == APPLICATION_ID:
        return source
    source.close()
    raise FormatVersionError(
        "FormatVersion",
        "The database file was not written by Partita.",
        hint="Choose another folder.",
    )


class _Copying:
    """One run: files ahead of the moment, the database at it, the last files behind it."""

    def __init__(self, folder: Path, arriving: Path, progress: Progress) -> None:
        self._folder = folder
        self._arriving = arriving
        self._progress = progress
        self._copied: set[bytes] = set()
        self._copied_bytes = 0
        self._missing: Counter[bytes] = Counter()
        """Moments in a row at which a file was named and not there."""

    def copy_all(self, source: apsw.Connection) -> list[Content]:
        """Return the contents that the copied database names, all of them copied."""
        for _ in range(MOMENTS_MAX):
            self._copy_ahead(source)
            with contextlib.ExitStack() as opened:
                found = self._moment(source, opened)
                if found is None:
                    continue
                contents, files = found
                total = sum(content.size for content in contents)
                for content, descriptor in files:
                    self._copy(content, descriptor)
                    self._took(content, total)
            self._forget_all_but(contents)
            return contents
        raise StoreBusyError(
            "ServerBusy",
            "The blobs of the account change faster than they can be copied.",
            hint="Try again when fewer blobs are replaced.",
        )

    def _copy_ahead(self, source: apsw.Connection) -> None:
        contents = named_contents(source)
        total = sum(content.size for content in contents)
        new = [content for content in contents if content.digest not in self._copied]
        for content in in_threads(self._copy_if_there, new):
            if content is not None:
                self._took(content, total)

    def _copy_if_there(self, content: Content) -> Content | None:
        with contextlib.ExitStack() as opened:
            try:
                descriptor = opened.enter_context(opened_beneath(self._folder, content.parts))
            except FileNotFoundError:
                return None  # it was removed since; the moment decides whether it is needed
            self._copy(content, descriptor)
        return content

    def _moment(
        self, source: apsw.Connection, opened: contextlib.ExitStack
    ) -> tuple[list[Content], list[tuple[Content, int]]] | None:
        """Copy the database and open the files that only now are named; None: try again."""
        source.execute("BEGIN")
        try:
            contents = named_contents(source)
            files = self._open_new(contents, opened)
            if files is None:
                return None
            self._copy_database(source)
        finally:
            source.execute("ROLLBACK")
        return contents, files

    def _open_new(
        self, contents: Iterable[Content], opened: contextlib.ExitStack
    ) -> list[tuple[Content, int]] | None:
        new = [content for content in contents if content.digest not in self._copied]
        if len(new) > OPEN_FILES_MAX:
            return None
        files: list[tuple[Content, int]] = []
        missing: set[bytes] = set()
        for content in new:
            try:
                descriptor = opened.enter_context(opened_beneath(self._folder, content.parts))
            except FileNotFoundError:
                missing.add(content.digest)
            else:
                files.append((content, descriptor))
        self._missing = Counter({digest: self._missing[digest] + 1 for digest in missing})
        if any(count >= MISSING_MAX for count in self._missing.values()):
            raise damaged("its file is missing")
        return None if missing else files

    def _copy(self, content: Content, descriptor: int) -> None:
        if not copy_content(content, descriptor, self._arriving):
            raise damaged("its bytes are not those that were written")

    def _took(self, content: Content, total: int) -> None:
        self._copied.add(content.digest)
        self._copied_bytes += content.size
        self._progress("contents", min(self._copied_bytes, total), total)

    def _copy_database(self, source: apsw.Connection) -> None:
        path = self._arriving / DATABASE_FILE
        write_new(path, ())
        with contextlib.closing(apsw.Connection(str(path))) as copy:
            # A crash leaves a folder without a manifest: the copy needs no journal of its own.
            copy.pragma("journal_mode", "off")
            copy.pragma("synchronous", "off")
            page_bytes = int(source.pragma("page_size"))
            with copy.backup("main", source, "main") as copying:
                while not copying.done:
                    copying.step(STEP_PAGES)
                    done = copying.page_count - copying.remaining
                    self._progress("database", done * page_bytes, copying.page_count * page_bytes)
        sync_file(path)

    def _forget_all_but(self, contents: Iterable[Content]) -> None:
        """Remove what was copied ahead and is named no more."""
        for digest in self._copied.difference(content.digest for content in contents):
            self._arriving.joinpath(*Content(digest, 0).parts).unlink()


def _manifest_of(arriving: Path, account: str, contents: list[Content], clock: Clock) -> Manifest:
    made_at = datetime.fromtimestamp(clock.ticks() // TICKS_PER_SECOND, UTC)
    size, sha256 = hash_of(arriving, DATABASE_FILE)
    return Manifest(
        account=account,
        made_at=f"{made_at:%Y-%m-%dT%H:%M:%SZ}",
        partita=partita.__version__,
        database=FileFacts(size, sha256),
        contents=ContentFacts(
            len(contents),
            sum(content.size for content in contents),
            hash_of(arriving, CONTENTS_FILE)[1],
        ),
    )
