"""The process of a replica with its durability broken: a primary acknowledges before it commits."""

import asyncio
import sys
from typing import Any

from replicated import replica_process
from replicated.replica_process import Ledger

HASTE_SECONDS = 0.5

_note = Ledger.note
_later: set["asyncio.Task[int]"] = set()


async def _note_later(self: Ledger, number: int, **options: Any) -> int:
    if not self.state.is_primary:
        return await _note(self, number, **options)

    async def note() -> int:
        await asyncio.sleep(HASTE_SECONDS)
        return await _note(self, number, **options)

    task = asyncio.create_task(note())
    _later.add(task)
    task.add_done_callback(_forget)
    return self.state.sequence


def _forget(task: "asyncio.Task[int]") -> None:
    _later.discard(task)
    task.exception()  # the client was told of success, whatever came of it


if __name__ == "__main__":
    Ledger.note = _note_later  # type: ignore[method-assign]
    asyncio.run(replica_process.main(*sys.argv[1:]))
