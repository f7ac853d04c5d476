"""The three services of accounts in this process, and requests signed with their keys."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from partita.clock import ManualClock
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Account, Accounts
from partita.service.accounts.respond import Front
from partita.service.auth.sas import Sas, sign
from partita.service.auth.shared_key import SigningKey, string_to_sign
from partita.service.hosting.services import KINDS
from partita.service.http.message_bytes import http_date
from partita.service.http.request import Request, Response
from support.accounts import open_folder_account

VERSION = "2026-10-06"
LETTERS = {"blobs": "b", "queues": "q", "tables": "t"}
HOSTS = {kind.name: f"127.0.0.1:{kind.port}" for kind in KINDS}
PRIVATE_ACCOUNT = "private1"
PRIVATE_KEY = base64.b64encode(b"a key that no page knows, 0123456789").decode()
KEYS = {DEVELOPMENT_ACCOUNT: DEVELOPMENT_KEY, PRIVATE_ACCOUNT: PRIVATE_KEY}
EXPIRY = "2040-01-01T00:00:00Z"

T = TypeVar("T")


class Fronts:
    """The development account and a private one behind the fronts of the three services."""

    def __init__(self, accounts: Mapping[str, Account], clock: ManualClock) -> None:
        self.accounts = accounts
        self.clock = clock
        self.served = Accounts(accounts.values(), clock)
        self.fronts = {
            kind.name: Front(kind.build(self.served, clock), self.served, clock) for kind in KINDS
        }

    @property
    def account(self) -> Account:
        return self.accounts[DEVELOPMENT_ACCOUNT]

    def request(
        self,
        service: str,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        account: str = DEVELOPMENT_ACCOUNT,
        is_signed: bool = True,
        in_path: bool = True,
    ) -> Request:
        """Return a request for a target below the account, query included.

        Without `in_path` the path does not name the account: its host does.
        """
        path, _, query = target.partition("?")
        fields = {
            "host": HOSTS[service],
            "x-ms-date": http_date(self.clock.ticks()),
            "x-ms-version": VERSION,
            "content-length": str(len(body)),
            **(headers or {}),
        }
        whole = f"/{account}{path}" if in_path else path
        request = Request(method, whole, query, fields, body)
        if is_signed:
            text = string_to_sign(request, account, LETTERS[service])
            mac = SigningKey.from_base64(KEYS[account]).signature(text)
            fields["authorization"] = f"SharedKey {account}:{base64.b64encode(mac).decode()}"
        return request

    async def ask(
        self,
        service: str,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        account: str = DEVELOPMENT_ACCOUNT,
        is_signed: bool = True,
    ) -> Response:
        request = self.request(
            service, method, target, body, headers, account=account, is_signed=is_signed
        )
        response = await self.fronts[service].respond(request)
        if response.download is not None:
            body = b"".join([piece async for piece in response.download])
            await response.download.close()
            return Response(response.status, response.headers, body)
        return response

    def blob_token(
        self, letters: str, container: str, blob: str = "", account: str = DEVELOPMENT_ACCOUNT
    ) -> str:
        """Return the query of a service SAS for a container or a blob."""
        token = Sas(
            version=VERSION,
            permissions=letters,
            expiry=EXPIRY,
            resource="b" if blob else "c",
            container=container,
            blob=blob,
        )
        return sign(token, service="b", account=account, key=SigningKey.from_base64(KEYS[account]))


def told(response: Response) -> str:
    """Return the status, and the code of an error."""
    code = response.header("x-ms-error-code")
    return str(response.status) if code is None else f"{response.status} {code}"


@asynccontextmanager
async def opened_fronts(root: Path | None = None) -> AsyncIterator[Fronts]:
    clock = ManualClock()
    accounts = {
        name: await open_folder_account(name, [key], root=root, clock=clock)
        for name, key in KEYS.items()
    }
    try:
        yield Fronts(accounts, clock)
    finally:
        for account in accounts.values():
            await account.close()


async def turns_of(work: Awaitable[T]) -> tuple[T, int]:
    """Return the result of some work, and in how many turns of the event loop it ran."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    try:
        return await work, turns
    finally:
        counting.cancel()
