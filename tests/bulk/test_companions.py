"""`partita messages` and `partita blobs`, against `partita serve` and a folder."""

import gzip
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
from azure.storage.blob import (
    AccountSasPermissions,
    BlobServiceClient,
    ContentSettings,
    ResourceTypes,
    generate_account_sas,
)
from azure.storage.queue import QueueServiceClient

from bulk.shell import Shell
from partita.cli.blobs.verbs import _inside
from partita.errors import ConfigurationError
from support.live import LiveServer


@pytest.fixture
def queue(name: str) -> str:
    return name.lower()


def test_poison_goes_back_to_work(shell: Shell, server: LiveServer, queue: str) -> None:
    with QueueServiceClient.from_connection_string(server.connection_string) as service:
        poison = service.create_queue(f"{queue}-poison")
        for number in range(40):
            poison.send_message(f"<work> & {number}", time_to_live=3600 if number else -1)

    peeked = shell.facts("messages", "peek", f"{queue}-poison", "--count", "3")
    assert peeked["messages"] == 40
    assert peeked["peeked"][0]["text"] == "<work> & 0"
    assert shell.facts("messages", "requeue", queue, "--dry-run")["moved"] == 0

    assert shell.facts("messages", "requeue", queue, "--max", "5")["moved"] == 5
    moved = shell.facts("messages", "requeue", queue)

    assert (moved["moved"], moved["left"]) == (35, 0)
    with QueueServiceClient.from_connection_string(server.connection_string) as service:
        found = service.get_queue_client(queue).receive_messages(messages_per_page=32)
        texts = {message.content for message in found}
    assert texts == {f"<work> & {number}" for number in range(40)}
    assert queue in shell.run("messages", "ls")


def test_a_queue_that_does_not_exist_is_one_line(shell: Shell, queue: str) -> None:
    said = shell.run("messages", "peek", queue, status=2)

    assert "messages ls" in said
    assert "Traceback" not in said


def test_a_folder_is_synchronized_in_both_directions(
    shell: Shell, tmp_path: Path, queue: str
) -> None:
    site = tmp_path / "site"
    (site / "css").mkdir(parents=True)
    (site / "index.html").write_text("<p>1")
    (site / "css" / "a.css").write_text("x")

    planned = shell.facts("blobs", "sync", "site", f"blob:{queue}/web", "--dry-run")
    assert len(planned["copied"]) == 2  # though there is no container yet
    first = shell.facts("blobs", "sync", "site", f"blob:{queue}/web")
    assert sorted(first["copied"]) == ["css/a.css", "index.html"]
    (site / "index.html").write_text("<p>2")
    (site / "css" / "a.css").unlink()
    dry = shell.facts("blobs", "sync", "site", f"blob:{queue}/web", "--delete", "--dry-run")
    assert (dry["copied"], dry["deleted"]) == (["index.html"], ["css/a.css"])
    shell.run("blobs", "sync", "site", f"blob:{queue}/web", "--delete")

    back = shell.facts("blobs", "sync", f"blob:{queue}/web", "back")
    assert back["copied"] == ["index.html"]
    assert (tmp_path / "back" / "index.html").read_text() == "<p>2"
    assert shell.facts("blobs", "sync", f"blob:{queue}/web", "back")["unchanged"] == 1


def test_a_blob_is_copied_and_listed(shell: Shell, tmp_path: Path, queue: str) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(range(256)) * 100)

    shell.run("blobs", "cp", "a.bin", f"blob:{queue}/x/")
    shell.run("blobs", "cp", f"blob:{queue}/x/a.bin", "b.bin")

    assert (tmp_path / "b.bin").read_bytes() == (tmp_path / "a.bin").read_bytes()
    assert "x/a.bin" in shell.run("blobs", "ls", f"{queue}/x")
    assert queue in shell.run("blobs", "ls")
    assert "blobs ls" in shell.run("blobs", "cp", f"blob:{queue}/none", "c.bin", status=2)
    assert "blob:CONTAINER" in shell.run("blobs", "cp", "a.bin", "b.bin", status=2)


def test_what_is_kept_of_deleted_blobs_is_set_and_shown(shell: Shell) -> None:
    set_facts = shell.facts("blobs", "keep", "--versions", "on", "--deleted-days", "7")
    assert set_facts == {"versions": True, "deleted_days": 7, "deleted_containers_days": 0}

    said = shell.run("blobs", "keep", "--deleted-containers-days", "1")
    assert "Deleted containers: kept for 1 day." in said
    said = shell.run(
        *("blobs", "keep", "--versions", "off"),
        *("--deleted-days", "0", "--deleted-containers-days", "0"),
    )

    assert said.count("not kept") == 3
    assert "365" in shell.run("blobs", "keep", "--deleted-days", "366", status=2)


@pytest.mark.parametrize(
    "name",
    ["../escaped", "/etc/passwd", "a/../../b", "", ".", "..", "a/..", "./a", "a//b", "a/", "a/./b"],
)
def test_a_blob_is_not_written_outside_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError):
        _inside(tmp_path, name)


def test_a_synchronization_overwrites_no_other_file(
    shell: Shell, server: LiveServer, tmp_path: Path, queue: str
) -> None:
    with BlobServiceClient.from_connection_string(server.connection_string) as service:
        container = service.create_container(queue)
        container.upload_blob("a", b"1")
        container.upload_blob("a.new", b"kept")
        shell.run("blobs", "sync", f"blob:{queue}", "back")
        container.upload_blob("a", b"2", overwrite=True)

    shell.run("blobs", "sync", f"blob:{queue}", "back")

    found = {path.name: path.read_text() for path in (tmp_path / "back").iterdir()}
    assert found == {"a": "2", "a.new": "kept"}


def test_a_name_that_no_file_can_have_stops_a_synchronization_before_it_begins(
    shell: Shell, server: LiveServer, tmp_path: Path, queue: str
) -> None:
    with BlobServiceClient.from_connection_string(server.connection_string) as service:
        container = service.create_container(queue)
        container.upload_blob("p/a", b"1")
        container.upload_blob("p/x//y", b"1")
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "mine").write_text("kept")

    said = shell.run("blobs", "sync", f"blob:{queue}/p", "back", "--delete", status=2)

    assert "x//y" in said
    assert [path.name for path in (tmp_path / "back").iterdir()] == ["mine"]


def test_a_compressed_blob_is_copied_as_it_is_stored(
    shell: Shell, server: LiveServer, tmp_path: Path, queue: str
) -> None:
    packed = gzip.compress(b"x" * 100_000)
    with BlobServiceClient.from_connection_string(server.connection_string) as service:
        container = service.create_container(queue)
        settings = ContentSettings(content_type="text/plain", content_encoding="gzip")
        container.upload_blob("a.txt", packed, content_settings=settings)

    shell.run("blobs", "cp", f"blob:{queue}/a.txt", "a.gz")

    assert (tmp_path / "a.gz").read_bytes() == packed


def test_a_name_with_dots_deletes_no_other_blob(
    shell: Shell, server: LiveServer, tmp_path: Path, queue: str
) -> None:
    (tmp_path / "site").mkdir()
    with BlobServiceClient.from_connection_string(server.connection_string) as service:
        sas = generate_account_sas(
            str(service.account_name),
            service.credential.account_key,
            ResourceTypes(service=True, container=True, object=True),
            AccountSasPermissions(
                read=True, write=True, delete=True, list=True, add=True, create=True
            ),
            datetime.now(UTC) + timedelta(hours=1),
        )
        container = service.create_container(queue)
        container.upload_blob("private/x", b"kept")
        # Clients remove the dots from an address, unless the slash is encoded.
        evil = f"{service.url.rstrip('/')}/{queue}/web/..%2Fprivate%2Fx?{sas}"
        headers = {"x-ms-blob-type": "BlockBlob"}
        urlopen(Request(evil, b"evil", headers, method="PUT")).close()

        said = shell.run(
            *("blobs", "sync", "site", f"blob:{queue}/web", "--delete"),
            *("--connect", f"BlobEndpoint={service.url};SharedAccessSignature={sas}"),
            status=2,
        )

        assert "../private/x" in said
        assert list(container.list_blob_names()) == ["private/x", "web/../private/x"]


def test_an_empty_blob_with_a_slash_at_its_end_is_a_folder(
    shell: Shell, server: LiveServer, tmp_path: Path, queue: str
) -> None:
    with BlobServiceClient.from_connection_string(server.connection_string) as service:
        container = service.create_container(queue)
        for name in ("empty/", "full/", "full/a"):
            container.upload_blob(name, b"" if name.endswith("/") else b"1")

        shell.run("blobs", "sync", f"blob:{queue}", "back", "--delete")

        assert (tmp_path / "back" / "empty").is_dir()
        assert (tmp_path / "back" / "full" / "a").read_text() == "1"
        assert shell.facts("blobs", "sync", f"blob:{queue}", "back")["copied"] == []

        (tmp_path / "back" / "empty").rmdir()
        shell.run("blobs", "sync", "back", f"blob:{queue}", "--delete")

        assert sorted(blob.name for blob in container.list_blobs()) == ["full/", "full/a"]


def test_a_blob_with_the_name_of_a_folder_stops_a_synchronization(
    shell: Shell, server: LiveServer, tmp_path: Path, queue: str
) -> None:
    with BlobServiceClient.from_connection_string(server.connection_string) as service:
        container = service.create_container(queue)
        for name in ("a", "a/b"):
            container.upload_blob(name, b"1")

    said = shell.run("blobs", "sync", f"blob:{queue}", "back", status=2)

    assert "'a' has the name of a folder" in said
    assert not (tmp_path / "back").exists()


def test_a_file_name_that_is_not_utf8_is_refused_before_anything_is_copied(
    shell: Shell, tmp_path: Path, queue: str
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "a").write_text("1")
    (tmp_path / "site" / os.fsdecode(b"caf\xe9")).write_text("1")

    said = shell.run("blobs", "sync", "site", f"blob:{queue}", status=2)

    assert "caf\\xe9 is not UTF-8" in said
    assert queue not in shell.run("blobs", "ls")
    shell.run("blobs", "cp", os.fsdecode(b"site/caf\xe9"), f"blob:{queue}/cafe")
    assert "cafe" in shell.run("blobs", "ls", queue)
