"""A connection to a NATS cluster that changes to another node when its node is lost.

A node that answers pings may have lost the other nodes: a node over which JetStream or a service
does not answer is lost too. The list of nodes is shuffled, so that the clients of a cluster use
different nodes.

nats-py implements the protocol; reconnecting is done here. The reconnect of nats-py waits until a
frozen server has read what was written to it, and sends old messages again on the new connection.
Here a lost node is dropped at once, and its open requests end with NoAnswer.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec

from partita.addresses import without_password
from partita.errors import ConfigurationError, NotAuthorizedError, QuorumLostError
from partita.reliable.nats.monitor import CLIENT_PORT, PageTls
from partita.reliable.replication.stream import NoAnswer
from partita.ticks import Clock

try:
    import nats.errors
    from nats.aio.client import Client
    from nats.aio.msg import Msg
except ImportError as error:  # only without the extra
    raise ConfigurationError(
        "ExtraMissing",
        "A state on NATS needs the package nats-py.",
        hint='Install it with pip install "./partita[replicated]".',
    ) from error

CONNECT_SECONDS = 3.0
PING_SECONDS = 1.0
FROZEN_SECONDS = 3.0
"""A node that does not answer a ping for this time is dropped."""
PAUSE_SECONDS = 0.1
"""The pause between two attempts."""
PATIENCE_SECONDS = 1.0
"""How long to wait for an answer before a request is sent again; doubles each time."""
UNANSWERED_SECONDS = 4.0
"""A node over which requests are not answered for this time is dropped."""
UNANSWERED_REQUESTS_MIN = 2
"""A node is dropped because of its silence only after this many requests."""
PENDING_BYTES_MAX = 1 << 40
"""Practically unlimited: at its limit nats-py would wait and lose a cancellation."""
LOST = "The connection was lost."
NO_TLS = "The NATS node does not offer TLS."

logger = logging.getLogger("partita.reliable")
logging.getLogger("nats").addHandler(logging.NullHandler())


def server_urls(url: str | Sequence[str]) -> list[str]:
    """Return the addresses of a list or of a text with commas; the first has scheme and user.

    >>> server_urls("nats://ada:secret@one:4222,two")
    ['nats://ada:secret@one:4222', 'nats://ada:secret@two:4222']
    """
    parts = [part.strip() for part in (url.split(",") if isinstance(url, str) else url)]
    try:
        scheme, found, _ = parts[0].partition("://")
        if not found:
            scheme = "nats"
        user = urlsplit(_with_scheme(parts[0], scheme)).netloc.rpartition("@")[0]
        return [_whole_url(part, scheme, user) for part in parts]
    except (ValueError, IndexError):
        # Its text and its cause may contain the password.
        raise _bad_url([url] if isinstance(url, str) else url) from None


def _with_scheme(part: str, scheme: str) -> str:
    return part if "://" in part else f"{scheme}://{part}"


def _whole_url(part: str, scheme: str, user: str) -> str:
    split = urlsplit(_with_scheme(part, scheme))
    host, port = split.hostname, split.port or CLIENT_PORT
    if split.scheme not in ("nats", "tls") or not host or split.path.strip("/") or split.query:
        raise ValueError
    own_user = split.netloc.rpartition("@")[0] or user
    bracketed = f"[{host}]" if ":" in host else host
    return f"{split.scheme}://{own_user}{'@' if own_user else ''}{bracketed}:{port}"


def _bad_url(urls: Sequence[str]) -> ConfigurationError:
    return ConfigurationError(
        "InvalidNatsUrl",
        "Not a valid address of a NATS cluster.",
        facts={"url": ",".join(map(without_password, urls))},
        hint="Use the form nats://host1:4222,host2:4222,host3:4222 (or tls://…).",
    )


class CheckedClient(Client):
    """A client that sends its password over TLS only, if TLS was asked for.

    nats-py continues without TLS if the server, or anyone on the way, does not offer it.
    """

    needs_tls = False

    @property
    def has_tls(self) -> bool:
        writer = getattr(self._transport, "_io_writer", None)
        return writer is not None and writer.get_extra_info("ssl_object") is not None

    def _connect_command(self) -> bytes:
        if self.needs_tls and not self.has_tls:
            raise nats.errors.Error(NO_TLS)
        command: bytes = super()._connect_command()
        return command


class NoListener(Exception):  # noqa: N818 - an answer, not an error
    """There is no subscriber of the subject: the request was not delivered."""


class Silence(msgspec.Struct, frozen=True):
    """Requests of one kind that were sent since the last answer to one."""

    since: float
    requests: int = 0

    def is_too_long(self, now: float) -> bool:
        return self.requests >= UNANSWERED_REQUESTS_MIN and now - self.since > UNANSWERED_SECONDS


class Connection:
    """A client of one node, its open requests, and listeners for its loss.

    Requests are tracked here and not by nats-py, whose wait may swallow a cancellation.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = CheckedClient()
        self.lost = asyncio.Event()
        self.listeners: set[Callable[[], None]] = set()
        self.last_error: Exception | None = None
        self._inbox = ""
        self._requests = 0
        self._silences: dict[str, Silence] = {}
        self._answers: dict[str, asyncio.Future[Msg]] = {}

    async def open(self, options: Mapping[str, Any]) -> None:
        self.client.needs_tls = self.url.startswith("tls://") or "tls" in options
        async with asyncio.timeout(CONNECT_SECONDS):
            await self.client.connect(
                servers=[self.url],
                allow_reconnect=False,
                max_reconnect_attempts=1,
                reconnect_time_wait=0,  # after a refusal, try another node at once
                connect_timeout=int(CONNECT_SECONDS) or 1,
                ping_interval=24 * 3600,  # the link pings
                pending_size=PENDING_BYTES_MAX,
                error_cb=self._on_error,
                closed_cb=self._on_closed,
                **options,
            )
            self._inbox = self.client.new_inbox()
            await self.client.subscribe(
                f"{self._inbox}.*", cb=self._take, pending_msgs_limit=0, pending_bytes_limit=0
            )

    async def request(
        self,
        subject: str,
        payload: bytes,
        headers: dict[str, str] | None,
        *,
        again_after: float | None,
    ) -> Msg:
        """Send a request and wait without a time-out. Raises NoListener, NoAnswer.

        It is sent again after `again_after` seconds, then after twice as long, and so on; None
        sends it once. The first answer to any of them counts.
        """
        if self.lost.is_set():
            raise NoAnswer(LOST)
        self._requests += 1
        token = str(self._requests)
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._answers[token] = answer
        try:
            reply = f"{self._inbox}.{token}"
            while not answer.done():
                await self.client.publish(subject, payload, reply=reply, headers=headers)
                await asyncio.wait((answer,), timeout=again_after)
                again_after = None if again_after is None else again_after * 2
            message = answer.result()
        except (nats.errors.Error, OSError) as error:
            raise NoAnswer(str(error) or type(error).__name__) from error
        finally:
            self._answers.pop(token, None)
        if not message.data and (message.headers or {}).get("Status") == "503":
            raise NoListener
        return message

    def note_request(self, kind: str, now: float) -> None:
        """Note a request; only an answer to one of the same kind ends the silence."""
        silence = self._silences.get(kind, Silence(now))
        self._silences[kind] = Silence(silence.since, silence.requests + 1)

    def note_answer(self, kind: str) -> None:
        self._silences.pop(kind, None)

    def is_silent(self, now: float) -> bool:
        """Return whether requests over this node were not answered for too long."""
        return any(silence.is_too_long(now) for silence in self._silences.values())

    async def _take(self, message: Msg) -> None:
        answer = self._answers.get(message.subject.rpartition(".")[2])
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _on_error(self, error: Exception) -> None:
        self.last_error = error
        logger.debug("NATS at %s: %r", self.shown, error)
        if isinstance(error, OSError | nats.errors.UnexpectedEOF | nats.errors.ProtocolError):
            self.lose()

    async def _on_closed(self) -> None:
        self.lose()

    @property
    def shown(self) -> str:
        """The address without secrets."""
        return self.url.rpartition("://")[2].rpartition("@")[2]

    @property
    def is_alive(self) -> bool:
        """Whether the socket is still read, which a ping would not show."""
        reading = self.client._reading_task  # noqa: SLF001 - no public way
        return self.client.is_connected and reading is not None and not reading.done()

    @property
    def tls(self) -> PageTls | None:
        """The TLS settings of this connection, None if it does not use TLS."""
        if not self.client.has_tls:
            return None
        return PageTls(self.client.ssl_context, self.client.options.get("tls_hostname"))

    def lose(self) -> None:
        """End all open requests of this node with NoAnswer, and call the listeners."""
        if self.lost.is_set():
            return
        self.lost.set()
        for answer in list(self._answers.values()):
            if not answer.done():
                answer.set_exception(NoAnswer(LOST))
        for listener in list(self.listeners):
            listener()

    async def drop(self) -> None:
        """Close the connection at once, also to a frozen node that does not read."""
        self.lose()
        client = self.client
        # nats-py would first write pending messages and wait until they are read.
        client._pending, client._pending_data_size = [], 0  # noqa: SLF001 - no public way
        writer = getattr(client._transport, "_io_writer", None)  # noqa: SLF001
        if writer is not None:
            writer.transport.abort()
        subscriptions = list(client._subs.values())  # noqa: SLF001
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await client.close()
        except (nats.errors.Error, OSError, TimeoutError, RuntimeError) as error:
            logger.debug("NATS at %s, while closing: %r", self.shown, error)
        finally:
            await end_tasks(
                client._reading_task,  # noqa: SLF001
                client._ping_interval_task,  # noqa: SLF001
                client._flusher_task,  # noqa: SLF001
                *(each._wait_for_msgs_task for each in subscriptions),  # noqa: SLF001
            )


async def end_tasks(*tasks: "asyncio.Task[Any] | None") -> None:
    """Cancel tasks until they have ended: nats-py and wait_for() may swallow a cancellation."""
    left = {task for task in tasks if task is not None and task is not asyncio.current_task()}
    while left := {task for task in left if not task.done()}:
        for task in left:
            task.cancel()
        await asyncio.wait(left, timeout=PAUSE_SECONDS)


class Link:
    """A connection to any node that is up."""

    def __init__(self, urls: Sequence[str], options: Mapping[str, Any], clock: Clock) -> None:
        self._given = list(urls)
        self._options = dict(options)
        self._clock = clock
        self._known = self._shuffled(urls)
        self._connection: Connection | None = None
        self._newest: Connection | None = None
        """The current connection, or the one being opened; dropped by `close`."""
        self._connected = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._last_error: Exception | None = None
        self.tls: PageTls | None = None
        """The TLS settings of the last connection."""
        self.closed = False

    async def start(self, timeout: float) -> None:
        """Connect to any node; raise if none could be reached in time."""
        self._keeper = asyncio.create_task(self._keep())
        try:
            async with asyncio.timeout(timeout):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CONNECT_SECONDS):
                        await self._connected.wait()
                if not self._connected.is_set():
                    logger.warning("no NATS server answers at %s", ", ".join(self._shown()))
                await self._connected.wait()
        except TimeoutError:
            await self.close()
            raise self._unreachable() from None  # the error of nats-py may contain the password
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        self.closed = True
        self._connected.set()  # ends the waits for a connection
        await end_tasks(self._keeper)
        if self._newest is not None:
            await self._newest.drop()
            self._newest = None

    @property
    def urls(self) -> list[str]:
        """All client addresses that were given or reported by a node."""
        return list(self._known)

    async def connection(self) -> Connection:
        """Return the current connection; wait while there is none."""
        while True:
            if self.closed:
                raise NoAnswer("The connection is closed.")
            connection = self._connection
            if connection is not None and not connection.lost.is_set():
                return connection
            await self._connected.wait()
            await asyncio.sleep(0)  # a lost one is cleared in this turn

    async def request(
        self,
        subject: str,
        payload: bytes,
        *,
        timeout: float,
        headers: Mapping[str, str] | None = None,
        once: bool = False,
    ) -> Msg:
        """Send a request and return the answer. Raises NoAnswer.

        The request is sent again while the subject has no listener, since its node is about to
        be elected, and when a node does not answer, since it may have stopped. With `once` a
        request that may have been received is not sent again.
        """
        why = f"No answer within {timeout:.3g} s."
        again_after = None if once else PATIENCE_SECONDS
        sent = dict(headers) if headers else None
        try:
            async with asyncio.timeout(timeout):
                while True:
                    connection = await self.connection()
                    try:
                        return await connection.request(
                            subject, payload, sent, again_after=again_after
                        )
                    except NoListener:
                        why = "The subject has no listener."
                    except NoAnswer:
                        if once or self.closed:
                            raise
                    await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise NoAnswer(why) from None

    def note_request(self, kind: str) -> None:
        """Note a request over the current node that another node may have to answer."""
        if self._connection is not None:
            self._connection.note_request(kind, self._clock.monotonic())

    def note_answer(self, kind: str) -> None:
        """Note that such a request was answered."""
        if self._connection is not None:
            self._connection.note_answer(kind)

    async def _keep(self) -> None:
        while True:
            connection = await self._connect_to_any()
            self._connection = connection
            self.tls = connection.tls
            self._connected.set()
            try:
                await self._watch(connection)
            finally:
                self._connected.clear()
                self._connection = None
                self._put_last(connection.url)  # it may have reported further nodes
            await connection.drop()
            logger.info("lost the connection to the NATS node at %s", connection.shown)

    async def _connect_to_any(self) -> Connection:
        """Try the known nodes in turn until one accepts a connection."""
        while True:
            for url in list(self._known):
                self._put_last(url)
                connection = self._newest = Connection(url)
                try:
                    await connection.open(self._options)
                except (nats.errors.Error, OSError, TimeoutError) as error:
                    self._last_error = connection.last_error or error
                    await connection.drop()
                else:
                    self._learn(connection)
                    return connection
            await asyncio.sleep(PAUSE_SECONDS)

    def _learn(self, connection: Connection) -> None:
        """Add the nodes that this one reports, with the same scheme and user."""
        reported = [each.netloc for each in connection.client.discovered_servers]
        found = server_urls([self._given[0], *reported])[1:]
        new = [url for url in dict.fromkeys(found) if url not in self._known]
        self._known += self._shuffled(new)

    def _shuffled(self, urls: Sequence[str]) -> list[str]:
        """Return them in random order, so that not all clients use the same node."""
        return sorted(urls, key=lambda _: self._clock.random_bytes(8))

    def _put_last(self, url: str) -> None:
        """Try the other known nodes before this one."""
        self._known.remove(url)
        self._known.append(url)

    async def _watch(self, connection: Connection) -> None:
        """Return when the node is lost: closed, frozen, or without answers of other nodes."""
        while not connection.lost.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PING_SECONDS):
                    await connection.lost.wait()
                return
            try:
                async with asyncio.timeout(FROZEN_SECONDS):
                    await connection.client.flush(timeout=int(FROZEN_SECONDS))
            except (nats.errors.Error, OSError, TimeoutError):
                return
            if not connection.is_alive:
                return
            if connection.is_silent(self._clock.monotonic()):
                logger.warning("requests over %s are not answered", connection.shown)
                return
            self._learn(connection)

    def _shown(self) -> list[str]:
        """Return the given addresses without secrets."""
        return [url.rpartition("://")[2].rpartition("@")[2] for url in self._given]

    def _cause(self) -> str:
        """Return the text of the last error without the secrets of the addresses and options."""
        users = [urlsplit(url).netloc.rpartition("@")[0] for url in self._given]
        passwords = [user.partition(":")[2] or user for user in users]
        options = [str(self._options.get(name) or "") for name in ("password", "token")]
        text = str(self._last_error or "no answer")
        for secret in filter(None, [*users, *passwords, *map(unquote, passwords), *options]):
            text = text.replace(secret, "***")
        return text

    def _unreachable(self) -> QuorumLostError | NotAuthorizedError:
        facts = {"nodes": ",".join(self._shown()), "cause": self._cause()}
        if "authorization" in str(self._last_error).lower():
            return NotAuthorizedError(
                "NatsNotAuthorized",
                "The NATS cluster refused the user, password or token.",
                facts=facts,
                hint="Pass them in the URL (nats://user:password@host) or in connect_options.",
            )
        return QuorumLostError(
            "NatsUnreachable",
            "No node of the NATS cluster could be reached.",
            facts=facts,
            hint="Start the cluster (`partita nats up` starts one for development), or check the"
            " addresses.",
        )
