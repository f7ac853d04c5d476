"""QuorumLog: the Log over a replicated stream, with exactly one fenced record in flight.

An append ends only by what the stream holds at its sequence. Silence is answered by sending the
same message again: the message id finds it if it landed in the last ten minutes, the expected
sequence keeps it from landing twice after that. A refusal is answered by reading who is there;
a node that does not have that sequence yet proves nothing. Two fenced records in flight would
be unsound: a stale writer's first is refused, and its second may fit behind the foreign record.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable

from partita.errors import (
    ChainBrokenError,
    InDoubtError,
    LimitExceededError,
    NotPrimaryError,
    NotReadableError,
    QuorumLostError,
    StateClosedError,
    UnavailableError,
    UsageError,
)
from partita.reliable.replication.stream import NoAnswer, PublishRefused, Stream
from partita.reliable.state.records import record_hash
from partita.reliable.values.limits import RECORD_BYTES_MAX
from partita.ticks import Clock

ANSWER_SECONDS = 2.0
"""How long one question to the stream waits for its answer."""
QUORUM_SECONDS = 10.0
"""How long an append may stay open before the owner is told that the quorum is lost."""
PAUSE_SECONDS_MIN = 0.02
PAUSE_SECONDS_MAX = 1.0
"""Between two attempts: doubled each time, and drawn from the upper half."""
SEAL_EVERY = 4
"""After so many silent attempts the seal is set again: an older one may have come late."""


class Flight:
    """One record on its way, until the stream's own content settles what became of it."""

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
    """A Log on a stream that it owns. Records must differ between writers, byte for byte.

    `epoch` names the subject of the next append; whoever takes over sets it before the record
    that opens the epoch. `on_quorum_lost` is called once for each append that stays open too
    long: the owner stops serving, the append goes on until its end is known.
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
        """Return a log that knows its bounds; QuorumLostError when no node tells them."""
        log = cls(stream, clock, on_quorum_lost=on_quorum_lost, quorum_seconds=quorum_seconds)
        await log.refresh()
        return log

    async def refresh(self) -> int:
        """Ask for the bounds and return `last`: at least this much is there, perhaps more."""

        async def ask() -> None:
            first, last = await self._stream.bounds(timeout=ANSWER_SECONDS)
            self._note_bounds(first, last)

        await self._insist(ask)
        return self.last

    async def seal(self, epoch: int) -> None:
        """Let the stream refuse all other epochs: a second line of defence behind the fence.

        NotPrimaryError says that a higher epoch was here first, though it may never have been
        opened: whoever still wants to take over must name a higher one.
        """
        try:
            await self._insist(lambda: self._stream.seal(epoch, timeout=ANSWER_SECONDS))
        except PublishRefused:
            raise _sealed(epoch) from None
        self._sealed_epoch = epoch

    async def append(self, sequence: int, raw: bytes, *, alone: bool = False) -> bytes:  # noqa: ARG002 - no sync is quicker here
        """Return when the record is at `sequence`, as the contract of Log says.

        A cancelled caller does not recall the record: it goes on to its end, and the next
        append waits for that. While one is open, another for the same sequence may be sent, as
        a replica does that takes over anew: the fence lets one of them in and settles both.
        """
        await self._end_of_forsaken(sequence)
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
            raise _truncated(sequence, self.first)
        messages = self._stream.messages(sequence)
        try:
            async for found, raw in messages:
                self._note_stored(found, raw)
                yield found, raw
        finally:
            if isinstance(messages, AsyncGenerator):
                await messages.aclose()

    async def sync(self) -> None:
        """Return at once: an append ends only when a quorum has synced it."""

    async def truncate(self, below: int) -> None:
        below = min(below, self.last + 1)
        if below <= self.first:
            return
        try:
            await self._stream.purge(below, timeout=ANSWER_SECONDS)
        except NoAnswer:
            return  # because the next truncation asks for more than this one
        self.first = max(self.first, below)

    async def close(self) -> None:
        """End all reading, and leave an open append in doubt: its record may yet land."""
        self._is_closed = True
        for flight in list(self._flights):
            self._fail(flight, _in_doubt(flight, "The log was closed before the answer came."))
        await asyncio.gather(*self._senders, return_exceptions=True)
        await self._stream.close()

    async def _end_of_forsaken(self, sequence: int) -> None:
        """Wait for records at other sequences whose callers were cancelled."""
        for flight in list(self._flights):
            if not flight.has_caller and flight.sequence != sequence and self.has_quorum:
                await asyncio.wait([flight.is_stored])

    @property
    def record_bytes_max(self) -> int:
        """Ask the stream each time: a node that joins may take less than the others."""
        return min(RECORD_BYTES_MAX, self._stream.message_bytes_max)

    def abandon(self) -> None:
        """Stop waiting for what is in flight: its end stays open, InDoubtError says so.

        It may still land; who follows the log from its sequence on will see it then.
        """
        for flight in list(self._flights):
            self._fail(flight, _in_doubt(flight, "This replica stopped waiting for the answer."))
        self.has_quorum = True

    def _check_append(self, sequence: int, raw: bytes) -> None:
        if self._is_closed:
            raise _closed()
        if len(raw) > self.record_bytes_max:
            raise _too_large(len(raw), self.record_bytes_max)
        if not self._one_in_flight:
            return
        others = [flight for flight in self._flights if flight.sequence != sequence]
        if others and not self.has_quorum:
            raise _quorum_lost(self._quorum_seconds)
        assert not others, "one record in flight: the fence is unsound for two"
        if sequence > self.last + 1:
            raise _not_next(sequence, self.last)

    def _start(self, flight: Flight) -> None:
        """Send in a task of its own: a caller that is cancelled does not stop it."""
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
        # Marks it as seen: the caller of append may have been cancelled and gone.
        flight.is_stored.exception()
        self._end(flight)

    def _end(self, flight: Flight) -> None:
        self._flights.remove(flight)
        if flight.alarm is not None:
            flight.alarm.cancel()
        # A reader may have settled it while the sender still waits for an answer.
        if flight.sender is not None and flight.sender is not asyncio.current_task():
            flight.sender.cancel()

    async def _send(self, flight: Flight) -> None:
        try:
            await self._send_until_settled(flight)
        except Exception as error:  # noqa: BLE001 - because it belongs to the caller of append
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
                # This attempt stored nothing; one before it may still land.
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
        """Read whose record is there. A node that has none proves nothing: ask again later."""
        await self._look(flight)
        if not flight.is_settled:
            await self._check_truncated(flight)

    async def _after_silence(self, flight: Flight, attempt: int) -> None:
        """Look whether the sequence is taken; the seal of another may have cut us off."""
        await self._look(flight)
        is_sealed_again = flight.epoch == self._sealed_epoch and attempt % SEAL_EVERY == 1
        if is_sealed_again and not flight.is_settled:
            # Because the next round asks again, and the stream's content decides anyway.
            with contextlib.suppress(NoAnswer, PublishRefused):
                await self._stream.seal(flight.epoch, timeout=ANSWER_SECONDS)

    async def _look(self, flight: Flight) -> None:
        """Settle by what one node has at the sequence, if it has anything."""
        try:
            stored = await self._stream.get(flight.sequence, timeout=ANSWER_SECONDS)
        except NoAnswer:
            return
        if stored is not None:
            self._note_stored(flight.sequence, stored)

    async def _check_truncated(self, flight: Flight) -> None:
        """Give up when the sequence was purged: whose record it was cannot be read any more."""
        try:
            first, last = await self._stream.bounds(timeout=ANSWER_SECONDS)
        except NoAnswer:
            return
        self._note_bounds(first, last)
        if first > flight.sequence:
            self._fail(flight, _in_doubt(flight, "Its place was truncated before it was read."))

    async def _pause(self, attempt: int) -> None:
        most = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2.0 ** min(attempt, 10))
        share = 0.5 + self._clock.random_bytes(1)[0] / 512
        await asyncio.sleep(most * share)

    async def _insist(self, ask: Callable[[], Awaitable[None]]) -> None:
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
        raise _closed()

    def _note_stored(self, sequence: int, raw: bytes) -> None:
        """Take note of a record that the stream holds: what is stored stays."""
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
        hint="Read on: another replica is taking over. Name a higher epoch to try again.",
    )


def _closed() -> StateClosedError:
    return StateClosedError(
        "StateClosed", "The log was closed.", hint="Open the state again to go on."
    )


def _truncated(sequence: int, first: int) -> NotReadableError:
    return NotReadableError(
        "LogTruncated",
        f"The log begins at {first}: record {sequence} was truncated.",
        facts={"sequence": sequence, "first": first},
        hint="Start from a checkpoint, or from a full copy.",
    )


def _not_next(sequence: int, last: int) -> UsageError:
    return UsageError(
        "LogOrder",
        f"Record {sequence} cannot be appended after record {last}.",
        facts={"sequence": sequence, "last": last},
        hint="Append records one at a time, each at the sequence after the last.",
    )


def _in_doubt(flight: Flight, why: str) -> InDoubtError:
    return InDoubtError(
        "InDoubt",
        f"A record may or may not be in the log. {why}",
        facts={"sequence": flight.sequence, "epoch": flight.epoch},
        hint="Ask for the outcome by its idempotency key, or read before trying again.",
    )


def _quorum_lost(seconds: float) -> QuorumLostError:
    return QuorumLostError(
        "QuorumLost",
        f"Too few nodes of the log answered for {seconds:.3g} s.",
        facts={"seconds": seconds},
        hint="Bring the nodes back; what is open ends by itself, and nothing was guessed.",
    )


def _misplaced(flight: Flight, stored: int) -> ChainBrokenError:
    return ChainBrokenError(
        "RecordMisplaced",
        f"The stream says that it stored a record at {stored} instead of {flight.sequence}.",
        facts={"sequence": flight.sequence, "stored": stored, "epoch": flight.epoch},
        hint="The stream was made anew or is not one of Partita: stop, and restore from a backup.",
    )


def _too_large(size: int, limit: int) -> LimitExceededError:
    return LimitExceededError(
        "RecordTooLarge",
        f"A record has {size} bytes; this log takes {limit}.",
        facts={"bytes": size, "limit": limit},
        hint="Commit less at once, or raise max_payload of the servers.",
    )
