"""A service in partitions on a real three-node NATS cluster, with processes that come and die."""

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from partita.errors import (
    ConflictError,
    LimitExceededError,
    NotPrimaryError,
    Retry,
    StateClosedError,
    StoreLockedError,
    UnavailableError,
    UsageError,
)
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.service.requests import PAYLOAD_BYTES_MAX, RemoteError, Request
from partita.reliable.service.service import Service, open_service
from replicated.serve_counts import PARTITIONS, count, open_counts
from support.cluster import ELECTION_SECONDS, Cluster, proxied_cluster
from support.proxy import faults

KEYS = [f"user-{n}" for n in range(24)]


def a_name() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(2 * ELECTION_SECONDS):
        while not holds():  # noqa: ASYNC110 - other processes are watched
            await asyncio.sleep(0.05)


class World:
    """One service, and the members of it that live in this process."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder
        self.name = a_name()
        self.members: list[Service] = []
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> "World":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def open(self, **options: Any) -> Service:
        wanted: dict[str, Any] = {
            "partitions": PARTITIONS,
            "opened": open_counts,
            "handle": count,
            "folder": self.folder / uuid.uuid4().hex,
        } | options
        where = wanted.pop("where", self.cluster.url)
        return await self._stack.enter_async_context(open_service(where, self.name, **wanted))

    async def join(self, **options: Any) -> Service:
        address = f"process-{len(self.members)}"
        service = await self.open(address=address, **options)
        self.members.append(service)
        return service

    def are_shares_even(self) -> bool:
        replicas = [len(member.states()) for member in self.members]
        primaries = [len(primary_partitions(member)) for member in self.members]
        copies = min(3, len(self.members))
        return (
            sum(replicas) == PARTITIONS * copies
            and max(replicas) - min(replicas) <= 1
            and sum(primaries) == PARTITIONS
            and max(primaries) - min(primaries) <= 1
        )


def primary_partitions(service: Service) -> list[int]:
    return [number for number, state in service.states().items() if state.is_primary]


@pytest.fixture
async def world(cluster: Cluster, tmp_path: Path) -> AsyncIterator[World]:
    async with World(cluster, tmp_path) as world:
        yield world


async def crash(service: Service) -> None:
    """End a member as a dead process does: nothing that it still has to say is heard."""
    streams = [state.log._stream for state in service.states().values()]  # type: ignore[attr-defined]
    streams.append(service._membership._stream)
    for stream in streams:
        await stream.link.close()
    await service.close()


async def test_members_share_replicas_and_primaries_evenly_and_reach_every_key(
    world: World,
) -> None:
    for _ in range(3):
        await world.join()
    await eventually(world.are_shares_even)

    for number, member in enumerate(world.members):
        answers = [await member.request(key, b"1") for key in KEYS]
        assert answers == [b"%d" % (number + 1)] * len(KEYS)
    client = await world.open(holds=False, partitions=None)
    assert await client.request("user-0", b"10") == b"13"
    assert client.states() == {}


@pytest.mark.proof
async def test_members_and_clients_leave_a_node_that_has_lost_its_peers(tmp_path: Path) -> None:
    """A client and a member that holds all primaries are on that node, two members are not."""
    with proxied_cluster(tmp_path / "nats") as cluster:
        inside, *outside = (f"nats://{proxy.address}" for proxy in cluster.clients)
        async with World(cluster, tmp_path) as world:
            options = {"monitor": cluster.monitor, "partitions": 1}
            for where in (inside, *outside):
                await world.join(where=where, **options)
            client = await world.open(where=inside, holds=False, **options | {"partitions": None})
            assert await client.request("user-0", b"1") == b"1"
            routes = cluster.routes_of(0)

            with faults(*routes):
                for route in routes:
                    route.blackhole()
                answer = await client.request("user-0", b"1", timeout=2 * ELECTION_SECONDS)

            assert answer == b"2"


async def test_a_state_is_given_where_its_primary_is_and_elsewhere_its_address(
    world: World,
) -> None:
    for _ in range(2):
        await world.join()
    await eventually(world.are_shares_even)
    key = next(
        key
        for key in KEYS
        if world.members[0].partition_of(key) in primary_partitions(world.members[0])
    )

    state = world.members[0].state_for(key)

    assert state.is_primary
    assert state is world.members[0].states()[world.members[0].partition_of(key)]

    def address_elsewhere() -> str:
        with pytest.raises(NotPrimaryError) as caught:
            world.members[1].state_for(key)
        return caught.value.primary

    await eventually(lambda: address_elsewhere() == "process-0")


@pytest.mark.proof
async def test_nothing_is_lost_or_doubled_while_members_die_join_and_leave(world: World) -> None:
    for _ in range(3):
        await world.join()
    client = await world.open(holds=False)
    acknowledged: Counter[str] = Counter()
    is_over = asyncio.Event()

    async def ask(worker: int) -> None:
        number = 0
        while not is_over.is_set():
            key = KEYS[(worker * 7 + number) % len(KEYS)]
            await client.request(key, b"1", timeout=60.0)
            acknowledged[key] += 1
            number += 1

    asking = [asyncio.create_task(ask(worker)) for worker in range(8)]
    try:
        await world.join()
        await eventually(world.are_shares_even)
        dead = world.members.pop(0)
        await crash(dead)
        before = acknowledged.total()
        await eventually(lambda: acknowledged.total() > before + 50)
        await world.members.pop(0).close()
        await eventually(world.are_shares_even)
    finally:
        is_over.set()
        await asyncio.gather(*asking)
    counted = {key: int(await client.request(key, b"0")) for key in KEYS}

    assert counted == {key: acknowledged[key] for key in KEYS}
    assert acknowledged.total() > 100


@pytest.mark.proof
async def test_a_killed_process_is_replaced_and_the_work_goes_on(
    cluster: Cluster, tmp_path: Path
) -> None:
    name = a_name()
    async with contextlib.AsyncExitStack() as stack:
        processes = [
            await stack.enter_async_context(serving(cluster, name, tmp_path / str(n), f"p-{n}"))
            for n in range(2)
        ]
        client = await stack.enter_async_context(open_service(cluster.url, name, holds=False))
        for key in KEYS:
            await client.request(key, b"1", idempotency_key=f"first-{key}")
        processes[0].send_signal(signal.SIGKILL)

        again = [
            await client.request(key, b"1", idempotency_key=f"first-{key}", timeout=60.0)
            for key in KEYS
        ]
        more = [await client.request(key, b"1", timeout=60.0) for key in KEYS]

        assert again == [b"1"] * len(KEYS)
        assert more == [b"2"] * len(KEYS)


@contextlib.asynccontextmanager
async def serving(
    cluster: Cluster, name: str, folder: Path, address: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    script = Path(__file__).with_name("serve_counts.py")
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        script,
        cluster.url,
        name,
        folder,
        address,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(2 * ELECTION_SECONDS):
            assert await process.stdout.readline() == b"ready\n"
        yield process
    finally:
        process.stdin.close()
        await process.wait()


async def test_the_numbers_of_a_service_are_fixed_at_its_creation(world: World) -> None:
    await world.open(partitions=2)

    with pytest.raises(UsageError, match="partitions=2") as caught:
        await world.open(partitions=4)
    assert caught.value.code == "PartitionCountFixed"
    assert "another name" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        await world.open(partitions=2, replicas=1)
    assert caught.value.code == "PartitionCountFixed"


async def test_a_service_that_was_closed_everywhere_is_found_again(world: World) -> None:
    kept, new = world.folder / "kept", world.folder / "new"
    for number, folder in enumerate([kept, kept, new], start=1):
        service = await world.open(partitions=2, folder=folder)

        assert [await service.request(key, b"1") for key in KEYS[:4]] == [b"%d" % number] * 4
        await service.close()


async def test_two_members_cannot_share_a_folder(world: World) -> None:
    await world.open(partitions=1, folder=world.folder / "one")

    with pytest.raises(StoreLockedError):
        await world.open(partitions=1, folder=world.folder / "one")


async def test_a_client_does_not_create_a_service(world: World) -> None:
    with pytest.raises(UsageError) as caught:
        await world.open(partitions=None, holds=False)

    assert caught.value.code == "ServiceNotFound"


Kind = Callable[[Request], Awaitable[Any]]


def answering(**kinds: Kind) -> dict[str, Any]:
    async def handle(_: StateManager, request: Request) -> bytes:
        answer: bytes = await kinds[str(request.key)](request)
        return answer

    return {"partitions": 1, "opened": None, "handle": handle}


async def test_what_the_primary_raises_reaches_the_caller(world: World) -> None:
    async def refuse(_: Request) -> bytes:
        raise ConflictError("OutOfStock", "No lamp is left.", facts={"item": "lamp"}, hint="Wait.")

    async def fail(_: Request) -> bytes:
        raise RuntimeError("the lamp fell")

    async def echo(request: Request) -> bytes:
        return request.payload

    async def forget(_: Request) -> None:
        return None

    async def exaggerate(_: Request) -> bytes:
        return bytes(PAYLOAD_BYTES_MAX + 1)

    service = await world.open(
        **answering(refuse=refuse, fail=fail, echo=echo, forget=forget, exaggerate=exaggerate)
    )
    with pytest.raises(RemoteError, match="No lamp is left") as caught:
        await service.request("refuse")
    assert (caught.value.code, caught.value.facts, caught.value.hint, caught.value.retry) == (
        "OutOfStock",
        {"item": "lamp"},
        "Wait.",
        Retry.REREAD,
    )
    with pytest.raises(RemoteError, match="RuntimeError: the lamp fell") as caught:
        await service.request("fail")
    assert caught.value.code == "HandlerFailed"
    with pytest.raises(RemoteError, match="NoneType") as caught:
        await service.request("forget")
    assert caught.value.code == "HandlerFailed"
    with pytest.raises(RemoteError) as caught:
        await service.request("exaggerate")
    assert caught.value.code == "AnswerTooLarge"
    with pytest.raises(LimitExceededError) as too_large:
        await service.request("echo", bytes(PAYLOAD_BYTES_MAX + 1))
    assert too_large.value.code == "RequestTooLarge"
    largest = os.urandom(PAYLOAD_BYTES_MAX)
    assert await service.request("echo", largest) == largest


async def test_a_slow_request_is_asked_again_but_not_begun_again(world: World) -> None:
    begun: list[str] = []

    async def slow(request: Request) -> bytes:
        begun.append(request.id)
        await asyncio.sleep(3.0)
        return b"done"

    service = await world.open(**answering(slow=slow))

    assert await service.request("slow", idempotency_key="once") == b"done"
    assert begun == ["once"]


async def test_without_a_process_that_holds_it_a_partition_is_unavailable(world: World) -> None:
    service = await world.open(partitions=1)
    client = await world.open(holds=False, partitions=None)
    await service.close()

    with pytest.raises(UnavailableError) as caught:
        await client.request("user-1", b"1", timeout=1.0)

    assert caught.value.code == "ServiceUnavailable"
    with pytest.raises(StateClosedError):
        await service.request("user-1", b"1")
    with pytest.raises(StateClosedError):
        service.state_for("user-1")


async def test_code_that_cannot_open_its_collections_is_told_at_once(world: World) -> None:
    async def opened(_: StateManager) -> None:
        raise RuntimeError("no such module")

    with pytest.raises(RuntimeError, match="no such module"):
        await world.open(partitions=1, opened=opened)


@pytest.mark.parametrize("partitions", [0, 257, None, True, "8"])
async def test_a_count_of_partitions_that_makes_no_sense_is_refused(partitions: object) -> None:
    with pytest.raises(UsageError) as caught:
        async with open_service("nats://127.0.0.1:1", "s", partitions=partitions):  # type: ignore[arg-type]
            pass

    assert caught.value.code == "InvalidPartitionCount"
