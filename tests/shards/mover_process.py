"""What a process does that moves a range and kills itself.

`point` is the step and the name of a fault point, `times` which of its occurrences is the last
thing that the process sees. While it moves it writes rows through routing, and prints `done ID` for
each that was committed. Without a point it prints every point that it passes. A move that somebody
has left unfinished is resumed.
"""

import os
import signal
import sys
import time
from collections.abc import Callable

from sqlalchemy import insert

from partita.shards.maps.manager import ShardMapManager
from partita.shards.moving import move
from partita.shards.routing.session import RoutedSession
from shards.moves import Moving, blog

TENANT = 42
FIRST_NEW = 1_000
"""Ids from here on are of rows that movers write."""


class Killer:
    """Counts fault points; a point is named by the step of the move that it lies in."""

    def __init__(self, point: str, times: int) -> None:
        self.point = point
        self.left = times
        self.step = "none"

    def __call__(self, name: str) -> None:
        if name.startswith("move ") and name.endswith(" begins") and "cancel" not in name:
            self.step = name.split()[1]
        found = f"{self.step}: {name}"
        if not self.point:
            print("point", found, flush=True)
        elif self.point == found:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def main(catalog: str, target: str, point: str, times: int, first: int = FIRST_NEW) -> None:
    manager = ShardMapManager.open(catalog)
    tenants = manager.get_map("tenants")
    to = tenants.get_shard(target)
    written = 0
    killer = Killer(point, times)

    def write(progress: move.MoveProgress) -> None:
        nonlocal written
        if progress.step not in {"capture", "copy", "catch_up", "fence"}:
            return
        written += 1
        row = first + written

        def add(session: RoutedSession) -> None:
            session.execute(insert(blog).values(tenant_id=TENANT, id=row, slug=f"new {row}"))

        # Its own faults are not the mover's.
        manager.executor.fault = lambda _: None
        tenants.run(TENANT, add)
        manager.executor.fault = killer
        print("done", row, flush=True)

    manager.executor.fault = killer
    mapping = tenants.get(TENANT, lookup="store")
    if not move.resume(manager, on_progress=write) and mapping.shard != to:
        move.move(manager, mapping, to, batch_rows=6, on_progress=write)
    print("moved", flush=True)
    manager.close()


def forked(
    moving: Moving, work: Callable[[], None], *, seconds: float | None = None
) -> tuple[list[str], int]:
    """Run something in a fork, for so long: a new interpreter would take longer than the move."""
    moving.manager.close()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            sys.stdout = os.fdopen(writing, "w")
            work()
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writing)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    with os.fdopen(reading) as printed:
        lines = printed.read().splitlines()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, lines
    return lines, os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
