"""Taking the backup of an account, while a server may have it open.

The collector of the account does not wait for a backup: a content file without a row can be
removed at any time. So nearly all files are copied before the moment of the backup, and at that
moment the few new ones are opened: an open file stays readable after it is removed. The server
is not involved; its write-ahead log grows while the database is copied.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import apsw
import msgspec

import partita
from partita.blobs.rules.checksums import damaged
from partita.errors import BackupOrderError, StoreBusyError
from partita.service.backup.chain import (
    PAGES_FILE,
    Backup,
    increment_name,
    read_chain,
    stored_contents,
    write_changed_pages,
)
from partita.service.backup.compression import Compression, Stream, compressed, expanded
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
    pieces_of,
    silent,
    sync_file,
    translating,
    unusable,
    write_new,
)
from partita.service.backup.manifest import (
    CONTENTS_FILE,
    INCREMENT_FILE,
    MANIFEST_FILE,
    Content,
    ContentFacts,
    FileFacts,
    Increment,
    Manifest,
    encode,
    encode_contents,
)
from partita.storage.database import DATABASE_FILE
from partita.storage.reading_beside import open_source
from partita.ticks import TICKS_PER_SECOND, Clock

MOMENTS_MAX = 20
"""Attempts to find a moment at which every referenced file can be opened."""
MISSING_MAX = 3
"""Attempts at which a file may be missing, because it was removed and restored."""
STEP_PAGES = 1024
"""Pages of the database between two reports of progress."""


def back_up(
    folder: Path,
    target: Path,
    *,
    clock: Clock,
    progress: Progress = silent,
    compression: Compression = Compression.NONE,
) -> Manifest:
    """Copy the account of a folder into a new folder and verify the copy.

    Writes acknowledged before the call are in the backup; writes during the call may be.
    """
    refuse_unless_account(folder)
    with translating(folder), arriving_folder(target, clock) as arriving:
        manifest = _Copying(folder, arriving, {}, progress, compression).copy_account(clock)
        _compress(arriving / DATABASE_FILE, compression, progress)
        write_new(arriving / MANIFEST_FILE, [encode(manifest)])
    return manifest


def back_up_changes(
    folder: Path,
    target: Path,
    *,
    clock: Clock,
    progress: Progress = silent,
    compression: Compression = Compression.NONE,
) -> Increment:
    """Add an increment to the backups in a folder: what changed since the newest of them.

    While it is taken, the folder of the backups needs space for a copy of the database.
    """
    refuse_unless_account(folder)
    with translating(folder):
        chain = _chain_of(folder, target)
        number = len(chain) + 1
        with arriving_folder(target / increment_name(number), clock) as arriving:
            stored = stored_contents(chain)
            copying = _Copying(folder, arriving, stored, progress, compression)
            whole = copying.copy_account(clock)
            database = arriving / DATABASE_FILE
            pages = write_changed_pages(chain, database, arriving / PAGES_FILE, compression)
            database.unlink()
            manifest = Increment(
                **msgspec.structs.asdict(whole),
                number=number,
                previous=chain[-1].sha256,
                pages=pages,
            )
            write_new(arriving / INCREMENT_FILE, [encode(manifest)])
    return manifest


def refuse_unless_account(folder: Path) -> None:
    """Raise unless the folder has the database of an account."""
    if not (folder / DATABASE_FILE).is_file():
        message = f"The folder {folder} does not contain an account."
        raise unusable(message, "Give the data folder, or the folder of an account in it.")


def _chain_of(folder: Path, target: Path) -> list[Backup]:
    """Return the backups that an increment continues."""
    if not (target / MANIFEST_FILE).exists():
        raise _full_needed(target, "it contains no backup")
    chain = read_chain(target)
    if chain[-1].manifest.account != folder.absolute().name:
        raise _full_needed(target, "it has backups of another account")
    return chain


def _full_needed(target: Path, reason: str) -> BackupOrderError:
    return BackupOrderError(
        "FullBackupNeeded",
        f"An incremental backup in {target} is not possible: {reason}.",
        hint="Take a full backup, then continue with incremental ones.",
    )


def _compress(path: Path, how: Compression, progress: Progress) -> None:
    """Replace a file by its compressed form."""
    if how is Compression.NONE:
        return
    total, done = path.stat().st_size, 0

    def pieces(stream: Stream) -> Iterator[bytes]:
        nonlocal done
        for piece in pieces_of(stream):
            yield piece
            done += len(piece)
            progress("compress", done, total)

    with opened_beneath(path.parent, (path.name,)) as descriptor:
        stream = expanded(descriptor, Compression.NONE)
        write_new(path.with_name(path.name + how.suffix), compressed(pieces(stream), how))
    path.unlink()


class _Copying:
    """One backup: most files before the moment, the database at it, the last files after it."""

    def __init__(
        self,
        folder: Path,
        arriving: Path,
        stored: Iterable[Content],
        progress: Progress,
        compression: Compression,
    ) -> None:
        self._folder = folder
        self._arriving = arriving
        self._progress = progress
        self._compression = compression
        self._stored = {content.digest for content in stored}
        """Content files that an earlier backup of the chain has."""
        self._copied = set(self._stored)
        self._copied_bytes = 0
        self._missing: Counter[bytes] = Counter()
        """Consecutive attempts at which a referenced file was missing."""

    def copy_account(self, clock: Clock) -> Manifest:
        """Copy the database and the content files that are not stored yet; verify the copy."""
        with contextlib.closing(open_source(self._folder)) as source:
            contents = self.copy_all(source)
        write_new(self._arriving / CONTENTS_FILE, encode_contents(contents))
        check_database(self._arriving / DATABASE_FILE, contents, self._progress)
        made = _manifest_of(self._arriving, self._folder.absolute().name, contents, clock)
        return msgspec.structs.replace(made, compression=self._compression)

    def copy_all(self, source: apsw.Connection) -> list[Content]:
        """Return the contents that the copied database refers to, after copying all of them."""
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
            hint="Retry when fewer blobs are replaced.",
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
                return None  # it was removed; the moment of the backup shows whether it is needed
            self._copy(content, descriptor)
        return content

    def _moment(
        self, source: apsw.Connection, opened: contextlib.ExitStack
    ) -> tuple[list[Content], list[tuple[Content, int]]] | None:
        """Copy the database and open its new files; None: retry."""
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
        stream = expanded(descriptor, Compression.NONE)
        if not copy_content(content, stream, self._arriving, self._compression):
            raise damaged("its bytes are not those that were written")

    def _took(self, content: Content, total: int) -> None:
        self._copied.add(content.digest)
        self._copied_bytes += content.size
        self._progress("contents", min(self._copied_bytes, total), total)

    def _copy_database(self, source: apsw.Connection) -> None:
        path = self._arriving / DATABASE_FILE
        write_new(path, ())
        with contextlib.closing(apsw.Connection(str(path))) as copy:
            # A crash leaves a folder without a manifest, so the copy needs no journal.
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
        """Remove copied files that the database does not refer to."""
        needed = {content.digest for content in contents}
        for digest in self._copied - self._stored - needed:
            parts = Content(digest, 0).parts_in(self._compression)
            self._arriving.joinpath(*parts).unlink()


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
