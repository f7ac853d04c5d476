"""The XML documents of the blob service: listings, block lists, page ranges, tags. Pure."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from urllib.parse import quote
from xml.etree.ElementTree import Element

from partita.blobs.rules import limits
from partita.blobs.rules.model import (
    Blob,
    BlobPrefix,
    Block,
    BlockChoice,
    BlockList,
    Container,
    ContainerListing,
    FoundBlobs,
    LeaseFacts,
    Listing,
    PageRanges,
)
from partita.blobs.rules.tags import duplicate_tag
from partita.refusals import too_many_blocks_in_list
from partita.service.blobs.headers import base64
from partita.service.formats.xml_text import (
    document,
    element,
    escape,
    escape_attribute,
    is_legal,
    name_of,
    not_valid,
    parse_xml,
    text_element,
    text_of,
)
from partita.service.http.message_bytes import http_date

BLOCK_LIST_BYTES_MAX = 8 * 1024 * 1024
"""A list of 50,000 blocks with the longest names, on lines of their own."""
TAGS_BYTES_MAX = 64 * 1024
INFERRED_TIER = "Hot"
SMART_TIER = "Smart"
"""The Azure service moves such a blob between tiers; here it stays in its tier."""
ENCRYPTION_SCOPE = "$account-encryption-key"

_INFERRED_OF_SNAPSHOT = f"<AccessTier>{INFERRED_TIER}</AccessTier>"
_INFERRED = f"{_INFERRED_OF_SNAPSHOT}<AccessTierInferred>true</AccessTierInferred>"
_DELETED = "<Deleted>true</Deleted>"
_WHICH = ("Committed", "Uncommitted", "Latest")
_PLAIN_ROOT = re.compile(
    rb"""(?:\xef\xbb\xbf)?\s*(?:<\?xml[ ][^<>?&]{1,100}\?>)?\s*
    <BlockList(?:\s+xmlns(?::\w{1,16})?=(?:"[^"<>&]{0,200}"|'[^'<>&]{0,200}')){0,4}\s*>""",
    re.VERBOSE,
)
_PLAIN_BLOCK = re.compile(rb"\s*+<(Committed|Uncommitted|Latest)>([\t\n\r -%'-;=?-~]*+)</(?:\1)>")
_PLAIN_END = re.compile(rb"\s*+</BlockList>\s*+")


# In


def parse_block_list(body: bytes) -> Iterator[BlockChoice]:
    """Yield the blocks to commit, in order.

    The usual list, which may be long, is read without a parser, and as far as it is asked for. A
    list with any other XML in it must be as short as the other documents.
    """
    root = _PLAIN_ROOT.match(body)
    if root is None:
        yield from _parse_unusual_list(body)
        return
    place = root.end()
    for count in itertools.count():
        block = _PLAIN_BLOCK.match(body, place)
        if block is None:
            break
        if count == limits.BLOCKS_COMMITTED_MAX:
            raise too_many_blocks_in_list()
        place = block.end()
        which, text = block.groups()
        yield BlockChoice(which.decode(), text.decode().strip())  # type: ignore[arg-type]  # one of the pattern
    if not _PLAIN_END.fullmatch(body, place):
        yield from itertools.islice(_parse_unusual_list(body), count, None)


def _parse_unusual_list(body: bytes) -> Iterator[BlockChoice]:
    root = parse_xml(body, "BlockList")
    return map(_choice, root)


def _choice(child: Element) -> BlockChoice:
    which = name_of(child)
    if which not in _WHICH:
        raise not_valid(hint="Use Committed, Uncommitted or Latest for a block.")
    return BlockChoice(which, text_of(child).strip())  # type: ignore[arg-type]  # checked above


def parse_tags(body: bytes) -> dict[str, str]:
    """Parse the tags of a blob."""
    root = parse_xml(body, "Tags", bytes_max=TAGS_BYTES_MAX)
    sets = list(root)
    if len(sets) != 1 or name_of(sets[0]) != "TagSet":
        raise not_valid(hint="Put one TagSet into Tags.")
    tags: dict[str, str] = {}
    for child in sets[0]:
        members = {name_of(member): text_of(member) for member in child}
        if name_of(child) != "Tag" or members.keys() != {"Key", "Value"}:
            raise not_valid(hint="Give each Tag one Key and one Value.")
        if members["Key"] in tags:
            raise duplicate_tag()
        tags[members["Key"]] = members["Value"]
    return tags


# Out


def print_tags(tags: Mapping[str, str]) -> bytes:
    return document("Tags", _tag_set(tags))


def _tag_set(tags: Mapping[str, str]) -> str:
    pairs = (
        element("Tag", text_element("Key", key) + text_element("Value", tags[key]))
        for key in sorted(tags)
    )
    return element("TagSet", "".join(pairs))


def print_block_list(blocks: BlockList, wanted: str) -> bytes:
    """Print the requested lists: committed, uncommitted or all."""
    content = ""
    if wanted in ("committed", "all"):
        content += element("CommittedBlocks", _blocks(blocks.committed))
    if wanted in ("uncommitted", "all"):
        content += element("UncommittedBlocks", _blocks(blocks.uncommitted))
    return document("BlockList", content)


def _blocks(blocks: Sequence[Block]) -> str:
    return "".join(
        f"<Block><Name>{block.id}</Name><Size>{block.size}</Size></Block>" for block in blocks
    )


def print_page_list(pages: PageRanges) -> bytes:
    content = "".join(
        f"<ClearRange><Start>{page.first}</Start><End>{page.last}</End></ClearRange>"
        if page.is_cleared
        else f"<PageRange><Start>{page.first}</Start><End>{page.last}</End></PageRange>"
        for page in pages.ranges
    )
    if pages.next_first is not None:
        content += text_element("NextMarker", str(pages.next_first))
    return document("PageList", content)


def print_containers(
    listing: ContainerListing, endpoint: str, asked: Mapping[str, str], next_marker: str
) -> bytes:
    """Print containers; `asked` are the parameters to repeat, by element."""
    shows_metadata = "metadata" in asked.get("include", "").lower().split(",")
    items = "".join(_container(item, shows_metadata=shows_metadata) for item in listing.items)
    content = _repeated(asked, ("Prefix", "Marker", "MaxResults")) + element("Containers", items)
    content += text_element("NextMarker", next_marker)
    return document("EnumerationResults", content, _attributes(endpoint))


def _container(container: Container, *, shows_metadata: bool) -> str:
    properties = text_element("Last-Modified", http_date(container.changed_at))
    properties += text_element("Etag", f'"{container.etag}"')
    properties += _lease(container.lease)
    if container.access is not None:
        properties += text_element("PublicAccess", container.access)
    scope = container.encryption_scope or ENCRYPTION_SCOPE
    properties += text_element("DefaultEncryptionScope", scope)
    properties += text_element(
        "DenyEncryptionScopeOverride", str(container.denies_other_scopes).lower()
    )
    for name in (
        "HasImmutabilityPolicy",
        "HasLegalHold",
        "ImmutableStorageWithVersioningEnabled",
    ):
        properties += text_element(name, "false")
    content = text_element("Name", container.name)
    if container.version is not None:
        content += _DELETED + text_element("Version", container.version)
        properties += _deleted_properties(container)
    content += element("Properties", properties)
    if shows_metadata:
        content += _metadata(container.metadata)
    return element("Container", content)


def print_blobs(listing: Listing, endpoint: str, container: str, asked: Mapping[str, str]) -> bytes:
    """Print blobs and prefixes; `asked` are the parameters to repeat, by element."""
    include = frozenset(asked.get("include", "").lower().split(","))
    items = "".join(
        element("BlobPrefix", _name(item.name))
        if isinstance(item, BlobPrefix)
        else _blob(item, include)
        for item in listing.items
    )
    content = _repeated(asked, ("Prefix", "Marker", "MaxResults", "Delimiter"))
    content += element("Blobs", items) + text_element("NextMarker", listing.next_marker or "")
    return document("EnumerationResults", content, _attributes(endpoint, container))


def _blob(blob: Blob, include: frozenset[str]) -> str:
    # A page has thousands of blobs: build one text per blob, not one call per element.
    snapshot = "" if blob.snapshot is None else f"<Snapshot>{blob.snapshot}</Snapshot>"
    if blob.deleted_at is not None or blob.version is not None:
        snapshot = _kept(blob, include) + snapshot
    rest = ""
    if "metadata" in include:
        rest = _metadata(blob.metadata)
    if "tags" in include and blob.tags:
        rest += element("Tags", _tag_set(blob.tags))
    return (
        f"<Blob>{_name(blob.name)}{snapshot}"
        f"<Properties>{_blob_properties(blob, include)}</Properties>{rest}<OrMetadata /></Blob>"
    )


def _kept(blob: Blob, include: frozenset[str]) -> str:
    """Return the elements of a blob that is a version, or deleted."""
    text = _DELETED if blob.deleted_at is not None or blob.has_only_versions else ""
    if blob.version is not None and not include.isdisjoint(("versions", "deletedwithversions")):
        text += text_element("VersionId", blob.version)
        if blob.is_current:
            text += text_element("IsCurrentVersion", "true")
    if blob.has_only_versions:
        text += text_element("HasVersionsOnly", "true")
    return text


def _deleted_properties(deleted: Blob | Container) -> str:
    deleted_at = http_date(deleted.deleted_at or 0)
    return text_element("DeletedTime", deleted_at) + text_element(
        "RemainingRetentionDays", str(deleted.days_left or 0)
    )


def print_found(found: FoundBlobs, endpoint: str, asked: Mapping[str, str]) -> bytes:
    """Print the blobs of a search; `asked` are the parameters to repeat, by element."""
    items = "".join(
        element(
            "Blob",
            _name(each.name)
            + text_element("ContainerName", each.container)
            + (
                ""
                if each.version is None
                else text_element("VersionId", each.version)
                + text_element("IsCurrentVersion", "true")
            )
            + element("Tags", _tag_set(each.tags)),
        )
        for each in found.items
    )
    content = _repeated(asked, ("Where", "MaxResults", "Marker")) + element("Blobs", items)
    content += text_element("NextMarker", found.next_marker or "")
    return document("EnumerationResults", content, _attributes(endpoint))


def _blob_properties(blob: Blob, include: frozenset[str]) -> str:
    headers = blob.headers
    described = _described(headers.content_type, headers.content_encoding, headers.content_language)
    handled = _handled(headers.cache_control, headers.content_disposition)
    front = (
        f"<Creation-Time>{http_date(blob.created_at)}</Creation-Time>"
        f"<Last-Modified>{http_date(blob.changed_at)}</Last-Modified>"
        f"<Etag>{blob.etag}</Etag><Content-Length>{blob.length}</Content-Length>"
        f"{described}<Content-CRC64 />"
        f"{element('Content-MD5', base64(headers.content_md5 or b''))}{handled}"
    )
    parts = [front]
    if blob.kind == "PageBlob":
        parts.append(text_element("x-ms-blob-sequence-number", str(blob.sequence_number)))
    parts.append(f"<BlobType>{blob.kind}</BlobType>")
    parts.append(_tier(blob))
    if blob.is_current:
        parts.append(_lease(blob.lease))
    if "copy" in include:
        parts += _copy(blob)
    if blob.is_sealed:
        parts.append("<Sealed>true</Sealed>")
    parts.append("<ServerEncrypted>true</ServerEncrypted>")
    if blob.encryption_scope is not None:
        parts.append(text_element("EncryptionScope", blob.encryption_scope))
    if blob.deleted_at is not None:
        parts.append(_deleted_properties(blob))
    if blob.tags:
        parts.append(f"<TagCount>{len(blob.tags)}</TagCount>")
    return "".join(parts)


@lru_cache(maxsize=256)
def _described(kind: str | None, encoding: str | None, language: str | None) -> str:
    return (
        text_element("Content-Type", kind or "")
        + text_element("Content-Encoding", encoding or "")
        + text_element("Content-Language", language or "")
    )


@lru_cache(maxsize=256)
def _handled(cache_control: str | None, disposition: str | None) -> str:
    return text_element("Cache-Control", cache_control or "") + text_element(
        "Content-Disposition", disposition or ""
    )


def _tier(blob: Blob) -> str:
    if blob.tier is None:
        if blob.kind != "BlockBlob":
            return ""
        return _INFERRED if blob.is_current else _INFERRED_OF_SNAPSHOT
    text = text_element("AccessTier", blob.tier)
    if blob.tier == SMART_TIER:
        text += text_element("SmartAccessTier", INFERRED_TIER)
    if blob.tier_changed_at is not None:
        text += text_element("AccessTierChangeTime", http_date(blob.tier_changed_at))
    if blob.rehydrates_to is not None:
        text += text_element("ArchiveStatus", archive_status(blob.rehydrates_to))
        text += text_element("RehydratePriority", blob.rehydrate_priority or "")
    return text


def archive_status(tier: str) -> str:
    """Return the archive status of a blob that is being rehydrated."""
    return f"rehydrate-pending-to-{tier.lower()}"


def _copy(blob: Blob) -> list[str]:
    copy = blob.copy
    if copy is None:
        return []
    return [
        text_element("CopyId", copy.id),
        text_element("CopySource", copy.source),
        text_element("CopyStatus", copy.status),
        text_element("CopyProgress", f"{copy.bytes_copied}/{copy.bytes_total}"),
        text_element("CopyCompletionTime", http_date(copy.completed_at)),
    ]


@lru_cache(maxsize=16)
def _lease(lease: LeaseFacts) -> str:
    text = text_element("LeaseStatus", lease.status) + text_element("LeaseState", lease.state)
    if lease.duration is not None:
        text += text_element("LeaseDuration", lease.duration)
    return text


def _metadata(metadata: Mapping[str, str]) -> str:
    return element(
        "Metadata", "".join(text_element(name, value) for name, value in metadata.items())
    )


def _name(name: str) -> str:
    if is_legal(name):
        return f"<Name>{escape(name)}</Name>"
    return f'<Name Encoded="true">{quote(name, safe="/")}</Name>'


def _repeated(asked: Mapping[str, str], names: tuple[str, ...]) -> str:
    return "".join(
        text_element(name, asked[name.lower()]) for name in names if asked.get(name.lower())
    )


def _attributes(endpoint: str, container: str = "") -> str:
    text = f' ServiceEndpoint="{escape_attribute(endpoint)}/"'
    return text + f' ContainerName="{escape_attribute(container)}"' if container else text
