"""A link on nodes that answer pings, but do not all have a working JetStream."""

import asyncio
import contextlib
import traceback
from collections.abc import AsyncIterator

import pytest

import partita
from partita.clock import ManualClock
from partita.errors import ConfigurationError, NotDurableError, QuorumLostError, UsageError
from partita.reliable.nats import link as nats_link
from partita.reliable.nats.api import Api, Failed, StreamAnswer
from partita.reliable.nats.link import UNANSWERED_SECONDS, Link
from partita.reliable.nats.monitor import check_durable
from partita.reliable.replication.stream import NoAnswer

INFO = (
    b'INFO {"server_id":"x","version":"2.12.0","proto":1,"headers":true,"max_payload":1048576}\r\n'
)
STORED = b'{"stream":"s","seq":7}'
WRONG_LAST = b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence"}}'
NO_LEADER = b'{"error":{"code":503,"err_code":10008,"description":"not available"}}'
DESCRIBED = b'{"config":{},"state":{"messages":1,"first_seq":1,"last_seq":1}}'
ENOUGH = 30.0


class FakeNode:
    """Speaks as much of the NATS protocol as a link needs, and answers requests as it is told."""

    def __init__(self) -> None:
        self.port = 0
        self.answer: bytes | None = STORED
        self.ignores = 0
        """So many requests get no answer; the next one gets the answers of all."""
        self.connections = 0
        self.requests: list[str] = []
        self._writers: list[asyncio.StreamWriter] = []
        self._ignored: list[str] = []

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        writer.write(INFO)
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                verb, *words = line.decode().split()
                if verb == "PING":
                    writer.write(b"PONG\r\n")
                elif verb in ("PUB", "HPUB"):
                    await reader.readexactly(int(words[-1]) + 2)
                    self._answer(words[0], words[1], writer)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()

    def _answer(self, subject: str, reply: str, writer: asyncio.StreamWriter) -> None:
        self.requests.append(subject)
        self._ignored.append(reply)
        if self.answer is None or len(self._ignored) <= self.ignores:
            return
        for each in self._ignored:
            writer.write(b"MSG %s 1 %d\r\n%s\r\n" % (each.encode(), len(self.answer), self.answer))
        self._ignored.clear()


@contextlib.asynccontextmanager
async def nodes(count: int) -> AsyncIterator[list[FakeNode]]:
    made = [FakeNode() for _ in range(count)]
    servers = [await asyncio.start_server(node.serve, "127.0.0.1", 0) for node in made]
    for node, server in zip(made, servers, strict=True):
        node.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        for node, server in zip(made, servers, strict=True):
            server.close()
            node.close()


@contextlib.asynccontextmanager
async def linked(urls: list[str], clock: ManualClock) -> AsyncIterator[tuple[Link, Api]]:
    link = Link(urls, {}, clock)
    await link.start(ENOUGH)
    try:
        yield link, Api(link, clock)
    finally:
        await link.close()


@pytest.fixture
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_link, "PING_SECONDS", 0.01)


async def current(link: Link) -> str:
    return (await link.connection()).url


async def left(link: Link, url: str) -> None:
    async with asyncio.timeout(ENOUGH):
        while await current(link) == url:  # noqa: ASYNC110 - the keeper of the link acts
            await asyncio.sleep(0.01)


async def pinged(link: Link, node: FakeNode) -> None:
    """Return when the link has watched its node once more, and still uses it."""
    connection = await link.connection()
    for _ in range(2):
        async with asyncio.timeout(ENOUGH):
            await connection.client.flush()
        await asyncio.sleep(0.03)
    assert await link.connection() is connection
    assert node.connections == 1


@pytest.mark.parametrize("answer", [None, NO_LEADER, WRONG_LAST], ids=["none", "503", "stale"])
async def test_a_node_on_which_nothing_is_stored_is_left(
    quick_pings: None, answer: bytes | None
) -> None:
    """It answers pings all the time; a leader without peers even refuses what follows."""
    clock = ManualClock()
    async with nodes(2) as (one, two), linked([one.url, two.url], clock) as (link, api):
        silent, sound = (one, two) if await current(link) == one.url else (two, one)
        silent.answer = answer
        for _ in range(2):
            with pytest.raises((NoAnswer, Failed)):
                await api.store("s", b"", {}, timeout=0.01 if answer is None else ENOUGH)
        clock.advance(UNANSWERED_SECONDS + 0.1)

        await left(link, silent.url)

        assert await current(link) == sound.url
        assert await api.store("s", b"", {}, timeout=ENOUGH) == 7


async def test_a_node_on_which_no_leader_answers_reads_is_left(quick_pings: None) -> None:
    clock = ManualClock()
    async with nodes(2) as (one, two), linked([one.url, two.url], clock) as (link, api):
        silent, sound = (one, two) if await current(link) == one.url else (two, one)
        silent.answer, sound.answer = NO_LEADER, DESCRIBED
        reading = asyncio.ensure_future(api.call("STREAM.INFO.s", {}, StreamAnswer, ENOUGH))
        async with asyncio.timeout(ENOUGH):
            while len(silent.requests) < 2:  # noqa: ASYNC110 - the node is on this loop
                await asyncio.sleep(0.01)
        clock.advance(UNANSWERED_SECONDS + 0.1)

        answer = await reading

        assert await current(link) == sound.url
        assert answer.state.last_seq == 1


async def test_a_single_late_answer_or_a_short_silence_keeps_the_node(quick_pings: None) -> None:
    clock = ManualClock()
    async with nodes(1) as (node,), linked([node.url], clock) as (link, api):
        node.answer = None
        with pytest.raises(NoAnswer):
            await api.store("s", b"", {}, timeout=0.01)
        clock.advance(UNANSWERED_SECONDS + 0.1)
        await pinged(link, node)
    async with nodes(1) as (node,), linked([node.url], clock) as (link, api):
        node.answer = None
        for _ in range(3):
            with pytest.raises(NoAnswer):
                await api.store("s", b"", {}, timeout=0.01)
        clock.advance(UNANSWERED_SECONDS - 0.1)
        await pinged(link, node)


async def test_the_answer_to_the_first_of_two_attempts_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An answer may take longer than the pause before a request is sent again."""
    monkeypatch.setattr(nats_link, "PATIENCE_SECONDS", 0.01)
    clock = ManualClock()
    async with nodes(1) as (node,), linked([node.url], clock) as (link, _):
        node.ignores = 1

        answer = await link.request("$JS.API.INFO", b"", timeout=ENOUGH)

        assert answer.data == STORED
        assert node.requests == ["$JS.API.INFO"] * 2
        replies = {answer.subject}
        assert len(replies) == 1


def test_the_nodes_are_tried_in_an_order_that_randomness_decides() -> None:
    urls = [f"nats://node{number}:4222" for number in range(3)]

    orders = [tuple(Link(urls, {}, ManualClock(seed=seed)).urls) for seed in range(60)]

    assert orders == [tuple(Link(urls, {}, ManualClock(seed=seed)).urls) for seed in range(60)]
    assert len(set(orders)) == 6
    assert {tuple(sorted(order)) for order in orders} == {tuple(urls)}


SECRET = "s3cret"


@pytest.mark.parametrize(
    "where",
    [
        "nats://ada:{}@one:x",
        "nats://ada:{}",
        "nats://ada:{},two",
        "nats://ada:a,{}@one,two/x",
        "nats://ada:{}@one?x=1",
        "nats://ada:{}@[::1",
        "nats://ada:{}@one/path",
        "nats://ada:\N{FULLWIDTH COMMERCIAL AT}{}@one",
        ["nats://ada:{}@one", "two:x"],
        ["nats://one", "nats://ada:{}@two:x"],
        ["nats://ada:{}@one", "http://two"],
        ["nats://ada:{}@one", ""],
        "http://ada:{}@one:4222",
        "nats:/ada:{}@one:4222",
    ],
)
async def test_a_wrong_address_is_refused_without_its_password(where: str | list[str]) -> None:
    given = where.format(SECRET) if isinstance(where, str) else [w.format(SECRET) for w in where]

    with pytest.raises((ConfigurationError, UsageError)) as caught:
        async with partita.open_state(given, partition="p"):
            pass

    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert SECRET not in repr((caught.value, caught.value.args, caught.value.facts))


async def test_a_cluster_that_cannot_be_reached_is_named_without_its_password() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Repeat the password in the refusal, as no real server does."""
        writer.write(INFO)
        await reader.readline()
        writer.write(f"-ERR 'unknown password {SECRET}'\r\n".encode())
        writer.close()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    link = Link([f"nats://ada:{SECRET}@127.0.0.1:{port}"], {}, ManualClock())
    with pytest.raises(QuorumLostError) as caught:
        await link.start(0.3)
    server.close()

    assert caught.value.facts["nodes"] == f"127.0.0.1:{port}"
    assert "unknown password ***" in str(caught.value.facts["cause"])
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_monitoring_addresses_are_named_without_their_passwords() -> None:
    asked = [f"http://ada:{SECRET}@one:8222"]

    with pytest.raises(NotDurableError) as caught:
        check_durable([], asked)

    assert caught.value.facts == {"asked": "http://***@one:8222"}
