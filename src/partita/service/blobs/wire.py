"""Request → Call for the blob protocol. Pure: no I/O, no clock.

A request is located first (`locate`): its resource, its operation and what that needs of a SAS.
Once it is authorized, the operation decodes headers, options and a short body into a Call.
Operations that are not implemented have rows too, and answer 501.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar, get_args

import msgspec

from partita.blobs.rules import limits
from partita.blobs.rules.checksums import sums_of, too_long_for_checksum, verify
from partita.blobs.rules.model import (
    Access,
    BlobName,
    Conditions,
    Content,
    Declared,
    DeleteSnapshots,
    Headers,
    Include,
    Kind,
    LeaseRequest,
    Properties,
    SequenceAction,
    SequenceConditions,
    Terms,
)
from partita.refusals import invalid_header, invalid_parameter, missing_header, not_implemented
from partita.service.auth import delegation, roles, sas
from partita.service.auth.sas import BlobScope
from partita.service.blobs.address import OneBlob, OneContainer, parse_blob_resource
from partita.service.blobs.headers import (
    NUMBER_DIGITS_MAX,
    OF_TAGS,
    SOURCE,
    blob_headers_of,
    body_length,
    check_body_size,
    conditions_of,
    content_headers_of,
    declared_of,
    flag_of,
    lease_id_of,
    lease_request_of,
    number_of,
    properties_of,
    rehydrate_priority_of,
    required,
    sequence_conditions_of,
    source_declared_of,
    terms_of,
)
from partita.service.blobs.xml import (
    BLOCK_LIST_BYTES_MAX,
    TAGS_BYTES_MAX,
    parse_tags,
)
from partita.service.formats.byte_ranges import ByteRange, parse_range, range_of
from partita.service.formats.metadata_wire import has_metadata, metadata_of
from partita.service.formats.query_options import (
    missing_parameter,
    options_of,
    out_of_range,
    unsupported_verb,
)
from partita.service.formats.xml_text import XML_BYTES_MAX
from partita.service.http.request import Request

MIB = 1024 * 1024
PUT_BLOB_BYTES_MAX = (("2019-12-12", limits.PUT_BLOB_BYTES_MAX), ("2016-05-31", 256 * MIB))
PUT_BLOB_BYTES_MAX_OLD = 64 * MIB
BLOCK_BYTES_MAX = (("2019-12-12", limits.BLOCK_BYTES_MAX), ("2016-05-31", 100 * MIB))
BLOCK_BYTES_MAX_OLD = 4 * MIB
APPEND_BYTES_MAX = (("2022-11-02", limits.APPEND_BYTES_MAX),)
APPEND_BYTES_MAX_OLD = 4 * MIB
BATCH_BYTES_MAX = 4 * MIB
LIST_LIMIT_DEFAULT = 5000

COPY_SOURCE = "x-ms-copy-source"
COPY_SOURCE_AUTHORIZATION = "x-ms-copy-source-authorization"
RANGE_MD5 = "x-ms-range-get-content-md5"
RANGE_CRC64 = "x-ms-range-get-content-crc64"

_NUMBER = re.compile(r"-?\d{1,9}", re.ASCII)
_PAGE_MARKER = re.compile(rf"\d{{1,{NUMBER_DIGITS_MAX}}}", re.ASCII)
_NO_HEADERS = Headers()
_TAG_HEADERS = ("x-ms-tags", "x-ms-if-tags")
"""They write or reveal the tags of the blob, in any operation."""
_NOT_SUPPORTED = (
    "x-ms-encryption-key",
    "x-ms-immutability-policy-until-date",
    "x-ms-legal-hold",
    "x-ms-structured-body",
)
"""Headers of features that are not implemented: ignoring them would change their meaning."""

T = TypeVar("T", bound=str)


class BlobRequest(msgspec.Struct, frozen=True):
    """A request whose resource is known; options are by lower-case name."""

    request: Request
    version: str
    options: Mapping[str, str]
    kind: str
    """What the path and `restype` name: account, service, root, container or blob."""
    comp: str = ""
    """The part of the resource, in lower case."""
    container: str = ""
    blob: str = ""

    @property
    def method(self) -> str:
        is_get = self.request.method == "HEAD" and self.kind != "blob"
        return "GET" if is_get else self.request.method

    @property
    def name(self) -> BlobName:
        snapshot, version = self.options.get("snapshot"), self.options.get("versionid")
        return BlobName(self.container, self.blob, snapshot or None, version or None)

    @property
    def scope(self) -> str | BlobScope:
        """What a service SAS must cover; for a listing, the container or a directory in it."""
        if self.blob:
            snapshot, version_id = self.options.get("snapshot"), self.options.get("versionid")
            return BlobScope(self.container, self.blob, snapshot or None, version_id or None)
        prefix = self.options.get("prefix") if self.comp == "list" else None
        return BlobScope(self.container, prefix) if prefix else self.container

    def limit(self) -> int:
        """Return how many items of a list are requested."""
        text = self.options.get("maxresults")
        if not text:
            return LIST_LIMIT_DEFAULT
        if not _NUMBER.fullmatch(text):
            raise invalid_parameter("maxresults", text)
        if int(text) < 1:
            raise out_of_range("maxresults", text, 1, LIST_LIMIT_DEFAULT)
        return min(int(text), LIST_LIMIT_DEFAULT)


# Calls


class CopySource(msgspec.Struct, frozen=True):
    """The source of a copy or of a From-URL write."""

    address: str
    range: ByteRange | None = None
    terms: Terms = Terms()


Uploaded = Content | CopySource
"""The content of a write: the body, or bytes of another blob."""


class GetAccountInformation(msgspec.Struct, frozen=True):
    pass


class GetBlobDelegationKey(msgspec.Struct, frozen=True):
    key: delegation.KeyTerms


class GetBlobServiceStatistics(msgspec.Struct, frozen=True):
    pass


class GetBlobServiceProperties(msgspec.Struct, frozen=True):
    pass


class SetBlobServiceProperties(msgspec.Struct, frozen=True):
    body: bytes


class RunBatch(msgspec.Struct, frozen=True):
    body: bytes


class ListContainers(msgspec.Struct, frozen=True):
    prefix: str
    marker: str
    limit: int
    with_system: bool
    with_deleted: bool


class FindBlobs(msgspec.Struct, frozen=True):
    where: str
    container: str | None
    """None: in all containers of the account."""
    marker: str
    limit: int


class CreateContainer(msgspec.Struct, frozen=True):
    container: str
    metadata: dict[str, str]
    access: Access | None
    encryption_scope: str | None
    denies_other_scopes: bool


class RestoreContainer(msgspec.Struct, frozen=True):
    container: str
    version: str


class GetContainer(msgspec.Struct, frozen=True):
    container: str
    lease_id: str | None
    part: str
    """Which part the answer shows: everything (empty), metadata or acl."""


class SetContainerMetadata(msgspec.Struct, frozen=True):
    container: str
    metadata: dict[str, str]
    terms: Terms


class SetContainerPolicies(msgspec.Struct, frozen=True):
    container: str
    body: bytes
    access: Access | None
    terms: Terms


class DeleteContainer(msgspec.Struct, frozen=True):
    container: str
    terms: Terms


class LeaseContainer(msgspec.Struct, frozen=True):
    container: str
    lease: LeaseRequest
    conditions: Conditions


class ListBlobs(msgspec.Struct, frozen=True):
    container: str
    prefix: str
    delimiter: str
    marker: str
    start_from: str
    limit: int
    include: frozenset[Include]


class PutBlob(msgspec.Struct, frozen=True):
    name: BlobName
    content: Content
    properties: Properties
    terms: Terms
    declared: Declared


class CreateAppendBlob(msgspec.Struct, frozen=True):
    name: BlobName
    properties: Properties
    terms: Terms


class CreatePageBlob(msgspec.Struct, frozen=True):
    name: BlobName
    length: int
    sequence_number: int
    properties: Properties
    terms: Terms


class PutBlobFromUrl(msgspec.Struct, frozen=True):
    name: BlobName
    source: CopySource
    headers: Headers | None
    """None: the source's own, if `keeps_headers`."""
    keeps_headers: bool
    properties: Properties
    copies_tags: bool
    terms: Terms
    declared: Declared


class CopyBlob(msgspec.Struct, frozen=True):
    name: BlobName
    source: CopySource
    is_sync: bool
    """Copy Blob From URL; otherwise Copy Blob."""
    properties: Properties
    copies_tags: bool
    seals: bool | None
    terms: Terms
    declared: Declared


class GetBlob(msgspec.Struct, frozen=True):
    name: BlobName
    range: ByteRange | None
    wants_md5: bool
    wants_crc64: bool
    terms: Terms


class GetBlobProperties(msgspec.Struct, frozen=True):
    name: BlobName
    terms: Terms


class GetBlobMetadata(msgspec.Struct, frozen=True):
    name: BlobName
    terms: Terms


class SetBlobMetadata(msgspec.Struct, frozen=True):
    name: BlobName
    metadata: dict[str, str]
    terms: Terms


class SetBlobHeaders(msgspec.Struct, frozen=True):
    """Set Blob Properties: it also resizes or numbers a page blob."""

    name: BlobName
    headers: Headers | None
    length: int | None
    action: SequenceAction | None
    number: int | None
    terms: Terms


class DeleteBlob(msgspec.Struct, frozen=True):
    name: BlobName
    snapshots: DeleteSnapshots | None
    is_permanent: bool
    terms: Terms


class UndeleteBlob(msgspec.Struct, frozen=True):
    name: BlobName


class SetTier(msgspec.Struct, frozen=True):
    name: BlobName
    tier: str
    priority: str | None
    terms: Terms


class GetTags(msgspec.Struct, frozen=True):
    name: BlobName
    terms: Terms


class SetTags(msgspec.Struct, frozen=True):
    name: BlobName
    tags: dict[str, str]
    terms: Terms


class LeaseBlob(msgspec.Struct, frozen=True):
    name: BlobName
    lease: LeaseRequest
    conditions: Conditions


class SnapshotBlob(msgspec.Struct, frozen=True):
    name: BlobName
    metadata: dict[str, str] | None
    terms: Terms


class AbortCopy(msgspec.Struct, frozen=True):
    name: BlobName
    copy_id: str
    lease_id: str | None


class PutBlock(msgspec.Struct, frozen=True):
    name: BlobName
    block_id: str
    content: Uploaded
    lease_id: str | None
    declared: Declared


class PutBlockList(msgspec.Struct, frozen=True):
    name: BlobName
    body: bytes
    """The list: it may be too long to be parsed at once."""
    properties: Properties
    terms: Terms
    sums: Declared
    """Of the body, to be repeated in the answer."""


class GetBlockList(msgspec.Struct, frozen=True):
    name: BlobName
    which: str
    terms: Terms


class AppendBlock(msgspec.Struct, frozen=True):
    name: BlobName
    content: Uploaded
    position: int | None
    size_max: int | None
    terms: Terms
    declared: Declared


class SealBlob(msgspec.Struct, frozen=True):
    name: BlobName
    position: int | None
    terms: Terms


class PutPages(msgspec.Struct, frozen=True):
    name: BlobName
    first: int
    last: int
    content: Uploaded
    sequence: SequenceConditions
    terms: Terms
    declared: Declared


class ClearPages(msgspec.Struct, frozen=True):
    name: BlobName
    first: int
    last: int
    sequence: SequenceConditions
    terms: Terms


class GetPageRanges(msgspec.Struct, frozen=True):
    name: BlobName
    first: int
    last: int | None
    limit: int | None
    since: str | None
    """The time of an earlier snapshot: what changed since."""
    terms: Terms


BlobCall = (
    GetAccountInformation
    | GetBlobServiceStatistics
    | GetBlobDelegationKey
    | GetBlobServiceProperties
    | SetBlobServiceProperties
    | RunBatch
    | ListContainers
    | FindBlobs
    | CreateContainer
    | RestoreContainer
    | GetContainer
    | SetContainerMetadata
    | SetContainerPolicies
    | DeleteContainer
    | LeaseContainer
    | ListBlobs
    | PutBlob
    | CreateAppendBlob
    | CreatePageBlob
    | PutBlobFromUrl
    | CopyBlob
    | GetBlob
    | GetBlobProperties
    | GetBlobMetadata
    | SetBlobMetadata
    | SetBlobHeaders
    | DeleteBlob
    | UndeleteBlob
    | SetTier
    | GetTags
    | SetTags
    | LeaseBlob
    | SnapshotBlob
    | AbortCopy
    | PutBlock
    | PutBlockList
    | GetBlockList
    | AppendBlock
    | SealBlob
    | PutPages
    | ClearPages
    | GetPageRanges
)
BlobWrite = PutBlob | CreateAppendBlob | CreatePageBlob | PutBlobFromUrl | CopyBlob | PutBlockList
"""Calls that write a whole blob: a SAS may allow them for new blobs only."""


class BlobOperation(msgspec.Struct, frozen=True):
    """One operation of the protocol: what it needs of a SAS, and how it is decoded."""

    resource: str
    permissions: tuple[str, ...]
    decode: Callable[[BlobRequest], BlobCall]
    by_key_only: bool = False
    no_service_sas: bool = False
    """No service SAS allows it: it changes the container itself."""
    body_bytes_max: int = 0
    """The limit of a body that is read before decoding; 0 for none."""


# Locating


def locate(
    request: Request, path: str, pairs: Sequence[tuple[str, str]], version: str
) -> BlobRequest:
    """Return what a request names."""
    options = options_of(pairs)
    comp, restype = options.get("comp", "").lower(), options.get("restype", "").lower()
    if restype == "account" and comp == "properties":
        return BlobRequest(request, version, options, "account", comp)
    if restype == "service":
        return BlobRequest(request, version, options, "service", comp)
    resource = parse_blob_resource(path, is_container=restype == "container")
    if isinstance(resource, OneBlob):
        container, blob = resource.container, resource.name
        return BlobRequest(request, version, options, "blob", comp, container, blob)
    if isinstance(resource, OneContainer):
        return BlobRequest(request, version, options, "container", comp, resource.name)
    return BlobRequest(request, version, options, "root", comp)


def operation_of(asked: BlobRequest) -> BlobOperation:
    """Return the operation that a request asks for."""
    operation = _OPERATIONS.get((asked.kind, asked.method, asked.comp))
    if operation is not None:
        return operation
    if any(row[0] == asked.kind and row[2] == asked.comp for row in _OPERATIONS):
        raise unsupported_verb()
    raise invalid_parameter("comp", asked.comp)


def permissions_of(operation: BlobOperation, asked: BlobRequest) -> tuple[str, ...]:
    """Return what a request needs of a SAS: for some it depends on what it names."""
    if asked.comp == "lease":
        is_break = asked.request.headers.get("x-ms-lease-action", "").lower() == "break"
        return sas.BREAK_LEASE if is_break else operation.permissions
    if (asked.kind, asked.method, asked.comp) == ("blob", "DELETE", ""):
        if _is_permanent(asked):
            return sas.DELETE_FOR_GOOD
        return sas.DELETE_VERSION if asked.name.version is not None else operation.permissions
    return operation.permissions


def _is_permanent(asked: BlobRequest) -> bool:
    text = asked.options.get("deletetype", "").lower()
    if text not in ("", "permanent"):
        raise invalid_parameter("deletetype", text)
    return text == "permanent"


def uses_tags(asked: BlobRequest) -> bool:
    """Return whether a request writes or reveals tags in addition to what its operation does."""
    if asked.kind == "container":
        return asked.comp == "list" and "tags" in _included(asked)
    return bool(asked.blob) and (
        any(map(asked.request.given, _TAG_HEADERS)) or _copies_tags(asked.request)
    )


def _copies_tags(request: Request) -> bool:
    is_asked = request.headers.get("x-ms-copy-source-tag-option", "").upper() == "COPY"
    return is_asked and COPY_SOURCE in request.headers


def _included(asked: BlobRequest) -> list[str]:
    return asked.options.get("include", "").lower().split(",")


def content_of(request: Request) -> Content:
    """Return the body: received, or still arriving."""
    return request.body if request.upload is None else request.upload


# Decoding the calls on the service and on containers


def _list_containers(asked: BlobRequest) -> BlobCall:
    options = asked.options
    return ListContainers(
        options.get("prefix", ""),
        options.get("marker", ""),
        asked.limit(),
        "system" in _included(asked),
        "deleted" in _included(asked),
    )


def _find_blobs(asked: BlobRequest) -> BlobCall:
    if "versions" in _included(asked):
        raise not_implemented("Omit include=versions: only the blobs themselves are found.")
    where = _required_option(asked, "where")
    marker = asked.options.get("marker", "")
    return FindBlobs(where, asked.container or None, marker, asked.limit())


def _create_container(asked: BlobRequest) -> BlobCall:
    request = asked.request
    return CreateContainer(
        asked.container,
        metadata_of(request),
        _access_of(request),
        request.given("x-ms-default-encryption-scope"),
        flag_of(request, "x-ms-deny-encryption-scope-override") is True,
    )


def _restore_container(asked: BlobRequest) -> BlobCall:
    request = asked.request
    name = required(request, "x-ms-deleted-container-name")
    if name != asked.container:
        hint = "Restore a container under its own name: name it in the path, too."
        raise invalid_header("x-ms-deleted-container-name", name, hint)
    return RestoreContainer(name, required(request, "x-ms-deleted-container-version"))


def _access_of(request: Request) -> Access | None:
    return _choice_of(request, "x-ms-blob-public-access", get_args(Access))


def _choice_of(request: Request, name: str, choices: tuple[T, ...]) -> T | None:
    """Return the value of a header that names one of some choices, in any case."""
    text = request.given(name)
    if text is None:
        return None
    for choice in choices:
        if text.lower() == choice:
            return choice
    raise invalid_header(name, text, f"Use {', '.join(choices[:-1])} or {choices[-1]}.")


def _get_container(asked: BlobRequest) -> BlobCall:
    return GetContainer(asked.container, lease_id_of(asked.request), asked.comp)


def _set_container_metadata(asked: BlobRequest) -> BlobCall:
    metadata = metadata_of(asked.request)
    return SetContainerMetadata(asked.container, metadata, terms_of(asked.request))


def _set_container_policies(asked: BlobRequest) -> BlobCall:
    request = asked.request
    return SetContainerPolicies(
        asked.container, request.body, _access_of(request), terms_of(request)
    )


def _lease_container(asked: BlobRequest) -> BlobCall:
    wanted = lease_request_of(asked.request)
    return LeaseContainer(asked.container, wanted, conditions_of(asked.request))


def _list_blobs(asked: BlobRequest) -> BlobCall:
    options = asked.options
    if options.get("endbefore"):
        raise not_implemented("Omit endBefore: a listing ends where its prefix ends.")
    wanted = _included(asked)
    includes: tuple[Include, ...] = get_args(Include)
    return ListBlobs(
        asked.container,
        prefix=options.get("prefix", ""),
        delimiter=options.get("delimiter", ""),
        marker=options.get("marker", ""),
        start_from=options.get("startfrom", ""),
        limit=min(asked.limit(), limits.LIST_ITEMS_MAX),
        include=frozenset(each for each in includes if each in wanted),
    )


# Decoding the calls on blobs


def _refuse_unsupported(request: Request) -> None:
    for name in _NOT_SUPPORTED:
        if request.given(name) is not None:
            raise not_implemented("Omit the header, its feature is not supported: " + name)


def _bytes_max(version: str, steps: tuple[tuple[str, int], ...], old: int) -> int:
    return next((size for since, size in steps if version >= since), old)


def _put_blob(asked: BlobRequest) -> BlobCall:
    request = asked.request
    _refuse_unsupported(request)
    if COPY_SOURCE in request.headers:
        return _copy_blob(asked)
    kind = required(request, "x-ms-blob-type")
    kinds: tuple[Kind, ...] = get_args(Kind)
    if kind not in kinds:
        raise invalid_header("x-ms-blob-type", kind, f"Use one of {', '.join(kinds)}.")
    if kind == "BlockBlob":
        check_body_size(
            request, _bytes_max(asked.version, PUT_BLOB_BYTES_MAX, PUT_BLOB_BYTES_MAX_OLD)
        )
        properties = properties_of(request, content_headers_of(request))
        return PutBlob(
            asked.name, content_of(request), properties, terms_of(request), declared_of(request)
        )
    if body_length(request):
        raise invalid_header("content-length", "", "Create an append or page blob without content.")
    if kind == "AppendBlob":
        properties = properties_of(request, content_headers_of(request))
        return CreateAppendBlob(asked.name, properties, terms_of(request))
    length = number_of(request, "x-ms-blob-content-length")
    if length is None:
        raise missing_header("x-ms-blob-content-length")
    return CreatePageBlob(
        asked.name,
        length,
        number_of(request, "x-ms-blob-sequence-number") or 0,
        properties_of(request, content_headers_of(request)),
        terms_of(request),
    )


def _copy_blob(asked: BlobRequest) -> BlobCall:
    """Decode a PUT with a source: three operations that differ in a header."""
    request = asked.request
    is_sync = flag_of(request, "x-ms-requires-sync") is True
    headers = blob_headers_of(request)
    properties = properties_of(request, headers or _NO_HEADERS)
    copies_tags = _copies_tags(request)
    if not is_sync and request.headers.get("x-ms-blob-type") == "BlockBlob":
        return PutBlobFromUrl(
            asked.name,
            _copy_source(request),
            headers,
            flag_of(request, "x-ms-copy-source-blob-properties") is not False,
            properties,
            copies_tags,
            terms_of(request),
            source_declared_of(request),
        )
    return CopyBlob(
        asked.name,
        _copy_source(request, has_range=is_sync),
        is_sync,
        properties,
        copies_tags,
        flag_of(request, "x-ms-seal-blob"),
        terms_of(request),
        source_declared_of(request) if is_sync else Declared(),
    )


def _copy_source(request: Request, *, has_range: bool = True) -> CopySource:
    address = required(request, COPY_SOURCE)
    text = request.headers.get("x-ms-source-range") if has_range else None
    wanted = None if text is None else parse_range(text)
    if text is not None and wanted is None:
        # A reader of an unreadable range gets the whole blob; a writer must not.
        raise invalid_header("x-ms-source-range", text, "Use bytes=first-last.")
    lease_id = lease_id_of(request, "x-ms-source-lease-id")
    return CopySource(address, wanted, Terms(lease_id, conditions_of(request, SOURCE)))


def _uploaded(request: Request, bytes_max: int, *, can_be_empty: bool) -> tuple[Uploaded, Declared]:
    """Return the content of a write and its declared checksums."""
    _refuse_unsupported(request)
    if COPY_SOURCE in request.headers:
        return _copy_source(request), source_declared_of(request)
    check_body_size(request, bytes_max)
    if not can_be_empty and body_length(request) == 0:
        raise invalid_header("Content-Length", "0", "Send a body.")
    return content_of(request), declared_of(request)


def _get_blob(asked: BlobRequest) -> BlobCall:
    wanted = range_of(asked.request.headers)
    wants_md5, wants_crc64 = _checksums_of_range(asked.request, wanted)
    return GetBlob(asked.name, wanted, wants_md5, wants_crc64, terms_of(asked.request))


def _checksums_of_range(request: Request, wanted: ByteRange | None) -> tuple[bool, bool]:
    """Return whether MD5 and CRC64 of the range are requested: at most one of them is.

    A header with the value false counts as present: so the reference of the service says.
    """
    present = [name for name in (RANGE_MD5, RANGE_CRC64) if request.given(name) is not None]
    if not present:
        return False, False
    wants_md5, wants_crc64 = flag_of(request, RANGE_MD5), flag_of(request, RANGE_CRC64)
    if wanted is None:
        hint = "Send Range or x-ms-range: bytes=first-last."
        raise invalid_header(present[0], request.headers[present[0]], hint)
    if len(present) > 1:
        hint = f"Send {RANGE_MD5} or {RANGE_CRC64}, not both."
        raise invalid_header(RANGE_CRC64, request.headers[RANGE_CRC64], hint)
    if (wants_md5 or wants_crc64) and (wanted.length or 0) > limits.RANGE_MD5_BYTES_MAX:
        raise too_long_for_checksum()
    return wants_md5 is True, wants_crc64 is True


def _set_blob_headers(asked: BlobRequest) -> BlobCall:
    request = asked.request
    length = number_of(request, "x-ms-blob-content-length")
    action = _choice_of(request, "x-ms-sequence-number-action", get_args(SequenceAction))
    number = None if action is None else number_of(request, "x-ms-blob-sequence-number")
    headers = blob_headers_of(request)
    return SetBlobHeaders(asked.name, headers, length, action, number, terms_of(request))


def _delete_blob(asked: BlobRequest) -> BlobCall:
    request, name = asked.request, asked.name
    if name.snapshot is not None and request.given("x-ms-delete-snapshots") is not None:
        raise invalid_parameter("snapshot", name.snapshot)
    snapshots = _choice_of(request, "x-ms-delete-snapshots", get_args(DeleteSnapshots))
    return DeleteBlob(name, snapshots, _is_permanent(asked), terms_of(request))


def _set_tier(asked: BlobRequest) -> BlobCall:
    request = asked.request
    tier = required(request, "x-ms-access-tier")
    return SetTier(asked.name, tier, rehydrate_priority_of(request), terms_of(request))


def _get_tags(asked: BlobRequest) -> BlobCall:
    return GetTags(asked.name, terms_of(asked.request, OF_TAGS))


def _set_tags(asked: BlobRequest) -> BlobCall:
    request = asked.request
    _verified_sums(request)
    return SetTags(asked.name, parse_tags(request.body), terms_of(request, OF_TAGS))


def _verified_sums(request: Request) -> Declared:
    """Return the checksums of a short body; refuse it if a declared one differs."""
    declared = declared_of(request)
    sums = sums_of(request.body, wants_md5=declared.md5 is not None)
    verify(declared, sums)
    return sums


def _snapshot_blob(asked: BlobRequest) -> BlobCall:
    request = asked.request
    metadata = metadata_of(request) if has_metadata(request) else None
    return SnapshotBlob(asked.name, metadata, terms_of(request))


def _abort_copy(asked: BlobRequest) -> BlobCall:
    action = required(asked.request, "x-ms-copy-action")
    if action.lower() != "abort":
        raise invalid_header("x-ms-copy-action", action, "Use abort.")
    return AbortCopy(asked.name, _required_option(asked, "copyid"), lease_id_of(asked.request))


def _required_option(asked: BlobRequest, name: str) -> str:
    value = asked.options.get(name)
    if not value:
        raise missing_parameter(name)
    return value


# Decoding the calls on blocks, appends and pages


def _put_block(asked: BlobRequest) -> BlobCall:
    request = asked.request
    bytes_max = _bytes_max(asked.version, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX_OLD)
    content, declared = _uploaded(request, bytes_max, can_be_empty=False)
    block_id = _required_option(asked, "blockid")
    return PutBlock(asked.name, block_id, content, lease_id_of(request), declared)


def _put_block_list(asked: BlobRequest) -> BlobCall:
    request = asked.request
    sums = _verified_sums(request)
    properties = properties_of(request, blob_headers_of(request) or _NO_HEADERS)
    return PutBlockList(asked.name, request.body, properties, terms_of(request), sums)


def _get_block_list(asked: BlobRequest) -> BlobCall:
    which = asked.options.get("blocklisttype", "committed").lower()
    if which not in ("committed", "uncommitted", "all"):
        raise invalid_parameter("blocklisttype", which)
    return GetBlockList(asked.name, which, terms_of(asked.request))


def _append_block(asked: BlobRequest) -> BlobCall:
    request = asked.request
    bytes_max = _bytes_max(asked.version, APPEND_BYTES_MAX, APPEND_BYTES_MAX_OLD)
    content, declared = _uploaded(request, bytes_max, can_be_empty=False)
    return AppendBlock(
        asked.name,
        content,
        number_of(request, "x-ms-blob-condition-appendpos"),
        number_of(request, "x-ms-blob-condition-maxsize"),
        terms_of(request),
        declared,
    )


def _seal_blob(asked: BlobRequest) -> BlobCall:
    request = asked.request
    position = number_of(request, "x-ms-blob-condition-appendpos")
    return SealBlob(asked.name, position, terms_of(request))


def _put_pages(asked: BlobRequest) -> BlobCall:
    request = asked.request
    _refuse_unsupported(request)
    first, last = _page_range_of(request)
    if COPY_SOURCE not in request.headers:
        action = required(request, "x-ms-page-write").lower()
        if action not in ("update", "clear"):
            raise invalid_header("x-ms-page-write", action, "Use update or clear.")
        if action == "clear":
            sequence = sequence_conditions_of(request)
            return ClearPages(asked.name, first, last, sequence, terms_of(request))
    content, declared = _uploaded(request, limits.PUT_PAGES_BYTES_MAX, can_be_empty=True)
    sequence = sequence_conditions_of(request)
    return PutPages(asked.name, first, last, content, sequence, terms_of(request), declared)


def _page_range_of(request: Request) -> tuple[int, int]:
    """Return the first and last byte of the pages to write; a range is required."""
    name = "x-ms-range"
    text = request.headers.get(name) or request.headers.get("range")
    if not text:
        raise missing_header(name)
    pages = parse_range(text)
    if pages is None or pages.last is None:
        raise invalid_header(name, text, "Use bytes=first-last.")
    return pages.first, pages.last


def _get_page_ranges(asked: BlobRequest) -> BlobCall:
    request, options = asked.request, asked.options
    if "x-ms-previous-snapshot-url" in request.headers:
        raise not_implemented("Name the snapshot in prevsnapshot: there are no managed disks.")
    wanted = range_of(request.headers) or ByteRange(0, None)
    marker = options.get("marker", "")
    if marker and not _PAGE_MARKER.fullmatch(marker):
        raise invalid_parameter("marker", marker[:64])
    return GetPageRanges(
        asked.name,
        first=max(wanted.first, int(marker or 0)),
        last=wanted.last,
        limit=asked.limit() if "maxresults" in options else None,
        since=options.get("prevsnapshot") or None,
        terms=terms_of(request),
    )


# The operations


def _not_implemented(asked: BlobRequest) -> BlobCall:
    raise not_implemented("Not supported: comp=" + asked.comp)


def _get_user_delegation_key(asked: BlobRequest) -> BlobCall:
    return GetBlobDelegationKey(delegation.parse_key_terms(asked.request.body))


def _on_service(
    permissions: tuple[str, ...], decode: Callable[[BlobRequest], BlobCall], body_bytes_max: int = 0
) -> BlobOperation:
    return BlobOperation(sas.SERVICE, permissions, decode, body_bytes_max=body_bytes_max)


def _on_container(
    permissions: tuple[str, ...], decode: Callable[[BlobRequest], BlobCall]
) -> BlobOperation:
    return BlobOperation(sas.CONTAINER, permissions, decode, no_service_sas=True)


def _on_blob(
    permissions: tuple[str, ...], decode: Callable[[BlobRequest], BlobCall], body_bytes_max: int = 0
) -> BlobOperation:
    return BlobOperation(sas.OBJECT, permissions, decode, body_bytes_max=body_bytes_max)


_BATCH = _on_blob(("",), lambda asked: RunBatch(asked.request.body), BATCH_BYTES_MAX)
"""It needs nothing by itself: each part is authorized as a request of its own."""

_OPERATIONS: dict[tuple[str, str, str], BlobOperation] = {
    ("account", "GET", "properties"): _on_blob(sas.READ, lambda _: GetAccountInformation()),
    ("service", "GET", "stats"): _on_service(sas.READ, lambda _: GetBlobServiceStatistics()),
    ("service", "GET", "properties"): _on_service(sas.READ, lambda _: GetBlobServiceProperties()),
    ("service", "PUT", "properties"): _on_service(
        sas.WRITE, lambda asked: SetBlobServiceProperties(asked.request.body), XML_BYTES_MAX
    ),
    ("service", "POST", "userdelegationkey"): _on_service(
        roles.DELEGATE, _get_user_delegation_key, delegation.KEY_TERMS_BYTES_MAX
    ),
    ("root", "GET", "list"): _on_service(sas.LIST, _list_containers),
    ("root", "GET", "blobs"): _on_blob(sas.FIND_BY_TAGS, _find_blobs),
    ("root", "POST", "batch"): _BATCH,
    # Containers
    ("container", "PUT", ""): _on_container(sas.CREATE, _create_container),
    ("container", "GET", ""): _on_container(sas.READ, _get_container),
    ("container", "GET", "metadata"): _on_container(sas.READ, _get_container),
    ("container", "PUT", "metadata"): _on_container(sas.WRITE, _set_container_metadata),
    ("container", "GET", "acl"): BlobOperation(
        sas.CONTAINER, sas.READ, _get_container, by_key_only=True
    ),
    ("container", "PUT", "acl"): BlobOperation(
        sas.CONTAINER,
        sas.WRITE,
        _set_container_policies,
        by_key_only=True,
        body_bytes_max=XML_BYTES_MAX,
    ),
    ("container", "DELETE", ""): _on_container(
        sas.DELETE, lambda asked: DeleteContainer(asked.container, terms_of(asked.request))
    ),
    ("container", "PUT", "lease"): _on_container(sas.WRITE, _lease_container),
    ("container", "GET", "list"): BlobOperation(sas.CONTAINER, sas.LIST, _list_blobs),
    ("container", "GET", "blobs"): BlobOperation(sas.CONTAINER, sas.FIND_BY_TAGS, _find_blobs),
    ("container", "PUT", "undelete"): _on_container(sas.WRITE, _restore_container),
    ("container", "PUT", "rename"): BlobOperation(sas.CONTAINER, sas.WRITE, _not_implemented),
    ("container", "POST", "batch"): _BATCH,
    # Blobs
    ("blob", "PUT", ""): _on_blob(sas.CREATE, _put_blob),
    ("blob", "GET", ""): _on_blob(sas.READ, _get_blob),
    ("blob", "HEAD", ""): _on_blob(
        sas.READ, lambda asked: GetBlobProperties(asked.name, terms_of(asked.request))
    ),
    ("blob", "DELETE", ""): _on_blob(sas.DELETE, _delete_blob),
    ("blob", "PUT", "undelete"): _on_blob(sas.WRITE, lambda asked: UndeleteBlob(asked.name)),
    **{
        ("blob", method, "metadata"): _on_blob(
            sas.READ, lambda asked: GetBlobMetadata(asked.name, terms_of(asked.request))
        )
        for method in ("GET", "HEAD")
    },
    ("blob", "PUT", "metadata"): _on_blob(
        sas.WRITE,
        lambda asked: SetBlobMetadata(
            asked.name, metadata_of(asked.request), terms_of(asked.request)
        ),
    ),
    ("blob", "PUT", "properties"): _on_blob(sas.WRITE, _set_blob_headers),
    ("blob", "PUT", "tier"): _on_blob(sas.WRITE, _set_tier),
    ("blob", "GET", "tags"): _on_blob(sas.TAGS, _get_tags),
    ("blob", "PUT", "tags"): _on_blob(sas.TAGS, _set_tags, TAGS_BYTES_MAX),
    ("blob", "PUT", "lease"): _on_blob(
        sas.WRITE,
        lambda asked: LeaseBlob(
            asked.name, lease_request_of(asked.request), conditions_of(asked.request)
        ),
    ),
    ("blob", "PUT", "snapshot"): _on_blob(sas.CREATE, _snapshot_blob),
    ("blob", "PUT", "copy"): _on_blob(sas.WRITE, _abort_copy),
    ("blob", "PUT", "block"): _on_blob(sas.CREATE, _put_block),
    ("blob", "PUT", "blocklist"): _on_blob(sas.CREATE, _put_block_list, BLOCK_LIST_BYTES_MAX),
    ("blob", "GET", "blocklist"): _on_blob(sas.READ, _get_block_list),
    ("blob", "PUT", "appendblock"): _on_blob(sas.APPEND, _append_block),
    ("blob", "PUT", "seal"): _on_blob(sas.APPEND, _seal_blob),
    ("blob", "PUT", "page"): _on_blob(sas.WRITE, _put_pages),
    ("blob", "GET", "pagelist"): _on_blob(sas.READ, _get_page_ranges),
    **{
        ("blob", method, comp): _on_blob(sas.WRITE, _not_implemented)
        for method, comp in (
            ("PUT", "expiry"),
            ("PUT", "incrementalcopy"),
            ("PUT", "immutabilitypolicies"),
            ("DELETE", "immutabilitypolicies"),
            ("PUT", "legalhold"),
            ("POST", "query"),
        )
    },
}
