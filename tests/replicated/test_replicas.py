"""Whole replicas on a real three-node NATS cluster, with real crashes and freezes.

Clients do numbered operations under idempotency keys at whichever replica takes them, again and
again until one is acknowledged. In the end the ledger of every replica holds each of them once.
"""

import asyncio
import contextlib
import functools
import itertools
import logging
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

import partita
from partita.clock import SystemClock
from partita.errors import (
    ChainBrokenError,
    ConfigurationError,
    InDoubtError,
    NotDurableError,
    NotPrimaryError,
    NotReadableError,
    QuorumLostError,
    SchemaError,
    TransactionAbortedError,
    UnavailableError,
)
from partita.reliable import opening
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.nats.jetstream import JetStream
from partita.reliable.replication import replica as replicas
from partita.reliable.replication.quorum_log import QuorumLog
from partita.reliable.state.records import record_hash
from partita.reliable.values.schema import Schema
from replicated.replica_process import Asked, Ledger, Told, key_of
from support.cluster import Cluster, ProxiedCluster, proxied_cluster, running_cluster
from support.proxy import Proxy, faults
from support.repeats import IS_SOAK

KILLS = 20 if IS_SOAK else 3
LEASE_KILLS = 5 if IS_SOAK else 1
PAUSES = 10 if IS_SOAK else 1
QUORUM_LOSSES = 5 if IS_SOAK else 1
FULL_RESTARTS = 5 if IS_SOAK else 1
PROCESS_KILLS = 10 if IS_SOAK else 2
PROCESS_PAUSES = 10 if IS_SOAK else 1

CLIENTS = 6
LIVENESS_SECONDS = 60.0
"""Far beyond what anything here takes: NATS elects within 4 to 9 seconds."""

pytestmark = pytest.mark.timeout(1800 if IS_SOAK else 300)
logger = logging.getLogger("partita.tests")


def a_name() -> str:
    return f"r-{uuid.uuid4().hex[:12]}"


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIVENESS_SECONDS):
        while not await holds():  # noqa: ASYNC110 - other processes are asked
            await asyncio.sleep(0.05)


# --- the NATS nodes -------------------------------------------------------------------------


async def nats_api(cluster: Cluster, verb: str, **asked: object) -> dict[str, Any]:
    """Ask JetStream past our own code, at a node that runs."""
    index = next(n for n in range(len(cluster.nodes)) if cluster.pid(n))
    client = Client()
    await client.connect(cluster.url_of(index))
    try:
        answer = await client.request(f"$JS.API.{verb}", msgspec.json.encode(asked), timeout=5)
    finally:
        await client.close()
    decoded: dict[str, Any] = msgspec.json.decode(answer.data)
    return decoded


async def leader_of(cluster: Cluster, stream: str) -> int:
    """Return the node that leads a stream, once there is one."""
    found = ""

    async def is_led() -> bool:
        nonlocal found
        with contextlib.suppress(TimeoutError):
            members = (await nats_api(cluster, f"STREAM.INFO.{stream}")).get("cluster", {})
            found = members.get("leader", "")
        return bool(found)

    await eventually(is_led)
    return cluster.node_named(found)


def log_stream(partition: str) -> str:
    return f"partita-{partition}"


def lease_stream(partition: str) -> str:
    return f"KV_partita-{partition}-register"


async def whole(cluster: Cluster, partition: str) -> None:
    """Return when every node that was down has caught up: the next fault is one of one node."""

    async def is_whole() -> bool:
        with contextlib.suppress(TimeoutError):
            for stream in (log_stream(partition), lease_stream(partition)):
                members = (await nats_api(cluster, f"STREAM.INFO.{stream}")).get("cluster", {})
                peers = members.get("replicas", ())
                if "leader" not in members or not all(peer["current"] for peer in peers):
                    return False
            return True
        return False

    await eventually(is_whole)


# --- what the clients do --------------------------------------------------------------------


class Operations:
    """Numbered operations that clients try at all replicas in turn, until one acknowledges."""

    def __init__(self, attempt: Callable[[int, int], Awaitable[int]], replicas: int) -> None:
        self._attempt = attempt
        """Does an operation at a replica; raises UnavailableError when it does not know."""
        self._replicas = replicas
        self._numbers = itertools.count(1)
        self._believed = 0
        self._is_over = False
        self._clients: list[asyncio.Task[None]] = []
        self.acknowledged: dict[int, int] = {}
        self.refusals: Counter[str] = Counter()

    def next_number(self) -> int:
        return next(self._numbers)

    async def operate(self, number: int) -> int:
        """Do one operation; return its sequence."""
        async with asyncio.timeout(LIVENESS_SECONDS):
            while True:
                here = self._believed
                try:
                    sequence = await self._attempt(here, number)
                except UnavailableError as error:
                    self.refusals[error.code] += 1
                    if self._believed == here:
                        self._believed = (here + 1) % self._replicas
                    await asyncio.sleep(0.05)
                else:
                    self._believed = here
                    self.acknowledged[number] = sequence
                    return sequence

    async def write_again(self, what: str) -> float:
        """Return after how many seconds an operation that begins now is acknowledged."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self.operate(self.next_number())
        seconds = loop.time() - began
        logger.info("after %s: writes again after %.1f s", what, seconds)
        return seconds

    async def work(self, count: int = 100) -> None:
        """Return when the clients have had so many more operations acknowledged."""
        until = len(self.acknowledged) + count
        async with asyncio.timeout(LIVENESS_SECONDS):
            while len(self.acknowledged) < until:  # noqa: ASYNC110 - all clients count
                await asyncio.sleep(0.01)

    def start(self, clients: int = CLIENTS) -> None:
        self._clients = [asyncio.create_task(self._keep_on()) for _ in range(clients)]

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._clients)

    async def _keep_on(self) -> None:
        while not self._is_over:
            await self.operate(self.next_number())
            await asyncio.sleep(0.01)


def check_ledger(counts: dict[int, int], operations: Operations) -> None:
    lost = sorted(number for number in operations.acknowledged if number not in counts)
    assert not lost, f"acknowledged and lost: {lost}"
    doubled = sorted(number for number, count in counts.items() if count != 1)
    assert not doubled, f"done twice: {doubled}"
    invented = sorted(number for number in counts if number not in operations.acknowledged)
    assert not invented, f"refused, and done all the same: {invented}"


# --- three replicas in this process ---------------------------------------------------------


class World:
    """A partition whose replicas live in this process, each with a connection of its own."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.partition = a_name()
        self.ledgers: list[Ledger] = []
        self.operations = Operations(self._note, 3)
        self.feeds: list[asyncio.Task[None]] = []
        self.fed: list[Counter[tuple[str, int | None]]] = []
        self._stacks: list[contextlib.AsyncExitStack] = []

    async def __aenter__(self) -> "World":
        return self

    async def __aexit__(self, *_: object) -> None:
        for feed in self.feeds:
            feed.cancel()
        await asyncio.gather(*self.feeds, return_exceptions=True)
        for stack in reversed(self._stacks):
            await stack.aclose()

    async def open_state(self, **options: Any) -> StateManager:
        stack = contextlib.AsyncExitStack()
        self._stacks.append(stack)
        options = {"folder": self.folder / uuid.uuid4().hex} | options
        where = options.pop("where", self.cluster.url)
        return await stack.enter_async_context(
            partita.open_state(where, partition=self.partition, **options)
        )

    async def join(self, **options: Any) -> Ledger:
        ledger = await Ledger.open(await self.open_state(**options))
        self.ledgers.append(ledger)
        return ledger

    async def join_three(self) -> None:
        for _ in range(3):
            await self.join()

    async def watch(self) -> None:
        """Follow the changes of the ledger at every replica, whatever happens to it."""

        async def follow(ledger: Ledger, seen: Counter[tuple[str, int | None]]) -> None:
            async with ledger.counts.changes(since=0) as feed:
                async for change in feed:
                    seen[change.kind, change.key] += 1

        for ledger in self.ledgers:
            self.fed.append(Counter())
            self.feeds.append(asyncio.create_task(follow(ledger, self.fed[-1])))

    async def primary(self) -> Ledger:
        async with asyncio.timeout(LIVENESS_SECONDS):
            while True:
                for ledger in self.ledgers:
                    if ledger.state.is_primary:
                        return ledger
                await asyncio.sleep(0.02)

    async def fault(self, what: str, indexes: list[int], *, is_pause: bool = False) -> float:
        """Stop nodes under load, see that writes come back, and make all whole."""
        await self.operations.work()
        stop = self.cluster.pause if is_pause else self.cluster.kill
        start = self.cluster.resume if is_pause else self.cluster.restart
        for index in indexes:
            stop(index)
        if len(indexes) > 1:
            for index in indexes:
                start(index)
        seconds = await self.operations.write_again(what)
        if len(indexes) == 1:
            start(indexes[0])
        await whole(self.cluster, self.partition)
        return seconds

    async def settled(self) -> None:
        """Check that all replicas hold the same, and that it is what was acknowledged."""
        await self.operations.stop()
        await eventually(self._is_level)
        counts, total = await self.ledgers[0].read()
        check_ledger(counts, self.operations)
        assert total == len(counts)
        for seen, feed in zip(self.fed, self.feeds, strict=True):
            await eventually(functools.partial(_has_seen, seen, feed, len(counts)))
            assert seen == Counter({("add", number): 1 for number in counts})

    async def _is_level(self) -> bool:
        newest = max(self.operations.acknowledged.values())
        states = [ledger.state for ledger in self.ledgers]
        if len({state.sequence for state in states}) > 1 or states[0].sequence < newest:
            return False
        assert len({state.state.digest() for state in states}) == 1, "replicas differ"
        return True

    async def _note(self, replica: int, number: int) -> int:
        sequence = await self.ledgers[replica].note(number)
        if number % 10 == 0:
            await self._read_own_write(self.ledgers[(replica + 1) % 3], number, sequence)
        return sequence

    async def _read_own_write(self, ledger: Ledger, number: int, sequence: int) -> None:
        """Read it at a replica that may not have it yet: it waits, or says that it has not."""
        try:
            await ledger.state.read_at_least(sequence)
        except NotReadableError:
            return
        async with ledger.state.snapshot() as snapshot:
            assert await ledger.counts.get(snapshot, number) == 1


async def _has_seen(seen: Counter[Any], feed: asyncio.Task[None], count: int) -> bool:
    if feed.done():
        feed.result()
    return seen.total() >= count


@pytest.fixture
async def world(cluster: Cluster, tmp_path: Path) -> AsyncIterator[World]:
    async with World(cluster, tmp_path) as world:
        yield world


@pytest.mark.proof
async def test_nothing_is_lost_or_doubled_when_leading_nodes_are_killed(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    await world.join_three()
    await world.watch()
    world.operations.start()
    for _ in range(KILLS):
        leader = await leader_of(world.cluster, log_stream(world.partition))
        record_property("seconds", await world.fault("a kill", [leader]))

    await world.operations.work()
    await world.settled()


@pytest.mark.proof
async def test_nothing_is_lost_or_doubled_when_the_lease_is_lost_with_its_node(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    await world.join_three()
    await world.watch()
    world.operations.start()
    for _ in range(LEASE_KILLS):
        leader = await leader_of(world.cluster, lease_stream(world.partition))
        record_property("seconds", await world.fault("a kill of the lease's node", [leader]))

    await world.operations.work()
    await world.settled()


@pytest.mark.proof
async def test_nothing_is_lost_or_doubled_when_nodes_freeze_or_all_restart(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    await world.join_three()
    await world.watch()
    world.operations.start()
    for _ in range(PAUSES):
        leader = await leader_of(world.cluster, log_stream(world.partition))
        seconds = await world.fault("a freeze", [leader], is_pause=True)
        record_property("freeze", seconds)
    for _ in range(FULL_RESTARTS):
        seconds = await world.fault("a restart of all nodes", [0, 1, 2])
        record_property("restart", seconds)

    await world.operations.work()
    await world.settled()


@pytest.mark.proof
async def test_without_a_quorum_commits_stop_and_their_outcomes_are_told_later(
    world: World, record_property: Callable[[str, object], None]
) -> None:
    await world.join_three()
    for _ in range(QUORUM_LOSSES):
        await lose_quorum(world, record_property)

    await world.settled()


async def lose_quorum(world: World, record_property: Callable[[str, object], None]) -> None:
    primary = await world.primary()
    loop = asyncio.get_running_loop()
    is_down = asyncio.Event()
    trying: dict[int, asyncio.Task[None]] = {}

    async def note(number: int) -> None:
        """Do it once, and take every answer as it is."""
        world.operations.acknowledged[number] = await primary.note(number, attempts=1)

    async def begin(more: int) -> None:
        """Begin operations until the nodes are down, and some more."""
        while more:
            number = world.operations.next_number()
            trying[number] = asyncio.create_task(note(number))
            await asyncio.sleep(0.002)
            more -= is_down.is_set()

    beginning = asyncio.create_task(begin(50))
    await asyncio.sleep(0.2)
    leader = await leader_of(world.cluster, log_stream(world.partition))
    down = [leader, (leader + 1) % 3]
    for index in down:
        world.cluster.kill(index)
    began = loop.time()
    is_down.set()
    async with asyncio.timeout(LIVENESS_SECONDS):
        await beginning
        ends = await asyncio.gather(*trying.values(), return_exceptions=True)
    record_property("seconds to stop", loop.time() - began)
    logger.info("commits ended %.1f s after the loss of the quorum", loop.time() - began)
    refused = {number: end for number, end in zip(trying, ends, strict=True) if end is not None}
    logger.info("they ended so: %s", Counter(type(end).__name__ for end in ends))
    assert {type(end) for end in refused.values()} == {InDoubtError, QuorumLostError}
    with pytest.raises(QuorumLostError):
        await primary.note(max(trying))
    counts, _ = await primary.read()
    assert set(world.operations.acknowledged) <= set(counts), "a secondary still reads"

    for index in down:
        world.cluster.restart(index)
    record_property("seconds", await world.operations.write_again("the quorum was back"))
    await whole(world.cluster, world.partition)
    primary = await world.primary()
    counts, _ = await primary.read()
    for number, end in refused.items():
        outcome = await primary.state.outcome(key_of(number))
        assert (outcome is not None) == (number in counts)
        assert outcome is None or isinstance(end, InDoubtError)
        assert outcome is None or outcome.value == number
    for number in refused:
        await world.operations.operate(number)


# --- the network ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxiedCluster]:
    with proxied_cluster(tmp_path_factory.mktemp("proxied")) as cluster:
        yield cluster


@pytest.fixture
def proxied(shared_proxied: ProxiedCluster) -> Iterator[ProxiedCluster]:
    """The module's cluster behind proxies, without faults before and after each test."""
    yield shared_proxied
    shared_proxied.wait_ready()


@pytest.mark.proof
@pytest.mark.parametrize("cut", [Proxy.drop, Proxy.blackhole], ids=["closed", "silent"])
@pytest.mark.parametrize("leads", [True, False], ids=["the leader", "a follower"])
async def test_replicas_leave_a_node_that_answers_pings_but_has_lost_its_peers(
    proxied: ProxiedCluster,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    cut: Callable[[Proxy], None],
    *,
    leads: bool,
) -> None:
    """All replicas are connected to that node: they must find the two others."""
    async with World(proxied, tmp_path) as world:
        probe = await world.open_state(monitor=proxied.monitor)
        leader = await leader_of(proxied, log_stream(world.partition))
        await probe.close()
        isolated = leader if leads else (leader + 1) % 3
        where = f"nats://{proxied.clients[isolated].address}"
        for _ in range(3):
            await world.join(where=where, monitor=proxied.monitor)
        await world.operations.operate(world.operations.next_number())
        routes = proxied.routes_of(isolated)

        with faults(*routes):
            for route in routes:
                cut(route)
            record_property("seconds", await world.operations.write_again("an isolation"))

        await world.operations.operate(world.operations.next_number())
        await world.settled()


@pytest.mark.proof
async def test_a_primary_is_elected_although_every_answer_of_nats_takes_a_second(
    proxied: ProxiedCluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with faults(*proxied.clients):
        for proxy in proxied.clients:
            proxy.delay(0.5)
        async with World(proxied, tmp_path) as world:
            for _ in range(3):
                await world.join(monitor=proxied.monitor)
            record_property("seconds", await world.operations.write_again("the opening"))
            for _ in range(5):
                await world.operations.operate(world.operations.next_number())
            await world.settled()


# --- rejoining ------------------------------------------------------------------------------


async def purge_log(world: World) -> None:
    """Let every replica write a checkpoint, and the primary cut the log behind all of them."""
    primary = await world.primary()
    await world.operations.operate(world.operations.next_number())
    needed = min(ledger.state.sequence for ledger in world.ledgers)

    async def is_cut() -> bool:
        for ledger in world.ledgers:
            await ledger.state.checkpoint()
        await primary.state.checkpoint()
        return primary.state.log.first > needed

    await eventually(is_cut)


async def test_a_replica_comes_back_by_the_log_or_by_a_copy(world: World) -> None:
    await world.join_three()
    folder = world.folder / "kept"
    for _ in range(20):
        await world.operations.operate(world.operations.next_number())
    gone = await world.join(folder=folder)
    await gone.state.checkpoint()
    kept = gone.state.sequence
    world.ledgers.remove(gone)
    await gone.state.close()
    for _ in range(20):
        await world.operations.operate(world.operations.next_number())

    suffix = await world.join(folder=folder)
    assert suffix.copies == 0
    assert suffix.state.checkpoints.newest is not None
    assert suffix.state.checkpoints.newest.sequence == kept
    world.ledgers.remove(suffix)
    await suffix.state.close()
    await purge_log(world)

    empty = await world.join()
    late = await world.join(folder=folder)
    assert (empty.copies, late.copies) == (1, 1)
    await world.operations.operate(world.operations.next_number())
    await world.settled()


# --- handing over ---------------------------------------------------------------------------


async def test_a_feed_and_reads_go_on_when_the_primary_hands_over(world: World) -> None:
    await world.join_three()
    await world.watch()
    world.operations.start()
    for _ in range(3):
        primary = await world.primary()
        await primary.state.step_down()
        with pytest.raises(NotPrimaryError) as caught:
            await primary.note(world.operations.next_number())
        assert caught.value.code == "NotPrimary"
        await world.operations.write_again("a step down")

    await world.settled()


@pytest.fixture
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a primary keep its role although the machine is busy."""
    timing = functools.partial(replicas.Timing, lease_seconds=LIVENESS_SECONDS)
    connect = functools.partial(JetStream.connect, register_seconds=LIVENESS_SECONDS)
    monkeypatch.setattr(opening, "Timing", timing)
    monkeypatch.setattr(JetStream, "connect", connect)


async def test_a_secondary_reads_and_says_where_the_primary_is(
    long_leases: None, world: World
) -> None:
    first = await world.join(address="here:1")
    second = await world.join(address="there:2")

    sequence = 0
    for number in range(1, 21):
        sequence = await first.note(number)
        await second.state.read_at_least(sequence)
        async with second.state.snapshot() as snapshot:
            assert await second.counts.get(snapshot, number) == 1

    with pytest.raises(NotPrimaryError) as caught:
        await second.note(21)
    assert caught.value.primary == "here:1"
    with pytest.raises(NotReadableError):
        await second.state.read_at_least(sequence + 1_000, timeout=0.05)


async def test_a_transaction_begun_on_a_secondary_never_writes_as_primary(
    long_leases: None, world: World
) -> None:
    """What it read took no locks: others may have written since."""
    first, second = await world.join(), await world.join()
    sequence = await first.note(1)
    await second.state.read_at_least(sequence)
    tx = second.state.transaction()
    async with tx:
        read = await second.counts.get(tx, 1)
        async with first.state.transaction() as other:
            await first.counts.set(other, 1, 10)
        assert isinstance(first.state.replica, replicas.Replica)
        first.state.replica.wants_primary = False
        await first.state.step_down()
        assert await second.state.wait_primary()

        with pytest.raises(TransactionAbortedError):
            await second.counts.set(tx, 1, read + 1)


async def test_a_primary_that_does_not_know_of_its_fall_never_acknowledges(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease decides who tries; what is committed, the log decides."""
    await world.join_three()
    stale = await world.primary()
    others = [ledger for ledger in world.ledgers if ledger is not stale]

    async def believe() -> bool:
        return True

    async def is_taken_over() -> bool:
        return any(ledger.state.is_primary for ledger in others)

    with monkeypatch.context() as patch:
        patch.setattr(stale.state.replica, "_renew", believe)
        await eventually(is_taken_over)
        assert stale.state.is_primary, "it does not know"
        numbers = [world.operations.next_number() for _ in range(20)]
        ends = await asyncio.gather(
            *(stale.note(number) for number in numbers), return_exceptions=True
        )

    assert {type(end) for end in ends} == {NotPrimaryError}
    await world.operations.operate(world.operations.next_number())
    await world.settled()


# --- versions -------------------------------------------------------------------------------


class Name(msgspec.Struct, frozen=True):
    first: str


class FullName(msgspec.Struct, frozen=True):
    first: str
    last: str = ""


BOTH = Schema(version=2, write=1)


async def test_a_version_is_promoted_once_every_replica_reads_it(
    long_leases: None, world: World
) -> None:
    primary = await world.open_state()
    names = await primary.dictionary("names", key=int, value=FullName, version=BOTH)
    folder = world.folder / "upgraded"
    other = await world.open_state(folder=folder)
    old = await other.dictionary("names", key=int, value=Name, version=1)

    async def is_refused() -> bool:
        with pytest.raises(SchemaError) as caught:
            await primary.promote_schema("names", 2)
        assert caught.value.code == "SchemaNotPromoted"
        return caught.value.facts["replicas"] == [other.replica_id]

    await eventually(is_refused)
    async with primary.transaction() as tx:
        await names.set(tx, 1, FullName("Ada", "Lovelace"))
    assert tx.commit_sequence is not None
    await other.read_at_least(tx.commit_sequence)
    async with other.snapshot() as snapshot:
        assert await old.get(snapshot, 1) == Name("Ada")

    await other.close()
    other = await world.open_state(folder=folder)
    new = await other.dictionary("names", key=int, value=FullName, version=BOTH)

    async def is_promoted() -> bool:
        with contextlib.suppress(SchemaError):
            await primary.promote_schema("names", 2)
            return True
        return False

    await eventually(is_promoted)
    async with primary.transaction() as tx:
        await names.set(tx, 2, FullName("Grace", "Hopper"))
    assert tx.commit_sequence is not None
    await other.read_at_least(tx.commit_sequence)
    async with other.snapshot() as snapshot:
        assert await new.get(snapshot, 2) == FullName("Grace", "Hopper")
    late = await world.open_state()
    with pytest.raises(SchemaError) as caught:
        await late.dictionary("names", key=int, value=Name, version=1)
    assert caught.value.code == "SchemaTooNew"


# --- refusals -------------------------------------------------------------------------------


async def test_nodes_that_do_not_sync_are_refused(tmp_path: Path) -> None:
    with (
        running_cluster(tmp_path, count=1, sync_interval="2m") as cluster,
        pytest.raises(NotDurableError) as caught,
    ):
        async with partita.open_state(cluster.url, partition="p", replicas=1):
            pass
    assert caught.value.code == "LogNotDurable"
    assert "sync_interval" in caught.value.hint


async def test_a_foreign_stream_is_refused_and_not_touched(cluster: Cluster) -> None:
    name = a_name()
    stream = f"partita-{name}"
    await nats_api(cluster, f"STREAM.CREATE.{stream}", name=stream, subjects=[f"theirs.{name}"])
    before = await nats_api(cluster, f"STREAM.INFO.{stream}")

    with pytest.raises(ConfigurationError) as caught:
        async with partita.open_state(cluster.url, partition=name):
            pass

    after = await nats_api(cluster, f"STREAM.INFO.{stream}")
    assert caught.value.code == "ForeignStream"
    assert (after["config"], after["state"]) == (before["config"], before["state"])


async def test_a_folder_of_another_partition_is_refused(
    cluster: Cluster, world: World, tmp_path: Path
) -> None:
    ledger = await world.join(folder=tmp_path / "theirs")
    await ledger.note(1)
    await ledger.state.checkpoint()
    await ledger.state.close()
    async with World(cluster, tmp_path) as other:
        kept = await other.join()
        while kept.state.sequence <= ledger.state.sequence:
            await other.operations.operate(other.operations.next_number())

        with pytest.raises(ChainBrokenError) as caught:
            await other.join(folder=tmp_path / "theirs")

        assert caught.value.code == "ChainBroken"
        await other.operations.operate(other.operations.next_number())
        await other.settled()


async def test_a_stream_that_was_made_anew_is_refused_by_who_remembers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "BEHIND_SECONDS", 1.0)
    ledger = await world.join(folder=world.folder / "kept")
    await ledger.note(1)
    await ledger.state.checkpoint()
    await ledger.state.close()
    await nats_api(world.cluster, f"STREAM.DELETE.{log_stream(world.partition)}")

    with pytest.raises(ChainBrokenError) as caught:
        await world.join(folder=world.folder / "kept")

    assert caught.value.code == "LogBehind"
    assert caught.value.facts == {"sequence": ledger.state.sequence, "last": 0}


async def test_a_stale_log_that_pipelines_acknowledges_what_it_must_not(cluster: Cluster) -> None:
    """The hole behind the rule of one record in flight: with the guard off it is there."""
    name = a_name()
    stream = await JetStream.connect(cluster.url, partition=name)
    foreign = await JetStream.connect(cluster.url, partition=name)
    stale = QuorumLog(stream, SystemClock(), one_in_flight=False)
    guarded = QuorumLog(foreign, SystemClock())
    try:
        await guarded.append(1, b"of the primary")
        appends = [stale.append(sequence, b"stale %d" % sequence) for sequence in (1, 2, 3)]
        ends = await asyncio.gather(*appends, return_exceptions=True)

        assert isinstance(ends[0], NotPrimaryError)
        assert ends[1:] == [record_hash(b"stale 2"), record_hash(b"stale 3")]
        await guarded.refresh()
        pair = [guarded.append(sequence, b"again") for sequence in (4, 5)]
        ends = await asyncio.gather(*pair, return_exceptions=True)
        assert ends[0] == record_hash(b"again")
        assert isinstance(ends[1], AssertionError)
    finally:
        await stale.close()
        await guarded.close()


# --- replicas as processes ------------------------------------------------------------------


REPLICA = Path(__file__).with_name("replica_process.py")


class ReplicaProcess:
    """A replica in a process of its own, which can be killed and frozen."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, folder: Path) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.address = address
        self.folder = folder
        self._input = process.stdin
        self._output = process.stdout
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Told]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def start(cls, folder: Path, address: str, command: list[str]) -> "ReplicaProcess":
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=16 * 1024 * 1024,
        )
        started = cls(process, address, folder)
        try:
            await started._answer(0, LIVENESS_SECONDS)
        except BaseException:
            await started.kill()
            raise
        return started

    def send(self, what: Any, number: int = 0) -> int:
        """Write a request, whether or not the process reads; return its id."""
        identifier = next(self._ids)
        self._input.write(msgspec.json.encode(Asked(identifier, what, number)) + b"\n")
        return identifier

    async def ask(self, what: Any, number: int = 0, *, seconds: float = 5.0) -> Told:
        if self.process.returncode is not None:
            raise UnavailableError("ProcessGone", "The process has ended.")
        return await self._answer(self.send(what, number), seconds)

    async def answers(self, identifiers: list[int]) -> list[Told]:
        return [await self._answer(each, LIVENESS_SECONDS) for each in identifiers]

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await asyncio.gather(self._listening, return_exceptions=True)
        self._input.close()

    async def end(self) -> None:
        """Let it close what it holds, as a process that is told to stop."""
        self._input.close()
        async with asyncio.timeout(LIVENESS_SECONDS):
            await self.process.wait()
        await self._listening

    async def _answer(self, identifier: int, seconds: float) -> Told:
        future = self._future(identifier)
        done, _ = await asyncio.wait((future,), timeout=seconds)
        if not done:
            raise UnavailableError("NoAnswer", f"{self.address} is silent.")
        return future.result()

    async def _listen(self) -> None:
        while line := await self._output.readline():
            told = msgspec.json.decode(line, type=Told)
            self._future(told.id).set_result(told)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(UnavailableError("ProcessGone", "The process has ended."))
                future.exception()

    def _future(self, identifier: int) -> "asyncio.Future[Told]":
        if identifier not in self._waiting:
            self._waiting[identifier] = asyncio.get_running_loop().create_future()
        return self._waiting[identifier]


class Processes:
    """A partition whose replicas are three processes."""

    def __init__(
        self, cluster: Cluster, folder: Path, program: Path = REPLICA, monitor: tuple[str, ...] = ()
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.partition = a_name()
        self._program = program
        self._monitor = monitor
        self.replicas: list[ReplicaProcess] = []
        self.operations = Operations(self._note, 3)

    async def __aenter__(self) -> "Processes":
        starting = [self.start(self.folder / str(n), f"process-{n}") for n in range(3)]
        try:
            self.replicas = list(await asyncio.gather(*starting))
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(replica.kill() for replica in self.replicas))

    async def start(self, folder: Path, address: str) -> ReplicaProcess:
        place = (self.cluster.url, self.partition, str(folder), address)
        return await ReplicaProcess.start(
            folder, address, [str(self._program), *place, *self._monitor]
        )

    async def primary(self) -> int:
        async with asyncio.timeout(LIVENESS_SECONDS):
            while True:
                for number, replica in enumerate(self.replicas):
                    with contextlib.suppress(UnavailableError):  # a busy one answers later
                        if (await replica.ask("tell")).is_primary:
                            return number
                await asyncio.sleep(0.05)

    async def restart(self, number: int) -> Told:
        """Bring a killed replica back on its folder; return what it says of itself."""
        gone = self.replicas[number]
        self.replicas[number] = await self.start(gone.folder, gone.address)
        return await self.replicas[number].ask("tell", seconds=LIVENESS_SECONDS)

    async def settled(self) -> dict[int, int]:
        await self.operations.stop()
        told: list[Told] = []

        async def is_level() -> bool:
            asked = (each.ask("tell", seconds=LIVENESS_SECONDS) for each in self.replicas)
            told[:] = await asyncio.gather(*asked)
            newest = max(self.operations.acknowledged.values())
            return len({one.sequence for one in told}) == 1 and told[0].sequence >= newest

        await eventually(is_level)
        assert len({one.digest for one in told}) == 1, "replicas differ"
        check_ledger(told[0].counts, self.operations)
        return told[0].counts

    async def _note(self, replica: int, number: int) -> int:
        told = await self.replicas[replica].ask("note", number)
        if told.error:
            raise UnavailableError(told.error, "A replica refused.")
        return told.sequence


@pytest.mark.proof
async def test_the_work_goes_on_elsewhere_when_the_process_of_the_primary_dies(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with Processes(cluster, tmp_path) as processes:
        processes.operations.start()
        for _ in range(PROCESS_KILLS):
            await processes.operations.work()
            primary = await processes.primary()
            processes.replicas[primary].process.kill()
            seconds = await processes.operations.write_again("the death of the primary")
            record_property("seconds", seconds)
            told = await processes.restart(primary)
            assert told.copies == 0

        await processes.settled()


@pytest.mark.proof
async def test_a_primary_that_wakes_from_a_freeze_never_acknowledges(
    cluster: Cluster, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    async with Processes(cluster, tmp_path) as processes:
        processes.operations.start()
        late: list[int] = []
        for _ in range(PROCESS_PAUSES):
            await processes.operations.work()
            primary = processes.replicas[await processes.primary()]
            primary.process.send_signal(signal.SIGSTOP)
            numbers = [processes.operations.next_number() for _ in range(50)]
            asked = [primary.send("note", number) for number in numbers]
            seconds = await processes.operations.write_again("the freeze of the primary")
            record_property("seconds", seconds)
            primary.process.send_signal(signal.SIGCONT)

            answers = await primary.answers(asked)

            logger.info("the late answers: %s", Counter(answer.error for answer in answers))
            assert {answer.error for answer in answers} <= {"NotPrimary", "InDoubt"}
            late += numbers
        counts = await processes.settled()

        assert not set(late) & set(counts)
