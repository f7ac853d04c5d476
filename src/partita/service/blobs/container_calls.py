"""The calls on the blob service itself and on containers: headers → engine → answer."""

from partita.blobs.rules import limits
from partita.blobs.rules.model import Access, Include, LeaseOutcome
from partita.service.accounts import service_properties_xml as xml_wire
from partita.service.auth.sas import BlobScope
from partita.service.blobs.answers import Lines, access_lines, container_lines, version_lines
from partita.service.blobs.asked import BlobAsked, not_implemented, whole_body
from partita.service.blobs.headers import (
    conditions_of,
    invalid_header,
    lease_id_of,
    lease_request_of,
)
from partita.service.blobs.xml import print_blobs, print_containers
from partita.service.formats.metadata_wire import metadata_headers, metadata_of
from partita.service.formats.xml_text import XML_BYTES_MAX
from partita.service.http.request import Request, Response

XML = ("Content-Type", "application/xml")
ACCOUNT_LINES: Lines = [
    ("x-ms-sku-name", "Standard_LRS"),
    ("x-ms-account-kind", "StorageV2"),
    ("x-ms-is-hns-enabled", "false"),
]
LEASE_STATUS = {"acquire": 201, "renew": 200, "change": 200, "release": 200, "break": 202}

_ACCESS: tuple[Access, ...] = ("blob", "container")
_INCLUDES: tuple[Include, ...] = ("snapshots", "uncommittedblobs")


async def account_information(_asked: BlobAsked) -> Response:
    return Response(200, list(ACCOUNT_LINES))


async def list_containers(asked: BlobAsked) -> Response:
    marker = asked.options.get("marker", "")
    front = f"/{asked.front.account.name}/"
    listing = await asked.front.account.blobs.list_containers(
        prefix=asked.options.get("prefix", ""),
        marker=marker.removeprefix(front),
        limit=asked.limit(),
    )
    next_marker = f"{front}{listing.next_marker}" if listing.next_marker else ""
    body = print_containers(listing, asked.front.target.root, asked.options, next_marker)
    return Response(200, [XML], body)


async def create_container(asked: BlobAsked) -> Response:
    container = await asked.front.account.blobs.create_container(
        asked.container, metadata=metadata_of(asked.request), access=_access_of(asked.request)
    )
    return Response(201, version_lines(container.etag, container.changed_at))


def _access_of(request: Request) -> Access | None:
    text = request.headers.get("x-ms-blob-public-access")
    if not text:
        return None
    for access in _ACCESS:
        if text.lower() == access:
            return access
    raise invalid_header("x-ms-blob-public-access", text, "It is blob or container.")


async def get_container(asked: BlobAsked) -> Response:
    container = await asked.front.account.blobs.get_container(
        asked.container, lease_id=lease_id_of(asked.request)
    )
    return Response(200, container_lines(container))


async def get_container_metadata(asked: BlobAsked) -> Response:
    container = await asked.front.account.blobs.get_container(
        asked.container, lease_id=lease_id_of(asked.request)
    )
    lines = version_lines(container.etag, container.changed_at)
    return Response(200, lines + metadata_headers(container.metadata))


async def set_container_metadata(asked: BlobAsked) -> Response:
    container = await asked.front.account.blobs.set_container_metadata(
        asked.container,
        metadata_of(asked.request),
        lease_id=lease_id_of(asked.request),
        conditions=conditions_of(asked.request),
    )
    return Response(200, version_lines(container.etag, container.changed_at))


async def get_container_policies(asked: BlobAsked) -> Response:
    container = await asked.front.account.blobs.get_container(
        asked.container, lease_id=lease_id_of(asked.request)
    )
    lines = version_lines(container.etag, container.changed_at) + access_lines(container)
    return Response(200, [XML, *lines], xml_wire.print_policies(container.policies))


async def set_container_policies(asked: BlobAsked) -> Response:
    body = await whole_body(asked.request, XML_BYTES_MAX)
    policies = xml_wire.parse_policies(body, "b")
    container = await asked.front.account.blobs.set_policies(
        asked.container,
        policies,
        access=_access_of(asked.request),
        lease_id=lease_id_of(asked.request),
        conditions=conditions_of(asked.request),
    )
    return Response(200, version_lines(container.etag, container.changed_at))


async def delete_container(asked: BlobAsked) -> Response:
    await asked.front.account.blobs.delete_container(
        asked.container,
        lease_id=lease_id_of(asked.request),
        conditions=conditions_of(asked.request),
    )
    return Response(202)


async def lease_container(asked: BlobAsked) -> Response:
    wanted = lease_request_of(asked.request)
    outcome = await asked.front.account.blobs.lease_container(
        asked.container, wanted, conditions=conditions_of(asked.request)
    )
    return lease_answer(outcome, wanted.action)


def lease_answer(outcome: LeaseOutcome, action: str) -> Response:
    """Answer a change of a lease, of a container or of a blob."""
    lines = version_lines(outcome.etag, outcome.changed_at)
    if outcome.lease_id is not None and action in ("acquire", "renew", "change"):
        lines.append(("x-ms-lease-id", outcome.lease_id))
    if action == "break":
        lines.append(("x-ms-lease-time", str(outcome.seconds_left or 0)))
    return Response(LEASE_STATUS[action], lines)


async def list_blobs(asked: BlobAsked) -> Response:
    options = asked.options
    wanted = options.get("include", "").lower().split(",")
    if options.get("endbefore"):
        raise not_implemented("A listing ends where its prefix ends: endBefore is not known.")
    listing = await asked.front.account.blobs.list_blobs(
        asked.container,
        prefix=options.get("prefix", ""),
        delimiter=options.get("delimiter", ""),
        marker=options.get("marker", ""),
        start_from=options.get("startfrom", ""),
        limit=min(asked.limit(), limits.LIST_ITEMS_MAX),
        include=frozenset(each for each in _INCLUDES if each in wanted),
    )
    body = print_blobs(listing, asked.front.target.root, asked.container, options)
    return Response(200, [XML], body)


def listing_scope(asked: BlobAsked) -> BlobScope | str:
    """Return what a SAS must cover for a listing: the container, or a directory in it."""
    prefix = asked.options.get("prefix", "")
    return BlobScope(asked.container, prefix) if prefix else asked.container
