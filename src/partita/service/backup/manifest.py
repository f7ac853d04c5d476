"""The manifests of the backups of an account.

    account.sqlite    the database as of one moment
    contents          a line for each content file: its hash, a blank, its bytes; in order
    blobs/ab/cd/…     the content files that the database names
    manifest.json     written last: a folder without it is not a backup
    backup-000002/    an increment; its manifest is increment.json (chain.py)

In a compressed backup, the names of the database, the pages and the content files end with `.gz`
or `.zst`. No path is taken from a file: content files are named by their hashes.
"""

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from partita.blobs.store.files import CONTENT_FOLDER
from partita.errors import ChecksumError, FormatVersionError, PartitaError
from partita.service.backup.compression import Compression

FORMAT = 1
COMPRESSED_FORMAT = 2
"""The format of a compressed backup; others stay readable for earlier versions."""
MANIFEST_FILE = "manifest.json"
INCREMENT_FILE = "increment.json"
CONTENTS_FILE = "contents"
MANIFEST_BYTES_MAX = 64 * 1024

_LINE = re.compile(rb"([0-9a-f]{64}) (0|[1-9][0-9]{0,18})\n")


class FileFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bytes: int
    sha256: str


class ContentFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    files: int
    bytes: int
    sha256: str
    """The SHA-256 of the list of contents; each content file has its own as its name."""


class Manifest(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True
):
    """The contents of a backup; sizes and hashes are those before a compression."""

    account: str
    made_at: str
    partita: str
    """The version of Partita that took the backup."""
    database: FileFacts
    contents: ContentFacts
    compression: Compression = Compression.NONE


class Increment(Manifest, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of an incremental backup: `database` and `contents` describe the whole account.

    The folder has the pages that changed since the previous backup, and the content files that
    no earlier backup of the chain has.
    """

    number: int
    """The position in the chain; the full backup is number 1."""
    previous: str
    """The SHA-256 of the manifest file of the previous backup."""
    pages: FileFacts


M = TypeVar("M", bound=Manifest)


class _Envelope(msgspec.Struct, Generic[M], frozen=True, forbid_unknown_fields=True):
    format: int
    backup: M
    check: str
    """Blake2b of the compact JSON of `backup`: the file must not be edited."""


class _AnyEnvelope(msgspec.Struct, frozen=True):
    """A manifest of any format: a later one has these members too."""

    format: int
    backup: dict[str, Any]
    check: str


class Content(NamedTuple):
    """One content file: the hash that names it, and its size."""

    digest: bytes
    size: int

    @property
    def parts(self) -> tuple[str, ...]:
        """Its path below the folder of the account, or of a backup that is not compressed."""
        return self.parts_in(Compression.NONE)

    def parts_in(self, how: Compression) -> tuple[str, ...]:
        """Its path below the folder of a backup."""
        name = self.digest.hex()
        return CONTENT_FOLDER, name[:2], name[2:4], name + how.suffix


def encode(manifest: Manifest) -> bytes:
    is_plain = manifest.compression is Compression.NONE
    number = FORMAT if is_plain else COMPRESSED_FORMAT
    envelope = _Envelope(number, manifest, _check_of(number, manifest))
    return msgspec.json.format(msgspec.json.encode(envelope), indent=2) + b"\n"


def decode(text: bytes) -> Manifest:
    """Parse the manifest of a full backup; raise if Partita did not write it."""
    return _decode(text, Manifest, MANIFEST_FILE)


def decode_increment(text: bytes) -> Increment:
    """Parse the manifest of an incremental backup; raise if Partita did not write it."""
    return _decode(text, Increment, INCREMENT_FILE)


def _decode(text: bytes, kind: type[M], name: str) -> M:
    try:
        any_format = msgspec.json.decode(text, type=_AnyEnvelope)
        if any_format.format not in (FORMAT, COMPRESSED_FORMAT):
            raise _newer(any_format, name)
        envelope: _Envelope[M] = msgspec.json.decode(text, type=_Envelope[kind])  # type: ignore[valid-type]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise backup_damaged(name) from error
    is_plain = envelope.backup.compression is Compression.NONE
    is_format = envelope.format == (FORMAT if is_plain else COMPRESSED_FORMAT)
    if not is_format or envelope.check != _check_of(envelope.format, envelope.backup):
        raise backup_damaged(name)
    return envelope.backup


def _newer(envelope: _AnyEnvelope, name: str) -> PartitaError:
    """Tell a manifest of a newer format from one whose number is damaged."""
    if envelope.check != check_of_format(envelope.format, envelope.backup):
        return backup_damaged(name)
    return FormatVersionError(
        "FormatVersion",
        f"The backup was made in format {envelope.format}; this version reads up to"
        f" {COMPRESSED_FORMAT}.",
        facts={"format": envelope.format},
        hint="Restore it with a version of Partita at least as new as the one that made it: pip "
        "install --upgrade partita. Nothing was changed.",
    )


def check_of_format(number: int, backup: object) -> str:
    """Return the `check` of a manifest of any format after the first: it covers the number."""
    return hashlib.blake2b(msgspec.json.encode([number, backup]), digest_size=16).hexdigest()


def _check_of(number: int, manifest: Manifest) -> str:
    if number != FORMAT:
        return check_of_format(number, manifest)
    return hashlib.blake2b(msgspec.json.encode(manifest), digest_size=16).hexdigest()


def encode_contents(contents: Iterable[Content]) -> Iterator[bytes]:
    for digest, size in contents:
        yield b"%s %d\n" % (digest.hex().encode(), size)


def decode_contents(lines: Iterable[bytes]) -> list[Content]:
    """Parse the list of contents; raise unless it is a list of hashes in order."""
    found = [_LINE.fullmatch(line) for line in lines]
    contents = [Content(bytes.fromhex(line[1].decode()), int(line[2])) for line in found if line]
    digests = [content.digest for content in contents]
    if len(contents) < len(found) or any(a >= b for a, b in itertools.pairwise(digests)):
        raise backup_damaged(CONTENTS_FILE)
    return contents


def backup_damaged(name: str) -> PartitaError:
    return ChecksumError(
        "BackupDamaged",
        f"The file {name} of the backup is damaged.",
        facts={"file": name},
        hint="Use another copy of the backup; nothing was changed.",
    )
