import random
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from crash.blob_workload import examine, run_clients
from crash.content_trace import (
    ContentTree,
    RecordingFiles,
    WithoutFileSync,
    WithoutFolderSync,
    WithoutSyncOfNewFolders,
    write_tree,
)
from crash.power_cut import Disk, choices
from crash.recording_vfs import Trace
from crash.shim_vfs import registered, scratch_folder
from crash.workload import write_image
from partita.blobs.rules import limits
from partita.storage import database
from support.repeats import repeat

STATES = repeat(24, 80, 6_000)
STEPS = 40
SEEDS = repeat(1, 2, 2)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="partita-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _everything_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAL_CHECKPOINT_BYTES", 128 * 1024)
    monkeypatch.setattr(database, "WAL_HOLD_BYTES", 512 * 1024)
    monkeypatch.setattr(database, "RESERVE_BYTES", 4096)
    monkeypatch.setattr(limits, "INLINE_BYTES_MAX", 512)
    monkeypatch.setattr(limits, "CHUNK_BYTES", 512)
    monkeypatch.setattr(limits, "SLAB_BYTES", 2048)


async def replay(scratch: Path, wanted: int, system: type[RecordingFiles]) -> tuple[int, list[str]]:
    """Return how many states were looked at, and what was wrong with them."""
    states = 0
    wrong: list[str] = []
    for seed in range(SEEDS):
        trace = Trace()
        folder = scratch / f"run{seed}"
        files = system(trace.events, folder)  # type: ignore[arg-type]
        with registered(trace) as vfs:
            memory = await run_clients(
                folder, vfs, files, partial(len, trace.events), steps=STEPS, seed=seed
            )
        chance = random.Random(seed)
        share = wanted / SEEDS / len(trace.events) / 3
        disk, tree = Disk(), ContentTree()
        for position, event in enumerate(trace.events, start=1):
            disk.advance(event)
            tree.advance(event)
            if chance.random() >= share:
                continue
            for choose, kept in zip(choices(chance), (0.0, 1.0, 0.0, 0.5), strict=True):
                image = scratch / "image"
                write_image(image, disk.after_cut(choose))
                write_tree(image, tree.after_cut(chance, kept))
                found = await examine(image, memory, position)
                shutil.rmtree(image)
                states += 1
                wrong += [f"seed {seed}, position {position}: {line}" for line in found]
    return states, wrong


@pytest.mark.repeated
@pytest.mark.timeout(1800)
async def test_a_power_cut_at_any_moment_loses_no_blob_that_was_acknowledged(
    scratch: Path,
) -> None:
    states, wrong = await replay(scratch, STATES, RecordingFiles)

    print(f"{states} crash states")
    assert wrong == []
    assert states >= STATES / 2


@pytest.mark.proof
@pytest.mark.parametrize("system", [WithoutFileSync, WithoutFolderSync, WithoutSyncOfNewFolders])
async def test_the_same_cuts_find_a_sync_that_is_left_out(
    scratch: Path, system: type[RecordingFiles]
) -> None:
    _, wrong = await replay(scratch, 40, system)

    assert wrong
