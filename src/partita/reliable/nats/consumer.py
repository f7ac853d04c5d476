"""Reading a stream in order with a pull consumer, until the consumer stops answering.

A consumer lives on one node and may vanish with it, start too low on a node that lags, or lose
messages in flight: the caller checks the sequences and starts a new one where one is missing.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable

import msgspec
import nats.errors
from nats.aio.msg import Msg

from partita.reliable.nats.api import SECOND, Answer, Api, Failed, no_answer
from partita.reliable.nats.link import Connection
from partita.reliable.replication.stream import NoAnswer
from partita.reliable.values import limits

PULL_MESSAGES = 256
PULL_BYTES = 2 * limits.RECORD_BYTES_MAX
PULL_SECONDS = 10.0
HEARTBEAT_SECONDS = 1.0
PATIENCE_SECONDS = 2.5
"""A consumer without a message for this time is replaced by a new one."""
CREATE_SECONDS = 2.0


async def pull(
    api: Api, stream: str, start: int, sleepers: set[Callable[[], None]]
) -> AsyncGenerator[tuple[int, bytes], None]:
    """Yield the messages of one new consumer. Raises NoAnswer.

    The functions in `sleepers` wake it while it waits; it then ends if the link is closed.
    """
    consumer = await _create(api, stream, start)
    connection = await api.link.connection()
    async with _Inbox(connection, sleepers) as inbox:
        while not (connection.lost.is_set() or api.link.closed):
            await inbox.order(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}")
            left = PULL_MESSAGES
            while left:
                message = await inbox.next()
                if message is None or api.link.closed:
                    return
                status = (message.headers or {}).get("Status")
                if status is None:
                    yield _sequence_of(message.reply), message.data
                    left -= 1
                elif _ends_pull(status, str(message.headers)):
                    break
                elif not _is_ignored(status, str(message.headers)):
                    return


async def _create(api: Api, stream: str, start: int) -> str:
    name = api.clock.new_id()
    settings = {
        "name": name,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": max(start, 1),
        "ack_policy": "none",
        "mem_storage": True,
        "num_replicas": 1,
        "inactive_threshold": int(2 * PULL_SECONDS * SECOND),
    }
    order = {"stream_name": stream, "action": "create", "config": settings}
    try:
        await api.call(f"CONSUMER.CREATE.{stream}.{name}", order, Answer, CREATE_SECONDS)
    except Failed as failure:
        raise no_answer(failure) from failure
    return name


class _Inbox:
    """Receives the pulled messages of one consumer."""

    def __init__(self, connection: Connection, sleepers: set[Callable[[], None]]) -> None:
        self._connection = connection
        self._sleepers = sleepers
        self._subject = connection.client.new_inbox()
        self._arrived: deque[Msg] = deque()
        self._wake = asyncio.Event()
        self._is_over = False

    async def __aenter__(self) -> "_Inbox":
        try:
            # The pull limits the number of messages; nats-py must not drop any of them.
            self._subscription = await self._connection.client.subscribe(
                self._subject, cb=self._take, pending_msgs_limit=0, pending_bytes_limit=0
            )
        except (nats.errors.Error, OSError) as error:
            raise NoAnswer(str(error)) from error
        self._sleepers.add(self._end)
        self._connection.listeners.add(self._end)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._sleepers.discard(self._end)
        self._connection.listeners.discard(self._end)
        with contextlib.suppress(nats.errors.Error, OSError):
            await self._subscription.unsubscribe()

    def _end(self) -> None:
        self._is_over = True
        self._wake.set()

    async def _take(self, message: Msg) -> None:
        self._arrived.append(message)
        self._wake.set()

    async def order(self, subject: str) -> None:
        wanted = {
            "batch": PULL_MESSAGES,
            "max_bytes": PULL_BYTES,
            "expires": int(PULL_SECONDS * SECOND),
            "idle_heartbeat": int(HEARTBEAT_SECONDS * SECOND),
        }
        try:
            await self._connection.client.publish(
                subject, msgspec.json.encode(wanted), reply=self._subject
            )
        except (nats.errors.Error, OSError) as error:
            raise NoAnswer(str(error)) from error

    async def next(self) -> Msg | None:
        """Return the next message, None after PATIENCE_SECONDS or at the end."""
        while not self._arrived:
            if self._is_over:
                return None
            self._wake.clear()
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                return None
        return self._arrived.popleft()


def _ends_pull(status: str, headers: str) -> bool:
    """Return whether the pull has expired or has reached its size."""
    return status == "408" or "MaxBytes" in headers


def _is_ignored(status: str, headers: str) -> bool:
    """Return whether the status is a heartbeat, or the end of a completed pull."""
    return status == "100" or "Batch Completed" in headers


def _sequence_of(reply: str) -> int:
    """Return the stream sequence of `$JS.ACK.…`, which has more tokens with a domain."""
    tokens = reply.split(".")
    return int(tokens[5] if len(tokens) < 11 else tokens[7])
