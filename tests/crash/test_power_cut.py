import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from crash.power_cut import power_cuts
from crash.recording_vfs import Sync, Trace, Truncate
from crash.shim_vfs import registered, scratch_folder
from crash.workload import Finding, examine, run_clients, write_image
from partita.storage import database, vacuum
from partita.storage.durability import Durability
from support.repeats import repeat

STATES = repeat(80, 600, 20_000)
STEPS = 150
SEEDS = repeat(1, 2, 4)


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="partita-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _checkpoints_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAL_CHECKPOINT_BYTES", 128 * 1024)
    monkeypatch.setattr(database, "WAL_HOLD_BYTES", 512 * 1024)
    monkeypatch.setattr(database, "RESERVE_BYTES", 4096)


@dataclass
class Tally:
    states: int = 0
    bad: list[tuple[int, int, Finding]] = field(default_factory=list)
    """Seed, position and what was wrong."""

    def count(self, kind: str) -> int:
        return sum(bool(getattr(finding, kind)) for _, _, finding in self.bad)


async def replay(
    scratch: Path, wanted: int, durability: Durability, *, is_vacuumed: bool = False
) -> Tally:
    tally = Tally()
    for seed in range(SEEDS):
        trace = Trace()
        with registered(trace) as vfs:
            memory = await run_clients(
                scratch / f"run{seed}",
                vfs,
                lambda trace=trace: trace.position,  # type: ignore[misc]
                steps=STEPS,
                seed=seed,
                durability=durability,
            )
        # Without checkpoints and a log that starts again, the cuts would prove little.
        assert sum(isinstance(event, Sync) and event.file == "main" for event in trace.events) > 10
        assert sum(event[:2] == ("log", 0) for event in trace.events) > 3
        cut_short = [e for e in trace.events if isinstance(e, Truncate) and e.file == "main"]
        assert len(cut_short) > 3 or not is_vacuumed
        cuts = power_cuts(trace.events, wanted // SEEDS, random.Random(seed))
        for position, image in cuts:
            folder = scratch / "image"
            write_image(folder, image)
            finding = await examine(folder, memory, position)
            shutil.rmtree(folder)
            tally.states += 1
            if not finding.is_well:
                tally.bad.append((seed, position, finding))
    return tally


@pytest.mark.repeated
@pytest.mark.timeout(1800)
async def test_a_power_cut_at_any_moment_loses_nothing_that_was_acknowledged(
    scratch: Path,
) -> None:
    tally = await replay(scratch, STATES, Durability.FULL)

    print(f"{tally.states} crash states")
    assert tally.bad == []
    assert tally.states >= STATES


@pytest.mark.proof
@pytest.mark.timeout(1800)
async def test_a_power_cut_in_a_vacuum_loses_nothing_that_was_acknowledged(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("START_BYTES", "KEEP_BYTES", "PAUSE_SECONDS", "PAUSE_FACTOR"):
        monkeypatch.setattr(vacuum, name, 0)
    monkeypatch.setattr(vacuum, "LOOK_SECONDS", 0.002)
    monkeypatch.setattr(vacuum, "STEP_PAGES_MAX", 2)

    tally = await replay(scratch, STATES, Durability.FULL, is_vacuumed=True)

    assert tally.bad == []


@pytest.mark.repeated
async def test_the_same_cuts_find_the_writes_that_fast_durability_may_lose(
    scratch: Path,
) -> None:
    tally = await replay(scratch, repeat(80, 400, 400), Durability.FAST)

    assert tally.count("lost") > 0
    assert tally.count("damaged") == 0
    assert tally.count("halves") == 0
