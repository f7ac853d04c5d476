"""What an endpoint supports: order, ranges, queues and blobs. Derived from its address, not probed.

Table Storage, Azurite and Partita return rows sorted by partition key and row key. Cosmos DB does
not, and its connection string gives access to neither queues nor blobs.
"""

from urllib.parse import urlsplit

import msgspec

from partita.errors import NotOrderedError, NotSupportedError

COSMOS_HOSTS = (".table.cosmos.", ".table.cosmosdb.")
COSMOS_EMULATOR_PORT = 8902
COSMOS_NAME = "Cosmos DB"


class Capabilities(msgspec.Struct, frozen=True):
    """What an endpoint supports; a missing capability is an error before the first request."""

    is_ordered: bool = True
    """Whether rows are returned sorted by partition key and row key."""
    has_ranges: bool = True
    """Whether a comparison of keys reads only that range."""
    has_queues: bool = True
    has_blobs: bool = True
    has_signatures: bool = True
    """Whether shared access signatures are known to be restricted to their range of keys."""
    name: str = "Table Storage"

    def require_ordered(self, what: str) -> None:
        """Raise if the endpoint returns rows unordered; `what` names the caller in the error."""
        if not self.is_ordered:
            raise NotOrderedError(
                "NotOrdered",
                f"{what} requires rows in key order, which {self.name} does not provide.",
                facts={"endpoint": self.name},
                hint="Read all matching entities and sort them, or use an endpoint that sorts: "
                "Azure Table Storage, Azurite or Partita.",
            )

    def require_queues(self, what: str) -> None:
        if not self.has_queues:
            raise self._absent(what, "queues", "QueueEndpoint")

    def require_blobs(self, what: str) -> None:
        if not self.has_blobs:
            raise self._absent(what, "blobs", "BlobEndpoint")

    def require_signatures(self, what: str) -> None:
        if not self.has_signatures:
            raise self._absent(what, "shared access signatures for ranges of keys", "")

    def _absent(self, what: str, kind: str, member: str) -> NotSupportedError:
        # A connection string has one credential for all endpoints; Cosmos DB has no queues.
        hint = "Connect to a separate storage account with another connect() for this."
        if self.name != COSMOS_NAME:
            hint = f"Add {member}=... to the connection string."
        return NotSupportedError(
            "ServiceAbsent",
            f"{what} requires {kind}, which this connection to {self.name} does not provide.",
            facts={"endpoint": self.name},
            hint=hint,
        )


ORDERED = Capabilities()
COSMOS = Capabilities(
    is_ordered=False,
    has_ranges=True,
    has_queues=False,
    has_blobs=False,
    has_signatures=False,
    name=COSMOS_NAME,
)


def capabilities_of(endpoint: str) -> Capabilities:
    """Return what the service at a table endpoint supports.

    >>> capabilities_of("https://contoso.table.cosmos.azure.com:443/").is_ordered
    False
    """
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").lower()
    if any(mark in f"{host}." for mark in COSMOS_HOSTS) or parts.port == COSMOS_EMULATOR_PORT:
        return COSMOS
    return ORDERED
