"""Transports that count: every HTTP request that the SDK sends, its own retries included.

A call in progress has one meter, found by context: tasks and threads do not mix theirs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import msgspec
from azure.core.exceptions import AzureError
from azure.core.pipeline.transport import AsyncHttpTransport, HttpTransport

from partita.patterns.ports.sdk_errors import was_sent
from partita.patterns.protocol.calls import Cost

_TELLING_NOTHING = frozenset({408, 500, 502, 504})
"""Answers of a service that gave up, or of what stands before it."""


class Meter(msgspec.Struct):
    """What one call has sent so far."""

    requests: int = 0
    status: int = 0
    """Of the last answer; 0 if there was none."""
    is_in_doubt: bool = False
    """A request was sent whose answer never came, or told nothing: it may have been performed."""

    def answer(self, status: int) -> None:
        """Note an answer. What failed in the service or on the way may have been done first."""
        self.status = status
        self.is_in_doubt = self.is_in_doubt or status in _TELLING_NOTHING


_current: ContextVar[Meter | None] = ContextVar("partita_meter", default=None)


@contextmanager
def metered(cost: Cost) -> Iterator[Meter]:
    """Count the requests of a block, and add them to `cost` however it ends."""
    meter = Meter()
    token = _current.set(meter)
    try:
        yield meter
    finally:
        _current.reset(token)
        cost.requests += meter.requests


class MeteredTransport(HttpTransport[Any, Any]):
    """Counts what the synchronous clients send.

    With `is_whole` answers come with their body, though the pipeline is told that they stream:
    it does not decode them then, and what breaks in the middle is repeated like the rest.
    """

    def __init__(self, inner: HttpTransport[Any, Any], *, is_whole: bool) -> None:
        self._inner = inner
        self._is_whole = is_whole

    def send(self, request: Any, **options: Any) -> Any:
        meter = _current.get() or Meter()
        meter.requests += 1
        if self._is_whole:
            options["stream"] = False
        try:
            response = self._inner.send(request, **options)
        except AzureError as error:
            meter.is_in_doubt = meter.is_in_doubt or was_sent(error)
            raise
        meter.answer(response.status_code)
        return response

    def open(self) -> None:
        """The inner transport opens itself."""

    def close(self) -> None:
        """Whoever made the inner transport closes it: several clients share it."""

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def sleep(self, duration: float) -> None:
        self._inner.sleep(duration)


class AsyncMeteredTransport(AsyncHttpTransport[Any, Any]):
    """Counts what the asynchronous clients send.

    With `is_whole` answers come with their body, though the pipeline is told that they stream:
    it does not decode them then, and what breaks in the middle is repeated like the rest.
    """

    def __init__(self, inner: AsyncHttpTransport[Any, Any], *, is_whole: bool) -> None:
        self._inner = inner
        self._is_whole = is_whole

    async def send(self, request: Any, **options: Any) -> Any:
        meter = _current.get() or Meter()
        meter.requests += 1
        if self._is_whole:
            options["stream"] = False
        try:
            response = await self._inner.send(request, **options)
        except AzureError as error:
            meter.is_in_doubt = meter.is_in_doubt or was_sent(error)
            raise
        meter.answer(response.status_code)
        return response

    async def open(self) -> None:
        """The inner transport opens itself."""

    async def close(self) -> None:
        """Whoever made the inner transport closes it: several clients share it."""

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""

    async def sleep(self, duration: float) -> None:
        await self._inner.sleep(duration)
