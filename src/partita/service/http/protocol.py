"""The HTTP/1.1 server protocol: asyncio bytes in, `respond`, bytes out.

httptools (llhttp, strict) parses requests; this module adds stricter checks. Requests of one
connection are answered one at a time and in order. The one rule: a request that `respond` has
started is never cancelled; if its client disconnects, only the answer is dropped. The module is
long because a connection is one state machine. Time is coarse: one sweep per second updates
`Connections.now`, so that a request needs no clock and no timer. A request whose body is large, or
does not arrive together with its head, is started when its head is complete: its credentials are
checked before its body is read.
"""

import asyncio
import logging
import sys
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import Any, Final, cast

import httptools

from partita.metrics.waits import WAITS
from partita.service.http.connections import Connection, Connections
from partita.service.http.message_bytes import (
    BAD_EXPECTATION,
    BAD_HEADER,
    BODY_TOO_LARGE,
    BUSY,
    CLOSE,
    CONTINUE,
    FAILED,
    HEADERS_TOO_LARGE,
    KEEP,
    KEEP_AS_ASKED,
    LENGTH_DIGITS_MAX,
    LINE_TOO_LONG,
    MALFORMED,
    NOT_IMPLEMENTED,
    TOO_SLOW,
    VERSION_NOT_SUPPORTED,
    HttpLimits,
    Refusal,
    RefusedError,
    encode_head,
    is_request_line,
    join_repeated,
    refusal_error,
    split_target,
)
from partita.service.http.observed import UNOBSERVED, Observed
from partita.service.http.request import (
    NOTHING_SPELLED,
    PIECE_BYTES_MAX,
    Download,
    Request,
    Response,
)
from partita.service.http.streams import ArrivingBody, client_gone, pour
from partita.service.http.watchdog import TURN_SECONDS_MAX, LoopWatchdog
from partita.ticks import Clock

Respond = Callable[[Request], Coroutine[Any, Any, Response]]
"""The function that answers a request.

Until its first suspension it runs outside any task: it may await futures, but may enter
`asyncio.timeout` or a task group only after it has suspended once.
"""
RespondAtOnce = Callable[[Request], Response | Coroutine[Any, Any, Response]]
"""The same, which may also return an answer."""
Fixed = Mapping[str, Callable[[], Response]]
"""Paths that are answered before `respond`, such as the health of the process."""

_Exchange = tuple[Request | None, Response | None, bytes]
"""A request to answer, or the answer of a refusal; and its Connection line."""

SERVE_SECONDS_MAX = 0.02
"""How long the requests of one turn of the loop are answered before it reads and writes again."""
_SMALL_BODY_BYTES = 16 * 1024
"""Up to this size, one copy is cheaper than a second write."""
_WAITING_REQUEST_BYTES = 1024
"""What a request that waits is taken to need besides its body."""
_CHUNK_FRAME_BYTES = 16
"""What a chunk of a body may have besides its content without counting as overhead."""
_LF = 10
_NO_NAMES: frozenset[str] = frozenset()

logger = logging.getLogger(__name__)


# The phases of a connection. Plain numbers: reading an enum member costs 0.1 us, ten times per
# request.
_IDLE: Final = 0
"""Between requests."""
_HEAD: Final = 1
"""In a request line or header section."""
_BODY: Final = 2
_ENDED: Final = 3
"""The last answer is decided; further bytes are discarded."""


@types.coroutine
def resumed(
    coroutine: Coroutine[Any, Any, Response], awaited: object, request: Request, turn: "Turn"
) -> Generator[object, Any, Response]:
    """Continue a coroutine that was driven by hand up to `awaited`, as if awaited here.

    The future that it waits for is passed to the task again; the result of the task (a value,
    an error, a cancellation) is passed to the coroutine. Each step is measured.
    """
    started = turn.now()
    try:
        while True:
            try:
                sent = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
                started = turn.now()
                awaited = coroutine.throw(error)
            else:
                started = turn.now()
                awaited = coroutine.send(sent)
            turn.measure(request, started)
    except StopIteration as finished:
        turn.measure(request, started)
        response: Response = finished.value
        return response


_VERSION = sys.version_info
WRITELINES_NEVER_PAUSES: Final = (3, 12) <= _VERSION < (3, 12, 9) or (3, 13) <= _VERSION < (
    3,
    13,
    2,
)
"""CVE-2024-12254 of CPython: after `writelines` a transport of asyncio's own loop never tells its
protocol to stop, so that a client that does not read would fill the memory of the server."""


class Turn:
    """The requests that arrive and the answers that leave in one turn of the event loop.

    One for all connections of a server. Reading all, then answering all, then writing all keeps
    the code of each part in the processor's caches: under load that doubles the rate. What does
    not fit into `SERVE_SECONDS_MAX` is answered in the next turn.
    """

    def __init__(self, write_buffer_bytes_max: int, clock: Clock) -> None:
        self._write_buffer_bytes_max = write_buffer_bytes_max
        self.watchdog = LoopWatchdog(clock)
        self.now = clock.monotonic
        self._ready: list[HttpProtocol] = []
        """Connections whose requests arrived in this turn."""
        self._is_scheduled = False
        self._is_serving = False
        self._unsent: list[tuple[asyncio.Transport, bytes, bytes]] = []
        """Answers of this turn, in order; empty unless `_is_serving`."""
        self._unsent_bytes = 0

    def serve_soon(self, connection: "HttpProtocol") -> None:
        """Answer a connection after everything that has arrived is read."""
        self._ready.append(connection)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._serve_ready)

    def measure(self, request: Request, started: float) -> float:
        """Tell the watchdog how long a step of a request took, and return it in seconds."""
        seconds = self.now() - started
        if seconds > TURN_SECONDS_MAX:
            self.watchdog.note(request, seconds)
        elif seconds > self.watchdog.longest_seconds:
            self.watchdog.longest_seconds = seconds
        return seconds

    def _serve_ready(self) -> None:
        ready, self._ready = self._ready, []
        self._is_scheduled = False
        self._is_serving = True
        ends_at, served = self.now() + SERVE_SECONDS_MAX, 0
        try:
            for connection in ready:
                served += 1
                connection.serve()
                if self.now() > ends_at:
                    break
        finally:
            self._is_serving = False
            self.flush()
            if served < len(ready):
                self._ready[:0] = ready[served:]
                self._schedule()

    def write(self, transport: asyncio.Transport, head: bytes, body: bytes = b"") -> None:
        """Send an answer, at once or with the others of this turn; a large body is not copied."""
        self._unsent.append((transport, head, body))
        self._unsent_bytes += len(head) + len(body)
        if not self._is_serving or self._unsent_bytes > self._write_buffer_bytes_max:
            self.flush()

    def flush(self) -> None:
        """Hand the answers of this turn to the transports."""
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        for transport, head, body in unsent:
            if body:
                if WRITELINES_NEVER_PAUSES:
                    transport.write(head + body)
                else:
                    transport.writelines((head, body))
            else:
                transport.write(head)


class HttpProtocol(asyncio.Protocol):
    """One connection.

    `_waiting` contains exchanges in the order of their requests; only `serve` removes them, and
    only while no request is running and the client reads its answers.
    """

    __slots__ = (
        "_accepted",
        "_body",
        "_budget",
        "_chunk_bytes",
        "_chunks",
        "_connection",
        "_connections",
        "_drained",
        "_fields",
        "_fixed",
        "_has_eof",
        "_headers",
        "_held_bytes",
        "_is_fresh",
        "_is_reading",
        "_is_reserved",
        "_is_stranger",
        "_is_writable",
        "_limits",
        "_loop",
        "_method",
        "_names",
        "_owes_continue",
        "_parser",
        "_path",
        "_peer",
        "_phase",
        "_query",
        "_repeated",
        "_respond",
        "_running",
        "_scheme",
        "_since",
        "_spelled",
        "_stalled_bytes",
        "_stalled_since",
        "_target",
        "_transport",
        "_turn",
        "_unfinished_bytes",
        "_unread_bytes",
        "_upload",
        "_waiting",
        "_window_start_bytes",
        "_wire_bytes",
    )

    def __init__(  # noqa: PLR0913, PLR0915 - the whole state of a connection
        self,
        respond: RespondAtOnce,
        limits: HttpLimits,
        connections: Connections,
        *,
        turn: Turn | None = None,
        scheme: str = "http",
        fixed: Fixed | None = None,
        accepted: Connection | None = None,
    ) -> None:
        self._respond = respond
        self._turn = turn or Turn(limits.write_buffer_bytes_max, connections.clock)
        self._limits = limits
        self._connections = connections
        self._names = connections.header_names
        self._budget = connections.budget
        self._held_bytes = 0
        """The part of the budget that this connection has."""
        self._scheme = scheme
        self._fixed = fixed or {}
        self._accepted = accepted
        """The connection during its handshake, whose slot this one takes over."""
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._is_stranger = True
        """Until a request on this connection is authenticated."""
        self._is_reserved = False
        """Without a slot: only health is answered."""

        self._phase = _IDLE
        self._since = connections.now
        """When the phase began, by the coarse clock."""
        self._is_fresh = True
        self._chunk_bytes = 0
        self._unfinished_bytes = 0
        """Bytes received since the last parser callback: the parser may buffer them.

        A callback sets it to minus the chunk, the end of the chunk adds the chunk."""
        self._window_start_bytes = 0
        self._wire_bytes = 0
        """Bytes of a body and its framing, without the framing that came together with the head.

        -1 until the first bytes of the body are counted."""
        self._chunks = 0
        """Chunks of the body of undeclared length."""

        self._target = b""
        self._fields: list[tuple[bytes, bytes]] = []
        """Header fields of the head; after it only trailers, which are dropped."""
        self._method = ""
        self._path = ""
        self._query = ""
        self._headers: dict[str, str] = {}
        self._repeated = _NO_NAMES
        self._spelled = NOTHING_SPELLED
        self._connection = KEEP
        self._body: bytes | bytearray = b""
        self._upload: ArrivingBody | None = None
        """The body that is arriving, if it is streamed; its request waits, runs or is answered."""
        self._unread_bytes = 0
        """Bytes of streamed bodies that have arrived and are not read."""
        self._owes_continue = False

        self._waiting: deque[_Exchange] = deque()
        self._running: asyncio.Task[None] | None = None
        self._is_writable = True
        self._drained: asyncio.Future[None] | None = None
        """Waited for by a download while the connection is not writable."""
        self._is_reading = True
        self._has_eof = False
        self._stalled_since = connections.now
        self._stalled_bytes = 0

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio's, but do not inherit from them.
        transport = cast("asyncio.Transport", transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else ""
        transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max)
        if self._accepted is not None:
            self._connections.forget(self._accepted)
            self._accepted = None
        self._is_reserved = not self._connections.add(self, self._peer)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._phase = _ENDED
        self._waiting.clear()
        # The parser and the protocol form a cycle: the body would stay until the next collection.
        self._body = b""
        self._lose_upload()
        self._upload = None
        self._wake_download()
        if self._held_bytes:
            self._settle()
        if self._running is None:
            self._connections.forget(self)

    def eof_received(self) -> bool:
        self._has_eof = True
        if self._phase != _IDLE:
            self._phase = _ENDED
            self._lose_upload()
        # TLS cannot be half closed: the transport closes in any case.
        return self._scheme == "http" and self.owes_an_answer

    def pause_writing(self) -> None:
        self._is_writable = False
        self._stalled_since = self._connections.now
        self._stalled_bytes = 0
        self._balance_reading()

    def resume_writing(self) -> None:
        self._is_writable = True
        self._wake_download()
        self.serve()

    @property
    def owes_an_answer(self) -> bool:
        """Return whether a received request of this connection is not answered yet."""
        return self._running is not None or bool(self._waiting)

    @property
    def is_idle(self) -> bool:
        return self._phase == _IDLE and self.can_be_closed

    @property
    def can_be_closed(self) -> bool:
        if self.owes_an_answer:
            return False
        return self._transport is None or not self._transport.get_write_buffer_size()

    @property
    def since(self) -> float:
        return self._since

    def authenticated(self) -> None:
        """Handle that a request of this connection is authenticated."""
        if self._is_stranger:
            self._is_stranger = False
            self._connections.introduce(self)

    def close_if_idle(self) -> None:
        """Close the connection if it is idle."""
        if self.owes_an_answer:
            return
        if self._phase == _IDLE:
            self._end()
        elif self._upload is not None:
            self._linger()

    def abort(self) -> None:
        """Close the connection at once; a running request finishes without its client."""
        self._phase = _ENDED
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    def _end(self) -> None:
        self._phase = _ENDED
        if self._transport is not None:
            self._transport.close()

    def _linger(self) -> None:
        """Close the sending side and wait for the client to close: it may still be sending."""
        self._turn.flush()
        self._phase = _ENDED
        self._upload = None
        transport = self._transport
        if transport is None:
            return
        if self._has_eof:
            transport.close()
            return
        self._body = b""
        self._unfinished_bytes = 0
        self._window_start_bytes = 0
        self._since = self._connections.now
        if transport.can_write_eof():
            transport.write_eof()
        self._balance_reading()

    def sweep(self, now: float) -> None:
        """Check the time-outs of this connection."""
        if self._transport is None:
            return
        if self._transport.get_write_buffer_size():
            self._sweep_writing(self._transport.get_write_buffer_size(), now)
            return
        self._stalled_bytes = 0
        if self.owes_an_answer:
            self._sweep_upload(now)
            return
        self._sweep_reading(now)

    def _sweep_writing(self, left: int, now: float) -> None:
        if not self._stalled_bytes or left < self._stalled_bytes:
            self._stalled_bytes = left
            self._stalled_since = now
        elif now - self._stalled_since > self._limits.write_stall_seconds:
            self.abort()

    def _sweep_upload(self, now: float) -> None:
        """Check the rate of a body only while its reader waits for bytes."""
        upload = self._upload
        if upload is None or not upload.is_awaited:
            self._since = now
            self._window_start_bytes = 0 if upload is None else upload.received_bytes
        elif now - self._since > self._limits.body_window_seconds and self._is_too_slow(
            upload.received_bytes, now - self._since, self._limits.body_rate_bytes_min
        ):
            self._refuse_now(TOO_SLOW)

    def _sweep_reading(self, now: float) -> None:
        limits = self._limits
        age = now - self._since
        if self._phase == _IDLE:
            seconds = limits.header_timeout_seconds if self._is_fresh else limits.keep_alive_seconds
            if age > seconds:
                self._end()
        elif self._phase == _HEAD:
            if age > limits.header_timeout_seconds:
                self._refuse_now(TOO_SLOW)
        elif age > limits.linger_seconds:
            self._judge_lingering(age)

    def _judge_lingering(self, age: float) -> None:
        """Abort unless the client is still sending: it would not read its answer."""
        upload = self._upload
        arrived = self._unfinished_bytes if upload is None else upload.received_bytes
        if self._is_too_slow(arrived, age, self._limits.linger_rate_bytes_min):
            self.abort()

    def _is_too_slow(self, received: int, age: float, rate: int) -> bool:
        """Return whether the last window was too slow; otherwise start the next one."""
        if received - self._window_start_bytes < age * rate:
            return True
        self._since = self._connections.now
        self._window_start_bytes = received
        return False

    # Bytes in

    def data_received(self, data: bytes) -> None:
        if self._phase == _ENDED:
            self._throw_away(len(data))
            return
        self._chunk_bytes = len(data)
        if self._phase == _IDLE:
            self._phase = _HEAD
            self._since = self._connections.now
            self._unfinished_bytes = 0
            # llhttp skips empty lines before a request, also those that end in a bare LF.
            if data[0] == _LF:
                self._refuse_now(MALFORMED)
                return
        failure: Exception | None = None
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            failure = error
        # Not inside `except`: a further error would lose the refusal that is its context.
        if failure is not None:
            self._recover(failure, data)
        if self._phase != _IDLE:
            self._after_part_of_request()
        if len(data) > _SMALL_BODY_BYTES or self._held_bytes:
            self._settle()
        if self._waiting:
            self._turn.serve_soon(self)

    def _after_part_of_request(self) -> None:
        """Start a request whose head is complete; limit the bytes that belong to no body."""
        self._bound_unfinished()
        if self._phase != _BODY:
            if self._unfinished_bytes > _SMALL_BODY_BYTES:
                self._settle()
            return
        upload = self._upload
        if upload is None:
            coding = self._headers.get("transfer-encoding")
            upload = self._start(None if coding else int(self._headers["content-length"]))
        elif not upload.was_read:
            self._settle()
            self._balance_reading()
        if upload.length is None:
            self._bound_framing(upload)

    def _start(self, length: int | None) -> ArrivingBody:
        """Pass the request to `respond` before its body is complete."""
        body, self._body = self._body, b""
        self._upload = upload = ArrivingBody(length, self)
        if body:
            self._owes_continue = False
            self._unread_bytes += upload.feed(bytes(body))
        self._take_request()
        return upload

    def _bound_framing(self, upload: ArrivingBody) -> None:
        """Limit what a body of chunks has besides its content, such as chunk extensions."""
        if self._wire_bytes < 0:
            self._wire_bytes, self._chunks = upload.received_bytes, 0
            return
        self._wire_bytes += self._chunk_bytes
        overhead = self._wire_bytes - upload.received_bytes - self._chunks * _CHUNK_FRAME_BYTES
        if overhead > self._limits.chunk_overhead_bytes_max and self._phase != _ENDED:
            self._refuse(BODY_TOO_LARGE)

    def _settle(self) -> None:
        """Charge the budget with what this connection holds of requests not yet authenticated.

        A request is authenticated before its body is read. Above the budget, the first request
        that waits is refused and the connection closed.
        """
        held = sum(_WAITING_REQUEST_BYTES + len(each.body) for each, _, _ in self._waiting if each)
        if self._phase == _HEAD:
            held += max(self._unfinished_bytes, 0)
        elif self._upload is not None and not self._upload.was_read:
            held += self._unread_bytes
        change, self._held_bytes = held - self._held_bytes, held
        if self._budget.change(change) or change <= 0:
            return
        if self._upload is not None and self._takes_back(self._upload):
            self._upload = None
        self._waiting.clear()
        self._refuse(BUSY)
        self._settle()

    def _recover(self, error: Exception, data: bytes | memoryview) -> None:
        """Continue after an offer to upgrade, which is ignored; refuse any other error."""
        while isinstance(error, httptools.HttpParserUpgrade):
            data = memoryview(data)[error.args[0] :]
            if not data or self._phase == _ENDED:
                return
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as next_error:
                error = next_error
            else:
                return
        if self._phase != _ENDED:
            self._refuse(self._refusal_of(error, data))

    def _refusal_of(self, error: Exception, data: bytes | memoryview) -> Refusal:
        cause = error.__context__
        if isinstance(cause, RefusedError):
            return cause.refusal
        if isinstance(error, httptools.HttpParserCallbackError):
            logger.error("A request could not be received.", exc_info=error)
            return FAILED
        if isinstance(error, httptools.HttpParserInvalidMethodError):
            is_first = self._unfinished_bytes >= 0
            return NOT_IMPLEMENTED if is_first and is_request_line(data) else MALFORMED
        return _REFUSALS_BY_REASON.get(str(error), MALFORMED)

    def _bound_unfinished(self) -> None:
        """Limit the bytes that the parser buffers before its callbacks see them."""
        self._unfinished_bytes += self._chunk_bytes
        limits = self._limits
        if self._unfinished_bytes <= limits.header_bytes_max + limits.request_line_bytes_max:
            return
        if self._phase != _ENDED:
            self._refuse(HEADERS_TOO_LARGE if self._phase == _HEAD else BODY_TOO_LARGE)

    def _throw_away(self, count: int) -> None:
        self._unfinished_bytes += count
        if self._unfinished_bytes > self._limits.linger_bytes_max:
            self.abort()

    # Called by a streamed body

    def body_wanted(self) -> None:
        if not self._owes_continue or self._transport is None:
            return
        self._owes_continue = False
        self._turn.write(self._transport, CONTINUE)

    def body_taken(self, count: int) -> None:
        self._unread_bytes -= count
        if self._held_bytes:
            self._settle()
        if not self._is_reading:
            self._balance_reading()

    def _lose_upload(self) -> None:
        if self._upload is not None:
            self._upload.fail(client_gone())

    # Called by the parser

    def on_message_begin(self) -> None:
        self._phase = _HEAD
        self._target = b""
        if self._fields:
            self._fields = []

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > self._limits.request_line_bytes_max:
            raise RefusedError(LINE_TOO_LONG)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        headers = self._take_headers()
        method = self._parser.get_method()
        self._method = _METHODS.get(method) or method.decode("latin-1")
        keeps = self._parser.should_keep_alive()
        self._connection = KEEP if keeps else CLOSE
        # Only HTTP/1.1 is persistent without a Connection header: the version need not be checked.
        if not keeps or "connection" in headers:
            self._check_version(keeps)
        elif "host" not in headers:
            raise RefusedError(BAD_HEADER)
        if not _FRAMING.isdisjoint(headers):
            self._check_framing()
        authority, self._path, self._query = split_target(self._target)
        if authority:
            headers["host"] = authority
        if self._is_reserved and self._path not in self._fixed:
            self._is_reserved = not self._connections.promote(self)
            if self._is_reserved:
                raise RefusedError(BUSY)
        self._body = b""
        self._phase = _BODY
        self._unfinished_bytes = -self._chunk_bytes
        if self._limits.stream_above_bytes is not None:
            self._stream_if_long(self._limits.stream_above_bytes)

    def on_body(self, part: bytes) -> None:
        if self._upload is not None:
            self._on_streamed_body(self._upload, part)
            return
        body = self._body
        if len(body) + len(part) > self._limits.body_bytes_max:
            raise RefusedError(BODY_TOO_LARGE)
        self._unfinished_bytes = -self._chunk_bytes
        if not body:
            self._body = part
        elif isinstance(body, bytearray):
            body += part
        else:
            self._body = bytearray(body)
            self._body += part

    def _stream_if_long(self, above: int) -> None:
        if "transfer-encoding" in self._headers:
            length = None
        else:
            length = int(self._headers.get("content-length", "0"))
            if length <= above:
                return
        self._start(length)

    def _on_streamed_body(self, upload: ArrivingBody, part: bytes) -> None:
        if upload.received_bytes + len(part) > self._limits.body_bytes_max:
            raise RefusedError(BODY_TOO_LARGE)
        self._unfinished_bytes = -self._chunk_bytes
        self._owes_continue = False
        self._unread_bytes += upload.feed(part)
        if self._is_reading and self._unread_bytes > self._limits.upload_buffer_bytes_max:
            self._balance_reading()

    def on_chunk_header(self) -> None:
        self._chunks += 1

    def on_message_complete(self) -> None:
        if self._upload is None:
            self._take_request()
        else:
            self._upload.end()
            self._upload = None
        self._body = b""
        self._is_fresh = False
        self._owes_continue = False
        self._since = self._connections.now
        self._unfinished_bytes = -self._chunk_bytes
        self._phase = _ENDED if self._connection is CLOSE else _IDLE
        if self._is_stranger:
            self._connections.touch(self)

    def _take_request(self) -> None:
        request = Request(
            self._method,
            self._path,
            self._query,
            self._headers,
            bytes(self._body),
            self._peer,
            self._scheme,
            self._repeated,
            self._upload,
            self._spelled,
            self if self._is_stranger else None,
            # Nothing is noted of most point reads; they have no query.
            UNOBSERVED if self._method == "GET" and not self._query else Observed(),
        )
        self._waiting.append((request, None, self._connection))

    def _take_headers(self) -> dict[str, str]:
        fields = self._fields
        self._fields = []
        if len(fields) > self._limits.header_fields_max:
            raise RefusedError(HEADERS_TOO_LARGE)
        if self._chunk_bytes > self._limits.header_bytes_max or self._unfinished_bytes > 0:
            self._check_header_bytes(fields)
        names = self._names
        headers = {names[name]: value.decode("latin-1").strip() for name, value in fields}
        self._repeated = _NO_NAMES
        if len(headers) < len(fields):
            headers, self._repeated = join_repeated(fields, names)
        self._spelled = names.take_spelled() if names.spelled else NOTHING_SPELLED
        if self._repeated and not _MUST_BE_SINGLE.isdisjoint(self._repeated):
            raise RefusedError(BAD_HEADER)
        self._headers = headers
        return headers

    def _check_header_bytes(self, fields: list[tuple[bytes, bytes]]) -> None:
        total = sum(len(name) + len(value) + 4 for name, value in fields)
        if total > self._limits.header_bytes_max:
            raise RefusedError(HEADERS_TOO_LARGE)

    def _check_version(self, keeps: bool) -> None:  # noqa: FBT001 - the parser's own word
        version = self._parser.get_http_version()
        if version == "1.1":
            if "host" not in self._headers:
                raise RefusedError(BAD_HEADER)
        elif version != "1.0":
            raise RefusedError(VERSION_NOT_SUPPORTED)
        elif "transfer-encoding" in self._headers:
            raise RefusedError(MALFORMED)
        elif keeps:
            self._connection = KEEP_AS_ASKED

    def _check_framing(self) -> None:
        headers = self._headers
        coding = headers.get("transfer-encoding")
        length_text = headers.get("content-length", "0")
        if len(length_text) > LENGTH_DIGITS_MAX:
            raise RefusedError(MALFORMED)
        length = int(length_text)
        if coding is not None and coding.lower() != "chunked":
            is_stacked = coding.lower().endswith((",chunked", " chunked"))
            raise RefusedError(NOT_IMPLEMENTED if is_stacked else MALFORMED)
        if length > self._limits.body_bytes_max:
            raise RefusedError(BODY_TOO_LARGE)
        self._wire_bytes = -1
        has_body = coding is not None or length > 0
        if has_body and self._parser.should_upgrade():
            raise RefusedError(NOT_IMPLEMENTED)
        self._since = self._connections.now
        self._window_start_bytes = 0
        if "expect" in headers:
            self._check_expectation(has_body)

    def _check_expectation(self, has_body: bool) -> None:  # noqa: FBT001 - decided one line above
        if self._headers["expect"].lower() != "100-continue":
            raise RefusedError(BAD_EXPECTATION)
        self._owes_continue = has_body

    # Answers

    def _refuse(self, refusal: Refusal) -> None:
        """Send this refusal after all earlier answers, and receive nothing more."""
        upload = self._upload
        if upload is not None and not self._takes_back(upload):
            # Its request is running or answered, and must not get a second answer.
            upload.fail(refusal_error(refusal))
            self._phase = _ENDED
            if not self.owes_an_answer:
                self._linger()
            return
        self._upload = None
        self._waiting.append((None, self._refusal(refusal), CLOSE))
        self._phase = _ENDED

    def _takes_back(self, upload: ArrivingBody) -> bool:
        """Withdraw the request of a body if `respond` has not started it."""
        if not self._waiting:
            return False
        request, _, _ = self._waiting[-1]
        if request is None or request.upload is not upload:
            return False
        self._waiting.pop()
        upload.drop()
        return True

    def _refuse_now(self, refusal: Refusal) -> None:
        self._refuse(refusal)
        self.serve()

    def _refusal(self, refusal: Refusal) -> Response:
        clock = self._connections.clock
        return self._connections.dialect.refuse(refusal, clock.new_id(), clock.ticks())

    def serve(self) -> None:
        """Answer waiting requests while the client reads its answers."""
        waiting = self._waiting
        ends_at = self._turn.now() + SERVE_SECONDS_MAX
        while waiting and self._running is None and self._is_writable:
            request, refusal, connection = waiting.popleft()
            if request is not None:
                self._answer(request, connection)
                if waiting and self._turn.now() > ends_at:
                    self._turn.serve_soon(self)
                    break
            elif refusal is not None:
                if self._connections.observer is not None:
                    self._connections.observer.refused(refusal)
                self._send(None, refusal, connection)
                self._linger()
        if self._held_bytes:
            self._settle()
        if waiting or not self._is_reading:
            self._balance_reading()

    def _answer(self, request: Request, connection: bytes) -> None:
        """Drive `respond` by hand: most answers are ready without suspending and need no task."""
        turn = self._turn
        started = turn.now()
        fixed = self._fixed.get(request.path)
        if fixed is not None:
            self._send(request, fixed(), connection)
            return
        try:
            coroutine = self._respond(request)
            if isinstance(coroutine, Response):
                self._send(request, coroutine, connection, turn.measure(request, started))
                return
            awaited = coroutine.send(None)
        except StopIteration as finished:
            seconds = turn.measure(request, started)
            response: Response = finished.value
            if response.download is None:
                self._send(request, response, connection, seconds)
            else:
                rest = self._finish_download(request, response, connection, started)
                self._running = self._loop.create_task(rest)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - a bug must not end the server
            response = self._failure(request, error)
            self._send(request, response, connection, turn.now() - started)
        else:
            turn.measure(request, started)
            # The task gets a copy of this context: from here on, stores measure their waits.
            observed = request.observed
            WAITS.set(request.observe() if observed is UNOBSERVED else observed)
            others = resumed(coroutine, awaited, request, turn)
            rest = self._finish(others, request, connection, started)
            self._running = self._loop.create_task(rest)

    async def _finish(
        self,
        rest: Coroutine[Any, Any, Response],
        request: Request,
        connection: bytes,
        started: float,
    ) -> None:
        try:
            response = await rest
        except asyncio.CancelledError:
            # Only the shutdown of the loop cancels: an answer is not possible any more.
            self._running = None
            self.abort()
            self._forget_if_lost()
            raise
        except Exception as error:  # noqa: BLE001 - a bug must not end the server
            response = self._failure(request, error)
        if response.download is not None:
            await self._finish_download(request, response, connection, started)
            return
        self._running = None
        self._forget_if_lost()
        self._send(request, response, connection, self._turn.now() - started)
        self.serve()

    async def _finish_download(
        self, request: Request, response: Response, connection: bytes, started: float
    ) -> None:
        download = response.download
        assert download is not None
        try:
            connection = await self._send_download(request, response, download, connection)
        except BaseException as error:
            # The client must not mistake the received part for the whole body.
            self.abort()
            if not isinstance(error, Exception):
                raise
            self._failure(request, error)
        finally:
            await self._close_download(request, download)
            self._running = None
            self._forget_if_lost()
            self._note(request, response, self._turn.now() - started)
        self._after_answer(request, connection)
        self.serve()
        if self._connections.is_stopping or self._has_eof:
            # It was not the last answer when it started.
            self.close_if_idle()

    async def _send_download(
        self, request: Request, response: Response, download: Download, connection: bytes
    ) -> bytes:
        """Send the download, at most until the client disconnects; return the Connection line."""
        connection = self._last_line(request, connection)
        unsent = encode_head(response, self._connections.server_lines, connection)
        in_a_row = 0

        async def send(piece: bytes) -> bool:
            nonlocal unsent, in_a_row
            if self._transport is None or self._transport.is_closing():
                return False
            if unsent:
                self._turn.write(self._transport, unsent, piece)
                unsent = b""
            else:
                self._transport.write(piece)
            in_a_row += len(piece)
            if not self._is_writable:
                await self._writable()
            elif in_a_row >= PIECE_BYTES_MAX:
                # Yield to other connections, even if this client reads everything at once.
                in_a_row = 0
                await asyncio.sleep(0)
            return True

        if request.method == "HEAD" or response.status == 304 or not download.length:
            await send(b"")
            return connection
        try:
            await pour(download, send)
        except Exception as error:
            if not unsent:
                raise
            # Nothing was sent yet: the error can be answered.
            failure = self._failure(request, error)
            unsent = encode_head(failure, self._connections.server_lines, connection)
            await send(failure.body)
        return connection

    async def _close_download(self, request: Request, download: Download) -> None:
        try:
            await download.close()
        except Exception:
            logger.exception("%s %s could not be closed", request.method, request.path)

    async def _writable(self) -> None:
        self._drained = self._loop.create_future()
        try:
            await self._drained
        finally:
            self._drained = None

    def _wake_download(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _forget_if_lost(self) -> None:
        if self._transport is None:
            self._connections.forget(self)

    def _failure(self, request: Request, error: BaseException) -> Response:
        logger.error("%s %s failed", request.method, request.path, exc_info=error)
        return self._refusal(FAILED)

    def _send(
        self,
        request: Request | None,
        response: Response,
        connection: bytes,
        seconds: float | None = None,
    ) -> None:
        """Send an answer; its observer is told how long it took, unless that is None."""
        connections = self._connections
        transport = self._transport
        is_lost = transport is None or transport.is_closing()
        observer = connections.observer
        if observer is not None and seconds is not None:
            # The duration is given only together with a request.
            observer.answered(request, response, seconds, is_lost)  # type: ignore[arg-type]
        if transport is None or is_lost:
            return
        if connections.is_stopping or self._has_eof or self._upload is not None:
            connection = self._last_line(request, connection)
        head = encode_head(response, connections.server_lines, connection)
        body = response.body
        if not body or (request is not None and request.method == "HEAD"):
            self._turn.write(transport, head)
        elif len(body) <= _SMALL_BODY_BYTES:
            self._turn.write(transport, head + body)
        else:
            self._turn.write(transport, head, body)
        if request is not None and (connection is CLOSE or request.upload is not None):
            self._after_answer(request, connection)

    def _note(self, request: Request, response: Response, seconds: float) -> None:
        """Tell the observer about an answer that was sent in pieces."""
        observer, transport = self._connections.observer, self._transport
        if observer is not None:
            is_lost = transport is None or transport.is_closing()
            observer.answered(request, response, seconds, is_lost)

    def _last_line(self, request: Request | None, connection: bytes) -> bytes:
        """Close after this answer, if there can be no other on this connection."""
        upload = self._upload
        if upload is not None and request is not None and request.upload is upload:
            return connection if self._can_outwait(upload) else CLOSE
        is_last = self._connections.is_stopping or self._has_eof
        if not is_last or self._waiting or self._phase in (_HEAD, _BODY):
            return connection
        return CLOSE

    def _can_outwait(self, upload: ArrivingBody) -> bool:
        """Return whether the rest of a body is short enough to be read and discarded.

        A client that waits for 100 Continue may or may not send the body after another answer.
        """
        if self._phase != _BODY or self._owes_continue or self._connections.is_stopping:
            return False
        if upload.length is None:
            return False
        return upload.length - upload.received_bytes <= self._limits.linger_bytes_max

    def _after_answer(self, request: Request, connection: bytes) -> None:
        """Discard the unread part of the body; close if the answer said so."""
        upload = request.upload
        is_arriving = upload is not None and self._upload is upload
        if isinstance(upload, ArrivingBody):
            upload.drop()
            if is_arriving:
                self._since = self._connections.now
                self._window_start_bytes = upload.received_bytes
        if connection is not CLOSE:
            return
        self._turn.flush()
        if is_arriving:
            self._linger()
        else:
            self._end()

    def _balance_reading(self) -> None:
        """Pause or resume reading, by the size of the buffers."""
        if self._transport is None or self._transport.is_closing():
            return
        upload = self._upload
        is_read = upload is None or upload.was_read
        has_room = (
            self._is_writable
            and len(self._waiting) < self._limits.pipelined_requests_max
            and self._waiting_body_bytes() < self._limits.body_bytes_max
            and self._unread_bytes <= (self._limits.upload_buffer_bytes_max if is_read else 0)
        )
        wants_reading = has_room or (self._phase == _ENDED and not self._waiting)
        if wants_reading == self._is_reading:
            return
        self._is_reading = wants_reading
        if wants_reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _waiting_body_bytes(self) -> int:
        return sum(len(request.body) for request, _, _ in self._waiting if request is not None)


_METHODS = {
    name.encode(): name
    for name in ("GET", "PUT", "POST", "MERGE", "PATCH", "DELETE", "HEAD", "OPTIONS")
}
_FRAMING = frozenset(("content-length", "transfer-encoding", "expect", "upgrade"))
_MUST_BE_SINGLE = frozenset(("host", "content-length", "transfer-encoding", "expect"))
_REFUSALS_BY_REASON = {
    "Invalid HTTP version": VERSION_NOT_SUPPORTED,
    "Pause on PRI/Upgrade": VERSION_NOT_SUPPORTED,
    "Expected HTTP/2 Connection Preface": VERSION_NOT_SUPPORTED,
    "Invalid method for HTTP/x.x request": NOT_IMPLEMENTED,
}
