"""Both halves of the official Python queue SDK behind one face, so that each test runs on both.

The face is the asynchronous one: every call is awaited, every listing is iterated with
`async for`. The synchronous half blocks the loop of its test, which runs nothing else.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.core.paging import ItemPaged
from azure.storage.queue import QueueClient, QueueServiceClient
from azure.storage.queue.aio import QueueClient as AsyncQueueClient
from azure.storage.queue.aio import QueueServiceClient as AsyncQueueServiceClient

from partita.service.accounts.account import DEVELOPMENT_KEY
from wire.sdk import Awaited, _Listing

_AT_ONCE = frozenset({"get_queue_client", "list_queues", "receive_messages"})
"""Calls that send nothing themselves, in both halves."""


class AwaitedQueues(Awaited):
    """A synchronous queue client whose calls can be awaited."""

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._client, name)
        if not callable(member):
            return member

        def at_once(*args: Any, **options: Any) -> Any:
            return _wrap(member(*args, **options))

        async def awaited(*args: Any, **options: Any) -> Any:
            return _wrap(member(*args, **options))

        return at_once if name in _AT_ONCE else awaited


def _wrap(value: Any) -> Any:
    if isinstance(value, QueueClient):
        return AwaitedQueues(value)
    if isinstance(value, ItemPaged):
        return _Listing(value)
    return value


@asynccontextmanager
async def open_queues(
    half: str, endpoint: str, credential: Any = DEVELOPMENT_KEY, **options: Any
) -> AsyncIterator[Any]:
    """Open a QueueServiceClient of one half. It does not try again: a 5xx is a failure here."""
    options = {"retry_total": 0} | options
    if half == "sync":
        with QueueServiceClient(endpoint, credential=credential, **options) as client:
            yield AwaitedQueues(client)
        return
    async with AsyncQueueServiceClient(endpoint, credential=credential, **options) as client:
        yield client


@asynccontextmanager
async def open_queue(half: str, url: str, credential: Any = None) -> AsyncIterator[Any]:
    """Open the client of one queue by its address, with a SAS in it or beside it."""
    if half == "sync":
        with QueueClient.from_queue_url(url, credential, retry_total=0) as client:
            yield AwaitedQueues(client)
        return
    async with AsyncQueueClient.from_queue_url(url, credential, retry_total=0) as client:
        yield client


def code_of(raised: pytest.ExceptionInfo[HttpResponseError]) -> tuple[int | None, str]:
    """Return status and code of an error."""
    response: Any = raised.value.response
    return raised.value.status_code, response.headers["x-ms-error-code"]
