import asyncio
import os
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crash.blob_workload import close_engine, line_of, open_engine, read
from crash.write_blobs import LONG_TIMES, long_content
from partita.blobs.engine.engine import BlobEngine
from partita.clock import SystemClock
from support.repeats import repeat
from support.sqlite_blobs import store_of

ROUNDS = repeat(2, 8, 100)
CLIENTS = 3
TESTS = Path(__file__).parent.parent


def rest_after_kill(process: subprocess.Popen[str]) -> str:
    """End a process at once; return what it printed after the lines that were read."""
    process.kill()
    assert process.stdout is not None
    with process.stdout:  # communicate(timeout=) forgets what readline() has read ahead
        rest = process.stdout.read()
    process.wait(timeout=60)
    return rest


class Writer:
    """A process that writes until it is killed."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        command = [sys.executable, "-m", "crash.write_blobs", str(folder), *map(str, arguments)]
        paths = [str(TESTS), *sys.path]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def wait_for(self, line: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == line + "\n"

    def kill(self) -> list[list[str]]:
        """End it at once; return the lines that it got out."""
        lines = [line.split() for line in rest_after_kill(self.process).split("\n")[:-1]]
        return [line for line in lines if len(line) == 3]


@dataclass
class Ledger:
    """What was asked and told, by name; the versions that a name may show."""

    allowed: dict[str, list[int]] = field(default_factory=dict)
    told: int = 0

    def take(self, lines: list[list[str]]) -> None:
        for word, name, text in lines:
            number = int(text)
            if word == "asked":
                self.allowed.setdefault(name, [0]).append(number)
            else:
                self.allowed[name] = [number]
                self.told += 1

    async def check(self, engine: BlobEngine) -> list[str]:
        """Compare with a store that has recovered; return what is wrong."""
        wrong: list[str] = []
        for name, allowed in self.allowed.items():
            if name.startswith("log"):
                continue
            found = await read(engine, name)
            shown = [n for n in allowed if found == (long_content(name, n) if n else None)]
            if not shown:
                wrong.append(f"{name} shows none of {allowed}")
            # What the crash left is a fact now: a later check must find it or something newer.
            self.allowed[name] = shown
        return wrong

    async def count_lines(self, engine: BlobEngine, client: int) -> tuple[int, list[str]]:
        """Count the lines that a log shows: every one that was told, each of them whole."""
        name = f"log{client}"
        found = await read(engine, name)
        if found is None:
            return 0, [f"{name} is gone"] if name in self.allowed else []
        count, place = 0, 0
        while found.startswith(line := line_of(count) * LONG_TIMES, place):
            count, place = count + 1, place + len(line)
        told = self.allowed.get(name, [0])[0]
        is_well = place == len(found) and (count > told or name not in self.allowed or told == 0)
        return count, [] if is_well else [f"{name} has {count} lines, was told of {told}"]


def files_and_names(engine: BlobEngine) -> tuple[set[bytes], set[bytes]]:
    files = {digest for part in store_of(engine).files.digests() for digest in part}
    rows = store_of(engine).database.reader.execute(
        "SELECT hash FROM extent WHERE hash IS NOT NULL"
    )
    return files, {digest for (digest,) in rows}


@pytest.mark.repeated
@pytest.mark.timeout(1800)
async def test_a_killed_process_has_kept_every_acknowledged_blob(tmp_path: Path) -> None:
    chance = random.Random(2)
    ledger = Ledger()
    lines = [0] * CLIENTS
    number = -1
    # A busy machine may need more rounds until enough was acknowledged.
    while number + 1 < ROUNDS or ledger.told <= ROUNDS:
        number += 1
        writer = Writer(tmp_path / "account", number * 100_000, *lines)
        await asyncio.sleep(chance.uniform(0.2, 1.5))
        ledger.take(writer.kill())

        engine = await open_engine(tmp_path / "account", SystemClock())
        wrong = await ledger.check(engine)
        for client in range(CLIENTS):
            lines[client], more = await ledger.count_lines(engine, client)
            wrong += more
        await store_of(engine).collector.sweep()
        await store_of(engine).collector.collect()
        files, named = files_and_names(engine)
        assert list((tmp_path / "account" / "blobs" / "incoming").iterdir()) == []
        await close_engine(engine)

        assert wrong == []
        assert files == named

    print(f"{number + 1} kills, {ledger.told} acknowledged writes")


async def test_a_crash_between_file_and_row_leaves_only_a_file_that_the_next_start_sweeps(
    tmp_path: Path,
) -> None:
    writer = Writer(tmp_path / "account", "hang")
    writer.wait_for("placed")
    writer.kill()
    folder = tmp_path / "account" / "blobs"
    assert len([path for path in folder.rglob("*") if path.is_file()]) == 1

    engine = await open_engine(tmp_path / "account", SystemClock())
    await store_of(engine).collector.sweep()

    assert files_and_names(engine) == (set(), set())
    assert await read(engine, "hanging") is None
    await close_engine(engine)


def test_no_line_is_lost_that_came_with_the_first() -> None:
    printing = "print('ready\\nasked a 1\\ntold a 1', flush=True)"
    process = subprocess.Popen([sys.executable, "-c", printing], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.wait(timeout=60)

    assert rest_after_kill(process) == "asked a 1\ntold a 1\n"


async def test_the_ledger_finds_a_lost_blob(tmp_path: Path) -> None:
    engine = await open_engine(tmp_path / "account", SystemClock())
    ledger = Ledger()
    ledger.take([["asked", "a", "1"], ["told", "a", "1"], ["asked", "b", "1"]])

    assert await ledger.check(engine) == ["a shows none of [1]"]
    await close_engine(engine)
