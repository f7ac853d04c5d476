"""The catalog that the verbs of `partita fleet` work on: its URL, and a session of `Control`."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from partita.cli.kit.commands import Given
from partita.cli.kit.target import CONNECT_VARIABLE
from partita.errors import ConfigurationError
from partita.scaleout.control.control import Control
from partita.storage.durability import Durability

T = TypeVar("T")


def catalog_url(given: Given) -> str:
    """Return the URL of the catalog: of the argument, of --connect, or of the variable."""
    url = getattr(given, "url", None) or given.connect or os.environ.get(CONNECT_VARIABLE)
    if not url:
        raise ConfigurationError(
            "ConnectionNotGiven",
            "The catalog of the fleet is not named.",
            hint=f"Give --connect postgresql://USER@HOST:PORT/DATABASE, or set {CONNECT_VARIABLE}.",
        )
    return str(url)


def durability_of(given: Given) -> Durability:
    return Durability(given.durability)


@contextlib.asynccontextmanager
async def opened(given: Given) -> AsyncIterator[Control]:
    """Open a session on the catalog; close it at the end."""
    control = await Control.open(catalog_url(given), durability=durability_of(given))
    try:
        yield control
    finally:
        await control.close()


def run_on(given: Given, work: Callable[[Control], Awaitable[T]]) -> T:
    """Run work on a session of its own."""

    async def run() -> T:
        async with opened(given) as control:
            return await work(control)

    return asyncio.run(run())
