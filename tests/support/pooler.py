"""A pooler in transaction mode between clients and the PostgreSQL of the tests.

It speaks PostgreSQL's wire protocol and hands a server session to a client for one transaction:
from its first message until a ReadyForQuery whose status is idle. As in PgBouncer, a session is not
reset between two clients, the session that was used last is used next, and the process id that a
client is told is not that of a server session.
"""

import select
import socket
import struct
import threading
from collections import defaultdict, deque
from contextlib import suppress
from types import TracebackType
from typing import Self

from sqlalchemy import make_url

HOST = "127.0.0.1"
SESSIONS_MAX = 20
"""The number of server sessions of one role in one database."""
_CANCEL, _TLS, _GSSAPI = 80877102, 80877103, 80877104
_IDLE = b"I"


class TransactionPooler:
    """Accepts clients until it is closed; `rotates` lends the session that was idle for longest."""

    def __init__(
        self, port: int, *, rotates: bool = False, sessions_max: int = SESSIONS_MAX
    ) -> None:
        self._server_port = port
        self._rotates = rotates
        self._sessions_max = sessions_max
        self._idle: defaultdict[bytes, deque[_Session]] = defaultdict(deque)
        self._opened: defaultdict[bytes, int] = defaultdict(int)
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """Return the URL of the same database through this pooler."""
        return make_url(url).set(port=self.port).render_as_string(hide_password=False)

    def close(self) -> None:
        with self._changed:
            opened = [self._listener, *self._sockets]
        for each in opened:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _type: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        self._sockets.add(client)
        try:
            startup = _read_startup(client)
            if startup is not None:
                self._pool(client, startup)
        except OSError:
            return
        finally:
            self._sockets.discard(client)
            client.close()

    def _pool(self, client: socket.socket, startup: bytes) -> None:
        session = self.lend(startup)
        greeting = session.greeting
        self.take_back(session)
        key = _message(b"K", struct.pack("!II", 0x7FFF_0000 | client.fileno(), 0))
        client.sendall(_message(b"R", struct.pack("!I", 0)) + greeting + key)
        client.sendall(_message(b"Z", _IDLE))
        _Client(self, client, startup).run()

    def lend(self, startup: bytes) -> "_Session":
        """Wait for an idle session of the role and database; open one if fewer than the maximum."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._idle[startup] or self._opened[startup] < self._sessions_max
            )
            if self._idle[startup]:
                idle = self._idle[startup]
                return idle.popleft() if self._rotates else idle.pop()
            self._opened[startup] += 1
        session = _Session(self._server_port, startup)
        self._sockets.add(session.socket)
        return session

    def take_back(self, session: "_Session") -> None:
        with self._changed:
            self._idle[session.startup].append(session)
            self._changed.notify_all()

    def drop(self, session: "_Session") -> None:
        """End a session that its client left in a transaction, or that the server has ended."""
        session.socket.close()
        with self._changed:
            self._sockets.discard(session.socket)
            self._opened[session.startup] -= 1
            self._changed.notify_all()


class _Session:
    """A session on the server."""

    def __init__(self, port: int, startup: bytes) -> None:
        self.startup = startup
        self.socket = socket.create_connection((HOST, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.sendall(startup)
        self.greeting = b""
        """The settings that the server reports to a new client."""
        received = b""
        while True:
            messages, received = _split(received + _read(self.socket))
            for message in messages:
                kind = message[:1]
                if kind == b"E":
                    raise ConnectionRefusedError(message)
                if kind == b"S":
                    self.greeting += message
                if kind == b"Z":
                    return


class _Client:
    """One client and, during a transaction, its session."""

    def __init__(self, pooler: TransactionPooler, client: socket.socket, startup: bytes) -> None:
        self._pooler = pooler
        self._client = client
        self._startup = startup
        self._session: _Session | None = None
        self._expected = 0
        """The number of ReadyForQuery messages that the client waits for."""
        self._last = b""
        self._from_client = self._from_server = b""

    def run(self) -> None:
        try:
            while self._relay():
                pass
        finally:
            if self._session is not None:
                self._pooler.drop(self._session)

    def _relay(self) -> bool:
        """Pass on what was received; return False if the client or the server has closed."""
        ends = [self._client] if self._session is None else [self._client, self._session.socket]
        for ready in select.select(ends, [], [])[0]:
            received = _read(ready)
            if ready is self._client:
                if not self._to_server(received):
                    return False
            elif self._session is not None:
                self._client.sendall(received)
                self._watch(self._session, received)
        return True

    def _to_server(self, received: bytes) -> bool:
        messages, self._from_client = _split(self._from_client + received)
        for message in messages:
            kind = message[:1]
            if kind == b"X":
                return False
            if self._session is None:
                self._session = self._pooler.lend(self._startup)
                self._from_server = b""
            if kind in b"QSF":
                self._expected += 1
                self._last = kind
            self._session.socket.sendall(message)
        return True

    def _watch(self, session: _Session, received: bytes) -> None:
        messages, self._from_server = _split(self._from_server + received)
        for message in messages:
            kind = message[:1]
            if kind == b"G" and self._last == b"S":
                self._expected -= 1  # the server ignores a Sync that it reads during COPY
            if kind == b"Z":
                self._expected -= 1
                if message[-1:] == _IDLE and self._expected <= 0:
                    self._session, self._expected = None, 0
                    self._pooler.take_back(session)


def _read_startup(client: socket.socket) -> bytes | None:
    while True:
        (length, code) = struct.unpack("!II", _read_exactly(client, 8))
        rest = _read_exactly(client, length - 8)
        if code == _CANCEL:
            return None
        if code not in {_TLS, _GSSAPI}:
            return struct.pack("!II", length, code) + rest
        client.sendall(b"N")


def _split(received: bytes) -> tuple[list[bytes], bytes]:
    """Return the complete messages and what follows them."""
    found = []
    while len(received) >= 5:
        end = 1 + struct.unpack("!I", received[1:5])[0]
        if len(received) < end:
            break
        found.append(received[:end])
        received = received[end:]
    return found, received


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!I", len(body) + 4) + body


def _read(end: socket.socket) -> bytes:
    received = end.recv(1 << 16)
    if not received:
        raise ConnectionResetError
    return received


def _read_exactly(end: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = end.recv(count - len(received))
        if not part:
            raise ConnectionResetError
        received += part
    return received
