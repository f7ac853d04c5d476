"""QuorumLog: the Log on a replicated stream, with exactly one fenced record in flight.

The result of an append is decided only by what the stream contains at its sequence. Without an
answer the same message is sent again: the message id identifies it if it was stored in the last
ten minutes, the expected sequence prevents a second copy after that. After a refusal the record
at that sequence is read; a node that does not have it yet proves nothing. Two fenced records in
flight would be unsound: the first record of a stale writer would be refused, and its second might
fit after the foreign record.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from partita.errors import (
    ChainBrokenError,
    InDoubtError,
    NotPrimaryError,
    QuorumLostError,
    UnavailableError,
)
from partita.reliable.replication.stream import NoAnswer, PublishRefused, Stream
from partita.reliable.state.records import record_hash
from partita.reliable.storage.log import (
    log_closed,
    log_truncated,
    not_next_record,
    record_too_large,
)
from partita.reliable.values.limits import RECORD_BYTES_MAX
from partita.ticks import Clock

ANSWER_SECONDS = 2.0
"""How long one request to the stream waits for its answer."""
QUORUM_SECONDS = 10.0
"""How long an append may be open before `on_quorum_lost` is called."""
PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 1.0
"""The longest pause between two attempts; pauses double, with jitter."""
SEAL_EVERY = 4
"""After this many attempts without an answer the seal is set again, as an older one may be late."""


class Flight:
    """One record in flight, until the content of the stream decides its result."""

    def __init__(self, sequence: int, raw: bytes, epoch: int) -> None:
        self.sequence = sequence
        self.raw = raw
        self.epoch = epoch
        self.hash = record_hash(raw)
        self.message_id = f"{epoch}.{sequence}.{self.hash.hex()}"
        self.is_stored: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.has_caller = True
        self.sender: asyncio.Task[None] | None = None
        self.alarm: asyncio.TimerHandle | None = None

    @property
    def is_settled(self) -> bool:
        return self.is_stored.done()


class QuorumLog:
    """A Log on a stream that it owns. The records of different writers must differ.

    `epoch` names the subject of the next append; a replica that takes over sets it before the
    record that opens the epoch. `on_quorum_lost` is called once for each append that is open too
    long: the owner stops serving, the append continues until its result is known.
    """

    def __init__(
        self,
        stream: Stream,
        clock: Clock,
        *,
        on_quorum_lost: Callable[[], None] | None = None,
        quorum_seconds: float = QUORUM_SECONDS,
        one_in_flight: bool = True,
    ) -> None:
        self.first = 1
        self.last = 0
        self.epoch = 0
        self.has_quorum = True
        self._stream = stream
        self._clock = clock
        self.on_quorum_lost = on_quorum_lost
        self._quorum_seconds = quorum_seconds
        self._one_in_flight = one_in_flight
        self._flights: list[Flight] = []
        self._senders: list[asyncio.Task[None]] = []
        self._sealed_epoch: int | None = None
        self._is_closed = False

    @classmethod
    async def open(
        cls,
        stream: Stream,
        clock: Clock,
        *,
        on_quorum_lost: Callable[[], None] | None = None,
        quorum_seconds: float = QUORUM_SECONDS,
    ) -> "QuorumLog":
        """Return a log that knows its bounds; QuorumLostError if no node answers."""
        log = cls(stream, clock, on_quorum_lost=on_quorum_lost, quorum_seconds=quorum_seconds)
        await log.refresh()
        return log

    async def refresh(self) -> int:
        """Read the bounds and return `last`; the stream may contain more."""

        async def ask() -> None:
            first, last = await self._stream.bounds(timeout=ANSWER_SECONDS)
            self._note_bounds(first, last)

        await self._retry(ask)
        return self.last

    async def seal(self, epoch: int) -> None:
        """Let the stream refuse all other epochs, in addition to the fence.

        NotPrimaryError: the stream is sealed by a higher epoch, which may never have been
        opened. Use an epoch above it to take over.
        """
        try:
            await self._retry(lambda: self._stream.seal(epoch, timeout=ANSWER_SECONDS))
        except PublishRefused:
            raise _sealed(epoch) from None
        self._sealed_epoch = epoch

    async def append(self, sequence: int, raw: bytes, *, alone: bool = False) -> bytes:  # noqa: ARG002 - there is no local sync
        """Return the hash when the record is at `sequence`, as the Log contract says.

        If the caller is cancelled, the append continues, and the next one waits for its end.
        While an append is open, another for the same sequence may be sent, as by a replica that
        takes over again: the fence accepts one of them, which decides both.
        """
        await self._wait_for_cancelled(sequence)
        self._check_append(sequence, raw)
        flight = Flight(sequence, raw, self.epoch)
        self._start(flight)
        try:
            is_stored = await asyncio.shield(flight.is_stored)
        except asyncio.CancelledError:
            flight.has_caller = False
            raise
        if not is_stored:
            raise _not_primary(flight)
        return flight.hash

    async def read_from(self, sequence: int) -> AsyncGenerator[tuple[int, bytes], None]:
        await self.refresh()
        if sequence > self.last:
            return
        async with contextlib.aclosing(self.follow(sequence)) as records:
            async for found, raw in records:
                yield found, raw
                if found >= self.last:
                    return

    async def follow(self, sequence: int) -> AsyncGenerator[tuple[int, bytes], None]:
        if sequence < self.first:
            raise log_truncated(sequence, self.first)
        messages = self._stream.messages(sequence)
        try:
            async for found, raw in messages:
                self._note_stored(found, raw)
                yield found, raw
        finally:
            if isinstance(messages, AsyncGenerator):
                await messages.aclose()

    async def sync(self) -> None:
        """Return at once: an append ends when a quorum has synced it."""

    async def truncate(self, below: int) -> None:
        below = min(below, self.last + 1)
        if below <= self.first:
            return
        try:
            await self._stream.purge(below, timeout=ANSWER_SECONDS)
        except NoAnswer:
            return  # the next truncation includes this one
        self.first = max(self.first, below)

    async def close(self) -> None:
        """End all reads; an open append stays in doubt, as its record may still be stored."""
        self._is_closed = True
        for flight in list(self._flights):
            self._fail(flight, _in_doubt(flight, "The log was closed before the answer came."))
        await asyncio.gather(*self._senders, return_exceptions=True)
        await self._stream.close()

    async def _wait_for_cancelled(self, sequence: int) -> None:
        """Wait for records at other sequences whose callers were cancelled."""
        for flight in list(self._flights):
            if not flight.has_caller and flight.sequence != sequence and self.has_quorum:
                await asyncio.wait([flight.is_stored])

    @property
    def record_bytes_max(self) -> int:
        """The limit of the stream, which may change: a node that joins may accept less."""
        return min(RECORD_BYTES_MAX, self._stream.message_bytes_max)

    def abandon(self) -> None:
        """Stop waiting for the record in flight, with InDoubtError.

        It may still be stored; readers of the log from its sequence on will then see it.
        """
        for flight in list(self._flights):
            self._fail(flight, _in_doubt(flight, "This replica stopped waiting for the answer."))
        self.has_quorum = True

    def _check_append(self, sequence: int, raw: bytes) -> None:
        if self._is_closed:
            raise log_closed()
        if len(raw) > self.record_bytes_max:
            raise record_too_large(sequence, len(raw), self.record_bytes_max)
        if not self._one_in_flight:
            return
        others = [flight for flight in self._flights if flight.sequence != sequence]
        if others and not self.has_quorum:
            raise _quorum_lost(self._quorum_seconds)
        assert not others, "one record in flight: the fence is unsound for two"
        if sequence > self.last + 1:
            raise not_next_record(sequence, self.last)

    def _start(self, flight: Flight) -> None:
        """Send in a task of its own, which continues if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        self._flights.append(flight)
        flight.alarm = loop.call_later(self._quorum_seconds, self._lose_quorum)
        flight.sender = loop.create_task(self._send(flight))
        self._senders.append(flight.sender)
        flight.sender.add_done_callback(self._senders.remove)

    def _settle(self, flight: Flight, *, is_stored: bool) -> None:
        if flight.is_settled:
            return
        flight.is_stored.set_result(is_stored)
        self.last = max(self.last, flight.sequence)
        self.has_quorum = True
        self._end(flight)

    def _fail(self, flight: Flight, error: Exception) -> None:
        if flight.is_settled:
            return
        flight.is_stored.set_exception(error)
        # Marks it as retrieved: the caller of append may have been cancelled.
        flight.is_stored.exception()
        self._end(flight)

    def _end(self, flight: Flight) -> None:
        self._flights.remove(flight)
        if flight.alarm is not None:
            flight.alarm.cancel()
        # A reader may have decided it while the sender still waits for an answer.
        if flight.sender is not None and flight.sender is not asyncio.current_task():
            flight.sender.cancel()

    async def _send(self, flight: Flight) -> None:
        try:
            await self._send_until_settled(flight)
        except Exception as error:  # noqa: BLE001 - raised in the caller of append
            self._fail(flight, error)

    async def _send_until_settled(self, flight: Flight) -> None:
        attempt = 0
        while not flight.is_settled:
            try:
                await self._publish(flight)
            except PublishRefused:
                await self._after_refusal(flight)
            except NoAnswer:
                await self._after_silence(flight, attempt)
            except UnavailableError:
                if attempt == 0:
                    raise
                # This attempt stored nothing; an earlier one may still be stored.
                await self._look(flight)
            attempt += 1
            if not flight.is_settled:
                await self._pause(attempt)

    async def _publish(self, flight: Flight) -> None:
        stored = await self._stream.publish(
            flight.raw,
            epoch=flight.epoch,
            expected=flight.sequence - 1,
            message_id=flight.message_id,
            timeout=ANSWER_SECONDS,
        )
        self._accept(flight, stored)

    def _accept(self, flight: Flight, stored: int) -> None:
        if stored != flight.sequence:
            self._fail(flight, _misplaced(flight, stored))
        else:
            self._settle(flight, is_stored=True)

    async def _after_refusal(self, flight: Flight) -> None:
        """Read the record at the sequence. If the node has none, try again later."""
        await self._look(flight)
        if not flight.is_settled:
            await self._check_truncated(flight)

    async def _after_silence(self, flight: Flight, attempt: int) -> None:
        """Read the record at the sequence, and renew the seal from time to time."""
        await self._look(flight)
        is_sealed_again = flight.epoch == self._sealed_epoch and attempt % SEAL_EVERY == 1
        if is_sealed_again and not flight.is_settled:
            # The next attempt tries again, and the content of the stream decides.
            with contextlib.suppress(NoAnswer, PublishRefused):
                await self._stream.seal(flight.epoch, timeout=ANSWER_SECONDS)

    async def _look(self, flight: Flight) -> None:
        """Decide the result by what one node has at the sequence, if it has anything."""
        try:
            stored = await self._stream.get(flight.sequence, timeout=ANSWER_SECONDS)
        except NoAnswer:
            return
        if stored is not None:
            self._note_stored(flight.sequence, stored)

    async def _check_truncated(self, flight: Flight) -> None:
        """Give up if the sequence was purged, so that its record cannot be read."""
        try:
            first, last = await self._stream.bounds(timeout=ANSWER_SECONDS)
        except NoAnswer:
            return
        self._note_bounds(first, last)
        if first > flight.sequence:
            self._fail(flight, _in_doubt(flight, "Its sequence was truncated unread."))

    async def _pause(self, attempt: int) -> None:
        most = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2.0 ** min(attempt, 10))
        share = 0.5 + self._clock.random_bytes(1)[0] / 512
        await asyncio.sleep(most * share)

    async def _retry(self, ask: Callable[[], Awaitable[None]]) -> None:
        deadline = self._clock.monotonic() + self._quorum_seconds
        attempt = 0
        while not self._is_closed:
            try:
                return await ask()
            except NoAnswer:
                if self._clock.monotonic() > deadline:
                    raise _quorum_lost(self._quorum_seconds) from None
            attempt += 1
            await self._pause(attempt)
        raise log_closed()

    def _note_stored(self, sequence: int, raw: bytes) -> None:
        """Note a record that is in the stream, and decide the appends at its sequence."""
        self.last = max(self.last, sequence)
        for flight in [flight for flight in self._flights if flight.sequence == sequence]:
            self._settle(flight, is_stored=flight.raw == raw)

    def _note_bounds(self, first: int, last: int) -> None:
        self.first = max(self.first, first)
        self.last = max(self.last, last)

    def _lose_quorum(self) -> None:
        self.has_quorum = False
        if self.on_quorum_lost is not None:
            self.on_quorum_lost()


def _not_primary(flight: Flight) -> NotPrimaryError:
    return NotPrimaryError(
        "NotPrimary",
        "Another writer's record is at this sequence; this one was not committed.",
        facts={"sequence": flight.sequence, "epoch": flight.epoch},
        hint="Send the transaction to the primary.",
    )


def _sealed(epoch: int) -> NotPrimaryError:
    return NotPrimaryError(
        "EpochSealed",
        f"The stream was sealed by an epoch above {epoch}.",
        facts={"epoch": epoch},
        hint="Continue to follow the log: another replica takes over. Use a higher epoch to retry.",
    )


def _in_doubt(flight: Flight, why: str) -> InDoubtError:
    return InDoubtError(
        "InDoubt",
        f"A record may or may not be in the log. {why}",
        facts={"sequence": flight.sequence, "epoch": flight.epoch},
        hint="Call state.outcome() with the idempotency key, or read the data before a retry.",
    )


def _quorum_lost(seconds: float) -> QuorumLostError:
    return QuorumLostError(
        "QuorumLost",
        f"Too few nodes of the log answered for {seconds:.3g} s.",
        facts={"seconds": seconds},
        hint="Start the nodes that are down; the open append then ends with a definite result.",
    )


def _misplaced(flight: Flight, stored: int) -> ChainBrokenError:
    return ChainBrokenError(
        "RecordMisplaced",
        f"The stream stored a record at sequence {stored} instead of {flight.sequence}.",
        facts={"sequence": flight.sequence, "stored": stored, "epoch": flight.epoch},
        hint="Stop and restore a backup: the stream was created again, or belongs to another "
        "program.",
    )
