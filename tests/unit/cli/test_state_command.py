"""`partita state` on real folders: of states that were closed, killed, damaged, backed up."""

import asyncio
import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

import partita
from partita.cli.main import main
from partita.clock import ManualClock, SystemClock
from partita.reliable import StateManager, Transaction
from partita.reliable.observing.plain_rows import plain_key, plain_value
from partita.reliable.state.state import State
from partita.reliable.storage import increments
from partita.reliable.storage.checkpoint import read_file, write_file
from partita.reliable.storage.os_disk import OsDisk
from partita.ticks import TICKS_PER_SECOND
from support.terminal import run_on_terminal

Capture = pytest.CaptureFixture[str]


class User(msgspec.Struct, frozen=True):
    email: str
    age: int = 0
    photo: bytes = b""
    seen: datetime | None = None


class Job(msgspec.Struct, frozen=True):
    text: str


ADA = User("ada@example.org", 36, b"\x00\xff", datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC))
EVE = User("eve@example.org")


async def fill(state: StateManager) -> None:
    """Seven commits: the last one writes the rows, the others make collections and an index."""
    users = await state.dictionary(
        "users", key=str, value=User, indexes={"email": lambda user: user.email}
    )
    jobs = await state.queue("jobs", value=Job)
    work = await state.concurrent_queue("work", value=str)

    async def write(tx: Transaction) -> int:
        await users.set(tx, "ada", ADA)
        await users.set(tx, "eve", EVE, ttl=3600)
        await jobs.enqueue(tx, Job("first"))
        await jobs.enqueue(tx, Job("second"))
        await work.enqueue(tx, "hidden", delay=3600)
        await work.enqueue(tx, "ready")
        return 2

    await state.run(write, idempotency_key="the-first")


async def add_users(state: StateManager, count: int, start: int = 0) -> None:
    users = await state.dictionary("users", key=str, value=User)
    for number in range(start, start + count):
        async with state.transaction() as tx:
            await users.set(tx, f"user-{number:04}", User(f"{number}@example.org", number))


def with_state(path: Path, *steps: Callable[[StateManager], Awaitable[object]]) -> None:
    async def work() -> None:
        async with partita.open_state(path) as state:
            for step in steps:
                await step(state)

    asyncio.run(work())


def copied_while_open(
    path: Path, copy: Path, *steps: Callable[[StateManager], Awaitable[object]]
) -> None:
    """Leave in `copy` what a kill -9 would have left in `path`."""

    async def kill(_state: StateManager) -> None:
        shutil.copytree(path, copy)

    with_state(path, *steps, kill)


def connected(*arguments: str | Path) -> list[str]:
    """Name the target of a verb with --connect."""
    verb, *rest = map(str, arguments)
    has_target = verb in ("inspect", "verify", "backup", "export") and rest
    return [verb, *(("--connect",) if has_target else ()), *rest]


def run_json(capsys: Capture, *arguments: str | Path, status: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["state", *connected(*arguments), "--json"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.count("\n") == 1
    found: dict[str, Any] = json.loads(captured.out)
    return found


def refusal(capsys: Capture, *arguments: str | Path, status: int = 2) -> str:
    capsys.readouterr()
    assert main(["state", *connected(*arguments)]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("partita: ")
    assert captured.err.count("\n") == 1
    return captured.err


def content_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir()) if file.name != "lock"}


def only(path: Path, pattern: str) -> Path:
    (found,) = path.glob(pattern)
    return found


def flip(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 0x40
    file.write_bytes(content)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "state"
    with_state(path, fill)
    return path


# inspect


def test_inspect_says_what_a_state_holds(folder: Path, capsys: Capture) -> None:
    before = content_of(folder)

    found = run_json(capsys, "inspect", folder)

    rows = {one["name"]: one for one in found["collections"]}
    assert found["path"] == str(folder)
    assert found["sequence"] == found["log"]["last"] == 7
    assert found["log"] == {
        "first": 1,
        "last": 7,
        "bytes": len(before["log-00000000000000000001.part"]),
        "segments": 1,
    }
    assert found["epoch"] == 1
    assert datetime.fromisoformat(found["last_commit"]).tzinfo == UTC
    assert found["checkpoint"] is None
    assert found["outcomes"] == 1
    assert found["torn_tail"] is None
    assert list(rows) == ["jobs", "users", "work"]
    assert rows["users"]["kind"] == "dictionary"
    assert (rows["users"]["key"], rows["users"]["value"]) == ("str", "User")
    assert (rows["users"]["count"], rows["users"]["written_version"]) == (2, 1)
    assert rows["users"]["bytes"] > 40
    (index,) = rows["users"]["indexes"]
    assert (index["name"], index["is_ready"], index["count"]) == ("email", True, 2)
    assert (rows["jobs"]["kind"], rows["jobs"]["count"]) == ("queue", 2)
    assert (rows["work"]["kind"], rows["work"]["count"]) == ("concurrent_queue", 2)
    assert content_of(folder) == before


def test_inspect_in_words_names_collections_and_files(folder: Path, capsys: Capture) -> None:
    with_state(folder, StateManager.checkpoint)

    assert main(["state", "inspect", "--connect", str(folder)]) == 0

    text = capsys.readouterr().out
    assert "checkpoint  record 7, " in text
    assert "log         no records" in text
    assert "1 idempotency keys kept" in text
    assert "Durability is chosen by the program" in text
    assert any(line.split()[:3] == ["users", "dictionary", "str"] for line in text.splitlines())
    assert "email (2)" in text


def test_inspect_counts_the_log_behind_the_checkpoint(folder: Path, capsys: Capture) -> None:
    with_state(folder, StateManager.checkpoint, lambda state: add_users(state, 3))

    found = run_json(capsys, "inspect", folder)

    assert found["checkpoint"]["sequence"] == 7
    assert found["checkpoint"]["bytes"] == only(folder, "checkpoint-*").stat().st_size
    # Code that does not know the index says so in the log before it writes.
    assert (found["log"]["first"], found["log"]["last"]) == (8, found["sequence"])
    (index,) = next(one for one in found["collections"] if one["name"] == "users")["indexes"]
    assert index["is_ready"] is False


def test_a_state_that_is_open_elsewhere_names_its_holder(folder: Path, capsys: Capture) -> None:
    code = (
        "import asyncio, sys, partita\n"
        "async def main():\n"
        "    async with partita.open_state(sys.argv[1]):\n"
        "        print('open', flush=True)\n"
        "        sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"

        told = [
            refusal(capsys, *arguments)
            for arguments in (
                ("inspect", folder),
                ("verify", folder),
                ("export", folder),
                ("backup", folder, "--to", folder.parent / "backups"),
            )
        ]

        holder.communicate(b"")
    for line in told:
        assert f"process {holder.pid}" in line
        assert "Stop that process, or use a backup" in line


@pytest.mark.parametrize("verb", ["inspect", "verify", "export"])
def test_a_folder_without_a_state_is_refused_and_left_alone(
    verb: str, tmp_path: Path, capsys: Capture
) -> None:
    assert "cannot be read" in refusal(capsys, verb, tmp_path / "missing")
    assert "holds no state" in refusal(capsys, verb, tmp_path)
    assert "holds no state" in refusal(capsys, "backup", tmp_path, "--to", tmp_path / "backups")

    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", ["inspect", "verify", "export"])
def test_a_folder_as_an_argument_works_and_prints_a_note(
    verb: str, folder: Path, capsys: Capture
) -> None:
    assert main(["state", verb, str(folder), "--quiet"]) == 0

    captured = capsys.readouterr()
    assert captured.out
    assert captured.err == (
        f"partita: note: an argument of `partita state {verb}` is an old form and will be removed:"
        " use `--connect FOLDER`.\n"
    )


def test_the_variable_names_the_folder(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_CONNECT", f"partita:{folder}")

    assert run_json(capsys, "verify")["path"] == str(folder)
    monkeypatch.setenv("PARTITA_CONNECT", "nats://127.0.0.1:4222")
    assert "must be a folder here" in refusal(capsys, "verify")


# verify


def test_a_sound_state_is_verified_and_not_changed(folder: Path, capsys: Capture) -> None:
    before = content_of(folder)

    found = run_json(capsys, "verify", folder)

    assert found["is_sound"] is True
    assert (found["sequence"], found["epoch"]) == (7, 1)
    assert len(found["digest"]) == 32
    assert found["damage"] == found["notes"] == []
    assert found["marks"]["newest"] == 7
    assert found["marks"]["unreadable_bytes"] == 0
    assert found["checkpoint"] is found["torn_tail"] is None
    assert content_of(folder) == before


def test_the_digest_is_that_of_the_state(folder: Path, capsys: Capture) -> None:
    digests = []

    async def note(state: StateManager) -> None:
        digests.append(state.state.digest())

    with_state(folder, note)
    assert run_json(capsys, "verify", folder)["digest"] == digests[0]

    with_state(folder, StateManager.checkpoint)
    assert run_json(capsys, "verify", folder)["digest"] == digests[0]


def test_a_log_that_reaches_back_must_make_the_state_of_the_checkpoint(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    async def backup_and_more(state: StateManager) -> None:
        await state.backup(tmp_path / "backups")  # from here on the log is kept for the next one
        await add_users(state, 5)
        await state.checkpoint()
        await add_users(state, 5, start=5)

    with_state(folder, backup_and_more)
    found = run_json(capsys, "verify", folder)
    assert found["log"]["first"] == 1
    assert 0 < found["checkpoint"]["sequence"] < found["sequence"]
    assert found["is_rebuilt_from_nothing"] is True

    replace_checkpoint_by_another(only(folder, "checkpoint-*"))

    found = run_json(capsys, "verify", folder, status=1)
    assert found["is_sound"] is found["is_rebuilt_from_nothing"] is False
    assert [one["code"] for one in found["damage"]] == ["CheckpointDamaged"]
    assert "another state than the log" in found["damage"][0]["message"]


def replace_checkpoint_by_another(file: Path) -> None:
    """Write a checkpoint whose checksums are right and one of whose rows is not."""

    async def work() -> None:
        disk, state = OsDisk(file.parent), State()
        try:
            await read_file(disk, file.name, state)
            users = state.find("users")
            assert users is not None
            users.rows.values.put(next(iter(users.rows.values)), b"\x00\x01\xa3not", 0)
            await write_file(disk, file.name, state)
        finally:
            disk.close()

    asyncio.run(work())


@pytest.mark.parametrize("part", ["heading", "first record", "middle", "last record"])
def test_a_flipped_byte_of_the_log_is_found_where_it_is(
    part: str, folder: Path, capsys: Capture
) -> None:
    log = only(folder, "log-*.part")
    size = log.stat().st_size
    flip(
        log, {"heading": 20, "first record": 90, "middle": size // 2, "last record": size - 3}[part]
    )
    before = content_of(folder)

    found = run_json(capsys, "verify", folder, status=1)
    assert main(["state", "verify", "--connect", str(folder)]) == 1
    text = capsys.readouterr().out

    (damage,) = found["damage"]
    assert found["is_sound"] is False
    assert found["digest"] is found["sequence"] is None
    assert damage["file"] == log.name
    assert damage["code"] == "LogDamaged"
    assert damage["hint"]
    assert text.startswith(f"{folder} is damaged.\n")
    assert log.name in text
    assert "restore a backup" in text
    if part == "last record":
        assert damage["sequence"] == 7
        assert f"byte {damage['offset']}, record 7" in text
        assert size - 1000 < damage["offset"] < size - 3
    assert content_of(folder) == before


@pytest.mark.parametrize("place", [0, 10, 40, -60, -1], ids=str)
def test_a_flipped_byte_of_the_checkpoint_is_found(
    place: int, folder: Path, capsys: Capture
) -> None:
    with_state(folder, StateManager.checkpoint)
    checkpoint = only(folder, "checkpoint-*")
    flip(checkpoint, place)

    found = run_json(capsys, "verify", folder, status=1)

    assert [one["file"] for one in found["damage"]] == [checkpoint.name]
    assert found["damage"][0]["offset"] is not None or place == 10
    assert not any("Move that file to another folder" in note for note in found["notes"])


def test_a_damaged_checkpoint_that_nobody_needs_is_told_so(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    async def backup_and_more(state: StateManager) -> None:
        await state.backup(tmp_path / "backups")
        await add_users(state, 5)
        await state.checkpoint()

    with_state(folder, backup_and_more)
    digest = run_json(capsys, "verify", folder)["digest"]
    checkpoint = only(folder, "checkpoint-*")
    flip(checkpoint, 200)

    found = run_json(capsys, "verify", folder, status=1)
    assert [one["file"] for one in found["damage"]] == [checkpoint.name]
    assert any("Move that file to another folder" in note for note in found["notes"])

    checkpoint.rename(tmp_path / "away")
    assert run_json(capsys, "verify", folder)["digest"] == digest


def test_damage_in_checkpoint_and_log_is_told_at_once(folder: Path, capsys: Capture) -> None:
    with_state(folder, StateManager.checkpoint, lambda state: add_users(state, 3))
    checkpoint, log = only(folder, "checkpoint-*"), only(folder, "log-*.part")
    flip(checkpoint, 200)
    flip(log, 100)

    found = run_json(capsys, "verify", folder, status=1)

    assert [one["file"] for one in found["damage"]] == [checkpoint.name, log.name]


def test_a_lost_segment_is_damage(folder: Path, capsys: Capture) -> None:
    only(folder, "log-*.part").unlink()

    found = run_json(capsys, "verify", folder, status=1)

    assert [one["code"] for one in found["damage"]] == ["LogIncomplete"]
    assert "missing" in refusal(capsys, "inspect", folder, status=1)
    assert "missing" in refusal(capsys, "export", folder, status=1)


def test_a_mark_of_another_log_is_damage(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    other = tmp_path / "other"
    with_state(other, lambda state: add_users(state, 3))
    marks = (folder / "log-marks").read_bytes()
    (folder / "log-marks").write_bytes((other / "log-marks").read_bytes()[-28:] + marks)

    found = run_json(capsys, "verify", folder, status=1)

    assert [one["code"] for one in found["damage"]] == ["LogChainBroken"]
    assert found["damage"][0]["sequence"] == 4


def test_marks_that_cannot_be_read_are_worth_a_note(folder: Path, capsys: Capture) -> None:
    flip(folder / "log-marks", 3)

    found = run_json(capsys, "verify", folder)

    assert found["is_sound"] is True
    assert found["marks"]["unreadable_bytes"] == 28
    assert any("28 bytes of log-marks" in note for note in found["notes"])


def test_a_killed_state_is_sound(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    killed = tmp_path / "killed"
    copied_while_open(folder, killed, lambda state: add_users(state, 10))

    found = run_json(capsys, "verify", killed)

    assert found["is_sound"] is True
    assert found["sequence"] == found["log"]["last"] > 7
    assert found["marks"]["newest"] <= found["sequence"]


def test_a_torn_tail_is_told_and_not_cut(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    killed = tmp_path / "killed"
    copied_while_open(folder, killed, lambda state: add_users(state, 2))
    log = only(killed, "log-*.part")
    whole = log.stat().st_size
    log.write_bytes(log.read_bytes() + log.read_bytes()[48:79])
    before = content_of(killed)

    found = run_json(capsys, "verify", killed)
    inspected = run_json(capsys, "inspect", killed)

    assert found["is_sound"] is True
    assert found["torn_tail"] == {"file": log.name, "offset": whole, "bytes": 31}
    assert inspected["torn_tail"] == found["torn_tail"]
    (note,) = found["notes"]
    assert note.startswith(f"{log.name} has a torn tail of 31 bytes that was never acknowledged;")
    assert content_of(killed) == before

    with_state(killed)
    assert log.stat().st_size == whole
    assert run_json(capsys, "verify", killed)["torn_tail"] is None


def test_what_a_crash_left_is_told_and_kept(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    with_state(folder, StateManager.checkpoint)
    older = only(folder, "checkpoint-*").read_bytes()
    with_state(folder, lambda state: add_users(state, 2), StateManager.checkpoint)
    (folder / "checkpoint-00000000000000000007.part").write_bytes(older[:-1] + b"\x00")
    (folder / "checkpoint-00000000000000000099.part.new").write_bytes(b"half")
    before = content_of(folder)

    found = run_json(capsys, "verify", folder)

    assert found["is_sound"] is True
    assert any("checkpoint-00000000000000000007.part is damaged" in n for n in found["notes"])
    assert any("checkpoint-00000000000000000099.part.new" in n for n in found["notes"])
    assert content_of(folder) == before


def test_the_folder_of_a_replica_has_no_log(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    with_state(folder, StateManager.checkpoint)
    for file in folder.glob("log-*"):
        file.unlink()

    found = run_json(capsys, "verify", folder)
    inspected = run_json(capsys, "inspect", folder)
    told = refusal(capsys, "backup", folder, "--to", tmp_path / "backups")

    assert found["is_sound"] is True
    assert any("on NATS" in note for note in found["notes"])
    assert inspected["log"] is None
    assert inspected["sequence"] == 7
    assert "replica" in told


def test_a_restore_that_was_cut_off_is_read_as_it_was_decided(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    with_state(folder, StateManager.checkpoint)
    decided = only(folder, "checkpoint-*").read_bytes()
    other = tmp_path / "other"
    with_state(other, lambda state: add_users(state, 3))
    (other / "restore.part").write_bytes(decided)
    before = content_of(other)

    found = run_json(capsys, "verify", other)

    assert found["is_sound"] is True
    assert found["sequence"] == 7
    assert any("opening the state finishes it" in note for note in found["notes"])
    assert content_of(other) == before
    with_state(other)
    assert run_json(capsys, "inspect", other)["sequence"] == 7


# backup and restore


def test_backup_and_restore_bring_the_same_state_back(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    backups, again = tmp_path / "backups", tmp_path / "again"

    full = run_json(capsys, "backup", folder, "--to", backups)
    nothing = run_json(capsys, "backup", folder, "--to", backups, "--incremental")
    with_state(folder, lambda state: add_users(state, 3))
    more = run_json(capsys, "backup", folder, "--to", backups, "--incremental")
    restored = run_json(capsys, "restore", backups, "--to", again)

    assert (full["kind"], full["number"], full["last_sequence"]) == ("full", 1, 7)
    assert full["is_new"] is True
    assert full["bytes"] == (backups / full["file"]).stat().st_size
    assert nothing["is_new"] is False
    assert nothing["number"] == 1
    assert (more["kind"], more["number"], more["first_sequence"]) == ("incremental", 2, 8)
    assert restored["sequence"] == more["last_sequence"]
    assert restored["epoch"] == 2
    assert restored["backups"] == [1, 2]
    assert run_json(capsys, "verify", again)["is_sound"] is True
    assert exported(capsys, again) == exported(capsys, folder)


def test_restore_up_to_a_record(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    backups, again = tmp_path / "backups", tmp_path / "again"
    run_json(capsys, "backup", folder, "--to", backups)
    with_state(folder, lambda state: add_users(state, 5))
    run_json(capsys, "backup", folder, "--to", backups, "--incremental")

    restored = run_json(capsys, "restore", backups, "--to", again, "--up-to", "9")

    assert restored["sequence"] == run_json(capsys, "inspect", again)["sequence"] == 9
    told = refusal(capsys, "restore", backups, "--to", tmp_path / "third", "--up-to", "999")
    assert "999" in told


def test_restore_replaces_nothing_newer_unless_forced(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    backups = tmp_path / "backups"
    run_json(capsys, "backup", folder, "--to", backups)
    with_state(folder, lambda state: add_users(state, 3))
    before = content_of(folder)

    told = refusal(capsys, "restore", backups, "--to", folder)

    assert "force" in told
    assert (
        content_of(folder)["log-00000000000000000001.part"]
        == before["log-00000000000000000001.part"]
    )
    assert run_json(capsys, "inspect", folder)["sequence"] > 7
    assert run_json(capsys, "restore", backups, "--to", folder, "--force")["sequence"] == 7
    assert run_json(capsys, "inspect", folder)["sequence"] == 7


def test_a_damaged_state_is_restored_by_force(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    backups = tmp_path / "backups"
    run_json(capsys, "backup", folder, "--to", backups)
    flip(only(folder, "log-*.part"), 100)

    assert "damaged" in refusal(capsys, "backup", folder, "--to", tmp_path / "more", status=1)
    assert "damaged" in refusal(capsys, "restore", backups, "--to", folder)
    assert run_json(capsys, "restore", backups, "--to", folder, "--force")["sequence"] == 7
    assert run_json(capsys, "verify", folder)["is_sound"] is True


def test_a_damaged_backup_is_refused(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    backups = tmp_path / "backups"
    run_json(capsys, "backup", folder, "--to", backups)
    flip(backups / "backup-000001.part", 300)

    told = refusal(capsys, "restore", backups, "--to", tmp_path / "again", status=1)

    assert "backup-000001.part" in told


def test_an_incremental_backup_needs_a_full_one(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    told = refusal(capsys, "backup", folder, "--to", tmp_path / "backups", "--incremental")

    assert "full backup" in told


def test_a_state_and_its_backups_have_folders_of_their_own(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    assert "share a folder" in refusal(capsys, "backup", folder, "--to", folder)
    assert "holds no backup" in refusal(capsys, "restore", folder, "--to", tmp_path / "again")
    assert "holds backups" in backups_told_apart(folder, tmp_path / "backups", capsys)
    assert not (tmp_path / "again").exists()


def backups_told_apart(folder: Path, backups: Path, capsys: Capture) -> str:
    run_json(capsys, "backup", folder, "--to", backups)
    return refusal(capsys, "inspect", backups)


def test_backup_and_restore_in_words(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    backups, again = str(tmp_path / "backups"), str(tmp_path / "again")

    assert main(["state", "backup", "--connect", str(folder), "--to", backups]) == 0
    assert (
        main(["state", "backup", "--connect", str(folder), "--to", backups, "--incremental"]) == 0
    )
    assert main(["state", "restore", backups, "--to", again]) == 0

    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("Backup 1 (full) ends at record 7: ")
    assert second == "Nothing was committed since backup 1, which ends at record 7."
    assert third == f"{again} is restored to record 7, epoch 2, from backup 1."


# export


def exported(capsys: Capture, path: Path, *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["state", "export", "--connect", str(path), "--quiet", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return [json.loads(line) for line in captured.out.splitlines()]


def test_an_export_holds_every_row_and_what_is_kept_of_it(folder: Path, capsys: Capture) -> None:
    before = content_of(folder)

    rows = exported(capsys, folder)

    jobs, users, work = rows[:2], rows[2:4], rows[4:]
    assert [(row["collection"], row["kind"]) for row in rows] == [
        *[("jobs", "queue")] * 2,
        *[("users", "dictionary")] * 2,
        *[("work", "concurrent_queue")] * 2,
    ]
    assert jobs[0] == {
        "collection": "jobs",
        "kind": "queue",
        "key": 0,
        "value": {"text": "first"},
        "version": 1,
    }
    assert jobs[1]["value"] == {"text": "second"}
    assert [row["key"] for row in users] == ["ada", "eve"]
    assert "expires" not in users[0]
    assert datetime.fromisoformat(users[1]["expires"]) > datetime.now(UTC)
    assert work[0]["value"] == "hidden"
    assert datetime.fromisoformat(work[0]["visible_from"]) > datetime.now(UTC)
    assert (work[1]["value"], work[1]["visible_from"], work[1]["deliveries"]) == ("ready", None, 0)
    assert content_of(folder) == before


def test_an_export_gives_every_value_back(folder: Path, capsys: Capture) -> None:
    users = exported(capsys, folder, "--collection", "users")

    assert [msgspec.convert(unmarked(row["value"]), User) for row in users] == [ADA, EVE]


def unmarked(value: Any) -> Any:  # noqa: PLR0911 - one honest switch
    """Undo the marks of an export, as a reader of it would."""
    match value:
        case {"$bytes": text}:
            return base64.b64decode(text)
        case {"$datetime": text}:
            return datetime.fromisoformat(text)
        case {"$date": text}:
            return date.fromisoformat(text)
        case {"$uuid": text}:
            return UUID(text)
        case {"$decimal": text}:
            return Decimal(text)
        case {"$float": text}:
            return float(text)
        case {"$ext": [code, text]}:
            return msgspec.msgpack.Ext(code, base64.b64decode(text))
        case {"$map": pairs}:
            return {hashable(unmarked(key)): unmarked(item) for key, item in pairs}
        case dict():
            return {key: unmarked(item) for key, item in value.items()}
        case list():
            return [unmarked(item) for item in value]
        case _:
            return value


def hashable(key: Any) -> Any:
    return tuple(map(hashable, key)) if isinstance(key, list) else key


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(2**63),
        2**64 - 1,
        0.1,
        float("inf"),
        "naïve \u2028 \U0001f600",
        b"\x00\xff",
        [1, [b"x"], {}],
        {"a": {"b": [1.5]}},
        {"$bytes": "a text of the user's"},
        {1: "one", 2: "two"},
        {(1, "a"): b"pair"},
        {"$map": [], "plain": 1},
        datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        msgspec.msgpack.Ext(7, b"own"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_stored_value_survives_json(value: object) -> None:
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(value))

    assert unmarked(json.loads(json.dumps(plain_value(stored), allow_nan=False))) == value


@pytest.mark.parametrize(
    "key",
    [
        True,
        10**40,
        "text",
        b"bytes",
        Decimal("1.5"),
        UUID(int=7),
        date(2026, 1, 2),
        datetime(2026, 1, 2, 3, tzinfo=UTC),
        (1, ("a", b"b"), date(2026, 1, 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_key_survives_json(key: object) -> None:
    told = unmarked(json.loads(json.dumps(plain_key(key))))

    assert hashable(told) == key
    assert isinstance(told, list) or type(told) is type(key)


def test_expired_rows_are_not_exported(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    later = ManualClock(SystemClock().ticks() + 2 * 3600 * TICKS_PER_SECOND)
    monkeypatch.setattr("partita.cli.state.verbs.SystemClock", lambda: later)

    rows = exported(capsys, folder, "--collection", "users")

    assert [row["key"] for row in rows] == ["ada"]


def test_an_export_into_a_file_is_whole_or_absent(
    folder: Path, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "rows.jsonl"

    found = run_json(capsys, "export", folder, "--out", out)

    assert found["file"] == str(out)
    assert (found["sequence"], found["rows"]) == (7, 6)
    assert found["collections"] == {"jobs": 2, "users": 2, "work": 2}
    assert [json.loads(line) for line in out.read_text("utf-8").splitlines()] == exported(
        capsys, folder
    )

    told = refusal(capsys, "export", folder, "--collection", "nobody", "--out", tmp_path / "other")
    assert "jobs, users, work" in told
    assert "cannot be written" in refusal(capsys, "export", folder, "--out", tmp_path / "no" / "x")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["rows.jsonl", "state"]


def test_an_export_chooses_collections(folder: Path, capsys: Capture) -> None:
    rows = exported(capsys, folder, "--collection", "jobs", "--collection", "work")

    assert {row["collection"] for row in rows} == {"jobs", "work"}


def test_what_is_said_about_an_export_is_beside_its_rows(folder: Path, capsys: Capture) -> None:
    assert main(["state", "export", "--connect", str(folder), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.err)["rows"] == len(captured.out.splitlines()) == 6

    assert main(["state", "export", "--connect", str(folder)]) == 0
    captured = capsys.readouterr()
    assert captured.err == "6 rows as of record 7: jobs 2, users 2, work 2\n"


def test_a_snapshot_of_many_rows_is_exported_in_order(tmp_path: Path, capsys: Capture) -> None:
    async def fill_many(state: StateManager) -> None:
        numbers = await state.dictionary("numbers", key=tuple[int, str], value=int)
        async with state.transaction() as tx:
            for number in range(1000):
                await numbers.set(tx, (number, "ä"), number)

    with_state(tmp_path / "state", fill_many)

    rows = exported(capsys, tmp_path / "state")

    assert [(row["key"], row["value"]) for row in rows] == [([n, "ä"], n) for n in range(1000)]


# The command line


@pytest.mark.parametrize("verb", ["inspect", "verify", "backup", "restore", "export"])
def test_help_has_an_example(verb: str, capsys: Capture) -> None:
    assert main(["state", verb, "--help"]) == 0

    text = capsys.readouterr().out
    assert f"example: partita state {verb} " in text
    for flag in ("--json", "--quiet"):
        assert flag in text


def test_help_lists_every_family_of_verbs(capsys: Capture) -> None:
    assert main(["--help"]) == 0

    text = capsys.readouterr().out
    for verb in ("serve", "account", "state", "shards", "patterns", "nats", "config"):
        assert f"\n  {verb} " in text


@pytest.mark.parametrize(
    "arguments",
    [
        ["state", "sing", "x"],
        ["state", "inspect"],
        ["state", "backup", "--connect", "x"],
        ["state", "restore", "x"],
        ["state", "restore", ".", "--to", "y", "--up-to", "many"],
        ["state", "verify", "--connect", "x", "--forse"],
        ["nats", "config", "--nodes", "only-one"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(arguments) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("partita: ")
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("flags", "is_drawn"), [([], True), (["--quiet"], False)], ids=str)
def test_progress_is_drawn_for_people_only(flags: list[str], is_drawn: bool, folder: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "partita.cli.main",
        "state",
        "verify",
        "--connect",
        str(folder),
        *flags,
    ]
    done = run_on_terminal(command)

    assert done.status == 0
    assert "is sound" in done.out
    assert ("verify" in done.drawn) is is_drawn
    if not is_drawn:
        assert done.drawn == ""


def test_a_reader_that_goes_away_causes_no_traceback(folder: Path) -> None:
    with_state(folder, lambda state: add_users(state, 400))
    command = [
        sys.executable,
        "-m",
        "partita.cli.main",
        "state",
        "export",
        "--connect",
        str(folder),
    ]

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        told = process.stderr.read()

    assert process.returncode == 1
    assert b"Traceback" not in told


def test_a_cluster_that_does_not_answer_is_said_in_one_line() -> None:
    program = (
        "import sys\n"
        "from partita.cli.main import main\n"
        "from partita.cli.state import primaries\n"
        "from partita.reliable.nats import link\n"
        "link.CONNECT_SECONDS, primaries.CONNECT_SECONDS = 0.05, 0.2\n"
        "sys.exit(main(['state', 'status', 'nats://127.0.0.1:1']))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "partita nats up" in done.stderr


def test_a_damaged_increment_is_noted_because_the_state_opens_without_it(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(increments, "CHECKPOINT_SHARE", 0)

    async def write_increment(state: StateManager) -> None:
        await add_users(state, 200)
        await state.checkpoint()
        await add_users(state, 5)
        assert isinstance(state.checkpoints, increments.IncrementalCheckpoints)
        await state.checkpoint_writer.write_increment(state.checkpoints)

    folder = str(tmp_path / "state")
    with_state(tmp_path / "state", write_increment)
    sound = run_json(capsys, "verify", folder)
    (file,) = (tmp_path / "state").glob("increment-*")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)

    found = run_json(capsys, "verify", folder)

    assert (found["is_sound"], found["digest"]) == (True, sound["digest"])
    assert (len(sound["notes"]), len(found["notes"])) == (0, 1)
    assert file.name in found["notes"][0]
