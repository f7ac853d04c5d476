from pathlib import Path

import pytest

from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.scaleout.copying.copier import Copier, Report
from partita.scaleout.copying.folder_source import FolderSource
from partita.scaleout.copying.folder_target import FolderTarget
from support.whole_accounts import described, fill, folder_account


async def copy(source, target, progress=lambda *_: None) -> Report:
    await source.open()
    try:
        await target.open()
        try:
            return await Copier(source, target, progress).run()
        finally:
            await target.close()
    finally:
        await source.close()


async def copy_folder(source: Path, target: Path) -> Report:
    clock = SystemClock()
    return await copy(FolderSource(source, clock), FolderTarget(target, clock))


async def test_a_copied_folder_has_everything(tmp_path: Path) -> None:
    async with folder_account(tmp_path / "one") as engines:
        received = await fill(engines)
        before = await described(engines)

    report = await copy_folder(tmp_path / "one", tmp_path / "two")

    assert not report.differences
    async with folder_account(tmp_path / "two") as engines:
        assert await described(engines) == before
        for message in received:
            await engines.queues.delete("jobs", message.id, message.receipt)
