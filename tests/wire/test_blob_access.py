"""Who may read and write blobs without the key: nobody, tokens of parts, and sources of copies.

Tokens are signed here, from the description of the protocol.
"""

import base64
import hashlib
import hmac
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from support.live import LiveServer
from wire.raw_blob import BLOCK, RawBlobClient
from wire.raw_queue import VERSION

EXPIRY = "2040-01-01T00:00:00Z"
PAST = "2020-01-01T00:00:00Z"
ANONYMOUS = "401 NoAuthenticationInformation"
FORBIDDEN = "403 AuthorizationFailure"
HIDDEN = "404 ResourceNotFound"
LACKS = "403 AuthorizationPermissionMismatch"
REFUSED = "403 AuthenticationFailed"
UNVERIFIED = "CannotVerifyCopySource"


@pytest.fixture(scope="module")
def blobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawBlobClient]:
    """Containers by how far they are open, each with the same blobs."""
    live = LiveServer(tmp_path_factory.mktemp("access"))
    blobs = RawBlobClient(live.blob_endpoint)
    for container in ("closed", "blob", "container"):
        access = {} if container == "closed" else {"x-ms-blob-public-access": container}
        made = blobs.send("PUT", f"/{container}?restype=container", headers=access)
        assert made.told == "201"
        for name in ("a", "a/1", "a/b/2", "ab", "c"):
            assert blobs.send("PUT", f"/{container}/{name}", name, BLOCK).told == "201"
    yield blobs
    live.stop()


def a_token(
    resource: str,
    name: str,
    letters: str,
    *,
    snapshot: str = "",
    depth: str = "",
    expiry: str = EXPIRY,
) -> str:
    """Return the query of a SAS for a container (c), directory (d), blob (b) or snapshot (bs)."""
    named = f"/blob/{DEVELOPMENT_ACCOUNT}/{name}"
    slots = [letters, "", expiry, named, "", "", "", VERSION, resource, snapshot, *[""] * 6]
    mac = hmac.digest(base64.b64decode(DEVELOPMENT_KEY), "\n".join(slots).encode(), hashlib.sha256)
    signature = quote(base64.b64encode(mac).decode(), safe="")
    further = f"&sdd={depth}" if depth else ""
    return f"sv={VERSION}&sr={resource}&sp={letters}&se={expiry}{further}&sig={signature}"


def told(blobs: RawBlobClient, method: str, target: str, **headers: str) -> str:
    """Ask without the key; underscores in names of headers stand for dashes."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return blobs.send(method, target, b"", given, is_signed=False).told


# Directories


def test_a_directory_token_reads_what_lies_below(blobs: RawBlobClient) -> None:
    token = a_token("d", "closed/a", "rl", depth="1")

    assert told(blobs, "GET", f"/closed/a/1?{token}") == "200"
    assert told(blobs, "GET", f"/closed/a/b/2?{token}") == "200"
    assert told(blobs, "GET", f"/closed/ab?{token}") == REFUSED
    assert told(blobs, "GET", f"/closed/c?{token}") == REFUSED
    assert told(blobs, "GET", f"/blob/a/1?{token}") == REFUSED
    assert told(blobs, "DELETE", f"/closed/a/1?{token}") == LACKS


def test_a_directory_token_lists_only_below(blobs: RawBlobClient) -> None:
    token = a_token("d", "closed/a", "rl", depth="1")
    listing = "/closed?restype=container&comp=list"

    assert told(blobs, "GET", f"{listing}&prefix=a/&{token}") == "200"
    assert told(blobs, "GET", f"{listing}&prefix=a/b&{token}") == "200"
    for prefix in ("", "a", "ab", "c"):
        answer = told(blobs, "GET", f"{listing}&prefix={prefix}&{token}")
        assert answer in (FORBIDDEN, REFUSED), prefix


def test_the_depth_of_a_directory_is_part_of_its_name(blobs: RawBlobClient) -> None:
    deeper = a_token("d", "closed/a/b", "r", depth="2")

    assert told(blobs, "GET", f"/closed/a/b/2?{deeper}") == "200"
    assert told(blobs, "GET", f"/closed/a/1?{deeper}") == REFUSED
    for depth in ("1", "3", "-1", "x", ""):
        lying = deeper.replace("&sdd=2", f"&sdd={depth}" if depth else "")
        assert told(blobs, "GET", f"/closed/a/b/2?{lying}").startswith("403 "), depth


# Snapshots


def test_a_snapshot_token_reads_its_snapshot_only(blobs: RawBlobClient) -> None:
    first = blobs.send("PUT", "/closed/c?comp=snapshot")["x-ms-snapshot"]
    second = blobs.send("PUT", "/closed/c?comp=snapshot")["x-ms-snapshot"]
    token = a_token("bs", "closed/c", "rd", snapshot=first)

    assert told(blobs, "GET", f"/closed/c?snapshot={first}&{token}") == "200"
    assert told(blobs, "GET", f"/closed/c?snapshot={second}&{token}").startswith("403 ")
    assert told(blobs, "GET", f"/closed/c?{token}").startswith("403 ")
    assert told(blobs, "DELETE", f"/closed/c?{token}").startswith("403 ")
    assert told(blobs, "DELETE", f"/closed/c?snapshot={first}&{token}") == "202"


def test_a_blob_token_reads_the_snapshots_of_its_blob(blobs: RawBlobClient) -> None:
    snapshot = blobs.send("PUT", "/closed/c?comp=snapshot")["x-ms-snapshot"]
    token = a_token("b", "closed/c", "r")

    assert told(blobs, "GET", f"/closed/c?snapshot={snapshot}&{token}") == "200"
    assert told(blobs, "GET", f"/closed/c?{token}") == "200"


# Copies


def source(blobs: RawBlobClient, name: str, token: str = "") -> str:
    return f"{blobs.root}/{name}" + (f"?{token}" if token else "")


@pytest.mark.parametrize("is_sync", [False, True])
def test_a_token_for_the_target_does_not_read_the_source(
    blobs: RawBlobClient, is_sync: bool
) -> None:
    writes = a_token("b", "closed/copy", "cw")
    headers = {"x_ms_requires_sync": "true"} if is_sync else {}

    for token, code in (
        ("", f"401 {UNVERIFIED}"),
        (a_token("b", "closed/c", "w"), f"403 {UNVERIFIED}"),
        (a_token("b", "closed/ab", "r"), f"403 {UNVERIFIED}"),
        (a_token("b", "closed/c", "r", expiry=PAST), f"403 {UNVERIFIED}"),
        (writes, f"403 {UNVERIFIED}"),
        (a_token("b", "closed/c", "r"), "202"),
        (a_token("c", "closed", "r"), "202"),
    ):
        copied = told(
            blobs,
            "PUT",
            f"/closed/copy?{writes}",
            x_ms_copy_source=source(blobs, "closed/c", token),
            **headers,
        )
        assert copied == code, token


def test_a_token_for_the_source_does_not_write_the_target(blobs: RawBlobClient) -> None:
    reads = a_token("c", "closed", "r")

    address = source(blobs, "closed/c", reads)
    assert told(blobs, "PUT", f"/closed/mine?{reads}", x_ms_copy_source=address) == LACKS
    assert told(blobs, "PUT", "/closed/mine", x_ms_copy_source=address) == ANONYMOUS


def test_a_public_source_needs_no_token(blobs: RawBlobClient) -> None:
    writes = a_token("b", "closed/copied", "cw")

    for container in ("blob", "container"):
        address = source(blobs, f"{container}/a/1")
        assert told(blobs, "PUT", f"/closed/copied?{writes}", x_ms_copy_source=address) == "202"
    assert blobs.send("GET", "/closed/copied").body == b"a/1"


def test_a_client_with_the_key_copies_within_the_account(blobs: RawBlobClient) -> None:
    headers = {"x-ms-copy-source": source(blobs, "closed/c")}

    assert blobs.send("PUT", "/closed/own", headers=headers).told == "202"


def test_blocks_from_elsewhere_always_show_a_token(blobs: RawBlobClient) -> None:
    target = "/closed/blocks?comp=block&blockid=QQ%3D%3D"
    closed = {"x-ms-copy-source": source(blobs, "closed/c")}
    shown = {"x-ms-copy-source": source(blobs, "closed/c", a_token("b", "closed/c", "r"))}

    assert blobs.send("PUT", target, headers=closed).told == f"401 {UNVERIFIED}"
    assert blobs.send("PUT", target, headers=shown).told == "201"


# Nobody


@pytest.mark.parametrize("suffix", ["", "-secondary"])
def test_what_a_public_container_shows(blobs: RawBlobClient, suffix: str) -> None:
    def seen(target: str, method: str = "GET") -> str:
        account = f"{DEVELOPMENT_ACCOUNT}{suffix}"
        return blobs.send(method, target, is_signed=False, account=account).told

    listing = "?restype=container&comp=list"
    assert seen("/closed/c") == seen("/nobody/c") == HIDDEN
    assert seen(f"/closed{listing}") == seen(f"/nobody{listing}") == HIDDEN
    for container in ("blob", "container"):
        assert seen(f"/{container}/c") == "200"
        assert seen(f"/{container}/c", "HEAD") == "200"
        assert seen(f"/{container}/c?comp=metadata") == "200"
        assert seen(f"/{container}/c?comp=tags").startswith("401 ")
        assert seen(f"/{container}?restype=container&comp=acl").startswith(("401 ", "404 "))
        assert seen(f"/{container}/nothing").startswith("404 ")
    assert seen(f"/blob{listing}") == seen("/blob?restype=container") == HIDDEN
    assert seen(f"/container{listing}") == seen("/container?restype=container") == "200"
    assert seen("/?comp=list") == HIDDEN


@pytest.mark.parametrize("container", ["closed", "blob", "container", "nobody"])
@pytest.mark.parametrize(
    ("method", "query"),
    [
        ("PUT", ""),
        ("DELETE", ""),
        ("PUT", "?comp=metadata"),
        ("PUT", "?comp=lease"),
        ("PUT", "?comp=snapshot"),
        ("PUT", "?comp=blocklist"),
        ("PUT", "?comp=block&blockid=QQ%3D%3D"),
        ("PUT", "?comp=tier"),
        ("PUT", "?comp=tags"),
    ],
)
def test_nobody_writes_without_credentials(
    blobs: RawBlobClient, container: str, method: str, query: str
) -> None:
    assert (
        told(blobs, method, f"/{container}/c{query}", **{"x-ms-blob-type": "BlockBlob"})
        == ANONYMOUS
    )


def test_the_secondary_only_reads(blobs: RawBlobClient) -> None:
    account = f"{DEVELOPMENT_ACCOUNT}-secondary"
    token = a_token("c", "closed", "rwdl")

    assert blobs.send("GET", f"/closed/c?{token}", is_signed=False, account=account).told == "200"
    refused = blobs.send("DELETE", f"/closed/c?{token}", is_signed=False, account=account)
    assert refused.status in (400, 403)
    assert blobs.send("GET", "/closed/c").told == "200"


# Tags


@pytest.fixture(scope="module")
def tagged(blobs: RawBlobClient) -> RawBlobClient:
    """The blob `tagged` of each container has the tag `k=v`."""
    for container in ("closed", "blob", "container"):
        made = blobs.send("PUT", f"/{container}/tagged", b"x", BLOCK | {"x-ms-tags": "k=v"})
        assert made.told == "201"
    return blobs


@pytest.mark.parametrize("include", ["tags", "snapshots,TAGS"])
def test_a_listing_shows_tags_only_with_the_permission_for_tags(
    tagged: RawBlobClient, include: str
) -> None:
    target = f"?restype=container&comp=list&include={include}"

    def listed(token: str) -> tuple[str, bool]:
        answer = tagged.send("GET", f"/closed{target}&{token}", is_signed=False)
        return answer.told, b"<Key>k</Key>" in answer.body

    assert listed(a_token("c", "closed", "l")) == (LACKS, False)
    assert listed(a_token("c", "closed", "rl")) == (LACKS, False)
    assert listed(a_token("c", "closed", "lt")) == ("200", True)
    assert tagged.send("GET", f"/closed{target}").status == 200


def test_a_public_container_shows_no_tags(tagged: RawBlobClient) -> None:
    listing = "/container?restype=container&comp=list"

    assert told(tagged, "GET", listing) == "200"
    assert told(tagged, "GET", f"{listing}&include=metadata") == "200"
    assert told(tagged, "GET", f"{listing}&include=metadata,tags") == ANONYMOUS
    assert told(tagged, "GET", "/container/tagged?comp=tags") == ANONYMOUS
    assert told(tagged, "GET", "/container/tagged", x_ms_if_tags="k = 'v'") == ANONYMOUS


COPIES = {
    "Copy Blob": {},
    "Copy Blob From URL": {"x_ms_requires_sync": "true"},
    "Put Blob From URL": {"x_ms_blob_type": "BlockBlob"},
}


@pytest.mark.parametrize("copy", COPIES)
@pytest.mark.parametrize(
    ("writes", "reads", "answer"),
    [
        ("cw", "rt", LACKS),
        ("cwt", "r", f"403 {UNVERIFIED}"),
        ("cwt", "", f"401 {UNVERIFIED}"),
        ("cwt", "rt", "copied"),
    ],
)
def test_a_copy_carries_tags_only_with_the_permission_on_both_sides(
    tagged: RawBlobClient, copy: str, writes: str, reads: str, answer: str
) -> None:
    """Without a SAS the source is public: that does not open its tags."""
    container = "closed" if reads else "container"
    token = a_token("b", f"{container}/tagged", reads) if reads else ""
    target = "closed/carried"

    copied = told(
        tagged,
        "PUT",
        f"/{target}?{a_token('b', target, writes)}",
        x_ms_copy_source=source(tagged, f"{container}/tagged", token),
        x_ms_copy_source_tag_option="COPY",
        **COPIES[copy],
    )

    expected = "201" if "blob_type" in str(COPIES[copy]) else "202"
    assert copied == (expected if answer == "copied" else answer)


@pytest.mark.parametrize(
    "query", ["", "?comp=block&blockid=QQ%3D%3D", "?comp=appendblock", "?comp=page"]
)
def test_a_condition_on_the_tags_of_a_source_needs_the_permission_for_them(
    tagged: RawBlobClient, query: str
) -> None:
    """The answer would show whether the source has the tag."""
    pages = {"x-ms-range": "bytes=0-511"} if "page" in query else {}
    headers = {"x-ms-source-if-tags": "k = 'w'", **pages}

    def refusal(address: str) -> str:
        given = {"x-ms-copy-source": source(tagged, address), "x-ms-requires-sync": "true"}
        return tagged.send("PUT", f"/closed/asked{query}", headers=headers | given).told

    assert refusal(f"closed/tagged?{a_token('b', 'closed/tagged', 'r')}") == f"403 {UNVERIFIED}"
    assert refusal("container/tagged") == f"401 {UNVERIFIED}"
    assert refusal(f"closed/tagged?{a_token('b', 'closed/tagged', 'rt')}").startswith("412 ")
