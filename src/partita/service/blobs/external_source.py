"""The source of a copy on another server, which the operator has allowed by its host.

The host is resolved once and the connection goes to the address that was checked: a private,
loopback or link-local address is never used, unless the operator has allowed that very address.
Redirects are not followed. Pins, limits and times hold for every operation that copies from a URL.
"""

import asyncio
import contextlib
import ipaddress
import re
import socket
import ssl
from collections.abc import AsyncIterator, Collection, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit

import httptools
import msgspec

from partita.blobs.rules.model import Blob, Conditions, Headers, Kind, Opened
from partita.errors import InvalidRequestError, LimitExceededError, PartitaError
from partita.refusals import body_too_large, not_implemented
from partita.service.blobs.wire import CopySource
from partita.service.http.message_bytes import http_date

EXTERNAL_COPY_BYTES_MAX = 5000 * 1024 * 1024
"""The most bytes that are copied from another server in one request."""
EXTERNAL_COPY_SECONDS_MAX = 600.0
"""How long it may take to copy from another server."""
EXTERNAL_SILENCE_SECONDS_MAX = 30.0
"""How long the other server may take to be found, to connect, and to send the next bytes."""
EXTERNAL_HEADER_BYTES_MAX = 64 * 1024
READ_BYTES = 64 * 1024

_PORTS = {"http": 80, "https": 443}
_TARGET = re.compile(r"[\x21-\x7e]*")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_GLOBAL_IPV6 = ipaddress.ip_network("2000::/3")
"""The only part of IPv6 that is given to hosts of the Internet."""
_NOT_OF_HOSTS = tuple(
    map(
        ipaddress.ip_network,
        ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "2001:db8::/32", "3fff::/20"),
    )
)
"""Networks of protocols and documents, of which versions of Python disagree."""
_METADATA = "x-ms-meta-"

T = TypeVar("T")
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class ExternalSource(msgspec.Struct, frozen=True):
    """The address of a source on another server."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query, as they were sent."""

    @property
    def address(self) -> str:
        """Return the address without its query, which may have a signature."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.target.partition('?')[0]}"


def external_source(address: str, hosts: Collection[str]) -> ExternalSource:
    """Return the source that an address names, if its host is one of the allowed ones.

    A host stands for its default ports, `host:port` for that port.

    >>> external_source("https://data.example/a?sig=x", ["data.example"]).address
    'https://data.example/a'
    """
    parts = urlsplit(address)
    host = (parts.hostname or "").rstrip(".")
    if not is_allowed(address, hosts):
        raise InvalidRequestError(
            "CannotVerifyCopySource",
            "Copies from this host are not allowed by the server.",
            facts={"status": 403, "source": "AuthorizationFailure"},
            hint="Copy from a blob of this server, or let its operator start it with"
            f" --copy-from-host {host[:253] or 'HOST'}.",
            setting="--copy-from-host",
        )
    port = parts.port or _PORTS[parts.scheme]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not _TARGET.fullmatch(target):
        raise unverified_source(400, "the address is not percent-encoded")
    return ExternalSource(parts.scheme, host, port, target)


def is_allowed(address: str, hosts: Collection[str]) -> bool:
    """Return whether the host and port of an address are allowed."""
    parts = urlsplit(address)
    try:
        port = parts.port or _PORTS[parts.scheme]
    except (KeyError, ValueError):
        return False
    host = (parts.hostname or "").rstrip(".")
    names = {f"{host}:{port}", f"[{host}]:{port}"}
    if port == _PORTS[parts.scheme]:
        names |= {host, f"[{host}]"}
    return bool(host) and not names.isdisjoint(each.lower() for each in hosts)


def is_public(address: Address) -> bool:
    """Return whether an address is one of the public Internet, also if it embeds another one.

    >>> is_public(ipaddress.ip_address("::ffff:10.0.0.1"))
    False
    """
    if isinstance(address, ipaddress.IPv6Address):
        embedded = address.ipv4_mapped or address.sixtofour
        if embedded is None and address in _NAT64:
            embedded = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(embedded)
        if address not in _GLOBAL_IPV6:
            return False
    is_of_hosts = not any(address in network for network in _NOT_OF_HOSTS)
    return is_of_hosts and address.is_global and not address.is_multicast


async def resolve(source: ExternalSource) -> str:
    """Return the address to connect to; an allowed host that is an address stands for itself."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(source.host))
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(source.host, source.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise unverified_source(400, "its host is not found") from None
    for *_, place in found:
        text = str(place[0]).partition("%")[0]
        if is_public(ipaddress.ip_address(text)):
            return text
    raise unverified_source(403, "its host has no public address")


@asynccontextmanager
async def opened_external(source: ExternalSource, wanted: CopySource) -> AsyncIterator[Opened]:
    """Open the source for reading; its errors have the code of a source that is not verified."""
    request = _request_of(source, wanted)
    reader, writer = await _within(EXTERNAL_SILENCE_SECONDS_MAX, _connect(source))
    answer = _Answer(reader)
    try:
        writer.write(request)
        await _within(EXTERNAL_SILENCE_SECONDS_MAX, answer.read_head())
        yield _opened(source, wanted, answer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def _connect(source: ExternalSource) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    address = await resolve(source)
    context = ssl.create_default_context() if source.scheme == "https" else None
    name = source.host if context else None
    return await asyncio.open_connection(address, source.port, ssl=context, server_hostname=name)


async def _within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """Run some work in a task of its own: a request may run outside of tasks."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait([task], timeout=seconds)
        with _translated():
            if not task.done():
                raise TimeoutError
            return task.result()
    finally:
        task.cancel()


def _request_of(source: ExternalSource, wanted: CopySource) -> bytes:
    host = f"[{source.host}]" if ":" in source.host else source.host
    port = "" if source.port == _PORTS[source.scheme] else f":{source.port}"
    lines = [
        f"GET {source.target} HTTP/1.1",
        f"Host: {host}{port}",
        "Accept-Encoding: identity",
        "User-Agent: partita",
        "Connection: close",
        *_condition_lines(wanted.terms.conditions),
    ]
    if wanted.range is not None:
        last = "" if wanted.range.last is None else wanted.range.last
        lines.append(f"Range: bytes={wanted.range.first}-{last}")
    return "\r\n".join([*lines, "", ""]).encode("ascii", "replace")


def _condition_lines(conditions: Conditions) -> Iterator[str]:
    if conditions.if_tags is not None:
        raise not_implemented("Omit x-ms-source-if-tags: the tags are on another server.")
    for name, etags in (("Match", conditions.if_match), ("None-Match", conditions.if_none_match)):
        if etags:
            texts = (each if each == "*" else f'"{each}"' for each in etags)
            yield f"If-{name}: {', '.join(texts)}"
    for name, ticks in (
        ("Modified", conditions.if_modified_since),
        ("Unmodified", conditions.if_unmodified_since),
    ):
        if ticks is not None:
            yield f"If-{name}-Since: {http_date(ticks)}"


class _Answer:
    """An answer that is parsed as it arrives; httptools calls its `on_` methods."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._has_head = False
        self._is_complete = False
        self.length = 0
        self.headers: dict[str, str] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        self._has_head = True

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._is_complete = True

    @property
    def status(self) -> int:
        return int(self._parser.get_status_code())

    async def read_head(self) -> None:
        size = 0
        while not self._has_head:
            size += await self._read_some()
            # httptools calls on_headers_complete while it is fed.
            if size > EXTERNAL_HEADER_BYTES_MAX and not self._has_head:
                raise unverified_source(400, "its answer has too long headers")

    async def _read_some(self) -> int:
        part = await self._reader.read(READ_BYTES)
        if not part:
            raise unverified_source(400, "its server closed the connection")
        self._parser.feed_data(part)
        return len(part)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        loop, received = asyncio.get_running_loop(), 0
        ends_at = loop.time() + EXTERNAL_COPY_SECONDS_MAX
        while True:
            parts, self._parts = self._parts, []
            for part in parts:
                received += len(part)
                yield part
            if self._is_complete:
                break
            silent_at = loop.time() + EXTERNAL_SILENCE_SECONDS_MAX
            await _within(min(ends_at, silent_at) - loop.time(), self._read_some())
        if received != self.length:
            raise unverified_source(400, "its content does not have the announced length")

    async def close(self) -> None:
        """Do nothing: the connection is closed with the source."""


def _opened(source: ExternalSource, wanted: CopySource, answer: _Answer) -> Opened:
    headers, expected = answer.headers, 200 if wanted.range is None else 206
    if answer.status != expected:
        reason = f"its server answered {answer.status}"
        if 300 <= answer.status < 400 and answer.status != 304:
            reason += ": redirects are not followed"
        raise unverified_source(answer.status, reason)
    text = headers.get("content-length", "")
    if not text.isascii() or not text.isdigit():
        raise unverified_source(400, "its server does not send a Content-Length")
    length = int(text[:20])
    if length > EXTERNAL_COPY_BYTES_MAX:
        raise body_too_large(EXTERNAL_COPY_BYTES_MAX)
    answer.length = length
    kinds: tuple[Kind, ...] = get_args(Kind)
    kind = next((each for each in kinds if each == headers.get("x-ms-blob-type")), kinds[0])
    blob = Blob(
        name=source.target,
        snapshot=None,
        kind=kind,
        created_at=0,
        changed_at=0,
        length=length,
        headers=Headers(
            headers.get("content-type"),
            headers.get("content-encoding"),
            headers.get("content-language"),
            headers.get("content-disposition"),
            headers.get("cache-control"),
        ),
        metadata={
            name.removeprefix(_METADATA): value
            for name, value in headers.items()
            if name.startswith(_METADATA)
        },
    )
    first = 0 if wanted.range is None else wanted.range.first
    return Opened(blob, answer, first, first + length - 1, length)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Translate errors of the network; the texts of the other server are not repeated."""
    try:
        yield
    except (TimeoutError, asyncio.IncompleteReadError):
        raise unverified_source(400, "its server took too long") from None
    except ssl.SSLError:
        raise unverified_source(400, "its certificate is not valid") from None
    except OSError:
        raise unverified_source(400, "its server cannot be reached") from None
    except httptools.HttpParserError:
        raise unverified_source(400, "its answer is not HTTP") from None


def unverified_source(status: int, reason: str) -> PartitaError:
    """Return the error of a source that cannot be read."""
    shown = status if status == 304 or 400 <= status < 500 else 400
    kind = LimitExceededError if shown == 413 else InvalidRequestError
    return kind(
        "CannotVerifyCopySource",
        "Could not verify the copy source within the specified time.",
        facts={"status": shown, "source": "CannotVerifyCopySource"},
        hint=f"The source cannot be read: {reason}.",
    )
