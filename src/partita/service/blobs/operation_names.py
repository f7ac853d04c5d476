"""The operation of a blob request as Storage Analytics names it. Pure.

The name is known before the request is authorized, so that refused requests are counted by it.
"""

from partita.service.blobs.wire import COPY_SOURCE, BlobRequest
from partita.service.http.observed import UNKNOWN_OPERATION

_LEASE_ACTIONS = frozenset({"Acquire", "Break", "Change", "Release", "Renew"})


def name_of(asked: BlobRequest) -> str:
    """Return the name of an operation; Unknown if there is none."""
    name = _NAMES.get((asked.kind, asked.method, asked.comp), UNKNOWN_OPERATION)
    headers = asked.request.headers
    if asked.comp == "lease":
        action = headers.get("x-ms-lease-action", "").capitalize()
        return f"{action}{name}" if action in _LEASE_ACTIONS else UNKNOWN_OPERATION
    if name == "PutPage" and headers.get("x-ms-page-write", "").lower() == "clear":
        return "ClearPage"
    if name == "PutBlob" and COPY_SOURCE in headers:
        return "PutBlobFromURL" if "x-ms-blob-type" in headers else "CopyBlob"
    return name


_NAMES = {
    ("account", "GET", "properties"): "GetAccountInformation",
    ("service", "GET", "stats"): "GetBlobServiceStats",
    ("service", "GET", "properties"): "GetBlobServiceProperties",
    ("service", "PUT", "properties"): "SetBlobServiceProperties",
    ("service", "POST", "userdelegationkey"): "GetUserDelegationKey",
    ("root", "GET", "list"): "ListContainers",
    ("root", "GET", "blobs"): "FindBlobsByTags",
    ("root", "POST", "batch"): "BlobBatch",
    ("container", "PUT", ""): "CreateContainer",
    ("container", "GET", ""): "GetContainerProperties",
    ("container", "GET", "metadata"): "GetContainerMetadata",
    ("container", "PUT", "metadata"): "SetContainerMetadata",
    ("container", "GET", "acl"): "GetContainerACL",
    ("container", "PUT", "acl"): "SetContainerACL",
    ("container", "DELETE", ""): "DeleteContainer",
    ("container", "PUT", "undelete"): "RestoreContainer",
    ("container", "PUT", "lease"): "ContainerLease",
    ("container", "GET", "list"): "ListBlobs",
    ("container", "GET", "blobs"): "FindBlobsByTags",
    ("container", "POST", "batch"): "BlobBatch",
    ("blob", "PUT", ""): "PutBlob",
    ("blob", "GET", ""): "GetBlob",
    ("blob", "HEAD", ""): "GetBlobProperties",
    ("blob", "DELETE", ""): "DeleteBlob",
    ("blob", "PUT", "undelete"): "UndeleteBlob",
    ("blob", "GET", "metadata"): "GetBlobMetadata",
    ("blob", "HEAD", "metadata"): "GetBlobMetadata",
    ("blob", "PUT", "metadata"): "SetBlobMetadata",
    ("blob", "PUT", "properties"): "SetBlobProperties",
    ("blob", "PUT", "tier"): "SetBlobTier",
    ("blob", "GET", "tags"): "GetBlobTags",
    ("blob", "PUT", "tags"): "SetBlobTags",
    ("blob", "PUT", "lease"): "BlobLease",
    ("blob", "PUT", "snapshot"): "SnapshotBlob",
    ("blob", "PUT", "copy"): "AbortCopyBlob",
    ("blob", "PUT", "block"): "PutBlock",
    ("blob", "PUT", "blocklist"): "PutBlockList",
    ("blob", "GET", "blocklist"): "GetBlockList",
    ("blob", "PUT", "appendblock"): "AppendBlock",
    ("blob", "PUT", "seal"): "SealBlob",
    ("blob", "PUT", "page"): "PutPage",
    ("blob", "GET", "pagelist"): "GetPageRegions",
}
