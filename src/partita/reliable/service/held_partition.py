"""One partition that this process holds: it is opened, served while primary, and let go.

A holding opens its replica again when that stops for good. Requests are answered only by a
primary, and only after the service's own code has opened its collections.
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
from partita.reliable.nats.request_reply import Listening, Post
from partita.reliable.replication.replica import Replica
from partita.reliable.replication.stream import NoAnswer
from partita.reliable.service.membership import Held
from partita.reliable.service.requests import (
    Answer,
    RemoteError,
    Request,
    answered,
    decode_request,
    encode,
    failed,
)

logger = logging.getLogger("partita.reliable")

Opened = Callable[[StateManager], Awaitable[None]]
Handle = Callable[[StateManager, Request], Awaitable[bytes]]

REQUESTS_AT_ONCE_MAX = 1024
"""Under way in one partition; more are told to come again."""
DRAIN_SECONDS = 2.0
"""How long requests under way may take to end before the primary leaves."""
AGAIN_SECONDS = 1.0
PREPARE_AGAIN_SECONDS = 0.2
LOOK_SECONDS = 0.5


class Duties(msgspec.Struct, frozen=True):
    """What every holding of a service is given."""

    open_state: Callable[[int, float], Awaitable[StateManager]]
    """Opens the replica of a partition, given how long it leaves a free lease to others."""
    post: Post
    subject: Callable[[int], str]
    opened: Opened | None
    handle: Handle | None


class Holding:
    """One replica of one partition in this process."""

    def __init__(self, partition: int, duties: Duties, *, patience: float) -> None:
        self.partition = partition
        self.failure: Exception | None = None
        """Why it is not open; None once it is."""
        self._patience = patience
        self._duties = duties
        self._state: StateManager | None = None
        self._replica: Replica | None = None
        self._is_ready = asyncio.Event()
        self._is_handing_over = False
        self._woken = asyncio.Event()
        self._listening: Listening | None = None
        self._under_way: dict[str, asyncio.Task[bytes]] = {}
        self._sequences: list[int] = []
        self._living = asyncio.get_running_loop().create_task(self._live())

    # --- what others ask ------------------------------------------------------------------

    @property
    def state(self) -> StateManager | None:
        """The state, once its collections are open."""
        return self._state if self._is_ready.is_set() else None

    @property
    def is_primary(self) -> bool:
        return self.state is not None and self.state.is_primary

    def said(self) -> Held | None:
        """What the member says of it; None while it cannot serve."""
        return None if self.state is None else Held(self.state.sequence, self.state.is_primary)

    def note_sequence(self) -> None:
        """Remember how far it is, to compare with what others say a little later."""
        if self._state is not None:
            self._sequences = [*self._sequences[-2:], self._state.sequence]

    def is_reached_by(self, other: Held | None) -> bool:
        """Whether another replica has applied what was here some heartbeats ago."""
        return other is not None and bool(self._sequences) and other.applied >= self._sequences[0]

    def set_patience(self, seconds: float) -> None:
        self._patience = seconds
        if self._replica is not None:
            self._replica.patience = seconds

    async def ready(self) -> None:
        """Return when it can serve; raise why it cannot, if that will not pass by itself."""
        while not self._is_ready.is_set():
            if self.failure is not None and not _passes(self.failure):
                raise self.failure
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._is_ready.wait()

    async def hand_over(self) -> None:
        """Answer what is under way, then let another replica become primary."""
        state = self._state
        if state is None:
            return
        self._is_handing_over = True
        try:
            await self._stop_listening()
            with contextlib.suppress(NoAnswer):  # the lease runs out by itself then
                await state.step_down()
        finally:
            self._is_handing_over = False

    async def close(self) -> None:
        """Stop serving and let go; what was committed is in the log."""
        self._is_handing_over = True
        await self._stop_listening()
        self._living.cancel()
        await asyncio.gather(self._living, return_exceptions=True)

    # --- its life -------------------------------------------------------------------------

    async def _live(self) -> None:
        while True:
            try:
                await self._live_once()
            except UnavailableError as error:
                logger.warning("partition %d is opened again: %s", self.partition, error)
                self.failure = error
            except Exception as error:
                logger.exception("partition %d cannot be served", self.partition)
                self.failure = error
            await asyncio.sleep(AGAIN_SECONDS)

    async def _live_once(self) -> None:
        state = await self._duties.open_state(self.partition, self._patience)
        replica = state.replica
        assert isinstance(replica, Replica)
        self._state, self._replica = state, replica
        try:
            replica.patience = self._patience
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
        """Let the service open its collections; a secondary waits for the primary's."""
        while self._duties.opened is not None:
            try:
                await self._duties.opened(state)
            except UnavailableError:
                if replica.failure is not None:
                    raise replica.failure from None
                await asyncio.sleep(PREPARE_AGAIN_SECONDS)
            else:
                return

    async def _wake(self, _is_primary: bool) -> None:  # noqa: FBT001 - as Replica calls it
        self._woken.set()

    async def _serve(self, state: StateManager, replica: Replica) -> None:
        """Listen while primary, until the replica stops for good."""
        while replica.failure is None:
            self._woken.clear()
            if not state.is_primary:
                await self._stop_listening()
            elif self._listening is None and not self._is_handing_over:
                subject = self._duties.subject(self.partition)
                self._listening = await self._duties.post.listen(subject, self._answer)
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
        """Answer a request; one that is asked again while under way is not begun again."""
        try:
            request = decode_request(raw)
        except (msgspec.MsgspecError, PartitaError) as error:
            return encode(failed(_malformed(error)))
        work = self._under_way.get(request.id)
        if work is None:
            if len(self._under_way) >= REQUESTS_AT_ONCE_MAX:
                return encode(failed(_busy()))
            work = asyncio.get_running_loop().create_task(self._work(request))
            self._under_way[request.id] = work
            work.add_done_callback(lambda _: self._under_way.pop(request.id))
        return await asyncio.shield(work)

    async def _work(self, request: Request) -> bytes:
        state, handle = self.state, self._duties.handle
        if state is None or not state.is_primary:
            return encode(failed(_not_primary()))
        if handle is None:
            return encode(failed(_not_served()))
        return encode(await _handled(handle, state, request))


async def _handled(handle: Handle, state: StateManager, request: Request) -> Answer:
    try:
        return answered(await handle(state, request))
    except PartitaError as error:
        return failed(error)
    except Exception as error:
        logger.exception("handle() failed at request %s", request.id)
        return failed(error)


def _passes(error: Exception) -> bool:
    """Whether waiting helps; another process that has the folder will not go by itself."""
    return isinstance(error, UnavailableError) and not isinstance(error, StoreLockedError)


def _malformed(error: Exception) -> RemoteError:
    return RemoteError(
        "InvalidRequest",
        "What came is not a request of Partita.",
        facts={"cause": str(error)},
        hint="Use the same version of Partita, and service.request(), everywhere.",
    )


def _not_primary() -> NotPrimaryError:
    return NotPrimaryError("NotPrimary", "This replica is not primary any more.")


def _busy() -> StoreBusyError:
    return StoreBusyError(
        "ServiceBusy",
        f"{REQUESTS_AT_ONCE_MAX} requests are under way in this partition.",
        facts={"limit": REQUESTS_AT_ONCE_MAX},
        hint="Ask less at once, or share the keys over more partitions.",
    )


def _not_served() -> RemoteError:
    return RemoteError(
        "RequestsNotServed",
        "The process that is primary was opened without handle=.",
        hint="Give handle= to open_service() in every process that holds partitions.",
    )
