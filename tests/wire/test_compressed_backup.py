"""Compressed backups: smaller, verified like others, and mixed with others in a chain."""

import itertools
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

import partita
from partita.cli.main import main
from partita.clock import SystemClock
from partita.errors import PartitaError
from partita.service.backup.compression import Compression, best_compression
from partita.service.backup.manifest import decode
from partita.service.backup.restoring import check_backup, restore
from partita.service.backup.taking import back_up, back_up_changes
from partita.service.hosting.in_process import LocalAccount
from support.repeats import sample_pairs

ACCOUNT = "devstoreaccount1"
LONG = b"long content " * 20_000
COMPRESSIONS = [Compression.GZIP, Compression.ZSTD]
FAULTS = list(
    itertools.product(
        ["account.sqlite", "pages", "content"],
        ["flip", "cut", "missing", "garbage"],
        COMPRESSIONS,
    )
)


@pytest.fixture
def account(tmp_path: Path) -> Iterator[LocalAccount]:
    with partita.open_account(tmp_path / "data") as account:
        account.blobs.create_container("photos").upload_blob("long", LONG)
        put(account, "first", range(300))
        yield account


def put(account: LocalAccount, text: str, rows: range) -> None:
    table = account.tables.create_table_if_not_exists("Staff")
    entities = [{"PartitionKey": "p", "RowKey": f"{row}", "Text": text * 50} for row in rows]
    for first in range(0, len(entities), 100):
        table.submit_transaction([("upsert", each) for each in entities[first : first + 100]])


def texts(folder: Path) -> dict[str, str]:
    with partita.open_account(folder) as account:
        blob = account.blobs.get_blob_client("photos", "long")
        assert blob.download_blob().readall() == LONG
        rows = account.tables.get_table_client("Staff").list_entities()
        return {row["RowKey"]: row["Text"] for row in rows}


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("how", COMPRESSIONS)
@pytest.mark.usefixtures("account")
def test_compressed_backup_is_smaller_and_restores_everything(
    tmp_path: Path, how: Compression
) -> None:
    data = tmp_path / "data" / ACCOUNT
    back_up(data, tmp_path / "plain", clock=SystemClock())
    back_up(data, tmp_path / "small", clock=SystemClock(), compression=how)

    assert size_of(tmp_path / "small") < size_of(tmp_path / "plain") // 3
    assert check_backup(tmp_path / "small").compression is how
    restore(tmp_path / "small", tmp_path / "again", clock=SystemClock())
    assert texts(tmp_path / "again") == {f"{row}": "first" * 50 for row in range(300)}


@pytest.mark.parametrize(
    "chain",
    [
        [Compression.ZSTD, Compression.NONE, Compression.GZIP],
        pytest.param([Compression.GZIP] * 3, marks=pytest.mark.proof),
        pytest.param(
            [Compression.NONE, Compression.ZSTD, Compression.NONE], marks=pytest.mark.proof
        ),
    ],
)
def test_backups_of_a_chain_may_be_compressed_in_different_ways(
    account: LocalAccount, tmp_path: Path, chain: list[Compression]
) -> None:
    data, target = tmp_path / "data" / ACCOUNT, tmp_path / "backup"
    first, second, third = chain
    back_up(data, target, clock=SystemClock(), compression=first)
    put(account, "second", range(100, 500))
    back_up_changes(data, target, clock=SystemClock(), compression=second)
    put(account, "third", range(200))
    account.blobs.get_container_client("photos").upload_blob("new", LONG + b"!")
    back_up_changes(data, target, clock=SystemClock(), compression=third)
    check_backup(target)

    restored = {}
    for number in (1, 2, 3):
        restore(target, tmp_path / f"{number}", up_to=number, clock=SystemClock())
        restored[number] = texts(tmp_path / f"{number}")

    assert len(restored[1]) == 300
    assert (restored[2]["99"], restored[2]["499"]) == ("first" * 50, "second" * 50)
    assert (restored[3]["199"], restored[3]["200"]) == ("third" * 50, "second" * 50)


@pytest.mark.parametrize(("file", "fault", "how"), sample_pairs(FAULTS, 11))
def test_damaged_compressed_file_is_found(
    account: LocalAccount, tmp_path: Path, how: Compression, fault: str, file: str
) -> None:
    data, target = tmp_path / "data" / ACCOUNT, tmp_path / "backup"
    back_up(data, target, clock=SystemClock(), compression=how)
    put(account, "second", range(5))
    back_up_changes(data, target, clock=SystemClock(), compression=how)
    paths = {
        "account.sqlite": target / f"account.sqlite{how.suffix}",
        "pages": target / "backup-000002" / f"pages{how.suffix}",
        "content": next(path for path in (target / "blobs").rglob("*") if path.is_file()),
    }
    whole = paths[file].read_bytes()
    half = len(whole) // 2
    if fault == "missing":
        paths[file].unlink()
    else:
        flipped = whole[:half] + bytes([whole[half] ^ 0x10]) + whole[half + 1 :]
        broken = {"flip": flipped, "cut": whole[:half], "garbage": b"not compressed"}
        paths[file].write_bytes(broken[fault])

    with pytest.raises(PartitaError, match="BackupDamaged"):
        check_backup(target)
    with pytest.raises(PartitaError, match="BackupDamaged"):
        restore(target, tmp_path / "again", clock=SystemClock())
    assert not (tmp_path / "again" / ACCOUNT).exists()


@pytest.mark.usefixtures("account")
def test_small_file_that_expands_without_end_is_damage(tmp_path: Path) -> None:
    data, target = tmp_path / "data" / ACCOUNT, tmp_path / "backup"
    back_up(data, target, clock=SystemClock(), compression=Compression.ZSTD)
    machine = zstandard.ZstdCompressor().compressobj()
    bomb = b"".join(machine.compress(bytes(1024 * 1024)) for _ in range(200)) + machine.flush()
    assert len(bomb) < 100_000
    (target / "account.sqlite.zst").write_bytes(bomb)

    with pytest.raises(PartitaError, match="BackupDamaged"):
        check_backup(target)


@pytest.mark.usefixtures("account")
def test_format_of_plain_backups_is_the_one_of_earlier_versions(tmp_path: Path) -> None:
    data = tmp_path / "data" / ACCOUNT
    back_up(data, tmp_path / "plain", clock=SystemClock())
    back_up(data, tmp_path / "small", clock=SystemClock(), compression=Compression.GZIP)

    plain, small = (
        json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("plain", "small")
    )

    assert (plain["format"], small["format"]) == (1, 2)
    assert "compression" not in plain["backup"]
    assert small["backup"]["compression"] == "gzip"
    small["format"] = 1
    with pytest.raises(PartitaError, match="BackupDamaged"):
        decode(json.dumps(small).encode())


@pytest.mark.usefixtures("account")
def test_without_the_package_of_zstd_gzip_is_used_and_zstd_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data" / ACCOUNT
    assert best_compression() is Compression.ZSTD
    back_up(data, tmp_path / "small", clock=SystemClock(), compression=Compression.ZSTD)
    monkeypatch.setitem(sys.modules, "zstandard", None)

    assert best_compression() is Compression.GZIP
    with pytest.raises(PartitaError, match=r"zstandard is not installed.*partita\[zstd\]"):
        check_backup(tmp_path / "small")


@pytest.mark.usefixtures("account")
def test_command_compresses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["account", "backup", "--connect", str(tmp_path / "data"), "--compress", "--json"]

    assert main([*words, "--to", str(tmp_path / "backup")]) == 0
    assert main([*words, "--to", str(tmp_path / "backup"), "--incremental"]) == 0
    assert main(["account", "verify", str(tmp_path / "backup"), "--json"]) == 0

    first, second, checked = map(json.loads, capsys.readouterr().out.splitlines())
    assert [each["compression"] for each in (first, second, checked)] == ["zstd"] * 3


@pytest.mark.usefixtures("account")
def test_verification_of_a_compressed_backup_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    backup = tmp_path / "small"
    data = tmp_path / "data" / ACCOUNT
    back_up(data, backup, clock=SystemClock(), compression=Compression.GZIP)
    killed = backup / "verifying-killed"
    killed.mkdir()
    (killed / "account.sqlite").write_bytes(b"half")
    names = {path.name for path in backup.iterdir()}

    check_backup(backup)

    assert {path.name for path in backup.iterdir()} == names - {"verifying-killed"}


@pytest.mark.usefixtures("account")
def test_verification_without_space_for_the_database_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = tmp_path / "small"
    data = tmp_path / "data" / ACCOUNT
    back_up(data, backup, clock=SystemClock(), compression=Compression.GZIP)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))

    with pytest.raises(PartitaError, match="is expanded to be checked") as caught:
        check_backup(backup)

    assert "Free space" in caught.value.hint
    assert not list(backup.glob("verifying-*"))
