"""Everything that an account stores is read at a bounded rate; damage is reported and moved."""

import asyncio
import contextlib
import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import apsw
import pytest
from azure.core.exceptions import HttpResponseError

import partita
from partita.blobs.store.files import FolderFiles
from partita.cli.config import load
from partita.cli.main import main
from partita.cli.serve import build
from partita.clock import ManualClock, SystemClock
from partita.errors import ConfigurationError
from partita.service.accounts.account import DEVELOPMENT_KEY
from partita.service.backup.scrubbing import Scrubber, ScrubRecord, read_record, write_record
from partita.service.backup.verifying import (
    Damage,
    Pace,
    Stopped,
    Verified,
    stored_bytes,
    verify_account,
)
from support.accounts import open_folder_account

ACCOUNT = "devstoreaccount1"
LONG = [bytes([number]) * 200_000 for number in range(3)]
"""Contents that are in files of their own."""
DIGESTS = [hashlib.sha256(content).hexdigest() for content in LONG]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    with partita.open_account(folder) as account:
        photos = account.blobs.create_container("photos")
        for number, content in enumerate(LONG):
            photos.upload_blob(f"long-{number}", content)
        photos.upload_blob("short", b"in its row")
        staff = account.tables.create_table("Staff")
        staff.create_entity({"PartitionKey": "Sales", "RowKey": "1", "Name": "Ken"})
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the data that a test may damage."""
    target = tmp_path / "data"
    for path in made.rglob("*"):
        if path.is_file():
            copy = target / path.relative_to(made)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    return target


def file_of(data: Path, digest: str) -> Path:
    return data / ACCOUNT / "blobs" / digest[:2] / digest[2:4] / digest


def place_of(digest: str) -> str:
    return f"blobs/{digest[:2]}/{digest[2:4]}/{digest}"


def flip(path: Path) -> bytes:
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    return bytes(content)


def execute(data: Path, statement: str) -> None:
    with contextlib.closing(apsw.Connection(str(data / ACCOUNT / "account.sqlite"))) as database:
        database.execute(statement)
        database.pragma("wal_checkpoint(truncate)")


def fast() -> Pace:
    return Pace(1e12, SystemClock().monotonic, lambda _seconds: False)


def verify(data: Path, pace: Pace | None = None, **options: Any) -> Verified:
    folder = data / ACCOUNT
    return verify_account(folder, pace or fast(), FolderFiles(folder).quarantine, **options)


# What is found


def test_sound_account_is_read_from_end_to_end(data: Path) -> None:
    size = (data / ACCOUNT / "account.sqlite").stat().st_size

    assert verify(data) == Verified(3, 600_000, 7, size, [])
    assert stored_bytes(data / ACCOUNT) == 600_000 + size


def test_flipped_bit_in_a_file_is_found_and_the_file_is_moved_to_quarantine(data: Path) -> None:
    content = flip(file_of(data, DIGESTS[1]))

    assert verify(data).damage == [
        Damage(
            place_of(DIGESTS[1]),
            "the bytes are not those that were written",
            ["photos/long-1"],
            is_quarantined=True,
        )
    ]

    assert not file_of(data, DIGESTS[1]).exists()
    quarantined = data / ACCOUNT / "blobs" / "quarantine" / DIGESTS[1]
    assert quarantined.read_bytes() == content
    assert verify(data).damage == [
        Damage(place_of(DIGESTS[1]), "the file is missing", ["photos/long-1"])
    ]


def test_blob_in_quarantine_is_refused_until_it_is_uploaded_again(data: Path) -> None:
    flip(file_of(data, DIGESTS[1]))
    verify(data)

    with partita.open_account(data) as account:
        photos = account.blobs.get_container_client("photos")
        with pytest.raises(HttpResponseError):
            photos.download_blob("long-1", retry_total=0)
        rest = photos.download_blob("long-1", offset=150_000)
        assert rest.readall() == LONG[1][150_000:]
        assert photos.download_blob("long-0").readall() == LONG[0]
        photos.upload_blob("again", LONG[1])
        assert photos.download_blob("long-1").readall() == LONG[1]
    assert verify(data).damage == []


def test_deleted_blob_leaves_nothing_in_quarantine(data: Path) -> None:
    flip(file_of(data, DIGESTS[1]))
    verify(data)
    quarantined = data / ACCOUNT / "blobs" / "quarantine" / DIGESTS[1]

    with partita.open_account(data) as account:
        account.blobs.get_container_client("photos").delete_blob("long-1")
        while quarantined.exists():
            pass  # the collector removes it in the background

    assert verify(data).damage == []


ROW_DAMAGES: dict[str, tuple[str, list[Damage]]] = {
    "bytes in a row": (
        "UPDATE extent SET bytes = x'00000000000000000000' WHERE hash IS NULL",
        [
            Damage(
                "extent 4",
                "The stored content of a blob is damaged: its bytes do not match their checksums.",
                ["photos/short"],
            )
        ],
    ),
    "facts of a blob": (
        "UPDATE blob SET facts = x'0000' WHERE name = 'short'",
        [
            Damage(
                "blob short of container 1, snapshot 9223372036854775807",
                "The stored properties of a blob or container are damaged.",
            )
        ],
    ),
    "facts of a container": (
        "UPDATE container SET facts = x'0000'",
        [Damage("container 1 photos", "The stored properties of a blob or container are damaged.")],
    ),
    "document of an entity": (
        "UPDATE entity SET document = substr(document, 2)",
        [Damage("entity 'Sales', '1' of table 1", "its bytes do not match their checksum")],
    ),
    "document of an entity without a checksum": (
        "UPDATE entity SET document = CAST('x}' AS BLOB)",
        [Damage("entity 'Sales', '1' of table 1", "its document cannot be decoded")],
    ),
    "key of an entity": (
        "UPDATE entity SET rk = '2'",
        [Damage("entity 'Sales', '2' of table 1", "its document does not match its row")],
    ),
}


@pytest.mark.parametrize("name", ROW_DAMAGES)
def test_damaged_row_is_found(data: Path, name: str) -> None:
    statement, damage = ROW_DAMAGES[name]
    execute(data, statement)

    assert verify(data).damage == damage


def test_damaged_page_of_the_database_does_not_hide_other_damage(data: Path) -> None:
    with contextlib.closing(apsw.Connection(str(data / ACCOUNT / "account.sqlite"))) as database:
        page: Any = database.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'entity'").get
    content = bytearray((data / ACCOUNT / "account.sqlite").read_bytes())
    content[(page - 1) * 8192] = 0xFF  # the type of the page: none
    (data / ACCOUNT / "account.sqlite").write_bytes(content)
    file_of(data, DIGESTS[0]).unlink()

    damage = verify(data).damage

    assert damage[0] == Damage(place_of(DIGESTS[0]), "the file is missing", ["photos/long-0"])
    assert {each.place for each in damage[1:]} == {"account.sqlite"}


def test_file_that_is_replaced_while_it_is_read_is_not_moved(data: Path) -> None:
    path = file_of(data, DIGESTS[0])
    flip(path)
    looks = 0

    def wait(_seconds: float) -> bool:
        """Replace the file after the first look, as an upload does."""
        nonlocal looks
        looks += 1
        if looks == 1:
            (data / "new").write_bytes(LONG[0])
            (data / "new").replace(path)
        return False

    assert verify(data, Pace(1e12, SystemClock().monotonic, wait)).damage == []
    assert path.read_bytes() == LONG[0]


# The rate


def test_rate_is_bounded_and_lost_time_is_not_made_up_for() -> None:
    clock = ManualClock()
    waited: list[float] = []

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        clock.advance(seconds)
        return False

    pace = Pace(1000, clock.monotonic, wait)
    for size in (500, 2000):
        pace.spend(size)
    clock.advance(60)
    pace.spend(1000)

    assert waited == pytest.approx([0.5, 2.0, 1.0])


def test_verification_stops_when_it_is_told_to(data: Path) -> None:
    pace = Pace(1, SystemClock().monotonic, lambda _seconds: True)

    with pytest.raises(Stopped):
        verify(data, pace)


def test_verification_continues_after_a_file(data: Path) -> None:
    first = min(DIGESTS)
    reached: list[str] = []

    verified = verify(
        data,
        after=bytes.fromhex(first),
        reached=lambda content: reached.append(content.digest.hex()),
    )

    assert (verified.files, reached) == (2, sorted(DIGESTS)[1:])


# The command


def verify_command(data: Path, *more: str) -> int:
    return main(["verify", "--connect", str(data), "--rate", "10000", "--json", *more])


def test_command_reports_damage_with_status_1_and_moves_the_file(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verify_command(data) == 0
    flip(file_of(data, DIGESTS[2]))
    assert verify_command(data) == 1

    sound, damaged = map(json.loads, capsys.readouterr().out.splitlines())
    assert (sound["is_sound"], sound["files"], sound["damage"]) == (True, 3, [])
    assert damaged == sound | {
        "is_sound": False,
        "damage": [
            {
                "place": place_of(DIGESTS[2]),
                "reason": "the bytes are not those that were written",
                "blobs": ["photos/long-2"],
                "is_quarantined": True,
            }
        ],
    }


def test_command_moves_nothing_while_the_account_is_open_elsewhere(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(file_of(data, DIGESTS[2]))

    with partita.open_account(data):
        assert verify_command(data) == 1

    found = json.loads(capsys.readouterr().out)
    assert (found["is_served"], found["damage"][0]["is_quarantined"]) == (True, False)
    assert file_of(data, DIGESTS[2]).exists()


def test_command_refuses_a_wrong_rate(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--connect", str(data), "--rate", "0"]) == 2

    assert "Give --rate a whole number of MiB per second" in capsys.readouterr().err


# The scrub of a served account


@contextlib.asynccontextmanager
async def opened(data: Path, clock: ManualClock) -> Any:
    account = await open_folder_account(ACCOUNT, [DEVELOPMENT_KEY], root=data, clock=clock)
    scrubber = Scrubber(data / ACCOUNT, account.blobs.store, 1e-6, clock)
    try:
        yield account, scrubber
    finally:
        await scrubber.close()
        await account.close()


async def test_scrub_moves_a_damaged_file_of_an_open_account_and_logs_it(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    async with opened(data, clock) as (_account, scrubber):
        flip(file_of(data, DIGESTS[1]))
        verified = await scrubber.scrub()

    damage = Damage(
        place_of(DIGESTS[1]),
        "the bytes are not those that were written",
        ["photos/long-1"],
        is_quarantined=True,
    )
    assert verified.damage == [damage]
    record = read_record(data / ACCOUNT)
    assert (record.after, record.damage) == ("", [damage])
    assert f"damage in account {ACCOUNT}: {damage.text}" in caplog.text
    assert (data / ACCOUNT / "scrub.json").stat().st_mode & 0o077 == 0


async def test_file_that_an_upload_claims_is_not_moved(data: Path) -> None:
    async with opened(data, ManualClock()) as (account, _scrubber):
        flip(file_of(data, DIGESTS[1]))
        store = account.blobs.store
        await store.claims.claim(bytes.fromhex(DIGESTS[1]))

        assert not await store.quarantine(bytes.fromhex(DIGESTS[1]))

        store.claims.release(bytes.fromhex(DIGESTS[1]))
        assert not await store.quarantine(bytes.fromhex(DIGESTS[0])), "it is sound"
        assert await store.quarantine(bytes.fromhex(DIGESTS[1]))


async def test_scrub_continues_where_a_restart_stopped_it(data: Path) -> None:
    before = Damage("blobs/x", "the file is missing")
    stopped = ScrubRecord(begun_at=7, after=min(DIGESTS), damage=[before])
    write_record(data / ACCOUNT, stopped)

    async with opened(data, ManualClock()) as (_account, scrubber):
        assert (await scrubber.scrub()).files == 2

    record = read_record(data / ACCOUNT)
    assert (record.begun_at, record.after, record.damage) == (7, "", [before])


@pytest.mark.parametrize("content", [b"", b"[]", b'{"format": 2}', b'{"after": "zz"}'])
def test_record_that_cannot_be_read_begins_a_new_scrub(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "scrub.json").write_bytes(content)

    assert read_record(tmp_path) == ScrubRecord()


async def test_scrub_runs_in_the_background_and_ends_with_the_server(data: Path) -> None:
    async with opened(data, ManualClock()) as (_account, scrubber):
        scrubber.start()
        while not read_record(data / ACCOUNT).finished_at:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("days", "is_scrubbed"), [("7", True), ("0", False)])
async def test_server_scrubs_its_accounts_unless_it_is_turned_off(
    data: Path, days: str, *, is_scrubbed: bool
) -> None:
    flip(file_of(data, DIGESTS[1]))
    config = load({"path": str(data), "scrub_days": days}, {})

    async with build(config):
        while is_scrubbed and file_of(data, DIGESTS[1]).exists():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)

    assert file_of(data, DIGESTS[1]).exists() is not is_scrubbed


@pytest.mark.parametrize("days", ["-1", "366", "1.5", "week"])
def test_days_of_a_scrub_are_a_whole_number(days: str) -> None:
    with pytest.raises(ConfigurationError, match="A whole number of days from 0"):
        load({"scrub_days": days}, {})
