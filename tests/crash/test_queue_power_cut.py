import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from crash.power_cut import power_cuts
from crash.queue_workload import examine_queues, run_workers
from crash.recording_vfs import Sync, Trace
from crash.shim_vfs import registered, scratch_folder
from crash.workload import Finding, write_image
from partita.storage import database
from partita.storage.durability import Durability
from support.repeats import repeat

STATES = repeat(50, 200, 10_000)
STEPS = 60


@pytest.fixture
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch_folder(), prefix="partita-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _checkpoints_are_frequent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAL_CHECKPOINT_BYTES", 128 * 1024)
    monkeypatch.setattr(database, "WAL_HOLD_BYTES", 512 * 1024)
    monkeypatch.setattr(database, "RESERVE_BYTES", 4096)


async def replay(scratch: Path, wanted: int, durability: Durability) -> list[Finding]:
    """Run, cut the power at many moments, and return what each cut left."""
    trace = Trace()
    with registered(trace) as vfs:
        memory = await run_workers(
            scratch / "run", vfs, lambda: trace.position, steps=STEPS, durability=durability
        )
    # Without checkpoints and a log that starts again, the cuts would prove little.
    assert sum(isinstance(event, Sync) and event.file == "main" for event in trace.events) > 3
    findings = []
    for position, image in power_cuts(trace.events, wanted, random.Random(1)):
        folder = scratch / "image"
        write_image(folder, image)
        findings.append(await examine_queues(folder, memory, position))
        shutil.rmtree(folder)
    return findings


@pytest.mark.repeated
@pytest.mark.timeout(1800)
async def test_a_power_cut_at_any_moment_loses_no_acknowledged_message(scratch: Path) -> None:
    findings = await replay(scratch, STATES, Durability.FULL)

    assert [finding for finding in findings if not finding.is_well] == []
    assert len(findings) >= STATES


@pytest.mark.repeated
@pytest.mark.timeout(600)
async def test_the_same_cuts_find_what_fast_durability_may_lose(scratch: Path) -> None:
    findings = await replay(scratch, repeat(40, 100, 100), Durability.FAST)

    assert any(finding.lost for finding in findings)
    assert not any(finding.damaged or finding.halves for finding in findings)
