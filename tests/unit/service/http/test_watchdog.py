"""The watchdog of the event loop: what it measures, exports and logs."""

import asyncio
import logging
from collections.abc import Iterable

import pytest

from partita.clock import ManualClock
from partita.service.http.connections import Connections
from partita.service.http.message_bytes import HttpLimits
from partita.service.http.protocol import SERVE_SECONDS_MAX, HttpProtocol, Turn
from partita.service.http.request import Request, Response
from partita.service.http.watchdog import LOGGED_EVERY_SECONDS, TURN_SECONDS_MAX, LoopWatchdog

LONG = 2 * TURN_SECONDS_MAX
REQUEST = Request("PUT", "/acct/box/b", "comp=blocklist&sig=secret", peer="192.0.2.1")


class Transport(asyncio.Transport):
    """A transport that collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def get_extra_info(self, name: str, default: object = None) -> object:
        return ("192.0.2.1", 1) if name == "peername" else default

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.written += b"".join(list_of_data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


class Served:
    """Connections whose requests take as long on the clock as their path says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        limits = HttpLimits()
        self.connections = Connections(limits, self.clock)
        self.turn = Turn(limits.write_buffer_bytes_max, self.clock)
        self.answered: list[str] = []

    async def respond(self, request: Request) -> Response:
        first, _, second = request.path.removeprefix("/").partition("/")
        self.clock.advance(float(first))
        if second:
            await asyncio.sleep(0)
            self.clock.advance(float(second))
        self.answered.append(request.path)
        return Response(200, [], b"ok")

    def connect(self) -> tuple[HttpProtocol, Transport]:
        protocol = HttpProtocol(
            self.respond, self.connections.limits, self.connections, turn=self.turn
        )
        transport = Transport()
        protocol.connection_made(transport)
        return protocol, transport


def a_request(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


async def turns(count: int = 10) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("path", [f"/{LONG}", f"/0/{LONG}", f"/{LONG}/0"])
async def test_a_step_of_a_request_that_holds_the_loop_is_measured_and_logged(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The first step runs outside a task, the others in one."""
    served = Served()
    protocol, transport = served.connect()
    protocol.data_received(a_request(path))
    await turns()

    assert transport.written.endswith(b"ok")
    assert served.turn.watchdog.longest_seconds == pytest.approx(LONG)
    assert served.turn.watchdog.long_turns == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"the event loop was held for 100 ms by GET {path} from 192.0.2.1"
    ]


async def test_a_short_step_is_measured_only() -> None:
    served = Served()
    protocol, _ = served.connect()
    protocol.data_received(a_request("/0.01"))
    await turns()

    assert served.turn.watchdog.longest_seconds == pytest.approx(0.01)
    assert served.turn.watchdog.long_turns == 0


async def test_a_wait_is_not_a_turn(caplog: pytest.LogCaptureFixture) -> None:
    served = Served()
    protocol, _ = served.connect()
    protocol.data_received(a_request("/0/0"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    served.clock.advance(5)  # while the request waits
    await turns()

    assert served.answered == ["/0/0"]
    assert served.turn.watchdog.long_turns == 0
    assert caplog.records == []


async def test_many_requests_of_one_turn_are_answered_in_several() -> None:
    """Also those of one connection: then the loop reads and writes in between."""
    served = Served()
    step = SERVE_SECONDS_MAX * 0.6
    several = [served.connect()[0] for _ in range(4)]
    for protocol in several:
        protocol.data_received(a_request(f"/{step}") * 4)

    counts = []
    while len(served.answered) < 16:
        await asyncio.sleep(0)
        counts.append(len(served.answered))

    assert max(after - before for before, after in zip([0, *counts], counts, strict=False)) <= 2
    assert served.turn.watchdog.long_turns == 0


def test_the_log_names_the_request_without_its_signature(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    watchdog = LoopWatchdog(clock)

    watchdog.note(REQUEST, LONG)
    watchdog.note(REQUEST, LONG)  # not the longest, and too soon
    clock.advance(LOGGED_EVERY_SECONDS)
    watchdog.note(REQUEST, LONG)
    watchdog.note(REQUEST, 3 * LONG)  # the longest

    texts = [record.getMessage() for record in caplog.records]
    assert [text.partition(" by ")[0] for text in texts] == [
        "the event loop was held for 100 ms",
        "the event loop was held for 100 ms",
        "the event loop was held for 300 ms",
    ]
    assert "PUT /acct/box/b?comp=blocklist&sig=" in texts[0]
    assert not any("secret" in text for text in texts)
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert (watchdog.long_turns, watchdog.longest_seconds) == (4, 3 * LONG)


def test_the_metrics_are_those_of_prometheus() -> None:
    watchdog = LoopWatchdog(ManualClock())
    watchdog.note(REQUEST, 0.25)

    lines = watchdog.metrics().decode().splitlines()

    assert [line for line in lines if not line.startswith("#")] == [
        "partita_loop_turn_seconds_max 0.250000",
        "partita_loop_long_turns_total 1",
    ]
