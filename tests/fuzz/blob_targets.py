"""Fuzz targets of the blob service: ranges, headers, documents and expressions on tags."""

from collections.abc import Callable, Mapping

from partita.blobs.rules import tags as tag_rules
from partita.errors import PartitaError
from partita.service.blobs import headers as blob_headers
from partita.service.blobs import xml as blob_xml
from partita.service.blobs.address import OneBlob, parse_blob_resource, parse_copy_source
from partita.service.formats import metadata_wire
from partita.service.formats.byte_ranges import parse_range
from partita.service.http.request import Request

TAGS: tuple[Mapping[str, str], ...] = ({}, {"k": "v"}, {"k": "", "a b": "x/y", "K": "V"})


def byte_range(data: bytes) -> bool:
    text = data.decode("latin-1")
    found = parse_range(text)
    if found is None:
        return False
    assert 0 <= found.first < 10**19
    assert found.last is None or found.first <= found.last < 10**19
    printed = f"bytes={found.first}-{'' if found.last is None else found.last}"
    assert parse_range(printed) == found
    return True


def expression(data: bytes) -> bool:
    """Read an expression on tags; what negation and repetition do to it is known."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        judged = [tag_rules.matches(text, tags) for tags in TAGS]
    except PartitaError:
        return False
    for wider, expected in (
        (f"NOT ({text})", [not each for each in judged]),
        (f"({text}) AND ({text})", judged),
        (f"({text}) OR NOT ({text})", [True] * len(TAGS)),
    ):
        try:
            found = [tag_rules.matches(wider, tags) for tags in TAGS]
        except PartitaError:
            continue  # longer or deeper than allowed
        assert found == expected, wider
    return True


def document(data: bytes) -> bool:
    """Read a body as each XML document that a blob takes."""
    return any([_check_blocks(data), _check_tags(data)])


def _check_blocks(data: bytes) -> bool:
    try:
        choices = list(blob_xml.parse_block_list(data))
    except PartitaError:
        return False
    assert all(choice.which in {"Committed", "Uncommitted", "Latest"} for choice in choices)
    return True


def _check_tags(data: bytes) -> bool:
    try:
        tags = blob_xml.parse_tags(data)
    except PartitaError:
        return False
    assert blob_xml.parse_tags(blob_xml.print_tags(tags)) == tags
    return True


def headers(data: bytes) -> bool:
    """Read lines of a head, `name: value`, as every operation that has such headers does."""
    fields: dict[str, str] = {}
    for line in data.decode("latin-1").split("\n"):
        name, _, value = line.partition(":")
        fields[name.strip().lower()] = value.strip()
    request = Request("PUT", "/acct/c/b", "", fields)
    understood = [_is_read(call, request) for call in _CALLS]
    return all(understood)


def _is_read(call: Callable[[Request], object], request: Request) -> bool:
    try:
        call(request)
    except PartitaError:
        return False
    return True


def _check_source(request: Request) -> None:
    if "x-ms-copy-source" not in request.headers:
        return
    host, path, _ = parse_copy_source(request.headers["x-ms-copy-source"])
    assert host
    resource = parse_blob_resource(path, is_container=False)
    if isinstance(resource, OneBlob):
        assert resource.container
        assert resource.name


def _check_lease(request: Request) -> None:
    if "x-ms-lease-action" in request.headers:
        lease = blob_headers.lease_request_of(request)
        assert lease.duration is None or lease.duration == -1 or 15 <= lease.duration <= 60
        assert lease.break_period is None or 0 <= lease.break_period <= 60


def _check_metadata(request: Request) -> None:
    metadata = metadata_wire.metadata_of(request)
    for name, value in metadata_wire.metadata_headers(metadata):
        assert (name + value).isascii()
        assert not {"\r", "\n", "\0"} & set(name + value)


_CALLS: tuple[Callable[[Request], object], ...] = (
    blob_headers.conditions_of,
    lambda request: blob_headers.conditions_of(request, "x-ms-source-"),
    blob_headers.sequence_conditions_of,
    blob_headers.content_headers_of,
    blob_headers.blob_headers_of,
    blob_headers.tags_of,
    blob_headers.declared_of,
    blob_headers.source_declared_of,
    blob_headers.rehydrate_priority_of,
    blob_headers.lease_id_of,
    _check_source,
    _check_lease,
    _check_metadata,
)
