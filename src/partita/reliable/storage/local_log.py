"""The log as files of one disk: `log-<first sequence>.part`, format in segment.py.

A record is acknowledged after its sync. Opening the log verifies every byte and distinguishes a
torn tail from damage by proofs of what was synced: each frame contains the newest sequence synced
before it, and marks in `log-marks` are written about once a second, when the log is opened, and
with a sync when it is closed. An unreadable place is damage if a proof covers it, if it is in any
segment but the last, or if a segment is missing: the log then refuses to open and changes
nothing. Otherwise it is what a crash left of a record whose sync had not returned, and is cut.

Two kinds of damage cannot be detected because they look like a torn tail: damage to the last
acknowledged record after a crash within the second before its mark, and the loss of the last
records together with all their marks. After a clean close nothing is cut unless the marks are
lost too.
"""

import asyncio
import contextlib
import functools
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Iterator
from copy import copy
from typing import Literal

from partita.errors import (
    ChainBrokenError,
    DamageError,
    PartitaError,
    StateClosedError,
    StoreFullError,
    StoreStoppedError,
    UsageError,
)
from partita.reliable.state.records import (
    HEAD_BYTES,
    NO_HASH,
    Tip,
    encode_frame,
    has_valid_checksum,
    tip_after,
)
from partita.reliable.storage.disk import Disk, GrowingFile
from partita.reliable.storage.log import (
    log_closed,
    log_truncated,
    not_next_record,
    record_too_large,
)
from partita.reliable.storage.segment import (
    CHUNK_BYTES,
    HEADING_BYTES,
    MARK_BYTES,
    Frame,
    Read,
    SegmentHeading,
    damaged,
    decode_heading,
    encode_heading,
    encode_mark,
    newest_mark,
    read_frames,
    synced_after,
)
from partita.reliable.values.limits import RECORD_BYTES_MAX

logger = logging.getLogger("partita.reliable")

SEGMENT_BYTES = 64 * 1024 * 1024
MARKS_FILE = "log-marks"
MARKS_BYTES_MAX = 64 * 1024
MARK_SECONDS = 1.0
FAST_SYNC_SECONDS = 0.1
PLACE_BYTES = 256 * 1024
"""A reader that starts inside a segment scans at most this many bytes to find its record."""

Durability = Literal["full", "fast"]
"""`full`: an acknowledged record is synced. `fast`: it survives the end of the process, but a
power failure may lose the records of the last tenth of a second, always whole records from the
end."""


class Segment:
    """One file of the log. `end` is where its acknowledged frames end."""

    def __init__(self, name: str, heading: SegmentHeading) -> None:
        self.name = name
        self.first = heading.before.sequence + 1
        self.seed = heading.seed
        self.end = HEADING_BYTES
        self.unproven = HEADING_BYTES
        """Set when the log is opened: no proof says that the frames from here on were synced."""
        self.places = [(self.first, HEADING_BYTES)]
        """Places at which a reader can start, by sequence; one per PLACE_BYTES."""

    def extend(self, sequence: int, end: int) -> None:
        """Add the frame of a sequence, which ends at `end`."""
        if self.end - self.places[-1][1] >= PLACE_BYTES:
            self.places.append((sequence, self.end))
        self.end = end


class LocalLog:
    """Implements `Log` on a Disk, which it does not close. Create it with `open` or `begin`."""

    record_bytes_max = RECORD_BYTES_MAX

    def __init__(self, disk: Disk, tip: Tip, durability: Durability, segment_bytes: int) -> None:
        self.first = tip.sequence + 1
        self.last = tip.sequence
        self.tip = tip
        """Sequence, hash and epoch of the last record, which the next one continues."""
        self.durability = durability
        self.segment_bytes = segment_bytes
        self.mark_seconds = MARK_SECONDS
        self._disk = disk
        self._segments: list[Segment] = []
        self._tail: GrowingFile
        self._marks: GrowingFile
        self._synced = tip
        """The newest synced record; older than `tip` only in `fast`."""
        self._marked = -1
        """The sequence of the last mark."""
        self._failure: PartitaError | None = None
        """The first failure of the disk; nothing is appended after it."""
        self._is_closed = False
        self._tail_lock = asyncio.Lock()
        """Held while the tail changes: append, rotation, close."""
        self._removal = asyncio.Lock()
        self._work: asyncio.Task[None] | None = None
        """A sync or rotation that continues after its append was cancelled."""
        self._followers: list[asyncio.Future[None]] = []
        self._mark_timer: asyncio.TimerHandle | None = None
        self._fast_sync: asyncio.Task[None] | None = None

    @property
    def stored_bytes(self) -> int:
        """The size of all segments."""
        return sum(self._disk.size(segment.name) for segment in self._segments)

    # Opening

    @classmethod
    async def open(
        cls,
        disk: Disk,
        *,
        chain: tuple[int, bytes] | None = None,
        durability: Durability = "full",
        segment_bytes: int = SEGMENT_BYTES,
    ) -> "LocalLog":
        """Open and verify the log of a disk, or begin one on an empty disk.

        `chain` is a sequence and the hash of its record that the caller knows to be durable (from
        its checkpoint): the log must contain that record or begin right after it.
        """
        proof = newest_mark(disk.read(MARKS_FILE)) if MARKS_FILE in disk.names() else None
        names = _names(disk, ".part")
        if not names:
            _refuse_if_lost(proof, chain)
            return await cls.begin(disk, durability=durability, segment_bytes=segment_bytes)
        log = cls(disk, Tip(0, NO_HASH, 0), durability, segment_bytes)
        await log._recover(names, (proof, chain))
        for name in _names(disk, ".new"):
            disk.remove(name)  # a crash came before its rename: it contains no acknowledged record
        return log

    @classmethod
    async def begin(
        cls,
        disk: Disk,
        *,
        chain: tuple[int, bytes] = (0, NO_HASH),
        durability: Durability = "full",
        segment_bytes: int = SEGMENT_BYTES,
    ) -> "LocalLog":
        """Begin an empty log after a record that a checkpoint contains: a new or restored state."""
        if _names(disk, ".part"):
            raise UsageError(
                "LogExists",
                "The disk contains a log already.",
                hint="Open that log, or choose an empty folder.",
            )
        log = cls(disk, Tip(*chain, 0), durability, segment_bytes)
        await log._begin_segment()
        await log._begin_marks()
        return log

    async def _recover(
        self, names: list[str], proofs: tuple[tuple[int, bytes] | None, ...]
    ) -> None:
        tip: Tip | None = None
        known = dict(proof for proof in proofs if proof)
        proven = max(known, default=0)
        for name in names:
            heading = decode_heading(name, self._disk.read(name, 0, HEADING_BYTES))
            if name != _name_of(heading.before.sequence + 1) or tip not in (None, heading.before):
                raise _missing(name, tip.sequence + 1 if tip else None)
            segment = Segment(name, heading)
            self._segments.append(segment)
            tip = await self._verify(segment, heading.before, known)
            self._refuse_if_damaged(segment, tip.sequence + 1, proven, is_last=name == names[-1])
        assert tip is not None
        self.first, self.last = self._segments[0].first, tip.sequence
        self.tip = self._synced = tip
        if proven > self.last:
            raise _missing(names[-1], self.last + 1)
        if proofs[-1] and proofs[-1][0] < self.first - 1:
            raise _unreached(names[0], self.first)
        await self._open_tail()
        await self._begin_marks()

    async def _verify(self, segment: Segment, tip: Tip, known: dict[int, bytes]) -> Tip:
        """Read all complete frames of a segment and return its last record."""
        _refuse_if_other(tip, known)
        size = self._disk.size(segment.name)
        paused = segment.end
        proven = max(known, default=0)
        unproven: deque[tuple[int, int]] = deque()
        for frame in self._frames(segment, segment.end, size):
            unproven.append((frame.sequence, segment.end))
            proven = max(proven, frame.synced)
            while unproven and unproven[0][0] <= proven:
                unproven.popleft()
            try:
                tip = tip_after(tip, frame.sequence, frame.raw)
            except DamageError as error:
                error.facts |= {"file": segment.name, "offset": segment.end}
                raise
            if tip.sequence in known:
                _refuse_if_other(tip, known)
            segment.extend(frame.sequence, frame.end)
            if frame.end - paused >= CHUNK_BYTES:
                paused = frame.end
                await asyncio.sleep(0)
        segment.unproven = unproven[0][1] if unproven else segment.end
        return tip

    def _refuse_if_damaged(
        self, segment: Segment, sequence: int, proven: int, *, is_last: bool
    ) -> None:
        """Raise for damage after the last complete frame of a segment; a torn tail is allowed."""
        size = self._disk.size(segment.name)
        if segment.end == size:
            return
        if not is_last or proven >= sequence:
            raise damaged(segment.name, segment.end, sequence)
        read = self._read_of(segment)
        if synced_after(read, segment.seed, segment.end + 1, size) >= sequence:
            raise damaged(segment.name, segment.end, sequence)
        logger.warning(
            "%s: removing %d bytes after record %d, which were never acknowledged",
            segment.name,
            size - segment.end,
            sequence - 1,
        )

    async def _open_tail(self) -> None:
        """Sync what a killed process left unsynced, before it is read."""
        segment = self._segments[-1]
        self._tail = self._disk.grow(segment.name, segment.end)
        if segment.unproven < segment.end:
            self._tail.renew(segment.unproven)
        await self._tail.sync()
        await self._disk.sync_folder()

    # Appending

    async def append(self, sequence: int, raw: bytes, *, alone: bool = False) -> bytes:
        """Return the record's hash when it is durable; with `alone` the sync blocks the loop."""
        async with self._tail_lock:
            await self._finish_work()
            self._check_usable()
            tip = self._check(sequence, raw)
            with self._stopping():
                if self._tail.size + HEAD_BYTES + len(raw) > self.segment_bytes:
                    await self._run_uncancelled(self._rotate())
                segment = self._segments[-1]
                self._tail.write(encode_frame(segment.seed, sequence, self._synced.sequence, raw))
                if self.durability == "fast":
                    self._sync_soon()
                elif alone:
                    self._tail.sync_now()
                else:
                    await self._sync_or_leave(tip)
                    return tip.hash
            self._acknowledge(tip)
            return tip.hash

    def _check(self, sequence: int, raw: bytes) -> Tip:
        if len(raw) > self.record_bytes_max:
            raise record_too_large(sequence, len(raw), self.record_bytes_max)
        if sequence != self.last + 1 or not has_valid_checksum(raw):
            raise not_next_record(sequence, self.last)
        return tip_after(self.tip, sequence, raw)

    async def _sync_or_leave(self, tip: Tip) -> None:
        try:
            await self._sync_and_acknowledge(tip)
        except asyncio.CancelledError:
            # The frame is written. Another sync acknowledges it; if the running one fails, so
            # does this one, because a file remembers a failed sync.
            self._work = asyncio.ensure_future(self._sync_and_acknowledge(tip))
            raise

    async def _sync_and_acknowledge(self, tip: Tip) -> None:
        await self._tail.sync()
        self._acknowledge(tip)

    def _acknowledge(self, tip: Tip) -> None:
        """Make the record visible to readers."""
        self._segments[-1].extend(tip.sequence, self._tail.size)
        self.tip, self.last = tip, tip.sequence
        if self.durability == "full":
            self._synced = tip
        if self._mark_timer is None:
            loop = asyncio.get_running_loop()
            self._mark_timer = loop.call_later(self.mark_seconds, self._mark)
        self._wake_followers()

    async def _run_uncancelled(self, work: Coroutine[None, None, None]) -> None:
        """Run work that continues when the append is cancelled."""
        self._work = asyncio.ensure_future(work)
        await asyncio.shield(self._work)
        self._work = None

    async def _finish_work(self) -> None:
        """Wait for the work of a cancelled append."""
        if self._work is None:
            return
        await asyncio.wait((self._work,))
        error, self._work = self._work.exception(), None
        if isinstance(error, StoreStoppedError):
            self._stop(error)
        elif error is not None and not isinstance(error, StoreFullError):
            raise error

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        """Stop the log when the disk fails: after a failed sync its content is unknown."""
        try:
            yield
        except StoreStoppedError as error:
            self._stop(error)
            raise

    def _stop(self, error: PartitaError) -> None:
        if self._failure is None:
            self._failure = error
            logger.critical("the log stopped: %s", error)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise log_closed()
        if self._failure is not None:
            raise copy(self._failure) from self._failure

    # Syncs of the fast mode

    async def sync(self) -> None:
        """Return when all acknowledged records are durable; in `full` they are already."""
        async with self._tail_lock:
            await self._finish_work()
            self._check_usable()
            await self._sync_tail()

    async def _sync_tail(self) -> None:
        tip = self.tip
        if self._synced is tip:
            return
        with self._stopping():
            await self._tail.sync()
        self._synced = tip

    def _sync_soon(self) -> None:
        if self._fast_sync is None:
            self._fast_sync = asyncio.ensure_future(self._sync_later())

    async def _sync_later(self) -> None:
        await asyncio.sleep(FAST_SYNC_SECONDS)
        async with self._tail_lock:
            self._fast_sync = None
            await self._finish_work()
            if not self._is_closed and self._failure is None:
                with contextlib.suppress(StoreStoppedError):  # the next append raises it
                    await self._sync_tail()

    # Segments

    async def _rotate(self) -> None:
        """Begin a new segment after the old one is completely synced."""
        if self._segments[-1].end == HEADING_BYTES:
            return
        await self._tail.sync()
        self._synced = self.tip
        old = self._tail
        await self._begin_segment()
        old.close()

    async def _begin_segment(self) -> None:
        """Rename a new segment after its heading is durable: one without a heading is damage."""
        heading = encode_heading(self.tip)
        name = _name_of(self.tip.sequence + 1)
        file = self._create(f"{name}.new", heading)
        await file.sync()
        file.close()
        self._disk.rename(file.name, name)
        await self._disk.sync_folder()
        self._segments.append(Segment(name, decode_heading(name, heading)))
        self._tail = self._disk.grow(name, len(heading))

    def _create(self, name: str, content: bytes) -> GrowingFile:
        """Create a file with this content; remove it if the disk is full."""
        file = self._disk.create(name)
        try:
            file.write(content)
        except StoreFullError:
            file.close()
            self._disk.remove(name)
            raise
        return file

    async def truncate(self, below: int) -> None:
        """Remove the segments whose records are all below a sequence."""
        async with self._removal:
            async with self._tail_lock:
                await self._finish_work()
                self._check_usable()
                if below > self.last:
                    with self._stopping(), contextlib.suppress(StoreFullError):
                        # On a full disk the older segments are still removed.
                        await self._run_uncancelled(self._rotate())
            while len(self._segments) > 1 and self._segments[1].first <= below:
                with self._stopping():
                    # Make each removal durable before the next: a crash must not leave a gap.
                    await self._disk.sync_folder()
                    removed = self._segments.pop(0)
                    self.first = self._segments[0].first
                    # Beside the loop: freeing a whole segment takes long on a busy disk.
                    await self._disk.aside(functools.partial(self._disk.remove, removed.name))

    # Marks

    async def _begin_marks(self) -> None:
        with self._stopping():
            try:
                self._replace_marks()
            except StoreFullError:
                if MARKS_FILE not in self._disk.names():
                    raise
                self._keep_marks()
            await self._marks.sync()
            await self._disk.sync_folder()

    def _keep_marks(self) -> None:
        """Continue the old marks, which are still valid: the log of a full disk can be read."""
        size = self._disk.size(MARKS_FILE)
        self._marks = self._disk.grow(MARKS_FILE, size - size % MARK_BYTES)

    def _replace_marks(self) -> None:
        """Restart the file with one mark. A crash may restore the old file, which is valid too."""
        file = self._create(f"{MARKS_FILE}.new", encode_mark(self._synced))
        file.close()
        self._disk.rename(file.name, MARKS_FILE)
        self._marks = self._disk.grow(MARKS_FILE, MARK_BYTES)
        self._marked = self._synced.sequence

    def _mark(self) -> None:
        """Write a mark of what is synced. The mark itself needs no sync: it is valid or absent."""
        self._mark_timer = None
        if self._is_closed or self._failure is not None or self._marked == self._synced.sequence:
            return
        # Marks are optional: a full disk goes without, a failed disk shows at the next append.
        with contextlib.suppress(StoreFullError, StoreStoppedError):
            if self._marks.size >= MARKS_BYTES_MAX:
                old = self._marks
                self._replace_marks()
                old.close()
            else:
                self._marks.write(encode_mark(self._synced))
                self._marked = self._synced.sequence

    # Reading

    async def read_from(self, sequence: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the records from a sequence on, verifying each one again."""
        segment: Segment | None = None
        place = 0
        while sequence <= self.last:
            self._check_readable(sequence)
            if segment is None or place == segment.end:
                segment, place = self._place_of(sequence)
            batch = self._batch(segment, sequence, place)
            for frame in batch:
                yield frame.sequence, frame.raw
            sequence, place = batch[-1].sequence + 1, batch[-1].end
            await asyncio.sleep(0)

    async def follow(self, sequence: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield the records from a sequence on, and new ones, until the log is closed."""
        while True:
            with contextlib.suppress(StateClosedError):
                async for found, raw in self.read_from(sequence):
                    yield found, raw
                    sequence = found + 1
            if self._is_closed:
                return
            if sequence > self.last:
                woken = asyncio.get_running_loop().create_future()
                self._followers.append(woken)
                await woken

    def _batch(self, segment: Segment, sequence: int, place: int) -> list[Frame]:
        """Return about one chunk of frames from a sequence on, found at or after a place."""
        batch: list[Frame] = []
        end = place
        for frame in self._frames(segment, place, segment.end):
            end = frame.end
            if frame.sequence >= sequence:
                batch.append(frame)
                if end - place >= CHUNK_BYTES:
                    break
        if not batch or batch[0].sequence != sequence:
            raise damaged(segment.name, end, sequence)
        return batch

    def _frames(self, segment: Segment, start: int, end: int) -> Iterator[Frame]:
        return read_frames(self._read_of(segment), segment.seed, start, end)

    def _read_of(self, segment: Segment) -> Read:
        return lambda start, count: self._disk.read(segment.name, start, count)

    def _place_of(self, sequence: int) -> tuple[Segment, int]:
        number = bisect_right(self._segments, sequence, key=lambda segment: segment.first)
        segment = self._segments[number - 1]
        _, place = segment.places[bisect_right(segment.places, (sequence, segment.end)) - 1]
        return segment, place

    def _check_readable(self, sequence: int) -> None:
        if self._is_closed:
            raise log_closed()
        if sequence < self.first:
            raise log_truncated(sequence, self.first)

    def _wake_followers(self) -> None:
        followers, self._followers = self._followers, []
        for woken in followers:
            if not woken.done():
                woken.set_result(None)

    # Closing

    async def close(self) -> None:
        """Finish the running append, write a mark, and close the files."""
        async with self._removal, self._tail_lock:
            if self._is_closed:
                return
            await self._finish_work()
            self._is_closed = True
            for timer in (self._mark_timer, self._fast_sync):
                if timer is not None:
                    timer.cancel()
            try:
                await self._close_marks()
            finally:
                self._tail.close()
                self._marks.close()
                self._wake_followers()

    async def _close_marks(self) -> None:
        if self._failure is not None:
            return
        await self._sync_tail()
        with contextlib.suppress(StoreFullError):  # marks are optional
            self._marks.write(encode_mark(self._synced))
            await self._marks.sync()


def _name_of(first: int) -> str:
    return f"log-{first:020}.part"


def _names(disk: Disk, ending: str) -> list[str]:
    return [name for name in disk.names() if name.startswith("log-") and name.endswith(ending)]


def _refuse_if_lost(proof: tuple[int, bytes] | None, chain: tuple[int, bytes] | None) -> None:
    """Raise if a mark or a checkpoint says that the empty disk had records."""
    newest = max((known[0] for known in (proof, chain) if known), default=0)
    if newest > 0:
        raise _missing(_name_of(newest), newest)


def _refuse_if_other(tip: Tip, known: dict[int, bytes]) -> None:
    if known.get(tip.sequence, tip.hash) != tip.hash:
        raise ChainBrokenError(
            "LogChainBroken",
            f"Record {tip.sequence} is not the record that was acknowledged at that sequence.",
            facts={"sequence": tip.sequence},
            hint="Files of two logs were mixed. Restore a backup, or copy the state from another "
            "replica.",
        )


def _missing(name: str, sequence: int | None) -> ChainBrokenError:
    return ChainBrokenError(
        "LogIncomplete",
        f"Acknowledged records are missing from the log, at or before {name}.",
        facts={"file": name, "sequence": sequence},
        hint="No file was changed. Put the missing file back, or restore a backup; empty the "
        "folder of a replica to copy the state from another.",
    )


def _unreached(name: str, first: int) -> ChainBrokenError:
    return ChainBrokenError(
        "LogIncomplete",
        f"The log starts at record {first}, and there is no checkpoint of the records before it.",
        facts={"file": name, "sequence": first},
        hint="No file was changed. Put the missing checkpoint back, or restore a backup; empty "
        "the folder of a replica to copy the state from another.",
    )
