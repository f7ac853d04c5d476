"""Accounts for tests: created and filled at the start, emptied by a call, and blob events."""

import http.server
import json
import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import ResourceExistsError
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobBlock, BlobServiceClient, CorsRule
from azure.storage.queue import QueueServiceClient

from partita.cli.main import main
from support.live import FRONT_ENDS, LiveServer, needs_folder


class Receiver:
    """A webhook: answers with `statuses` in turn, the last one for all further requests."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.statuses = [200]
        self.headers: list[str | None] = []
        self.has_events = threading.Condition()
        owner = self

        class Answer(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with owner.has_events:
                    turn = len(owner.statuses) > 1
                    status = owner.statuses.pop(0) if turn else owner.statuses[0]
                    owner.headers.append(self.headers["aeg-event-type"])
                    if status == 200:
                        owner.events += json.loads(body)
                    owner.has_events.notify_all()
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Answer)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/events"

    def wait_for(self, count: int) -> list[dict[str, Any]]:
        with self.has_events:
            assert self.has_events.wait_for(lambda: len(self.events) >= count, 60)
            return list(self.events)

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.mark.proof
def test_a_server_starts_with_what_its_flags_and_folder_name(tmp_path: Path) -> None:
    seed = tmp_path / "seed"
    (seed / "tables").mkdir(parents=True)
    rows = [{"PartitionKey": f"p{n % 2}", "RowKey": f"{n:03}", "N": n} for n in range(250)]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (seed / "tables" / "Staff.jsonl").write_text(text)
    (seed / "queues").mkdir()
    (seed / "queues" / "work.jsonl").write_text('"first"\n\n"second"\n')
    (seed / "blobs" / "photos" / "a").mkdir(parents=True)
    (seed / "blobs" / "photos" / "a" / "1.png").write_bytes(b"png")
    flags = ["--create", "table:Empty", "--create", "queue:idle", "--create", "container:none"]
    live = LiveServer(tmp_path, "--seed", str(seed), *flags)
    try:
        connection = live.connection_string
        with (
            TableServiceClient.from_connection_string(connection) as tables,
            QueueServiceClient.from_connection_string(connection) as queues,
            BlobServiceClient.from_connection_string(connection) as blobs,
        ):
            assert [table.name for table in tables.list_tables()] == ["Empty", "Staff"]
            assert len(list(tables.get_table_client("Staff").list_entities())) == 250
            assert [queue.name for queue in queues.list_queues()] == ["idle", "work"]
            work = queues.get_queue_client("work")
            peeked = [each.content for each in work.peek_messages(max_messages=5)]
            assert peeked == ["first", "second"]
            assert [each.name for each in blobs.list_containers()] == ["none", "photos"]
            photo = blobs.get_blob_client("photos", "a/1.png").download_blob()
            assert photo.readall() == b"png"
            assert photo.properties.content_settings.content_type == "image/png"

            tables.get_table_client("Staff").delete_entity("p0", "000")
            live.restart()
        with TableServiceClient.from_connection_string(live.connection_string) as tables:
            assert len(list(tables.get_table_client("Staff").list_entities())) == 249
    finally:
        live.kill()


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"tables/Staff.jsonl": '{"PartitionKey": "a"}\n'}, "line 1 has no PartitionKey"),
        ({"tables/Staff.jsonl": "nonsense\n"}, "line 1"),
        ({"tables/1x.jsonl": ""}, "table:1x"),
        ({"tables/Staff.csv": ""}, "JSON lines"),
        ({"queues/work.jsonl": "{}\n"}, "line 1 is not a JSON text"),
        ({"Staff.jsonl": ""}, "It contains Staff.jsonl"),
    ],
)
def test_a_folder_that_cannot_be_loaded_ends_the_start_with_the_reason(
    tmp_path: Path,
    files: dict[str, str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, content in files.items():
        path = tmp_path / "seed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    ports = ["--blob-port", "0", "--queue-port", "0", "--table-port", "0"]

    status = main(["serve", "--in-memory", *ports, "--seed", str(tmp_path / "seed")])

    assert status == 2
    assert reason in capsys.readouterr().err


def fill(connection: str) -> None:
    """Create a table, a queue, a leased container, and a CORS rule."""
    with (
        TableServiceClient.from_connection_string(connection) as tables,
        QueueServiceClient.from_connection_string(connection) as queues,
        BlobServiceClient.from_connection_string(connection) as blobs,
    ):
        tables.create_table("Staff").create_entity({"PartitionKey": "a", "RowKey": "b"})
        queues.create_queue("work").send_message("x")
        photos = blobs.create_container("photos")
        photos.upload_blob("a", b"x")
        photos.acquire_lease()
        blobs.set_service_properties(cors=[CorsRule(["*"], ["GET"])])


def test_the_development_account_is_emptied_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveServer(tmp_path, "--in-memory")
    try:
        fill(live.connection_string)
        command = ["account", "empty", "devstoreaccount1", "--connect", live.connection_string]

        assert main([*command, "--json"]) == 0
        removed = json.loads(capsys.readouterr().out)
        assert main([*command, "--json"]) == 0
        again = json.loads(capsys.readouterr().out)

        account = {"account": "devstoreaccount1"}
        assert removed == {**account, "tables": 1, "queues": 1, "containers": 1}
        assert again == {**account, "tables": 0, "queues": 0, "containers": 0}
        with BlobServiceClient.from_connection_string(live.connection_string) as blobs:
            assert blobs.get_service_properties()["cors"] == []
            blobs.create_container("photos")
            with pytest.raises(ResourceExistsError):
                blobs.create_container("photos")
    finally:
        live.stop()


@pytest.mark.proof
@needs_folder
def test_an_account_in_a_folder_is_emptied_while_it_is_not_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveServer(tmp_path, "--path", str(tmp_path / "data"))
    command = ["account", "empty", "devstoreaccount1", "--connect", str(tmp_path / "data")]
    try:
        fill(live.connection_string)
        assert main(command) == 2
        assert "is in use" in capsys.readouterr().err
        live.stop()

        assert main(command) == 0
        assert "1 table, 1 queue, 1 container removed" in capsys.readouterr().out
        assert main(["account", "empty", "another1", "--connect", str(tmp_path / "data")]) == 2
    finally:
        live.kill()


# Events


def test_created_and_deleted_blobs_are_told_to_the_webhook(
    tmp_path: Path, receiver: Receiver
) -> None:
    receiver.statuses = [503, 200]
    live = LiveServer(tmp_path, "--in-memory", "--blob-events", receiver.url)
    try:
        with BlobServiceClient.from_connection_string(live.connection_string) as service:
            photos = service.create_container("photos")
            blob = photos.upload_blob("a b/1.png", b"content")
            blob.set_blob_metadata({"a": "b"})
            snapshot = blob.create_snapshot()
            photos.get_blob_client("a b/1.png", snapshot=str(snapshot["snapshot"])).delete_blob()
            blob.start_copy_from_url(blob.url)
            photos.get_blob_client("log").create_append_blob()
            staged = photos.get_blob_client("staged")
            staged.stage_block("a", b"12345")
            staged.commit_block_list([BlobBlock("a")])
            photos.delete_blobs("log", "staged")
            url = blob.url
        received = receiver.wait_for(6)
    finally:
        live.stop()

    events = sorted(received, key=lambda each: str(each["data"]["sequencer"]))
    assert events == received or FRONT_ENDS > 1
    assert [(each["eventType"].rpartition(".")[2], each["data"]["api"]) for each in events] == [
        ("BlobCreated", "PutBlob"),
        ("BlobCreated", "CopyBlob"),
        ("BlobCreated", "PutBlob"),
        ("BlobCreated", "PutBlockList"),
        ("BlobDeleted", "DeleteBlob"),
        ("BlobDeleted", "DeleteBlob"),
    ]
    first = events[0]
    assert first["subject"] == "/blobServices/default/containers/photos/blobs/a b/1.png"
    assert first["topic"].endswith("/storageAccounts/devstoreaccount1")
    assert first["data"]["url"] == url
    assert first["data"]["eTag"].startswith('"0x')
    assert set(receiver.headers) == {"Notification"}
    assert len({each["id"] for each in events}) == 6
