"""The status of the nodes of a NATS cluster, from /varz of their monitoring ports.

The client protocol does not show whether a node syncs before it acknowledges; this page does. A
log is not durable if a node takes part that has not confirmed that it syncs. If the client uses
TLS, so do the pages: over plain http anyone on the network could confirm it.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec

from partita.addresses import is_loopback, without_password
from partita.errors import ConfigurationError, NotDurableError

CLIENT_PORT = 4222
MONITOR_OFFSET = 4000
"""By convention the monitoring port is the client port plus this: 4222 and 8222."""
ASK_SECONDS = 2.0
SILENT_SECONDS = 5.0
"""A node that the leader has not heard from for this time is not part of a quorum."""
PAGE_BYTES_MAX = 4 * 1024 * 1024


class Peer(msgspec.Struct, frozen=True):
    """Another node, as one node reports it."""

    name: str
    current: bool = False
    offline: bool = False
    active: int = 0
    """Nanoseconds since its last message."""
    lag: int = 0
    """Messages that it has not stored yet."""

    def is_silent(self, waited: float) -> bool:
        """Return whether it takes no part; a new leader needs time to hear from all nodes."""
        if self.offline or self.active > SILENT_SECONDS * 1e9:
            return True
        is_unheard = not self.current and self.active == 0
        return is_unheard and waited > SILENT_SECONDS


class Meta(msgspec.Struct, frozen=True):
    """The meta group of JetStream, to which every JetStream node belongs."""

    leader: str = ""
    replicas: tuple[Peer, ...] = ()
    cluster_size: int = 0


class StoreSettings(msgspec.Struct, frozen=True):
    sync_always: bool = False


class StoreUse(msgspec.Struct, frozen=True):
    storage: int = 0
    """Bytes of all streams on the disk of the node."""


class StoreStatus(msgspec.Struct, frozen=True):
    config: StoreSettings | None = None
    meta: Meta | None = None
    stats: StoreUse = StoreUse()


class ClusterStatus(msgspec.Struct, frozen=True):
    name: str = ""


class NodeStatus(msgspec.Struct, frozen=True):
    """The status of one node."""

    server_name: str
    max_payload: int = 0
    jetstream: StoreStatus = StoreStatus()
    cluster: ClusterStatus = ClusterStatus()
    version: str = ""
    uptime: str = ""
    connections: int = 0
    mem: int = 0

    @property
    def has_jetstream(self) -> bool:
        return self.jetstream.config is not None

    @property
    def syncs(self) -> bool:
        return self.jetstream.config is not None and self.jetstream.config.sync_always

    @property
    def leads(self) -> bool:
        """Whether it is the meta leader, which knows all nodes, or a single node."""
        meta = self.jetstream.meta
        if meta is None:
            return not self.cluster.name
        return meta.leader == self.server_name and len(meta.replicas) + 1 >= meta.cluster_size


class PageTls(msgspec.Struct, frozen=True):
    """How the pages are read if the client uses TLS."""

    context: ssl.SSLContext
    host: str | None = None
    """The name in the certificates, if it is not that of the address."""


def monitor_urls(client_urls: Sequence[str], *, is_tls: bool = False) -> list[str]:
    """Derive the monitoring addresses from the client addresses by the convention."""
    scheme = "https" if is_tls else "http"
    urls = []
    for url in client_urls:
        split = urlsplit(url)
        host = f"[{split.hostname}]" if ":" in (split.hostname or "") else split.hostname
        urls.append(f"{scheme}://{host}:{(split.port or CLIENT_PORT) + MONITOR_OFFSET}")
    return list(dict.fromkeys(urls))


def check_authenticated(urls: Sequence[str], *, is_tls: bool) -> None:
    """Raise if the client uses TLS and a page would be read without it from another machine."""
    plain = [url for url in urls if not url.startswith("https://") and not _is_local(url)]
    if is_tls and plain:
        raise ConfigurationError(
            "MonitorNotAuthenticated",
            "The monitoring pages of NATS nodes are read without TLS, but the client uses TLS.",
            facts={"monitor": ",".join(map(without_password, plain))},
            hint="Set https: instead of http: on every node, and pass monitor=['https://…'], or"
            " omit it.",
        )


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:
        return False


async def ask_all(urls: Sequence[str], tls: PageTls | None = None) -> list[NodeStatus]:
    """Return the status of the nodes that answer, each node once."""
    pages = await asyncio.gather(*(_ask(url, tls) for url in urls))
    return list({page.server_name: page for page in pages if page is not None}.values())


def unsynced(statuses: Sequence[NodeStatus]) -> list[str]:
    """Return the names of the nodes that acknowledge before they sync."""
    return sorted(each.server_name for each in statuses if each.has_jetstream and not each.syncs)


def check_durable(
    statuses: Sequence[NodeStatus], asked: Sequence[str], *, waited: float = 0.0
) -> list[str]:
    """Raise if a node does not sync, or takes part without an answer on its monitoring port.

    Returns the nodes that are down; they must be checked when they are back. `waited` is the
    number of seconds since the first check.
    """
    facts: dict[str, object] = {"asked": ",".join(map(without_password, asked))}
    not_synced = unsynced(statuses)
    if not_synced:
        raise NotDurableError(
            "LogNotDurable",
            "A NATS node acknowledges messages before they are synced to disk.",
            facts={"nodes": ",".join(not_synced)},
            hint="Set jetstream { sync_interval: always } on every node, as `partita nats config`"
            " writes it, and restart the nodes one after the other.",
        )
    if statuses and not any(each.has_jetstream for each in statuses):
        raise ConfigurationError(
            "JetStreamNotEnabled",
            "JetStream is not enabled on these NATS servers.",
            facts={"nodes": ",".join(sorted(each.server_name for each in statuses))},
            hint="Add a jetstream block to every node, as `partita nats config` writes it.",
        )
    leader = next((each for each in statuses if each.has_jetstream and each.leads), None)
    if leader is None:
        raise _cannot_ask(
            "The leader of the NATS cluster does not answer on its monitoring port.", facts
        )
    peers = leader.jetstream.meta.replicas if leader.jetstream.meta else ()
    answered = {each.server_name for each in statuses}
    unknown = [peer for peer in peers if peer.name not in answered]
    taking_part = [peer.name for peer in unknown if not peer.is_silent(waited)]
    if taking_part:
        facts["nodes"] = ",".join(taking_part)
        raise _cannot_ask("A NATS node does not answer on its monitoring port.", facts)
    return [peer.name for peer in unknown]


def _cannot_ask(message: str, facts: dict[str, object]) -> NotDurableError:
    return NotDurableError(
        "LogNotDurable",
        message,
        facts=facts,
        hint="Open the monitoring port (client port + 4000) of every node to this machine, or pass"
        " monitor=[…] with their addresses.",
    )


async def _ask(url: str, tls: PageTls | None) -> NodeStatus | None:
    """Return the status of one node, None if there is no valid answer."""
    with contextlib.suppress(OSError, TimeoutError, ValueError, EOFError, msgspec.MsgspecError):
        async with asyncio.timeout(ASK_SECONDS):
            return msgspec.json.decode(await _fetch(url, tls), type=NodeStatus)
    return None


async def _fetch(url: str, tls: PageTls | None) -> bytes:
    split = urlsplit(url)
    is_tls = split.scheme == "https"
    port = split.port or (443 if is_tls else 80)
    reader, writer = await asyncio.open_connection(
        split.hostname,
        port,
        ssl=(tls.context if tls else True) if is_tls else None,
        server_hostname=tls.host if is_tls and tls else None,
    )
    try:
        path = f"{split.path.rstrip('/')}/varz"
        writer.write(f"GET {path} HTTP/1.0\r\nHost: {split.netloc}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise EOFError
        page = bytearray()
        while piece := await reader.read(64 * 1024):
            page += piece
            if len(page) > PAGE_BYTES_MAX:
                raise EOFError
        return bytes(page)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
