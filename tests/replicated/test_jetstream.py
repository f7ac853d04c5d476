"""The Stream contract on a real three-node NATS cluster, with real crashes and freezes."""

import asyncio
import contextlib
import itertools
import os
import ssl
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client
from nats.errors import NoRespondersError

from partita.errors import (
    ConfigurationError,
    LimitExceededError,
    NotAuthorizedError,
    NotDurableError,
    NotReadableError,
    PartitaError,
    QuorumLostError,
    UsageError,
)
from partita.reliable.nats import consumer as nats_consumer
from partita.reliable.nats import link as nats_link
from partita.reliable.nats import monitor as nats_monitor
from partita.reliable.nats.cluster import find_server
from partita.reliable.nats.jetstream import JetStream
from partita.reliable.nats.link import server_urls
from partita.reliable.replication.stream import NoAnswer, PublishRefused, Register, Stream
from support.cluster import ELECTION_SECONDS, Cluster, free_port, running_cluster

SOON = 60.0
"""Far beyond what anything here takes, also on a busy machine."""


def a_name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@contextlib.asynccontextmanager
async def opened(
    cluster: Cluster, partition: str | None = None, url: Any = None, **options: Any
) -> AsyncIterator[JetStream]:
    stream = await JetStream.connect(url or cluster.url, partition=partition or a_name(), **options)
    try:
        yield stream
    finally:
        await stream.close()


@pytest.fixture
async def stream(cluster: Cluster) -> AsyncIterator[JetStream]:
    async with opened(cluster) as stream:
        await stream.seal(1, timeout=SOON)
        yield stream


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody be given up because a busy machine is slow to answer."""
    monkeypatch.setattr(nats_consumer, "PATIENCE_SECONDS", SOON)
    monkeypatch.setattr(nats_consumer, "CREATE_SECONDS", SOON)
    monkeypatch.setattr(nats_link, "PATIENCE_SECONDS", SOON)
    monkeypatch.setattr(nats_link, "FROZEN_SECONDS", SOON)
    monkeypatch.setattr(nats_monitor, "ASK_SECONDS", SOON)


@contextlib.asynccontextmanager
async def raw_client(url: str) -> AsyncIterator[Client]:
    client = Client()
    await client.connect(url)
    try:
        yield client
    finally:
        await client.close()


async def api(client: Client, verb: str, **asked: object) -> dict[str, Any]:
    answer = await client.request(f"$JS.API.{verb}", msgspec.json.encode(asked), timeout=SOON)
    decoded: dict[str, Any] = msgspec.json.decode(answer.data)
    return decoded


async def leader_of(cluster: Cluster, partition: str) -> int:
    """The node that leads the partition's stream, once there is one."""
    index = next(n for n in range(len(cluster.nodes)) if cluster.pid(n))
    found = ""

    async def is_led() -> bool:
        nonlocal found
        answer = await api(client, f"STREAM.INFO.partita-{partition}")
        found = answer.get("cluster", {}).get("leader", "")
        return bool(found)

    async with raw_client(cluster.url_of(index)) as client:
        await eventually(is_led)
    return cluster.node_named(found)


async def consumer_count(cluster: Cluster, partition: str) -> int:
    async with raw_client(cluster.url_of(0)) as client:
        answer = await api(client, f"STREAM.INFO.partita-{partition}")
    return int(answer["state"]["consumer_count"])


async def put(
    stream: Stream,
    sequence: int,
    *,
    epoch: int = 1,
    raw: bytes | None = None,
    timeout: float | None = None,
) -> int:
    """Publish once within this time; without one, until the answer is definite."""
    if timeout is None:
        return await put_surely(stream, sequence, epoch=epoch, raw=raw)
    return await stream.publish(
        raw or b"record %d" % sequence,
        epoch=epoch,
        expected=sequence - 1,
        message_id=f"{epoch}.{sequence}",
        timeout=timeout,
    )


async def put_surely(
    stream: Stream, sequence: int, *, epoch: int = 1, raw: bytes | None = None
) -> int:
    """Publish as the log does: the same message again until the answer is definite."""
    async with asyncio.timeout(ELECTION_SECONDS):
        while True:
            with contextlib.suppress(NoAnswer):
                return await put(stream, sequence, epoch=epoch, raw=raw, timeout=1.0)


async def read(stream: Stream, start: int, count: int) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    async with asyncio.timeout(ELECTION_SECONDS):
        async for message in stream.messages(start):
            found.append(message)
            if len(found) == count:
                break
    return found


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(ELECTION_SECONDS):
        while not await holds():  # noqa: ASYNC110 - another process is asked
            await asyncio.sleep(0.05)


async def seals(stream: Stream, epoch: int) -> bool:
    with contextlib.suppress(NoAnswer):
        await stream.seal(epoch, timeout=1.0)
        return True
    return False


async def publishes(stream: Stream, sequence: int) -> bool:
    with contextlib.suppress(NoAnswer, NotDurableError):
        return await put(stream, sequence, timeout=1.0) == sequence
    return False


async def connect_error(url: str, **options: Any) -> PartitaError:
    """Return why a connection is refused; a busy machine may need longer to hear of it."""
    timeout = 1.0
    while True:
        with pytest.raises(PartitaError) as caught:
            await JetStream.connect(url, partition="p", timeout=timeout, **options)
        if caught.value.code != "NatsUnreachable":
            return caught.value
        timeout *= 2


async def put_for_ever(stream: Stream, start: int) -> None:
    async with asyncio.timeout(ELECTION_SECONDS):
        for sequence in itertools.count(start):
            await put_surely(stream, sequence)


async def late_publish(client: Client, partition: str, number: int) -> dict[str, Any]:
    """Publish past every guard of ours, as a writer that slept would; answer what came of it."""
    headers = {"Nats-Expected-Last-Sequence": "1", "Nats-Msg-Id": f"late {number}"}
    subject = f"partita.{partition}.e{1 + number % 2}"
    try:
        answer = await client.request(subject, b"late", timeout=1.0, headers=headers)
    except (NoRespondersError, TimeoutError):
        return {"error": "the subject is sealed, or the node has not yet noticed its fall"}
    decoded: dict[str, Any] = msgspec.json.decode(answer.data)
    return decoded


class TestLog:
    async def test_a_new_stream_is_empty(self, stream: JetStream) -> None:
        assert await stream.bounds(timeout=SOON) == (1, 0)
        assert await stream.get(1, timeout=SOON) is None

    async def test_messages_get_the_next_sequences(self, stream: JetStream) -> None:
        assert [await put(stream, n) for n in (1, 2, 3)] == [1, 2, 3]

        assert await stream.bounds(timeout=SOON) == (1, 3)
        assert await stream.get(2, timeout=SOON) == b"record 2"

    async def test_another_end_than_the_expected_is_refused(self, stream: JetStream) -> None:
        await put(stream, 1)

        with pytest.raises(PublishRefused):
            await stream.publish(b"x", epoch=1, expected=0, message_id="late", timeout=SOON)
        with pytest.raises(PublishRefused):
            await stream.publish(b"x", epoch=1, expected=2, message_id="early", timeout=SOON)
        assert await stream.bounds(timeout=SOON) == (1, 1)

    async def test_a_message_id_is_stored_once_whatever_is_expected(
        self, stream: JetStream
    ) -> None:
        await put(stream, 1)
        await put(stream, 2)

        again = await stream.publish(b"x", epoch=1, expected=77, message_id="1.1", timeout=SOON)

        assert again == 1
        assert await stream.bounds(timeout=SOON) == (1, 2)

    async def test_one_writer_in_a_race_gets_the_sequence(
        self, cluster: Cluster, stream: JetStream
    ) -> None:
        async with opened(cluster, stream.partition) as other:
            for sequence in range(1, 11):
                racing = [
                    each.publish(
                        name, epoch=1, expected=sequence - 1, message_id=f"{name!r}{sequence}",
                        timeout=SOON,
                    )
                    for each, name in ((stream, b"a"), (other, b"b"))
                ]  # fmt: skip
                answers = await asyncio.gather(*racing, return_exceptions=True)

                assert sorted(map(type, answers), key=str) == [int, PublishRefused]

    async def test_messages_behind_a_refused_one_are_stored_when_they_are_pipelined(
        self, cluster: Cluster, stream: JetStream
    ) -> None:
        # Why the log keeps one message in flight: the fence alone does not stop a stale writer
        # that has sent several, once another writer's message lies where its first one failed.
        await put(stream, 1, raw=b"primary")

        stale = [
            stream.publish(
                b"stale", epoch=1, expected=expected, message_id=f"s{expected}", timeout=SOON
            )
            for expected in range(4)
        ]
        answers = await asyncio.gather(*stale, return_exceptions=True)

        assert isinstance(answers[0], PublishRefused)
        assert answers[1:] == [2, 3, 4]

    async def test_the_largest_record_comes_back_whole(self, stream: JetStream) -> None:
        largest = os.urandom(stream.message_bytes_max)

        await put(stream, 1, raw=largest)

        assert await stream.get(1, timeout=SOON) == largest
        assert await read(stream, 1, 1) == [(1, largest)]
        with pytest.raises(LimitExceededError):
            await put(stream, 2, raw=largest + b"x")

    async def test_a_seal_closes_the_epoch_before(self, stream: JetStream) -> None:
        await put(stream, 1)

        await stream.seal(2, timeout=SOON)

        with pytest.raises(NoAnswer):
            await put(stream, 2, timeout=0.5)
        assert await put(stream, 2, epoch=2) == 2

    async def test_a_seal_is_never_taken_back(self, stream: JetStream) -> None:
        await stream.seal(5, timeout=SOON)
        await stream.seal(5, timeout=SOON)

        with pytest.raises(PublishRefused):
            await stream.seal(4, timeout=SOON)
        assert await put(stream, 1, epoch=5) == 1

    async def test_purged_messages_are_gone_and_sequences_go_on(self, stream: JetStream) -> None:
        for sequence in range(1, 6):
            await put(stream, sequence)

        await stream.purge(4, timeout=SOON)
        assert await stream.bounds(timeout=SOON) == (4, 5)
        await stream.purge(1_000, timeout=SOON)
        assert await stream.bounds(timeout=SOON) == (6, 5)
        await stream.purge(1, timeout=SOON)

        assert await stream.get(3, timeout=SOON) is None
        assert await put(stream, 6) == 6


class TestFollowing:
    async def test_messages_wait_for_what_comes(self, stream: JetStream) -> None:
        reading = asyncio.create_task(read(stream, 1, 700))
        for sequence in range(1, 701):
            await put(stream, sequence)

        found = await reading

        assert found == [(n, b"record %d" % n) for n in range(1, 701)]

    async def test_one_consumer_serves_a_long_read(
        self, cluster: Cluster, stream: JetStream, patience: None
    ) -> None:
        await asyncio.gather(*(put(stream, sequence) for sequence in range(1, 1_001)))

        assert [n for n, _ in await read(stream, 1, 1_000)] == list(range(1, 1_001))

        assert await consumer_count(cluster, stream.partition) == 1

    async def test_messages_may_begin_beyond_the_end(self, stream: JetStream) -> None:
        await put(stream, 1)
        reading = asyncio.create_task(read(stream, 4, 1))
        await asyncio.sleep(0.3)
        for sequence in (2, 3, 4):
            await put(stream, sequence)

        assert await reading == [(4, b"record 4")]

    async def test_many_large_messages_are_read_in_order(
        self, cluster: Cluster, stream: JetStream, patience: None
    ) -> None:
        large = [os.urandom(3_000_000) for _ in range(8)]
        for sequence, raw in enumerate(large, start=1):
            await put(stream, sequence, raw=raw)

        assert await read(stream, 1, 8) == list(enumerate(large, start=1))
        assert await consumer_count(cluster, stream.partition) == 1

    async def test_what_was_purged_cannot_be_read(self, stream: JetStream) -> None:
        for sequence in range(1, 5):
            await put(stream, sequence)
        await stream.purge(3, timeout=SOON)

        with pytest.raises(NotReadableError) as caught:
            await read(stream, 2, 1)
        assert caught.value.facts["first"] == 3
        assert await read(stream, 3, 2) == [(3, b"record 3"), (4, b"record 4")]

    async def test_messages_end_when_the_stream_is_closed(self, cluster: Cluster) -> None:
        async with opened(cluster) as stream:
            await stream.seal(1, timeout=SOON)
            await put(stream, 1)
            seen: asyncio.Queue[int] = asyncio.Queue()

            async def follow() -> None:
                async for sequence, _ in stream.messages(1):
                    seen.put_nowait(sequence)

            following = asyncio.create_task(follow())
            assert await seen.get() == 1

        await asyncio.wait_for(following, SOON)
        assert seen.empty()
        with pytest.raises(NoAnswer):
            await stream.get(1, timeout=1.0)


class TestRegister:
    async def test_a_key_is_created_once(self, cluster: Cluster, stream: JetStream) -> None:
        async with opened(cluster, stream.partition) as other:
            answers = await asyncio.gather(
                *(
                    each.write_register("lease", b"me", revision=0, timeout=SOON)
                    for each in (stream, other) * 5
                )
            )

        assert sum(answer is not None for answer in answers) == 1

    async def test_a_write_needs_the_current_revision(self, stream: JetStream) -> None:
        first = await stream.write_register("lease", b"1", revision=0, timeout=SOON)
        assert first is not None
        second = await stream.write_register("lease", b"2", revision=first, timeout=SOON)
        assert second is not None

        assert await stream.write_register("lease", b"x", revision=first, timeout=SOON) is None
        assert await stream.read_register("lease", timeout=SOON) == Register(b"2", second)

    async def test_a_key_expires_unless_it_is_written_again(self, cluster: Cluster) -> None:
        async with opened(cluster, register_seconds=1.0) as stream:
            while not await self._outlives(stream):
                pass
            assert await stream.write_register("left", b"", revision=0, timeout=SOON) is not None

    async def _outlives(self, stream: JetStream) -> bool:
        """Say that `kept` is there while `left` expires; False: the machine slept too long."""
        clock = asyncio.get_running_loop().time
        await stream.write_register("left", b"", revision=0, timeout=SOON)
        found = await stream.read_register("kept", timeout=SOON)
        revision = found.revision if found else 0
        written = clock()
        while await stream.read_register("left", timeout=SOON) is not None:
            before = clock()
            answer = await stream.write_register("kept", b"", revision=revision, timeout=SOON)
            if answer is None:
                assert clock() - written > 1.0, "it expired before its time"
                return False
            revision, written = answer, before
            await asyncio.sleep(0.1)
        held = set(await stream.list_registers("", timeout=SOON))
        is_late = clock() - written > 1.0
        assert is_late or held == {"kept"}
        return not is_late

    async def test_only_the_revision_that_was_read_is_removed(self, stream: JetStream) -> None:
        first = await stream.write_register("lease", b"1", revision=0, timeout=SOON)
        assert first is not None
        second = await stream.write_register("lease", b"2", revision=first, timeout=SOON)
        assert second is not None

        await stream.remove_register("lease", revision=first, timeout=SOON)
        assert await stream.read_register("lease", timeout=SOON) == Register(b"2", second)
        await stream.remove_register("lease", revision=second, timeout=SOON)

        assert await stream.read_register("lease", timeout=SOON) is None
        assert await stream.write_register("lease", b"3", revision=0, timeout=SOON) is not None

    async def test_any_text_is_a_key_and_prefixes_select(self, stream: JetStream) -> None:
        keys = ["replica/a.b", "replica/*>", "replica/ü =1", "replica", "other/x"]
        for key in keys:
            assert await stream.write_register(key, key.encode(), revision=0, timeout=SOON)

        found = await stream.list_registers("replica/", timeout=SOON)

        assert {key: register.value.decode() for key, register in found.items()} == {
            key: key for key in keys if key.startswith("replica/")
        }


class TestFiles:
    async def test_a_file_of_many_chunks_comes_back_and_is_replaced(
        self, stream: JetStream
    ) -> None:
        content = os.urandom(5_000_001)
        assert await stream.get_file("checkpoint/ü", timeout=SOON) is None

        await stream.put_file("checkpoint/ü", content, timeout=SOON)
        await stream.put_file("empty", b"", timeout=SOON)
        assert await stream.get_file("checkpoint/ü", timeout=SOON) == content
        assert await stream.get_file("empty", timeout=SOON) == b""
        await stream.put_file("checkpoint/ü", b"new", timeout=SOON)

        assert await stream.get_file("checkpoint/ü", timeout=SOON) == b"new"

    async def test_a_replaced_file_takes_no_room(self, cluster: Cluster, stream: JetStream) -> None:
        for content in (b"x" * 3_000_000, b"y" * 2_000_000):
            await stream.put_file("checkpoint", content, timeout=SOON)

        async with raw_client(cluster.url_of(0)) as client:
            answer = await api(client, f"STREAM.INFO.OBJ_partita-{stream.partition}-files")

        assert 2_000_000 < answer["state"]["bytes"] < 2_100_000


class TestOpening:
    async def test_processes_that_open_at_once_share_one_stream(self, cluster: Cluster) -> None:
        name = a_name()
        async with contextlib.AsyncExitStack() as stack:
            opening = [stack.enter_async_context(opened(cluster, name)) for _ in range(5)]
            streams = await asyncio.gather(*opening)
            await asyncio.gather(*(each.seal(1, timeout=SOON) for each in streams))
            await put(streams[0], 1)

            held = [await each.get(1, timeout=SOON) for each in streams]

        assert held == [b"record 1"] * 5

    @pytest.mark.parametrize("name", ["", "a.b", "a b", "a*", ">", "-a", "ä", "a" * 101, "a\n"])
    async def test_a_name_that_nats_cannot_take_is_refused(
        self, cluster: Cluster, name: str
    ) -> None:
        with pytest.raises(UsageError) as caught:
            await JetStream.connect(cluster.url, partition=name)
        assert caught.value.code == "InvalidPartitionName"

    async def test_a_foreign_stream_is_refused_and_not_touched(self, cluster: Cluster) -> None:
        name = a_name()
        async with raw_client(cluster.url_of(0)) as client:
            theirs = f"partita-{name}"
            await api(client, f"STREAM.CREATE.{theirs}", name=theirs, subjects=[f"theirs.{name}"])
            before = await api(client, f"STREAM.INFO.{theirs}")

            with pytest.raises(ConfigurationError) as caught:
                await JetStream.connect(cluster.url, partition=name)
            after = await api(client, f"STREAM.INFO.{theirs}")

        assert caught.value.code == "ForeignStream"
        assert after["config"] == before["config"]

    async def test_subjects_that_another_stream_takes_are_refused(self, cluster: Cluster) -> None:
        name = a_name()
        async with raw_client(cluster.url_of(0)) as client:
            subjects = [f"partita.{name}.>"]
            await api(client, f"STREAM.CREATE.X{name}", name=f"X{name}", subjects=subjects)

            with pytest.raises(ConfigurationError) as caught:
                await JetStream.connect(cluster.url, partition=name)

        assert caught.value.code == "ForeignStream"

    async def test_other_settings_than_at_creation_are_refused(self, cluster: Cluster) -> None:
        async with opened(cluster) as stream:
            with pytest.raises(ConfigurationError) as caught:
                await JetStream.connect(cluster.url, partition=stream.partition, replicas=1)
        assert caught.value.code == "StreamDiffers"
        assert "num_replicas" in caught.value.facts

    async def test_more_replicas_than_nodes_are_refused(self, cluster: Cluster) -> None:
        with pytest.raises(QuorumLostError) as caught:
            await JetStream.connect(cluster.url, partition=a_name(), replicas=5)
        assert caught.value.code == "TooFewNodes"

    async def test_an_address_where_nobody_listens_is_said(self) -> None:
        with pytest.raises(QuorumLostError) as caught:
            await JetStream.connect("nats://127.0.0.1:9", partition="p", timeout=0.5)
        assert caught.value.code == "NatsUnreachable"
        assert caught.value.facts["nodes"] == "127.0.0.1:9"

    @pytest.mark.parametrize("url", ["http://a", "nats://", "nats://a,", "nats://a:x", "", []])
    async def test_an_invalid_address_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            await JetStream.connect(url, partition="p", timeout=0.5)
        assert caught.value.code == "InvalidNatsUrl"


class TestSettings:
    async def test_users_of_the_cluster_are_told_apart(self, tmp_path: Path) -> None:
        extra = 'authorization { user: "ada", password: "s3cret" }\n'
        with running_cluster(tmp_path, count=1, extra=extra) as cluster:
            address = cluster.nodes[0].address

            async with opened(cluster, "p", f"nats://ada:s3cret@{address}", replicas=1) as stream:
                assert await stream.bounds(timeout=SOON) == (1, 0)
            options = {"user": "ada", "password": "s3cret"}
            async with opened(cluster, "p", replicas=1, connect_options=options) as stream:
                assert await stream.bounds(timeout=SOON) == (1, 0)
            error = await connect_error(f"nats://ada:wr0ng@{address}")

        assert isinstance(error, NotAuthorizedError)
        assert error.code == "NatsNotAuthorized"
        assert "wr0ng" not in str(error)

    async def test_records_fit_into_what_the_nodes_take(self, tmp_path: Path) -> None:
        with running_cluster(tmp_path, count=1, extra="max_payload: 1MB\n") as cluster:
            async with opened(cluster, "p", replicas=1) as stream:
                await stream.seal(1, timeout=SOON)
                assert stream.message_bytes_max < 1024 * 1024
                assert await put(stream, 1, raw=b"x" * stream.message_bytes_max) == 1
            cluster.extra = "max_payload: 64KB\n"
            cluster.restart(0)
            cluster.wait_ready()

            with pytest.raises(ConfigurationError) as caught:
                await JetStream.connect(cluster.url, partition="p", replicas=1)

        assert caught.value.code == "NatsPayloadTooSmall"

    async def test_a_server_without_jetstream_is_refused(self) -> None:
        port = free_port(1)
        command = [str(find_server()), "-a", "127.0.0.1", "-p", str(port), "-m", str(port + 4000)]
        server = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.DEVNULL)
        try:
            with pytest.raises(ConfigurationError) as caught:
                await JetStream.connect(f"nats://127.0.0.1:{port}", partition="p")
        finally:
            server.kill()
            await server.wait()

        assert caught.value.code == "JetStreamNotEnabled"

    def test_addresses_share_scheme_and_user(self) -> None:
        assert server_urls("tls://a:b@one,two:5222,[::1]:1") == [
            "tls://a:b@one:4222",
            "tls://a:b@two:5222",
            "tls://a:b@[::1]:1",
        ]
        assert server_urls(["one", "nats://c:d@two"]) == ["nats://one:4222", "nats://c:d@two:4222"]


@contextlib.asynccontextmanager
async def tls_node(folder: Path) -> AsyncIterator[tuple[int, ssl.SSLContext]]:
    """A node with TLS on its client and monitoring ports, and what trusts it."""
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    making = await asyncio.create_subprocess_exec(
        *command, *subject, *files, stderr=asyncio.subprocess.DEVNULL
    )
    assert await making.wait() == 0
    port = free_port(1)
    config = folder / "node.conf"
    config.write_text(
        f"""
listen: "127.0.0.1:{port}"
https: "127.0.0.1:{port + 4000}"
max_payload: 8MB
jetstream {{ store_dir: "{folder}/store", sync_interval: always }}
tls {{ cert_file: "{certificate}", key_file: "{key}" }}
"""
    )
    server = await asyncio.create_subprocess_exec(
        str(find_server()), "-c", str(config), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield port, ssl.create_default_context(cafile=str(certificate))
    finally:
        server.kill()
        await server.wait()


class TestDurability:
    async def test_nodes_that_do_not_sync_are_refused(self, tmp_path: Path, patience: None) -> None:
        with running_cluster(tmp_path, sync_interval="2m") as cluster:
            with pytest.raises(NotDurableError) as caught:
                await JetStream.connect(cluster.url, partition="p")
            assert caught.value.code == "LogNotDurable"
            assert caught.value.facts["nodes"] == "node1,node2,node3"

            async with opened(cluster, "p", verify_durable=False) as stream:
                assert await stream.bounds(timeout=SOON) == (1, 0)

    async def test_a_client_with_tls_reads_the_pages_over_https_and_verifies_them(
        self, tmp_path: Path
    ) -> None:
        async with tls_node(tmp_path) as (port, trusting):
            url = f"tls://127.0.0.1:{port}"
            options: dict[str, Any] = {"replicas": 1, "connect_options": {"tls": trusting}}
            stream = await JetStream.connect(url, partition="p", **options)
            bounds = await stream.bounds(timeout=SOON)
            await stream.close()
            error = await connect_error(url, monitor=["http://10.0.0.1:8222"], **options)
            foreign = await connect_error(
                url, monitor=[f"https://localhost:{port + 4000}"], **options
            )

        assert bounds == (1, 0)
        assert error.code == "MonitorNotAuthenticated"
        assert foreign.code == "LogNotDurable"  # the certificate is for 127.0.0.1 only

    async def test_no_password_is_sent_without_tls_if_tls_was_asked_for(
        self, tmp_path: Path
    ) -> None:
        sent = bytearray()

        async def node(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b'INFO {"server_id":"x","version":"2.12.0","max_payload":1048576}\r\n')
            with contextlib.suppress(ConnectionError):
                sent.extend(await reader.read())
            writer.close()

        server = await asyncio.start_server(node, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(QuorumLostError) as caught:
            await JetStream.connect(
                f"tls://ada:s3cret@127.0.0.1:{port}", partition="p", timeout=0.5
            )
        server.close()

        assert caught.value.code == "NatsUnreachable"
        assert caught.value.facts["cause"] == "The NATS node does not offer TLS."
        assert sent == b""

    @pytest.mark.parametrize("is_leader_asked", [True, False])
    async def test_nodes_that_cannot_be_asked_are_refused(
        self, cluster: Cluster, is_leader_asked: bool
    ) -> None:
        leader = cluster.nodes[cluster.meta_leader()]
        asked = [
            f"http://{node.monitor}"
            for node in cluster.nodes
            if (node == leader) == is_leader_asked
        ]

        error = await connect_error(cluster.url, monitor=asked)

        assert isinstance(error, NotDurableError)
        assert error.code == "LogNotDurable"
        assert "monitor=" in error.hint

    async def test_one_address_is_enough_to_ask_every_node(self, cluster: Cluster) -> None:
        async with opened(cluster, url=cluster.url_of(1)) as stream:
            assert await stream.bounds(timeout=SOON) == (1, 0)

    async def test_one_node_alone_serves_development(self, tmp_path: Path) -> None:
        with running_cluster(tmp_path, count=1) as cluster:
            async with opened(cluster, "p", replicas=1) as stream:
                await stream.seal(1, timeout=SOON)
                assert await put(stream, 1) == 1
            with pytest.raises(QuorumLostError) as caught:
                await JetStream.connect(cluster.url, partition="q", replicas=3)
            assert caught.value.code == "TooFewNodes"


@pytest.mark.proof
class TestFaults:
    async def test_a_killed_leader_loses_and_doubles_nothing(self, cluster: Cluster) -> None:
        async with opened(cluster) as stream, opened(cluster, stream.partition) as follower:
            await stream.seal(1, timeout=SOON)
            following = asyncio.create_task(read(follower, 1, 150))
            for sequence in range(1, 151):
                if sequence == 51:
                    leader = await leader_of(cluster, stream.partition)
                    asyncio.get_running_loop().call_later(0.005, cluster.kill, leader)
                assert await put_surely(stream, sequence) == sequence

            found = await following

            assert found == [(n, b"record %d" % n) for n in range(1, 151)]
            assert await stream.bounds(timeout=SOON) == (1, 150)

    async def test_a_frozen_leader_is_left_and_refused_when_it_wakes(
        self, cluster: Cluster
    ) -> None:
        async with opened(cluster) as stream:
            await stream.seal(1, timeout=SOON)
            await put(stream, 1)
            leader = await leader_of(cluster, stream.partition)
            async with raw_client(cluster.url_of(leader)) as stale:
                cluster.pause(leader)
                others = cluster.addresses_but(leader)
                async with opened(cluster, stream.partition, url=others) as successor:
                    await eventually(lambda: seals(successor, 2))
                    assert await put_surely(successor, 2, epoch=2) == 2
                    cluster.resume(leader)

                    answers = [await late_publish(stale, stream.partition, n) for n in range(5)]

                    assert all("error" in answer for answer in answers)
                    assert await put_surely(stream, 3, epoch=2) == 3
                    assert await read(successor, 1, 3) == [(n, b"record %d" % n) for n in (1, 2, 3)]

    async def test_without_a_quorum_nothing_is_answered_and_nothing_is_lost(
        self, cluster: Cluster
    ) -> None:
        async with opened(cluster) as stream:
            await stream.seal(1, timeout=SOON)
            for sequence in range(1, 11):
                await put(stream, sequence)
            for index in (0, 1):
                cluster.kill(index)

            with pytest.raises(NoAnswer):
                await put(stream, 11, timeout=1.0)
            with pytest.raises(PartitaError) as caught:
                await JetStream.connect(
                    cluster.url, partition=stream.partition, timeout=1.0, verify_durable=False
                )
            assert isinstance(caught.value, QuorumLostError)
            cluster.kill(2)
            for index in (0, 1, 2):
                cluster.restart(index)

            assert await put_surely(stream, 11) == 11
            assert await put_surely(stream, 12) == 12
            assert [n for n, _ in await read(stream, 1, 12)] == list(range(1, 13))

    async def test_new_logs_are_opened_while_nodes_restart(self, cluster: Cluster) -> None:
        for index in range(3):
            cluster.kill(index)
            cluster.restart(index)
            async with opened(cluster) as stream:
                await eventually(lambda stream=stream: seals(stream, 1))  # type: ignore[misc]
                assert await put_surely(stream, 1) == 1

    async def test_a_node_that_comes_back_without_syncing_stops_the_log(
        self, cluster: Cluster
    ) -> None:
        name = a_name()
        async with opened(cluster, name) as stream:
            await stream.seal(1, timeout=SOON)
            await put(stream, 1)
        cluster.kill(2)
        async with opened(cluster, name) as stream:
            assert await put_surely(stream, 2) == 2

            cluster.sync_interval = "2m"
            cluster.restart(2)
            with pytest.raises(NotDurableError):
                await put_for_ever(stream, start=3)
            _, last = await stream.bounds(timeout=SOON)

            cluster.sync_interval = "always"
            cluster.restart(2)
            await eventually(lambda: publishes(stream, last + 1))
