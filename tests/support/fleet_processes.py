"""Processes that tests stop or kill: a mover that dies at a step, a front end that counts.

    python -m support.fleet_processes move URL RANGE_ID SHARD STEP
    python -m support.fleet_processes split URL ACCOUNT KEY STEP
    python -m support.fleet_processes merge URL RANGE_ID RANGE_ID STEP
    python -m support.fleet_processes count URL ACCOUNT
    python -m support.fleet_processes rebalance URL

`count` prints the number of increments of the entity ("a", "count") that were acknowledged, one
line each, until its input ends. `rebalance` splits, merges and moves ranges of all tables until its
input ends, and then prints how often.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
from collections import Counter

from partita.errors import ETagMismatchError, PartitaError
from partita.scaleout.control import splitting
from partita.scaleout.control.control import Control
from partita.scaleout.control.exclusive import Exclusive
from partita.scaleout.control.jobs import HeldJob
from partita.scaleout.control.range_copy import RangeCopy
from partita.scaleout.control.states import MoveProgress
from partita.scaleout.fleet import Fleet
from partita.storage.durability import Durability
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, Replace

PAUSE_SECONDS = 0.05
SPLIT_KEYS = ["1", "5", "a", "b", "g", "m", "p", "p1", "pk", "pk1", "s", "t"]
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


RECORDED, REPLACED, LISTED = REPLACEMENT_STEPS = ("recorded", "replaced", "listed")
"""Moments of a split or a merge: in the catalog, on the shard, in the catalog again."""


def die_in_a_replacement(step: str) -> None:
    async def die_later(*_: object) -> None:
        die()

    owner, name = {
        RECORDED: (Exclusive, "run"),
        REPLACED: (splitting, "_commit"),
        LISTED: (HeldJob, "finish"),
    }[step]
    setattr(owner, name, die_later)


async def split(url: str, account: str, key: str, step: str) -> None:
    die_in_a_replacement(step)
    control = await Control.open(url, durability=Durability.FAST)
    await control.split("Staff", key, account=account)


async def merge(url: str, first: int, second: int, step: str) -> None:
    die_in_a_replacement(step)
    control = await Control.open(url, durability=Durability.FAST)
    await control.merge(first, second)


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


async def rebalance(url: str) -> None:
    chance, done = random.Random(19), Counter[str]()
    control = await Control.open(url, durability=Durability.FAST)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    while not ended.done():
        # Tables are dropped, and their ranges change, at the same time.
        with contextlib.suppress(PartitaError):
            done[await change_something(control, chance)] += 1
        await asyncio.sleep(PAUSE_SECONDS)
    await control.resume()
    print(json.dumps(done), flush=True)
    await control.close()


async def change_something(control: Control, chance: random.Random) -> str:
    """Split, merge or move one range; return what was done."""
    ranges = await control.ranges()
    if not ranges:
        return ""
    place = chance.randrange(len(ranges))
    found, after = ranges[place], ranges[(place + 1) % len(ranges)]
    is_alone = found.lower == "" and found.upper is None
    if chance.random() < (0.5 if is_alone else 0.1):
        await control.split(found.table, chance.choice(SPLIT_KEYS), account=found.account)
        return "splits"
    if found.upper == after.lower and found.shard == after.shard and chance.random() < 0.5:
        await control.merge(found.id, after.id)
        return "merges"
    names = [each.name for each in await control.shards() if each.state == "open"]
    await control.move(found.id, chance.choice([name for name in names if name != found.shard]))
    return "moves"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["move", url, range_id, to, step]:
            asyncio.run(move(url, int(range_id), to, step))
        case ["split", url, account, key, step]:
            asyncio.run(split(url, account, key, step))
        case ["merge", url, first, second, step]:
            asyncio.run(merge(url, int(first), int(second), step))
        case ["count", url, account]:
            asyncio.run(count(url, account))
        case ["rebalance", url]:
            asyncio.run(rebalance(url))
        case other:
            sys.exit(f"unknown: {other}")
