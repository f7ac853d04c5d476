"""Notices of changed blobs, in the schema of Event Grid. Pure.

A notice is of a whole blob: created, also by overwriting it, or deleted. Appends, pages, metadata
and snapshots give none, as in Azure.
"""

from typing import Any
from urllib.parse import quote

from partita.blobs.rules.model import Blob, BlobName
from partita.service.accounts.blob_events import BlobEvent
from partita.service.blobs import wire
from partita.service.blobs.wire import BlobCall
from partita.tables.edm import text_of

_KINDS = {"block": "BlockBlob", "append": "AppendBlob", "page": "PageBlob"}
_APIS: dict[type, str] = {
    wire.PutBlob: "PutBlob",
    wire.CreateAppendBlob: "PutBlob",
    wire.CreatePageBlob: "PutBlob",
    wire.PutBlobFromUrl: "PutBlob",
    wire.PutBlockList: "PutBlockList",
    wire.CopyBlob: "CopyBlob",
    wire.DeleteBlob: "DeleteBlob",
}
_TOPIC = (
    "/subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/partita/providers"
    "/Microsoft.Storage/storageAccounts/"
)
_SAFE = "/!$&'()*+,;=:@-._~"


def api_of(call: BlobCall) -> str:
    """Return the operation of a call that changes a whole blob; empty for other calls."""
    if isinstance(call, wire.DeleteBlob) and (
        call.snapshots == "only" or call.name.snapshot or call.name.version
    ):
        return ""
    return _APIS.get(type(call), "")


def url_of(root: str, name: BlobName) -> str:
    """Return the address of a blob.

    >>> url_of("http://127.0.0.1:10000/a1", BlobName("photos", "a b/1.png"))
    'http://127.0.0.1:10000/a1/photos/a%20b/1.png'
    """
    return f"{root}/{name.container}/{quote(name.name, safe=_SAFE)}"


def document_of(event: BlobEvent, number: int, blob: Blob | None) -> dict[str, Any]:
    """Return an event as Event Grid writes it.

    `number` orders the events of this server; `blob` has the properties of the version that was
    created, if it is still there.
    """
    told: dict[str, Any] = {
        "api": event.api,
        "requestId": event.request_id,
        "url": event.url,
        "sequencer": f"{event.at:024X}{number:024X}",
        "storageDiagnostics": {},
    }
    if event.client_request_id:
        told["clientRequestId"] = event.client_request_id
    if event.etag:
        told["eTag"] = event.etag
    if blob is not None:
        told["contentType"] = blob.headers.content_type or "application/octet-stream"
        told["contentLength"] = blob.length
        told["blobType"] = _KINDS.get(blob.kind, blob.kind)
    name = event.name
    return {
        "topic": f"{_TOPIC}{event.account}",
        "subject": f"/blobServices/default/containers/{name.container}/blobs/{name.name}",
        "eventType": event.kind,
        "id": event.request_id,
        "eventTime": text_of(event.at),
        "data": told,
        "dataVersion": "",
        "metadataVersion": "1",
    }
