"""Bad requests to the blob service: what is sent, and the status and code that answer it.

The witness they are sent to: container `witness` with the block blob `w` (26 letters), the append
blob `a` (2 bytes), the page blob `p` (1024 bytes), the leased blob `l`, and `staged`, of which
one block is there.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from wire.raw_blob import APPEND, BLOCK, PAGE

HEADER = "400 InvalidHeaderValue"
MISSING = "400 MissingRequiredHeader"
QUERY = "400 InvalidQueryParameterValue"
RANGE = "416 InvalidRange"
NAME = "400 OutOfRangeInput"
XML = "400 InvalidXmlDocument"
LEASE = "a9f3c0de-0000-4000-8000-000000000001"
"""Of the blob `l`; it has no end."""
LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;">]>'
)


class Row(NamedTuple):
    title: str
    method: str
    target: str
    expected: str
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes | str = b""


def _tag_set(*pairs: tuple[str, str]) -> str:
    tags = "".join(f"<Tag><Key>{key}</Key><Value>{value}</Value></Tag>" for key, value in pairs)
    return f"<Tags><TagSet>{tags}</TagSet></Tags>"


def _blocks(content: str) -> str:
    return f"<BlockList>{content}</BlockList>"


def _policies(count: int) -> str:
    one = "<SignedIdentifier><Id>{}</Id><AccessPolicy /></SignedIdentifier>"
    each = "".join(one.format(number) for number in range(count))
    return f"<SignedIdentifiers>{each}</SignedIdentifiers>"


NAMES = [
    Row("name that climbs", "GET", "/witness/../../etc/passwd", "404 BlobNotFound"),
    Row("name that climbs in disguise", "GET", "/witness/%2e%2e%2fw", "404 BlobNotFound"),
    Row("name of another system", "GET", "/witness/C:%5Cx", "404 BlobNotFound"),
    Row("name that ends with a dot", "GET", "/witness/w.", "404 BlobNotFound"),
    Row("name of 1025 characters", "PUT", f"/witness/{'n' * 1025}", NAME, BLOCK, b"x"),
    Row("name of 1025 that is read", "GET", f"/witness/{'n' * 1025}", NAME),
    Row("name of 255 segments", "PUT", f"/witness/{'a/' * 254}a", NAME, BLOCK, b"x"),
    Row("name that is no percent code", "GET", "/witness/%zz", "400 InvalidUri"),
    Row("name that is no UTF-8", "GET", "/witness/%ff", "400 InvalidUri"),
    Row("name with half a pair", "PUT", "/witness/%ED%A0%80", "400 InvalidUri", BLOCK, b"x"),
    Row("name that is empty", "PUT", "/witness/", "400 InvalidUri", BLOCK, b"x"),
    Row("container in capitals", "PUT", "/Witness2?restype=container", "400 InvalidResourceName"),
    Row("container with two dashes", "PUT", "/a--b?restype=container", "400 InvalidResourceName"),
    Row("container with a slash", "PUT", "/a%2Fb?restype=container", "400 InvalidResourceName"),
    Row("container of 2 letters", "PUT", "/ab?restype=container", NAME),
    Row("container of 64 letters", "PUT", f"/{'a' * 64}?restype=container", NAME),
    Row("container that is a path", "PUT", "/a/b?restype=container", "400 InvalidUri"),
    Row("blob of a container in capitals", "GET", "/Witness/w", "400 InvalidResourceName"),
]

RANGES = [
    Row("range behind the end", "GET", "/witness/w", RANGE, {"Range": "bytes=26-"}),
    Row("range far behind", "GET", "/witness/w", RANGE, {"x-ms-range": f"bytes={2**62}-"}),
    Row("range backwards", "GET", "/witness/w", "200", {"Range": "bytes=5-1"}),
    Row("range of 30 digits", "GET", "/witness/w", "200", {"Range": f"bytes={'9' * 30}-"}),
    Row("1000 ranges", "GET", "/witness/w", "200", {"Range": "bytes=" + "0-," * 1000 + "0-"}),
    Row("range of other units", "GET", "/witness/w", "200", {"Range": "rows=0-1"}),
    Row("range of strange digits", "GET", "/witness/w", "200", {"Range": "bytes=\xb2-\xb3"}),
    Row(
        "checksum of perhaps",
        "GET",
        "/witness/w",
        HEADER,
        {"Range": "bytes=0-1", "x-ms-range-get-content-md5": "perhaps"},
    ),
    Row(
        "checksum of too much",
        "GET",
        "/witness/w",
        "400 OutOfRangeInput",
        {"Range": f"bytes=0-{2**22}", "x-ms-range-get-content-md5": "true"},
    ),
]

WRITES = [
    Row("no kind", "PUT", "/witness/n", MISSING, {}, b"x"),
    Row("unknown kind", "PUT", "/witness/n", HEADER, {"x-ms-blob-type": "Cloud"}, b"x"),
    Row("content of an append blob", "PUT", "/witness/n", HEADER, APPEND, b"x"),
    Row(
        "wrong MD5",
        "PUT",
        "/witness/n",
        "400 Md5Mismatch",
        BLOCK | {"Content-MD5": "A" * 22 + "=="},
        b"x",
    ),
    Row("short MD5", "PUT", "/witness/n", "400 InvalidMd5", BLOCK | {"Content-MD5": "AAAA"}, b"x"),
    Row(
        "MD5 that is none",
        "PUT",
        "/witness/n",
        "400 InvalidMd5",
        BLOCK | {"Content-MD5": "?"},
        b"x",
    ),
    Row(
        "kept MD5 that is wrong",
        "PUT",
        "/witness/n",
        "400 Md5Mismatch",
        BLOCK | {"x-ms-blob-content-md5": "A" * 22 + "=="},
        b"x",
    ),
    Row(
        "wrong CRC64",
        "PUT",
        "/witness/n",
        "400 Crc64Mismatch",
        BLOCK | {"x-ms-content-crc64": "AAAAAAAAAAA="},
        b"x",
    ),
    Row("short CRC64", "PUT", "/witness/n", HEADER, BLOCK | {"x-ms-content-crc64": "AAAA"}, b"x"),
    Row(
        "both checksums",
        "PUT",
        "/witness/n",
        HEADER,
        BLOCK | {"x-ms-content-crc64": "AAAAAAAAAAA=", "Content-MD5": "A" * 22 + "=="},
        b"x",
    ),
    Row("tier of nowhere", "PUT", "/witness/n", HEADER, BLOCK | {"x-ms-access-tier": "Lava"}, b"x"),
    Row(
        "other tier of nowhere",
        "PUT",
        "/witness/w?comp=tier",
        HEADER,
        {"x-ms-access-tier": "hot " * 99},
    ),
    Row("no tier", "PUT", "/witness/w?comp=tier", MISSING),
    Row(
        "priority of perhaps",
        "PUT",
        "/witness/w?comp=tier",
        HEADER,
        {"x-ms-access-tier": "Hot", "x-ms-rehydrate-priority": "perhaps"},
    ),
    Row(
        "11 tags",
        "PUT",
        "/witness/n",
        "400 TagsTooLarge",
        BLOCK | {"x-ms-tags": "&".join(f"k{n}=v" for n in range(11))},
        b"x",
    ),
    Row(
        "1000 tags",
        "PUT",
        "/witness/n",
        "400 TagsTooLarge",
        BLOCK | {"x-ms-tags": "&".join(f"k{n}=v" for n in range(1000))},
        b"x",
    ),
    Row(
        "tag twice",
        "PUT",
        "/witness/n",
        "400 DuplicateTagNames",
        BLOCK | {"x-ms-tags": "k=v&k=w"},
        b"x",
    ),
    Row(
        "tag of strange letters",
        "PUT",
        "/witness/n",
        "400 InvalidTag",
        BLOCK | {"x-ms-tags": "k=%00"},
        b"x",
    ),
    Row(
        "tag of no UTF-8",
        "PUT",
        "/witness/n",
        "400 InvalidTag",
        BLOCK | {"x-ms-tags": "k=%ff"},
        b"x",
    ),
    Row(
        "tag without a name",
        "PUT",
        "/witness/n",
        "400 EmptyTagName",
        BLOCK | {"x-ms-tags": "=v"},
        b"x",
    ),
    Row(
        "metadata with a dash",
        "PUT",
        "/witness/n",
        "400 InvalidMetadata",
        BLOCK | {"x-ms-meta-a-b": "1"},
        b"x",
    ),
    Row(
        "metadata with a digit first",
        "PUT",
        "/witness/n",
        "400 InvalidMetadata",
        BLOCK | {"x-ms-meta-1a": "1"},
        b"x",
    ),
    Row(
        "metadata without a name",
        "PUT",
        "/witness/n",
        "400 EmptyMetadataKey",
        BLOCK | {"x-ms-meta-": "1"},
        b"x",
    ),
    Row(
        "metadata of 9 KiB",
        "PUT",
        "/witness/n",
        "400 MetadataTooLarge",
        BLOCK | {"x-ms-meta-a": "1" * 9216},
        b"x",
    ),
    Row(
        "lease of nobody",
        "PUT",
        "/witness/n",
        "412 LeaseNotPresentWithBlobOperation",
        BLOCK | {"x-ms-lease-id": LEASE},
        b"x",
    ),
    Row("lease that is none", "PUT", "/witness/w", HEADER, BLOCK | {"x-ms-lease-id": "mine"}, b"x"),
    Row("leased without a lease", "PUT", "/witness/l", "412 LeaseIdMissing", BLOCK, b"x"),
    Row(
        "snapshot that is written",
        "PUT",
        "/witness/w?snapshot=2024-01-01T00:00:00.0000000Z",
        QUERY,
        BLOCK,
        b"x",
    ),
    Row(
        "key of a customer",
        "PUT",
        "/witness/n",
        "501 NotImplemented",
        BLOCK | {"x-ms-encryption-key": "AA=="},
        b"x",
    ),
    Row(
        "structured body",
        "PUT",
        "/witness/n",
        "501 NotImplemented",
        BLOCK | {"x-ms-structured-body": "XSM/1.0; properties=crc64"},
        b"x",
    ),
]

BLOCKS = [
    Row(
        "block without an id",
        "PUT",
        "/witness/staged?comp=block",
        "400 MissingRequiredQueryParameter",
        {},
        b"x",
    ),
    Row(
        "block id that is no base64",
        "PUT",
        "/witness/staged?comp=block&blockid=%3F%3F",
        QUERY,
        {},
        b"x",
    ),
    Row(
        "block id of 65 bytes",
        "PUT",
        f"/witness/staged?comp=block&blockid={'QUFB' * 21}QUFB",
        QUERY,
        {},
        b"x",
    ),
    Row(
        "block id of another length",
        "PUT",
        "/witness/staged?comp=block&blockid=QUFBQUFB",
        "400 InvalidBlobOrBlock",
        {},
        b"x",
    ),
    Row(
        "block id twice",
        "PUT",
        "/witness/staged?comp=block&blockid=QQ%3D%3D&blockid=Qg%3D%3D",
        QUERY,
        {},
        b"x",
    ),
    Row("empty block", "PUT", "/witness/staged?comp=block&blockid=QQ%3D%3D", HEADER),
    Row(
        "block of an append blob",
        "PUT",
        "/witness/a?comp=block&blockid=QQ%3D%3D",
        "409 InvalidBlobType",
        {},
        b"x",
    ),
    Row("list of no XML", "PUT", "/witness/staged?comp=blocklist", XML, {}, b"<"),
    Row("list of nothing", "PUT", "/witness/staged?comp=blocklist", XML),
    Row("list of bytes", "PUT", "/witness/staged?comp=blocklist", XML, {}, bytes(range(256))),
    Row(
        "list that laughs",
        "PUT",
        "/witness/staged?comp=blocklist",
        XML,
        {},
        LAUGHS + _blocks("<Latest>&c;</Latest>"),
    ),
    Row(
        "list from a file",
        "PUT",
        "/witness/staged?comp=blocklist",
        XML,
        {},
        '<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]>' + _blocks("<Latest>&f;</Latest>"),
    ),
    Row("list of another root", "PUT", "/witness/staged?comp=blocklist", XML, {}, "<Blocks />"),
    Row(
        "list of other elements",
        "PUT",
        "/witness/staged?comp=blocklist",
        XML,
        {},
        _blocks("<Newest>QQ==</Newest>"),
    ),
    Row(
        "list of nested elements",
        "PUT",
        "/witness/staged?comp=blocklist",
        XML,
        {},
        _blocks("<Latest><Latest>QQ==</Latest></Latest>"),
    ),
    Row(
        "list of 100,000 levels", "PUT", "/witness/staged?comp=blocklist", XML, {}, "<a>" * 100_000
    ),
    Row(
        "list of an unknown block",
        "PUT",
        "/witness/staged?comp=blocklist",
        "400 InvalidBlockList",
        {},
        _blocks("<Latest>Qg==</Latest>"),
    ),
    Row(
        "list of a bad id",
        "PUT",
        "/witness/staged?comp=blocklist",
        "400 InvalidBlockList",
        {},
        _blocks("<Latest>?</Latest>"),
    ),
    Row(
        "list of 50,001 blocks",
        "PUT",
        "/witness/staged?comp=blocklist",
        "400 BlockListTooLong",
        {},
        _blocks("<Latest>QQ==</Latest>" * 50_001),
    ),
    Row(
        "list of 17 MiB",
        "PUT",
        "/witness/staged?comp=blocklist",
        "413 RequestBodyTooLarge",
        {},
        b"x" * (17 * 2**20),
    ),
    Row(
        "list with a wrong MD5",
        "PUT",
        "/witness/staged?comp=blocklist",
        "400 Md5Mismatch",
        {"Content-MD5": "A" * 22 + "=="},
        _blocks("<Latest>QQ==</Latest>"),
    ),
    Row("kind of list", "GET", "/witness/staged?comp=blocklist&blocklisttype=some", QUERY),
]

APPENDS_AND_PAGES = [
    Row(
        "append to a block blob",
        "PUT",
        "/witness/w?comp=appendblock",
        "409 InvalidBlobType",
        {},
        b"x",
    ),
    Row("append of nothing", "PUT", "/witness/a?comp=appendblock", HEADER),
    Row(
        "append elsewhere",
        "PUT",
        "/witness/a?comp=appendblock",
        "412 AppendPositionConditionNotMet",
        {"x-ms-blob-condition-appendpos": "1"},
        b"x",
    ),
    Row(
        "append at minus one",
        "PUT",
        "/witness/a?comp=appendblock",
        HEADER,
        {"x-ms-blob-condition-appendpos": "-1"},
        b"x",
    ),
    Row(
        "append beyond a size",
        "PUT",
        "/witness/a?comp=appendblock",
        "412 MaxBlobSizeConditionNotMet",
        {"x-ms-blob-condition-maxsize": "2"},
        b"x",
    ),
    Row("page blob without a length", "PUT", "/witness/n", MISSING, PAGE),
    Row(
        "page blob of 100 bytes",
        "PUT",
        "/witness/n",
        HEADER,
        PAGE | {"x-ms-blob-content-length": "100"},
    ),
    Row(
        "page blob of minus 512",
        "PUT",
        "/witness/n",
        HEADER,
        PAGE | {"x-ms-blob-content-length": "-512"},
    ),
    Row(
        "page blob of 9 TiB",
        "PUT",
        "/witness/n",
        HEADER,
        PAGE | {"x-ms-blob-content-length": str(9 * 2**40)},
    ),
    Row(
        "page blob of 30 digits",
        "PUT",
        "/witness/n",
        HEADER,
        PAGE | {"x-ms-blob-content-length": "5" * 30},
    ),
    Row(
        "pages without a range",
        "PUT",
        "/witness/p?comp=page",
        MISSING,
        {"x-ms-page-write": "update"},
        bytes(512),
    ),
    Row(
        "pages without a verb",
        "PUT",
        "/witness/p?comp=page",
        MISSING,
        {"x-ms-range": "bytes=0-511"},
        bytes(512),
    ),
    Row(
        "pages with another verb",
        "PUT",
        "/witness/p?comp=page",
        HEADER,
        {"x-ms-range": "bytes=0-511", "x-ms-page-write": "burn"},
        bytes(512),
    ),
    Row(
        "half a page",
        "PUT",
        "/witness/p?comp=page",
        "416 InvalidPageRange",
        {"x-ms-range": "bytes=0-255", "x-ms-page-write": "update"},
        bytes(256),
    ),
    Row(
        "pages without an end",
        "PUT",
        "/witness/p?comp=page",
        HEADER,
        {"x-ms-range": "bytes=0-", "x-ms-page-write": "update"},
        bytes(512),
    ),
    Row(
        "pages behind the end",
        "PUT",
        "/witness/p?comp=page",
        "416 InvalidPageRange",
        {"x-ms-range": "bytes=1024-1535", "x-ms-page-write": "update"},
        bytes(512),
    ),
    Row(
        "fewer bytes than the pages",
        "PUT",
        "/witness/p?comp=page",
        "416 InvalidPageRange",
        {"x-ms-range": "bytes=0-1023", "x-ms-page-write": "update"},
        bytes(512),
    ),
    Row(
        "pages of a block blob",
        "PUT",
        "/witness/w?comp=page",
        "409 InvalidBlobType",
        {"x-ms-range": "bytes=0-511", "x-ms-page-write": "clear"},
    ),
    Row(
        "resize to half a page",
        "PUT",
        "/witness/p?comp=properties",
        HEADER,
        {"x-ms-blob-content-length": "700"},
    ),
    Row(
        "number by another verb",
        "PUT",
        "/witness/p?comp=properties",
        HEADER,
        {"x-ms-sequence-number-action": "halve"},
    ),
    Row(
        "differences from a text",
        "GET",
        "/witness/p?comp=pagelist&prevsnapshot=x",
        "400 InvalidQueryParameterValue",
    ),
    Row(
        "differences from no snapshot",
        "GET",
        "/witness/p?comp=pagelist&prevsnapshot=2020-01-01T00:00:00.0000000Z",
        "409 PreviousSnapshotNotFound",
    ),
    Row(
        "differences of managed disks",
        "GET",
        "/witness/p?comp=pagelist",
        "501 NotImplemented",
        headers={"x-ms-previous-snapshot-url": "http://other/disk?snapshot=x"},
    ),
]

LEASES = [
    Row("no action", "PUT", "/witness/w?comp=lease", MISSING),
    Row("another action", "PUT", "/witness/w?comp=lease", HEADER, {"x-ms-lease-action": "steal"}),
    *(
        Row(
            f"lease of {text} seconds",
            "PUT",
            "/witness/w?comp=lease",
            HEADER,
            {"x-ms-lease-action": "acquire", "x-ms-lease-duration": text},
        )
        for text in ("14", "61", "0", "-2", "ten", "1e1", "9" * 40)
    ),
    Row(
        "lease without a duration",
        "PUT",
        "/witness/w?comp=lease",
        MISSING,
        {"x-ms-lease-action": "acquire"},
    ),
    Row(
        "proposed id that is none",
        "PUT",
        "/witness/w?comp=lease",
        HEADER,
        {
            "x-ms-lease-action": "acquire",
            "x-ms-lease-duration": "15",
            "x-ms-proposed-lease-id": "{}",
        },
    ),
    Row(
        "renewal of nothing",
        "PUT",
        "/witness/w?comp=lease",
        "409 LeaseNotPresentWithLeaseOperation",
        {"x-ms-lease-action": "renew", "x-ms-lease-id": LEASE},
    ),
    Row(
        "renewal without an id",
        "PUT",
        "/witness/l?comp=lease",
        MISSING,
        {"x-ms-lease-action": "renew"},
    ),
    Row(
        "release of another",
        "PUT",
        "/witness/l?comp=lease",
        "409 LeaseIdMismatchWithLeaseOperation",
        {"x-ms-lease-action": "release", "x-ms-lease-id": LEASE.replace("1", "2")},
    ),
    Row(
        "change without a new id",
        "PUT",
        "/witness/l?comp=lease",
        MISSING,
        {"x-ms-lease-action": "change", "x-ms-lease-id": LEASE},
    ),
    Row(
        "break in 61 seconds",
        "PUT",
        "/witness/l?comp=lease",
        HEADER,
        {"x-ms-lease-action": "break", "x-ms-lease-break-period": "61"},
    ),
    Row(
        "break in the past",
        "PUT",
        "/witness/l?comp=lease",
        HEADER,
        {"x-ms-lease-action": "break", "x-ms-lease-break-period": "-1"},
    ),
    Row(
        "second lease",
        "PUT",
        "/witness/l?comp=lease",
        "409 LeaseAlreadyPresent",
        {"x-ms-lease-action": "acquire", "x-ms-lease-duration": "-1"},
    ),
    Row("delete of what is leased", "DELETE", "/witness/l", "412 LeaseIdMissing"),
]

CONDITIONS = [
    Row("date that is none", "GET", "/witness/w", HEADER, {"If-Modified-Since": "yesterday"}),
    Row(
        "date of a wrong day",
        "GET",
        "/witness/w",
        HEADER,
        {"If-Modified-Since": "Mon, 32 Jan 2024 00:00:00 GMT"},
    ),
    Row(
        "etag of nothing",
        "PUT",
        "/witness/w?comp=metadata",
        "412 ConditionNotMet",
        {"If-Match": '"'},
    ),
    Row(
        "10,000 etags",
        "GET",
        "/witness/w",
        "412 ConditionNotMet",
        {"If-Match": ",".join(['"x"'] * 5000)},
    ),
    Row(
        "conditions that exclude",
        "PUT",
        "/witness/w?comp=metadata",
        "400 MultipleConditionHeadersNotSupported",
        {"If-Match": "*", "If-None-Match": "*"},
    ),
    Row(
        "read of what is not there",
        "GET",
        "/witness/w",
        "400 UnsatisfiableCondition",
        {"If-None-Match": "*"},
    ),
    Row(
        "etag of a container",
        "DELETE",
        "/witness?restype=container",
        "400 ConditionHeadersNotSupported",
        {"If-Match": "*"},
    ),
    Row("tags that are none", "GET", "/witness/w", HEADER, {"x-ms-if-tags": "drop table"}),
    Row("tags of 32 levels", "GET", "/witness/w", HEADER, {"x-ms-if-tags": "(" * 5000}),
    Row("tags without an end", "GET", "/witness/w", HEADER, {"x-ms-if-tags": '"k" = \'v'}),
    Row("tags of many words", "GET", "/witness/w", HEADER, {"x-ms-if-tags": "NOT " * 2500}),
]

DOCUMENTS = [
    Row(
        "tags with a wrong MD5",
        "PUT",
        "/witness/w?comp=tags",
        "400 Md5Mismatch",
        {"Content-MD5": "A" * 22 + "=="},
        _tag_set(("k", "w")),
    ),
    Row(
        "tags of a blob that changed",
        "PUT",
        "/witness/w?comp=tags",
        "412 ConditionNotMet",
        {"x-ms-blob-if-match": '"x"'},
        _tag_set(("k", "w")),
    ),
    Row(
        "tags of a blob that is old",
        "GET",
        "/witness/w?comp=tags",
        "412 ConditionNotMet",
        {"x-ms-blob-if-modified-since": "Mon, 01 Jan 2035 00:00:00 GMT"},
    ),
    Row("tags of no XML", "PUT", "/witness/w?comp=tags", XML, {}, "k=v"),
    Row("tags that laugh", "PUT", "/witness/w?comp=tags", XML, {}, LAUGHS + _tag_set(("k", "&c;"))),
    Row(
        "11 tags in a document",
        "PUT",
        "/witness/w?comp=tags",
        "400 TagsTooLarge",
        {},
        _tag_set(*((f"k{n}", "v") for n in range(11))),
    ),
    Row(
        "tag twice in a document",
        "PUT",
        "/witness/w?comp=tags",
        "400 DuplicateTagNames",
        {},
        _tag_set(("k", "v"), ("k", "w")),
    ),
    Row(
        "tag without a value",
        "PUT",
        "/witness/w?comp=tags",
        XML,
        {},
        "<Tags><TagSet><Tag><Key>k</Key></Tag></TagSet></Tags>",
    ),
    Row(
        "two sets of tags",
        "PUT",
        "/witness/w?comp=tags",
        XML,
        {},
        "<Tags><TagSet /><TagSet /></Tags>",
    ),
    Row(
        "tags of 65 KiB", "PUT", "/witness/w?comp=tags", "413 RequestBodyTooLarge", {}, " " * 66_000
    ),
    Row("6 policies", "PUT", "/witness?restype=container&comp=acl", XML, {}, _policies(6)),
    Row(
        "policies that laugh",
        "PUT",
        "/witness?restype=container&comp=acl",
        XML,
        {},
        LAUGHS + _policies(1),
    ),
    Row("policies of bytes", "PUT", "/witness?restype=container&comp=acl", XML, {}, b"\xff\xfe<"),
    Row(
        "public to some",
        "PUT",
        "/witness?restype=container&comp=acl",
        HEADER,
        {"x-ms-blob-public-access": "friends"},
    ),
    Row(
        "properties that laugh",
        "PUT",
        "/?restype=service&comp=properties",
        XML,
        {},
        LAUGHS + "<StorageServiceProperties />",
    ),
    Row(
        "batch without a boundary",
        "POST",
        "/?comp=batch",
        "400 InvalidInput",
        {"Content-Type": "multipart/mixed"},
        b"x",
    ),
    Row(
        "batch of nothing",
        "POST",
        "/?comp=batch",
        "400 InvalidInput",
        {"Content-Type": "multipart/mixed; boundary=b"},
        b"--b--\r\n",
    ),
    Row(
        "batch of 5 MiB",
        "POST",
        "/?comp=batch",
        "413 RequestBodyTooLarge",
        {"Content-Type": "multipart/mixed; boundary=b"},
        bytes(5 * 2**20),
    ),
]

COPIES = [
    Row("source that is no address", "PUT", "/witness/n", HEADER, {"x-ms-copy-source": "w"}),
    Row(
        "source of another scheme",
        "PUT",
        "/witness/n",
        HEADER,
        {"x-ms-copy-source": "file:///etc/passwd"},
    ),
    Row(
        "source with half a host",
        "PUT",
        "/witness/n",
        HEADER,
        {"x-ms-copy-source": "http://[::1/a"},
    ),
    Row(
        "source far away",
        "PUT",
        "/witness/n",
        "403 CannotVerifyCopySource",
        {"x-ms-copy-source": "http://169.254.169.254/latest/meta-data"},
    ),
    Row(
        "abort without an id",
        "PUT",
        "/witness/w?comp=copy",
        "400 MissingRequiredQueryParameter",
        {"x-ms-copy-action": "abort"},
    ),
    Row(
        "abort of nothing",
        "PUT",
        f"/witness/w?comp=copy&copyid={LEASE}",
        "409 NoPendingCopyOperation",
        {"x-ms-copy-action": "abort"},
    ),
    Row(
        "copy that burns",
        "PUT",
        f"/witness/w?comp=copy&copyid={LEASE}",
        HEADER,
        {"x-ms-copy-action": "burn"},
    ),
]

QUERIES = [
    *(
        Row(
            f"page of {text}",
            "GET",
            f"/witness?restype=container&comp=list&maxresults={text}",
            expected,
        )
        for text, expected in (
            ("0", "400 OutOfRangeQueryParameterValue"),
            ("-1", "400 OutOfRangeQueryParameterValue"),
            ("abc", QUERY),
            ("1e3", QUERY),
            ("9" * 30, QUERY),
            ("--5", QUERY),
            ("%C2%B2", QUERY),
        )
    ),
    Row("marker of nobody", "GET", "/witness?restype=container&comp=list&marker=!", QUERY),
    Row("marker of bytes", "GET", "/witness?restype=container&comp=list&marker=%00", QUERY),
    Row(
        "marker of something else", "GET", "/witness?restype=container&comp=list&marker=kgEC", QUERY
    ),
    Row("marker of the containers", "GET", "/?comp=list&marker=nobody", QUERY),
    Row(
        "prefix of half a pair",
        "GET",
        "/witness?restype=container&comp=list&prefix=%ED%A0%80",
        "400 InvalidInput",
    ),
    Row("comp of nothing we know", "GET", "/witness/w?comp=horoscope", QUERY),
    Row("comp twice", "GET", "/witness?restype=container&comp=list&comp=acl", QUERY),
    Row("restype of nothing we know", "GET", "/witness?restype=planet&comp=list", QUERY),
    Row("snapshot that is no time", "GET", "/witness/w?snapshot=now", QUERY),
    Row("snapshot of no day", "GET", "/witness/w?snapshot=2024-02-30T00:00:00.0000000Z", QUERY),
    Row(
        "snapshot of the year 1",
        "GET",
        "/witness/w?snapshot=0001-01-01T00:00:00.0000000Z",
        "404 BlobNotFound",
    ),
    Row(
        "version of nobody",
        "GET",
        "/witness/w?versionid=2024-01-01T00:00:00.0000000Z",
        "404 BlobNotFound",
    ),
    Row(
        "delete of a version",
        "DELETE",
        "/witness/a?versionid=2024-01-01T00:00:00.0000000Z",
        "404 BlobNotFound",
    ),
    Row(
        "end of a list",
        "GET",
        "/witness?restype=container&comp=list&endBefore=x",
        "501 NotImplemented",
    ),
    Row("another verb", "POST", "/witness/w", "405 UnsupportedHttpVerb"),
    Row("a verb of nobody", "PATCH", "/witness/w", "405 UnsupportedHttpVerb"),
    Row(
        "delete of a list",
        "DELETE",
        "/witness?restype=container&comp=list",
        "405 UnsupportedHttpVerb",
    ),
    Row(
        "delete with other snapshots",
        "DELETE",
        "/witness/w",
        HEADER,
        {"x-ms-delete-snapshots": "some"},
    ),
    Row(
        "a deleted container without its version",
        "PUT",
        "/witness?restype=container&comp=undelete",
        MISSING,
    ),
    Row(
        "a deleted container under another name",
        "PUT",
        "/witness?restype=container&comp=undelete",
        "400 InvalidHeaderValue",
        headers={
            "x-ms-deleted-container-name": "other",
            "x-ms-deleted-container-version": "1",
        },
    ),
    Row(
        "a deleted container that is not there",
        "PUT",
        "/witness?restype=container&comp=undelete",
        "404 ContainerNotFound",
        headers={
            "x-ms-deleted-container-name": "witness",
            "x-ms-deleted-container-version": "!" * 5000,
        },
    ),
    Row(
        "the stored name of a deleted container",
        "GET",
        "/witness!0000000000000000?restype=container",
        "400 InvalidResourceName",
    ),
    Row(
        "a blob in the stored name of a deleted container",
        "GET",
        "/witness%210000000000000000/w",
        "400 InvalidResourceName",
    ),
    Row("find by a word", "GET", "/?comp=blobs&where=a", "400 InvalidQueryParameterValue"),
    Row("find by nothing", "GET", "/?comp=blobs", "400 MissingRequiredQueryParameter"),
    Row(
        "find by a long text",
        "GET",
        f"/?comp=blobs&where={'a' * 3000}",
        "400 InvalidQueryParameterValue",
    ),
    Row(
        "find by OR",
        "GET",
        "/?comp=blobs&where=a%3D'1'%20OR%20b%3D'1'",
        "400 InvalidQueryParameterValue",
    ),
    Row(
        "find from no marker",
        "GET",
        "/?comp=blobs&where=a%3D'1'&marker=x",
        "400 InvalidQueryParameterValue",
    ),
    Row(
        "a version that is not a time",
        "GET",
        "/witness/w?versionid=x",
        "400 InvalidQueryParameterValue",
    ),
    Row(
        "a version and a snapshot",
        "GET",
        "/witness/w?versionid=2020-01-01T00:00:00Z&snapshot=2020-01-01T00:00:00Z",
        "400 InvalidQueryParameterValue",
    ),
    Row(
        "a kind of delete",
        "DELETE",
        "/witness/w?deletetype=temporary",
        "400 InvalidQueryParameterValue",
    ),
    Row(
        "an encryption scope with blanks",
        "PUT",
        "/witness/new",
        "400 InvalidHeaderValue",
        headers={"x-ms-encryption-scope": "a b", "x-ms-blob-type": "BlockBlob"},
    ),
]

TABLE = [
    *NAMES,
    *RANGES,
    *WRITES,
    *BLOCKS,
    *APPENDS_AND_PAGES,
    *LEASES,
    *CONDITIONS,
    *DOCUMENTS,
    *COPIES,
    *QUERIES,
]
