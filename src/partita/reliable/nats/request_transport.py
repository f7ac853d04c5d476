"""Requests over NATS request/reply.

They use the link of the service's stream, which leaves a node that has lost the other nodes: on a
link of their own a listener would not notice that no request reaches it. A member notices it by
its heartbeats, a process that only sends requests by requests without an answer.
"""

import asyncio
import contextlib

import nats.errors
from nats.aio.msg import Msg

from partita.reliable.nats.link import PAUSE_SECONDS, Connection, Link, logger
from partita.reliable.nats.request_reply import Answering
from partita.reliable.replication.stream import NoAnswer

ASK = "ask"
"""The kind of requests for which the link notes silence."""
QUEUE = "primary"
"""A queue group: if two replicas listen as primary, only one gets a request."""
UNSUBSCRIBE_SECONDS = 2.0


class NatsRequestTransport:
    """Implements `request_reply.RequestTransport`."""

    def __init__(self, link: Link, *, is_member: bool) -> None:
        self._link = link
        self._is_member = is_member

    async def ask(self, subject: str, raw: bytes, *, timeout: float) -> bytes:
        if not self._is_member:
            self._link.note_request(ASK)
        answer = await self._link.request(subject, raw, timeout=timeout, once=True)
        self._link.note_answer(ASK)
        return bytes(answer.data)

    async def listen(self, subject: str, answering: Answering) -> "NatsSubscription":
        listening = NatsSubscription(self._link, subject, answering)
        await listening.begun.wait()
        return listening


class NatsSubscription:
    """A subscription to one subject, renewed on every new connection."""

    def __init__(self, link: Link, subject: str, answering: Answering) -> None:
        self.begun = asyncio.Event()
        """Set when the subscription was requested, or when the link was closed."""
        self._link = link
        self._subject = subject
        self._answering = answering
        self._tasks: set[asyncio.Task[None]] = set()
        self._keeper = asyncio.create_task(self._keep())

    async def close(self, seconds: float) -> None:
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep(self) -> None:
        try:
            while True:
                connection = await self._link.connection()
                try:
                    await self._subscribed(connection)
                except (nats.errors.Error, OSError) as error:
                    logger.debug("cannot listen on %s: %r", self._subject, error)
                    await asyncio.sleep(PAUSE_SECONDS)
        except NoAnswer:
            return  # the link was closed
        finally:
            self.begun.set()

    async def _subscribed(self, connection: Connection) -> None:
        """Listen until the connection is lost, or until cancelled."""
        subscription = await connection.client.subscribe(self._subject, queue=QUEUE, cb=self._take)
        self.begun.set()
        try:
            await connection.lost.wait()
        finally:
            with contextlib.suppress(nats.errors.Error, OSError, TimeoutError):
                async with asyncio.timeout(UNSUBSCRIBE_SECONDS):
                    await subscription.unsubscribe()

    async def _take(self, message: Msg) -> None:
        """Answer in a task: nats-py waits for this function before the next message."""
        task = asyncio.create_task(self._answer(message))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, message: Msg) -> None:
        raw = await self._answering(message.data)
        # If the answer does not arrive, the request is sent again.
        with contextlib.suppress(nats.errors.Error, OSError):
            await message.respond(raw)
