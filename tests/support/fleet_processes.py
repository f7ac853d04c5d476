"""Processes that tests stop or kill: a mover that dies at a step, a front end that counts.

    python -m support.fleet_processes move URL RANGE_ID SHARD STEP
    python -m support.fleet_processes count URL ACCOUNT

`count` prints the number of increments of the entity ("a", "count") that were acknowledged, one
line each, until its input ends.
"""

import asyncio
import os
import signal
import sys

from partita.errors import ETagMismatchError, PartitaError
from partita.scaleout.control.control import Control
from partita.scaleout.control.range_copy import RangeCopy
from partita.scaleout.control.states import MoveProgress
from partita.scaleout.fleet import Fleet
from partita.storage.durability import Durability
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, Replace

FENCED = "fenced"
"""Between the fence and the commit point: no step of its own."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def move(url: str, range_id: int, to: str, step: str) -> None:
    def watch(progress: MoveProgress) -> None:
        if progress.step == step:
            die()

    async def die_fenced(self: RangeCopy) -> None:
        die()

    if step == FENCED:
        RangeCopy.carry_order = die_fenced  # type: ignore[method-assign]
    control = await Control.open(url, durability=Durability.FAST)
    await control.move(range_id, to, progress=watch)


async def count(url: str, account: str) -> None:
    fleet = await Fleet.open(url, durability=Durability.FAST, checks_clock=False)
    engine = TableEngine((await fleet.stores(account)).tables)
    key, acknowledged = EntityKey("a", "count"), 0
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not ended.done():
        try:
            entity = await engine.get("Staff", key)
            number = int(entity.properties()["N"]) + 1
            await engine.run("Staff", EntityGroup([Replace(key, {"N": number}, entity.etag)]))
        except ETagMismatchError:
            continue
        except PartitaError as error:
            print(f"{type(error).__name__} {error}", flush=True)
            continue
        acknowledged += 1
        print(acknowledged, flush=True)
    await fleet.close()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["move", url, range_id, to, step]:
            asyncio.run(move(url, int(range_id), to, step))
        case ["count", url, account]:
            asyncio.run(count(url, account))
        case other:
            sys.exit(f"unknown: {other}")
