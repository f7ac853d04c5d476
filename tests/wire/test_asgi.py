"""The ASGI face: called directly, and hosted by uvicorn."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from partita.clock import ManualClock
from partita.service.asgi import AsgiApp, asgi_app
from partita.service.http_wire import HttpLimits
from partita.service.request import Request, Response

PATIENCE_SECONDS = 20


async def echo(request: Request) -> Response:
    if request.path == "/boom":
        raise ValueError("a secret detail")
    if request.path == "/evil":
        return Response(200, [("X-Own", "a\r\nX-Evil: 1")], b"")
    if request.path == "/empty":
        return Response(204)
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


async def test_length_that_is_no_number_is_refused() -> None:
    start, _ = await call(asgi_app(echo), a_scope(headers=[(b"content-length", b"3, 3")]))

    assert start["status"] == 400


async def test_client_that_leaves_inside_its_body_is_not_answered() -> None:
    sent = await call(
        asgi_app(echo),
        a_scope(),
        {"type": "http.request", "body": b"1", "more_body": True},
        {"type": "http.disconnect"},
    )

    assert sent == []


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


@pytest.fixture
def hosted() -> Iterator[http.client.HTTPConnection]:
    """A connection to uvicorn, in a thread, with our application."""
    config = uvicorn.Config(
        asgi_app(echo), port=0, log_level="warning", server_header=False, loop="asyncio"
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
