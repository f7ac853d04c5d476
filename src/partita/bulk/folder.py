"""A folder as a sender of requests: the services of `partita serve`, without a socket."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

from partita.errors import StoreLockedError
from partita.service.accounts.account import Accounts
from partita.service.accounts.development import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.accounts.respond import Front
from partita.service.hosting.opening import Place, open_accounts
from partita.service.hosting.services import TABLES
from partita.service.http.request import Request, Response
from partita.ticks import Clock


class FolderSender:
    """Answers requests in this process."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def respond(self, request: Request) -> Response:
        headers = {"host": "127.0.0.1", **request.headers}
        if request.body:
            headers["content-length"] = str(len(request.body))
        return await self._front.respond(
            Request(
                request.method,
                request.path,
                request.query,
                headers,
                request.body,
                peer="127.0.0.1",
            )
        )

    async def close(self) -> None:
        """Do nothing: the account is closed where it was opened."""
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def open_sender(path: Path | None, clock: Clock) -> AsyncIterator[FolderSender]:
    """Open the development account of a folder; None keeps it in memory."""
    keys = {DEVELOPMENT_ACCOUNT: [DEVELOPMENT_KEY]}
    async with contextlib.AsyncExitStack() as stack:
        try:
            opened = await stack.enter_async_context(open_accounts(keys, Place(path), clock))
        except StoreLockedError as error:
            if error.facts.get("holder") != str(os.getpid()):
                error.hint = (
                    "If `partita serve` has it open, give --connect 'UseDevelopmentStorage=true' "
                    "or its connection string; else stop that process."
                )
            raise
        accounts = Accounts(opened, clock)
        yield FolderSender(Front(TABLES.build(accounts, clock), accounts, clock))
