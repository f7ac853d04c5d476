"""Backups of whole accounts: taken while the account is written to, checked, restored."""

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest
from azure.core.exceptions import ResourceNotFoundError
from azure.data.tables import TableServiceClient
from azure.storage.blob import BlobServiceClient

import partita
from partita.cli.main import main
from partita.clock import SystemClock
from partita.errors import PartitaError
from partita.service.backup import files
from partita.service.backup.manifest import (
    FileFacts,
    Increment,
    Manifest,
    check_of_format,
    decode,
    decode_increment,
    encode,
)
from partita.service.backup.restoring import check_backup, restore
from partita.service.backup.taking import back_up, back_up_changes
from partita.service.hosting.in_process import LocalAccount
from support.live import LiveServer, needs_folder
from support.repeats import repeat

ACCOUNT = "devstoreaccount1"
BACKUPS = repeat(1, 4, 20)
LONG = 200_000
"""Bytes of a blob that lies in a file of its own."""


def content_of(number: int) -> bytes:
    """Bytes that can be told from all others, and from a part of themselves."""
    row = hashlib.sha256(str(number).encode()).digest()
    return number.to_bytes(8, "big") + row * (LONG // 32)


def is_whole(content: bytes) -> bool:
    return content == content_of(int.from_bytes(content[:8], "big"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def account(data: Path) -> Iterator[LocalAccount]:
    """An account with something of each kind in it, still open."""
    with partita.open_account(data) as account:
        photos = account.blobs.create_container("photos")
        for number in range(5):
            photos.upload_blob(f"long-{number}", content_of(number))
        photos.upload_blob("short", b"in its row")
        staff = account.tables.create_table("Staff")
        staff.create_entity({"PartitionKey": "Sales", "RowKey": "1", "Name": "Ken"})
        account.queues.create_queue("work").send_message("archive 1")
        yield account


def take(data: Path, target: Path, **options: Any) -> Manifest:
    return back_up(data / ACCOUNT, target, clock=SystemClock(), **options)


@pytest.fixture
def backup(account: LocalAccount, data: Path, tmp_path: Path) -> Path:
    assert account is not None
    take(data, tmp_path / "backup")
    return tmp_path / "backup"


def files_of(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# There and back


def test_backup_of_an_open_account_brings_everything_back(backup: Path, tmp_path: Path) -> None:
    manifest, folder = restore(backup, tmp_path / "again", clock=SystemClock())

    assert (manifest.account, folder) == (ACCOUNT, tmp_path / "again" / ACCOUNT)
    with partita.open_account(tmp_path / "again") as account:
        photos = account.blobs.get_container_client("photos")
        for number in range(5):
            assert photos.download_blob(f"long-{number}").readall() == content_of(number)
        assert photos.download_blob("short").readall() == b"in its row"
        staff = account.tables.get_table_client("Staff")
        assert staff.get_entity("Sales", "1")["Name"] == "Ken"
        message = account.queues.get_queue_client("work").receive_message()
        assert message is not None
        assert message.content == "archive 1"


def test_manifest_says_what_is_in_the_backup(backup: Path) -> None:
    manifest = check_backup(backup)

    assert manifest.contents.files == 5
    assert manifest.contents.bytes == sum(len(content_of(number)) for number in range(5))
    assert manifest.database.bytes == (backup / "account.sqlite").stat().st_size


def test_account_that_nobody_has_open_can_be_backed_up(data: Path, tmp_path: Path) -> None:
    with partita.open_account(data) as account:
        account.tables.create_table("Staff")

    take(data, tmp_path / "backup")

    assert check_backup(tmp_path / "backup").contents.files == 0


def test_account_may_be_restored_under_another_name(backup: Path, tmp_path: Path) -> None:
    _, folder = restore(backup, tmp_path / "again", account="other", clock=SystemClock())

    assert folder == tmp_path / "again" / "other"
    assert (folder / "account.sqlite").is_file()


def test_restored_files_are_for_their_owner_only(backup: Path, tmp_path: Path) -> None:
    _, folder = restore(backup, tmp_path / "again", clock=SystemClock())

    for path in [backup, *backup.rglob("*"), folder, *folder.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0


def test_backup_changes_nothing_in_the_account(data: Path, tmp_path: Path) -> None:
    with partita.open_account(data) as account:
        account.blobs.create_container("photos").upload_blob("a", content_of(1))
    before = files_of(data / ACCOUNT)

    take(data, tmp_path / "backup")

    after = files_of(data / ACCOUNT)
    beside = {"account.sqlite-wal", "account.sqlite-shm"}
    assert {name: after[name] for name in after.keys() - beside} == {
        name: before[name] for name in before.keys() - beside
    }
    assert after.get("account.sqlite-wal", b"") == b""


# While it is written to


def test_files_that_go_while_they_are_copied_do_no_harm(
    account: LocalAccount, data: Path, tmp_path: Path
) -> None:
    photos = account.blobs.get_container_client("photos")
    numbers = itertools.count(100)

    def replace_all(step: str, _done: int, _total: int) -> None:
        """Give every name another content, each time that something was copied."""
        number = next(numbers)
        if step != "check" and number < 110:
            for name in range(5):
                photos.upload_blob(f"long-{name}", content_of(number * 10 + name), overwrite=True)
            until_collected(data, 5)

    take(data, tmp_path / "backup", progress=replace_all)

    restore(tmp_path / "backup", tmp_path / "again", clock=SystemClock())
    with partita.open_account(tmp_path / "again") as again:
        restored = again.blobs.get_container_client("photos")
        contents = [restored.download_blob(f"long-{name}").readall() for name in range(5)]
    assert all(map(is_whole, contents))
    assert len({int.from_bytes(content[:8], "big") // 10 for content in contents}) == 1


def until_collected(data: Path, count: int) -> None:
    """Wait until the collector has left only so many content files."""
    waiting = threading.Event()
    while sum(1 for path in (data / ACCOUNT / "blobs").rglob("*") if len(path.name) == 64) > count:
        waiting.wait(0.005)


class Writer(threading.Thread):
    """Replaces blobs and entities of a server again and again, and notes what was acknowledged."""

    def __init__(self, server: LiveServer) -> None:
        super().__init__()
        self.acknowledged = 0
        self.failure: BaseException | None = None
        self._ends = threading.Event()
        connection = server.connection_string
        self._photos = BlobServiceClient.from_connection_string(connection).create_container(
            "photos"
        )
        self._ledger = TableServiceClient.from_connection_string(connection).create_table("Ledger")

    def run(self) -> None:
        try:
            for number in itertools.count(1):
                if self._ends.is_set():
                    return
                self._write(number)
                self.acknowledged = number
        except BaseException as error:  # noqa: BLE001 - the test looks at it
            self.failure = error

    def _write(self, number: int) -> None:
        self._photos.upload_blob(f"long-{number % 7}", content_of(number), overwrite=True)
        self._photos.upload_blob(f"short-{number % 7}", b"%d" % number, overwrite=True)
        pair = [{"PartitionKey": "p", "RowKey": key, "Number": number} for key in ("a", "b")]
        self._ledger.submit_transaction([("upsert", entity) for entity in pair])
        if number % 5 == 0:
            self._photos.delete_blob(f"long-{number % 7}")

    def end(self) -> None:
        self._ends.set()
        self.join()
        assert self.failure is None


@needs_folder
@pytest.mark.timeout(600)
def test_backup_of_a_busy_server_is_one_moment_with_all_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    (tmp_path / "server").mkdir()
    server = LiveServer(tmp_path / "server")
    with contextlib.closing(Stopping(server)):
        writer = Writer(server)
        writer.start()
        while writer.acknowledged < 5 and writer.failure is None:
            writer.join(0.01)
        for number in range(BACKUPS):
            acknowledged = writer.acknowledged
            target = tmp_path / f"backup-{number}"
            source = str(tmp_path / "server" / "partita-data")
            run_partita("account", "backup", "--connect", source, "--to", str(target), "--json")
            assert_one_moment(target, tmp_path / f"again-{number}", acknowledged)
        writer.end()


class Stopping:
    def __init__(self, server: LiveServer) -> None:
        self.close = server.stop


def assert_one_moment(backup: Path, root: Path, acknowledged: int) -> None:
    restore(backup, root, clock=SystemClock())
    with partita.open_account(root) as account:
        ledger = account.tables.get_table_client("Ledger")
        first, second = (ledger.get_entity("p", key)["Number"] for key in ("a", "b"))
        assert first == second
        assert int(str(first)) >= acknowledged
        photos = account.blobs.get_container_client("photos")
        for name in photos.list_blob_names():
            content = photos.download_blob(name).readall()
            if name.startswith("long"):
                assert is_whole(content)
                number = int.from_bytes(content[:8], "big")
            else:
                number = int(content)
            # Names are reused every seventh time: nothing older than that can be there.
            assert number > acknowledged - 15
        with contextlib.suppress(ResourceNotFoundError):
            newest = photos.download_blob(f"short-{acknowledged % 7}").readall()
            assert int(newest) >= acknowledged


def run_partita(*words: str) -> Any:
    command = [sys.executable, "-m", "partita.cli.main", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_killed_backup_leaves_no_backup(account: LocalAccount, data: Path, tmp_path: Path) -> None:
    photos = account.blobs.get_container_client("photos")
    for number in range(200):
        photos.upload_blob(f"many-{number}", content_of(1000 + number))
    command = [
        sys.executable,
        "-m",
        "partita.cli.main",
        "account",
        "backup",
        "--connect",
        str(data),
    ]
    with subprocess.Popen([*command, "--to", str(tmp_path / "backup")]) as process:
        while not list(tmp_path.glob("backup.incomplete-*/blobs/*")):
            assert process.poll() is None, "it was done before it could be killed"
        process.send_signal(signal.SIGKILL)

    assert not (tmp_path / "backup").exists()
    take(data, tmp_path / "backup")
    assert check_backup(tmp_path / "backup").contents.files == 205


# What is refused


@pytest.mark.parametrize("is_file", [True, False])
def test_nothing_is_overwritten(backup: Path, data: Path, tmp_path: Path, *, is_file: bool) -> None:
    taken = tmp_path / "taken" / ACCOUNT
    taken.mkdir(parents=True)
    if is_file:
        taken.rmdir()
        taken.write_text("mine")
    else:
        (taken / "mine").write_text("mine")

    for attempt in (
        lambda: take(data, taken),
        lambda: restore(backup, taken.parent, clock=SystemClock()),
    ):
        with pytest.raises(PartitaError, match="FolderUnusable"):
            attempt()

    assert [path.name for path in taken.parent.iterdir()] == [ACCOUNT]
    assert (taken if is_file else taken / "mine").read_text() == "mine"


def test_folder_of_an_account_is_not_a_folder_of_data(backup: Path, data: Path) -> None:
    with pytest.raises(PartitaError, match="Give its parent folder"):
        restore(backup, data / ACCOUNT, clock=SystemClock())


def test_folder_without_an_account_cannot_be_backed_up(tmp_path: Path) -> None:
    with pytest.raises(PartitaError, match="does not contain an account"):
        back_up(tmp_path, tmp_path / "backup", clock=SystemClock())


def test_database_of_somebody_else_cannot_be_backed_up(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with contextlib.closing(apsw.Connection(str(tmp_path / "other" / "account.sqlite"))) as other:
        other.execute("CREATE TABLE mine (x)")

    with pytest.raises(PartitaError, match="FormatVersion"):
        back_up(tmp_path / "other", tmp_path / "backup", clock=SystemClock())

    assert not (tmp_path / "backup").exists()


def test_folder_without_a_manifest_is_not_a_backup(tmp_path: Path) -> None:
    with pytest.raises(PartitaError, match="BackupNotFound"):
        check_backup(tmp_path)


@pytest.mark.usefixtures("account")
def test_damaged_content_is_not_backed_up(data: Path, tmp_path: Path) -> None:
    flip(next(path for path in (data / ACCOUNT / "blobs").rglob("*") if len(path.name) == 64))

    with pytest.raises(PartitaError, match="BlobDamaged"):
        take(data, tmp_path / "backup")

    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.usefixtures("account")
def test_lost_content_is_not_backed_up(data: Path, tmp_path: Path) -> None:
    next(path for path in (data / ACCOUNT / "blobs").rglob("*") if len(path.name) == 64).unlink()

    with pytest.raises(PartitaError, match="BlobDamaged"):
        take(data, tmp_path / "backup")

    assert not (tmp_path / "backup").exists()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def a_content(backup: Path) -> Path:
    return next(path for path in sorted((backup / "blobs").rglob("*")) if path.is_file())


def link_file(backup: Path) -> None:
    path = a_content(backup)
    path.rename(backup / "elsewhere")
    path.symlink_to(backup / "elsewhere")


def link_folder(backup: Path) -> None:
    (backup / "blobs").rename(backup / "elsewhere")
    (backup / "blobs").symlink_to(backup / "elsewhere")


def pipe_file(backup: Path) -> None:
    path = a_content(backup)
    path.unlink()
    os.mkfifo(path)


def folder_for_file(backup: Path) -> None:
    path = a_content(backup)
    path.unlink()
    path.mkdir()


def forge(backup: Path, **changes: Any) -> None:
    """Change the manifest as one would who knows how it is checked."""
    manifest = decode((backup / "manifest.json").read_bytes())
    (backup / "manifest.json").write_bytes(encode(msgspec.structs.replace(manifest, **changes)))


def forge_contents(backup: Path, lines: bytes) -> None:
    (backup / "contents").write_bytes(lines)
    facts = decode((backup / "manifest.json").read_bytes()).contents
    sha256 = hashlib.sha256(lines).hexdigest()
    forge(backup, contents=msgspec.structs.replace(facts, sha256=sha256))


def without_first(backup: Path) -> None:
    first, *rest = (backup / "contents").read_bytes().splitlines(keepends=True)
    facts = decode((backup / "manifest.json").read_bytes()).contents
    size = int(first.split()[1])
    sha256 = hashlib.sha256(b"".join(rest)).hexdigest()
    (backup / "contents").write_bytes(b"".join(rest))
    changed = type(facts)(facts.files - 1, facts.bytes - size, sha256)
    forge(backup, contents=changed)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a byte of the database": lambda backup: flip(backup / "account.sqlite"),
    "a byte of a content": lambda backup: flip(a_content(backup)),
    "a byte of the list": lambda backup: flip(backup / "contents"),
    "a byte of the manifest": lambda backup: flip(backup / "manifest.json"),
    "no database": lambda backup: (backup / "account.sqlite").unlink(),
    "no list": lambda backup: (backup / "contents").unlink(),
    "no content": lambda backup: a_content(backup).unlink(),
    "no contents at all": lambda backup: (backup / "blobs").rename(backup / "elsewhere"),
    "a shorter database": lambda backup: os.truncate(backup / "account.sqlite", 8192),
    "a shorter content": lambda backup: os.truncate(a_content(backup), 100),
    "an empty manifest": lambda backup: os.truncate(backup / "manifest.json", 0),
    "a manifest that is a list": lambda backup: (backup / "manifest.json").write_text("[]"),
    "a link to a content": link_file,
    "a link to the contents": link_folder,
    "a pipe for a content": pipe_file,
    "a folder for a content": folder_for_file,
    "a list with an absolute name": lambda backup: forge_contents(backup, b"/etc/passwd 1\n"),
    "a list with a name above": lambda backup: forge_contents(backup, b"../" * 20 + b"x 1\n"),
    "a list with a number too large": lambda backup: forge_contents(
        backup, b"ab" * 32 + b" " + b"9" * 5000 + b"\n"
    ),
    "a list with a name twice": lambda backup: forge_contents(
        backup, (backup / "contents").read_bytes() * 2
    ),
    "a list without a content": without_first,
}


def plant(backup: Path, statement: str) -> None:
    """Change the database of a backup, and the manifest so that it agrees."""
    path = backup / "account.sqlite"
    with contextlib.closing(apsw.Connection(str(path))) as database:
        database.execute(statement)
    content = path.read_bytes()
    forge(backup, database=FileFacts(len(content), hashlib.sha256(content).hexdigest()))


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER planted AFTER INSERT ON message BEGIN DELETE FROM entity; END",
        "CREATE VIEW planted AS SELECT * FROM entity",
        "CREATE INDEX planted ON message (length(zeroblob(sequence)))",
        "CREATE TABLE planted (id, other AS (length(zeroblob(id))), CHECK (id <> 7))",
        "ALTER TABLE message ADD COLUMN planted AS (length(zeroblob(900000000)))",
    ],
)
def test_planted_code_in_the_database_of_a_backup_is_refused_before_it_runs(
    backup: Path, tmp_path: Path, statement: str
) -> None:
    plant(backup, statement)

    for work in (
        lambda: check_backup(backup),
        lambda: restore(backup, tmp_path / "new", clock=SystemClock()),
    ):
        with pytest.raises(PartitaError, match="The schema of the database is not that of Partita"):
            work()
    assert not (tmp_path / "new" / ACCOUNT).exists()


def test_check_of_a_backup_is_limited_by_the_size_of_its_database(
    backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "CHECK_STEPS_MIN", 100)
    monkeypatch.setattr(files, "CHECK_STEPS_PER_BYTE", 0)

    with pytest.raises(PartitaError, match="its size does not explain the steps of a check"):
        check_backup(backup)


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_backup_is_refused_and_nothing_is_made(
    backup: Path, tmp_path: Path, name: str
) -> None:
    DAMAGES[name](backup)

    for attempt in (
        lambda: check_backup(backup),
        lambda: restore(backup, tmp_path / "again", clock=SystemClock()),
    ):
        with pytest.raises(PartitaError, match=r"BackupDamaged|StoreDamaged"):
            attempt()

    assert list((tmp_path / "again").glob("*")) == []


@pytest.mark.parametrize("name", ["../evil", "/evil", "", ".", "a/b", "UPPER"])
def test_manifest_cannot_name_a_path(backup: Path, tmp_path: Path, name: str) -> None:
    forge(backup, account=name)

    with pytest.raises(PartitaError, match="is not a valid account name"):
        restore(backup, tmp_path / "again", clock=SystemClock())

    assert not (tmp_path / "again").exists()


def test_backup_of_a_later_format_is_refused(backup: Path) -> None:
    body = json.loads((backup / "manifest.json").read_text())["backup"]
    newer = {"format": 3, "backup": body, "check": check_of_format(3, body)}
    (backup / "manifest.json").write_text(json.dumps(newer))

    with pytest.raises(PartitaError, match=r"FormatVersion.*format 3; .*pip install"):
        check_backup(backup)


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_of_a_manifest_is_never_taken_for_another_format(
    backup: Path, bit: int
) -> None:
    whole = bytearray((backup / "manifest.json").read_bytes())
    whole[whole.index(b'"format": 1') + len(b'"format": ')] ^= 1 << bit
    (backup / "manifest.json").write_bytes(whole)

    with pytest.raises(PartitaError, match="BackupDamaged"):
        check_backup(backup)


def test_damaged_application_id_is_not_taken_for_that_of_another_program(
    account: LocalAccount, data: Path, tmp_path: Path
) -> None:
    account.close()
    path = data / ACCOUNT / "account.sqlite"
    image = bytearray(path.read_bytes())
    image[68] ^= 1  # application_id, in the header of the file
    path.write_bytes(image)

    with pytest.raises(PartitaError, match=r"StoreDamaged.*application id"):
        back_up(path.parent, tmp_path / "backup", clock=SystemClock())


# Increments


def take_changes(data: Path, target: Path, **options: Any) -> Increment:
    return back_up_changes(data / ACCOUNT, target, clock=SystemClock(), **options)


@pytest.fixture(scope="module")
def chained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, and a full backup and two increments: a blob and an entity change before each."""
    folder = tmp_path_factory.mktemp("chained")
    with partita.open_account(folder / "data") as account:
        photos = account.blobs.create_container("photos")
        photos.upload_blob("long-1", content_of(1))
        staff = account.tables.create_table("Staff")
        for number in (1, 2, 3):
            photos.upload_blob("long-0", content_of(number * 100), overwrite=True)
            staff.upsert_entity({"PartitionKey": "Sales", "RowKey": "1", "Name": f"Ken {number}"})
            (take if number == 1 else take_changes)(folder / "data", folder / "chain")
    return folder


@pytest.fixture
def chain(chained: Path, tmp_path: Path) -> Path:
    """Return a copy of the backups that a test may change."""
    return Path(shutil.copytree(chained / "chain", tmp_path / "chain"))


def as_of(chain: Path, root: Path, number: int | None) -> tuple[object, int]:
    """Restore a backup of the chain, and return the name of the entity and the blob's number."""
    restore(chain, root, up_to=number, clock=SystemClock())
    with partita.open_account(root) as account:
        name = account.tables.get_table_client("Staff").get_entity("Sales", "1")["Name"]
        photos = account.blobs.get_container_client("photos")
        content = photos.download_blob("long-0").readall()
        assert is_whole(content)
        assert photos.download_blob("long-1").readall() == content_of(1)
    return name, int.from_bytes(content[:8], "big")


def test_every_backup_of_a_chain_can_be_restored(chain: Path, tmp_path: Path) -> None:
    assert [as_of(chain, tmp_path / f"{number}", number) for number in (1, 2, 3, None)] == [
        ("Ken 1", 100),
        ("Ken 2", 200),
        ("Ken 3", 300),
        ("Ken 3", 300),
    ]


def test_increment_has_only_changed_pages_and_new_files(
    account: LocalAccount, data: Path, tmp_path: Path
) -> None:
    many = account.tables.create_table("Many")
    for number in range(3, 8):
        rows = [{"PartitionKey": f"{number}", "RowKey": f"{n}", "T": "x" * 5000} for n in range(50)]
        many.submit_transaction([("create", row) for row in rows])
    take(data, tmp_path / "backup")
    many.upsert_entity({"PartitionKey": "7", "RowKey": "7", "T": "changed"})
    account.blobs.get_container_client("photos").upload_blob("new", content_of(7))

    manifest = take_changes(data, tmp_path / "backup")

    increment = tmp_path / "backup" / "backup-000002"
    files = files_of(increment)
    digest = hashlib.sha256(content_of(7)).hexdigest()
    assert sorted(files) == sorted(
        ["contents", "increment.json", "pages", f"blobs/{digest[:2]}/{digest[2:4]}/{digest}"]
    )
    assert manifest.number == 2
    assert manifest.pages.bytes == len(files["pages"])
    assert 0 < manifest.pages.bytes < manifest.database.bytes / 3


def test_file_that_returns_is_found_in_an_earlier_backup(
    account: LocalAccount, backup: Path, data: Path, tmp_path: Path
) -> None:
    photos = account.blobs.get_container_client("photos")
    photos.delete_blob("long-3")
    until_collected(data, 4)
    take_changes(data, backup)
    photos.upload_blob("again", content_of(3))
    take_changes(data, backup)

    assert not (backup / "backup-000003" / "blobs").exists()
    restore(backup, tmp_path / "2", up_to=2, clock=SystemClock())
    assert len(list((tmp_path / "2" / ACCOUNT / "blobs").rglob("?" * 64))) == 4
    restore(backup, tmp_path / "3", clock=SystemClock())
    with partita.open_account(tmp_path / "3") as restored:
        again = restored.blobs.get_container_client("photos").download_blob("again")
        assert again.readall() == content_of(3)


def test_database_may_shrink_and_grow_between_increments(tmp_path: Path) -> None:
    folder = tmp_path / "data" / ACCOUNT

    def change(*statements: str) -> bytes:
        with contextlib.closing(apsw.Connection(str(folder / "account.sqlite"))) as database:
            for statement in statements:
                database.execute(statement)
            database.pragma("wal_checkpoint(truncate)")
        return (folder / "account.sqlite").read_bytes()

    with partita.open_account(tmp_path / "data") as account:
        account.tables.create_table("Staff")
    fill = "INSERT INTO setting VALUES (?, randomblob(300000))".replace("?", "'{}'")
    states = [change(fill.format(1))]
    take(tmp_path / "data", tmp_path / "backup")
    for statements in (
        ("DELETE FROM setting WHERE name = '1'", "VACUUM"),
        (fill.format(2),),
        (fill.format(3), fill.format(4)),
    ):
        states.append(change(*statements))
        take_changes(tmp_path / "data", tmp_path / "backup")

    assert len(states[1]) < len(states[0]) < len(states[3])
    for number, state in enumerate(states, 1):
        _, restored = restore(
            tmp_path / "backup", tmp_path / f"{number}", up_to=number, clock=SystemClock()
        )
        assert (restored / "account.sqlite").read_bytes()[100:] == state[100:]


def test_increment_needs_a_full_backup_of_the_same_account(
    backup: Path, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(PartitaError, match=r"FullBackupNeeded.*contains no backup"):
        take_changes(data, tmp_path / "empty")
    restore(backup, data, account="other", clock=SystemClock())
    with pytest.raises(PartitaError, match=r"FullBackupNeeded.*of another account"):
        back_up_changes(data / "other", backup, clock=SystemClock())

    assert not (tmp_path / "empty").exists()
    assert not list(backup.glob("backup-*"))


def forge_increment(folder: Path, **changes: Any) -> None:
    manifest = decode_increment((folder / "increment.json").read_bytes())
    changed = msgspec.structs.replace(manifest, **changes)
    (folder / "increment.json").write_bytes(encode(changed))


def another_increment(chain: Path) -> None:
    """Put an increment that continues another backup in the place of the second."""
    forge_increment(chain / "backup-000002", made_at="2000-01-01T00:00:00Z")


def swap_increments(chain: Path) -> None:
    (chain / "backup-000002").rename(chain / "aside")
    (chain / "backup-000003").rename(chain / "backup-000002")
    (chain / "aside").rename(chain / "backup-000003")


BROKEN: dict[str, Callable[[Path], Any]] = {
    "no increment": lambda chain: shutil.rmtree(chain / "backup-000002"),
    "no manifest": lambda chain: (chain / "backup-000002" / "increment.json").unlink(),
    "another increment": another_increment,
    "increments in another order": swap_increments,
    "another full backup": lambda chain: forge(chain, made_at="2000-01-01T00:00:00Z"),
    "another account": lambda chain: forge_increment(chain / "backup-000003", account="other"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_chain_is_refused_and_nothing_is_made(
    chain: Path, chained: Path, tmp_path: Path, name: str
) -> None:
    BROKEN[name](chain)

    for attempt in (
        lambda: check_backup(chain),
        lambda: restore(chain, tmp_path / "again", clock=SystemClock()),
        lambda: take_changes(chained / "data", chain),
    ):
        with pytest.raises(PartitaError, match="BackupChainBroken"):
            attempt()

    assert list((tmp_path / "again").glob("*")) == []
    restore(chain, tmp_path / "first", up_to=1, clock=SystemClock())


def forge_pages(chain: Path, pages: bytes) -> None:
    """Replace the pages of the newest increment, and its manifest with them."""
    (chain / "backup-000003" / "pages").write_bytes(pages)
    facts = FileFacts(len(pages), hashlib.sha256(pages).hexdigest())
    forge_increment(chain / "backup-000003", pages=facts)


def pages_of(chain: Path) -> bytes:
    return (chain / "backup-000003" / "pages").read_bytes()


PAGE_DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a byte of a page": lambda chain: flip(chain / "backup-000003" / "pages"),
    "no pages": lambda chain: (chain / "backup-000003" / "pages").unlink(),
    "fewer pages": lambda chain: os.truncate(chain / "backup-000003" / "pages", 8192),
    "a byte of the full backup": lambda chain: flip(chain / "account.sqlite"),
    "a byte of a new content": lambda chain: flip(a_content(chain / "backup-000003")),
    "a byte of the list": lambda chain: flip(chain / "backup-000003" / "contents"),
    "a byte of the manifest": lambda chain: flip(chain / "backup-000003" / "increment.json"),
    "other pages that the manifest admits": lambda chain: forge_pages(
        chain, bytes(8192) + pages_of(chain)[8192:]
    ),
    "a page far after the end": lambda chain: forge_pages(
        chain, pages_of(chain)[:-4] + b"\xff\xff\xff\xff"
    ),
    "a page twice": lambda chain: forge_pages(chain, bytes(2 * 8192) + bytes(8)),
    "a database without an end": lambda chain: forge_increment(
        chain / "backup-000003", database=FileFacts(10**18, "0" * 64)
    ),
}


@pytest.mark.parametrize("name", PAGE_DAMAGES)
def test_damaged_increment_is_refused_and_nothing_is_made(
    chain: Path, tmp_path: Path, name: str
) -> None:
    PAGE_DAMAGES[name](chain)

    for attempt in (
        lambda: check_backup(chain),
        lambda: restore(chain, tmp_path / "again", clock=SystemClock()),
    ):
        with pytest.raises(PartitaError, match="BackupDamaged"):
            attempt()

    assert list((tmp_path / "again").glob("*")) == []


def test_increment_to_a_damaged_backup_is_refused(chain: Path, chained: Path) -> None:
    flip(chain / "account.sqlite")

    with pytest.raises(PartitaError, match="BackupDamaged"):
        take_changes(chained / "data", chain)

    assert sorted(path.name for path in chain.glob("backup-*")) == [
        "backup-000002",
        "backup-000003",
    ]


def test_increment_while_blobs_are_replaced_is_one_moment(
    account: LocalAccount, backup: Path, data: Path, tmp_path: Path
) -> None:
    photos = account.blobs.get_container_client("photos")
    numbers = itertools.count(100)

    def replace_all(step: str, _done: int, _total: int) -> None:
        number = next(numbers)
        if step != "check" and number < 105:
            for name in range(5):
                photos.upload_blob(f"long-{name}", content_of(number * 10 + name), overwrite=True)
            until_collected(data, 5)

    replace_all("", 0, 0)
    take_changes(data, backup, progress=replace_all)

    restore(backup, tmp_path / "again", clock=SystemClock())
    with partita.open_account(tmp_path / "again") as again:
        restored = again.blobs.get_container_client("photos")
        contents = [restored.download_blob(f"long-{name}").readall() for name in range(5)]
    assert all(map(is_whole, contents))
    assert len({int.from_bytes(content[:8], "big") // 10 for content in contents}) == 1


def test_command_takes_increments_and_restores_each(
    account: LocalAccount, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "backup")
    backup = ["account", "backup", "--connect", str(data), "--to", target, "--json"]
    restoring = ["account", "restore", target, "--json", "--to"]

    assert main([*backup, "--incremental"]) == 2
    assert "Take a full backup" in capsys.readouterr().err
    assert main(backup) == 0
    account.tables.create_table("Later")
    assert main([*backup, "--incremental"]) == 0
    assert main(["account", "verify", target, "--json"]) == 0
    assert main([*restoring, str(tmp_path / "1"), "--up-to", "1"]) == 0
    assert main([*restoring, str(tmp_path / "2")]) == 0
    full, increment, checked, first, second = map(json.loads, capsys.readouterr().out.splitlines())

    assert (full["kind"], full["number"]) == ("full", 1)
    assert (increment["kind"], increment["number"]) == ("incremental", 2)
    assert increment["stored_bytes"] < increment["database_bytes"] == full["stored_bytes"]
    assert checked == increment
    assert first == full | {"path": str(tmp_path / "1" / ACCOUNT)}
    assert second == increment | {"path": str(tmp_path / "2" / ACCOUNT)}
    assert main([*restoring, str(tmp_path / "3"), "--up-to", "3"]) == 2
    assert main([*restoring, str(tmp_path / "3"), "--up-to", "newest"]) == 2
    errors = capsys.readouterr().err
    assert "contains the backups 1 to 2, but not 3. Give --up-to" in errors
    assert "'newest' is not the number of a backup" in errors


# The command line


@pytest.mark.usefixtures("account")
def test_command_prints_facts_as_json(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "backup")

    backup = ["account", "backup", "--connect", str(data)]
    assert main([*backup, "--to", target, "--json"]) == 0
    assert main(["account", "verify", target, "--json"]) == 0
    assert main(["account", "restore", target, "--to", str(tmp_path / "again"), "--json"]) == 0

    taken, checked, restored = map(json.loads, capsys.readouterr().out.splitlines())
    assert (taken["account"], taken["files"]) == (ACCOUNT, 5)
    assert checked == taken
    assert restored == taken | {"path": str(tmp_path / "again" / ACCOUNT)}


@pytest.mark.usefixtures("account")
def test_command_says_which_account_it_needs(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "other").mkdir()
    (data / "other" / "account.sqlite").write_bytes(b"")
    target = str(tmp_path / "backup")

    backup = ["account", "backup", "--connect", f"partita:{data}"]
    assert main([*backup, "--to", target]) == 2
    assert "several accounts: devstoreaccount1, other. Name one" in capsys.readouterr().err
    assert main([*backup, "--to", target, "--account", ACCOUNT]) == 0
    assert "5 files" in capsys.readouterr().out


def test_status_of_damage_is_1(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(a_content(backup))

    assert main(["account", "verify", str(backup)]) == 1
    assert main(["account", "restore", str(backup), "--to", str(tmp_path / "again")]) == 1

    assert capsys.readouterr().err.count("of the backup is damaged") == 2


def test_restore_needs_either_a_place_or_a_check(
    backup: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["account", "restore", str(backup)]) == 2
    assert main(["restore", str(backup), "--check", "--to", str(tmp_path / "again")]) == 2

    hint = "Give --to DATA; to verify a backup only, run `partita account verify`."
    assert capsys.readouterr().err.count(hint) == 2


@pytest.mark.usefixtures("account")
def test_old_names_of_the_verbs_work_and_print_a_note(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "backup")

    assert main(["backup", str(data), "--to", target, "--json"]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" use ")[2] for line in notes] == [
        "`partita account backup`.",
        "`--connect FOLDER`.",
    ]
    assert main(["restore", target, "--check", "--json"]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" use ")[2] for line in notes] == [
        "`partita account restore`.",
        "`partita account verify BACKUP`.",
    ]
    assert main(["restore", target, "--to", str(tmp_path / "again"), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == (
        "partita: note: `partita restore` is an old form and will be removed:"
        " use `partita account restore`.\n"
    )
    assert json.loads(captured.out)["path"] == str(tmp_path / "again" / ACCOUNT)
