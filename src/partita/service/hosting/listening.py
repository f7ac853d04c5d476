"""Listening: an account in this process, served on free ports of 127.0.0.1."""

import contextlib
from collections.abc import AsyncIterator, Mapping

import msgspec

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, Account
from partita.service.accounts.respond import Front
from partita.service.hosting.server import Server, Servers
from partita.service.hosting.services import BLOBS, KINDS, QUEUES, TABLES
from partita.service.http.connections import ByteBudget
from partita.service.http.message_bytes import HttpLimits
from partita.ticks import Clock


class Listening(msgspec.Struct, frozen=True):
    """Where the three services of an account are reached."""

    blob_endpoint: str
    queue_endpoint: str
    table_endpoint: str
    account_name: str = DEVELOPMENT_ACCOUNT
    account_key: str = DEVELOPMENT_KEY

    @property
    def connection_string(self) -> str:
        """What every client of Azure Storage accepts."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account_name};"
            f"AccountKey={self.account_key};BlobEndpoint={self.blob_endpoint};"
            f"QueueEndpoint={self.queue_endpoint};TableEndpoint={self.table_endpoint}"
        )


@contextlib.asynccontextmanager
async def listen(
    fronts: Mapping[str, Front], account: Account, clock: Clock
) -> AsyncIterator[Listening]:
    """Serve the development account of this process on loopback; stop at the end."""
    budget = ByteBudget(HttpLimits().unauthenticated_bytes_max)
    servers = {
        kind.name: Server(
            fronts[kind.name].respond,
            limits=kind.limits,
            clock=clock,
            why_not_ready=lambda: account.backing.why_not_ready,
            dialect=kind.dialect,
            budget=budget,
        )
        for kind in KINDS
    }
    together = Servers(list(servers.values()))
    await together.start()
    try:
        yield Listening(
            *(
                f"http://127.0.0.1:{servers[kind.name].port}/{account.name}"
                for kind in (BLOBS, QUEUES, TABLES)
            )
        )
    finally:
        await together.stop()
