"""Queues as ranges of a fleet: placed on shards, moved while clients work, dropped everywhere."""

import asyncio
import contextlib
import signal

import pytest

from conformance.queue_store import place_of, receipt_of, texts_of
from partita.errors import (
    CatalogMismatchError,
    PartitaError,
    QueueNotFoundError,
    ReceiptMismatchError,
    StoreBusyError,
    UnavailableError,
)
from partita.policies import Policy
from partita.scaleout import fleet as fleet_module
from partita.scaleout.catalog import staleness
from partita.scaleout.catalog.sizes import measure
from partita.scaleout.control import moving, range_copy
from partita.scaleout.control.states import MoveStep
from partita.scaleout.queues import postgres_store
from partita.scaleout.schema import kinds
from scaleout.test_control_processes import process
from support.control_fleets import HERE, THERE, Pause, urls
from support.fleet_processes import FENCED
from support.many_shards import execute
from support.placed_queues import Placed, open_shards, placed
from support.queue_ledger import QUEUE, Clients, Ledger
from support.repeats import repeat
from support.shards_away import away

__all__ = ["placed"]

MOVES = repeat(4, 20, 200)
MOVING_SECONDS = 1.0
BROKEN_MOVES_MAX = 60


async def test_a_new_queue_is_on_the_open_shard_with_the_fewest_ranges(placed: Placed) -> None:
    open_shards(THERE)
    await placed.fleets[0].catalog.refresh()

    assert await placed.store.create_queue("there", {"a": "1"})
    assert not await placed.stores[1].create_queue("there", {"a": "1"})

    await placed.stores[1].put("there", "x", hidden_seconds=0, lifetime_seconds=None)
    assert texts_of(await placed.store.peek("there", 5)) == ["x"]
    assert placed.rows() == (0, 1)
    assert (await placed.range("there")).shard == THERE
    assert [queue.name for queue in await placed.store.list_queues("", "", 9)] == ["there", QUEUE]


async def test_a_queue_that_moves_keeps_its_messages_with_their_order_and_receipts(
    placed: Placed,
) -> None:
    await placed.put(*(f"{number}" for number in range(10)))
    first, second = await placed.claim(2)
    await placed.stores[1].peek(QUEUE, 1)  # it knows where the queue is

    await placed.move()
    await placed.put("after", front_end=1)

    assert await placed.texts() == [*(f"{number}" for number in range(2, 10)), "after"]
    assert placed.rows() == (0, 11)
    await placed.stores[1].delete(QUEUE, place_of(first), receipt_of(first))
    kept = await placed.store.update(
        QUEUE, place_of(second), receipt_of(second), hidden_seconds=0, text="new"
    )
    with pytest.raises(ReceiptMismatchError):
        await placed.store.delete(QUEUE, place_of(second), receipt_of(second))
    assert kept.dequeue_count == 1
    assert (await placed.store.get_queue(QUEUE)).message_count == 10
    await placed.move(HERE)
    assert texts_of(await placed.claim())[-2:] == ["after", "new"]
    assert placed.rows() == (10, 0)


async def test_messages_of_both_shards_have_different_numbers(placed: Placed) -> None:
    execute(urls()[0], "SELECT setval('partita.message_sequence', 500000)")
    await placed.put("a")
    await placed.move()
    await placed.put("b", "c")
    await placed.move(HERE)
    await placed.put("d")

    found = await placed.claim()

    assert texts_of(found) == ["a", "b", "c", "d"]
    places = [place_of(message).sequence for message in found]
    assert places == sorted(set(places))


async def test_what_happens_during_a_move_is_carried_over(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts, claims, updates, deletes; and the sweep leaves the range alone."""
    await placed.put("stays", "claimed", "updated", "deleted")
    await placed.put("expired")
    expire = "UPDATE partita.message SET expires_at = 0 WHERE queue_id = %s AND sequence = ("
    last = "SELECT max(sequence) FROM partita.message WHERE queue_id = %s)"
    tid = await placed.tid()
    execute(urls()[0], expire + last, tid, tid)
    pause = Pause(monkeypatch, "catch_up")
    moving_on = asyncio.ensure_future(placed.control.move((await placed.range()).id, THERE))
    await pause.reach(moving_on)

    await placed.put("new", front_end=1)
    _, _, updated, deleted = await placed.claim(4, hidden=0)
    await placed.store.delete(QUEUE, place_of(deleted), receipt_of(deleted))
    await placed.stores[1].update(
        QUEUE, place_of(updated), receipt_of(updated), hidden_seconds=20, text="updated twice"
    )
    await placed.store.sweep()
    pause.go.set()
    await moving_on

    assert sorted(await placed.texts()) == ["claimed", "new", "stays"]
    assert placed.rows() == (0, 5)
    await placed.store.sweep()
    assert placed.rows() == (0, 4)


async def test_a_queue_is_dropped_and_cleared_wherever_it_is(placed: Placed) -> None:
    await placed.put("1", "2")
    await placed.move()
    await placed.stores[1].peek(QUEUE, 1)

    await placed.store.clear(QUEUE)
    assert await placed.texts(1) == []
    await placed.put("3", front_end=1)
    assert (await placed.range()).shard == THERE
    await placed.stores[1].delete_queue(QUEUE)
    with pytest.raises(QueueNotFoundError):
        await placed.put("lost")
    assert await placed.store.create_queue(QUEUE, {})
    assert await placed.texts(1) == []

    await placed.store.sweep()
    unowned = (
        "SELECT count(*) FROM partita.message m WHERE NOT EXISTS"
        " (SELECT FROM partita.range_own r WHERE r.tid = m.queue_id)"
    )
    assert [execute(url, unowned) for url in urls()] == [[(0,)], [(0,)]]
    assert await placed.problems() == []


async def test_a_queue_that_is_dropped_while_its_shard_is_away_is_closed_there_later(
    placed: Placed,
) -> None:
    await placed.put("1")
    await placed.move()
    await placed.stores[1].peek(QUEUE, 1)
    tid = await placed.tid()
    with away(urls()[1]):
        with pytest.raises(UnavailableError):
            await placed.store.clear(QUEUE)  # it must keep its messages, so nothing is done
        await placed.store.delete_queue(QUEUE)

    await placed.fleets[0].catalog.close_dropped()

    owned = "SELECT count(*) FROM partita.range_own WHERE tid = %s"
    assert execute(urls()[1], owned, tid) == [(0,)]
    with pytest.raises(QueueNotFoundError):
        await placed.put("late", front_end=1)


async def test_while_the_catalog_is_away_known_queues_are_served(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "BEAT_AGAIN_SECONDS", 0.05)
    await placed.store.set_policies(QUEUE, [Policy("reader")])
    await placed.store.set_metadata(QUEUE, {"a": "1"})
    await placed.move()
    assert await placed.store.get_policies(QUEUE) == [Policy("reader")]
    await placed.store.get_queue(QUEUE)
    await placed.put("1")
    with away(urls()[0]):
        await placed.put("2")
        (first, _) = await placed.claim()
        await placed.store.delete(QUEUE, place_of(first), receipt_of(first))
        assert await placed.store.get_policies(QUEUE) == [Policy("reader")]
        found = await placed.store.get_queue(QUEUE)
        assert (found.metadata, found.message_count) == ({"a": "1"}, 1)
        for refused in (
            placed.store.create_queue("new", {}),
            placed.store.clear(QUEUE),
            placed.store.list_queues("", "", 5),
        ):
            with pytest.raises(StoreBusyError):
                await refused

    assert (await placed.store.get_queue(QUEUE)).message_count == 1


async def test_while_a_shard_is_away_the_queues_of_others_are_served(placed: Placed) -> None:
    await placed.move()
    await placed.store.create_queue("here", {})
    with away(urls()[1]):
        with pytest.raises(UnavailableError):
            await placed.put("1")
        await placed.store.put("here", "2", hidden_seconds=0, lifetime_seconds=None)
        assert texts_of(await placed.store.peek("here", 1)) == ["2"]
        with contextlib.suppress(PartitaError):
            await placed.store.sweep()

    await placed.put("1")


async def test_a_drained_shard_gives_its_queues_away(placed: Placed) -> None:
    await placed.put("1", "2")
    open_shards(HERE, THERE)
    await placed.control.drain(HERE)

    states = {shard.name: shard.ranges for shard in await placed.control.shards()}
    assert states[HERE] == 0
    assert await placed.texts() == ["1", "2"]
    assert placed.rows() == (0, 2)
    assert await placed.problems() == []
    assert (await placed.control.verify()).messages >= 2
    ((size,),) = [each.parts for each in (await measure(urls()[0], placed.account)).accounts]
    assert (size.kind, size.name, size.items) == ("queue", QUEUE, 2)


async def test_the_latest_epoch_of_a_queue_wins_after_a_restore(placed: Placed) -> None:
    """The former shard is restored to a moment before the queue left it."""
    await placed.put("1")
    before = await placed.range()
    tid = await placed.tid()
    await placed.move()
    restored = (
        "INSERT INTO partita.range_own (id, tid, lo, epoch, kind) VALUES (%s, %s, '', %s, 'q')"
    )
    execute(urls()[0], restored, before.id, tid, before.epoch)
    assert await placed.problems()

    done = await placed.control.reconcile(HERE)

    assert (len(done.changes), done.problems) == (1, ())
    assert await placed.problems() == []
    assert await placed.texts() == ["1"]


# Clients through moves


async def keep_moving(placed: Placed, ledger: Ledger, times: int) -> None:
    for number in range(times):
        try:
            await placed.move(HERE if number % 2 else THERE)
        except (PartitaError, CatalogMismatchError) as error:
            ledger.wrong.append(str(error))
        if ledger.judge():
            return
        await asyncio.sleep(0.02)


@pytest.mark.repeated
@pytest.mark.timeout(900)
async def test_no_message_is_lost_or_claimed_twice_through_many_moves(placed: Placed) -> None:
    ledger = Ledger()
    clients = Clients(placed.stores, ledger)
    moves = asyncio.ensure_future(keep_moving(placed, ledger, MOVES))

    await clients.run(MOVING_SECONDS, until=lambda: moves.done() and not ledger.left)
    await moves

    assert ledger.judge() == []
    assert ledger.left == []
    assert len(ledger.histories) > 20
    assert await placed.store.peek(QUEUE, 1) == []
    assert await placed.problems() == []


async def wrong_of(placed: Placed) -> list[str]:
    """Move the queue until something is wrong; return what."""
    ledger = Ledger()
    clients = Clients(placed.stores, ledger)
    moves = asyncio.ensure_future(keep_moving(placed, ledger, BROKEN_MOVES_MAX))
    with contextlib.suppress(PartitaError, ExceptionGroup):
        await clients.run(60, until=lambda: moves.done() or bool(ledger.judge()))
    moves.cancel()
    await asyncio.gather(moves, return_exceptions=True)
    found = ledger.judge()
    if not found:
        await asyncio.sleep(1.1)
        left = {message.text for message in await placed.claim()}
        found = [f"{text} is lost" for text in ledger.left if text not in left]
    return found


@pytest.mark.proof
async def test_a_move_without_the_fence_is_caught(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = "$1::int IS NOT NULL AND $2::bigint IS NOT NULL AND $3::bigint IS NOT NULL"
    monkeypatch.setattr(moving, "_FENCE", f"SELECT {true} AS is_done")
    monkeypatch.setattr(moving, "_LEAVE", "DELETE FROM partita.range_own WHERE id = $1")
    monkeypatch.setattr(staleness, "REPEAT_SECONDS_MAX", 0.5)

    assert await wrong_of(placed)


@pytest.mark.proof
async def test_a_move_without_capture_is_caught(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def equal(_: range_copy.RangeCopy) -> None:
        """Broken, too: the comparison would end the move before anything is lost."""

    true = "$1::int IS NOT NULL AND $2::bigint IS NOT NULL"
    monkeypatch.setattr(moving, "_CAPTURE", f"SELECT {true} AS is_done")
    monkeypatch.setattr(range_copy.RangeCopy, "_compare", equal)

    assert await wrong_of(placed)


@pytest.mark.proof
async def test_the_comparison_ends_a_move_without_capture(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = "$1::int IS NOT NULL AND $2::bigint IS NOT NULL"
    monkeypatch.setattr(moving, "_CAPTURE", f"SELECT {true} AS is_done")

    assert "MoveRowsDiffer" in "".join(await wrong_of(placed))


@pytest.mark.proof
async def test_a_look_without_the_lock_is_caught(placed: Placed) -> None:
    """Broken: `enter_1` takes no lock; it pauses between the look and the write."""
    first = kinds.FUNCTIONS.index("CREATE OR REPLACE FUNCTION partita.enter_1")
    whole = kinds.FUNCTIONS[first : kinds.FUNCTIONS.index("$$;", first) + 3]
    lock = whole[whole.index("  -- Try") : whole.index("  SELECT array_agg")]
    broken = whole.replace(lock, "").replace("END\n$$", "  PERFORM pg_sleep(0.03);\nEND\n$$")
    assert len(broken) < len(whole)
    try:
        for url in urls():
            execute(url, broken)
        assert await wrong_of(placed)
    finally:
        for url in urls():
            execute(url, whole)


@pytest.mark.parametrize("step", ["prepare", "capture", "copy", "fence", "own"])
async def test_a_move_that_is_cancelled_leaves_one_owner(
    placed: Placed, monkeypatch: pytest.MonkeyPatch, step: MoveStep
) -> None:
    await placed.put("1", "2", "3")
    pause = Pause(monkeypatch, step)
    moving_on = asyncio.ensure_future(placed.control.move((await placed.range()).id, THERE))
    await pause.reach(moving_on)
    pause.go.set()
    moving_on.cancel()
    await asyncio.gather(moving_on, return_exceptions=True)
    await placed.control.resume()

    there = (await placed.range()).shard == THERE
    assert there is (step == "own")
    assert await placed.texts() == ["1", "2", "3"]
    assert placed.rows() == ((0, 3) if there else (3, 0))
    await placed.put("4")
    assert await placed.problems() == []


@pytest.mark.proof
@pytest.mark.parametrize("step", [*moving.STEPS, FENCED])
async def test_a_queue_has_one_owner_after_its_mover_was_killed(placed: Placed, step: str) -> None:
    await placed.put(*(f"{number}" for number in range(20)))
    before = await placed.range()
    async with process("move", urls()[0], str(before.id), THERE, step) as mover:
        assert await mover.wait() == -signal.SIGKILL
    async with asyncio.timeout(60):
        while await placed.control.resume():  # noqa: ASYNC110 - a server ends the sessions
            await asyncio.sleep(0.05)

    there = (await placed.range()).shard == THERE
    assert there is (step in moving.COMPLETED_ONLY)
    assert await placed.texts() == [f"{number}" for number in range(20)]
    assert placed.rows() == ((0, 20) if there else (20, 0))
    await placed.put("after")
    assert await placed.problems() == []


# Front ends of version 1.5 of the schema


OLD_CREATE = """
INSERT INTO partita.queue (account_id, name, metadata) VALUES (%s, %s, '{}')
ON CONFLICT DO NOTHING RETURNING id
"""
OLD_CLEAR = """
WITH old AS MATERIALIZED (
  SELECT id FROM partita.queue WHERE account_id = %s AND name = %s FOR UPDATE
), new AS (
  UPDATE partita.queue q SET id = nextval('partita.object_id') FROM old WHERE q.id = old.id
)
INSERT INTO partita.dropped_queue SELECT id, 0 FROM old RETURNING id
"""
OLD_DELETE = """
WITH old AS (DELETE FROM partita.queue WHERE account_id = %s AND name = %s RETURNING id)
INSERT INTO partita.dropped_queue SELECT id, 0 FROM old RETURNING id
"""
OLD_PUT = """
INSERT INTO partita.message (queue_id, nonce, inserted_at, expires_at, visible_at, receipt, text)
SELECT q.id, 1, 0, 9223372036854775807, 0, ''::bytea, ''::bytea FROM partita.queue q
 WHERE q.account_id = %s AND q.name = %s RETURNING 1
"""


async def test_earlier_front_ends_use_queues_of_the_catalogs_database(placed: Placed) -> None:
    def old(statement: str, name: str) -> list[tuple[object, ...]]:
        return execute(urls()[0], statement, placed.account_id, name)

    assert len(old(OLD_CREATE, "old")) == 1
    assert old(OLD_CREATE, "old") == []
    assert old(OLD_PUT, "old") == old(OLD_PUT, QUEUE) == [(1,)]
    assert (await placed.store.get_queue("old")).message_count == 1
    old(OLD_CLEAR, "old")
    assert (await placed.stores[1].get_queue("old")).message_count == 0
    await placed.store.put("old", "x", hidden_seconds=0, lifetime_seconds=None)
    assert (await placed.range("old")).shard == HERE
    old(OLD_DELETE, "old")
    with pytest.raises(QueueNotFoundError):
        await placed.store.put("old", "x", hidden_seconds=0, lifetime_seconds=None)
    old(OLD_CREATE, "old")
    assert (await placed.stores[1].get_queue("old")).message_count == 0
    found = await placed.control.verify()
    assert found.problems == ()


async def test_earlier_front_ends_cannot_use_a_queue_that_has_left(placed: Placed) -> None:
    await placed.move()
    for statement in (OLD_PUT, OLD_CLEAR, OLD_DELETE):
        with pytest.raises(Exception, match="null value"):
            execute(urls()[0], statement, placed.account_id, QUEUE)

    await placed.put("1")
    assert await placed.texts(1) == ["1"]
    await placed.move(HERE)
    assert execute(urls()[0], OLD_PUT, placed.account_id, QUEUE) == [(1,)]
    assert (await placed.store.get_queue(QUEUE)).message_count == 2


async def test_a_name_that_is_taken_meanwhile_leaves_no_range(
    placed: Placed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(_store: postgres_store.PostgresQueueStore, _name: str) -> None:
        """Both look before either creates."""

    find = postgres_store.PostgresQueueStore._find
    monkeypatch.setattr(postgres_store.PostgresQueueStore, "_find", nothing)
    creating = asyncio.gather(
        *(store.create_queue("new", {}) for store in placed.stores), return_exceptions=True
    )
    await asyncio.sleep(0)
    monkeypatch.setattr(postgres_store.PostgresQueueStore, "_find", find)

    created = await creating

    assert sorted(map(str, created)) == ["False", "True"]
    assert await placed.problems() == []
