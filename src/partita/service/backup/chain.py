"""Chains of backups: a full backup of an account, and the increments in its folder.

    <folder>/                 the full backup, number 1
    <folder>/backup-000002/   an increment: pages, contents, blobs/…, increment.json

    pages     the changed pages of the database in order, then the number of each, 4 bytes;
              compressed, the numbers come first, so that it is read from its beginning to its end

The manifest of an increment contains the hash of the previous manifest and of the whole database:
a missing, foreign or changed backup is detected before a restore creates an account. The database
of a backup is the one of the full backup with the pages of all increments up to this one.
"""

import contextlib
import errno
import hashlib
import os
import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain as chain_of
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

from partita.errors import BackupOrderError
from partita.service.backup.compression import (
    BadStreamError,
    Compression,
    Stream,
    expanded,
    read_fully,
)
from partita.service.backup.files import COPY_BYTES, copy_hashed, opened_beneath, pieces_of
from partita.service.backup.manifest import (
    CONTENTS_FILE,
    INCREMENT_FILE,
    MANIFEST_BYTES_MAX,
    MANIFEST_FILE,
    Content,
    FileFacts,
    Increment,
    Manifest,
    backup_damaged,
    decode,
    decode_contents,
    decode_increment,
)
from partita.storage.database import DATABASE_FILE, PAGE_BYTES

PAGES_FILE = "pages"
NUMBER_BYTES = 4

_NOT_WHAT_WAS_WRITTEN = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EISDIR)
"""The file is missing, or is a link, a folder or a pipe."""


class Backup(NamedTuple):
    """One backup of a chain."""

    folder: Path
    manifest: Manifest
    sha256: str
    """The hash of its manifest file, which the next increment contains."""


def increment_name(number: int) -> str:
    return f"backup-{number:06}"


def read_chain(folder: Path, *, up_to: int | None = None) -> list[Backup]:
    """Return the full backup and its increments, after verifying the links between them.

    With `up_to`, return the backups that a restore of that backup needs.
    """
    chain = [_read_full(folder)]
    newest = max(_numbers_in(folder), default=1)
    if up_to is not None and not 1 <= up_to <= newest:
        raise BackupOrderError(
            "BackupNotFound",
            f"The folder {folder} contains the backups 1 to {newest}, but not {up_to}.",
            facts={"number": up_to, "newest": newest},
            hint="Give --up-to the number of one of these backups.",
        )
    for number in range(2, (newest if up_to is None else up_to) + 1):
        chain.append(_read_increment(folder, number, chain[-1]))
    return chain


def _read_full(folder: Path) -> Backup:
    if not os.path.lexists(folder / MANIFEST_FILE):
        raise BackupOrderError(
            "BackupNotFound",
            f"The folder {folder} does not contain a backup of an account.",
            hint="Give a folder that `partita account backup` created.",
        )
    text = _read_text(folder, (MANIFEST_FILE,))
    return Backup(folder, decode(text), hashlib.sha256(text).hexdigest())


def _read_increment(folder: Path, number: int, previous: Backup) -> Backup:
    name = increment_name(number)
    if not os.path.lexists(folder / name / INCREMENT_FILE):
        raise _broken(name)
    text = _read_text(folder, (name, INCREMENT_FILE))
    found = decode_increment(text)
    expected = (number, previous.sha256, previous.manifest.account)
    if (found.number, found.previous, found.account) != expected:
        raise _broken(name)
    return Backup(folder / name, found, hashlib.sha256(text).hexdigest())


def _read_text(folder: Path, parts: Sequence[str]) -> bytes:
    with opened_part(folder, parts) as descriptor:
        return os.read(descriptor, MANIFEST_BYTES_MAX)


def _numbers_in(folder: Path) -> Iterator[int]:
    for path in folder.iterdir():
        if match := re.fullmatch(r"backup-(\d{6,9})", path.name, re.ASCII):
            yield int(match[1])


@contextlib.contextmanager
def opened_stream(backup: Backup, parts: Sequence[str]) -> Iterator[Stream]:
    """Open a file of a backup that may be compressed; it is damage if it cannot be expanded."""
    how = backup.manifest.compression
    stored = (*parts[:-1], parts[-1].removesuffix(how.suffix) + how.suffix)
    with opened_part(backup.folder, stored) as descriptor:
        try:
            yield expanded(descriptor, how)
        except BadStreamError as error:
            raise backup_damaged("/".join(stored)) from error


@contextlib.contextmanager
def opened_part(folder: Path, parts: Sequence[str]) -> Iterator[int]:
    """Open a file of a backup; it is damage if it is missing or not a regular file."""
    with contextlib.ExitStack() as opened:
        try:
            descriptor = opened.enter_context(opened_beneath(folder, parts))
        except OSError as error:
            if error.errno not in _NOT_WHAT_WAS_WRITTEN:
                raise
            raise backup_damaged("/".join(parts)) from error
        yield descriptor


# Content files


def read_contents(backup: Backup) -> list[Content]:
    """Return the content files that the database of a backup refers to."""
    facts = backup.manifest.contents
    with opened_part(backup.folder, (CONTENTS_FILE,)) as descriptor:
        _, sha256 = copy_hashed(pieces_of(expanded(descriptor, Compression.NONE)), None)
        if sha256 != facts.sha256:
            raise backup_damaged(CONTENTS_FILE)
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(descriptor, "rb", closefd=False) as lines:
            contents = decode_contents(lines)
    if (len(contents), sum(content.size for content in contents)) != (facts.files, facts.bytes):
        raise backup_damaged(CONTENTS_FILE)
    return contents


def stored_contents(chain: Iterable[Backup]) -> dict[Content, Backup]:
    """Return the content files of a chain, each with the backup that has it."""
    found: dict[Content, Backup] = {}
    for backup in chain:
        for content in read_contents(backup):
            found.setdefault(content, backup)
    return found


# Pages


def write_changed_pages(
    chain: Sequence[Backup], database: Path, target: Path, how: Compression
) -> FileFacts:
    """Write the pages in which a database differs from the newest one of a chain.

    That one is verified, because an increment to a damaged backup is not a backup.
    """
    numbers = array("I")

    def pieces() -> Iterator[bytes]:
        with database.open("rb") as file:
            new = iter(lambda: file.read(COPY_BYTES), b"")
            for number, page in changed_pages(read_database(chain), new):
                numbers.append(number)
                yield page
        yield _big_endian(numbers).tobytes()

    facts = FileFacts(*copy_hashed(pieces(), target))
    if how is Compression.NONE:
        return facts
    os.truncate(target, facts.bytes - NUMBER_BYTES * len(numbers))
    with opened_beneath(target.parent, (target.name,)) as descriptor:
        pages = pieces_of(expanded(descriptor, Compression.NONE))
        ordered = chain_of((numbers.tobytes(),), pages)
        compact = target.with_name(target.name + how.suffix)
        facts = FileFacts(*copy_hashed(ordered, compact, how))
    target.unlink()
    return facts


def changed_pages(old: Iterable[bytes], new: Iterable[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each page that is new or differs; both come in pieces."""
    for index, (before, after) in enumerate(zip_longest(old, new, fillvalue=b"")):
        if before == after:
            continue
        for start in range(0, len(after), PAGE_BYTES):
            page = after[start : start + PAGE_BYTES]
            if page != before[start : start + len(page)]:
                yield (index * COPY_BYTES + start) // PAGE_BYTES, page


def read_database(chain: Sequence[Backup]) -> Iterator[bytes]:
    """Yield the newest database of a chain in pieces; raise at the end if it is damaged."""
    facts = chain[-1].manifest.database
    digest = hashlib.sha256()
    with contextlib.ExitStack() as opened:
        full = opened.enter_context(opened_stream(chain[0], (DATABASE_FILE,)))
        layers = [_pages_of(*pair, opened) for pair in pairwise(chain)]
        left = chain[0].manifest.database.bytes
        for start in range(0, facts.bytes, COPY_BYTES):
            read = read_fully(full, min(COPY_BYTES, left))
            if len(read) < min(COPY_BYTES, left):
                raise backup_damaged(DATABASE_FILE)
            left -= len(read)
            piece = bytearray(read.ljust(COPY_BYTES, b"\0"))
            for layer in layers:
                layer.copy_to(piece, start)
            del piece[facts.bytes - start :]
            digest.update(piece)
            yield bytes(piece)
    if digest.hexdigest() != facts.sha256:
        raise backup_damaged(DATABASE_FILE)


class _Pages:
    """The changed pages of an increment; they are read in their order."""

    def __init__(self, stream: Stream, previous: Backup, backup: Backup) -> None:
        facts = backup.manifest
        assert isinstance(facts, Increment)
        self._stream = stream
        self._count = -(-facts.pages.bytes // (PAGE_BYTES + NUMBER_BYTES))
        self._bytes = facts.pages.bytes - self._count * NUMBER_BYTES
        """Of the pages, without their numbers."""
        self._numbers = self._read_numbers()
        self._next = 0
        after_last = self._numbers[-1] + 1 if self._count else 0
        is_ordered = all(before < after for before, after in pairwise(self._numbers))
        # A size that the pages do not reach would be filled with zeros, without a limit.
        size_max = max(previous.manifest.database.bytes, after_last * PAGE_BYTES)
        if not is_ordered or facts.database.bytes > size_max:
            raise backup_damaged(PAGES_FILE)

    def _read_numbers(self) -> "array[int]":
        """Read the numbers at the beginning, piece by piece: their count is not trusted."""
        numbers = bytearray()
        while len(numbers) < self._count * NUMBER_BYTES:
            left = self._count * NUMBER_BYTES - len(numbers)
            piece = read_fully(self._stream, min(COPY_BYTES, left))
            if not piece:
                raise backup_damaged(PAGES_FILE)
            numbers += piece
        return _big_endian(array("I", bytes(numbers)))

    def copy_to(self, piece: bytearray, start: int) -> None:
        """Replace the changed pages of a piece of the database."""
        end = (start + COPY_BYTES) // PAGE_BYTES
        while self._next < self._count and self._numbers[self._next] < end:
            at = self._numbers[self._next] * PAGE_BYTES - start
            wanted = min(PAGE_BYTES, self._bytes - self._next * PAGE_BYTES)
            page = read_fully(self._stream, wanted)
            if len(page) < wanted:
                raise backup_damaged(PAGES_FILE)
            piece[at : at + len(page)] = page
            self._next += 1


class _PlainPages(_Pages):
    """In a file that is not compressed, the numbers are at the end."""

    def __init__(self, descriptor: int, previous: Backup, backup: Backup) -> None:
        self._descriptor = descriptor
        super().__init__(expanded(descriptor, Compression.NONE), previous, backup)

    def _read_numbers(self) -> "array[int]":
        if os.fstat(self._descriptor).st_size != self._bytes + self._count * NUMBER_BYTES:
            raise backup_damaged(PAGES_FILE)
        index = os.pread(self._descriptor, self._count * NUMBER_BYTES, self._bytes)
        return _big_endian(array("I", index))


def _pages_of(previous: Backup, backup: Backup, opened: contextlib.ExitStack) -> _Pages:
    if backup.manifest.compression is Compression.NONE:
        plain = opened.enter_context(opened_part(backup.folder, (PAGES_FILE,)))
        return _PlainPages(plain, previous, backup)
    stream = opened.enter_context(opened_stream(backup, (PAGES_FILE,)))
    return _Pages(stream, previous, backup)


def _big_endian(numbers: "array[int]") -> "array[int]":
    """Convert numbers to or from the order of bytes in the file."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _broken(name: str) -> BackupOrderError:
    return BackupOrderError(
        "BackupChainBroken",
        f"The chain of backups is broken: {name} is missing or was replaced.",
        facts={"missing": name},
        hint="Put that folder back, or restore an earlier backup with --up-to.",
    )
