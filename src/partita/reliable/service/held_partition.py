"""One partition that this process holds: opened, served while primary, and closed.

A held partition opens its replica again when that has stopped. Requests are answered only by a
primary, and only after the application has opened its collections.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

import msgspec

from partita.errors import (
    NotPrimaryError,
    PartitaError,
    StoreBusyError,
    StoreLockedError,
    UnavailableError,
)
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.nats.request_reply import RequestSubscription, RequestTransport
from partita.reliable.replication.replica import Replica
from partita.reliable.replication.stream import NoAnswer
from partita.reliable.service.membership import Held
from partita.reliable.service.requests import (
    RemoteError,
    Request,
    RequestAnswer,
    answered,
    decode_request,
    encode,
    failed,
)

logger = logging.getLogger("partita.reliable")

OnOpened = Callable[[StateManager], Awaitable[None]]
Handle = Callable[[StateManager, Request], Awaitable[bytes]]

REQUESTS_AT_ONCE_MAX = 1024
"""Concurrent requests in one partition; further ones are refused as busy."""
DRAIN_SECONDS = 2.0
"""How long running requests may take before the primary hands over."""
AGAIN_SECONDS = 1.0
PREPARE_AGAIN_SECONDS = 0.2
LOOK_SECONDS = 0.5


class PartitionContext(msgspec.Struct, frozen=True):
    """What all held partitions of a service share."""

    open_state: Callable[[int, float], Awaitable[StateManager]]
    """Opens the replica of a partition with the seconds for which it leaves a free lease."""
    post: RequestTransport
    subject: Callable[[int], str]
    opened: OnOpened | None
    handle: Handle | None


class HeldPartition:
    """One replica of one partition in this process."""

    def __init__(self, partition: int, context: PartitionContext, *, patience: float) -> None:
        self.partition = partition
        self.failure: Exception | None = None
        """Why it is not open; None when it is."""
        self._patience = patience
        self._context = context
        self._state: StateManager | None = None
        self._replica: Replica | None = None
        self._is_ready = asyncio.Event()
        self._is_handing_over = False
        self._woken = asyncio.Event()
        self._listening: RequestSubscription | None = None
        self._running: dict[str, asyncio.Task[bytes]] = {}
        self._sequences: list[int] = []
        self._task = asyncio.get_running_loop().create_task(self._run())

    # --- used by the service --------------------------------------------------------------

    @property
    def state(self) -> StateManager | None:
        """The state, after its collections were opened."""
        return self._state if self._is_ready.is_set() else None

    @property
    def is_primary(self) -> bool:
        return self.state is not None and self.state.is_primary

    def status(self) -> Held | None:
        """Return the status for the member's heartbeat; None while it cannot serve."""
        return None if self.state is None else Held(self.state.sequence, self.state.is_primary)

    def note_sequence(self) -> None:
        """Remember the sequence, to compare it with the status of other replicas later."""
        if self._state is not None:
            self._sequences = [*self._sequences[-2:], self._state.sequence]

    def is_reached_by(self, other: Held | None) -> bool:
        """Return whether another replica has applied what this one had some heartbeats ago."""
        return other is not None and bool(self._sequences) and other.applied >= self._sequences[0]

    def set_patience(self, seconds: float) -> None:
        self._patience = seconds
        if self._replica is not None:
            self._replica.patience = seconds

    async def ready(self) -> None:
        """Return when it can serve; raise its failure unless that is temporary."""
        while not self._is_ready.is_set():
            if self.failure is not None and not _is_temporary(self.failure):
                raise self.failure
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._is_ready.wait()

    async def hand_over(self) -> None:
        """Finish running requests, then let another replica become primary."""
        state = self._state
        if state is None:
            return
        self._is_handing_over = True
        try:
            await self._stop_listening()
            with contextlib.suppress(NoAnswer):  # the lease then expires
                await state.step_down()
        finally:
            self._is_handing_over = False

    async def close(self) -> None:
        """Stop serving and close the replica."""
        self._is_handing_over = True
        await self._stop_listening()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- life cycle -----------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            try:
                await self._open_and_serve()
            except UnavailableError as error:
                logger.warning("partition %d will be opened again: %s", self.partition, error)
                self.failure = error
            except Exception as error:
                logger.exception("partition %d cannot be served", self.partition)
                self.failure = error
            await asyncio.sleep(AGAIN_SECONDS)

    async def _open_and_serve(self) -> None:
        state = await self._context.open_state(self.partition, self._patience)
        replica = state.replica
        assert isinstance(replica, Replica)
        self._state, self._replica = state, replica
        try:
            replica.patience = self._patience
            replica.is_placed = True
            replica.on_role = self._wake
            await self._prepare(state, replica)
            self.failure = None
            self._is_ready.set()
            await self._serve(state, replica)
        finally:
            self._is_ready.clear()
            self._sequences = []
            await self._stop_listening()
            self._state = self._replica = None
            await state.close()

    async def _prepare(self, state: StateManager, replica: Replica) -> None:
        """Let the application open its collections; a secondary waits for the primary's."""
        while self._context.opened is not None:
            try:
                await self._context.opened(state)
            except UnavailableError:
                if replica.failure is not None:
                    raise replica.failure from None
                await asyncio.sleep(PREPARE_AGAIN_SECONDS)
            else:
                return

    async def _wake(self, _is_primary: bool) -> None:  # noqa: FBT001 - as Replica calls it
        self._woken.set()

    async def _serve(self, state: StateManager, replica: Replica) -> None:
        """Listen while primary, until the replica has stopped."""
        while replica.failure is None:
            self._woken.clear()
            if not state.is_primary:
                await self._stop_listening()
            elif self._listening is None and not self._is_handing_over:
                subject = self._context.subject(self.partition)
                self._listening = await self._context.post.listen(subject, self._answer)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._woken.wait()
        raise replica.failure

    async def _stop_listening(self) -> None:
        listening, self._listening = self._listening, None
        if listening is not None:
            await listening.close(DRAIN_SECONDS)

    # --- requests -------------------------------------------------------------------------

    async def _answer(self, raw: bytes) -> bytes:
        """Answer a request; one that is repeated while it runs is not started again."""
        try:
            request = decode_request(raw)
        except (msgspec.MsgspecError, PartitaError) as error:
            return encode(failed(_malformed(error)))
        work = self._running.get(request.id)
        if work is None:
            if len(self._running) >= REQUESTS_AT_ONCE_MAX:
                return encode(failed(_busy()))
            work = asyncio.get_running_loop().create_task(self._work(request))
            self._running[request.id] = work
            work.add_done_callback(lambda _: self._running.pop(request.id))
        return await asyncio.shield(work)

    async def _work(self, request: Request) -> bytes:
        state, handle = self.state, self._context.handle
        if state is None or not state.is_primary:
            return encode(failed(_not_primary()))
        if handle is None:
            return encode(failed(_not_served()))
        return encode(await _handled(handle, state, request))


async def _handled(handle: Handle, state: StateManager, request: Request) -> RequestAnswer:
    try:
        return answered(await handle(state, request))
    except PartitaError as error:
        return failed(error)
    except Exception as error:
        logger.exception("handle() failed for request %s", request.id)
        return failed(error)


def _is_temporary(error: Exception) -> bool:
    """Return whether waiting may help; it does not if another process uses the folder."""
    return isinstance(error, UnavailableError) and not isinstance(error, StoreLockedError)


def _malformed(error: Exception) -> RemoteError:
    return RemoteError(
        "InvalidRequest",
        "The message is not a Partita request.",
        facts={"cause": str(error)},
        hint="Send requests with service.request(), and the same version of Partita everywhere.",
    )


def _not_primary() -> NotPrimaryError:
    return NotPrimaryError("NotPrimary", "This replica is no longer primary.")


def _busy() -> StoreBusyError:
    return StoreBusyError(
        "ServiceBusy",
        f"{REQUESTS_AT_ONCE_MAX} requests are running in this partition.",
        facts={"limit": REQUESTS_AT_ONCE_MAX},
        hint="Send fewer concurrent requests, or use more partitions.",
    )


def _not_served() -> RemoteError:
    return RemoteError(
        "RequestsNotServed",
        "The primary was opened without handle=.",
        hint="Pass handle= to open_service() in every process that holds partitions.",
    )
