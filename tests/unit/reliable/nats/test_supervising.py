"""When a node of a local cluster is restarted."""

import os
from pathlib import Path

from partita.clock import ManualClock
from partita.processes import (
    FAILURES_MAX,
    RESTART_SECONDS_MAX,
    RESTART_SECONDS_MIN,
    STABLE_SECONDS,
    Restarts,
)
from partita.reliable.nats.cluster import LOCK_FILE, LocalCluster
from partita.reliable.nats.supervising import Supervisor, find_cluster


def test_pauses_double_until_the_longest_and_a_node_that_keeps_ending_is_given_up() -> None:
    restarts = Restarts(0.0)
    now, pauses = 0.0, []

    while (pause := restarts.end(now, 1)) is not None:
        pauses.append(pause)
        now += pause
        restarts.start(now)

    assert pauses[:3] == [RESTART_SECONDS_MIN, 2 * RESTART_SECONDS_MIN, 4 * RESTART_SECONDS_MIN]
    assert pauses[-1] == RESTART_SECONDS_MAX
    assert len(pauses) == restarts.count == FAILURES_MAX
    assert restarts.is_given_up


def test_a_node_that_ran_long_enough_starts_with_the_shortest_pause() -> None:
    restarts = Restarts(0.0)
    now = 0.0
    for _ in range(4):
        now += restarts.end(now, -9) or 0.0
        restarts.start(now)

    pause = restarts.end(now + STABLE_SECONDS, -9)

    assert pause == RESTART_SECONDS_MIN
    assert (restarts.count, restarts.last_exit) == (4, -9)


class EndingCluster(LocalCluster):
    """Its nodes end at once."""

    def pid(self, index: int) -> int | None:
        return None

    def exit_status(self, index: int) -> int | None:
        return index

    def restart(self, index: int) -> None:
        """Start nothing."""


def test_a_cluster_whose_nodes_are_all_given_up_has_ended(tmp_path: Path) -> None:
    clock, told = ManualClock(), list[str]()
    cluster = EndingCluster(tmp_path, port=4222)
    supervisor = Supervisor(cluster, clock, told.append)
    (tmp_path / LOCK_FILE).write_text(f"{os.getpid()} {cluster.url}\n")

    while not supervisor.has_given_up:
        supervisor.look()
        clock.advance(RESTART_SECONDS_MAX)
        assert len(told) < 1000

    found = find_cluster(tmp_path)
    assert found is not None
    assert [(node.restarts, node.last_exit) for node in found.nodes] == [
        (FAILURES_MAX, 0),
        (FAILURES_MAX, 1),
        (FAILURES_MAX, 2),
    ]
    assert told[0].startswith("node1 has ended with status 0; it is restarted in 0.5 s")
    assert "it is given up" in told[-1]


def test_a_missing_or_damaged_status_file_is_none(tmp_path: Path) -> None:
    assert find_cluster(tmp_path) is None
    (tmp_path / "cluster.json").write_text("{")
    assert find_cluster(tmp_path) is None


def test_the_status_of_an_earlier_cluster_is_not_that_of_the_lock(tmp_path: Path) -> None:
    Supervisor(EndingCluster(tmp_path, port=4222), ManualClock(), lambda _: None)

    (tmp_path / LOCK_FILE).write_text("1 nats://127.0.0.1:4222\n")
    assert find_cluster(tmp_path) is None
    (tmp_path / LOCK_FILE).write_text(f"{os.getpid()}\npartita\nhere\n")
    assert find_cluster(tmp_path) is not None
