"""Requests to the JetStream API over a Link.

Every request ends with its answer, with Failed and the server's code, or with NoAnswer. All
requests go to a leader; direct reads, which any replica may answer, are not used.

The link is told which requests were answered, so that it leaves a node on which none are. A
leader that has lost the other nodes still answers reads for some seconds, and refuses messages
after one that it could not store: only a stored message shows that stores work.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import msgspec

from partita.reliable.nats.link import PAUSE_SECONDS, Link, logger
from partita.reliable.nats.monitor import Peer
from partita.reliable.replication.stream import NoAnswer
from partita.ticks import Clock

NO_MESSAGE = 10037
STREAM_NOT_FOUND = 10059
NAME_IN_USE = 10058
SUBJECT_OVERLAP = 10065
WRONG_LAST = frozenset({10071, 10164})
DUPLICATE_IN_PROCESS = 10158
UNPROVEN = WRONG_LAST | {DUPLICATE_IN_PROCESS}
"""Refusals that a leader without the other nodes sends too."""
NO_PEERS = 10005
NOT_CLUSTERED = 10074
NOT_ENABLED = frozenset({10039, 10076})
STORE, CALL = "store", "call"
"""The kinds of requests for which a link notes silence."""
SECOND = 1_000_000_000
"""Durations in this API are nanoseconds."""
STORE_SECONDS = 2.0
"""The time-out of one attempt of a request that is repeated until it is answered."""


class Failure(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class Failed(Exception):  # noqa: N818 - never raised to users
    """The server answered with an error."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.description} ({failure.err_code})")
        self.code = failure.err_code


class Unsettled(Failed):
    """The server has no leader at the moment."""


class Answer(msgspec.Struct, frozen=True):
    error: Failure | None = None


class Stored(Answer, frozen=True):
    seq: int = 0


class StreamState(msgspec.Struct, frozen=True):
    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    last_seq: int = 0
    subjects: dict[str, int] = {}


class StreamPeers(msgspec.Struct, frozen=True):
    """The nodes that store a stream."""

    leader: str = ""
    replicas: tuple[Peer, ...] = ()


class StreamAnswer(Answer, frozen=True):
    config: dict[str, Any] = {}
    state: StreamState = StreamState()
    cluster: StreamPeers = StreamPeers()


class StreamNames(Answer, frozen=True):
    total: int = 0
    streams: tuple[str, ...] | None = None


class Message(msgspec.Struct, frozen=True):
    seq: int
    content: bytes = msgspec.field(default=b"", name="data")
    hdrs: bytes = b""
    time: str = ""
    """When it was stored, by the clock of the node."""


class MessageAnswer(Answer, frozen=True):
    message: Message | None = None


_T = TypeVar("_T", bound=Answer)


class Api:
    """The requests of Partita to JetStream."""

    def __init__(self, link: Link, clock: Clock) -> None:
        self.link = link
        self.clock = clock

    async def store(
        self, subject: str, raw: bytes, headers: Mapping[str, str], timeout: float
    ) -> int:
        """Publish into a stream and return the sequence. Raises Failed, NoAnswer."""
        async with deadline(timeout):
            while True:
                self.link.note_request(STORE)
                sent = await self.link.request(
                    subject, raw, headers=headers, timeout=timeout, once=True
                )
                try:
                    stored = read(sent.data, Stored).seq
                except Failed as failure:
                    if not isinstance(failure, Unsettled) and failure.code not in UNPROVEN:
                        self.link.note_answer(STORE)
                    if failure.code != DUPLICATE_IN_PROCESS:
                        raise
                else:
                    self.link.note_answer(STORE)
                    return stored
                await asyncio.sleep(PAUSE_SECONDS)  # the first copy is being processed

    async def store_until_answered(
        self, subject: str, raw: bytes, headers: Mapping[str, str], timeout: float
    ) -> None:
        """Publish again until an answer comes; the message id prevents duplicates."""
        marked = {**headers, "Nats-Msg-Id": self.clock.new_id()}
        async with deadline(timeout):
            while True:
                try:
                    await self.store(subject, raw, marked, STORE_SECONDS)
                except Failed as failure:
                    raise no_answer(failure) from failure
                except NoAnswer:
                    await asyncio.sleep(PAUSE_SECONDS)
                else:
                    return

    async def get(self, stream: str, where: Mapping[str, object], timeout: float) -> Message | None:
        """Return one message, None if the leader does not have it."""
        try:
            answer = await self.call(f"STREAM.MSG.GET.{stream}", where, MessageAnswer, timeout)
        except Failed as failure:
            if failure.code == NO_MESSAGE:
                return None
            raise no_answer(failure) from failure
        return answer.message

    async def describe_stream(
        self, stream: str, timeout: float, *, subjects: str = ""
    ) -> StreamAnswer:
        """Return the settings and state of a stream, with the subjects that match."""
        asked = {"subjects_filter": subjects} if subjects else {}
        try:
            return await self.call(f"STREAM.INFO.{stream}", asked, StreamAnswer, timeout)
        except Failed as failure:
            raise no_answer(failure) from failure

    async def change(self, verb: str, order: Mapping[str, object], timeout: float) -> None:
        """Send an idempotent request."""
        try:
            await self.call(verb, order, Answer, timeout)
        except Failed as failure:
            raise no_answer(failure) from failure

    async def call(
        self, verb: str, asked: Mapping[str, object], expected: type[_T], timeout: float
    ) -> _T:
        """Send a request, again while there is no leader. Raises Failed, NoAnswer."""
        payload = msgspec.json.encode(asked) if asked else b""
        async with deadline(timeout):
            while True:
                self.link.note_request(CALL)
                answer = await self.link.request(f"$JS.API.{verb}", payload, timeout=timeout)
                try:
                    decoded = read(answer.data, expected)
                except Unsettled as failure:
                    logger.debug("JetStream %s: %s", verb, failure)
                except Failed:
                    self.link.note_answer(CALL)
                    raise
                else:
                    self.link.note_answer(CALL)
                    return decoded
                await asyncio.sleep(PAUSE_SECONDS)


def read(raw: bytes, expected: type[_T]) -> _T:
    """Decode an answer. Raises Failed, Unsettled, NoAnswer."""
    try:
        answer = msgspec.json.decode(raw, type=expected)
    except msgspec.MsgspecError as error:
        message = f"Not an answer of JetStream: {raw[:80]!r}."
        raise NoAnswer(message) from error
    if answer.error is None:
        return answer
    is_settled = answer.error.code != 503 or answer.error.err_code in NOT_ENABLED
    raise (Failed if is_settled else Unsettled)(answer.error)


def no_answer(failure: Failed) -> NoAnswer:
    """Return NoAnswer for a refusal that does not concern the content of the log."""
    logger.warning("JetStream refused a request: %s", failure)
    return NoAnswer(str(failure))


@contextlib.asynccontextmanager
async def deadline(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        message = f"No answer within {seconds:.3g} s."
        raise NoAnswer(message) from None
