"""Logs in blobs instead of tables (guide: Log data anti-pattern): a writer and a reader.

Every blob has one writer and a unique first line, so that an append whose answer was lost can be
recognised. A line is acknowledged when `flush` (or a durable `append`) has returned; then it is in
exactly one blob, in order. Lines that were not flushed are lost if the process ends. After an error
the lines are still buffered: flush again, do not append them again.
"""

import contextlib
from collections import deque
from datetime import datetime
from threading import Lock

import msgspec

from partita.blobs.rules import limits as blob_limits
from partita.errors import ConflictError, DamageError, StoreBusyError, UnavailableError, UsageError
from partita.patterns.protocol.calls import (
    AppendBlob,
    CreateContainer,
    GetBlob,
    ListBlobs,
    ListedBlob,
    SetBlobMetadata,
    Sleep,
    Steps,
    ask,
)
from partita.patterns.protocol.utc import in_utc, utc_now
from partita.patterns.series.log_names import LogPlace, decode_line, encode_line, time_text
from partita.ticks import Clock

BLOCK_BYTES_MAX = 4 * 1024 * 1024
"""The size of one append; services before version 2022-11-02 accept no more."""
BUFFER_BYTES_LIMIT = 64 * 1024 * 1024
"""The most bytes that wait to be written while the service is unreachable; then `add` refuses."""
TURN_SECONDS = 0.005
"""The interval at which a caller checks whether the flush of another caller is over."""
RETRY_SECONDS = 0.05
"""The shortest pause between two looks at the buffer."""

_FULL = frozenset({"BlockCountExceedsLimit", "MaxBlobSizeConditionNotMet"})
_DIRECTIVE = b"#"


class LogBuffering(msgspec.Struct, frozen=True):
    """When lines are written: at once (`is_durable`), or after a number of bytes or seconds."""

    is_durable: bool = False
    bytes_max: int = 256 * 1024
    seconds_max: float = 5.0
    blob_bytes_max: int = 64 * 1024 * 1024
    """The size above which a new blob is started; a reader holds one blob in memory."""
    blob_blocks_max: int = blob_limits.APPENDED_BLOCKS_MAX


class _Line(msgspec.Struct, frozen=True):
    ticket: int
    period: datetime
    at: datetime
    stored: bytes


class _OpenBlob(msgspec.Struct):
    """A blob of this writer. `position` and `blocks` count what is certainly stored."""

    period: datetime
    number: int
    header: bytes
    """Its first line, which is unique."""
    position: int = 0
    blocks: int = 0
    first: datetime | None = None
    last: datetime | None = None


class _Block(msgspec.Struct):
    """Lines that are being written to one blob, kept until they are certainly stored.

    `content` is the same for every attempt on one blob, so that it can be recognised.
    """

    lines: list[_Line]
    blob: _OpenBlob
    content: bytes


class LogWriter:
    """Appends lines to blobs that are named by the period of the lines.

    `add` and `is_due` are for callers that decide when to flush. Tasks and threads may share a
    writer: there is one flush at a time, and the next one writes the lines of all waiting callers
    in one block.
    """

    def __init__(
        self, place: LogPlace, clock: Clock, buffering: LogBuffering | None = None
    ) -> None:
        self.place = place
        self.buffering = buffering or LogBuffering()
        self.acknowledged = 0
        """Every line up to this ticket is durable."""
        self._clock = clock
        self._id = clock.new_id()
        self._blobs_begun = 0
        self._buffer: deque[_Line] = deque()
        self._buffered_bytes = 0
        self._oldest_at = 0.0
        """Since when (monotonic) the buffer is not empty."""
        self._tickets = 0
        self._outgoing: _Block | None = None
        self._open: dict[datetime, _OpenBlob] = {}
        self._lock = Lock()
        """Held while the buffer is changed, never during a call."""
        self._is_flushing = False
        self._is_closed = False

    def add(self, text: str | bytes, at: datetime | None = None) -> int:
        """Buffer a line and return its ticket (see `acknowledged`). `at` defaults to now."""
        if self._is_closed:
            raise UsageError("LogClosed", "The log was closed.", hint="Open another writer.")
        moment = utc_now(self._clock) if at is None else in_utc(at, "The time of a log line")
        stored = encode_line(moment, text)
        with self._lock:
            return self._add(moment, stored)

    def _add(self, moment: datetime, stored: bytes) -> int:
        if self._buffered_bytes + len(stored) > BUFFER_BYTES_LIMIT:
            raise StoreBusyError(
                "LogBufferFull",
                "The buffer of the log is full.",
                facts={"bytes": self._buffered_bytes, "buffer_bytes_limit": BUFFER_BYTES_LIMIT},
                hint="Retry flush() until it succeeds, and add no lines until then.",
            )
        if not self._buffer:
            self._oldest_at = self._clock.monotonic()
        self._tickets += 1
        self._buffer.append(_Line(self._tickets, self.place.period_of(moment), moment, stored))
        self._buffered_bytes += len(stored)
        return self._tickets

    @property
    def is_due(self) -> bool:
        """Whether the buffered lines should be flushed now."""
        if not self._buffer:
            return self._outgoing is not None
        return (
            self.buffering.is_durable
            or self._buffered_bytes >= self.buffering.bytes_max
            or self._clock.monotonic() - self._oldest_at >= self.buffering.seconds_max
        )

    @property
    def seconds_until_due(self) -> float:
        """How long the buffered lines may wait; half of `seconds_max` if there are none."""
        if not self._buffer:
            return self.buffering.seconds_max / 2
        waited = self._clock.monotonic() - self._oldest_at
        return max(self.buffering.seconds_max - waited, 0.0)

    def flush_if_due(self) -> Steps[float]:
        """Flush lines that have waited long enough; return when to look again.

        A service that is unreachable now is tried again: the lines stay in the buffer.
        """
        if self.is_due:
            with contextlib.suppress(UnavailableError):
                yield from self.flush()
                return self.seconds_until_due
        return max(self.seconds_until_due, RETRY_SECONDS)

    def append(self, text: str | bytes, at: datetime | None = None) -> Steps[int]:
        """Add a line, and flush if it is due; return the ticket of the line."""
        ticket = self.add(text, at)
        if self.is_due:
            yield from self.flush()
        return ticket

    def flush(self) -> Steps[int]:
        """Make all lines durable that were added before, and return `acknowledged`."""
        last = self._tickets
        while not self._take_turn():
            yield from ask(Sleep(TURN_SECONDS))
            if self.acknowledged >= last:
                return self.acknowledged
        touched: set[datetime] = set()
        try:
            while (block := (yield from self._next_block(last))) is not None:
                yield from self._write(block)
                touched.add(block.blob.period)
                self._outgoing = None
                self._acknowledge()
            yield from self._finish_past(touched)
        finally:
            self._is_flushing = False
        return self.acknowledged

    def close(self) -> Steps[None]:
        """Refuse further lines, flush, and record the first and last time of each blob.

        If it fails, it can be called again.
        """
        self._is_closed = True
        yield from self.flush()
        for blob in list(self._open.values()):
            yield from self._finish(blob)

    def _take_turn(self) -> bool:
        with self._lock:
            is_free = not self._is_flushing
            self._is_flushing = True
        return is_free

    def _next_block(self, last: int) -> Steps[_Block | None]:
        """Return the next block to write; a block in doubt comes first."""
        if self._outgoing is not None:
            return self._outgoing
        if not self._buffer or self._buffer[0].ticket > last:
            return None
        period = self._buffer[0].period
        blob = self._open.get(period)
        if blob is None:
            used = yield from self._find_last_number(period)
            blob = self._begin_blob(period, used + 1)
        with self._lock:
            self._outgoing = _block(self._take_lines(blob), blob)
        return self._outgoing

    def _begin_blob(self, period: datetime, number: int) -> _OpenBlob:
        self._blobs_begun += 1
        header = f"#Writer: {self._id} {self._blobs_begun}\n".encode()
        return _OpenBlob(period, number, header)

    def _take_lines(self, blob: _OpenBlob) -> list[_Line]:
        """Remove the lines of a blob's period from the buffer, up to the size of a block."""
        lines: list[_Line] = []
        others: deque[_Line] = deque()
        size = len(blob.header)
        while self._buffer:
            line = self._buffer[0]
            if line.period != blob.period:
                others.append(line)
            elif size + len(line.stored) > BLOCK_BYTES_MAX:
                break
            else:
                lines.append(line)
                size += len(line.stored)
            self._buffer.popleft()
        self._buffer.extendleft(reversed(others))
        self._buffered_bytes -= sum(len(line.stored) for line in lines)
        return lines

    def _acknowledge(self) -> None:
        # The buffer stays in the order of tickets.
        with self._lock:
            self.acknowledged = self._buffer[0].ticket - 1 if self._buffer else self._tickets

    # -----------------------------------------------------------------------------------------
    # One block

    def _write(self, block: _Block) -> Steps[None]:
        """Write a block to a blob of its period: its own, or the next one that can be created."""
        while True:
            blob = block.blob
            if blob.position and not self._has_room(blob, len(block.content)):
                yield from self._finish(blob)
                self._redirect(block, blob.number + 1)
            elif (yield from self._append(block)):
                self._record(block)
                return
            else:
                last = yield from self._find_last_number(blob.period)
                self._redirect(block, max(blob.number, last) + 1)

    def _has_room(self, blob: _OpenBlob, length: int) -> bool:
        return (
            blob.blocks < self.buffering.blob_blocks_max
            and blob.position + length <= self.buffering.blob_bytes_max
        )

    def _redirect(self, block: _Block, number: int) -> None:
        """Direct a block, which is certainly not in its blob, to a new blob."""
        block.blob = self._begin_blob(block.blob.period, number)
        block.content = _block(block.lines, block.blob).content

    def _append(self, block: _Block) -> Steps[bool]:
        """Append a block. False: it is not in that blob, which accepts no more."""
        blob = block.blob
        name = self.place.name(blob.period, blob.number)
        start = time_text(min(line.at for line in block.lines))
        metadata = {} if blob.position else {"StartTime": start}
        call = AppendBlob(self.place.container, name, block.content, blob.position, metadata)
        try:
            length = yield from ask(call)
        except ConflictError as error:
            if error.code == "ContainerNotFound":
                yield from ask(CreateContainer(self.place.container))
            elif error.code not in _FULL:
                raise
            return False
        if length is not None:
            return True
        # Another writer has this number, or our append was performed and its answer was lost: the
        # header decides.
        stored = yield from ask(GetBlob(self.place.container, name))
        return (
            stored is not None
            and stored.content.startswith(blob.header)
            and stored.content.startswith(block.content, blob.position)
        )

    def _record(self, block: _Block) -> None:
        blob = block.blob
        blob.position += len(block.content)
        blob.blocks += 1
        times = [line.at for line in block.lines]
        blob.first = min([*times, blob.first] if blob.first else times)
        blob.last = max([*times, blob.last] if blob.last else times)
        self._open[blob.period] = blob

    def _find_last_number(self, period: datetime) -> Steps[int]:
        last, continuation = 0, ""
        folder = self.place.folder(period)
        while True:
            try:
                page = yield from ask(ListBlobs(self.place.container, folder, continuation))
            except ConflictError as error:
                if error.code != "ContainerNotFound":
                    raise
                yield from ask(CreateContainer(self.place.container))
                return 0
            numbers = [self.place.number_of(blob.name) or 0 for blob in page.blobs]
            last, continuation = max([last, *numbers]), page.continuation
            if not continuation:
                return last

    # -----------------------------------------------------------------------------------------
    # The end of a blob

    def _finish_past(self, touched: set[datetime]) -> Steps[None]:
        """Finish the blobs of past periods that got no late line in this flush."""
        newest = max(self._open, default=None)
        for blob in list(self._open.values()):
            if blob.period != newest and blob.period not in touched:
                yield from self._finish(blob)

    def _finish(self, blob: _OpenBlob) -> Steps[None]:
        """Record the times of a blob in its metadata; nothing is appended to it afterwards."""
        self._open.pop(blob.period, None)
        assert blob.first is not None
        assert blob.last is not None
        metadata = {"StartTime": time_text(blob.first), "EndTime": time_text(blob.last)}
        name = self.place.name(blob.period, blob.number)
        # The lines are stored: without an end time a reader opens the blob.
        with contextlib.suppress(UnavailableError):
            yield from ask(SetBlobMetadata(self.place.container, name, metadata))


def _block(lines: list[_Line], blob: _OpenBlob) -> _Block:
    header = b"" if blob.position else blob.header
    return _Block(lines, blob, header + b"".join(line.stored for line in lines))


class LogLine(msgspec.Struct, frozen=True):
    """A line that was read, and the name of its blob."""

    blob: str
    at: datetime
    content: bytes

    @property
    def text(self) -> str:
        """The line as text; bytes that are not UTF-8 are decoded with "surrogateescape"."""
        return self.content.decode(errors="surrogateescape")


class LogReader:
    """Finds the lines of a range of time by the names and metadata of blobs."""

    def __init__(self, place: LogPlace) -> None:
        self.place = place

    def scan(self, start: datetime, end: datetime) -> "LogScan":
        """Start reading the lines from `start` to `end`, both included, one blob at a time."""
        return LogScan(
            self.place, in_utc(start, "The start of a range"), in_utc(end, "The end of a range")
        )

    def between(self, start: datetime, end: datetime) -> Steps[tuple[LogLine, ...]]:
        """Return all lines from `start` to `end`, both inside.

        They come in the order of the names of their blobs and, in a blob, as they were written.
        """
        scan = self.scan(start, end)
        found: list[LogLine] = []
        while (lines := (yield from scan.read())) is not None:
            found += lines
        return tuple(found)


class LogScan:
    """A reader of a range of time; it holds the lines of one blob."""

    def __init__(self, place: LogPlace, start: datetime, end: datetime) -> None:
        self._place = place
        self._start = start
        self._end = end
        self._folders = place.folders_between(start, end)
        self._folder = ""
        self._continuation = ""
        self._listed: deque[ListedBlob] = deque()
        self.blobs_read = 0
        self.blobs_skipped = 0
        """The number of blobs that were skipped because of the times in their metadata."""

    def read(self) -> Steps[tuple[LogLine, ...] | None]:
        """Return the matching lines of the next blob that has some; None at the end."""
        while True:
            while self._listed:
                listed = self._listed.popleft()
                if not self._may_hold(listed):
                    self.blobs_skipped += 1
                    continue
                lines = yield from self._lines_of(listed.name)
                if lines:
                    return lines
            if not self._continuation:
                folder = next(self._folders, None)
                if folder is None:
                    return None
                self._folder = folder
            call = ListBlobs(self._place.container, self._folder, self._continuation)
            try:
                page = yield from ask(call)
            except ConflictError as error:
                if error.code != "ContainerNotFound":
                    raise
                return None  # because nothing was ever written
            self._continuation = page.continuation
            is_log = self._place.number_of
            self._listed.extend(blob for blob in page.blobs if is_log(blob.name) is not None)

    def _may_hold(self, listed: ListedBlob) -> bool:
        # Only a finished blob has an end time, and only then is its start time final.
        first, last = _time_in(listed, "starttime"), _time_in(listed, "endtime")
        if first is None or last is None:
            return listed.length > 0
        return first <= self._end and last >= self._start

    def _lines_of(self, name: str) -> Steps[tuple[LogLine, ...]]:
        stored = yield from ask(GetBlob(self._place.container, name))
        if stored is None:
            return ()  # because it was deleted after it was listed
        self.blobs_read += 1
        lines: list[LogLine] = []
        for number, line in enumerate(stored.content.split(b"\n")[:-1], start=1):
            if line.startswith(_DIRECTIVE):
                continue
            try:
                at, content = decode_line(line)
            except DamageError as error:
                error.facts.update(blob=name, line=number)
                raise
            if self._start <= at <= self._end:
                lines.append(LogLine(name, at, content))
        return tuple(lines)


def _time_in(listed: ListedBlob, name: str) -> datetime | None:
    """Find a time in the metadata; services differ in the case of metadata names."""
    for known, value in listed.metadata.items():
        if known.lower() == name:
            try:
                moment = datetime.fromisoformat(value)
            except ValueError:
                return None
            return moment if moment.tzinfo is not None else None
    return None
