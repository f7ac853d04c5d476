"""A damaged message is never delivered, and does not keep others from being delivered."""

from pathlib import Path
from typing import Any

import apsw
import pytest

import partita
from partita.queues.message import pack_text, unpack_text

ACCOUNT = "devstoreaccount1"
NONCE = -1234567890123


def damage(data: Path, old: bytes, new: bytes) -> None:
    path = data / ACCOUNT / "account.sqlite"
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


@pytest.mark.parametrize("damaged", [b"archive two", b"archive \xff\xfe\xfd"])
def test_damaged_message_is_hidden_and_those_after_it_are_delivered(
    tmp_path: Path, damaged: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with partita.open_account(tmp_path) as account:
        queue = account.queues.create_queue("work")
        queue.send_message("archive one")
        queue.send_message("archive 3")
    damage(tmp_path, b"archive one", damaged)

    with partita.open_account(tmp_path) as account:
        queue = account.queues.get_queue_client("work")
        assert [message.content for message in queue.peek_messages(max_messages=5)] == ["archive 3"]
        received = list(queue.receive_messages(max_messages=5))
        assert [message.content for message in received] == ["archive 3"]
        assert queue.receive_message() is None
    assert "1 damaged messages of queue 1 are hidden" in caplog.text


@pytest.mark.parametrize("place", range(9))
def test_every_flipped_bit_of_a_stored_text_is_found(place: int) -> None:
    stored = pack_text(NONCE, "f\u00fcnf")
    assert unpack_text(NONCE, stored) == "f\u00fcnf"

    for bit in range(8):
        flipped = bytearray(stored)
        flipped[place] ^= 1 << bit
        assert unpack_text(NONCE, bytes(flipped)) is None


def test_text_of_another_message_is_found() -> None:
    assert unpack_text(NONCE + 1, pack_text(NONCE, "text")) is None


def test_text_without_a_checksum_is_delivered_and_gets_one_when_it_is_updated(
    tmp_path: Path,
) -> None:
    with partita.open_account(tmp_path) as account:
        account.queues.create_queue("work").send_message("archive")
    connection = apsw.Connection(str(tmp_path / ACCOUNT / "account.sqlite"))
    connection.execute("UPDATE message SET text = 'archive'")
    connection.execute("DROP INDEX blob_tagged; DROP INDEX blob_expires")
    connection.execute("ALTER TABLE blob DROP COLUMN state")
    connection.execute("ALTER TABLE blob DROP COLUMN expires_at")
    connection.execute("UPDATE format SET version = 1")
    connection.pragma("user_version", 0)  # no checksum of the format numbers either
    connection.close()

    with partita.open_account(tmp_path) as account:
        queue = account.queues.get_queue_client("work")
        message = queue.receive_message()
        assert message is not None
        assert message.content == "archive"
        queue.update_message(message)

    connection = apsw.Connection(str(tmp_path / ACCOUNT / "account.sqlite"))
    rows: list[Any] = connection.execute("SELECT nonce, text FROM message").fetchall()
    version = connection.execute("SELECT version FROM format WHERE system = 'queues'").get
    connection.close()
    [(nonce, text)] = rows
    assert isinstance(text, bytes)
    assert (unpack_text(nonce, text), version) == ("archive", 2)
