r"""Chains of backups in a folder: manifests, parts, and the links between them.

    backup-<number>.part    full: a checkpoint's format; incremental: "PARTINC\n" | format 4 |
                            then for each record: length 4 | record (records.py)
    backup-<number>.json    the manifest: content of the part, its SHA-256, its place in the chain

A manifest is written when its part is durable: a part without one was left by a crash. An
increment starts with the record after the last one of the previous backup and contains the hash
of that record, so that a missing, foreign or changed link is found before a restore starts.
"""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Literal

import msgspec

from partita.errors import BackupOrderError, ChecksumError, DamageError, FormatVersionError
from partita.reliable.state.records import Record, Tip, decode_record, record_hash
from partita.reliable.storage.checkpoint import Progress, describe_file, discarding, put_in_place
from partita.reliable.storage.disk import Disk
from partita.reliable.values.limits import RECORD_BYTES_SETTING_MAX

FORMAT = 1
MAGIC = b"PARTINC\n"
HEAD = MAGIC + FORMAT.to_bytes(4)
CHUNK_BYTES = 1024 * 1024


class Backup(msgspec.Struct, frozen=True):
    """One backup, as its manifest describes it; hashes are hexadecimal."""

    kind: Literal["full", "incremental"]
    number: int
    first_sequence: int
    """The first record of an increment; 0 for a full backup, which contains the whole state."""
    last_sequence: int
    epoch: int
    """The epoch at `last_sequence`."""
    hash_before: str
    """The hash of the record that an increment continues; zeros for a full backup."""
    epoch_before: int
    hash_after: str
    """The hash of the record at `last_sequence`, which the next increment continues."""
    sha256: str
    bytes: int
    path: str
    """The part's file name, in the folder of the manifest."""
    made_at: int
    """Wall clock in ticks."""


class _Manifest(msgspec.Struct, frozen=True):
    format: int
    backup: Backup
    check: str
    """Blake2b of the encoded backup: a manifest must not be edited."""


class _AnyManifest(msgspec.Struct, frozen=True):
    """A manifest of any format: a later one has these members too."""

    format: int
    backup: dict[str, Any]
    check: str


async def read_chain(
    folder: Disk, *, up_to: int | None = None, progress: Progress | None = None
) -> list[Backup]:
    """Return the newest full backup and its increments, after verifying every byte and link.

    With `up_to`, return the backups that a restore to that sequence needs.
    """
    chain = _chain(folder, up_to)
    done, total = 0, sum(backup.bytes for backup in chain)
    for backup in chain:
        await _verify(folder, backup)
        done += backup.bytes
        if progress is not None:
            progress(done, total)
    return chain


async def write_manifest(folder: Disk, backup: Backup) -> None:
    manifest = _Manifest(FORMAT, backup, _check(backup))
    name = manifest_name(backup.number)
    file = folder.create(f"{name}.new")
    with discarding(folder, file):
        file.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        await put_in_place(folder, file, name)


def _chain(folder: Disk, up_to: int | None) -> list[Backup]:
    """Return the chain from the newest manifest back to its full backup, newest last."""
    numbers = sorted(list_numbers(folder), reverse=True)
    chain: list[Backup] = []
    for number in numbers:
        if not chain and up_to is not None and _is_too_new(folder, number, up_to):
            continue
        backup = _read_manifest(folder, number)
        if chain:
            _refuse_unless_linked(backup, chain[-1])
        chain.append(backup)
        if backup.kind == "full":
            _refuse_if_short(backup=chain[0], up_to=up_to)
            return chain[::-1]
    if chain:
        raise _broken(manifest_name(chain[-1].number - 1), chain[-1])
    raise BackupOrderError(
        "BackupNotFound",
        "The folder contains no backup."
        if up_to is None
        else f"The folder contains no backup of sequence {up_to} or before.",
        facts={} if up_to is None else {"sequence": up_to},
        hint="Choose the folder that the backups were written to, or a later sequence.",
    )


def _is_too_new(folder: Disk, number: int, up_to: int) -> bool:
    """Return whether a backup is not needed; an unreadable one must not hide older ones."""
    try:
        backup = _read_manifest(folder, number)
    except (DamageError, BackupOrderError):
        return True
    begins = backup.last_sequence if backup.kind == "full" else backup.first_sequence
    return begins > up_to


def _refuse_if_short(backup: Backup, up_to: int | None) -> None:
    if up_to is not None and backup.last_sequence < up_to:
        raise BackupOrderError(
            "BackupNotFound",
            f"The readable backups end at sequence {backup.last_sequence}, before {up_to}.",
            facts={"sequence": up_to, "last": backup.last_sequence},
            hint="Choose a lower sequence with up_to=.",
        )


def _refuse_unless_linked(before: Backup, after: Backup) -> None:
    """Raise unless an increment continues the backup before it."""
    if before.number != after.number - 1:
        raise _broken(manifest_name(after.number - 1), after)
    begins = Tip(after.first_sequence - 1, bytes.fromhex(after.hash_before), after.epoch_before)
    if begins != backup_tip(before):
        raise _broken(manifest_name(after.number), after)


def find_newest(folder: Disk) -> Backup | None:
    """Return the newest backup if its chain is complete, by manifests and file sizes."""
    return _chain(folder, None)[-1] if list_numbers(folder) else None


def _read_manifest(folder: Disk, number: int) -> Backup:
    name = manifest_name(number)
    try:
        text = folder.read(name)
        any_format = msgspec.json.decode(text, type=_AnyManifest)
        if any_format.format != FORMAT:
            raise _newer(name, any_format)
        manifest = msgspec.json.decode(text, type=_Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(name, "it cannot be decoded") from error
    backup = manifest.backup
    if manifest.check != _check(backup):
        raise _damaged(name, "it was changed")
    if backup.number != number or backup.path != part_name(number):
        raise _broken(manifest_name(backup.number), backup)
    if backup.path not in folder.names():
        raise _broken(backup.path, backup)
    if folder.size(backup.path) != backup.bytes:
        raise _damaged(backup.path, f"its size is not the {backup.bytes} bytes that were written")
    return backup


async def _verify(folder: Disk, backup: Backup) -> None:
    """Compare a part with its manifest."""
    if await sha256_of(folder, backup.path) != backup.sha256:
        raise _damaged(backup.path, "it does not match its SHA-256")
    if backup.kind == "full":
        found = describe_file(folder, backup.path)
        held = (found.sequence, found.epoch, found.hash.hex())
        if held != (backup.last_sequence, backup.epoch, backup.hash_after):
            raise _damaged(backup.path, "its state differs from its manifest")
        return
    async for _ in read_records(folder, backup):
        pass


async def read_records(folder: Disk, backup: Backup) -> AsyncGenerator[tuple[Record, bytes], None]:
    """Yield the records of an increment with their hashes, and verify the chain."""
    tip = Tip(backup.first_sequence - 1, bytes.fromhex(backup.hash_before), backup.epoch_before)
    async for raw in _raw_records(folder, backup.path):
        record = decode_record(raw)
        after = continued(tip, record, raw)
        if after is None:
            raise _damaged(backup.path, f"record {record.sequence} does not continue the chain")
        tip = after
        yield record, tip.hash
    if tip != backup_tip(backup):
        raise _damaged(backup.path, "its records differ from its manifest")


async def _raw_records(folder: Disk, name: str) -> AsyncIterator[bytes]:
    size = folder.size(name)
    if folder.read(name, 0, len(HEAD)) != HEAD:
        raise _damaged(name, "it is not an increment in a known format")
    place, chunk, at = len(HEAD), b"", 0
    while place < size:
        length = int.from_bytes(chunk[at : at + 4])
        if len(chunk) - at < 4 or len(chunk) - at - 4 < length:
            chunk, at = folder.read(name, place, CHUNK_BYTES), 0
            length = int.from_bytes(chunk[:4])
            await asyncio.sleep(0)
        if len(chunk) < 4 or not 0 < length <= min(size - place - 4, RECORD_BYTES_SETTING_MAX):
            raise _damaged(name, f"there is no record at byte {place}")
        if len(chunk) - at - 4 < length:
            chunk = folder.read(name, place, length + 4)
        yield chunk[at + 4 : at + 4 + length]
        at += 4 + length
        place += 4 + length


def continued(tip: Tip, record: Record, raw: bytes) -> Tip | None:
    """Return the tip after a record, None if it does not continue the chain.

    A record of a deposed primary has a sequence and changes nothing, as in State.apply.
    """
    if record.sequence != tip.sequence + 1:
        return None
    if record.epoch < tip.epoch:
        return tip._replace(sequence=record.sequence)
    if record.previous != tip.hash:
        return None
    return Tip(record.sequence, record_hash(raw), record.epoch)


def backup_tip(backup: Backup) -> Tip:
    return Tip(backup.last_sequence, bytes.fromhex(backup.hash_after), backup.epoch)


async def sha256_of(folder: Disk, name: str) -> str:
    digest = hashlib.sha256()
    for start in range(0, folder.size(name), CHUNK_BYTES):
        digest.update(folder.read(name, start, CHUNK_BYTES))
        await asyncio.sleep(0)
    return digest.hexdigest()


def _check(backup: Backup) -> str:
    return hashlib.blake2b(msgspec.json.encode(backup), digest_size=16).hexdigest()


def list_numbers(folder: Disk) -> list[int]:
    found = (re.fullmatch(r"backup-(\d{6,})\.json", name) for name in folder.names())
    return [int(match[1]) for match in found if match]


def manifest_name(number: int) -> str:
    return f"backup-{number:06}.json"


def part_name(number: int) -> str:
    return f"backup-{number:06}.part"


def _broken(missing: str, needed_by: Backup) -> BackupOrderError:
    return BackupOrderError(
        "BackupChainBroken",
        f"The chain of backups is broken: {missing} is missing or was replaced.",
        facts={"missing": missing, "number": needed_by.number},
        hint="Put that file back, or restore a state before the gap with up_to=.",
    )


def _damaged(name: str, reason: str) -> ChecksumError:
    return ChecksumError(
        "BackupDamaged",
        f"{name} is damaged: {reason}.",
        facts={"file": name},
        hint="No file was changed. Use another copy of the backups, or restore a state before "
        "the damage with up_to=.",
    )


def _newer(name: str, manifest: _AnyManifest) -> DamageError:
    """Tell a manifest of a newer format from one whose number is damaged."""
    number = manifest.format
    if manifest.check != check_of_format(number, manifest.backup):
        return _damaged(name, "its format number was changed")
    return FormatVersionError(
        "FormatVersion",
        f"{name} was written in format {number}; this version reads {FORMAT}.",
        facts={"file": name, "format": number},
        hint="Restore with a version of Partita at least as new as the one that wrote it: pip "
        "install --upgrade partita. Nothing was changed.",
    )


def check_of_format(number: int, backup: object) -> str:
    """Return the `check` of a manifest of any format after the first: it covers the number."""
    return hashlib.blake2b(msgspec.json.encode([number, backup]), digest_size=16).hexdigest()
