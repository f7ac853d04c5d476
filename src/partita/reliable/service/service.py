"""A service: state in N partitions, distributed over the processes that join.

A stable hash of a key selects the partition; N is fixed when the service is created. Once a
second, every process reads the members and the service's record, opens the partitions assigned to
it, closes others, and hands primaries over to the preferred members. The log alone decides which
replica may write, so a wrong view can only cause a delay.
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
from partita.reliable.manager.housekeeping import CHECKPOINT_BYTES
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.nats.request_reply import RequestTransport
from partita.reliable.opening import open_on_nats
from partita.reliable.replication.stream import NoAnswer, Stream
from partita.reliable.service.assignment import Placement
from partita.reliable.service.held_partition import (
    Handle,
    HeldPartition,
    OnOpened,
    PartitionContext,
)
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
from partita.retrying import RetryPolicy
from partita.ticks import Clock

logger = logging.getLogger("partita.reliable")

PARTITIONS_MAX = 256
"""Partitions of one service; each has a log of its own on NATS."""
NAME_CHARACTERS_MAX = 80
READY_SECONDS = 60.0
"""How long opening a service waits for the partitions assigned to it."""
REQUEST_SECONDS = 20.0
ATTEMPT_SECONDS = 2.0
"""After this time without an answer a request is sent again: its primary may have stopped."""
REQUEST_RETRIES = RetryPolicy(first_delay=0.05, max_delay=0.5)


class Pace(msgspec.Struct, frozen=True):
    """How often a member checks the service, and how long it waits before it acts."""

    look_seconds: float = 1.0
    member_seconds: float = 8.0
    """A member without a heartbeat for this time has left; a lease expires much earlier."""
    settle_seconds: float = 2.0
    """The members must have been the same for this time before partitions are moved."""
    patience_seconds: float = 1.0
    """How long a free lease is left to each preferred replica."""
    hand_over_seconds: float = 5.0
    """The time between two attempts to hand over the same partition."""


class Service:
    """The part of one process in a service. Open it with `partita.open_service`."""

    def __init__(
        self,
        name: str,
        membership: Membership,
        context: PartitionContext,
        clock: Clock,
        *,
        address: str = "",
        pace: Pace | None = None,
    ) -> None:
        self.name = name
        self.address = address or membership.id
        """The address of this member in the errors of other members."""
        self._membership = membership
        self._context = context
        self._clock = clock
        self._pace = pace or Pace()
        self._holdings: dict[int, HeldPartition] = {}
        self._changing: dict[int, asyncio.Task[None]] = {}
        self._handed_over: dict[int, float] = {}
        self._watching: asyncio.Task[None] | None = None
        self._has_checked = asyncio.Event()
        self._settled: tuple[tuple[str, ...], float] = ((), 0.0)
        self._is_closed = False

    # --- public ---------------------------------------------------------------------------

    @property
    def member_id(self) -> str:
        return self._membership.id

    @property
    def partitions(self) -> int:
        return self._membership.record.partitions

    def partition_of(self, key: Key) -> int:
        """Return the partition of a key, which never changes."""
        return partition_of(key, self.partitions)

    def states(self) -> dict[int, StateManager]:
        """Return the states that this process holds, by partition, including secondaries."""
        held = sorted(self._holdings.items())
        return {number: holding.state for number, holding in held if holding.state is not None}

    def state_for(self, key: Key) -> StateManager:
        """Return the state of a key's partition if its primary is in this process.

        Otherwise NotPrimaryError names its address; `request` sends work there.
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
        """Send a request to the primary of a key's partition and return its answer.

        While there is no primary or no answer, it is sent again until `timeout`, so that a
        request may arrive more than once. All attempts have the same id, `idempotency_key` or a
        random one; `state.run(..., idempotency_key=request.id)` does the work exactly once.
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
            delay = REQUEST_RETRIES.delay(failures, self._clock)
            if self._clock.monotonic() + delay >= deadline:
                raise _unavailable(self.name, partition, timeout, (failures, answer))
            await asyncio.sleep(delay)
            self._check_open()

    async def _ask(self, partition: int, raw: bytes, deadline: float) -> bytes | str:
        """Send the request once; return the answer, or the reason for a retry as text."""
        left = max(deadline - self._clock.monotonic(), 0.01)
        try:
            received = await self._context.post.ask(
                self._context.subject(partition), raw, timeout=min(left, ATTEMPT_SECONDS)
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
                f"The service {self.name!r} was closed in this process.",
                hint="Open it again with partita.open_service(...).",
            )

    # --- life cycle -----------------------------------------------------------------------

    async def join(self, timeout: float = READY_SECONDS) -> None:
        """Become a member, and return when the partitions assigned to this process serve."""
        self._watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            async with asyncio.timeout(timeout):
                while self.member_id not in self._membership.record.members:
                    self._has_checked.clear()
                    await self._has_checked.wait()
                for holding in list(self._holdings.values()):
                    await holding.ready()
        except TimeoutError:
            failures = {p: str(holding.failure) for p, holding in self._holdings.items()}
            raise UnavailableError(
                "ServiceUnavailable",
                f"The partitions of this process were not open within {timeout:.3g} s.",
                facts={"service": self.name, "failures": failures},
                hint="Check the NATS nodes: a majority must run.",
            ) from None

    async def close(self) -> None:
        """Hand over all partitions and leave; other members take over within seconds."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        await self._membership.leave()
        # Wait for them: cancelling one would leave a replica partly closed.
        await asyncio.gather(*self._changing.values(), return_exceptions=True)
        closing = [holding.close() for holding in self._holdings.values()]
        await asyncio.gather(*closing, return_exceptions=True)

    # --- changes of the members -----------------------------------------------------------

    async def _watch(self) -> None:
        while True:
            try:
                await self._check_members()
            except NoAnswer as error:
                logger.debug("service %s: %s", self.name, error)
            except Exception:
                logger.exception("checking service %s failed and will be retried", self.name)
            await asyncio.sleep(self._pace.look_seconds)

    async def _check_members(self) -> None:
        status = {p: holding.status() for p, holding in sorted(self._holdings.items())}
        held = {p: one for p, one in status.items() if one is not None}
        await self._membership.beat(Member(self.address, held))
        await self._membership.read_members()
        await self._membership.refresh()
        if self._should_share_out():
            await self._membership.share_out()
        self._follow(self._placement())
        self._has_checked.set()

    def _placement(self) -> Placement:
        return self._membership.record.placement

    def _own(self, placement: Placement) -> list[int]:
        return [p for p, group in enumerate(placement) if self.member_id in group]

    def _should_share_out(self) -> bool:
        """Return whether the live members have differed from the record for a while."""
        live = tuple(self._membership.members)
        now = self._clock.monotonic()
        if live != self._settled[0]:
            self._settled = live, now
        recorded = self._membership.record.members
        if self.member_id not in live or live == recorded:
            return False
        is_settled = now - self._settled[1] >= self._pace.settle_seconds
        # No recorded member is live: waiting would not avoid a move.
        return is_settled or not set(live) & set(recorded)

    def _follow(self, placement: Placement) -> None:
        """Open the partitions of this process, close others, and hand primaries over."""
        for partition in self._own(placement):
            if partition not in self._holdings:
                patience = self._patience(placement[partition])
                self._holdings[partition] = HeldPartition(
                    partition, self._context, patience=patience
                )
        for partition, holding in sorted(self._holdings.items()):
            group = placement[partition]
            holding.set_patience(self._patience(group))
            holding.note_sequence()
            if partition in self._changing:
                continue
            if holding.is_primary:
                self._consider_hand_over(partition, group)
            elif self.member_id not in group and self._may_close(holding, group):
                self._begin(partition, self._close_partition(partition))

    def _patience(self, group: Sequence[str]) -> float:
        """Return how long to leave a free lease to the live members before this one."""
        live = [m for m in group if m in self._membership.members or m == self.member_id]
        place = live.index(self.member_id) if self.member_id in live else len(live)
        return place * self._pace.patience_seconds

    def _consider_hand_over(self, partition: int, group: Sequence[str]) -> None:
        """Hand over to the preferred primary if it has caught up."""
        now = self._clock.monotonic()
        preferred = self._membership.members.get(group[0])
        is_recent = now - self._handed_over.get(partition, now - 1e9) < self._pace.hand_over_seconds
        is_settled = now - self._settled[1] >= self._pace.settle_seconds
        if group[0] == self.member_id or preferred is None or is_recent or not is_settled:
            return
        if self._holdings[partition].is_reached_by(preferred.holds.get(partition)):
            self._handed_over[partition] = now
            self._begin(partition, self._holdings[partition].hand_over())

    def _may_close(self, holding: HeldPartition, group: Sequence[str]) -> bool:
        """Return whether all live members that should hold the partition do so."""
        live = [self._membership.members[m] for m in group if m in self._membership.members]
        if holding.state is None:
            return bool(live)
        return bool(live) and all(
            holding.is_reached_by(member.holds.get(holding.partition)) for member in live
        )

    async def _close_partition(self, partition: int) -> None:
        await self._holdings[partition].close()
        del self._holdings[partition]

    def _begin(self, partition: int, change: Coroutine[None, None, None]) -> None:
        """Run a change of a partition in a task, one at a time per partition."""

        async def done() -> None:
            try:
                await change
            except Exception:
                logger.exception("a change of partition %d of %s failed", partition, self.name)
            finally:
                del self._changing[partition]

        self._changing[partition] = asyncio.get_running_loop().create_task(done())


@contextlib.asynccontextmanager
async def open_service(  # noqa: PLR0913 - by keyword
    where: str | Sequence[str],
    name: str,
    *,
    partitions: int | None = None,
    replicas: int = 3,
    folder: str | os.PathLike[str] | None = None,
    opened: OnOpened | None = None,
    handle: Handle | None = None,
    holds: bool = True,
    address: str = "",
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    monitor: Sequence[str] | None = None,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> AsyncIterator[Service]:
    """Join a service with `partitions` states on NATS, and create it if it is new.

    The numbers of partitions and replicas are fixed when the service is created. Each partition
    is held by `replicas` of the processes that have joined (by all of them if there are fewer),
    and its log by as many nodes. `folder` belongs to this process; each partition has a folder
    in it.

    `opened(state)` is awaited for every state that this process holds before it serves: open the
    collections there and do nothing else, since it is called again if they do not exist yet.
    `handle(state, request)` answers the requests of `service.request` on the primary of the key.
    A process with `holds=False` only sends requests and need not know the number of partitions.
    """
    clock = clock or SystemClock()
    _check_arguments(name, partitions, holds=holds)
    async with contextlib.AsyncExitStack() as stack:
        control, post, urls = await _connect(
            stack,
            where,
            name,
            (partitions, replicas),
            (monitor, connect_options, clock),
            is_member=holds,
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

        context = PartitionContext(
            open_state, post, lambda p: f"partita.svc.{name}.{p}", opened, handle
        )
        service = Service(name, membership, context, clock, address=service_address)
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
    *,
    is_member: bool,
) -> tuple[Stream, RequestTransport, list[str]]:
    """Return the service's stream, the transport of requests, and the server addresses."""
    try:
        from partita.reliable.nats.jetstream import JetStream  # noqa: PLC0415 - an extra
        from partita.reliable.nats.link import server_urls  # noqa: PLC0415
        from partita.reliable.nats.request_transport import NatsRequestTransport  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            "ExtraMissing",
            "A service needs the NATS client.",
            hint='Install it with pip install "./partita[replicated]".',
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
            raise fixed(name, counts, ("its own number", was)) from error
        raise
    stack.push_async_callback(control.close)
    return control, NatsRequestTransport(control.link, is_member=is_member), urls


def _check_arguments(name: object, partitions: object, *, holds: bool) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise UsageError(
            "InvalidPartitionName",
            f"The name of a service must be text of 1 to {NAME_CHARACTERS_MAX} characters.",
            hint="Choose a name of letters, digits, _ and -.",
        )
    if partitions is None and not holds:
        return
    is_count = isinstance(partitions, int) and not isinstance(partitions, bool)
    if not is_count or not 1 <= partitions <= PARTITIONS_MAX:  # type: ignore[operator]
        raise UsageError(
            "InvalidPartitionCount",
            f"A service must have 1 to {PARTITIONS_MAX} partitions, not {partitions!r}.",
            hint="Choose more than you will have processes: the number cannot be changed later.",
        )


def _elsewhere(partition: int, address: str) -> NotPrimaryError:
    error = NotPrimaryError(
        "NotPrimary",
        f"The primary of partition {partition} is not in this process."
        + (f" It is {address}." if address else ""),
        facts={"partition": partition, "primary": address},
        hint="Send the work to it with service.request(key, payload).",
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
        hint="Send it again with the same idempotency_key: the work may have been done. Check that"
        " processes of the service run, and a majority of the NATS nodes.",
    )
