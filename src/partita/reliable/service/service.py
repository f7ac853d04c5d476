"""A service: state in N partitions, shared out among the processes that join.

A stable hash of a key chooses the partition; N is fixed when the service is created. Every
process looks round once a second, opens what the service's record gives it, lets go of what it
does not, and hands a primary over to the member that should have it. None of that decides who
may write: that is the log's affair, so the worst that a wrong view can cost is time.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from partita.clock import SystemClock
from partita.errors import (
    ConfigurationError,
    NotPrimaryError,
    StateClosedError,
    UnavailableError,
    UsageError,
)
from partita.keys import Key
from partita.reliable.collections.retry import Backoff
from partita.reliable.manager.housekeeping import CHECKPOINT_BYTES
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.nats.request_reply import Post
from partita.reliable.opening import open_on_nats
from partita.reliable.replication.stream import NoAnswer, Stream
from partita.reliable.service.assignment import Placement
from partita.reliable.service.held_partition import Duties, Handle, Holding, Opened
from partita.reliable.service.membership import Member, Membership, fixed
from partita.reliable.service.requests import (
    Envelope,
    checked_key,
    checked_payload,
    decode_answer,
    encode,
    error_of,
    partition_of,
)
from partita.reliable.values.arguments import checked_idempotency_key, checked_timeout
from partita.ticks import Clock

logger = logging.getLogger("partita.reliable")

PARTITIONS_MAX = 256
"""In one service: each is a log of its own on NATS."""
NAME_CHARACTERS_MAX = 80
READY_SECONDS = 60.0
"""How long opening a service waits for the partitions that it is to hold."""
REQUEST_SECONDS = 20.0
ATTEMPT_SECONDS = 2.0
"""After so long without an answer a request is sent again: its primary may have died."""
REQUEST_BACKOFF = Backoff(first_delay=0.05, max_delay=0.5)


class Pace(msgspec.Struct, frozen=True):
    """How often a member looks round, and how long it waits before it acts on what it sees."""

    look_seconds: float = 1.0
    member_seconds: float = 8.0
    """A member that was not heard of for so long is gone; a lease ends much earlier."""
    settle_seconds: float = 2.0
    """The members must have stayed the same for so long before anything is moved."""
    patience_seconds: float = 1.0
    """How long a free lease is left to each replica that is preferred."""
    hand_over_seconds: float = 5.0
    """Between two attempts to hand over the same partition."""


class Service:
    """One process's part in a service. Open it with `partita.open_service`."""

    def __init__(
        self,
        name: str,
        membership: Membership,
        duties: Duties,
        clock: Clock,
        *,
        address: str = "",
        pace: Pace | None = None,
    ) -> None:
        self.name = name
        self.address = address or membership.id
        """What other members tell about this one when it is primary."""
        self._membership = membership
        self._duties = duties
        self._clock = clock
        self._pace = pace or Pace()
        self._holdings: dict[int, Holding] = {}
        self._chores: dict[int, asyncio.Task[None]] = {}
        self._handed_over: dict[int, float] = {}
        self._looking: asyncio.Task[None] | None = None
        self._has_looked = asyncio.Event()
        self._settled: tuple[tuple[str, ...], float] = ((), 0.0)
        self._is_closed = False

    # --- what users ask -------------------------------------------------------------------

    @property
    def member_id(self) -> str:
        return self._membership.id

    @property
    def partitions(self) -> int:
        return self._membership.record.partitions

    def partition_of(self, key: Key) -> int:
        """Return the number of the partition that a key belongs to; it never changes."""
        return partition_of(key, self.partitions)

    def states(self) -> dict[int, StateManager]:
        """Return the states that this process holds, by partition: secondaries read snapshots."""
        held = sorted(self._holdings.items())
        return {number: holding.state for number, holding in held if holding.state is not None}

    def state_for(self, key: Key) -> StateManager:
        """Return the state of a key's partition if its primary is here.

        Otherwise NotPrimaryError says where it is; `request` goes there by itself.
        """
        self._check_open()
        partition = self.partition_of(key)
        holding = self._holdings.get(partition)
        if holding is not None and holding.is_primary:
            assert holding.state is not None
            return holding.state
        raise _elsewhere(partition, self._membership.primary_address(partition))

    async def request(
        self,
        key: Key,
        payload: bytes = b"",
        *,
        timeout: float = REQUEST_SECONDS,
        idempotency_key: str | None = None,
    ) -> bytes:
        """Send a request to the primary of a key's partition and return what it answers.

        While there is no primary, or its answer does not come, it is sent again until `timeout`
        is over: a request arrives at least once. All attempts carry one id, `idempotency_key` or
        a random one; with `state.run(..., idempotency_key=request.id)` the work is done once.
        """
        self._check_open()
        checked_timeout(timeout)
        if idempotency_key is not None:
            checked_idempotency_key(idempotency_key)
        request_id = idempotency_key or self._clock.new_id()
        raw = encode(Envelope(request_id, checked_key(key), checked_payload(payload)))
        partition = self.partition_of(key)
        deadline = self._clock.monotonic() + timeout
        failures = 0
        while True:
            answer = await self._ask(partition, raw, deadline)
            if isinstance(answer, bytes):
                return answer
            failures += 1
            delay = REQUEST_BACKOFF.delay(failures, self._clock)
            if self._clock.monotonic() + delay >= deadline:
                raise _unavailable(self.name, partition, timeout, (failures, answer))
            await asyncio.sleep(delay)
            self._check_open()

    async def _ask(self, partition: int, raw: bytes, deadline: float) -> bytes | str:
        """Try once; return the answer, or why to try again."""
        left = max(deadline - self._clock.monotonic(), 0.01)
        try:
            received = await self._duties.post.ask(
                self._duties.subject(partition), raw, timeout=min(left, ATTEMPT_SECONDS)
            )
        except NoAnswer as error:
            return str(error)
        answer = decode_answer(received)
        if answer.failure is None:
            return answer.payload
        if answer.failure.is_tried_again:
            return answer.failure.code
        raise error_of(answer.failure)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StateClosedError(
                "StateClosed",
                f"The service {self.name!r} was closed here.",
                hint="Open it again: partita.open_service(...).",
            )

    # --- life -----------------------------------------------------------------------------

    async def join(self, timeout: float = READY_SECONDS) -> None:
        """Become a member, and return when the partitions that fall to this process serve."""
        self._looking = asyncio.get_running_loop().create_task(self._look())
        try:
            async with asyncio.timeout(timeout):
                while self.member_id not in self._membership.record.members:
                    self._has_looked.clear()
                    await self._has_looked.wait()
                for holding in list(self._holdings.values()):
                    await holding.ready()
        except TimeoutError:
            failures = {p: str(holding.failure) for p, holding in self._holdings.items()}
            raise UnavailableError(
                "ServiceUnavailable",
                f"The partitions of this process were not open within {timeout:.3g} s.",
                facts={"service": self.name, "failures": failures},
                hint="Look at the nodes of NATS: a majority of them must run.",
            ) from None

    async def close(self) -> None:
        """Hand everything over and leave: others take over within a second or two."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self._membership.leave()
        # They end by themselves; to cut one short would leave a replica half closed.
        await asyncio.gather(*self._chores.values(), return_exceptions=True)
        closing = [holding.close() for holding in self._holdings.values()]
        await asyncio.gather(*closing, return_exceptions=True)

    # --- looking round --------------------------------------------------------------------

    async def _look(self) -> None:
        while True:
            try:
                await self._look_once()
            except NoAnswer as error:
                logger.debug("service %s: %s", self.name, error)
            except Exception:
                logger.exception("service %s will look round again", self.name)
            await asyncio.sleep(self._pace.look_seconds)

    async def _look_once(self) -> None:
        said = {p: holding.said() for p, holding in sorted(self._holdings.items())}
        held = {p: one for p, one in said.items() if one is not None}
        await self._membership.beat(Member(self.address, held))
        await self._membership.look_round()
        await self._membership.refresh()
        if self._should_share_out():
            await self._membership.share_out()
        self._follow(self._placement())
        self._has_looked.set()

    def _placement(self) -> Placement:
        return self._membership.record.placement

    def _own(self, placement: Placement) -> list[int]:
        return [p for p, group in enumerate(placement) if self.member_id in group]

    def _should_share_out(self) -> bool:
        """Whether the members are others than those of the record, and have been for a while."""
        live = tuple(self._membership.members)
        now = self._clock.monotonic()
        if live != self._settled[0]:
            self._settled = live, now
        recorded = self._membership.record.members
        if self.member_id not in live or live == recorded:
            return False
        is_settled = now - self._settled[1] >= self._pace.settle_seconds
        # Nobody of the record lives: there is nothing that waiting could spare.
        return is_settled or not set(live) & set(recorded)

    def _follow(self, placement: Placement) -> None:
        """Hold what the placement gives to this process, and bring it nearer to the rest."""
        for partition in self._own(placement):
            if partition not in self._holdings:
                patience = self._patience(placement[partition])
                self._holdings[partition] = Holding(partition, self._duties, patience=patience)
        for partition, holding in sorted(self._holdings.items()):
            group = placement[partition]
            holding.set_patience(self._patience(group))
            holding.note_sequence()
            if partition in self._chores:
                continue
            if holding.is_primary:
                self._consider_hand_over(partition, group)
            elif self.member_id not in group and self._may_let_go(holding, group):
                self._begin(partition, self._let_go(partition))

    def _patience(self, group: Sequence[str]) -> float:
        """Wait for every live member that comes before this one."""
        live = [m for m in group if m in self._membership.members or m == self.member_id]
        place = live.index(self.member_id) if self.member_id in live else len(live)
        return place * self._pace.patience_seconds

    def _consider_hand_over(self, partition: int, group: Sequence[str]) -> None:
        """Hand over to the member that should be primary, once it has caught up."""
        now = self._clock.monotonic()
        preferred = self._membership.members.get(group[0])
        is_recent = now - self._handed_over.get(partition, now - 1e9) < self._pace.hand_over_seconds
        is_settled = now - self._settled[1] >= self._pace.settle_seconds
        if group[0] == self.member_id or preferred is None or is_recent or not is_settled:
            return
        if self._holdings[partition].is_reached_by(preferred.holds.get(partition)):
            self._handed_over[partition] = now
            self._begin(partition, self._holdings[partition].hand_over())

    def _may_let_go(self, holding: Holding, group: Sequence[str]) -> bool:
        """Whether all live members that should hold it do, so that no copy is missed."""
        live = [self._membership.members[m] for m in group if m in self._membership.members]
        if holding.state is None:
            return bool(live)
        return bool(live) and all(
            holding.is_reached_by(member.holds.get(holding.partition)) for member in live
        )

    async def _let_go(self, partition: int) -> None:
        await self._holdings[partition].close()
        del self._holdings[partition]

    def _begin(self, partition: int, chore: Coroutine[None, None, None]) -> None:
        """Do something for a partition beside the looking round, one thing at a time."""

        async def done() -> None:
            try:
                await chore
            except Exception:
                logger.exception("partition %d of %s is looked after again", partition, self.name)
            finally:
                del self._chores[partition]

        self._chores[partition] = asyncio.get_running_loop().create_task(done())


@contextlib.asynccontextmanager
async def open_service(  # noqa: PLR0913 - by keyword
    where: str | Sequence[str],
    name: str,
    *,
    partitions: int | None = None,
    replicas: int = 3,
    folder: str | os.PathLike[str] | None = None,
    opened: Opened | None = None,
    handle: Handle | None = None,
    holds: bool = True,
    address: str = "",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    monitor: Sequence[str] | None = None,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Service]:
    """Join a service whose state lies in `partitions` states on NATS, and create it if it is new.

    The number of partitions and of replicas is fixed when the service is created. Each partition
    is held by `replicas` of the processes that have joined (by all while there are fewer) and its
    log by as many nodes. `folder` is this process's own; every partition has a folder in it.

    `opened(state)` is awaited for every state that this process holds, before it serves: open its
    collections there. It is called again where they are not there yet, so let it do only that.
    `handle(state, request)` answers what `service.request` asks, at the primary of the key.
    A process opened with `holds=False` only asks; it need not say how many partitions there are.
    """
    clock = clock or SystemClock()
    _check_arguments(name, partitions, holds=holds)
    async with contextlib.AsyncExitStack() as stack:
        control, post, urls = await _connect(
            stack, where, name, (partitions, replicas), (monitor, connect_options, clock)
        )
        membership = Membership(control, clock, name)
        await membership.open(partitions, replicas)
        service_address = address or membership.id
        root = None if folder is None else Path(folder)

        async def open_state(partition: int, patience: float) -> StateManager:
            own_name = f"{name}-{partition}"
            return await open_on_nats(
                urls,
                clock,
                partition=own_name,
                replicas=replicas,
                folder=None if root is None else root / own_name,
                address=service_address,
                monitor=monitor,
                connect_options=connect_options,
                checkpoint_bytes=checkpoint_bytes,
                patience=patience,
            )

        duties = Duties(open_state, post, lambda p: f"partita.svc.{name}.{p}", opened, handle)
        service = Service(name, membership, duties, clock, address=service_address)
        stack.push_async_callback(service.close)
        if holds:
            await service.join()
        yield service


async def _connect(
    stack: contextlib.AsyncExitStack,
    where: str | Sequence[str],
    name: str,
    counts: tuple[int | None, int],
    connecting: tuple[Sequence[str] | None, Mapping[str, Any] | None, Clock],
) -> tuple[Stream, Post, list[str]]:
    """Open the service's own stream and the way that requests travel; return the addresses too."""
    try:
        from partita.reliable.nats.jetstream import JetStream  # noqa: PLC0415 - an extra
        from partita.reliable.nats.link import server_urls  # noqa: PLC0415
        from partita.reliable.nats.post import NatsPost  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "ExtraMissing",
            "A service needs the NATS client.",
            hint='pip install "partita[replicated]".',
        ) from error
    monitor, connect_options, clock = connecting
    urls = server_urls(where)
    try:
        control = await JetStream.connect(
            urls,
            partition=f"{name}-service",
            replicas=counts[1],
            register_seconds=Pace().member_seconds,
            monitor=monitor,
            connect_options=connect_options,
            clock=clock,
        )
    except ConfigurationError as error:
        if error.code == "StreamDiffers" and "num_replicas" in error.facts:
            was = str(error.facts["num_replicas"]).partition(" ")[0]
            raise fixed(name, counts, ("as it was", was)) from error
        raise
    stack.push_async_callback(control.close)
    options = {"name": f"partita/{name}", **(connect_options or {})}
    post = await NatsPost.connect(urls, options, timeout=READY_SECONDS)
    stack.push_async_callback(post.close)
    return control, post, urls


def _check_arguments(name: object, partitions: object, *, holds: bool) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise UsageError(
            "InvalidPartitionName",
            f"The name of a service is a text of 1 to {NAME_CHARACTERS_MAX} characters.",
            hint="Choose a name of letters, digits, _ and -.",
        )
    if partitions is None and not holds:
        return
    is_count = isinstance(partitions, int) and not isinstance(partitions, bool)
    if not is_count or not 1 <= partitions <= PARTITIONS_MAX:  # type: ignore[operator]
        raise UsageError(
            "InvalidPartitionCount",
            f"A service has 1 to {PARTITIONS_MAX} partitions, not {partitions!r}.",
            hint="Choose more than you will have processes: the number can never be changed.",
        )


def _elsewhere(partition: int, address: str) -> NotPrimaryError:
    error = NotPrimaryError(
        "NotPrimary",
        f"The primary of partition {partition} is not in this process."
        + (f" It is {address}." if address else ""),
        facts={"partition": partition, "primary": address},
        hint="service.request(key, payload) carries the work to it.",
    )
    error.primary = address
    return error


def _unavailable(
    name: str, partition: int, timeout: float, tried: tuple[int, str]
) -> UnavailableError:
    return UnavailableError(
        "ServiceUnavailable",
        f"No primary of partition {partition} answered within {timeout:.3g} s.",
        facts={"service": name, "partition": partition, "attempts": tried[0], "last": tried[1]},
        hint="Ask again under the same idempotency_key: the work may have been done. If it stays,"
        " look whether processes of the service run, and a majority of the nodes of NATS.",
    )
