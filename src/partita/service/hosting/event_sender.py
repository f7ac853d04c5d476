"""Sends notices of changed blobs to a webhook or to a NATS subject.

A request only puts its notice into a bounded queue; one task sends them in order, and again after
a failure. The one rule: a slow or missing receiver never delays a request. Notices that wait are in
memory only: those of a killed server are lost.
"""

import asyncio
import contextlib
import importlib.util
import logging
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Sequence
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit, urlunsplit

import msgspec

from partita.blobs.rules.model import Blob
from partita.errors import ConfigurationError, PartitaError
from partita.metrics.families import Family, Sample
from partita.service.accounts.account import Accounts
from partita.service.accounts.blob_events import CREATED, BlobEvent
from partita.service.blobs.events import document_of
from partita.service.hosting.redirects import NoRedirects
from partita.ticks import Clock

if TYPE_CHECKING:
    from nats.aio.client import Client

EVENTS_QUEUED_MAX = 10_000
"""Notices that wait for the receiver; further ones are dropped and counted."""
EVENTS_PER_SEND_MAX = 100
ATTEMPTS_MAX = 30
"""How often the same notices are sent before they are dropped."""
BACK_OFF_SECONDS = 1.0
BACK_OFF_SECONDS_MAX = 60.0
SEND_TIMEOUT_SECONDS = 10.0
STOP_SECONDS_MAX = 5.0
"""How long a stopping server sends the notices that wait."""
WARNING_SECONDS = 60.0

_FINAL = frozenset({400, 413})
"""Statuses that mean that the receiver does not take these notices, as Event Grid has it."""

logger = logging.getLogger("partita.events")


class ReceiverError(Exception):
    """The receiver did not take the notices."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class Receiver(Protocol):
    """Where notices are sent to."""

    async def send(self, documents: Sequence[dict[str, Any]]) -> None:
        """Send notices; ReceiverError if they were not taken."""

    async def close(self) -> None: ...


class EventSender:
    """Sends notices in the background. Build it with `open`, and close it."""

    def __init__(self, receiver: Receiver, accounts: Accounts, clock: Clock) -> None:
        self._receiver = receiver
        self._accounts = accounts
        self._clock = clock
        self._waiting: deque[BlobEvent] = deque()
        self._has_some = asyncio.Event()
        self._is_stopping = asyncio.Event()
        self._warn_again_at = clock.monotonic()
        self._number = 0
        self.sent = 0
        self.dropped = 0
        self.failures = 0
        """Attempts that failed."""
        self._task = asyncio.create_task(self._run())

    def changed(self, event: BlobEvent) -> None:
        if len(self._waiting) >= EVENTS_QUEUED_MAX:
            self._drop(1, f"{EVENTS_QUEUED_MAX} of them wait already")
            return
        self._waiting.append(event)
        self._has_some.set()

    async def close(self) -> None:
        """Send what waits, for a short time; drop the rest."""
        self._is_stopping.set()
        self._has_some.set()
        await asyncio.wait([self._task], timeout=STOP_SECONDS_MAX)
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        if self._waiting:
            self._drop(len(self._waiting), "the server stops")
            self._waiting.clear()
        await self._receiver.close()

    def families(self) -> list[Family]:
        """Return the metrics of the notices."""
        return [
            Family(
                "partita_blob_events_total",
                "counter",
                "Notices of changed blobs: sent to the receiver, or dropped.",
                [
                    Sample(self.sent, {"outcome": "sent"}),
                    Sample(self.dropped, {"outcome": "dropped"}),
                ],
            ),
            Family(
                "partita_blob_event_failures_total",
                "counter",
                "Attempts to send notices of changed blobs that failed.",
                [Sample(self.failures)],
            ),
            Family(
                "partita_blob_events_queued",
                "gauge",
                "Notices of changed blobs that wait for the receiver.",
                [Sample(len(self._waiting))],
            ),
        ]

    async def _run(self) -> None:
        while True:
            await self._has_some.wait()
            while self._waiting:
                batch = [
                    self._waiting[place]
                    for place in range(min(len(self._waiting), EVENTS_PER_SEND_MAX))
                ]
                try:
                    await self._send([await self._document(event) for event in batch])
                except Exception:
                    # Because the notices after it must be sent all the same.
                    logger.exception("Notices of changed blobs could not be sent.")
                    self.dropped += len(batch)
                for _ in batch:
                    self._waiting.popleft()
            if self._is_stopping.is_set():
                return
            self._has_some.clear()

    async def _send(self, documents: Sequence[dict[str, Any]]) -> None:
        pause, reason = BACK_OFF_SECONDS, ""
        for _ in range(ATTEMPTS_MAX):
            try:
                await self._receiver.send(documents)
            except ReceiverError as error:
                self.failures += 1
                reason = str(error)
                if error.is_final:
                    break
                if self._is_stopping.is_set():
                    break
                self._warn(f"The receiver of blob events did not answer: {reason}.")
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._is_stopping.wait(), pause)
                pause = min(2 * pause, BACK_OFF_SECONDS_MAX)
            else:
                self.sent += len(documents)
                return
        self._drop(len(documents), reason)

    async def _document(self, event: BlobEvent) -> dict[str, Any]:
        self._number += 1
        return document_of(event, self._number, await self._find(event))

    async def _find(self, event: BlobEvent) -> Blob | None:
        """Find the version that an event tells about; None if it has changed since."""
        if event.kind != CREATED:
            return None
        try:
            blob = await self._accounts[event.account].blobs.get_blob(event.name)
        except PartitaError:
            return None
        return blob if f'"{blob.etag}"' == event.etag else None

    def _drop(self, count: int, reason: str) -> None:
        self.dropped += count
        self._warn(f"Notices of changed blobs were dropped: {reason}.")

    def _warn(self, text: str) -> None:
        now = self._clock.monotonic()
        if now >= self._warn_again_at:
            self._warn_again_at = now + WARNING_SECONDS
            logger.warning("%s (%d dropped since the start)", text, self.dropped)


def receiver_of(url: str) -> Receiver:
    """Return the receiver that a URL names.

    >>> type(receiver_of("http://127.0.0.1:8080/events")).__name__
    'Webhook'
    """
    parts = urlsplit(url)
    if parts.scheme in ("http", "https") and parts.hostname:
        return Webhook(url)
    subject = parts.path.strip("/")
    if parts.scheme in ("nats", "tls") and parts.hostname and subject and "/" not in subject:
        if importlib.util.find_spec("nats") is None:
            raise ConfigurationError(
                "Configuration",
                "Notices for NATS need packages that are not installed.",
                hint="Run: pip install 'partita[replicated]', or give a webhook.",
            )
        return NatsSubject(urlunsplit((parts.scheme, parts.netloc, "", "", "")), subject)
    raise ConfigurationError(
        "Configuration",
        "Blob events are sent to a webhook or to a subject of NATS.",
        hint="Give --blob-events https://HOST/PATH or nats://HOST:4222/SUBJECT.",
    )


class Webhook:
    """A URL that takes an array of notices by POST, as Event Grid sends them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opener = urllib.request.build_opener(NoRedirects)

    async def send(self, documents: Sequence[dict[str, Any]]) -> None:
        await asyncio.to_thread(self._post, msgspec.json.encode(documents))

    def _post(self, body: bytes) -> None:
        headers = {"Content-Type": "application/json; charset=utf-8"}
        request = urllib.request.Request(  # noqa: S310 - the scheme is checked, and the operator's
            self._url, body, {**headers, "aeg-event-type": "Notification"}, method="POST"
        )
        try:
            with self._opener.open(request, timeout=SEND_TIMEOUT_SECONDS):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            msg = f"status {error.code}"
            raise ReceiverError(msg, is_final=error.code in _FINAL) from error
        except (OSError, HTTPException, ValueError) as error:
            raise ReceiverError(type(error).__name__) from error

    async def close(self) -> None: ...


async def _ignore(_error: Exception) -> None:
    """Log nothing: the sender says that the receiver did not answer."""


class NatsSubject:
    """A subject of NATS: each notice is one message."""

    def __init__(self, server: str, subject: str) -> None:
        self._server = server
        self._subject = subject
        self._client: Client | None = None

    async def send(self, documents: Sequence[dict[str, Any]]) -> None:
        import nats.errors  # noqa: PLC0415 - in the extra `replicated`
        from nats.aio.client import Client  # noqa: PLC0415

        try:
            async with asyncio.timeout(SEND_TIMEOUT_SECONDS):
                if self._client is None:
                    self._client = Client()
                    await self._client.connect(
                        self._server,
                        allow_reconnect=False,
                        error_cb=_ignore,
                        name="partita blob events",
                    )
                for document in documents:
                    await self._client.publish(self._subject, msgspec.json.encode(document))
                await self._client.flush()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            await self.close()
            raise ReceiverError(type(error).__name__) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()
