"""A simulated replicated stream: SimCluster is the actual state, SimStream one client's view.

The cluster behaves like JetStream: a message id of the last ten minutes is answered before the
expected sequence is checked, and both are checked when a request arrives, however late that is.
Faults of the network are drawn from the seed with the rates of `Faults`.
"""

import asyncio
import bisect
import contextvars
import enum
import functools
import random  # noqa: TID251 - seeded: the same seed must give the same faults
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import msgspec

from partita.errors import StoreFullError
from partita.reliable.replication.stream import NoAnswer, PublishRefused, Register
from partita.reliable.storage.log import log_truncated
from partita.reliable.values.limits import RECORD_BYTES_MAX
from partita.simulation.loop import SimLoop

T = TypeVar("T")

DEDUP_SECONDS = 600.0
STALE_READ_SECONDS_MAX = 6.0
"""How long a node that is cut off continues to answer reads."""


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """The rates of faults. Chances are per request; seconds are virtual time."""

    delay_seconds_min: float = 0.0
    delay_seconds_max: float = 0.005
    """The latency of an ordinary request or answer: the first, and up to the second more."""
    slow_chance: float = 0.03
    slow_seconds_max: float = 20.0
    """The delay of a slow request, which may arrive after its sender gave up."""
    request_lost_chance: float = 0.03
    answer_lost_chance: float = 0.05
    twice_chance: float = 0.03
    twice_seconds_max: float = 700.0
    """When a duplicate of a request arrives, perhaps after the deduplication window."""
    stale_read_chance: float = 0.1
    """The chance that a read is answered by a lagging node."""
    lag_seconds_max: float = 0.3
    """The lag of such a node, and of each delivery to a consumer."""
    trouble_seconds: float = 10.0
    """Mean time between faults: a lost leader, a client cut off, a pause. 0: none."""
    leaderless_seconds_max: float = 7.0
    cut_seconds_max: float = 20.0
    pause_seconds_max: float = 30.0


NO_FAULTS = Faults(
    delay_seconds_max=0.0,
    slow_chance=0.0,
    request_lost_chance=0.0,
    answer_lost_chance=0.0,
    twice_chance=0.0,
    stale_read_chance=0.0,
    lag_seconds_max=0.0,
    trouble_seconds=0.0,
)


class Cut(enum.Enum):
    """What is not delivered between a client and the quorum."""

    NOTHING = "nothing"
    BOTH = "both"
    REQUESTS = "requests"
    """Deliveries and answers still arrive."""
    ANSWERS = "answers"
    """Requests take effect, but no answer arrives."""
    NODE = "node"
    """The client and its node are cut off together: reads return old data."""


class Stored(msgspec.Struct, frozen=True):
    """One stored message."""

    raw: bytes
    message_id: str
    stored_at: float


class _History:
    """The values of one register, each with the time of its change."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._values: list[Register | None] = []

    def add(self, now: float, value: Register | None) -> None:
        self._times.append(now)
        self._values.append(value)

    def at(self, moment: float, live_seconds: float) -> Register | None:
        place = bisect.bisect_right(self._times, moment) - 1
        if place < 0 or moment - self._times[place] >= live_seconds:
            return None
        return self._values[place]


class SimCluster:
    """The actual state of one stream, its register and its files, without delays.

    `messages[n - 1]` is the message of sequence n, also if it was purged: old views show it.
    """

    def __init__(
        self,
        *,
        seed: int,
        faults: Faults = NO_FAULTS,
        register_seconds: float = 3.0,
        message_bytes_max: int = RECORD_BYTES_MAX,
    ) -> None:
        self.faults = faults
        self.random = random.Random(f"{seed}/cluster")  # noqa: S311 - reproducible on purpose
        self.messages: list[Stored] = []
        self.files: dict[str, bytes] = {}
        self.first = 1
        self.sealed_epoch: int | None = None
        self.is_full = False
        self.message_bytes_max = message_bytes_max
        self.leaderless_until = 0.0
        self.clients: list[SimStream] = []
        self._register_seconds = register_seconds
        self._revision = 0
        self._registers: dict[str, _History] = {}
        self._stored_times: list[float] = []
        self._firsts: list[tuple[float, int]] = [(float("-inf"), 1)]
        self._dedup: dict[str, int] = {}
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def last(self) -> int:
        return len(self.messages)

    def connect(self, name: str) -> "SimStream":
        """Return the connection of one client; `name` is also the node that a pause stops."""
        client = SimStream(self, name)
        self.clients.append(client)
        return client

    def heal(self) -> None:
        """End all faults. Delayed requests still arrive at their time."""
        self.faults = NO_FAULTS
        self.leaderless_until = 0.0
        for client in self.clients:
            client.join()
        self.wake()

    async def trouble(self) -> None:
        """Cause faults from time to time until healed; run it as a task of its own."""
        while self.faults.trouble_seconds:
            await asyncio.sleep(self.random.expovariate(1 / self.faults.trouble_seconds))
            self._make_trouble()

    def store(self, raw: bytes, *, epoch: int, expected: int, message_id: str) -> int:
        """Store a message that arrives now, or refuse it."""
        if self.sealed_epoch is not None and epoch != self.sealed_epoch:
            raise NoAnswer
        now = asyncio.get_running_loop().time()
        known = self._dedup.get(message_id)
        if known is not None and now - self.messages[known - 1].stored_at < DEDUP_SECONDS:
            return known
        self.check_fence(expected)
        if self.is_full:
            raise StoreFullError("StoreFull", "The stream is full.")
        self.messages.append(Stored(raw, message_id, now))
        self._stored_times.append(now)
        self._dedup[message_id] = self.last
        _trace(f"stored {self.last} {message_id}")
        self.wake()
        return self.last

    def check_fence(self, expected: int) -> None:
        """Raise if the expected sequence is not the last one."""
        if expected != self.last:
            raise PublishRefused

    def bounds_at(self, moment: float) -> tuple[int, int]:
        """Return the first and last sequence as they were at a moment."""
        last = bisect.bisect_right(self._stored_times, moment)
        first = self._firsts[bisect.bisect_right(self._firsts, moment, key=_moment_of) - 1][1]
        return first, last

    def message_at(self, moment: float, sequence: int) -> bytes | None:
        first, last = self.bounds_at(moment)
        return self.messages[sequence - 1].raw if first <= sequence <= last else None

    def purge(self, below: int) -> None:
        self.first = max(self.first, min(below, self.last + 1))
        self._firsts.append((asyncio.get_running_loop().time(), self.first))

    def seal(self, epoch: int) -> None:
        self.sealed_epoch = epoch
        _trace(f"sealed {epoch}")

    def register_at(self, moment: float, key: str) -> Register | None:
        history = self._registers.get(key)
        return history.at(moment, self._register_seconds) if history is not None else None

    def registers_at(self, moment: float, prefix: str) -> dict[str, Register]:
        found = {key: self.register_at(moment, key) for key in sorted(self._registers)}
        return {
            key: register
            for key, register in found.items()
            if register is not None and key.startswith(prefix)
        }

    def write_register(self, key: str, value: bytes, revision: int) -> int | None:
        now = asyncio.get_running_loop().time()
        before = self.register_at(now, key)
        if (before.revision if before is not None else 0) != revision:
            return None
        self._revision += 1
        written = Register(value, self._revision)
        self._registers.setdefault(key, _History()).add(now, written)
        return self._revision

    def remove_register(self, key: str, revision: int) -> None:
        now = asyncio.get_running_loop().time()
        before = self.register_at(now, key)
        if before is not None and before.revision == revision:
            self._registers[key].add(now, None)

    async def changed(self, seconds: float) -> None:
        """Return after a message, `heal` or `close`, or after a time."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        self._waiting.append(waiting)
        timer = loop.call_later(seconds, _finish, waiting)
        try:
            await waiting
        finally:
            timer.cancel()

    def wake(self) -> None:
        """End all waits for changes."""
        for waiting in self._waiting:
            _finish(waiting)
        self._waiting.clear()

    def _make_trouble(self) -> None:
        now = asyncio.get_running_loop().time()
        kind = self.random.choice(["leader", "cut", "cut", "pause"])
        if kind == "leader" or not self.clients:
            self.leaderless_until = now + self._draw(self.faults.leaderless_seconds_max)
            _trace("leader lost")
            return
        client = self.random.choice(self.clients)
        if kind == "cut":
            how = self.random.choice([Cut.BOTH, Cut.REQUESTS, Cut.ANSWERS, Cut.NODE])
            client.cut_off(how, self._draw(self.faults.cut_seconds_max))
            return
        loop = asyncio.get_running_loop()
        if isinstance(loop, SimLoop):
            loop.pause(client.name, self._draw(self.faults.pause_seconds_max))
            _trace(f"paused {client.name}")

    def _draw(self, most: float) -> float:
        return self.random.uniform(0.0, most)


class SimStream:
    """The connection of one client; implements Stream."""

    def __init__(self, cluster: SimCluster, name: str) -> None:
        self.name = name
        self.message_bytes_max = cluster.message_bytes_max
        self._cluster = cluster
        self._is_closed = False
        self._cut = Cut.NOTHING
        self._cut_since = 0.0
        self._cut_until = 0.0

    def cut_off(self, how: Cut, seconds: float) -> None:
        """Cut the connection for a while."""
        self._cut = how
        self._cut_since = asyncio.get_running_loop().time()
        self._cut_until = self._cut_since + seconds
        _trace(f"cut {self.name} {how.value}")

    def join(self) -> None:
        """End the cut."""
        self._cut_until = 0.0

    async def publish(
        self, raw: bytes, *, epoch: int, expected: int, message_id: str, timeout: float
    ) -> int:
        def land() -> int:
            return self._cluster.store(raw, epoch=epoch, expected=expected, message_id=message_id)

        return await self._write(land, timeout)

    async def get(self, sequence: int, *, timeout: float) -> bytes | None:
        return await self._read(lambda when: self._cluster.message_at(when, sequence), timeout)

    async def bounds(self, *, timeout: float) -> tuple[int, int]:
        return await self._read(self._cluster.bounds_at, timeout)

    async def messages(self, start: int) -> AsyncIterator[tuple[int, bytes]]:
        sequence = start
        while not self._is_closed:
            if sequence > self._cluster.last or self._is_deaf():
                await self._cluster.changed(self._patience())
                continue
            _, newest = self._cluster.bounds_at(asyncio.get_running_loop().time())
            if self._cluster.faults.lag_seconds_max:
                await asyncio.sleep(self._draw(self._cluster.faults.lag_seconds_max))
            while sequence <= newest and not self._is_deaf():
                if sequence < self._cluster.first:
                    raise log_truncated(sequence, self._cluster.first)
                yield sequence, self._cluster.messages[sequence - 1].raw
                sequence += 1

    async def seal(self, epoch: int, *, timeout: float) -> None:
        """Read, then write: not atomic, so that a seal may return to a lower epoch."""
        sealed = await self._read(lambda _: self._cluster.sealed_epoch, timeout)
        if sealed is not None and sealed > epoch:
            raise PublishRefused
        await self._write(lambda: self._cluster.seal(epoch), timeout)

    async def purge(self, below: int, *, timeout: float) -> None:
        await self._write(lambda: self._cluster.purge(below), timeout)

    async def read_register(self, key: str, *, timeout: float) -> Register | None:
        return await self._read(lambda when: self._cluster.register_at(when, key), timeout)

    async def list_registers(self, prefix: str, *, timeout: float) -> dict[str, Register]:
        return await self._read(lambda when: self._cluster.registers_at(when, prefix), timeout)

    async def write_register(
        self, key: str, value: bytes, *, revision: int, timeout: float
    ) -> int | None:
        return await self._write(
            lambda: self._cluster.write_register(key, value, revision), timeout
        )

    async def remove_register(self, key: str, *, revision: int, timeout: float) -> None:
        await self._write(lambda: self._cluster.remove_register(key, revision), timeout)

    async def put_file(self, name: str, content: bytes, *, timeout: float) -> None:
        await self._write(lambda: self._cluster.files.__setitem__(name, content), timeout)

    async def get_file(self, name: str, *, timeout: float) -> bytes | None:
        return await self._read(lambda _: self._cluster.files.get(name), timeout)

    async def close(self) -> None:
        self._is_closed = True
        self._cluster.wake()

    async def _write(self, land: Callable[[], T], timeout: float) -> T:
        return await self._ask(lambda: self._landed(land), timeout, may_repeat=True)

    async def _read(self, look: Callable[[float], T], timeout: float) -> T:
        return await self._ask(lambda: look(self._moment_seen()), timeout, may_repeat=False)

    async def _ask(self, land: Callable[[], T], timeout: float, *, may_repeat: bool) -> T:
        """Send a request and wait for the answer or the time-out."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        if self._is_closed:
            raise NoAnswer
        for delay in self._ways_there(may_repeat=may_repeat):
            # An empty context: a request in flight does not stop with its sender.
            loop.call_later(delay, self._land, land, answer, context=contextvars.Context())
        timer = loop.call_later(timeout, _fail, answer, NoAnswer())
        try:
            return await answer
        finally:
            timer.cancel()

    def _ways_there(self, *, may_repeat: bool) -> list[float]:
        """Return the delays after which the request arrives: never, once or twice."""
        faults = self._cluster.faults
        if self._is_cut(Cut.BOTH, Cut.REQUESTS) or self._chance(faults.request_lost_chance):
            return []
        if self._chance(faults.slow_chance):
            return [self._draw(faults.slow_seconds_max)]
        ways = [faults.delay_seconds_min + self._draw(faults.delay_seconds_max)]
        if may_repeat and self._chance(faults.twice_chance):
            ways.append(self._draw(faults.twice_seconds_max))
        return ways

    def _land(self, land: Callable[[], T], answer: "asyncio.Future[T]") -> None:
        """Execute the request at the cluster and send the answer, unless it is lost."""
        loop = asyncio.get_running_loop()
        faults = self._cluster.faults
        if loop.time() < self._cluster.leaderless_until:
            return
        try:
            outcome = land()
        except NoAnswer:
            return
        except (PublishRefused, StoreFullError) as refused:
            settle = functools.partial(_fail, answer, refused)
        else:
            settle = functools.partial(_give, answer, outcome)
        if not self._chance(faults.answer_lost_chance):
            delay = faults.delay_seconds_min + self._draw(faults.delay_seconds_max)
            loop.call_later(delay, self._arrive, settle)

    def _arrive(self, settle: Callable[[], None]) -> None:
        if not self._is_closed and not self._is_cut(Cut.BOTH, Cut.ANSWERS):
            settle()

    def _landed(self, land: Callable[[], T]) -> T:
        if self._is_cut(Cut.NODE):
            raise NoAnswer
        return land()

    def _moment_seen(self) -> float:
        """Return the time of the state that the answering node has: now, or earlier."""
        now = asyncio.get_running_loop().time()
        if self._is_cut(Cut.NODE):
            if now - self._cut_since > STALE_READ_SECONDS_MAX:
                raise NoAnswer
            return self._cut_since
        if self._chance(self._cluster.faults.stale_read_chance):
            return now - self._draw(self._cluster.faults.lag_seconds_max)
        return now

    def _is_cut(self, *kinds: Cut) -> bool:
        return self._cut in kinds and asyncio.get_running_loop().time() < self._cut_until

    def _is_deaf(self) -> bool:
        now = asyncio.get_running_loop().time()
        is_cut = self._is_cut(Cut.BOTH, Cut.ANSWERS, Cut.NODE)
        return is_cut or self._is_closed or now < self._cluster.leaderless_until

    def _patience(self) -> float:
        """Return when to check again without a wake-up: the end of a cut causes none."""
        return 0.25 if self._is_deaf() else 3600.0

    def _chance(self, share: float) -> bool:
        return share > 0.0 and self._cluster.random.random() < share

    def _draw(self, most: float) -> float:
        return self._cluster.random.uniform(0.0, most) if most else 0.0


def _give(answer: "asyncio.Future[T]", outcome: T) -> None:
    if not answer.done():
        answer.set_result(outcome)


def _fail(answer: "asyncio.Future[T]", error: Exception) -> None:
    if not answer.done():
        answer.set_exception(error)


def _finish(waiting: "asyncio.Future[None]") -> None:
    if not waiting.done():
        waiting.set_result(None)


def _moment_of(entry: tuple[float, int]) -> float:
    return entry[0]


def _trace(text: str) -> None:
    loop = asyncio.get_running_loop()
    if isinstance(loop, SimLoop):
        loop.trace(text)
