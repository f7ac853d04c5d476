"""The ASGI face: called directly, and hosted by uvicorn."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import uvicorn

from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.service.formats.error_wire import status_of
from partita.service.hosting.asgi import FOLD_REQUESTS, AsgiApp, asgi_app
from partita.service.http.message_bytes import BLOB_DIALECT, HttpLimits
from partita.service.http.request import Request, Response
from partita.service.http.streams import with_whole_body
from partita.service.observing import ServiceMeter

PATIENCE_SECONDS = 60


async def echo(request: Request) -> Response:
    if request.path == "/boom":
        raise ValueError("a secret detail")
    if request.path == "/evil":
        return Response(200, [("X-Own", "a\r\nX-Evil: 1")], b"")
    if request.path == "/taken":
        assert request.upload is not None
        count = sum([len(piece) async for piece in request.upload])
        return Response(200, download=ADownload(*[b"x" * 100_000] * (count // 100_000)))
    if request.path == "/empty":
        return Response(204)
    try:
        request = await with_whole_body(request)
    except PartitaError as error:
        return Response(status_of(error), [], error.code.encode())
    seen = {
        "method": request.method,
        "path": request.path,
        "query": request.query,
        "headers": request.headers,
        "body": request.body.decode("latin-1"),
        "peer": request.peer,
        "scheme": request.scheme,
        "repeated": sorted(request.repeated),
    }
    return Response(200, [("Content-Type", "application/json")], json.dumps(seen).encode())


def a_scope(**changes: Any) -> dict[str, Any]:
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/decoded é/b",
        "raw_path": b"/raw%20%C3%A9%2Fb",
        "query_string": b"$filter=a%20eq%201",
        "headers": [(b"host", b"a")],
        "client": ("192.0.2.7", 1234),
        "scheme": "https",
    }
    return scope | changes


async def call(
    app: AsgiApp, scope: dict[str, Any], *incoming: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run the application on these messages and return what it sent."""
    waiting = list(incoming) or [{"type": "http.request", "body": b""}]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if not waiting:
            await asyncio.sleep(PATIENCE_SECONDS)
        return waiting.pop(0)

    async def send(message: Any) -> None:
        sent.append(dict(message))

    await app(scope, receive, send)
    return sent


async def test_raw_path_and_query_are_used_not_the_decoded_path() -> None:
    _, body = await call(asgi_app(echo), a_scope())

    seen = json.loads(body["body"])
    assert (seen["path"], seen["query"]) == ("/raw%20%C3%A9%2Fb", "$filter=a%20eq%201")
    assert (seen["peer"], seen["scheme"]) == ("192.0.2.7", "https")


@pytest.mark.parametrize("path", ["/0.1", "/0/0.1", "/0.1/0"])
async def test_turns_are_measured_logged_and_exported(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()

    async def slow(request: Request) -> Response:
        first, _, second = request.path.removeprefix("/").partition("/")
        clock.advance(float(first))
        if second:
            asyncio.get_running_loop().call_soon(clock.advance, 5)  # a wait is not a turn
            await asyncio.sleep(0)
            clock.advance(float(second))
        return Response(200, [], b"ok")

    app = asgi_app(slow, clock=clock)
    await call(app, a_scope(raw_path=path.encode(), query_string=b"sig=secret"))

    assert [record.getMessage() for record in caplog.records] == [
        f"the event loop was held for 100 ms by GET {path}?sig=REDACTED from 192.0.2.7"
    ]
    _, metrics = await call(app, a_scope(raw_path=b"/metrics"))
    lines = metrics["body"].decode().splitlines()
    assert "partita_loop_turn_seconds_max 0.100000" in lines
    assert "partita_loop_long_turns_total 1" in lines


async def test_server_that_hands_in_no_raw_path_is_refused() -> None:
    scope = a_scope()
    del scope["raw_path"]

    with pytest.raises(RuntimeError, match="raw_path"):
        await call(asgi_app(echo), scope)


async def test_header_sent_twice_is_joined_and_named() -> None:
    headers = [(b"host", b"a"), (b"X-A", b"1"), (b"x-a", b" 2 ")]

    _, body = await call(asgi_app(echo), a_scope(headers=headers))

    seen = json.loads(body["body"])
    assert seen["headers"] == {"host": "a", "x-a": "1, 2"}
    assert seen["repeated"] == ["x-a"]


async def test_body_in_parts_is_put_together() -> None:
    _, body = await call(
        asgi_app(echo),
        a_scope(method="POST"),
        {"type": "http.request", "body": b"ab", "more_body": True},
        {"type": "http.request", "more_body": True},
        {"type": "http.request", "body": b"cd"},
    )

    assert json.loads(body["body"])["body"] == "abcd"


async def test_body_over_the_limit_is_refused_before_it_is_read() -> None:
    app = asgi_app(echo, limits=HttpLimits(body_bytes_max=10), clock=ManualClock())
    headers = [(b"content-length", b"11")]

    start, body = await call(
        app,
        a_scope(headers=headers),
        {"type": "reading this would fail the test"},
    )

    assert start["status"] == 413
    assert json.loads(body["body"])["odata.error"]["code"] == "RequestBodyTooLarge"


async def test_body_without_length_over_the_limit_is_refused_while_it_is_read() -> None:
    app = asgi_app(echo, limits=HttpLimits(body_bytes_max=10))

    start, _ = await call(
        app,
        a_scope(),
        {"type": "http.request", "body": b"123456", "more_body": True},
        {"type": "http.request", "body": b"123456", "more_body": True},
    )

    assert start["status"] == 413


async def test_length_that_is_not_a_number_is_refused() -> None:
    start, _ = await call(asgi_app(echo), a_scope(headers=[(b"content-length", b"3, 3")]))

    assert start["status"] == 400


async def test_client_that_leaves_inside_its_body_ends_the_request() -> None:
    start, body = await call(
        asgi_app(echo),
        a_scope(),
        {"type": "http.request", "body": b"1", "more_body": True},
        {"type": "http.disconnect"},
    )

    assert (start["status"], body["body"]) == (400, b"ClientGone")


async def test_request_is_started_before_its_whole_body_is_received() -> None:
    async def refuse(request: Request) -> Response:
        return Response(403 if request.upload is not None else 200)

    start, _ = await call(
        asgi_app(refuse),
        a_scope(headers=[(b"content-length", b"4000000")]),
        {"type": "http.request", "body": b"1", "more_body": True},
        {"type": "reading this would fail the test"},
    )

    assert start["status"] == 403


async def test_answer_carries_server_and_length() -> None:
    start, body = await call(asgi_app(echo), a_scope(raw_path=b"/empty"))

    assert (start["status"], body["body"]) == (204, b"")
    assert start["headers"] == [
        (b"server", b"Windows-Azure-Table/1.0 Microsoft-HTTPAPI/2.0"),
        (b"content-length", b"0"),
    ]


async def test_header_value_cannot_start_another_line() -> None:
    start, _ = await call(asgi_app(echo), a_scope(raw_path=b"/evil"))

    assert (b"X-Own", b"a  X-Evil: 1") in start["headers"]


async def test_head_gets_the_length_and_no_body() -> None:
    start, body = await call(asgi_app(echo), a_scope(method="HEAD"))

    assert int(dict(start["headers"])[b"content-length"]) > 0
    assert body["body"] == b""


async def test_escaped_error_is_logged_and_tells_the_client_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    start, body = await call(asgi_app(echo), a_scope(raw_path=b"/boom"))

    assert start["status"] == 500
    assert json.loads(body["body"])["odata.error"]["code"] == "InternalError"
    assert b"secret" not in body["body"]
    assert "a secret detail" in caplog.text


# Streams

STREAMING = HttpLimits(stream_above_bytes=10, body_bytes_max=1000)


class ADownload:
    def __init__(self, *pieces: bytes, length: int | None = None) -> None:
        self.length = sum(map(len, pieces)) if length is None else length
        self.closes = 0
        self.taken: list[bytes] = []
        self._pieces = pieces

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            await asyncio.sleep(0)
            self.taken.append(piece)
            yield piece

    async def close(self) -> None:
        self.closes += 1


async def take(request: Request) -> Response:
    if request.upload is None:
        return Response(200, body=b"whole " + request.body)
    try:
        pieces = [piece async for piece in request.upload]
    except PartitaError as error:
        return Response(400, body=error.code.encode())
    return Response(200, body=b"%r %s" % (request.upload.length, b"|".join(pieces)))


def a_part(body: bytes, *, has_more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": has_more}


@pytest.mark.parametrize(
    ("headers", "incoming", "answer"),
    [
        ([(b"content-length", b"8")], [a_part(b"01234567", has_more=False)], b"whole 01234567"),
        ([(b"content-length", b"12")], [a_part(b"abcdef"), a_part(b"ghijkl", has_more=False)],
         b"12 abcdef|ghijkl"),
        ([(b"transfer-encoding", b"chunked")], [a_part(b"abc"), a_part(b"", has_more=False)],
         b"None abc"),
        ([], [a_part(b"abc"), a_part(b""), a_part(b"d", has_more=False)], b"None abc|d"),
        ([], [a_part(b"abc", has_more=False)], b"whole abc"),
        ([], [a_part(b"", has_more=False)], b"whole "),
        ([(b"content-length", b"12")], [a_part(b"abc"), {"type": "http.disconnect"}],
         b"ClientGone"),
        ([(b"content-length", b"12")], [a_part(b"abc", has_more=False)], b"ClientGone"),
        ([(b"content-length", b"12")], [a_part(b"x" * 13, has_more=False)], b"InvalidInput"),
        ([(b"transfer-encoding", b"chunked")], [a_part(b"x" * 1001)], b"RequestBodyTooLarge"),
    ],
)  # fmt: skip
async def test_long_body_is_handed_on_as_the_host_gives_it(
    headers: list[tuple[bytes, bytes]], incoming: list[dict[str, Any]], answer: bytes
) -> None:
    app = asgi_app(take, limits=STREAMING)

    _, body = await call(app, a_scope(method="PUT", headers=headers), *incoming)

    assert body["body"] == answer


async def test_body_that_nobody_reads_is_not_asked_for() -> None:
    async def refuse(_: Request) -> Response:
        return Response(403)

    app = asgi_app(refuse, limits=STREAMING)
    headers = [(b"content-length", b"100")]

    start, _ = await call(
        app, a_scope(method="PUT", headers=headers), {"type": "reading this would fail the test"}
    )

    assert start["status"] == 403


def giving(download: ADownload) -> AsgiApp:
    async def give(_: Request) -> Response:
        return Response(206, [("x-ms-meta-UP", "1")], download=download)

    return asgi_app(give, limits=STREAMING, dialect=BLOB_DIALECT)


async def test_download_goes_out_in_pieces_and_is_closed() -> None:
    download = ADownload(b"abc", b"de")

    start, *pieces = await call(giving(download), a_scope())

    assert start["headers"] == [
        (b"x-ms-meta-UP", b"1"),
        (b"server", b"Windows-Azure-Blob/1.0 Microsoft-HTTPAPI/2.0"),
        (b"content-length", b"5"),
    ]
    assert [(piece["body"], piece["more_body"]) for piece in pieces] == [
        (b"abc", True),
        (b"de", True),
        (b"", False),
    ]
    assert download.closes == 1


async def test_head_gets_the_length_of_a_download_and_reads_nothing() -> None:
    download = ADownload(b"abc")

    start, body = await call(giving(download), a_scope(method="HEAD"))

    assert dict(start["headers"])[b"content-length"] == b"3"
    assert (body["body"], download.taken, download.closes) == (b"", [], 1)


async def test_download_ends_when_the_client_leaves() -> None:
    download = ADownload(*[b"abc"] * 1000)

    sent = await call(
        giving(download), a_scope(), a_part(b"", has_more=False), {"type": "http.disconnect"}
    )

    assert len(sent) < 100
    assert (len(download.taken) < 100, download.closes) == (True, 1)


@pytest.mark.parametrize("promised", [4, 6])
async def test_download_that_does_not_keep_its_length_is_left_unfinished(promised: int) -> None:
    download = ADownload(b"abc", b"de", length=promised)
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(1000)
        return {}

    async def send(message: Any) -> None:
        sent.append(message)

    with pytest.raises(RuntimeError):
        await giving(download)(
            a_scope(headers=[(b"content-length", b"0")]), receive_once(receive), send
        )

    assert download.closes == 1
    assert all(message.get("more_body", True) for message in sent)


def receive_once(then: Any) -> Any:
    waiting = [a_part(b"", has_more=False)]

    async def receive() -> Any:
        return waiting.pop() if waiting else await then()

    return receive


async def test_lifespan_is_accepted() -> None:
    sent = await call(
        asgi_app(echo),
        {"type": "lifespan"},
        {"type": "lifespan.startup"},
        {"type": "lifespan.shutdown"},
    )

    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]


async def test_websocket_is_declined() -> None:
    sent = await call(asgi_app(echo), {"type": "websocket"})

    assert [message["type"] for message in sent] == ["websocket.close"]


HOSTED = HttpLimits(stream_above_bytes=65_536)


@pytest.fixture
def hosted() -> Iterator[http.client.HTTPConnection]:
    """A connection to uvicorn, in a thread, with our application."""
    config = uvicorn.Config(
        asgi_app(echo, limits=HOSTED),
        port=0,
        log_level="warning",
        server_header=False,
        loop="asyncio",
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not server.started:
        assert time.monotonic() < deadline, "uvicorn did not start"
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
    yield connection
    connection.close()
    server.should_exit = True
    thread.join()


def test_uvicorn_hosts_the_same_respond(hosted: http.client.HTTPConnection) -> None:
    hosted.request("MERGE", "/T(PartitionKey='a%2Fb',RowKey='%C3%A9')?x=%20", body=b"abc")
    response = hosted.getresponse()

    seen = json.loads(response.read())
    assert response.getheader("Server") == "Windows-Azure-Table/1.0 Microsoft-HTTPAPI/2.0"
    assert (seen["method"], seen["body"], seen["peer"]) == ("MERGE", "abc", "127.0.0.1")
    assert (seen["path"], seen["query"]) == ("/T(PartitionKey='a%2Fb',RowKey='%C3%A9')", "x=%20")


def test_uvicorn_sends_an_empty_answer_and_keeps_the_connection(
    hosted: http.client.HTTPConnection,
) -> None:
    for _ in range(2):
        hosted.request("GET", "/empty")
        response = hosted.getresponse()
        assert (response.status, response.read()) == (204, b"")


def test_uvicorn_passes_on_a_refusal(hosted: http.client.HTTPConnection) -> None:
    hosted.putrequest("POST", "/x")
    hosted.putheader("Content-Length", str(5 * 1024 * 1024))
    hosted.endheaders()

    assert hosted.getresponse().status == 413


def test_uvicorn_streams_both_ways(hosted: http.client.HTTPConnection) -> None:
    for _ in range(2):
        hosted.request("PUT", "/taken", body=b"y" * 4_000_000)
        response = hosted.getresponse()

        assert response.read() == b"x" * 4_000_000


async def test_an_observer_is_told_about_each_answer() -> None:
    meter = ServiceMeter("tables")
    app = asgi_app(echo, observer=meter)

    for _ in range(FOLD_REQUESTS + 1):
        await call(app, a_scope())

    assert meter.facts()["requests_total"] == FOLD_REQUESTS + 1
