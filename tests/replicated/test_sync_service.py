"""A service without asyncio, on a real NATS cluster: functions in threads, requests, restores."""

import uuid
from pathlib import Path

from partita.reliable import Dictionary, Request
from partita.reliable.sync import StateManager, open_service, open_state, restore_state
from support.cluster import Cluster

COUNTS = Dictionary("counts", key=str, value=int)


def opened(state: StateManager) -> None:
    state.open(COUNTS)


def count(state: StateManager, request: Request) -> bytes:
    counts = state.open(COUNTS)
    total = state.call(
        lambda tx: counts.upsert(tx, str(request.key), 1, lambda old: old + 1),
        idempotency_key=request.id,
    )
    return b"%d" % total


def test_requests_are_answered_by_ordinary_functions(cluster: Cluster, tmp_path: Path) -> None:
    name = f"s-{uuid.uuid4().hex[:12]}"
    with open_service(
        cluster.url, name, partitions=2, replicas=3, folder=tmp_path, opened=opened, handle=count
    ) as service:
        assert service.request("ada", idempotency_key="first", timeout=60) == b"1"
        assert service.request("ada", idempotency_key="first", timeout=60) == b"1"
        assert service.request("ada", idempotency_key="second", timeout=60) == b"2"
        assert service.state_for("ada").open(COUNTS).auto.get("ada") == 2
        assert sorted(service.states()) == [0, 1]


def test_a_backup_is_restored_as_a_new_partition(cluster: Cluster, tmp_path: Path) -> None:
    partition = f"p-{uuid.uuid4().hex[:12]}"
    with open_state(":memory:") as state:
        state.open(COUNTS).auto.set("ada", 7)
        state.backup(tmp_path / "backups")

    restore_state(tmp_path / "backups", cluster.url, partition=partition)

    with open_state(cluster.url, partition=partition) as state:
        assert state.open(COUNTS).auto.get("ada") == 7
