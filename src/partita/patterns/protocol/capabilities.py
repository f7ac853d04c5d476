"""What an endpoint can do: order, ranges, queues and blobs. Known from its address, not probed.

Table Storage, Azurite and Partita sort their answers by partition key and row key. Cosmos DB does
not, and has neither queues nor blobs behind the same connection string.
"""

from urllib.parse import urlsplit

import msgspec

from partita.errors import NotOrderedError, NotSupportedError

COSMOS_HOSTS = (".table.cosmos.", ".table.cosmosdb.")
COSMOS_EMULATOR_PORT = 8902
COSMOS_NAME = "Cosmos DB"


class Capabilities(msgspec.Struct, frozen=True):
    """What may be asked of an endpoint; whoever needs more says so before the first request."""

    is_ordered: bool = True
    """Answers come sorted by partition key and row key."""
    has_ranges: bool = True
    """A comparison of keys reads that range, and no more."""
    has_queues: bool = True
    has_blobs: bool = True
    has_signatures: bool = True
    """Whoever holds a shared access signature is known to be kept inside its range of keys."""
    name: str = "Table Storage"

    def require_ordered(self, what: str) -> None:
        """Refuse what means nothing without order: `what` is the subject of the sentence."""
        if not self.is_ordered:
            raise NotOrderedError(
                "NotOrdered",
                f"{what} needs answers in the order of their keys, and {self.name} gives none.",
                facts={"endpoint": self.name},
                hint="Read all that match and sort them, or use an endpoint that sorts: "
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
        # One credential is for all endpoints of a string: one of Cosmos DB opens no queue.
        hint = "Keep what needs them in a storage account of its own, with a connect() of its own."
        if self.name != COSMOS_NAME:
            hint = f"Connect with a string that names them too ({member}=...)."
        return NotSupportedError(
            "ServiceAbsent",
            f"{what} needs {kind}, and {self.name} as it was connected has none.",
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
    """Tell what the service behind a table endpoint can do.

    >>> capabilities_of("https://contoso.table.cosmos.azure.com:443/").is_ordered
    False
    """
    parts = urlsplit(endpoint)
    host = (parts.hostname or "").lower()
    if any(mark in f"{host}." for mark in COSMOS_HOSTS) or parts.port == COSMOS_EMULATOR_PORT:
        return COSMOS
    return ORDERED
