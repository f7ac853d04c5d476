"""Chains of backups: a full backup of an account, and the increments in its folder.

    <folder>/                 the full backup, number 1
    <folder>/backup-000002/   an increment: pages, contents, blobs/…, increment.json

    pages     the changed pages of the database in order, then the number of each, 4 bytes

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
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple

from partita.errors import BackupOrderError
from partita.service.backup.files import COPY_BYTES, copy_hashed, opened_beneath, write_new
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
        _, sha256 = copy_hashed(descriptor, None)
        if sha256 != facts.sha256:
            raise backup_damaged(CONTENTS_FILE)
        os.lseek(descriptor, 0, os.SEEK_SET)
        with os.fdopen(descriptor, "rb", closefd=False) as lines:
            contents = decode_contents(lines)
    if (len(contents), sum(content.size for content in contents)) != (facts.files, facts.bytes):
        raise backup_damaged(CONTENTS_FILE)
    return contents


def stored_contents(chain: Iterable[Backup]) -> dict[Content, Path]:
    """Return the content files of a chain, each with the folder of the backup that has it."""
    found: dict[Content, Path] = {}
    for backup in chain:
        for content in read_contents(backup):
            found.setdefault(content, backup.folder)
    return found


# Pages


def write_changed_pages(chain: Sequence[Backup], database: Path, target: Path) -> FileFacts:
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

    write_new(target, pieces())
    with opened_beneath(target.parent, (target.name,)) as descriptor:
        return FileFacts(*copy_hashed(descriptor, None))


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
        full = opened.enter_context(opened_part(chain[0].folder, (DATABASE_FILE,)))
        if os.fstat(full).st_size != chain[0].manifest.database.bytes:
            raise backup_damaged(DATABASE_FILE)
        layers = [_Pages(*pair, opened) for pair in pairwise(chain)]
        for start in range(0, facts.bytes, COPY_BYTES):
            piece = bytearray(os.pread(full, COPY_BYTES, start).ljust(COPY_BYTES, b"\0"))
            for layer in layers:
                layer.copy_to(piece, start)
            del piece[facts.bytes - start :]
            digest.update(piece)
            yield bytes(piece)
    if digest.hexdigest() != facts.sha256:
        raise backup_damaged(DATABASE_FILE)


class _Pages:
    """The changed pages of an increment."""

    def __init__(self, previous: Backup, backup: Backup, opened: contextlib.ExitStack) -> None:
        facts = backup.manifest
        assert isinstance(facts, Increment)
        self._file = opened.enter_context(opened_part(backup.folder, (PAGES_FILE,)))
        if os.fstat(self._file).st_size != facts.pages.bytes:
            raise backup_damaged(PAGES_FILE)
        count = -(-facts.pages.bytes // (PAGE_BYTES + NUMBER_BYTES))
        self._end = facts.pages.bytes - count * NUMBER_BYTES
        """The end of the pages, where their numbers start."""
        index = os.pread(self._file, count * NUMBER_BYTES, self._end)
        self._numbers = _big_endian(array("I", index))
        after_last = self._numbers[-1] + 1 if count else 0
        is_ordered = all(before < after for before, after in pairwise(self._numbers))
        # A size that the pages do not reach would be filled with zeros, without a limit.
        size_max = max(previous.manifest.database.bytes, after_last * PAGE_BYTES)
        if not is_ordered or facts.database.bytes > size_max:
            raise backup_damaged(PAGES_FILE)

    def copy_to(self, piece: bytearray, start: int) -> None:
        """Replace the changed pages of a piece of the database."""
        first = bisect_left(self._numbers, start // PAGE_BYTES)
        end = bisect_left(self._numbers, (start + COPY_BYTES) // PAGE_BYTES)
        for index in range(first, end):
            place = index * PAGE_BYTES
            page = os.pread(self._file, min(PAGE_BYTES, self._end - place), place)
            at = self._numbers[index] * PAGE_BYTES - start
            piece[at : at + len(page)] = page


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
