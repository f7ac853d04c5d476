"""The open connections of one server: admission, time-outs, drain.

Nothing here depends on HTTP. The one rule: only the sweep asks the clock, once for all
connections.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Protocol

from partita.service.http.message_bytes import (
    TABLE_DIALECT,
    Dialect,
    HeaderNames,
    HttpLimits,
    LoggedRequest,
    server_lines,
)
from partita.ticks import Clock

RequestLog = Callable[[LoggedRequest], None]
"""Called with each answered request; must not raise."""


class Connection(Protocol):
    """The methods that the set calls on a connection."""

    @property
    def owes_an_answer(self) -> bool: ...

    def sweep(self, now: float) -> None: ...

    def close_if_idle(self) -> None: ...

    def abort(self) -> None: ...


class Connections:
    """All connections of one server.

    `now` and `server_lines` are changed only by the sweep. A connection stays in the set until it
    is lost *and* its running request has finished: stopping waits for both.
    """

    def __init__(
        self,
        limits: HttpLimits,
        clock: Clock,
        log: RequestLog | None = None,
        *,
        dialect: Dialect = TABLE_DIALECT,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.log = log
        self.dialect = dialect
        self.header_names = HeaderNames()
        self.now = clock.monotonic()
        self.server_lines = server_lines(dialect, clock.ticks())
        self.is_stopping = False
        self._open: set[Connection] = set()
        self._refused: set[Connection] = set()
        self._by_peer: Counter[str] = Counter()
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    def admits(self, peer: str) -> bool:
        """Return whether the limits permit one more connection from this address."""
        if self.is_stopping or len(self._open) >= self.limits.connections_max:
            return False
        return is_local_peer(peer) or self._by_peer[peer] < self.limits.connections_per_peer_max

    def add(self, connection: Connection, peer: str) -> bool:
        """Add a connection; return False if it must be refused."""
        if not self.admits(peer):
            self._refused.add(connection)
            return False
        self._open.add(connection)
        self._by_peer[peer] += 1
        self._emptied.clear()
        return True

    @property
    def has_room_to_refuse(self) -> bool:
        """Return whether a refused client can be answered before it is disconnected."""
        return len(self._refused) <= self.limits.connections_max

    def forget(self, connection: Connection, peer: str) -> None:
        self._refused.discard(connection)
        if connection not in self._open:
            return
        self._open.remove(connection)
        self._by_peer[peer] -= 1
        if not self._by_peer[peer]:
            del self._by_peer[peer]
        if not self._open:
            self._emptied.set()

    def start_sweeping(self) -> None:
        self.now = self.clock.monotonic()
        self.server_lines = server_lines(self.dialect, self.clock.ticks())
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self.limits.sweep_seconds, self._sweep)

    def stop_sweeping(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _sweep(self) -> None:
        self.start_sweeping()
        for connection in [*self._open, *self._refused]:
            connection.sweep(self.now)

    async def drain(self, grace_seconds: float) -> bool:
        """Close idle connections, wait for the others, abort; return whether all were answered.

        Requests that are still running continue without their connection.
        """
        self.is_stopping = True
        for connection in [*self._open]:
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), grace_seconds)
        was_all_answered = not any(connection.owes_an_answer for connection in self._open)
        self._cut_off()
        return was_all_answered

    def hurry(self) -> None:
        """End a running `drain` now."""
        self._emptied.set()

    def _cut_off(self) -> None:
        for connection in [*self._open, *self._refused]:
            connection.abort()


def is_local_peer(peer: str) -> bool:
    """Return whether an address is of this machine; that of a Unix socket is empty."""
    return peer in ("", "::1") or peer.startswith(("127.", "::ffff:127."))
