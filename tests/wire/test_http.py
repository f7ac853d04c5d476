"""The HTTP protocol over raw sockets, on a live server, on both event loops."""

import asyncio
import contextlib
import logging
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from partita.errors import ConfigurationError
from partita.loop_thread import new_event_loop
from partita.service.hosting.server import Server, TlsFiles
from partita.service.http.connections import ByteBudget, peer_of
from partita.service.http.message_bytes import HttpLimits
from partita.service.http.request import Response
from wire.live_http import PATIENCE_SECONDS, Answer, Behaviour, Client, LiveServer

ECHO = b"GET /echo HTTP/1.1\r\nHost: a\r\n\r\n"
START = b"POST /echo HTTP/1.1\r\nHost: a\r\n"
CHUNKED = START + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def live(request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    live = LiveServer(request.param())
    yield live
    live.tear_down()


# Requests as they come in


def test_request_carries_raw_path_query_headers_body_and_peer(live: LiveServer) -> None:
    target = b"/echo/T(PartitionKey='a%2Fb',RowKey='%C3%A9')?$filter=a%20eq%20'b'&x=?"

    client = live.client().send(
        b"PUT %s HTTP/1.1\r\nHost: h:1\r\nX-Ms-Date: \t now \t\r\nX-Empty:\r\n"
        b"Content-Length: 3\r\n\r\nabc" % target
    )

    assert client.read().echo == {
        "method": "PUT",
        "path": "/echo/T(PartitionKey='a%2Fb',RowKey='%C3%A9')",
        "query": "$filter=a%20eq%20'b'&x=?",
        "headers": {"host": "h:1", "x-ms-date": "now", "x-empty": "", "content-length": "3"},
        "body": "abc",
        "peer": "127.0.0.1",
        "scheme": "http",
        "repeated": [],
    }


@pytest.mark.parametrize("method", ["GET", "PUT", "POST", "MERGE", "PATCH", "DELETE", "OPTIONS"])
def test_every_method_of_the_protocol_reaches_respond(live: LiveServer, method: str) -> None:
    client = live.client().send(f"{method} /echo HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    assert client.read().echo["method"] == method


def test_request_may_arrive_byte_by_byte(live: LiveServer) -> None:
    request = START + b"X-Long-Name: v w\r\nContent-Length: 4\r\n\r\nbody"

    client = live.client()
    client.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.send(*(bytes([byte]) for byte in request))

    echo = client.read().echo
    assert (echo["headers"]["x-long-name"], echo["body"]) == ("v w", "body")


def test_header_sent_twice_is_joined_and_named(live: LiveServer) -> None:
    client = live.client().send(ECHO[:-2] + b"X-A: 1\r\nx-a: 2\r\nX-B: 3\r\n\r\n")

    echo = client.read().echo
    assert echo["headers"]["x-a"] == "1, 2"
    assert echo["repeated"] == ["x-a"]


def test_repeated_headers_of_one_request_do_not_reach_the_next(live: LiveServer) -> None:
    client = live.client().send(ECHO[:-2] + b"X-A: 1\r\nX-A: 2\r\n\r\n", ECHO)

    client.read()
    assert client.read().echo["repeated"] == []


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://other:8080/echo/a?b=c", "/echo/a", "b=c"),
        ("HTTPS://other:8080/echo", "/echo", ""),
        ("http://other:8080/echo?http://x/y", "/echo", "http://x/y"),
    ],
)
def test_absolute_target_is_stripped_and_names_the_host(
    live: LiveServer, target: str, path: str, query: str
) -> None:
    client = live.client().send(f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode())

    echo = client.read().echo
    assert (echo["path"], echo["query"], echo["headers"]["host"]) == (path, query, "other:8080")


def test_chunked_body_is_put_together_and_its_trailers_dropped(live: LiveServer) -> None:
    client = live.client().send(
        CHUNKED + b"3\r\nabc\r\n5;note=x\r\ndefgh\r\n1\r\ni\r\n0\r\nHost: evil\r\nX-T: 1\r\n\r\n",
        ECHO,
    )

    echo = client.read().echo
    assert echo["body"] == "abcdefghi"
    assert echo["headers"] == {"host": "a", "transfer-encoding": "chunked"}
    assert client.read().echo["headers"] == {"host": "a"}


def test_body_of_exactly_the_limit_is_taken(live: LiveServer) -> None:
    live.start(limits=HttpLimits(body_bytes_max=300_000))

    client = live.client().send(START + b"Content-Length: 300000\r\n\r\n" + b"y" * 300_000)

    assert client.read().echo["body"] == "y" * 300_000


def test_offer_to_upgrade_is_ignored(live: LiveServer) -> None:
    client = live.client().send(
        ECHO[:-2] + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n" + ECHO
    )

    assert [client.read().status, client.read().status] == [200, 200]


def test_request_after_an_offer_to_upgrade_is_refused_for_its_own_fault(live: LiveServer) -> None:
    offer = ECHO[:-2] + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n"

    client = live.client().send(offer + START + b"Content-Length: 10737418240\r\n\r\n")

    assert [client.read().status, client.read().status] == [200, 413]


# Answers as they go out


def test_answer_carries_server_date_and_length(live: LiveServer) -> None:
    live.behaviour.response = Response(200, [("X-Own", "1")], b"hello")

    answer = live.client().send(ECHO.replace(b"echo", b"given")).read()

    assert answer == Answer(
        200,
        {
            "server": "Windows-Azure-Table/1.0 Microsoft-HTTPAPI/2.0",
            "date": "Tue, 14 Nov 2023 22:13:20 GMT",
            "x-own": "1",
            "content-length": "5",
        },
        b"hello",
    )


def test_date_follows_the_clock(live: LiveServer) -> None:
    client = live.client().send(ECHO)
    before = client.read().headers["date"]

    live.clock.jump(3600)

    live.until(lambda: client.send(ECHO).read().headers["date"] != before)
    assert client.send(ECHO).read().headers["date"] == "Tue, 14 Nov 2023 23:13:20 GMT"


def test_answer_without_content_says_length_zero(live: LiveServer) -> None:
    live.behaviour.response = Response(204)

    client = live.client().send(ECHO.replace(b"echo", b"given"), ECHO)

    assert client.read().headers["content-length"] == "0"
    assert client.read().status == 200


def test_not_modified_has_no_length(live: LiveServer) -> None:
    live.behaviour.response = Response(304, [("ETag", "x")])

    client = live.client().send(ECHO.replace(b"echo", b"given"), ECHO)

    assert "content-length" not in client.read().headers
    assert client.read().status == 200


def test_head_gets_the_length_and_no_body(live: LiveServer) -> None:
    live.behaviour.response = Response(200, [], b"hello")

    client = live.client().send(b"HEAD /given HTTP/1.1\r\nHost: a\r\n\r\n", ECHO)

    assert client.read(is_head=True).headers["content-length"] == "5"
    assert client.read().status == 200


@pytest.mark.parametrize("evil", ["a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\rX-Evil: 1", "a\0b"])
def test_header_value_cannot_start_another_line(live: LiveServer, evil: str) -> None:
    live.behaviour.response = Response(200, [("X-Own", evil), ("X-Next", "\u0416")], b"")

    client = live.client().send(ECHO.replace(b"echo", b"given")[:-2] + b"Connection: close\r\n\r\n")

    lines = client.read_rest().split(b"\r\n")
    assert [line for line in lines if line.lower().startswith(b"x-evil")] == []
    assert [line for line in lines if b"\r" in line or b"\n" in line or b"\0" in line] == []
    assert b"X-Next: ?" in lines


def test_large_answer_arrives_whole(live: LiveServer) -> None:
    client = live.client().send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")

    assert client.read().body == b"x" * 1024 * 1024


def test_unknown_status_still_makes_a_status_line(live: LiveServer) -> None:
    live.behaviour.response = Response(299, [], b"odd")

    assert live.client().send(ECHO.replace(b"echo", b"given")).read().status == 299


# The life of a connection


def test_connection_is_kept_for_the_next_request(live: LiveServer) -> None:
    client = live.client()

    assert client.send(ECHO).read().status == 200
    answer = client.send(ECHO).read()

    assert answer.status == 200
    assert "connection" not in answer.headers


def test_client_may_ask_to_close(live: LiveServer) -> None:
    client = live.client().send(ECHO[:-2] + b"Connection: close\r\n\r\n")

    assert client.read().headers["connection"] == "close"
    assert client.is_closed_by_server()


def test_http_1_0_closes_unless_asked_to_keep(live: LiveServer) -> None:
    client = live.client().send(b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert client.read().headers["connection"] == "keep-alive"

    client.send(b"GET /echo HTTP/1.0\r\n\r\n")
    assert client.read().headers["connection"] == "close"
    assert client.is_closed_by_server()


def test_what_follows_the_last_request_is_not_served(live: LiveServer) -> None:
    client = live.client().send(ECHO[:-2] + b"Connection: close\r\n\r\n" + ECHO)

    assert client.read().status == 200
    assert client.is_closed_by_server()
    assert len(live.behaviour.requests) == 1


def test_client_that_half_closes_gets_its_answers(live: LiveServer) -> None:
    client = live.client().send(b"GET /wait?1 HTTP/1.1\r\nHost: a\r\n\r\n" + ECHO)
    live.until(lambda: live.behaviour.notes == ["began"])

    client.socket.shutdown(socket.SHUT_WR)
    live.until_left()
    live.release()

    assert client.read().body == b"1"
    assert client.read().headers["connection"] == "close"
    assert client.is_closed_by_server()


def test_client_that_half_closes_inside_a_request_is_refused(live: LiveServer) -> None:
    client = live.client().send(ECHO + START + b"Content-Length: 5\r\n\r\nab")
    assert client.read().status == 200

    client.socket.shutdown(socket.SHUT_WR)

    assert client.read().error_code == "ClientGone"
    assert client.is_closed_by_server()


def test_pipelined_requests_are_answered_in_order(live: LiveServer) -> None:
    client = live.client().send(
        b"GET /wait?first HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /echo?second HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /wait?third HTTP/1.1\r\nHost: a\r\n\r\n",
    )
    live.until(lambda: live.behaviour.notes == ["began"])
    assert len(live.behaviour.requests) == 1

    live.release()

    assert client.read().body == b"first"
    assert client.read().echo["query"] == "second"
    assert client.read().body == b"third"


def test_reading_pauses_while_too_many_requests_wait(live: LiveServer) -> None:
    client = live.client().send(b"GET /wait?first HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: live.behaviour.notes == ["began"])
    padded = ECHO[:-2] + b"X-Pad: " + b"p" * 30_000 + b"\r\n\r\n"

    client.socket.settimeout(0.5)
    sent = client.send_until_blocked(padded, times=4000)
    whole = sent // len(padded)
    client.socket.settimeout(PATIENCE_SECONDS)
    live.release()

    assert client.read().body == b"first"
    assert {client.read().status for _ in range(whole)} == {200}


def test_requests_wait_while_the_client_does_not_read(live: LiveServer) -> None:
    request = b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"

    client = live.client().send(request * 200)
    live.until(lambda: len(live.behaviour.requests) > 0)
    time.sleep(0.2)
    begun = len(live.behaviour.requests)

    assert begun < 100
    assert {len(client.read().body) for _ in range(200)} == {1024 * 1024}


# Driving respond without a task


def test_answer_that_is_ready_needs_no_task(live: LiveServer) -> None:
    assert live.client().send(ECHO.replace(b"echo", b"no_task")).read().body == b"True"


def test_respond_goes_on_in_a_task_once_it_suspends(live: LiveServer) -> None:
    assert live.client().send(ECHO.replace(b"echo", b"tasks")).read().body == b"True True"


def test_error_of_the_first_awaited_future_reaches_respond(live: LiveServer) -> None:
    assert live.client().send(ECHO.replace(b"echo", b"recover")).read().body == b"recovered"


@pytest.mark.parametrize("leave", [Client.close, Client.reset], ids=["close", "reset"])
def test_request_finishes_although_its_client_went_away(
    live: LiveServer, leave: Callable[[Client], None]
) -> None:
    client = live.client().send(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: live.behaviour.notes == ["began"])

    leave(client)
    live.until_left()
    live.release()

    live.until(lambda: live.behaviour.notes == ["began", "finished"])
    live.until(lambda: live.server is not None and live.server.connection_count == 0)


def test_request_that_waits_behind_another_is_dropped_with_its_client(live: LiveServer) -> None:
    client = live.client().send(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n", ECHO)
    live.until(lambda: live.behaviour.notes == ["began"])

    live.until_taken_in(client)

    client.reset()
    live.until_left()
    live.release()

    live.until(lambda: live.server is not None and live.server.connection_count == 0)
    assert [request.path for request in live.behaviour.requests] == ["/wait"]


def test_end_of_the_loop_reaches_respond_as_a_cancellation(live: LiveServer) -> None:
    client = live.client().send(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: live.behaviour.notes == ["began"])

    async def cancel_all() -> None:
        current = asyncio.current_task()
        for task in asyncio.all_tasks():
            assert task is current or task.cancel()

    live.call(cancel_all())

    assert client.is_closed_by_server()
    assert live.behaviour.notes == ["began", "cancelled"]
    live.until(lambda: live.server is not None and live.server.connection_count == 0)


@pytest.mark.parametrize("path", ["boom", "late_boom"])
def test_escaped_error_is_logged_and_tells_the_client_nothing(
    live: LiveServer, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    client = live.client().send(ECHO.replace(b"echo", path.encode()))

    answer = client.read()
    assert (answer.status, answer.error_code) == (500, "InternalError")
    assert b"secret" not in answer.body
    assert answer.headers["x-ms-request-id"].encode() in answer.body
    assert "a secret detail" in caplog.text
    assert "Traceback" in caplog.text
    assert client.send(ECHO).read().status == 200


# What is refused

MALFORMED: dict[str, tuple[bytes, int]] = {
    "transfer encoding and length": (
        START + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        400,
    ),
    "length and transfer encoding": (
        START + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        400,
    ),
    "xchunked": (START + b"Transfer-Encoding: xchunked\r\n\r\n", 400),
    "identity": (START + b"Transfer-Encoding: identity\r\n\r\n", 400),
    "chunked twice": (
        START + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        400,
    ),
    "gzip before chunked": (START + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "chunked in http 1.0": (
        b"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
    ),
    "two lengths": (START + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
    "length list": (START + b"Content-Length: 3, 3\r\n\r\nabc", 400),
    "negative length": (START + b"Content-Length: -3\r\n\r\nabc", 400),
    "signed length": (START + b"Content-Length: +3\r\n\r\nabc", 400),
    "length past 64 bits": (START + b"Content-Length: 99999999999999999999999\r\n\r\n", 400),
    "bare lf everywhere": (b"GET /echo HTTP/1.1\nHost: a\n\n", 400),
    "bare lf after the request line": (b"GET /echo HTTP/1.1\nHost: a\r\n\r\n", 400),
    "bare lf in headers": (b"GET /echo HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400),
    "bare lf at the end": (b"GET /echo HTTP/1.1\r\nHost: a\r\n\n", 400),
    "bare lf in front": (b"\n" + ECHO, 400),
    "bare cr in a value": (b"GET /echo HTTP/1.1\r\nHost: a\rX: b\r\n\r\n", 400),
    "folded header": (ECHO[:-2] + b"X: b\r\n c\r\n\r\n", 400),
    "folded first header": (b"GET /echo HTTP/1.1\r\n Host: a\r\n\r\n", 400),
    "space before the colon": (b"GET /echo HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "space in a header name": (ECHO[:-2] + b"X Y: b\r\n\r\n", 400),
    "empty header name": (ECHO[:-2] + b": b\r\n\r\n", 400),
    "no colon": (ECHO[:-2] + b"X\r\n\r\n", 400),
    "nul in a value": (ECHO[:-2] + b"X: a\0b\r\n\r\n", 400),
    "control in a value": (ECHO[:-2] + b"X: a\x01b\r\n\r\n", 400),
    "delete in a value": (ECHO[:-2] + b"X: a\x7fb\r\n\r\n", 400),
    "nul in the target": (b"GET /echo\0 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "control in the target": (b"GET /echo\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "tab in the target": (b"GET /echo\tb HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "raw utf-8 in the target": (b"GET /echo\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "space in the target": (b"GET /echo b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "fragment in the target": (b"GET /echo#b HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "relative target": (b"GET echo HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target of another scheme": (b"GET ftp://a/echo HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "target with a user": (b"GET http://u@a/echo HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "no host": (b"GET /echo HTTP/1.1\r\n\r\n", 400),
    "no host but a connection": (b"GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n", 400),
    "two hosts": (ECHO[:-2] + b"Host: b\r\n\r\n", 400),
    "lf in a chunk extension": (CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n", 400),
    "lf after a chunk extension": (CHUNKED + b"3;a=b\nabc\r\n0\r\n\r\n", 400),
    "lf after a chunk size": (CHUNKED + b"3\nabc\r\n0\r\n\r\n", 400),
    "lf after chunk bytes": (CHUNKED + b"3\r\nabc\n0\r\n\r\n", 400),
    "chunk longer than its size": (CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n", 400),
    "hexadecimal prefix of a chunk": (CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n", 400),
    "negative chunk": (CHUNKED + b"-3\r\nabc\r\n0\r\n\r\n", 400),
    "chunk size past 64 bits": (CHUNKED + b"f" * 20 + b"\r\nabc\r\n0\r\n\r\n", 400),
    "lf in trailers": (CHUNKED + b"0\r\nX: y\n\r\n", 400),
    "length in trailers": (CHUNKED + b"0\r\nContent-Length: 4\r\n\r\n", 400),
    "words": (b"hello world\r\n\r\n", 400),
    "zeros": (b"\0" * 100, 400),
    "tls hello": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "unknown method": (b"BREW /echo HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "method in small letters": (b"get /echo HTTP/1.1\r\nHost: a\r\n\r\n", 501),
    "upgrade with a body": (
        START + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc",
        501,
    ),
    "http 2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "http 0.9": (b"GET /echo\r\n\r\n", 505),
    "http 1.2": (b"GET /echo HTTP/1.2\r\nHost: a\r\n\r\n", 505),
    "http 2.0 by name": (b"GET /echo HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    "request line of 64 KiB": (b"GET /echo?" + b"a" * 65536 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "unfinished request line": (b"GET /echo?" + b"a" * 65536, 414),
    "one header of 64 KiB": (ECHO[:-2] + b"X: " + b"a" * 65536 + b"\r\n\r\n", 431),
    "header section of 64 KiB": (
        ECHO[:-2] + b"".join(b"X%d: %s\r\n" % (n, b"a" * 1000) for n in range(64)) + b"\r\n",
        431,
    ),
    "unfinished header": (ECHO[:-2] + b"X: " + b"a" * 400_000, 431),
    "unfinished header name": (ECHO[:-2] + b"a" * 400_000, 431),
    "1,000 headers": (ECHO[:-2] + b"".join(b"X%d: 1\r\n" % n for n in range(1000)) + b"\r\n", 431),
    "101 headers": (ECHO[:-2] + b"".join(b"X%d: 1\r\n" % n for n in range(100)) + b"\r\n", 431),
    "one header 101 times": (ECHO[:-2] + b"X: 1\r\n" * 100 + b"\r\n", 431),
    "one header 1,000 times": (ECHO[:-2] + b"X: 1\r\n" * 1000 + b"\r\n", 431),
    "endless empty lines": (b"\r\n" * 200_000, 431),
    "endless trailers": (CHUNKED + b"0\r\n" + b"X: 1\r\n" * 100_000, 413),
    "endless trailer": (CHUNKED + b"0\r\nX: " + b"a" * 600_000, 413),
    "endless chunk extension": (CHUNKED + b"3;a=" + b"a" * 600_000, 413),
    "body of 10 GB": (START + b"Content-Length: 10737418240\r\n\r\n", 413),
    "body of 10 GB, asked for": (
        START + b"Expect: 100-continue\r\nContent-Length: 10737418240\r\n\r\n",
        413,
    ),
    "unknown expectation": (START + b"Expect: a miracle\r\nContent-Length: 3\r\n\r\n", 417),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_request_is_refused_and_the_connection_closed(
    live: LiveServer, name: str
) -> None:
    request, status = MALFORMED[name]

    client = live.client().send(request)

    answer = client.read()
    assert answer.status == status
    assert answer.headers["connection"] == "close"
    assert 0 < len(answer.body) < 1000
    assert answer.error_code
    assert client.is_closed_by_server()
    assert live.behaviour.requests == []


def test_100_headers_are_taken(live: LiveServer) -> None:
    client = live.client().send(
        ECHO[:-2] + b"".join(b"X%d: 1\r\n" % n for n in range(99)) + b"\r\n"
    )

    assert client.read().status == 200


def test_header_section_and_line_just_under_their_limits_are_taken(live: LiveServer) -> None:
    client = live.client().send(
        b"GET /echo?" + b"a" * 32_000 + b" HTTP/1.1\r\nHost: a\r\nX: " + b"b" * 32_000,
        b"\r\n\r\n",
    )

    echo = client.read().echo
    assert (len(echo["query"]), len(echo["headers"]["x"])) == (32_000, 32_000)


def test_long_pipeline_with_an_unfinished_head_is_not_taken_for_a_long_head(
    live: LiveServer,
) -> None:
    client = live.client().send(ECHO * 4000 + ECHO[:20])

    assert {client.read().status for _ in range(4000)} == {200}
    assert client.send(ECHO[20:]).read().status == 200


def test_requests_before_a_malformed_one_are_answered_first(live: LiveServer) -> None:
    client = live.client().send(
        b"GET /wait?1 HTTP/1.1\r\nHost: a\r\n\r\n" + ECHO + b"nonsense\r\n\r\n"
    )
    live.until(lambda: live.behaviour.notes == ["began"])
    live.release()

    assert [client.read().status for _ in range(3)] == [200, 200, 400]
    assert client.is_closed_by_server()


def test_chunked_body_over_the_limit_is_refused(live: LiveServer) -> None:
    live.start(limits=HttpLimits(body_bytes_max=1000))

    client = live.client().send(CHUNKED + b"3e8\r\n" + b"x" * 1000 + b"\r\n1\r\nx\r\n0\r\n\r\n")

    answer = client.read()
    assert (answer.status, answer.error_code) == (413, "RequestBodyTooLarge")
    assert client.is_closed_by_server()


def test_client_that_sends_its_large_body_anyway_still_hears_the_refusal(live: LiveServer) -> None:
    body = b"x" * (5 * 1024 * 1024)

    client = live.client().send(START + b"Content-Length: %d\r\n\r\n" % len(body), body)

    assert client.read().error_code == "RequestBodyTooLarge"


def test_client_that_never_stops_sending_is_cut_off(live: LiveServer) -> None:
    live.start(limits=HttpLimits(linger_bytes_max=1024 * 1024))
    client = live.client().send(b"nonsense\r\n\r\n")

    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        client.send_until_cut_off(b"x" * 1024 * 1024, times=1000)


# Expect: 100-continue


def test_continue_is_sent_when_the_body_will_be_read(live: LiveServer) -> None:
    client = live.client().send(START + b"Expect: 100-Continue\r\nContent-Length: 3\r\n\r\n")

    assert client.read().status == 100
    assert client.send(b"abc").read().echo["body"] == "abc"


def test_continue_waits_for_the_answers_before_it(live: LiveServer) -> None:
    client = live.client().send(
        b"GET /wait?1 HTTP/1.1\r\nHost: a\r\n\r\n",
        START + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\n",
    )
    live.until(lambda: live.behaviour.notes == ["began"])
    live.release()

    assert client.read().body == b"1"
    assert client.read().status == 100
    assert client.send(b"abc").read().echo["body"] == "abc"


def test_continue_is_not_sent_when_the_body_is_already_here(live: LiveServer) -> None:
    client = live.client().send(START + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc")

    assert client.read().echo["body"] == "abc"
    assert client.send(START + b"Content-Length: 3\r\n\r\n", b"def").read().echo["body"] == "def"


# Slow clients


def test_slow_head_is_refused_after_its_time(live: LiveServer) -> None:
    client = live.client().send(b"GET /echo HTTP/1.1\r\nHo")
    live.until_taken_in(client)

    live.advance(5)
    client.send(b"s")
    live.until_taken_in(client)
    live.advance(4.9)
    assert select.select([client.socket], [], [], 0)[0] == [], "it has its ten seconds"
    live.clock.advance(1)

    answer = client.read()
    assert (answer.status, answer.headers["connection"]) == (408, "close")
    assert client.is_closed_by_server()


def test_connection_that_sends_nothing_is_closed_after_the_time_of_a_head(live: LiveServer) -> None:
    client = live.client()
    live.until(lambda: live.server is not None and live.server.connection_count == 1)

    live.clock.advance(11)

    assert client.read_rest() == b""


def test_body_that_trickles_is_refused(live: LiveServer) -> None:
    client = live.client().send(START + b"Content-Length: 100000\r\n\r\n" + b"x" * 50_000)
    live.until_taken_in(client)
    live.advance(11)

    client.send(b"x" * 100)
    live.until_taken_in(client)
    live.clock.advance(11)

    assert client.read().status == 408
    assert client.is_closed_by_server()


def test_body_at_a_good_rate_may_take_its_time(live: LiveServer) -> None:
    client = live.client().send(START + b"Content-Length: 100000\r\n\r\n")
    for _ in range(5):
        client.send(b"x" * 20_000)
        live.until_taken_in(client)
        live.advance(11)

    assert len(client.read().echo["body"]) == 100_000


def test_idle_connection_is_closed_after_keep_alive(live: LiveServer) -> None:
    client = live.client().send(ECHO)
    client.read()
    live.advance(70)
    assert client.send(ECHO).read().status == 200

    live.clock.advance(76)

    assert client.read_rest() == b""


def test_running_request_has_no_time_out(live: LiveServer) -> None:
    client = live.client().send(b"GET /wait?1 HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: live.behaviour.notes == ["began"])

    live.advance(1000)
    live.release()

    assert client.read().body == b"1"


def test_client_that_reads_nothing_is_cut_off(live: LiveServer) -> None:
    live.client().send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n" * 50)
    live.until(lambda: len(live.behaviour.requests) > 0)

    live.until_cut_off(after_seconds=61)


def test_refused_client_that_stays_is_cut_off(live: LiveServer) -> None:
    client = live.client().send(b"nonsense\r\n\r\n")
    client.read()
    live.until(lambda: live.server is not None and live.server.connection_count == 1)

    live.clock.advance(3)

    live.until(lambda: live.server is not None and live.server.connection_count == 0)


# How many may come


KNOWN = b"GET /known HTTP/1.1\r\nHost: a\r\n\r\n"
WAIT = b"GET /wait?1 HTTP/1.1\r\nHost: a\r\n\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


def test_longest_idle_stranger_is_closed_for_a_new_connection(live: LiveServer) -> None:
    live.start(limits=HttpLimits(connections_max=3))
    known, silent, stranger = live.client(), live.client(), live.client()
    assert known.send(KNOWN).read().status == 200
    live.until(lambda: live.server is not None and live.server.connection_count == 3)
    assert stranger.send(ECHO).read().status == 200

    newcomer = live.client()

    assert silent.is_closed_by_server()
    assert newcomer.send(ECHO).read().status == 200
    assert known.send(ECHO).read().status == 200
    assert stranger.send(ECHO).read().status == 200


def test_strangers_in_number_do_not_close_an_authenticated_connection(live: LiveServer) -> None:
    live.start(limits=HttpLimits(connections_max=8))
    known = live.client()
    assert known.send(KNOWN).read().status == 200

    strangers = [live.client() for _ in range(40)]

    assert all(stranger.is_closed_by_server() for stranger in strangers[:33])
    assert known.send(KNOWN).read().status == 200


def test_idle_authenticated_connection_is_closed_before_a_client_is_refused(
    live: LiveServer,
) -> None:
    live.start(limits=HttpLimits(connections_max=2, sweep_seconds=0.02))
    first, second = live.client(), live.client()
    assert first.send(KNOWN).read().status == 200
    live.advance(1)
    assert second.send(KNOWN).read().status == 200

    assert live.client().send(KNOWN).read().status == 200

    assert first.is_closed_by_server()
    assert second.send(KNOWN).read().status == 200


def test_busy_server_refuses_a_request_and_writes_nothing_before_it(live: LiveServer) -> None:
    live.start(limits=HttpLimits(connections_max=1))
    busy = live.client().send(WAIT)
    live.until(lambda: live.behaviour.notes == ["began"])

    refused = live.client()
    live.until(lambda: live.server is not None and len([*live.server.connections]) == 2)
    refused.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        refused.socket.recv(1)
    refused.socket.setblocking(True)
    answer = refused.send(START + b"Content-Length: 4000000\r\n\r\n").read()

    assert (answer.status, answer.error_code) == (503, "ServerBusy")
    assert (answer.headers["connection"], answer.headers["retry-after"]) == ("close", "1")
    assert refused.is_closed_by_server()
    live.release()
    assert busy.read().body == b"1"


def test_connection_without_a_slot_gets_one_that_has_become_free(live: LiveServer) -> None:
    live.start(limits=HttpLimits(connections_max=1))
    busy = live.client().send(WAIT)
    live.until(lambda: live.behaviour.notes == ["began"])
    newcomer = live.client()
    live.until(lambda: live.server is not None and len([*live.server.connections]) == 2)

    live.release()
    assert busy.read().body == b"1"

    assert newcomer.send(ECHO).read().status == 200
    assert busy.is_closed_by_server()


def test_health_is_answered_although_every_slot_is_busy(live: LiveServer) -> None:
    live.start(limits=HttpLimits(connections_max=1, reserved_connections_max=2))
    live.client().send(WAIT)
    live.until(lambda: live.behaviour.notes == ["began"])

    silent = [live.client() for _ in range(20)]
    health = live.client()

    assert [health.send(HEALTH).read().body for _ in range(2)] == [b"ok\n", b"ok\n"]
    assert all(client.is_closed_by_server() for client in silent[:19])


def test_one_peer_gets_no_more_than_its_share_of_slots(live: LiveServer) -> None:
    live.start(limits=HttpLimits(connections_per_peer_max=2))
    first, second = live.client(), live.client().send(WAIT)
    live.until(lambda: live.behaviour.notes == ["began"])

    third = live.client().send(WAIT)
    assert first.is_closed_by_server()
    live.until(lambda: live.behaviour.notes == ["began", "began"])

    assert live.client().send(ECHO).read().error_code == "ServerBusy"
    live.release()
    assert (second.read().body, third.read().body) == (b"1", b"1")


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::7", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::7", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_ipv6_network_of_64_bits_is_one_peer(address: str, peer: str) -> None:
    assert peer_of(address) == peer


# What may be held before a request is authenticated


class Unread(Behaviour):
    """Answers without reading a body."""

    streams = True


def budget_of(live: LiveServer) -> ByteBudget:
    assert live.server is not None
    return live.server.connections.budget


def test_request_is_started_when_its_head_is_complete(live: LiveServer) -> None:
    live.behaviour = Unread()

    for length in (b"Content-Length: 4000000", b"Content-Length: 1", b"Transfer-Encoding: chunked"):
        client = live.client().send(START + length + b"\r\n\r\n")
        assert client.read().status == 200

    assert [request.upload is not None for request in live.behaviour.requests] == [True] * 3


@pytest.mark.parametrize(
    "behind",
    [
        START + b"Content-Length: 200000\r\n\r\n" + b"x" * 199_999,
        START + b"Content-Length: 200000\r\n\r\n" + b"x" * 200_000,
        ECHO * 5000,
        b"GET /echo HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 60_000,
    ],
    ids=["part of a body", "body", "many requests", "part of a head"],
)
def test_bytes_of_requests_not_yet_authenticated_are_bounded(
    live: LiveServer, behind: bytes
) -> None:
    live.behaviour = Unread()
    live.start(limits=HttpLimits(unauthenticated_bytes_max=50_000))
    client = live.client().send(WAIT)
    live.until(lambda: live.behaviour.notes == ["began"])

    client.send(behind)

    live.until(lambda: live.call(is_refusing(live)))
    assert budget_of(live).held_bytes == 0
    live.release()
    assert client.read().body == b"1"
    answer = client.read()
    assert (answer.status, answer.error_code) == (503, "ServerBusy")
    assert client.is_closed_by_server()


async def is_refusing(live: LiveServer) -> bool:
    assert live.server is not None
    (protocol,) = live.server.open_connections
    return [refusal is not None for _, refusal, _ in protocol._waiting] == [True]


def test_servers_share_one_budget(live: LiveServer) -> None:
    live.behaviour = Unread()
    budget = ByteBudget(50_000)
    live.start(budget=budget)
    other, first = live.server, live.client().send(WAIT)
    live.until(lambda: live.behaviour.notes == ["began"])
    first.send(START + b"Content-Length: 200000\r\n\r\n" + b"x" * 30_000)
    live.until(lambda: budget.held_bytes > 30_000)
    live.start(budget=budget)

    second = live.client().send(WAIT)
    live.until(lambda: live.behaviour.notes == ["began"] * 2)
    second.send(START + b"Content-Length: 200000\r\n\r\n" + b"x" * 30_000)

    live.until(lambda: live.call(is_refusing(live)))
    live.release()
    assert [first.read().status, first.read().status] == [200, 200]
    assert [second.read().status, second.read().status] == [200, 503]
    assert budget.held_bytes == 0
    assert other is not None
    assert live.call(other.stop(0))


def test_budget_is_given_back_when_the_body_is_read(live: LiveServer) -> None:
    budget = ByteBudget(1_000_000)
    live.start(budget=budget)
    body = b"x" * 500_000

    client = live.client().send(START + b"Content-Length: 500000\r\n\r\n", body)

    assert client.read().echo["body"] == body.decode()
    assert budget.held_bytes == 0


def test_chunk_extensions_count_towards_a_limit(live: LiveServer) -> None:
    client = live.client().send(CHUNKED)
    live.until_taken_in(client)

    client.send(b"1;" + b"e" * 1000 + b"\r\nx\r\n")
    live.until_taken_in(client)
    client.send((b"1;" + b"e" * 1000 + b"\r\nx\r\n") * 16)

    answer = client.read()
    assert (answer.status, answer.error_code) == (413, "RequestBodyTooLarge")
    assert client.is_closed_by_server()


def test_body_of_small_chunks_has_no_overhead(live: LiveServer) -> None:
    client = live.client().send(CHUNKED)
    live.until_taken_in(client)

    client.send(b"00000001\r\nx\r\n" * 10_000, b"0\r\n\r\n")

    assert client.read().echo["body"] == "x" * 10_000


# Health, log


def test_health_is_answered_before_respond(live: LiveServer) -> None:
    client = live.client()

    answer = client.send(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n").read()

    assert (answer.status, answer.body) == (200, b"ok\n")
    assert live.behaviour.requests == []


def test_readiness_asks_each_time(live: LiveServer) -> None:
    request = b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"
    client = live.client()

    assert client.send(request).read().status == 200
    live.why_not_ready = "The disk is full."
    answer = client.send(request).read()
    assert (answer.status, answer.body) == (503, b"not ready: The disk is full.\n")


def test_readiness_that_fails_is_not_ready(
    live: LiveServer, caplog: pytest.LogCaptureFixture
) -> None:
    live.start(why_not_ready=lambda: str(1 // 0))

    with caplog.at_level(logging.ERROR):
        answer = live.client().send(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n").read()

    assert answer.status == 503


def test_request_log_has_no_signature(live: LiveServer) -> None:
    live.start(observer=live)
    live.behaviour.response = Response(201, [("x-ms-request-id", "42")], b"hello")

    live.client().send(
        b"PUT /given?sv=1&sig=SECRET&SIG=SECRET&s%69g=SECRET&sp=r HTTP/1.1\r\nHost: a\r\n\r\n"
    ).read()

    (entry,) = live.logged
    assert entry.target == "/given?sv=1&sig=REDACTED&SIG=REDACTED&s%69g=REDACTED&sp=r"
    assert (entry.method, entry.status, entry.bytes_out) == ("PUT", 201, 5)
    assert (entry.peer, entry.request_id) == ("127.0.0.1", "42")


def test_request_log_measures_by_the_clock(live: LiveServer) -> None:
    live.start(observer=live)
    client = live.client().send(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: live.behaviour.notes == ["began"])

    live.clock.advance(2.5)
    live.release()
    client.read()

    assert [line.ms for line in live.logged] == [2500]


# Start and stop


def test_stop_closes_idle_connections_and_accepts_no_more(live: LiveServer) -> None:
    client = live.client().send(ECHO)
    client.read()

    assert live.stop(PATIENCE_SECONDS) is True

    assert client.read_rest() == b""
    with pytest.raises(ConnectionRefusedError):
        live.client()


def test_stop_lets_accepted_requests_finish_and_says_close(live: LiveServer) -> None:
    client = live.client().send(b"GET /wait?1 HTTP/1.1\r\nHost: a\r\n\r\n", ECHO)
    live.until_taken_in(client)
    assert live.server is not None

    stopping = asyncio.run_coroutine_threadsafe(live.server.stop(PATIENCE_SECONDS), live.loop)
    live.until_stopping()
    assert not stopping.done()
    live.release()

    assert client.read().body == b"1"
    assert client.read().headers["connection"] == "close"
    assert client.is_closed_by_server()
    assert stopping.result(PATIENCE_SECONDS) is True


def test_stop_lets_a_request_arrive_that_has_begun(live: LiveServer) -> None:
    client = live.client().send(START + b"Content-Length: 3\r\n\r\na")
    live.until_taken_in(client)
    assert live.server is not None

    stopping = asyncio.run_coroutine_threadsafe(live.server.stop(PATIENCE_SECONDS), live.loop)
    live.until_stopping()
    answer = client.send(b"bc").read()

    assert (answer.echo["body"], answer.headers["connection"]) == ("abc", "close")
    assert stopping.result(PATIENCE_SECONDS) is True


def test_stop_says_when_grace_was_not_enough_and_cancels_nothing(live: LiveServer) -> None:
    client = live.client().send(b"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n")
    live.until(lambda: live.behaviour.notes == ["began"])

    assert live.stop(0.05) is False

    assert client.is_closed_by_server()
    live.release()
    live.until(lambda: live.behaviour.notes == ["began", "finished"])


def test_stop_without_grace_is_content_with_idle_connections(live: LiveServer) -> None:
    live.client().send(ECHO).read()

    assert live.stop(0) is True


def test_one_server_listens_on_several_hosts(live: LiveServer) -> None:
    live.start(hosts=("127.0.0.1", "::1"))

    assert live.client(host="127.0.0.1").send(ECHO).read().echo["peer"] == "127.0.0.1"
    assert live.client(host="::1").send(ECHO).read().echo["peer"] == "::1"


def test_taken_port_is_a_configuration_error(live: LiveServer) -> None:
    port = live.start()

    with pytest.raises(ConfigurationError) as caught:
        live.call(Server(live.behaviour.respond, port=port).start())

    assert caught.value.facts["port"] == port


# TLS


@pytest.fixture
def tls(tmp_path: Path) -> TlsFiles:
    files = TlsFiles(tmp_path / "certificate.pem", tmp_path / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost"]
    command += ["-keyout", str(files.key), "-out", str(files.certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return files


def test_tls_requests_say_https(live: LiveServer, tls: TlsFiles) -> None:
    live.start(tls=tls)
    context = ssl.create_default_context(cafile=str(tls.certificate))

    client = live.client(context=context).send(ECHO)

    assert client.read().echo["scheme"] == "https"
    assert client.send(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").read().body == b"x" * 1024 * 1024


def test_tls_handshakes_have_slots(
    live: LiveServer, tls: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    live.start(tls=tls, limits=HttpLimits(connections_max=4))

    silent = [live.client() for _ in range(20)]

    assert all(client.is_closed_by_server() for client in silent[:16])
    assert live.server is not None
    assert live.server.connection_count == 4
    client = live.client(context=ssl.create_default_context(cafile=str(tls.certificate)))
    assert client.send(ECHO).read().status == 200
    assert silent[16].is_closed_by_server()
    assert live.server.connection_count == 4
    assert caplog.records == []


def test_tls_refusal_reaches_the_client(live: LiveServer, tls: TlsFiles) -> None:
    live.start(tls=tls)
    context = ssl.create_default_context(cafile=str(tls.certificate))

    assert live.client(context=context).send(b"nonsense\r\n\r\n").read().status == 400


def test_tls_below_1_2_is_not_spoken(live: LiveServer, tls: TlsFiles) -> None:
    live.start(tls=tls)
    context = ssl.create_default_context(cafile=str(tls.certificate))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        context.maximum_version = ssl.TLSVersion.TLSv1_1

    assert live.server is not None
    with (
        socket.create_connection(("127.0.0.1", live.server.port)) as plain,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
        contextlib.closing(context.wrap_socket(plain, server_hostname="localhost")),
    ):
        pass


def test_unusable_tls_files_are_a_configuration_error(live: LiveServer, tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "none.pem", tmp_path / "none.pem")

    with pytest.raises(ConfigurationError):
        live.start(tls=files)
    live.server = None


# The whole process

PROGRAM = """
import asyncio, sys
from partita.service.http.request import Response
from partita.service.hosting.server import Server, run, serve_until_stopped

async def respond(request):
    if request.path == "/slow":
        go_on = asyncio.Event()
        asyncio.get_running_loop().add_reader(sys.stdin, go_on.set)
        print("began", flush=True)
        await go_on.wait()
        asyncio.get_running_loop().remove_reader(sys.stdin)
    return Response(200, [], b"done")

async def main():
    server = Server(respond)
    print(await server.start(), flush=True)
    return await serve_until_stopped(server, grace_seconds=60)

sys.exit(run(main))
"""


@contextlib.contextmanager
def a_process() -> Iterator[tuple[subprocess.Popen[str], Client]]:
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        client = Client(("127.0.0.1", int(process.stdout.readline())))
        try:
            yield process, client
        finally:
            client.close()
            process.kill()


def begin_slow_request(process: subprocess.Popen[str], client: Client) -> None:
    """Send one that is answered when the process is told to go on."""
    client.send(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
    assert process.stdout is not None
    assert process.stdout.readline() == "began\n"


def tell_to_go_on(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def until_stopping(client: Client) -> None:
    """Wait until the server of this client lets nobody else in."""
    with contextlib.suppress(ConnectionRefusedError, ConnectionResetError):
        while True:
            socket.create_connection(client.socket.getpeername(), PATIENCE_SECONDS).close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_process_after_the_answers(number: signal.Signals) -> None:
    with a_process() as (process, client):
        begin_slow_request(process, client)
        process.send_signal(number)
        until_stopping(client)
        tell_to_go_on(process)

        answer = client.read()

        assert (answer.body, answer.headers["connection"]) == (b"done", "close")
        assert process.wait(PATIENCE_SECONDS) == 0


def test_second_signal_cuts_the_grace_short() -> None:
    with a_process() as (process, client):
        begin_slow_request(process, client)
        process.send_signal(signal.SIGTERM)
        until_stopping(client)
        process.send_signal(signal.SIGTERM)

        assert client.is_closed_by_server()
        assert process.wait(PATIENCE_SECONDS) == 1
