"""The entity types of the application that the console was started with, for typed views.

With them, index rows can be compared with entities. Nothing is written, and a comparison is
bounded by what the user asks for. It needs the extra `patterns`, unlike the rest of the console.
"""

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from partita.console.accounts import AGENT
from partita.patterns.following.drift_sample import Sample, sample_drift
from partita.patterns.following.progress_counter import Progress
from partita.patterns.protocol.calls import Cost
from partita.patterns.protocol.capabilities import Capabilities
from partita.patterns.types.decorators import EntityType
from partita.patterns.writing.context import Context, Options
from partita.service.hosting.locations import Remote
from partita.ticks import Clock

if TYPE_CHECKING:
    from partita.patterns.ports.sdk_clients import RemoteClients


class EntityTypes:
    """The types, by name."""

    def __init__(self, models: Iterable[EntityType[Any]]) -> None:
        self._models = {model.name: model for model in models}

    def tables(self) -> dict[str, str]:
        """Return the table of each type."""
        return {name: model.table for name, model in self._models.items()}

    def index_tables(self) -> dict[tuple[str, str], str]:
        """Return the table of each index, by its type and name."""
        return {
            (name, index.name): index.table
            for name, model in self._models.items()
            for index in model.indexes
        }

    def names_in(self, table: str) -> list[str]:
        """Return the types whose entities or index rows are in a table."""
        return [
            name
            for name, model in self._models.items()
            if table.lower()
            in {model.table.lower(), *(index.table.lower() for index in model.indexes)}
        ]

    async def sample(
        self, name: str, remote: Remote, limit: int, clock: Clock, progress: Progress
    ) -> Sample:
        """Compare at most `limit` entities of a type, and as many rows of each index."""
        clients, capabilities = await asyncio.to_thread(_clients_of, remote)
        from partita.patterns.ports.aio_port import run_steps  # noqa: PLC0415 - imported above
        from partita.patterns.ports.sdk_port import AioPort  # noqa: PLC0415 - imported above

        context = Context(clock, capabilities, keyring=None, options=Options())
        for each in self._models.values():
            context.know(each)
        port = AioPort(clients, capabilities=capabilities)
        try:
            return await run_steps(
                sample_drift(context, self._models[name], limit, progress), port, Cost()
            )
        finally:
            await port.close()


def _clients_of(remote: Remote) -> tuple["RemoteClients", Capabilities]:
    """Return the clients of an account; importing the SDK takes a second, or several."""
    from partita.patterns.ports.connecting import remote_capabilities  # noqa: PLC0415 - slow
    from partita.patterns.ports.sdk_clients import RemoteClients  # noqa: PLC0415 - slow

    clients = RemoteClients(remote.endpoints, remote.account, remote.key, remote.sas, agent=AGENT)
    return clients, remote_capabilities(remote)
