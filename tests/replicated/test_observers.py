"""Observers of partitions on a real NATS cluster: what they see, and that they change nothing."""

import asyncio
import contextlib
import json
import signal
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import partita
from partita.cli.main import main
from partita.errors import ConfigurationError, PartitaError, UnavailableError, UsageError
from partita.reliable.nats.jetstream import JetStream
from partita.reliable.nats.request_transport import NatsRequestTransport
from partita.reliable.observing.answering import Question, decode_reply, encode, subject_of
from partita.reliable.observing.facts import ROWS_PER_PAGE_MAX, LockReport, ReplicaFacts, StateFacts
from partita.reliable.observing.nats_observer import (
    NatsObserver,
    list_partitions,
    observe_partition,
)
from partita.reliable.replication.replica import HAND_OVER_LAG_MAX, LEASE_KEY, REPLICA_PREFIX
from replicated.replica_process import Ledger
from replicated.test_replicas import REPLICA, Processes, ReplicaProcess, World, eventually
from support.cluster import Cluster

Capture = pytest.CaptureFixture[str]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
async def world(cluster: Cluster, tmp_path: Path) -> AsyncIterator[World]:
    async with World(cluster, tmp_path) as world:
        yield world


def observing(world: World) -> contextlib.AbstractAsyncContextManager[NatsObserver]:
    return observe_partition(world.cluster.url, world.partition)


async def status_where(observer: NatsObserver, wanted: Any) -> StateFacts:
    """Return the first status that has a property: heartbeats are written every 0.8 s."""
    found: list[StateFacts] = []

    async def holds() -> bool:
        found.append(await observer.status())
        return bool(wanted(found[-1]))

    await eventually(holds)
    return found[-1]


async def run_command(capsys: Capture, *words: str) -> tuple[int, str, str]:
    """Run a command in a thread, which has an event loop of its own."""
    capsys.readouterr()
    status = await asyncio.to_thread(main, list(words))
    return status, *capsys.readouterr()


async def registers(world: World) -> set[str]:
    stream = await JetStream.attach(world.cluster.url, partition=world.partition)
    try:
        found = await stream.list_registers("", timeout=5)
        return set(found)
    finally:
        await stream.close()


async def test_status_names_primary_replicas_log_checkpoint_and_backup(
    world: World, tmp_path: Path
) -> None:
    first = await world.join(address="app1:8000")
    await world.join(address="app2:8000")
    for number in range(5):
        await first.note(number)
    await first.state.checkpoint()
    await first.note(5)
    await first.state.backup(tmp_path / "backups")
    keys = await registers(world)
    last = first.state.sequence

    async with observing(world) as observer:
        found = await status_where(
            observer, lambda facts: sorted(each.applied for each in facts.replicas) == [last, last]
        )
        while_observed = await registers(world)

    assert found.primary is not None
    assert (found.primary.address, found.primary.epoch) == ("app1:8000", first.state.epoch)
    assert [(each.address, each.role, each.lag) for each in found.replicas if each.lag == 0] == [
        (each.address, each.role, 0) for each in found.replicas
    ]
    assert {each.version for each in found.replicas} == {partita.__version__}
    assert found.primary.schemas == {"counts": 1, "shares": 1}
    assert (found.sequence, found.epoch) == (last, first.state.epoch)
    assert found.log is not None
    assert found.log.last == last
    assert found.log.bytes
    newest = first.state.checkpoints.newest
    assert newest is not None
    assert found.checkpoint is not None
    assert (found.checkpoint.sequence, found.checkpoint.bytes) == (newest.sequence, newest.size)
    assert found.checkpoint.age_seconds is not None
    assert found.backup is not None
    assert (found.backup.sequence, found.backup.address) == (last, "app1:8000")
    assert sorted(node.name for node in found.nodes) == ["node1", "node2", "node3"]
    assert [node.is_leader for node in found.nodes].count(True) == 1
    assert found.notes == []
    assert (
        keys
        == while_observed
        == {LEASE_KEY} | {REPLICA_PREFIX + each.replica for each in found.replicas}
    )
    assert first.state.sequence == last, "an observer appends nothing"


async def test_rows_are_followed_with_and_without_a_running_replica(world: World) -> None:
    ledger = await world.join()
    for number in range(30):
        await ledger.note(number)

    async def is_cut() -> bool:  # then a copy must begin with the checkpoint
        await ledger.state.checkpoint()
        return ledger.state.log.first > 1

    await eventually(is_cut)

    async with observing(world) as observer:
        before = await observer.collections()
        page = await observer.rows("counts", limit=20)
        rest = await observer.rows("counts", after=page.next, limit=20)
        jumped = await observer.rows("counts", start=25, limit=1)
        await ledger.note(30)
        after = await observer.rows("counts", limit=ROWS_PER_PAGE_MAX)
        await world.__aexit__()
        left = await observer.rows("counts", start=28)
        facts = await observer.status()
    async with observing(world) as observer:
        again = await observer.collections()

    assert [(each.name, each.kind, each.count) for each in before] == [
        ("counts", "dictionary", 30),
        ("shares", "dictionary", 8),
    ]
    assert [row.key for row in [*page.rows, *rest.rows]] == list(range(30))
    assert (page.rows[0].value, rest.next) == (1, None)
    assert [row.key for row in jumped.rows] == [25]
    assert len(after.rows) == 31
    assert [row.key for row in left.rows] == [28, 29, 30]
    assert [each.count for each in again] == [31, 8]
    assert facts.replicas == []
    assert "No replica is running: nothing can be committed." in facts.notes


async def test_locks_name_holders_and_waiters_with_their_ages(world: World) -> None:
    ledger = await world.join()
    await ledger.note(7)
    state, counts = ledger.state, ledger.counts

    async def wait_for_seven() -> None:
        async with state.transaction() as tx:
            await counts.set(tx, 7, 3, timeout=60)

    async with observing(world) as observer:
        await status_where(observer, lambda facts: facts.primary)
        async with state.transaction() as tx:
            await counts.set(tx, 7, 2)
            waiting = asyncio.create_task(wait_for_seven())
            found: list[LockReport] = []

            async def is_waited_for() -> bool:
                found.append(await observer.locks())
                return found[-1].waiting == 1

            await eventually(is_waited_for)
        await waiting
        free = await observer.locks()

    first = found[-1].locks[0]
    assert (first.collection, first.key) == ("counts", 7)
    (holder,), (waiter,) = first.holders, first.waiters
    assert (holder.transaction, holder.mode, waiter.mode) == (tx.id, "exclusive", "exclusive")
    assert holder.age_seconds is not None
    assert waiter.waited_seconds is not None
    assert 0 <= waiter.waited_seconds <= holder.age_seconds
    assert Path(__file__).name in holder.origin
    assert (found[-1].transactions, found[-1].replica) == (2, state.replica_id)
    assert (free.locks, free.count, free.waiting) == ([], 0, 0)


async def test_the_primary_is_moved_under_load_and_no_acknowledged_commit_is_lost(
    world: World,
) -> None:
    await world.join_three()
    world.operations.start()
    await world.operations.work()

    async with observing(world) as observer:
        for _ in range(3):
            facts = await status_where(
                observer, lambda each: each.primary and len(each.replicas) > 2
            )
            assert facts.primary is not None
            target = next(each for each in facts.replicas if each.role == "secondary")
            moved = await observer.promote(target.replica)
            await world.operations.work()
            assert (moved.before.replica, moved.after.replica) == (
                facts.primary.replica,
                target.replica,
            )
            assert moved.epoch > moved.epoch_before
        handed = await observer.step_down()
        await world.operations.work()

    assert handed.after.replica != handed.before.replica
    await world.settled()
    assert world.operations.refusals["InDoubt"] == 0, "the record in flight is waited for"


async def test_what_cannot_be_moved_is_refused_and_nothing_changes(world: World) -> None:
    ledger = await world.join(address="one")
    await ledger.note(1)
    epoch = ledger.state.epoch

    async with observing(world) as observer:
        await status_where(observer, lambda facts: facts.primary)
        with pytest.raises(UsageError) as alone:
            await observer.step_down()
        with pytest.raises(UsageError) as unknown:
            await observer.promote("two")
        with pytest.raises(UsageError) as itself:
            await observer.promote("one")
        await world.join(address="two")
        await status_where(observer, lambda facts: len(facts.replicas) == 2)
        ledger.state.state.sequence += HAND_OVER_LAG_MAX + 100
        with pytest.raises(UsageError) as behind:
            await observer.promote("two")
        ledger.state.state.sequence -= HAND_OVER_LAG_MAX + 100

    assert [each.value.code for each in (alone, unknown, itself, behind)] == [
        "NoOtherReplica",
        *["SuccessorRefused"] * 3,
    ]
    assert "records behind" in behind.value.message
    assert ledger.state.is_primary
    assert ledger.state.epoch == epoch


async def test_a_partition_without_replicas_has_no_primary_to_ask(world: World) -> None:
    await world.join()
    await world.__aexit__()

    async with observing(world) as observer:
        for asked in (observer.step_down(), observer.promote("x"), observer.locks()):
            with pytest.raises(UnavailableError) as caught:
                await asked
            assert caught.value.code == "NoPrimary"


async def test_a_partition_that_does_not_exist_is_not_created(world: World) -> None:
    with pytest.raises(ConfigurationError) as caught:
        async with observing(world):
            pass

    assert caught.value.code == "PartitionNotFound"
    assert world.partition not in await list_partitions(world.cluster.url)


async def test_only_the_primary_answers_and_nonsense_is_refused(world: World) -> None:
    await world.join()
    second = await world.join()
    stream = await JetStream.attach(world.cluster.url, partition=world.partition)
    transport = NatsRequestTransport(stream.link, is_member=False)
    subject = subject_of(world.partition, second.state.replica_id)
    try:
        replies = [
            decode_reply(await transport.ask(subject, raw, timeout=5))
            for raw in (encode(Question("locks")), b"\xff", encode({"what": "explode"}))
        ]
    finally:
        await stream.close()

    refused = [None if each.refusal is None else each.refusal.code for each in replies]
    assert refused == ["NotPrimary", "InvalidRequest", "InvalidRequest"]


async def test_the_partition_of_a_service_is_not_promoted_by_hand(
    cluster: Cluster, tmp_path: Path
) -> None:
    name = f"s-{uuid.uuid4().hex[:8]}"

    async def prepare(state: partita.reliable.StateManager) -> None:
        await Ledger.open(state)

    options: dict[str, Any] = {"partitions": 1, "opened": prepare}
    async with (
        partita.open_service(cluster.url, name, folder=tmp_path / "a", **options),
        partita.open_service(cluster.url, name, folder=tmp_path / "b", **options),
        observe_partition(cluster.url, f"{name}-0") as observer,
    ):
        facts = await status_where(
            observer,
            lambda each: each.primary and len([r for r in each.replicas if r.is_placed]) == 2,
        )
        other = next(each for each in facts.replicas if each.role == "secondary")
        with pytest.raises(UsageError) as caught:
            await observer.promote(other.replica)

    assert caught.value.code == "PrimaryIsPlaced"


async def test_the_command_line_prints_and_moves_the_primary(world: World, capsys: Capture) -> None:
    await world.join(address="app1")
    second = await world.join(address="app2")
    where = (world.cluster.url, "--partition", world.partition)
    async with observing(world) as observer:
        await status_where(observer, lambda facts: facts.primary and len(facts.replicas) == 2)

    status, out, err = await run_command(capsys, "state", "status", *where, "--json")
    shown = json.loads(out)["partitions"][0]
    _, text, _ = await run_command(capsys, "state", "status", *where)
    promoted = await run_command(capsys, "state", "promote", *where, "--replica", "app2", "--json")
    assert await second.state.wait_primary(30)
    handed = await run_command(capsys, "state", "step-down", *where)
    refused = await run_command(capsys, "state", "promote", *where, "--replica", "nobody")
    folder = await run_command(capsys, "state", "status", "./somewhere")

    assert (status, err) == (0, "")
    assert shown["primary"] in {each["replica"] for each in shown["replicas"]}
    assert f"{world.partition}\n  primary     app1" in text
    assert promoted[0] == 0
    assert json.loads(promoted[1])["after"]["address"] == "app2"
    assert "app1" in handed[1].splitlines()[0]
    assert "app2" in handed[1].splitlines()[1]
    assert refused[0] == folder[0] == 2
    assert "is not a running replica" in refused[2]
    assert "`partita state inspect` reads a folder" in folder[2]


async def test_the_command_line_lists_all_partitions_and_fails_without_a_primary(
    world: World, capsys: Capture
) -> None:
    await world.join()
    await world.__aexit__()

    status, out, _ = await run_command(
        capsys, "state", "status", "--connect", world.cluster.url, "--json"
    )

    found = {each["partition"]: each["primary"] for each in json.loads(out)["partitions"]}
    assert status == 1
    assert found[world.partition] is None


@pytest.mark.proof
@pytest.mark.parametrize("victim", ["the primary before", "the chosen replica"])
async def test_processes_that_are_killed_during_a_hand_over_lose_no_acknowledged_commit(
    cluster: Cluster, tmp_path: Path, victim: str
) -> None:
    async with (
        Processes(cluster, tmp_path) as processes,
        observe_partition(cluster.url, processes.partition) as observer,
    ):
        processes.operations.start()
        for pause in (0.0, 0.02, 0.1):
            await processes.operations.work()
            facts = await status_where(
                observer, lambda each: each.primary and len(each.replicas) > 2
            )
            assert facts.primary is not None
            target = next(each for each in facts.replicas if each.role == "secondary")
            killed = facts.primary if victim == "the primary before" else target
            moving = asyncio.create_task(observer.promote(target.replica))
            await asyncio.sleep(pause)
            place = processes.replicas.index(_process_of(processes.replicas, killed))
            processes.replicas[place].process.kill()
            with contextlib.suppress(PartitaError):  # the command may say that it did not work
                await moving
            await processes.operations.write_again(f"the death of {victim}")
            await processes.restart(place)

        await processes.settled()


@pytest.mark.proof
async def test_a_chosen_replica_that_is_suspended_does_not_stop_the_others(
    cluster: Cluster, tmp_path: Path
) -> None:
    partition = f"r-{uuid.uuid4().hex[:12]}"
    processes = []
    for name in ("a", "b", "c"):
        command = [str(REPLICA), cluster.url, partition, str(tmp_path / name), name]
        processes.append(await ReplicaProcess.start(tmp_path / name, name, command))
    try:
        async with observe_partition(cluster.url, partition) as observer:
            facts = await status_where(observer, lambda each: len(each.replicas) == 3)
            target = next(each for each in facts.replicas if each.role == "secondary")
            frozen = _process_of(processes, target)
            frozen.process.send_signal(signal.SIGSTOP)

            with pytest.raises(PartitaError) as caught:
                await observer.promote(target.replica)

            after = await status_where(observer, lambda each: each.primary is not None)
            frozen.process.send_signal(signal.SIGCONT)
        assert after.primary is not None
        told = await _process_of(processes, after.primary).ask("note", 1, seconds=30)
    finally:
        for process in processes:
            await process.kill()

    assert caught.value.code == "SuccessorFailed"
    assert told.sequence > 0


def _process_of(processes: list[ReplicaProcess], replica: ReplicaFacts) -> ReplicaProcess:
    return next(each for each in processes if each.address == replica.address)
