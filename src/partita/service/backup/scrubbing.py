"""The scrub of a served account: everything is read once in a number of days.

Bytes that nothing reads decay unnoticed, until they are needed and the last good backup has been
deleted. The position is kept in a file, so that a restart continues instead of starting again.

    scrub.json    {"format": 1, "begun_at": ticks, "finished_at": ticks, "after": hash, "damage": …}
"""

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import msgspec

from partita.errors import PartitaError
from partita.service.backup.files import write_new
from partita.service.backup.manifest import Content
from partita.service.backup.verifying import (
    Damage,
    Pace,
    Stopped,
    Verified,
    stored_bytes,
    verify_account,
)
from partita.storage.folder import sync_names
from partita.ticks import SECONDS_PER_DAY, TICKS_PER_DAY, TICKS_PER_SECOND, Clock

logger = logging.getLogger("partita.scrub")

FORMAT = 1
SCRUB_FILE = "scrub.json"
BYTES_PER_SECOND_MAX = 32 * 1024 * 1024
"""The rate of a scrub, if an account is too large for the wanted number of days."""
BYTES_PER_SECOND_MIN = 1024 * 1024
"""The rate of a scrub of a small account: it ends sooner."""
SAVE_SECONDS = 60.0
"""How often the position is stored."""
RETRY_SECONDS = 3600.0
"""The pause after a scrub that failed."""


class ScrubRecord(msgspec.Struct, frozen=True):
    """The stored position and the last findings."""

    format: int = FORMAT
    begun_at: int = 0
    finished_at: int = 0
    """When the last complete scrub ended, in ticks; 0: never."""
    after: str = ""
    """The hash of the last content file that was read, hexadecimal; empty between two scrubs."""
    damage: list[Damage] = []
    """What the last complete scrub, and the one in progress, found."""


class DamagedFiles(Protocol):
    """Moves damaged content files aside."""

    async def quarantine(self, digest: bytes) -> bool: ...


class Scrubber:
    """The background task of one account."""

    _task: "asyncio.Task[None] | None" = None

    def __init__(self, folder: Path, files: DamagedFiles, days: float, clock: Clock) -> None:
        self._folder = folder
        self._files = files
        self._days = days
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ends = threading.Event()
        self._thread = ThreadPoolExecutor(1, "partita-scrub")
        self._saved_at = clock.monotonic()

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def close(self) -> None:
        self._ends.set()
        if self._task is not None:
            await asyncio.wait([self._task])
        self._thread.shutdown()

    async def scrub(self) -> Verified:
        """Read everything once, at the rate that the number of days needs."""
        return await self._loop.run_in_executor(self._thread, self._scrub)

    async def _run(self) -> None:
        while not self._ends.is_set():
            pause = RETRY_SECONDS
            try:
                pause = await self._loop.run_in_executor(self._thread, self._due_seconds)
                if pause <= 0:
                    await self.scrub()
                    continue
            except Stopped:
                return
            except (PartitaError, OSError):
                logger.exception("the scrub of %s failed; it will retry", self._folder.name)
                pause = RETRY_SECONDS
            await self._loop.run_in_executor(self._thread, self._ends.wait, pause)

    def _due_seconds(self) -> float:
        """Return the seconds until the next scrub."""
        record = read_record(self._folder)
        if record.after or not record.finished_at:
            return 0.0
        # At most the whole period, also if the clock was ahead at the last start.
        since = max(0, self._clock.ticks() - record.begun_at)
        return (self._days * TICKS_PER_DAY - since) / TICKS_PER_SECOND

    def _scrub(self) -> Verified:
        record = read_record(self._folder)
        begun_at = record.begun_at if record.after else self._clock.ticks()
        # The files and the pages are read for as long as the days last, not faster.
        rate = stored_bytes(self._folder) / (self._days * SECONDS_PER_DAY)
        rate = min(max(rate, BYTES_PER_SECOND_MIN), BYTES_PER_SECOND_MAX)

        damage = list(record.damage) if record.after else []

        def reached(content: Content) -> None:
            if self._clock.monotonic() - self._saved_at >= SAVE_SECONDS:
                self._saved_at = self._clock.monotonic()
                position = ScrubRecord(
                    FORMAT, begun_at, record.finished_at, content.digest.hex(), damage
                )
                write_record(self._folder, position)

        def found(each: Damage) -> None:
            damage.append(each)
            logger.error("damage in account %s: %s", self._folder.name, each.text)

        verified = verify_account(
            self._folder,
            Pace(rate, self._clock.monotonic, self._ends.wait),
            self._quarantine,
            after=bytes.fromhex(record.after),
            reached=reached,
            found=found,
        )
        done = ScrubRecord(FORMAT, begun_at, self._clock.ticks(), "", damage)
        write_record(self._folder, done)
        logger.info("scrub of %s ended: %d damaged", self._folder.name, len(damage))
        return verified

    def _quarantine(self, digest: bytes) -> bool:
        moving = self._files.quarantine(digest)
        return asyncio.run_coroutine_threadsafe(moving, self._loop).result()


def read_record(folder: Path) -> ScrubRecord:
    """Read the position; a file that cannot be read begins a new scrub."""
    try:
        found = msgspec.json.decode((folder / SCRUB_FILE).read_bytes(), type=ScrubRecord)
        bytes.fromhex(found.after)
    except (OSError, msgspec.MsgspecError, ValueError):
        return ScrubRecord()
    return found if found.format == FORMAT else ScrubRecord()


def write_record(folder: Path, record: ScrubRecord) -> None:
    """Write the position; the old one stays until the new one is complete."""
    new = folder / f"{SCRUB_FILE}.new"
    new.unlink(missing_ok=True)
    write_new(new, [msgspec.json.encode(record) + b"\n"])
    new.replace(folder / SCRUB_FILE)
    sync_names(folder)
