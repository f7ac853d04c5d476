"""The open connections of one server: slots, time-outs, drain; and one budget of bytes.

Nothing here depends on HTTP. A connection has a slot from its acceptance, before a TLS handshake.
It is a stranger until a request on it is authenticated. If all slots are taken, an idle
connection is closed for the new one, strangers first. If there is none, the new connection gets a
reserved slot, on which only health is answered and every other request is refused. The one rule:
only the sweep asks the clock, once for all connections.
"""

import asyncio
import contextlib
import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

from partita.service.http.message_bytes import (
    TABLE_DIALECT,
    Dialect,
    HeaderNames,
    HttpLimits,
    server_lines,
)
from partita.service.http.request import Observer
from partita.ticks import Clock

STRANGERS_SHARE: Final = 8
"""Up to one slot in so many, strangers keep their slots while an idle known connection has one.

Without a share of their own, new clients would close each other's connections before their first
request if all other slots belong to known clients."""

_IPV6_PEER_BITS: Final = 64
"""One customer of a provider has at least so many bits of addresses."""


class ByteBudget:
    """The bytes of requests that are not authenticated yet, of all servers that share it."""

    __slots__ = ("bytes_max", "held_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held_bytes = 0

    def change(self, count: int) -> bool:
        """Add bytes, or remove them if negative; return whether the budget is kept."""
        self.held_bytes += count
        return self.held_bytes <= self.bytes_max


class Connection(Protocol):
    """The methods that the set calls on a connection."""

    @property
    def owes_an_answer(self) -> bool: ...

    @property
    def is_idle(self) -> bool:
        """Return whether it is between requests, and all answers are sent."""

    @property
    def can_be_closed(self) -> bool:
        """Return whether closing it loses at most a request that has not arrived."""

    @property
    def since(self) -> float:
        """When it became idle, by the coarse clock."""

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
        observer: Observer | None = None,
        *,
        dialect: Dialect = TABLE_DIALECT,
        budget: ByteBudget | None = None,
    ) -> None:
        self.limits = limits
        self.clock = clock
        self.observer = observer
        self.dialect = dialect
        self.budget = budget or ByteBudget(limits.unauthenticated_bytes_max)
        self.header_names = HeaderNames()
        self.now = clock.monotonic()
        self.server_lines = server_lines(dialect, clock.ticks())
        self.lag_seconds = 0.0
        """How late the last sweep ran: how long the event loop was held."""
        self.is_stopping = False
        self._strangers: dict[Connection, str] = {}
        """Their peers; the one that has been idle longest is the first."""
        self._known: dict[Connection, str] = {}
        """Connections on which a request was authenticated."""
        self._reserved: dict[Connection, str] = {}
        """Connections without a slot, the oldest first."""
        self._by_peer: defaultdict[str, dict[Connection, None]] = defaultdict(dict)
        self._emptied = asyncio.Event()
        self._emptied.set()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return how many slots are taken, without the reserved ones."""
        return len(self._strangers) + len(self._known)

    def __iter__(self) -> Iterator[Connection]:
        return iter([*self._strangers, *self._known, *self._reserved])

    def add(self, connection: Connection, address: str) -> bool:
        """Give a new connection a slot; return False if it gets a reserved one."""
        peer = peer_of(address)
        if self._make_room(peer):
            self._take_slot(connection, peer)
            return True
        if len(self._reserved) >= self.limits.reserved_connections_max:
            self._close(next(iter(self._reserved)))
        self._reserved[connection] = peer
        return False

    def promote(self, connection: Connection) -> bool:
        """Give a connection on a reserved slot another one; return whether there is one."""
        peer = self._reserved.get(connection)
        if peer is None or not self._make_room(peer):
            return False
        del self._reserved[connection]
        self._take_slot(connection, peer)
        return True

    def _take_slot(self, connection: Connection, peer: str) -> None:
        self._strangers[connection] = peer
        self._by_peer[peer][connection] = None
        self._emptied.clear()

    def introduce(self, connection: Connection) -> None:
        """Count a stranger as known: a request on it was authenticated."""
        peer = self._strangers.pop(connection, None)
        if peer is not None:
            self._known[connection] = peer

    def touch(self, stranger: Connection) -> None:
        """Count a stranger as idle from now on."""
        peer = self._strangers.pop(stranger, None)
        if peer is not None:
            self._strangers[stranger] = peer

    def _make_room(self, peer: str) -> bool:
        """Close an idle connection if the limits require it; return whether there is a slot."""
        if self.is_stopping:
            return False
        of_peer = self._by_peer.get(peer, {})
        if len(of_peer) >= self.limits.connections_per_peer_max:
            idle = self._idle_stranger(c for c in of_peer if c in self._strangers)
            idle = idle or _longest_idle(c for c in of_peer if c in self._known)
            if idle is None:
                return False
            self._close(idle)
        if len(self) < self.limits.connections_max:
            return True
        idle = None
        if len(self._strangers) <= self.limits.connections_max // STRANGERS_SHARE:
            idle = _longest_idle(self._known)
        idle = idle or self._idle_stranger(self._strangers) or _longest_idle(self._known)
        if idle is None:
            return False
        self._close(idle)
        return True

    def _idle_stranger(self, strangers: Iterable[Connection]) -> Connection | None:
        return next((each for each in strangers if each.can_be_closed), None)

    def _close(self, connection: Connection) -> None:
        connection.abort()
        self.forget(connection)

    def forget(self, connection: Connection) -> None:
        if self._reserved.pop(connection, None) is not None:
            return
        peer = self._strangers.pop(connection, None)
        if peer is None:
            peer = self._known.pop(connection, None)
        if peer is None:
            return
        of_peer = self._by_peer[peer]
        del of_peer[connection]
        if not of_peer:
            del self._by_peer[peer]
        if not len(self):
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
        due = self.now + self.limits.sweep_seconds
        self.start_sweeping()
        self.lag_seconds = max(0.0, self.now - due)
        if self.observer is not None:
            self.observer.fold()
        for connection in self:
            connection.sweep(self.now)

    async def drain(self, grace_seconds: float) -> bool:
        """Close idle connections, wait for the others, abort; return whether all were answered.

        Requests that are still running continue without their connection.
        """
        self.is_stopping = True
        for connection in self:
            connection.close_if_idle()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._emptied.wait(), grace_seconds)
        was_all_answered = not any(connection.owes_an_answer for connection in self)
        for connection in self:
            connection.abort()
        return was_all_answered

    def hurry(self) -> None:
        """End a running `drain` now."""
        self._emptied.set()


def _longest_idle(connections: Iterable[Connection]) -> Connection | None:
    idle = (connection for connection in connections if connection.is_idle)
    return min(idle, key=lambda connection: connection.since, default=None)


def peer_of(address: str) -> str:
    """Return what counts as one peer: an IPv4 address, or the /64 network of an IPv6 address.

    >>> peer_of("192.0.2.1"), peer_of("::ffff:192.0.2.1"), peer_of("2001:db8::5:6")
    ('192.0.2.1', '192.0.2.1', '2001:db8::/64')
    """
    if ":" not in address:
        return address
    number = ipaddress.IPv6Address(address.partition("%")[0])
    if number.ipv4_mapped is not None:
        return str(number.ipv4_mapped)
    return str(ipaddress.IPv6Network((number, _IPV6_PEER_BITS), strict=False))
