"""The same server and clients on a disk that is full for a while, or fails to sync."""

import contextlib
import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from chaos.report import Outcome
from chaos.scenario import Run, Scenario
from chaos.services import HASTY, PATIENCE_SECONDS, SERVE, Fault, World, run_faults
from crash.test_disk_full import fill_with_junk

DISK = "size=192m"
SYNCS = "fsync,fdatasync"


@contextlib.contextmanager
def a_small_disk(folder: Path) -> Iterator[bool]:
    """Mount a small file system in memory on the folder; yield whether the machine allows it."""
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(mount, check=False).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(world: World, chance: random.Random) -> float:
    """Leave no byte free for a while; the server goes on."""
    junk = world.folder.parent / "junk"
    world.may_refuse = True
    fill_with_junk(junk)
    time.sleep(chance.uniform(1.0, 3.0))
    junk.unlink()
    return time.monotonic()


def fail_sync(world: World, chance: random.Random) -> float:
    """Fail every sync from one on: the server must stop by itself, and recover when restarted."""
    world.may_refuse = True
    fault = f"inject={SYNCS}:error=EIO:when={chance.randrange(20, 120)}+"
    trace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={SYNCS}", "-e", fault]
    world.kill()
    world.restart(trace)
    world.server.process.wait(PATIENCE_SECONDS)
    world.lives += 1
    ended = time.monotonic()
    world.restart()
    return ended


def disks(run: Run) -> Outcome:
    program = HASTY if run.is_broken else SERVE
    with a_small_disk(run.folder) as is_small:
        faults: dict[str, Fault] = {"full disk": fill} if is_small else {}
        if shutil.which("strace") is not None:
            faults["failed sync"] = fail_sync
        assert faults, "Run this scenario as root, or install strace."
        return run_faults(run, program, faults, folder=run.folder / "account")


SCENARIOS = [
    Scenario("services, failing disk", "acknowledges before it commits", disks),
]
