"""Bodies that stream through the HTTP protocol: over raw sockets, on both event loops."""

import asyncio
import hashlib
import json
import logging
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from partita.errors import PartitaError, UnavailableError
from partita.loop_thread import new_event_loop
from partita.service.hosting.server import TlsFiles
from partita.service.http.message_bytes import BLOB_DIALECT, HttpLimits
from partita.service.http.request import PIECE_BYTES_MAX, Request, Response
from partita.service.http.streams import ArrivingBody, with_whole_body
from wire.live_http import PATIENCE_SECONDS, Behaviour, Client, LiveServer

LIMITS = HttpLimits(
    sweep_seconds=0.02,
    stream_above_bytes=1000,
    body_bytes_max=64 * 1024 * 1024,
    linger_bytes_max=8 * 1024 * 1024,
)
MEBIBYTE = 1024 * 1024
ECHO = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"


def put(path: str, length: int, *lines: bytes) -> bytes:
    head = b"PUT /%s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n" % (path.encode(), length)
    return head + b"".join(line + b"\r\n" for line in lines) + b"\r\n"


def chunked(path: str) -> bytes:
    head = b"PUT /%s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head % path.encode()


def get(path: str) -> bytes:
    return b"GET /%s HTTP/1.1\r\nHost: a\r\n\r\n" % path.encode()


def pattern(length: int) -> bytes:
    """Bytes of which no two neighbouring pieces are alike."""
    row = b"".join(number.to_bytes(4, "big") for number in range(65_537))
    return (row * (length // len(row) + 1))[:length]


class ADownload:
    """Gives a content in pieces and notes what is asked of it."""

    def __init__(self, content: bytes, *, piece_bytes: int = 100_000) -> None:
        self.length = len(content)
        self.closes = 0
        self.taken_bytes = 0
        self._pieces = [
            content[start : start + piece_bytes] for start in range(0, len(content), piece_bytes)
        ]
        self.fault_after: int | None = None
        self.is_left = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for number, piece in enumerate(self._pieces):
                if number == self.fault_after:
                    raise ValueError("a secret detail")
                await asyncio.sleep(0)
                self.taken_bytes += len(piece)
                yield piece
        finally:
            self.is_left = True

    async def close(self) -> None:
        self.closes += 1


class Streaming(Behaviour):
    """What `respond` does with streams."""

    streams = True

    def __init__(self) -> None:
        super().__init__()
        self.download = ADownload(b"")
        self.headers: list[tuple[str, str]] = []
        self.status = 200

    async def echo(self, request: Request) -> Response:
        return await super().echo(await with_whole_body(request))

    async def take(self, request: Request) -> Response:
        digest = hashlib.sha256()
        longest = count = 0
        assert request.upload is not None
        async for piece in request.upload:
            assert piece
            digest.update(piece)
            count += len(piece)
            longest = max(longest, len(piece))
        seen = {"declared": request.upload.length, "bytes": count, "digest": digest.hexdigest()}
        assert longest <= PIECE_BYTES_MAX
        return Response(200, [], json.dumps(seen).encode())

    async def noted(self, request: Request) -> Response:
        self.notes.append("began")
        try:
            return await self.take(request)
        except PartitaError as error:
            self.notes.append(error.code)
            return Response(400, [("x-ms-error-code", error.code)], b"no")

    async def slow(self, request: Request) -> Response:
        self.notes.append("began")
        await self.release.wait()
        return await self.noted(request)

    async def refuse(self, _: Request) -> Response:
        return Response(403, [], b"no")

    async def refuse_later(self, request: Request) -> Response:
        assert request.upload is not None
        await anext(aiter(request.upload))
        return Response(403, [], b"no")

    async def give(self, _: Request) -> Response:
        return Response(self.status, self.headers, download=self.download)

    async def give_later(self, _: Request) -> Response:
        await asyncio.sleep(0)
        return Response(200, self.headers, download=self.download)


class StreamingServer(LiveServer):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.streaming = Streaming()
        super().__init__(loop, self.streaming)

    def start(self, **options: Any) -> int:
        return super().start(**{"limits": LIMITS, "dialect": BLOB_DIALECT} | options)

    def gives(self, content: bytes, *, piece_bytes: int = 100_000) -> ADownload:
        self.streaming.download = ADownload(content, piece_bytes=piece_bytes)
        return self.streaming.download

    def until_gone(self) -> None:
        self.until(lambda: self.server is not None and self.server.connection_count == 0)


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def live(request: pytest.FixtureRequest) -> Iterator[StreamingServer]:
    live = StreamingServer(request.param())
    yield live
    live.tear_down()


def seen_of(content: bytes, *, declared: bool = True) -> dict[str, Any]:
    return {
        "declared": len(content) if declared else None,
        "bytes": len(content),
        "digest": hashlib.sha256(content).hexdigest(),
    }


# Uploads


@pytest.mark.parametrize("length", [1001, 65_536, 5 * MEBIBYTE + 3])
def test_long_body_is_handed_on_as_it_arrives(live: StreamingServer, length: int) -> None:
    content = pattern(length)

    client = live.client().send(put("take", length), content, ECHO)

    assert client.read().echo == seen_of(content)
    assert client.read().status == 200


def test_body_up_to_the_threshold_is_put_together(live: StreamingServer) -> None:
    client = live.client().send(put("echo", 1000) + b"x" * 1000)

    assert client.read().echo["body"] == "x" * 1000
    assert live.behaviour.requests[0].upload is None


def test_chunked_body_streams_whatever_its_length(live: StreamingServer) -> None:
    content = pattern(300_000)
    chunks = b"".join(
        b"%x\r\n%s\r\n" % (len(part), part) for part in (content[:3], content[3:7], content[7:])
    )

    client = live.client().send(chunked("take"), chunks, b"0\r\nX-T: 1\r\n\r\n", ECHO)

    assert client.read().echo == seen_of(content, declared=False)
    assert client.read().status == 200


def test_empty_chunked_body_has_no_pieces(live: StreamingServer) -> None:
    client = live.client().send(chunked("take"), b"0\r\n\r\n")

    assert client.read().echo == seen_of(b"", declared=False)


def test_body_in_single_bytes_is_put_together(live: StreamingServer) -> None:
    content = pattern(40_000)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in content)

    client = live.client().send(chunked("slow"), chunks, b"0\r\n\r\n")
    live.until(lambda: live.behaviour.notes == ["began"])
    live.release()

    assert client.read().echo == seen_of(content, declared=False)


def test_request_begins_before_its_body_is_whole(live: StreamingServer) -> None:
    client = live.client().send(put("noted", 3000), b"x" * 1000)

    live.until(lambda: live.behaviour.notes == ["began"])

    assert client.send(b"x" * 2000).read().echo["bytes"] == 3000


def test_requests_behind_a_stream_wait_for_it(live: StreamingServer) -> None:
    client = live.client().send(put("slow", 5000), b"x" * 5000, put("take", 2000), b"y" * 2000)
    client.send(ECHO)
    live.until(lambda: live.behaviour.notes == ["began"])
    time.sleep(0.05)
    assert len(live.behaviour.requests) == 1

    live.release()

    assert client.read().echo == seen_of(b"x" * 5000)
    assert client.read().echo == seen_of(b"y" * 2000)
    assert client.read().echo["path"] == "/echo"


def test_reading_pauses_while_nobody_takes_the_body(live: StreamingServer) -> None:
    content = pattern(40 * MEBIBYTE)
    client = live.client().send(put("slow", len(content)))
    live.until(lambda: live.behaviour.notes == ["began"])

    client.socket.settimeout(0.5)
    sent = client.send_until_blocked(content, times=1)
    client.socket.settimeout(PATIENCE_SECONDS)
    live.release()

    assert sent < 30 * MEBIBYTE
    assert client.send(content[sent:]).read().echo == seen_of(content)


def test_declared_body_over_the_limit_is_refused_unread(live: StreamingServer) -> None:
    client = live.client().send(put("take", LIMITS.body_bytes_max + 1))

    answer = client.read()
    assert (answer.status, answer.headers["x-ms-error-code"]) == (413, "RequestBodyTooLarge")
    assert b"<Code>RequestBodyTooLarge</Code>" in answer.body
    assert live.behaviour.requests == []


def test_chunked_body_over_the_limit_fails_its_reader(live: StreamingServer) -> None:
    live.start(limits=msgspec.structs.replace(LIMITS, body_bytes_max=100_000))
    client = live.client().send(chunked("noted"), b"186A0\r\n" + b"x" * 100_000 + b"\r\n")
    live.until(lambda: live.behaviour.notes == ["began"])

    client.send(b"1\r\nx\r\n0\r\n\r\n")

    answer = client.read()
    assert answer.headers["x-ms-error-code"] == "RequestBodyTooLarge"
    assert answer.headers["connection"] == "close"
    assert client.is_closed_by_server()


def test_malformed_chunk_fails_the_reader(live: StreamingServer) -> None:
    client = live.client().send(chunked("noted"), b"3\r\nabc\r\n")
    live.until(lambda: live.behaviour.notes == ["began"])

    client.send(b"nonsense\r\n")

    answer = client.read()
    assert (answer.status, answer.headers["connection"]) == (400, "close")
    assert live.behaviour.notes == ["began", "InvalidInput"]
    assert client.is_closed_by_server()


def test_malformed_chunk_before_its_turn_is_refused_without_respond(live: StreamingServer) -> None:
    client = live.client().send(get("wait?1"))
    live.until(lambda: live.behaviour.notes == ["began"])

    client.send(chunked("noted") + b"nonsense\r\n")
    live.until_taken_in(client)
    live.release()

    assert client.read().body == b"1"
    assert client.read().status == 400
    assert client.is_closed_by_server()
    assert [request.path for request in live.behaviour.requests] == ["/wait"]


def test_bad_target_of_a_long_request_is_refused(live: StreamingServer) -> None:
    client = live.client().send(put("take#x", 5000), b"x" * 5000)

    assert client.read().status == 400
    assert client.is_closed_by_server()


# 100-continue


def test_continue_is_sent_when_the_reader_first_waits(live: StreamingServer) -> None:
    client = live.client().send(put("slow", 2000, b"Expect: 100-continue"))
    live.until(lambda: live.behaviour.notes == ["began"])
    client.socket.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.socket.recv(1, socket.MSG_PEEK)

    client.socket.settimeout(PATIENCE_SECONDS)
    live.release()

    assert client.read().status == 100
    assert client.send(b"x" * 2000).read().echo["bytes"] == 2000


def test_refusal_instead_of_continue_closes_the_connection(live: StreamingServer) -> None:
    client = live.client().send(put("refuse", 2000, b"Expect: 100-continue"))

    answer = client.read()
    assert (answer.status, answer.headers["connection"]) == (403, "close")
    assert client.is_closed_by_server()


def test_continue_is_not_sent_when_the_body_is_already_here(live: StreamingServer) -> None:
    client = live.client().send(put("take", 2000, b"Expect: 100-continue") + b"x" * 2000)

    assert client.read().status == 200


def test_continue_comes_after_the_answer_of_the_same_turn(live: StreamingServer) -> None:
    client = live.client().send(ECHO + put("take", 2000, b"Expect: 100-continue"))

    assert [client.read().status, client.read().status] == [200, 100]
    assert client.send(b"x" * 2000).read().echo["bytes"] == 2000


def test_continue_of_a_short_body_comes_after_the_answer_of_the_same_turn(
    live: StreamingServer,
) -> None:
    client = live.client().send(ECHO + put("echo", 3, b"Expect: 100-continue"))

    assert [client.read().status, client.read().status] == [200, 100]
    assert client.send(b"abc").read().echo["body"] == "abc"


# Answers before the body is read


@pytest.mark.parametrize("path", ["refuse", "refuse_later"])
def test_rest_of_a_refused_body_is_thrown_away_and_the_connection_kept(
    live: StreamingServer, path: str
) -> None:
    content = pattern(3 * MEBIBYTE)

    client = live.client().send(put(path, len(content)), content, ECHO)

    answer = client.read()
    assert (answer.status, "connection" in answer.headers) == (403, False)
    assert client.read().echo["path"] == "/echo"


@pytest.mark.parametrize("path", ["refuse", "refuse_later"])
def test_answer_before_a_very_long_body_closes_and_is_still_heard(
    live: StreamingServer, path: str
) -> None:
    live.start(limits=msgspec.structs.replace(LIMITS, linger_bytes_max=4 * MEBIBYTE))
    sent = pattern(3 * MEBIBYTE)

    # However much has arrived before the answer, more than the limit is still to come.
    client = live.client().send(put(path, 8 * MEBIBYTE), sent)

    answer = client.read()
    assert (answer.status, answer.headers["connection"]) == (403, "close")
    assert client.is_closed_by_server()


def test_client_that_never_ends_a_refused_body_is_cut_off(live: StreamingServer) -> None:
    client = live.client().send(chunked("refuse"))

    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        client.send_until_cut_off(b"100000\r\n" + b"x" * MEBIBYTE + b"\r\n", times=1000)


def test_client_that_stops_inside_a_refused_body_is_let_go(live: StreamingServer) -> None:
    client = live.client().send(put("refuse", MEBIBYTE), b"x" * 1000)
    assert client.read().status == 403

    live.clock.advance(3)

    assert client.is_closed_by_server()


def test_health_is_answered_although_a_long_body_comes_with_it(live: StreamingServer) -> None:
    client = live.client().send(put("healthz", 100_000), b"x" * 100_000, ECHO)

    assert client.read().body == b"ok\n"
    assert client.read().status == 200


def test_body_that_is_read_after_the_answer_fails(live: StreamingServer) -> None:
    client = live.client().send(put("refuse", 100_000), b"x" * 100_000)
    client.read()

    async def read_late() -> None:
        upload = live.behaviour.requests[0].upload
        assert upload is not None
        with pytest.raises(UnavailableError, match="ClientGone"):
            await anext(aiter(upload))

    live.call(read_late())


# Clients that leave or are slow


@pytest.mark.parametrize("leave", [Client.close, Client.reset], ids=["close", "reset"])
@pytest.mark.parametrize("sent", [0, 1, 100_000])
def test_reader_fails_at_once_when_its_client_leaves(
    live: StreamingServer, leave: Callable[[Client], None], sent: int
) -> None:
    client = live.client().send(put("noted", MEBIBYTE), b"x" * sent)
    live.until(lambda: live.behaviour.notes == ["began"])

    leave(client)

    live.until(lambda: live.behaviour.notes == ["began", "ClientGone"])
    live.until_gone()


def test_client_that_leaves_while_reading_is_paused_fails_its_reader(
    live: StreamingServer,
) -> None:
    client = live.client().send(put("slow", 40 * MEBIBYTE))
    live.until(lambda: live.behaviour.notes == ["began"])
    client.socket.settimeout(0.3)
    client.send_until_blocked(b"x" * MEBIBYTE, times=40)

    client.reset()
    live.release()

    live.until(lambda: live.behaviour.notes == ["began", "began", "ClientGone"])
    live.until_gone()


def test_whole_body_is_read_although_its_client_left(live: StreamingServer) -> None:
    client = live.client().send(put("slow", 5000), b"x" * 5000)
    live.until_taken_in(client)

    client.reset()
    live.until_left()
    live.release()

    live.until(lambda: live.behaviour.notes == ["began", "began"])
    live.until_gone()
    assert live.behaviour.notes == ["began", "began"]


def test_client_that_half_closes_inside_its_body_hears_the_failure(live: StreamingServer) -> None:
    client = live.client().send(put("noted", 5000), b"x" * 100)
    live.until(lambda: live.behaviour.notes == ["began"])

    client.socket.shutdown(socket.SHUT_WR)

    answer = client.read()
    assert (answer.status, answer.headers["x-ms-error-code"]) == (400, "ClientGone")
    assert client.is_closed_by_server()


def test_body_that_falls_silent_fails_its_reader(live: StreamingServer) -> None:
    client = live.client().send(put("noted", MEBIBYTE), b"x" * 5000)
    live.until_taken_in(client)
    upload = live.behaviour.requests[0].upload
    assert isinstance(upload, ArrivingBody)
    live.until(lambda: upload.is_awaited)

    live.clock.advance(11)

    answer = client.read()
    assert answer.headers["x-ms-error-code"] == "OperationTimedOut"
    assert answer.headers["connection"] == "close"
    assert client.is_closed_by_server()


def test_body_at_a_good_rate_may_take_its_time(live: StreamingServer) -> None:
    client = live.client().send(put("take", 100_000))
    for _ in range(5):
        client.send(b"x" * 20_000)
        live.until_taken_in(client)
        live.advance(11)

    assert client.read().echo["bytes"] == 100_000


def test_client_is_not_blamed_for_a_slow_reader(live: StreamingServer) -> None:
    client = live.client().send(put("slow", 5000), b"x" * 4000)
    live.until(lambda: live.behaviour.notes == ["began"])

    live.advance(1000)
    live.release()
    live.until(lambda: live.behaviour.notes == ["began", "began"])

    assert client.send(b"x" * 1000).read().echo["bytes"] == 5000


# Stopping


def test_stop_lets_a_stream_arrive_that_has_begun(live: StreamingServer) -> None:
    client = live.client().send(put("noted", 5000), b"x" * 100)
    live.until(lambda: live.behaviour.notes == ["began"])
    assert live.server is not None

    stopping = asyncio.run_coroutine_threadsafe(live.server.stop(PATIENCE_SECONDS), live.loop)
    live.until_stopping()
    answer = client.send(b"x" * 4900).read()

    assert (answer.echo["bytes"], answer.headers["connection"]) == (5000, "close")
    assert stopping.result(PATIENCE_SECONDS) is True


def test_stop_breaks_off_a_stream_that_does_not_end(live: StreamingServer) -> None:
    live.client().send(put("noted", 5000), b"x" * 100)
    live.until(lambda: live.behaviour.notes == ["began"])

    assert live.stop(0.05) is False

    live.until(lambda: live.behaviour.notes == ["began", "ClientGone"])


def test_stop_does_not_wait_for_the_rest_of_a_refused_body(live: StreamingServer) -> None:
    client = live.client().send(put("refuse", MEBIBYTE), b"x" * 100)
    assert client.read().status == 403
    assert live.server is not None

    stopping = asyncio.run_coroutine_threadsafe(live.server.stop(PATIENCE_SECONDS), live.loop)
    assert client.is_closed_by_server()
    client.close()

    assert stopping.result(PATIENCE_SECONDS) is True


def test_stop_lets_a_download_finish(live: StreamingServer) -> None:
    content = pattern(20 * MEBIBYTE)
    live.gives(content)
    client = live.client().send(get("give"))
    live.until(lambda: live.streaming.download.taken_bytes > 0)
    assert live.server is not None

    stopping = asyncio.run_coroutine_threadsafe(live.server.stop(PATIENCE_SECONDS), live.loop)

    assert client.read().body == content
    assert stopping.result(PATIENCE_SECONDS) is True
    assert client.is_closed_by_server()


def test_client_that_half_closes_during_a_download_gets_it_all(live: StreamingServer) -> None:
    content = pattern(20 * MEBIBYTE)
    live.gives(content)
    client = live.client().send(get("give"))
    live.until(lambda: live.streaming.download.taken_bytes > 0)

    client.socket.shutdown(socket.SHUT_WR)

    assert client.read().body == content
    assert client.is_closed_by_server()


# Downloads


@pytest.mark.parametrize("path", ["give", "give_later"])
@pytest.mark.parametrize("length", [0, 1, 100_000, 5 * MEBIBYTE + 3])
def test_download_arrives_whole_and_is_closed(
    live: StreamingServer, path: str, length: int
) -> None:
    content = pattern(length)
    download = live.gives(content)

    client = live.client().send(get(path), ECHO)

    answer = client.read()
    assert (answer.headers["content-length"], answer.body == content) == (str(length), True)
    assert client.read().status == 200
    assert download.closes == 1


def test_part_of_a_blob_keeps_its_status_and_the_spelling_of_headers(live: StreamingServer) -> None:
    live.gives(b"0123456789")
    live.streaming.status = 206
    live.streaming.headers = [("Content-Range", "bytes 0-9/100"), ("x-ms-meta-UP", "Value")]

    client = live.client().send(get("give").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))

    head, _, body = client.read_rest().partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 206 Partial Content\r\n")
    assert b"\r\nx-ms-meta-UP: Value\r\n" in head
    assert b"\r\nServer: Windows-Azure-Blob/1.0 Microsoft-HTTPAPI/2.0\r\n" in head
    assert body == b"0123456789"


def test_head_gets_the_length_of_a_download_and_reads_nothing(live: StreamingServer) -> None:
    download = live.gives(b"x" * 5000)

    client = live.client().send(get("give").replace(b"GET", b"HEAD"), ECHO)

    assert client.read(is_head=True).headers["content-length"] == "5000"
    assert client.read().status == 200
    assert (download.taken_bytes, download.closes) == (0, 1)


def test_client_that_reads_slowly_holds_a_few_pieces(live: StreamingServer) -> None:
    content = pattern(40 * MEBIBYTE)
    download = live.gives(content)
    client = live.client()
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)

    client.send(get("give"))
    live.until(lambda: download.taken_bytes > 0)
    time.sleep(0.3)

    assert download.taken_bytes < 12 * MEBIBYTE
    assert client.read().body == content


@pytest.mark.parametrize("leave", [Client.close, Client.reset], ids=["close", "reset"])
def test_download_is_closed_when_its_client_leaves(
    live: StreamingServer, leave: Callable[[Client], None]
) -> None:
    download = live.gives(pattern(40 * MEBIBYTE))
    client = live.client().send(get("give"))
    client.socket.recv(100_000)

    leave(client)

    live.until_gone()
    assert (download.closes, download.is_left) == (1, True)
    assert download.taken_bytes < download.length


def test_download_is_closed_when_its_client_left_before_the_answer(live: StreamingServer) -> None:
    download = live.gives(b"x" * 5000)

    async def give_when_released(_: Request) -> Response:
        live.behaviour.notes.append("began")
        await live.behaviour.release.wait()
        return Response(200, download=download)

    live.streaming.give = give_when_released  # type: ignore[method-assign]
    client = live.client().send(get("give"))
    live.until(lambda: live.behaviour.notes == ["began"])
    client.reset()
    live.until_left()
    live.release()

    live.until(lambda: download.closes == 1)
    live.until_gone()


def test_client_that_reads_nothing_of_a_download_is_cut_off(live: StreamingServer) -> None:
    download = live.gives(pattern(40 * MEBIBYTE))
    live.client().send(get("give"))
    live.until(lambda: download.taken_bytes > 0)

    live.until_cut_off(after_seconds=61)
    assert download.closes == 1


def test_client_that_reads_a_little_again_and_again_is_not_cut_off(live: StreamingServer) -> None:
    content = pattern(40 * MEBIBYTE)
    live.gives(content)
    client = live.client().send(get("give"))
    received = b""
    for _ in range(30):
        received += client.read_some(MEBIBYTE)
        live.advance(5)

    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert body + client.read_some(len(content) - len(body)) == content


@pytest.mark.parametrize("fault_after", [1, 3, 49])
def test_failing_download_breaks_the_connection_off(
    live: StreamingServer, fault_after: int, caplog: pytest.LogCaptureFixture
) -> None:
    download = live.gives(pattern(5 * MEBIBYTE))
    download.fault_after = fault_after
    client = live.client().send(get("give"), ECHO)

    with caplog.at_level(logging.ERROR):
        received = client.read_until_closed()

    assert len(received) < download.length
    assert (download.closes, b"/echo" in received) == (1, False)
    assert "a secret detail" in caplog.text


def test_download_that_fails_before_its_first_piece_is_an_error_answer(
    live: StreamingServer,
) -> None:
    download = live.gives(b"x" * 5000)
    download.fault_after = 0

    client = live.client().send(get("give"), ECHO)

    answer = client.read()
    assert (answer.status, answer.headers["x-ms-error-code"]) == (500, "InternalError")
    assert client.read().status == 200
    assert (b"secret" in answer.body, download.closes) == (False, 1)


@pytest.mark.parametrize("promised", [4000, 6000])
def test_download_that_does_not_keep_its_length_breaks_the_connection_off(
    live: StreamingServer, promised: int
) -> None:
    download = live.gives(b"x" * 5000, piece_bytes=1000)
    download.length = promised

    received = live.client().send(get("give"), ECHO).read_until_closed()

    assert (download.closes, b"/echo" in received) == (1, False)


def test_requests_behind_a_download_wait_for_it(live: StreamingServer) -> None:
    content = pattern(10 * MEBIBYTE)
    live.gives(content)

    client = live.client().send(get("give"), ECHO)
    live.until(lambda: live.streaming.download.taken_bytes > 0)
    time.sleep(0.1)
    assert len(live.behaviour.requests) == 1

    assert client.read().body == content
    assert client.read().echo["path"] == "/echo"


def test_download_may_answer_a_body_that_nobody_read(live: StreamingServer) -> None:
    live.gives(b"y" * 5000)

    client = live.client().send(put("give", 100_000), b"x" * 50_000)
    assert client.read().body == b"y" * 5000

    assert client.send(b"x" * 50_000, ECHO).read().echo["path"] == "/echo"


def test_log_of_a_download_has_its_length_and_the_whole_time(live: StreamingServer) -> None:
    live.start(observer=live)
    live.gives(pattern(20 * MEBIBYTE))
    client = live.client().send(get("give"))
    live.until(lambda: live.streaming.download.taken_bytes > 0)

    live.clock.advance(7)
    client.read()

    live.until(lambda: len(live.logged) == 1)
    assert live.logged[0].bytes_out == 20 * MEBIBYTE
    assert live.logged[0].ms == 7000


def test_end_of_the_loop_closes_a_download(live: StreamingServer) -> None:
    download = live.gives(pattern(40 * MEBIBYTE))
    client = live.client().send(get("give"))
    live.until(lambda: download.taken_bytes > 0)

    async def cancel_all() -> None:
        current = asyncio.current_task()
        for task in asyncio.all_tasks():
            assert task is current or task.cancel()

    live.call(cancel_all())

    client.read_until_closed()
    live.until_gone()
    assert download.closes == 1


# TLS, metadata


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    files = TlsFiles(tmp_path / "certificate.pem", tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(files.key), "-out", str(files.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return files


def test_streams_go_through_tls(live: StreamingServer, tls: TlsFiles) -> None:
    live.start(tls=tls)
    context = ssl.create_default_context(cafile=str(tls.certificate))
    content = pattern(10 * MEBIBYTE)
    download = live.gives(content)

    client = live.client(context=context).send(put("take", len(content)), content)

    assert client.read().echo == seen_of(content)
    assert client.send(get("give")).read().body == content
    assert download.closes == 1


def test_tls_client_that_leaves_fails_its_reader(live: StreamingServer, tls: TlsFiles) -> None:
    live.start(tls=tls)
    context = ssl.create_default_context(cafile=str(tls.certificate))
    client = live.client(context=context).send(put("noted", MEBIBYTE), b"x" * 5000)
    live.until(lambda: live.behaviour.notes == ["began"])

    client.close()

    live.until(lambda: live.behaviour.notes == ["began", "ClientGone"])
    live.until_gone()


def test_names_of_metadata_keep_their_spelling(live: StreamingServer) -> None:
    lines = b"x-ms-meta-UP: 1\r\nX-Ms-Meta-miXed: 2\r\nX-MS-Date: 3\r\n"

    live.client().send(ECHO[:-2] + lines + b"\r\n" + ECHO).send().read()

    live.until(lambda: len(live.behaviour.requests) == 2)
    first, second = live.behaviour.requests
    assert first.spelled == {"x-ms-meta-up": "x-ms-meta-UP", "x-ms-meta-mixed": "X-Ms-Meta-miXed"}
    assert first.headers["x-ms-meta-up"] == "1"
    assert second.spelled == {}


def test_spelling_of_a_refused_request_does_not_reach_the_next(live: StreamingServer) -> None:
    live.client().send(ECHO[:-2] + b"x-ms-meta-A: 1\r\nHost: b\r\n\r\n").read()

    live.client().send(ECHO).read()

    assert [request.spelled for request in live.behaviour.requests] == [{}]
