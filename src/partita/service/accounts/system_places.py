"""Where Storage Analytics writes: the container `$logs` and tables `$Metrics…` of an account."""

import contextlib

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules.names import LOGS
from partita.errors import ConflictError, TableExistsError
from partita.service.accounts.service_properties_xml import ServiceProperties
from partita.tables.store import TableStore
from partita.tables.system_tables import CAPACITY_TABLE, hour_table, minute_table

SERVICES = {"b": "Blob", "q": "Queue", "t": "Table"}
"""By letter: the service in the names of the tables, in lower case that of the logs."""


async def make_places(
    tables: TableStore, blobs: BlobEngine, letter: str, properties: ServiceProperties
) -> None:
    """Create what does not exist of the places that the properties of a service switch on."""
    service = SERVICES[letter]
    if properties.logging.is_on and await blobs.containers.find_container(LOGS) is None:
        with contextlib.suppress(ConflictError):  # another front end was faster
            await blobs.containers.create_container(LOGS)
    names: list[str] = []
    if properties.hour_metrics.enabled:
        names += [hour_table(service), *([CAPACITY_TABLE] if letter == "b" else ())]
    if properties.minute_metrics.enabled:
        names.append(minute_table(service))
    for name in names:
        if await tables.find_table(name) is None:
            with contextlib.suppress(TableExistsError):  # another front end was faster
                await tables.create_table(name)
