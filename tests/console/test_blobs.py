"""Containers and blobs in the console: the API by plain HTTP, the screens in a real browser."""

import base64
import gzip
import hashlib
import os
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest
from azure.storage.blob import BlobServiceClient, ContainerClient, ContentSettings

from support.browser import THEMES, Watch, picture, use_theme, violations
from support.console_api import ask
from support.live import LiveServer

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>window.top.caught = 1</script></svg>"
UPLOAD = "0123456789abcdef"


@pytest.fixture
def blobs(console: LiveServer) -> Iterator[BlobServiceClient]:
    with BlobServiceClient.from_connection_string(console.connection_string) as client:
        yield client
        for container in client.list_containers():
            client.delete_container(container.name)


@pytest.fixture
def photos(blobs: BlobServiceClient) -> ContainerClient:
    return blobs.create_container("photos")


def put_block(
    console: LiveServer, name: str, number: int, block: bytes, sha256: str | None = None
) -> tuple[int, object]:
    query = {
        "name": name,
        "upload": UPLOAD,
        "number": number,
        "sha256": sha256 or hashlib.sha256(block).hexdigest(),
    }
    return ask(console, "POST", f"containers/photos/block?{urlencode(query)}", block=block)


def commit(console: LiveServer, name: str, blocks: int, *, replaces: bool = False) -> int:
    body = {"name": name, "upload": UPLOAD, "blocks": blocks, "replaces": replaces}
    return ask(console, "POST", "containers/photos/commit", body)[0]


def test_an_upload_becomes_a_blob_with_its_hash_at_the_end(
    console: LiveServer, photos: ContainerClient
) -> None:
    blocks = [os.urandom(300_000), os.urandom(10)]
    for number, block in enumerate(blocks, 1):
        assert put_block(console, "2026/ada.bin", number, block)[0] == 200
    assert list(photos.list_blob_names()) == []

    assert commit(console, "2026/ada.bin", 2) == 200

    blob = photos.get_blob_client("2026/ada.bin")
    whole = b"".join(blocks)
    assert blob.download_blob().readall() == whole
    md5 = blob.get_blob_properties().content_settings.content_md5
    assert md5 is not None
    assert bytes(md5) == hashlib.md5(whole).digest()


def test_a_compressed_blob_is_downloaded_and_previewed_as_it_is_stored(
    console: LiveServer, photos: ContainerClient
) -> None:
    packed = gzip.compress(b"x" * 1_000_000)
    settings = ContentSettings(content_type="text/plain", content_encoding="gzip")
    photos.upload_blob("a.txt", packed, content_settings=settings)

    _, found = ask(console, "POST", "containers/photos/download", {"name": "a.txt"})
    shown = ask(console, "GET", "containers/photos/preview?name=a.txt")[1]

    assert isinstance(found, dict)
    address = console.announced["console"].partition("/#")[0]
    with urllib.request.urlopen(f"{address}/api/v1/downloads/{found['ticket']}") as answer:
        assert answer.read() == packed
    assert isinstance(shown, dict)
    assert shown["kind"] == "none"


def test_a_block_that_was_changed_on_its_way_is_refused(
    console: LiveServer, photos: ContainerClient
) -> None:
    status, found = put_block(console, "ada.bin", 1, b"abc", sha256="00" * 32)

    assert status == 400
    assert "changed on its way" in str(found)


def test_an_existing_blob_is_replaced_only_on_purpose(
    console: LiveServer, photos: ContainerClient
) -> None:
    photos.upload_blob("ada.bin", b"old")
    put_block(console, "ada.bin", 1, b"new")

    assert commit(console, "ada.bin", 1) == 409
    assert photos.download_blob("ada.bin").readall() == b"old"
    put_block(console, "ada.bin", 1, b"new")
    assert commit(console, "ada.bin", 1, replaces=True) == 200
    assert photos.download_blob("ada.bin").readall() == b"new"


def test_browsing_shows_the_next_parts_and_pages(
    console: LiveServer, photos: ContainerClient
) -> None:
    for name in ("a.txt", "b/1.txt", "b/c/2.txt", "z.txt"):
        photos.upload_blob(name, b"x")

    _, found = ask(console, "GET", "containers/photos/blobs")
    assert (found["prefixes"], [each["name"] for each in found["blobs"]]) == (
        ["b/"],
        ["a.txt", "z.txt"],
    )
    _, found = ask(console, "GET", "containers/photos/blobs?prefix=b/")
    assert (found["prefixes"], [each["name"] for each in found["blobs"]]) == (
        ["b/c/"],
        ["b/1.txt"],
    )
    names: list[str] = []
    more: dict[str, str] = {}
    while True:
        query = urlencode({"top": 1, **more})
        _, found = ask(console, "GET", f"containers/photos/blobs?{query}")
        names += found["prefixes"] + [each["name"] for each in found["blobs"]]
        if found["next"] is None:
            break
        more = {"marker": found["next"]}
    assert sorted(names) == ["a.txt", "b/", "z.txt"]


def test_a_download_needs_a_ticket_that_works_once(
    console: LiveServer, photos: ContainerClient
) -> None:
    content = os.urandom(700_000)
    photos.upload_blob("naïve file.bin", content)
    _, found = ask(console, "POST", "containers/photos/download", {"name": "naïve file.bin"})
    address = console.announced["console"].partition("#")[0]
    link = f"{address}api/v1/downloads/{found['ticket']}"

    with urllib.request.urlopen(link) as answer:
        assert answer.read() == content
        assert answer.headers["Content-Disposition"].startswith("attachment")
        assert "sandbox" in str(answer.headers.get_all("Content-Security-Policy"))
    with pytest.raises(HTTPError, match="403"):
        urllib.request.urlopen(link)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"plain", "text"),
        (b"", "text"),
        (PNG, "image"),
        (SVG, "text"),
        (b"<html><script>1</script>", "text"),
        (b"\x00\x01", "none"),
        (b"\xff\xfe", "none"),
        ("ä".encode() * 200_000, "text"),
    ],
)
def test_a_preview_is_text_or_a_raster_image(
    console: LiveServer, photos: ContainerClient, content: bytes, kind: str
) -> None:
    photos.upload_blob("x", content)

    _, found = ask(console, "GET", "containers/photos/preview?name=x")

    assert found["kind"] == kind


def test_properties_metadata_tags_snapshots_leases_and_tiers(
    console: LiveServer, photos: ContainerClient
) -> None:
    photos.upload_blob("ada.txt", b"x")
    change = {"name": "ada.txt"}
    for path, body in (
        ("metadata", {"values": {"by": "ada"}}),
        ("tags", {"values": {"year": "2026"}}),
        ("snapshot", {}),
        ("tier", {"tier": "Cool"}),
        ("lease", {"action": "acquire"}),
    ):
        status, found = ask(console, "POST", f"containers/photos/{path}", {**change, **body})
        assert status == 200, found

    _, found = ask(console, "GET", "containers/photos/blob?name=ada.txt")

    assert (found["metadata"], found["tags"], found["tier"]) == (
        {"by": "ada"},
        {"year": "2026"},
        "Cool",
    )
    assert len(found["snapshots"]) == 1
    assert found["lease"]["state"] == "leased"
    assert ask(console, "POST", "containers/photos/lease", {**change, "action": "break"})[0] == 200
    status, _ = ask(console, "POST", "containers/photos/delete", {**change, "etag": '"0x0"'})
    assert status == 412
    body = {**change, "etag": found["etag"]}
    assert ask(console, "POST", "containers/photos/delete", body)[0] == 200


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("containers", {"name": "A"}, 400),
        ("containers/missing/snapshot", {"name": "x"}, 404),
        ("containers/photos/snapshot", {"name": ""}, 400),
        ("containers/photos/drop", {"confirm": "other"}, 400),
        ("containers/photos/commit", {"name": "x", "upload": "../..", "blocks": 1}, 400),
        ("containers/photos/commit", {"name": "x", "upload": UPLOAD, "blocks": 10**9}, 400),
        ("containers/photos/tier", {"name": "x", "tier": "Warm"}, 400),
        ("containers/photos/download", {"name": "missing"}, 404),
    ],
)
def test_a_refused_change_says_why(
    console: LiveServer, photos: ContainerClient, path: str, body: object, status: int
) -> None:
    told, found = ask(console, "POST", path, body)

    assert (told, bool(found["error"]["message"])) == (status, True)


@pytest.mark.proof
@pytest.mark.parametrize("theme", THEMES)
def test_the_screens_of_blobs(
    watch: Watch, console: LiveServer, photos: ContainerClient, axe: str, theme: str
) -> None:
    photos.upload_blob("report.json", b'{"rows": 200000}', metadata={"by": "ada"})
    photos.upload_blob("2026/november/ada.png", PNG)
    photos.upload_blob("attack.svg", SVG)
    page = watch.page
    use_theme(page, theme)
    page.goto(console.announced["console"])
    page.get_by_role("link", name="Containers").click()
    page.get_by_role("link", name="photos").click()
    page.get_by_role("link", name="report.json").click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_text('{"rows": 200000}').wait_for()

    assert violations(page, axe) == []
    picture(page, f"container-{theme}")

    page.get_by_role("link", name="attack.svg").click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_text("window.top.caught = 1").wait_for()
    assert page.evaluate("window.caught") is None


@pytest.mark.proof
def test_a_long_file_goes_up_and_down_unchanged(
    watch: Watch, console: LiveServer, photos: ContainerClient, tmp_path: Path
) -> None:
    path = tmp_path / "long.bin"
    path.write_bytes(os.urandom(1 << 20) * 100)
    page = watch.page
    page.goto(console.announced["console"])
    page.get_by_role("link", name="Containers").click()
    page.get_by_role("link", name="photos").click()
    page.get_by_role("heading", name="photos").wait_for()

    page.locator("input[type=file]").set_input_files(path)
    page.get_by_text("done").wait_for(timeout=240_000)

    page.get_by_role("link", name="long.bin").click()
    with page.expect_download(timeout=240_000) as saved:
        page.get_by_role("button", name="Download", exact=True).click()
    saved.value.save_as(tmp_path / "back.bin")
    digests = [
        hashlib.sha256(each.read_bytes()).hexdigest() for each in (path, tmp_path / "back.bin")
    ]
    assert digests[0] == digests[1]
