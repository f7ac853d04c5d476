"""What a process does that moves a range and kills itself.

`point` is the step and the name of a fault point, `time` which of its occurrences is the last thing
that the process sees. While it moves it writes rows through routing, and prints `done ID` for each
that was committed. Without a point it prints every point that it passes.
"""

import os
import signal

from sqlalchemy import insert

from partita.shards import move
from partita.shards.manager import ShardMapManager
from partita.shards.session import RoutedSession
from shards.moves import blog

TENANT = 42


class Killer:
    """Counts fault points; a point is named by the step of the move that it lies in."""

    def __init__(self, point: str, time: int) -> None:
        self.point = point
        self.left = time
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


def main(catalog: str, target: str, point: str, time: int) -> None:
    manager = ShardMapManager.open(catalog)
    tenants = manager.get_map("tenants")
    to = tenants.get_shard(target)
    written = 0
    killer = Killer(point, time)

    def write(progress: move.MoveProgress) -> None:
        nonlocal written
        if progress.step not in {"capture", "copy", "catch_up", "fence"}:
            return
        written += 1
        row = 1_000 + written

        def add(session: RoutedSession) -> None:
            session.execute(insert(blog).values(tenant_id=TENANT, id=row, slug=f"new {row}"))

        # Its own faults are not the mover's.
        manager.executor.fault = lambda _: None
        tenants.run(TENANT, add)
        manager.executor.fault = killer
        print("done", row, flush=True)

    manager.executor.fault = killer
    move.move(manager, tenants.get(TENANT, lookup="store"), to, batch_rows=6, on_progress=write)
    print("moved", flush=True)
    manager.close()
