"""Restarts of the nodes of a local cluster, with pauses, and a file that says what happened.

    cluster.json   {"pid": …, "url": …, "nodes": [{"name", "pid", "restarts", "last_exit"}]}

The file is for `partita nats status`; it is replaced at every change, and only valid while the
folder of the cluster is locked.
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from partita.processes import Restarts
from partita.reliable.nats.cluster import LOCK_FILE, LocalCluster
from partita.ticks import Clock

STATUS_FILE = "cluster.json"


class RunningNode(msgspec.Struct, frozen=True):
    """One node, as its supervisor knows it."""

    name: str
    pid: int | None
    restarts: int
    last_exit: int | None
    """The exit status of its last end; a signal is negative."""


class ClusterFile(msgspec.Struct, frozen=True):
    """The content of the status file."""

    pid: int
    url: str
    nodes: list[RunningNode]


class Supervisor:
    """Restarts the nodes of a cluster that this process has started."""

    def __init__(self, cluster: LocalCluster, clock: Clock, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._clock = clock
        self._tell = tell
        now = clock.monotonic()
        self._restarts = [Restarts(now) for _ in cluster.nodes]
        self._write()

    @property
    def has_given_up(self) -> bool:
        """Whether no node runs or will be restarted."""
        return all(each.is_given_up for each in self._restarts)

    def look(self) -> None:
        """Notice nodes that have ended, and restart those whose pause is over."""
        now = self._clock.monotonic()
        is_changed = False
        for index, restarts in enumerate(self._restarts):
            if restarts.is_given_up or self._cluster.pid(index) is not None:
                continue
            if restarts.due is None:
                self._note_end(index, restarts, now)
            elif now >= restarts.due:
                self._cluster.restart(index)
                restarts.start(now)
                name, pid = self._cluster.nodes[index].name, self._cluster.pid(index)
                self._tell(f"{name} was restarted, pid {pid} (restart {restarts.count})")
            else:
                continue
            is_changed = True
        if is_changed:
            self._write()

    def _note_end(self, index: int, restarts: Restarts, now: float) -> None:
        name, status = self._cluster.nodes[index].name, self._cluster.exit_status(index)
        pause = restarts.end(now, status)
        what = f"it is restarted in {pause:g} s" if pause is not None else "it is given up"
        self._tell(
            f"{name} has ended with status {status}; {what}; see {self._cluster.log_file(index)}"
        )

    def _write(self) -> None:
        nodes = [
            RunningNode(node.name, self._cluster.pid(index), restarts.count, restarts.last_exit)
            for index, (node, restarts) in enumerate(
                zip(self._cluster.nodes, self._restarts, strict=True)
            )
        ]
        content = msgspec.json.encode(ClusterFile(os.getpid(), self._cluster.url, nodes))
        file = self._cluster.folder / STATUS_FILE
        with contextlib.suppress(OSError):  # on a full disk the cluster runs without it
            unfinished = file.with_suffix(".new")
            unfinished.write_bytes(content)
            unfinished.replace(file)


def find_cluster(folder: Path) -> ClusterFile | None:
    """Read the status file of a folder; None if the process that has the lock did not write it.

    The process of an earlier cluster has ended, and another one may have its number now.
    """
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode((folder / STATUS_FILE).read_bytes(), type=ClusterFile)
        owner = (folder / LOCK_FILE).read_text("utf-8", "replace").split()
        return found if owner[:1] == [str(found.pid)] else None
    return None
