"""A change of a blob, and what is told about it. Pure."""

from typing import Protocol

import msgspec

from partita.blobs.rules.model import BlobName

CREATED, DELETED = "Microsoft.Storage.BlobCreated", "Microsoft.Storage.BlobDeleted"


class BlobEvent(msgspec.Struct, frozen=True):
    """One change of a blob."""

    kind: str
    """CREATED or DELETED."""
    api: str
    account: str
    name: BlobName
    url: str
    at: int
    """When it was answered: later changes of a blob have later times."""
    request_id: str
    client_request_id: str = ""
    etag: str = ""
    """With its quotes; empty for a deleted blob."""


class BlobEvents(Protocol):
    """What is told about changes of blobs; it must neither wait nor raise."""

    def changed(self, event: BlobEvent) -> None:
        """Handle a change that is stored already."""
