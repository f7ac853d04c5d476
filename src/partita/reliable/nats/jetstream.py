"""The Stream contract on NATS JetStream: a stream, a key-value bucket and an object store.

Only a publish proves that this process is up to date; its answer is the fence of the log. The
stream is used only after every node has confirmed that it syncs before it acknowledges.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from partita.clock import SystemClock
from partita.errors import (
    ConfigurationError,
    NotDurableError,
    QuorumLostError,
    UsageError,
)
from partita.reliable.nats.api import (
    NOT_ENABLED,
    STREAM_NOT_FOUND,
    WRONG_LAST,
    Api,
    Failed,
    StreamAnswer,
    StreamNames,
    no_answer,
)
from partita.reliable.nats.consumer import pull
from partita.reliable.nats.files import FileBucket, FileHead
from partita.reliable.nats.link import PAUSE_SECONDS, Link, end_tasks, logger, server_urls
from partita.reliable.nats.monitor import (
    ask_all,
    check_authenticated,
    check_durable,
    monitor_urls,
    unsynced,
)
from partita.reliable.nats.streams import (
    file_settings,
    log_settings,
    open_stream,
    register_settings,
)
from partita.reliable.replication.stream import NoAnswer, PublishRefused, Register
from partita.reliable.storage.log import log_truncated, record_too_large
from partita.reliable.values import limits
from partita.ticks import Clock

PARTITION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
SERVER_VERSION_MIN = (2, 12)
"""Older servers lack fixes of 2.12; the tests run on 2.15."""
HEADER_BYTES = 1024
"""Bytes of a message that are reserved for headers."""
MAX_PAYLOAD_MIN = 1024 * 1024
"""The default of max_payload."""
BOUNDS_SECONDS = 2.0
"""The time-out when messages() reads the bounds."""
NODES_AGAIN_SECONDS = 30.0
PARTITIONS_LISTED_MAX = 4096
"""Partitions of a cluster that an observer lists."""
MISSING_NODES_AGAIN_SECONDS = 2.0


class JetStream:
    """One partition's stream, register and files on a NATS cluster; see `stream.Stream`."""

    message_bytes_max: int

    def __init__(self, api: Api, partition: str, monitor: Sequence[str] | None) -> None:
        self.partition = partition
        self.message_bytes_max = 0
        self._api = api
        self.link = api.link
        self._monitor = monitor
        self._stream = f"partita-{partition}"
        self._bucket = f"partita-{partition}-register"
        self._files = FileBucket(api, f"partita-{partition}-files")
        self._not_durable: NotDurableError | None = None
        self._watching: asyncio.Task[None] | None = None
        self._sleepers: set[Callable[[], None]] = set()

    @classmethod
    async def connect(  # noqa: PLR0913 - by keyword
        cls,
        url: str | Sequence[str],
        *,
        partition: str,
        replicas: int = 3,
        register_seconds: float = 3.0,
        verify_durable: bool = True,
        monitor: Sequence[str] | None = None,
        timeout: float = 30.0,
        connect_options: Mapping[str, Any] | None = None,
        first_sequence: int = 1,
        clock: Clock | None = None,
    ) -> "JetStream":
        """Connect, verify that the cluster syncs, and create or open the partition's streams.

        `monitor` has the monitoring addresses of the nodes (http://host:8222, https with TLS) if
        they are not at the client port + 4000. `connect_options` are passed to nats-py: user,
        password, token, user_credentials, nkeys_seed, tls, tls_hostname, name. `first_sequence` is
        the first sequence of a new log: the one after a restored state.
        """
        _check_arguments(partition, replicas, register_seconds)
        urls = server_urls(url)
        clock = clock or SystemClock()
        link = Link(urls, {"name": f"partita/{partition}", **(connect_options or {})}, clock)
        stream = cls(Api(link, clock), partition, monitor)
        deadline = asyncio.get_running_loop().time() + timeout
        await link.start(timeout)
        try:
            await stream._check_server()
            if verify_durable:
                await stream._verify_nodes(deadline)
            await stream._open_streams(replicas, register_seconds, first_sequence, deadline)
        except BaseException:
            await stream.close()
            raise
        return stream

    @classmethod
    async def attach(
        cls,
        url: str | Sequence[str],
        *,
        partition: str,
        timeout: float = 30.0,
        connect_options: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
    ) -> "JetStream":
        """Connect to read an existing partition: nothing is created, verified or changed.

        Every publish is refused.
        """
        _check_arguments(partition, 1, 1.0)
        api = await _connect_api(url, partition, timeout, connect_options, clock)
        stream = cls(api, partition, None)
        try:
            await api.call(f"STREAM.INFO.{stream._stream}", {}, StreamAnswer, timeout)
        except Failed as failure:
            await stream.close()
            raise _not_attached(partition, failure) from failure
        except NoAnswer as error:
            await stream.close()
            raise QuorumLostError(
                "QuorumLost",
                "The log of the partition has no leader: too few NATS nodes answer.",
                facts={"partition": partition},
                hint="Start the NATS nodes that are down; a majority is needed.",
            ) from error
        except BaseException:
            await stream.close()
            raise
        return stream

    async def describe(self, *, timeout: float) -> StreamAnswer:
        """Return the settings and state of the log, and the nodes that store it."""
        return await self._api.describe_stream(self._stream, timeout)

    async def close(self) -> None:
        """End messages() and all waits for answers, and close the connection."""
        self.link.closed = True
        await end_tasks(self._watching)
        await self.link.close()
        for wake in list(self._sleepers):
            wake()

    # The log

    async def publish(
        self, raw: bytes, *, epoch: int, expected: int, message_id: str, timeout: float
    ) -> int:
        if self._not_durable is not None:
            raise self._not_durable
        if len(raw) > self.message_bytes_max:
            raise record_too_large(expected + 1, len(raw), self.message_bytes_max)
        headers = {"Nats-Expected-Last-Sequence": str(expected), "Nats-Msg-Id": message_id}
        try:
            return await self._api.store(self._subject(epoch), raw, headers, timeout)
        except Failed as failure:
            if failure.code in WRONG_LAST:
                raise PublishRefused(str(failure)) from failure
            raise no_answer(failure) from failure

    async def get(self, sequence: int, *, timeout: float) -> bytes | None:
        message = await self._api.get(self._stream, {"seq": sequence}, timeout)
        return None if message is None else message.content

    async def bounds(self, *, timeout: float) -> tuple[int, int]:
        state = (await self._api.describe_stream(self._stream, timeout)).state
        if state.messages == 0:
            return state.last_seq + 1, state.last_seq
        return state.first_seq, state.last_seq

    async def messages(self, start: int) -> AsyncIterator[tuple[int, bytes]]:
        needed = start
        while not self.link.closed:
            with contextlib.suppress(NoAnswer):
                consumer = pull(self._api, self._stream, needed, self._sleepers)
                async with contextlib.aclosing(consumer) as pulled:
                    async for sequence, raw in pulled:
                        if sequence < needed:  # a lagging node starts at its own end
                            continue
                        if sequence > needed:
                            break
                        yield sequence, raw
                        needed += 1
                await self._check_not_truncated(needed)
            if not self.link.closed:
                await asyncio.sleep(PAUSE_SECONDS)

    async def seal(self, epoch: int, *, timeout: float) -> None:
        """Change the subject; PublishRefused if a higher epoch has sealed the stream."""
        answer = await self._api.describe_stream(self._stream, timeout)
        current = int(answer.config["subjects"][0].rpartition(".e")[2])
        if current == epoch:
            return
        if current > epoch:
            message = f"The stream is sealed by epoch {current}."
            raise PublishRefused(message)
        settings = {**answer.config, "subjects": [self._subject(epoch)]}
        await self._api.change(f"STREAM.UPDATE.{self._stream}", settings, timeout)

    async def purge(self, below: int, *, timeout: float) -> None:
        # A purge beyond the end would change the sequence of the next record.
        _, last = await self.bounds(timeout=timeout)
        order = {"seq": min(below, last + 1)}
        if order["seq"] > 1:
            await self._api.change(f"STREAM.PURGE.{self._stream}", order, timeout)

    # The register

    async def read_register(self, key: str, *, timeout: float) -> Register | None:
        return await self._read_register(self._key_subject(key), timeout)

    async def list_registers(self, prefix: str, *, timeout: float) -> dict[str, Register]:
        bucket = f"KV_{self._bucket}"
        held = await self._api.describe_stream(bucket, timeout, subjects=f"$KV.{self._bucket}.>")
        begin = self._key_subject(prefix)
        subjects = [subject for subject in sorted(held.state.subjects) if subject.startswith(begin)]
        reads = await asyncio.gather(*(self._read_register(each, timeout) for each in subjects))
        skip = len(self._key_subject(""))
        found = zip(subjects, reads, strict=True)
        return {_plain_key(subject[skip:]): read for subject, read in found if read is not None}

    async def write_register(
        self, key: str, value: bytes, *, revision: int, timeout: float
    ) -> int | None:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        try:
            return await self._api.store(self._key_subject(key), value, headers, timeout)
        except Failed as failure:
            if failure.code in WRONG_LAST:
                return None
            raise no_answer(failure) from failure

    async def remove_register(self, key: str, *, revision: int, timeout: float) -> None:
        # Only the newest revision is stored; a newer one is above the purged sequence.
        order = {"filter": self._key_subject(key), "seq": revision + 1}
        await self._api.change(f"STREAM.PURGE.KV_{self._bucket}", order, timeout)

    async def _read_register(self, subject: str, timeout: float) -> Register | None:
        message = await self._api.get(f"KV_{self._bucket}", {"last_by_subj": subject}, timeout)
        if message is None or b"KV-Operation:" in message.hdrs:  # removed by a NATS tool
            return None
        return Register(message.content, message.seq)

    # The files

    async def put_file(self, name: str, content: bytes, *, timeout: float) -> None:
        await self._files.put(name, content, timeout=timeout)

    async def get_file(self, name: str, *, timeout: float) -> bytes | None:
        return await self._files.get(name, timeout=timeout)

    async def file_head(self, name: str, *, timeout: float) -> FileHead | None:
        """Return the beginning of a file and when it was stored; None without one."""
        return await self._files.head(name, timeout=timeout)

    # Inside

    def _subject(self, epoch: int) -> str:
        return f"partita.{self.partition}.e{epoch}"

    def _key_subject(self, key: str) -> str:
        return f"$KV.{self._bucket}.{_nats_key(key)}"

    async def _check_not_truncated(self, needed: int) -> None:
        if self.link.closed:
            return
        first, _ = await self.bounds(timeout=BOUNDS_SECONDS)
        if needed < first:
            raise log_truncated(needed, first)

    async def _check_server(self) -> None:
        client = (await self.link.connection()).client
        version = client.connected_server_version
        if (version.major, version.minor) < SERVER_VERSION_MIN:
            raise ConfigurationError(
                "NatsServerTooOld",
                "The version of the NATS server is too old.",
                facts={"version": f"{version.major}.{version.minor}.{version.patch}"},
                hint="Use nats-server {}.{} or later.".format(*SERVER_VERSION_MIN),
            )
        self.message_bytes_max = limits.RECORD_BYTES_MAX
        self._fit_into(client.max_payload)

    def _fit_into(self, max_payload: int) -> None:
        """Limit records to what this node accepts, since any node may receive the next one."""
        if max_payload < MAX_PAYLOAD_MIN:
            raise ConfigurationError(
                "NatsPayloadTooSmall",
                "max_payload of a NATS node is too small for a record.",
                facts={"max_payload": max_payload, "needed": MAX_PAYLOAD_MIN},
                hint="Set max_payload: 8MB on every node.",
            )
        self.message_bytes_max = min(self.message_bytes_max, max_payload - HEADER_BYTES)

    async def _open_streams(
        self, replicas: int, register_seconds: float, first_sequence: int, deadline: float
    ) -> None:
        register = f"$KV.{self._bucket}.>"
        wanted = {
            "log": log_settings(self._stream, self._subject(0), first_sequence),
            "register": register_settings(f"KV_{self._bucket}", register, register_seconds),
            "files": file_settings(self._files.stream, self._files.subjects),
        }
        for kind, settings in wanted.items():
            left = max(0.1, deadline - asyncio.get_running_loop().time())
            await open_stream(
                self._api, kind, self.partition, settings, replicas=replicas, timeout=left
            )

    # Durability of the nodes

    async def _verify_nodes(self, deadline: float) -> None:
        """Raise if a node does not sync; then watch the cluster."""
        began = asyncio.get_running_loop().time()
        while True:
            try:
                missing = await self._ask_nodes(asyncio.get_running_loop().time() - began)
            except NotDurableError as error:
                # While nodes start, stop or elect a leader, some do not answer: retry.
                is_certain = error is self._not_durable
                if is_certain or asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            for name in missing:
                logger.warning("the NATS node %s is down; it is checked when it is back", name)
            self._watching = asyncio.create_task(self._watch_nodes(is_complete=not missing))
            return

    async def _watch_nodes(self, *, is_complete: bool) -> None:
        """Stop publishing if a node that returns or joins does not sync."""
        while True:
            await asyncio.sleep(NODES_AGAIN_SECONDS if is_complete else MISSING_NODES_AGAIN_SECONDS)
            try:
                is_complete = not await self._ask_nodes()
            except NotDurableError as error:
                is_complete = False
                if error is self._not_durable:
                    logger.error("%s", error)
            except ConfigurationError as error:
                logger.error("%s", error)  # the max_payload of a new node is too small

    async def _ask_nodes(self, waited: float = 0.0) -> list[str]:
        """Check all nodes and return those that are down; remember an error of the others."""
        tls, given = self.link.tls, self._monitor
        if given is None:
            addresses = monitor_urls(self.link.urls, is_tls=tls is not None)
        else:
            addresses = list(given)
            check_authenticated(addresses, is_tls=tls is not None)
        statuses = await ask_all(addresses, tls)
        try:
            missing = check_durable(statuses, addresses, waited=waited)
        except NotDurableError as error:
            if unsynced(statuses):
                self._not_durable = error
            raise
        self._not_durable = None
        for status in statuses:
            self._fit_into(status.max_payload)
        return missing


async def list_partitions(
    url: str | Sequence[str],
    *,
    timeout: float = 30.0,
    connect_options: Mapping[str, Any] | None = None,
    clock: Clock | None = None,
) -> list[str]:
    """Return the names of the partitions of a cluster, at most PARTITIONS_LISTED_MAX."""
    api = await _connect_api(url, "partitions", timeout, connect_options, clock)
    names: list[str] = []
    try:
        while len(names) < PARTITIONS_LISTED_MAX:
            asked = {"subject": "partita.*.*", "offset": len(names)}
            found = await api.call("STREAM.NAMES", asked, StreamNames, timeout)
            names += found.streams or ()
            if not found.streams or len(names) >= found.total:
                break
    except Failed as failure:
        raise _not_attached("", failure) from failure
    except NoAnswer as error:
        raise QuorumLostError(
            "QuorumLost",
            "The NATS cluster has no leader: too few nodes answer.",
            hint="Start the NATS nodes that are down; a majority is needed.",
        ) from error
    finally:
        await api.link.close()
    ours = [name.removeprefix("partita-") for name in names if name.startswith("partita-")]
    return sorted(ours)[:PARTITIONS_LISTED_MAX]


async def _connect_api(
    url: str | Sequence[str],
    name: str,
    timeout: float,
    connect_options: Mapping[str, Any] | None,
    clock: Clock | None,
) -> Api:
    clock = clock or SystemClock()
    options = {"name": f"partita/{name} observer", **(connect_options or {})}
    link = Link(server_urls(url), options, clock)
    await link.start(timeout)
    return Api(link, clock)


def _not_attached(partition: str, failure: Failed) -> ConfigurationError:
    if failure.code == STREAM_NOT_FOUND:
        return ConfigurationError(
            "PartitionNotFound",
            f"There is no partition {partition!r} on this NATS cluster.",
            facts={"partition": partition},
            hint="Check the name; `partita state status` without --partition lists all.",
        )
    if failure.code in NOT_ENABLED:
        return ConfigurationError(
            "JetStreamNotEnabled",
            "JetStream is not enabled on this NATS server or for this account.",
            hint="Add a jetstream block to every node, as `partita nats config` writes it.",
        )
    return ConfigurationError(
        "StreamNotOpened",
        "The NATS server refused to describe the partition's stream.",
        facts={"partition": partition, "cause": str(failure)},
        hint="Check the log of the NATS server.",
    )


_PLAIN = re.compile(r"[-/_A-Za-z0-9]")


def _nats_key(key: str) -> str:
    """Encode a key with the characters that NATS allows; prefixes are preserved.

    >>> _nats_key("replica/a.b"), _plain_key("replica/a=2Eb")
    ('replica/a=2Eb', 'replica/a.b')
    """
    return "".join(
        character
        if _PLAIN.match(character)
        else "".join(f"={byte:02X}" for byte in character.encode())
        for character in key
    )


def _plain_key(key: str) -> str:
    return re.sub(
        r"(?:=[0-9A-F]{2})+", lambda found: bytes.fromhex(found[0].replace("=", "")).decode(), key
    )


def _check_arguments(partition: str, replicas: int, register_seconds: float) -> None:
    if not PARTITION.fullmatch(partition):
        raise UsageError(
            "InvalidPartitionName",
            "A partition name must have 1 to 100 of the characters A-Z a-z 0-9 _ - and start with"
            " a letter or digit.",
            facts={"partition": partition},
            hint="Choose another name.",
        )
    if replicas not in (1, 3, 5):
        raise UsageError(
            "InvalidReplicas",
            "A log must have 3 or 5 replicas, or 1 for development.",
            facts={"replicas": replicas},
            hint="Pass replicas=3.",
        )
    if register_seconds < 1:
        raise UsageError(
            "InvalidLease",
            "A lease on NATS must last at least one second.",
            facts={"seconds": register_seconds},
            hint="Pass 3 seconds or more.",
        )
