"""Large states: opening, checkpoints under load and the longest pause, by the number of rows.

    python bench/reliable/large.py FOLDER ROWS [ROWS ...] [--svg docs/pictures/large-states.svg]

Every size is measured in fresh processes. The rows have keys of 14 and values of about 200 bytes.
The CPU time of the loop's thread is given beside the wall clock: on a shared machine only the
former says something. `--freeze` calls gc.freeze() after opening, as the limits advise. After the
rounds a process writes random rows until the log since the checkpoint is `--log` of its size, and
is killed: opening applies the increments and the rest of the log (`--no-increments`: all of it).
"""

import argparse
import asyncio
import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import msgspec

import partita
from partita.reliable import Dictionary, ReliableDictionary, StateManager
from partita.reliable.storage.increments import IncrementalCheckpoints

NO_CHECKPOINT = 1 << 60
LOADED_AT_ONCE = 5_000
TASKS = 32
QUIET_SECONDS = 2.0
ROUNDS = 3


class Row(msgspec.Struct, frozen=True):
    text: str
    number: int


ROWS = Dictionary("rows", key=str, value=Row)
Rows = ReliableDictionary[str, Row]


@dataclass(frozen=True)
class Large:
    """What was measured at one size; ratios and pauses are medians of the rounds."""

    rows: int
    bytes_a_row: float
    open_seconds: float
    open_loop_seconds: float
    """CPU time of the thread of the event loop."""
    checkpoint_seconds: float
    commits_quiet: float
    commits_left: float
    """Commits a second during a checkpoint, as a share of those without."""
    commits_left_cpu: float
    """The same by CPU second of the loop's thread: what the checkpoint does on the loop."""
    pause_ms_quiet: float
    pause_ms: float
    """The longest pause of the event loop during a checkpoint."""
    pause_ms_cpu: float
    """The longest CPU time of the loop's thread between two ticks of a millisecond."""
    killed_open_seconds: float = 0.0
    """Opening after the kill."""
    killed_open_loop_seconds: float = 0.0
    killed_log_bytes: int = 0
    """The log since the checkpoint."""


def key_of(number: int) -> str:
    return f"row-{number:010d}"


async def make(folder: Path, rows: int) -> None:
    async with partita.open_state(
        folder, checkpoint_bytes=NO_CHECKPOINT, durability="fast"
    ) as state:
        state.set_mutation_check("off")
        found = await state.open(ROWS)
        for start in range(0, rows, LOADED_AT_ONCE):
            async with state.transaction() as tx:
                for number in range(start, min(rows, start + LOADED_AT_ONCE)):
                    await found.set(tx, key_of(number * 7919 % rows), Row("x" * 180, number))
        await state.checkpoint()


async def measure(folder: Path, *, freeze: bool) -> Large:
    before = _resident()
    began, loop_began = time.perf_counter(), time.thread_time()
    async with partita.open_state(folder, checkpoint_bytes=NO_CHECKPOINT) as state:
        found = await state.open(ROWS)
        seconds = time.perf_counter() - began
        loop_seconds = time.thread_time() - loop_began
        count = await found.auto.count()
        size = (_resident() - before) / count
        gc.collect()
        if freeze:
            gc.freeze()
        load = Load(state, found, count)
        rounds = [await load.round() for _ in range(ROUNDS)]
        await load.stop()
        await state.checkpoint()  # so that the next run has no log to apply
    middle = [statistics.median(one) for one in zip(*rounds, strict=True)]
    return Large(count, size, seconds, loop_seconds, *middle)


async def write_until_killed(folder: Path, share: float) -> None:
    async with partita.open_state(folder) as state:
        found = await state.open(ROWS)
        assert state.checkpoints.newest is not None
        size = share * state.checkpoints.newest.size
        Load(state, found, await found.auto.count())
        while state.log_bytes_since_checkpoint < size:  # noqa: ASYNC110 - it has no events
            await asyncio.sleep(0.01)
        print(state.log_bytes_since_checkpoint, flush=True)
        os._exit(9)


async def measure_opening(folder: Path) -> None:
    began, loop_began = time.perf_counter(), time.thread_time()
    async with partita.open_state(folder, checkpoint_bytes=NO_CHECKPOINT) as state:
        found = await state.open(ROWS)
        seconds, loop_seconds = time.perf_counter() - began, time.thread_time() - loop_began
        assert await found.auto.count()
        print(seconds, loop_seconds, flush=True)
        await state.checkpoint()  # so that the next run has no log to apply


class Load:
    """Tasks that commit one row each, and one that notes how long the loop pauses."""

    def __init__(self, state: StateManager, rows: Rows, count: int) -> None:
        self._state, self._rows, self._count = state, rows, count
        self._done, self._pause, self._pause_cpu, self._is_over = 0, 0.0, 0.0, False
        work = [self._write(number) for number in range(TASKS)]
        self._tasks = [asyncio.create_task(one) for one in (*work, self._watch())]

    async def round(self) -> tuple[float, ...]:
        """Return the figures of `Large` from checkpoint_seconds on."""
        quiet = await self._during(asyncio.sleep(QUIET_SECONDS))
        busy = await self._during(self._state.checkpoint())
        again = await self._during(asyncio.sleep(QUIET_SECONDS))
        usual, usual_cpu = [(quiet[place] + again[place]) / 2 for place in (1, 2)]
        return (
            *(busy[0], usual, busy[1] / usual, busy[2] / usual_cpu),
            *(quiet[3] * 1e3, busy[3] * 1e3, busy[4] * 1e3),
        )

    async def stop(self) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _during(self, work: Awaitable[object]) -> tuple[float, ...]:
        """Return seconds, commits a second, commits a CPU second, and the two longest pauses."""
        done, self._pause, self._pause_cpu = self._done, 0.0, 0.0
        began, cpu_began = time.perf_counter(), time.thread_time()
        await work
        seconds, cpu = time.perf_counter() - began, time.thread_time() - cpu_began
        done = self._done - done
        return seconds, done / seconds, done / cpu, self._pause, self._pause_cpu

    async def _write(self, number: int) -> None:
        turn = 0
        while not self._is_over:
            turn += 1
            key = key_of((number * 100_003 + turn * 7919) % self._count)
            await self._rows.auto.set(key, Row("y" * 180, turn))
            self._done += 1

    async def _watch(self) -> None:
        last, cpu_last = time.perf_counter(), time.thread_time()
        while not self._is_over:
            await asyncio.sleep(0.001)
            now, cpu = time.perf_counter(), time.thread_time()
            self._pause = max(self._pause, now - last - 0.001)
            self._pause_cpu = max(self._pause_cpu, cpu - cpu_last)
            last, cpu_last = now, cpu


def _resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def draw(found: list[Large]) -> str:
    """Draw seconds to open and milliseconds of pauses over the number of rows."""
    wide, high, left, top = 640, 300, 60, 30
    most = max(one.rows for one in found)
    panels = (
        (
            "opening, seconds of the loop's thread",
            [one.open_loop_seconds for one in found],
            "#1f6feb",
        ),
        (
            "longest pause during a checkpoint, ms of the loop's thread",
            [one.pause_ms_cpu for one in found],
            "#d1242f",
        ),
    )
    size = f'viewBox="0 0 {wide} {high * 2}" font-family="sans-serif" font-size="12"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}>']
    for place, (title, values, colour) in enumerate(panels):
        base, limit = high * (place + 1) - 40, max(values) or 1.0
        points = [
            (left + one.rows / most * (wide - left - 40), base - value / limit * (high - top - 60))
            for one, value in zip(found, values, strict=True)
        ]
        line = " ".join(f"{x:.0f},{y:.0f}" for x, y in points)
        parts.append(f'<text x="{left}" y="{high * place + top}">{title}</text>')
        parts.append(f'<line x1="{left}" y1="{base}" x2="{wide - 20}" y2="{base}" stroke="#888"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for one, value, (x, y) in zip(found, values, points, strict=True):
            parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{colour}"/>')
            parts.append(f'<text x="{x - 12:.0f}" y="{y - 8:.0f}">{value:.3g}</text>')
            parts.append(f'<text x="{x - 16:.0f}" y="{base + 16}">{one.rows / 1e6:g} M</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=int, nargs="*")
    parser.add_argument("--freeze", action="store_true")
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--log", type=float, default=0.9)
    parser.add_argument("--no-increments", action="store_true")
    parser.add_argument("--child", choices=["measure", "write", "open"])
    given = parser.parse_args()
    if given.no_increments:
        IncrementalCheckpoints.is_increment_due = lambda *_: False  # type: ignore[method-assign]
    if given.child == "measure":
        print(json.dumps(asdict(asyncio.run(measure(given.folder, freeze=given.freeze)))))
    if given.child == "write":
        asyncio.run(write_until_killed(given.folder, given.log))
    if given.child == "open":
        asyncio.run(measure_opening(given.folder))
    if given.child:
        return
    found = []
    for rows in given.rows:
        folder = given.folder / str(rows)
        if not folder.exists():
            asyncio.run(make(folder, rows))
        options = ["--freeze"] * given.freeze + ["--no-increments"] * given.no_increments

        def child(work: str, folder: Path = folder, options: list[str] = options) -> str:
            words = [sys.executable, __file__, str(folder), "--child", work, *options]
            words += ["--log", str(given.log)]
            ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=work != "write")
            return ended.stdout

        measured = Large(**json.loads(child("measure")))
        log_bytes = int(child("write"))
        seconds, loop_seconds = map(float, child("open").split())
        found.append(
            replace(
                measured,
                killed_open_seconds=seconds,
                killed_open_loop_seconds=loop_seconds,
                killed_log_bytes=log_bytes,
            )
        )
        print(found[-1], flush=True)
    if given.svg:
        given.svg.write_text(draw(found), "utf-8")


if __name__ == "__main__":
    main()
