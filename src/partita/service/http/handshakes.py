"""TLS: connections are accepted here, and have a slot before and during their handshake.

The servers of asyncio and uvloop show a TLS connection only after its handshake, so that no limit
would count it.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable

from partita.service.http.connections import Connection, Connections

ACCEPT_RETRY_SECONDS = 1.0
"""How long no connection is accepted after the system refused one, such as for open files."""

logger = logging.getLogger(__name__)

NewProtocol = Callable[[Connection], asyncio.Protocol]
"""Returns the protocol of an accepted connection, whose slot it takes over."""


class TlsListener:
    """Accepts connections on a socket until it is closed; needs a running event loop."""

    def __init__(
        self,
        bound: socket.socket,
        connections: Connections,
        context: Callable[[], ssl.SSLContext],
        new_protocol: NewProtocol,
    ) -> None:
        self._bound = bound
        self._connections = connections
        self._context = context
        self._new_protocol = new_protocol
        self._loop = asyncio.get_running_loop()
        self._pause: asyncio.TimerHandle | None = None
        bound.settimeout(0)
        bound.listen(connections.limits.backlog_connections_max)
        self._listen()

    def _listen(self) -> None:
        self._pause = None
        self._loop.add_reader(self._bound, self._accept)

    def close(self) -> None:
        """Accept no more; established connections are not closed."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._bound)
        self._bound.close()

    def _accept(self) -> None:
        for _ in range(self._connections.limits.backlog_connections_max):
            try:
                accepted, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("No connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(self._bound)
                self._pause = self._loop.call_later(ACCEPT_RETRY_SECONDS, self._listen)
                return
            accepted.settimeout(0)
            TlsHandshake(accepted, self._connections).start(
                address[0], self._context(), self._new_protocol
            )


class TlsHandshake:
    """An accepted connection until its handshake is complete, fails or times out."""

    owes_an_answer = False
    is_idle = True
    can_be_closed = True

    def __init__(self, accepted: socket.socket, connections: Connections) -> None:
        self._accepted = accepted
        self._connections = connections
        self._task: asyncio.Task[bool] | None = None
        self.since = connections.now

    def start(self, address: str, context: ssl.SSLContext, new_protocol: NewProtocol) -> None:
        self._connections.add(self, address)
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._shake_hands(context, new_protocol))
        self._task.add_done_callback(self._end)

    async def _shake_hands(self, context: ssl.SSLContext, new_protocol: NewProtocol) -> bool:
        """Return whether the handshake was completed."""
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: new_protocol(self),
                self._accepted,
                ssl=context,
                ssl_handshake_timeout=self._connections.limits.header_timeout_seconds,
            )
        except OSError as error:
            logger.debug("A TLS handshake failed: %s", error)
            return False
        return True

    def _end(self, task: asyncio.Task[bool]) -> None:
        # A task that was cancelled before its first step has not closed the socket.
        if task.cancelled() or not task.result():
            self._accepted.close()
        self._connections.forget(self)

    def sweep(self, now: float) -> None:
        """Do nothing: a handshake has a time-out of its own."""

    def close_if_idle(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._task is not None:
            self._task.cancel()
