"""Copies whose process is killed (SIGKILL) at any moment: the same copy continues."""

import random
import signal
from pathlib import Path
from typing import Any

import pytest

from partita.errors import ConfigurationError
from support.copying import Counted, Place, copy, killed_copy, use_small_batches
from support.repeats import repeat
from support.whole_accounts import described, fill, opened


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_batches(monkeypatch.setattr)


async def moments_of(source: Place, target: Place) -> int:
    """Count the moments of a copy that nothing interrupts."""
    counted: Any = Counted(target.target())
    assert not (await copy(source.source(), counted)).differences
    return int(counted.moments)


async def check_kills(source: Place, targets: list[Place], moments: list[int]) -> None:
    async with opened(source) as engines:
        expected = await described(engines)
    for target, moment in zip(targets, moments, strict=True):
        assert await killed_copy(source, target, moment) == -signal.SIGKILL
        if moment > 1:
            with pytest.raises(ConfigurationError) as refused:
                async with opened(target):
                    pass
            assert refused.value.code == "CopyIncomplete"
        # Again, before the first change that follows the opening: the end may be the only one left.
        assert await killed_copy(source, target, 3) == -signal.SIGKILL
        report = await copy(source.source(), target.target())

        assert report.differences == []
        async with opened(target) as engines:
            assert await described(engines) == expected


def chosen(moments: int) -> list[int]:
    """Choose moments: each copy has another choice."""
    count = repeat(quick=2, proof=4, soak=40)
    return sorted(random.sample(range(2, moments - 1), min(count, moments - 3)))


@pytest.mark.proof
async def test_a_killed_copy_to_postgresql_continues(tmp_path: Path) -> None:
    source = Place(folder=str(tmp_path / "one"))
    async with opened(source) as engines:
        await fill(engines)
    moments = chosen(await moments_of(source, Place.in_database()))
    targets = [Place.in_database() for _ in moments]

    await check_kills(source, targets, moments)


@pytest.mark.proof
async def test_a_killed_copy_to_a_folder_continues(tmp_path: Path) -> None:
    source = Place.in_database()
    async with opened(source) as engines:
        await fill(engines)
    moments = chosen(await moments_of(source, Place(folder=str(tmp_path / "whole"))))
    targets = [Place(folder=str(tmp_path / f"{moment}")) for moment in moments]

    await check_kills(source, targets, moments)
