"""Both halves of the official Python SDK behind one face, so that each test runs on both.

The face is the asynchronous one: every call is awaited, every listing is iterated with
`async for`. The synchronous half blocks the loop of its test, which runs nothing else.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.core.exceptions import HttpResponseError
from azure.core.paging import ItemPaged
from azure.data.tables import TableClient, TableServiceClient
from azure.data.tables.aio import TableServiceClient as AsyncTableServiceClient

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY

HALVES = ("sync", "aio")
CREDENTIAL = AzureNamedKeyCredential(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY)

_AT_ONCE = frozenset(
    {"get_table_client", "list_tables", "query_tables", "list_entities", "query_entities"}
)
"""Calls that send nothing themselves, in both halves."""


class Awaited:
    """A synchronous client whose calls can be awaited."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._client, name)
        if not callable(member):
            return member

        def at_once(*args: Any, **options: Any) -> Any:
            return _wrap(member(*args, **options))

        async def awaited(*args: Any, **options: Any) -> Any:
            return _wrap(member(*args, **options))

        return at_once if name in _AT_ONCE else awaited


class _Listing:
    def __init__(self, items: ItemPaged[Any]) -> None:
        self._items = items

    async def __aiter__(self) -> AsyncIterator[Any]:
        for item in self._items:
            yield item

    def by_page(self, continuation_token: Any = None) -> "_Pages":
        return _Pages(self._items.by_page(continuation_token))


class _Pages:
    def __init__(self, pages: Iterator[Any]) -> None:
        self._pages = pages

    @property
    def continuation_token(self) -> Any:
        return getattr(self._pages, "continuation_token")  # noqa: B009 - not in the SDK's types

    def __aiter__(self) -> "_Pages":
        return self

    async def __anext__(self) -> AsyncIterator[Any]:
        try:
            page = next(self._pages)
        except StopIteration:
            raise StopAsyncIteration from None
        return _as_async(page)


async def _as_async(items: Iterator[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


def _wrap(value: Any) -> Any:
    if isinstance(value, TableClient):
        return Awaited(value)
    if isinstance(value, ItemPaged):
        return _Listing(value)
    return value


@asynccontextmanager
async def open_service(
    half: str, endpoint: str, credential: Any, **options: Any
) -> AsyncIterator[Any]:
    """Open a TableServiceClient of one half. It does not try again: a 5xx is a failure here."""
    options = {"retry_total": 0} | options
    if half == "sync":
        with TableServiceClient(endpoint, credential=credential, **options) as client:
            yield Awaited(client)
        return
    async with AsyncTableServiceClient(endpoint, credential=credential, **options) as client:
        yield client


def code_of(raised: pytest.ExceptionInfo[HttpResponseError]) -> str:
    """Return the code of an error: not every call of the SDK puts it into the exception."""
    response: Any = raised.value.response
    code: str = response.headers["x-ms-error-code"]
    return code


async def all_of(listing: Any) -> list[Any]:
    return [item async for item in listing]


async def pages_of(listing: Any, continuation: Any = None) -> list[list[Any]]:
    pages = listing.by_page(continuation)
    return [[item async for item in page] async for page in pages]
