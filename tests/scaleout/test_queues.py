"""What queues on PostgreSQL do besides the contract: trips, counts, sweeps, damage, failures."""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from conformance.queue_store import place_of, receipt_of, texts_of
from partita.clock import ManualClock
from partita.errors import ChecksumError, InDoubtError, MessageNotFoundError, QueueNotFoundError
from partita.queues.message import Message
from partita.scaleout.fleet import Fleet
from partita.scaleout.queues import lanes, postgres_store, statements, sweep
from partita.scaleout.queues.counts import COUNT_KEPT_SECONDS
from partita.storage.durability import Durability
from partita.ticks import TICKS_PER_SECOND
from support.queue_databases import OpenQueues, TickingTime, queue_url

DAMAGE = """
UPDATE partita.message m SET text = 'damaged'::bytea FROM partita.queue q
 WHERE q.account_id = $1 AND m.queue_id = q.id AND m.text LIKE 'broken%'::bytea
"""
MESSAGES = """
SELECT m.* FROM partita.message m LEFT JOIN partita.queue q ON q.id = m.queue_id
 WHERE q.account_id = $1 OR q.id IS NULL
"""
"""Of an account, and those of dropped queues."""
FORGET = """
DELETE FROM partita.message m
 WHERE NOT EXISTS (SELECT FROM partita.range_own r WHERE r.tid = m.queue_id)
"""
"""Removes the messages of queues that other tests have dropped."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def queues(clock: ManualClock) -> AsyncIterator[OpenQueues]:
    """A front end with the queue `work`."""
    opened = OpenQueues(clock, now=TickingTime(clock))
    await opened.open()
    await opened.run(FORGET)
    await opened.store.create_queue("work", {})
    yield opened
    await opened.close()


@pytest.fixture
async def other(queues: OpenQueues, clock: ManualClock) -> AsyncIterator[OpenQueues]:
    """A second front end of the same account."""
    opened = OpenQueues(clock, now=queues.database.now, account_id=queues.account_id)
    await opened.open()
    yield opened
    await opened.close()


async def put(queues: OpenQueues, *texts: str, lives: int | None = 3600) -> list[Message]:
    return [
        await queues.store.put("work", text, hidden_seconds=0, lifetime_seconds=lives)
        for text in texts
    ]


async def claim(queues: OpenQueues, limit: int = 32, hidden: int = 30) -> list[Message]:
    return await queues.store.claim("work", limit, hidden_seconds=hidden)


async def count(queues: OpenQueues) -> int | None:
    return (await queues.store.get_queue("work")).message_count


# Trips


async def test_claims_that_travel_together_hide_for_their_own_times(queues: OpenQueues) -> None:
    store = queues.store
    await store.create_queue("more", {})
    await put(queues, *(str(n) for n in range(6)))
    await store.put("more", "x", hidden_seconds=0, lifetime_seconds=60)

    first, one, two, three, four = await asyncio.gather(
        store.claim("work", 1, hidden_seconds=10),
        store.claim("work", 2, hidden_seconds=10),
        store.claim("more", 3, hidden_seconds=20),
        store.claim("work", 2, hidden_seconds=30),
        store.claim("work", 5, hidden_seconds=40),
    )

    assert texts_of(first) == ["0"]  # the first travels alone
    assert [texts_of(got) for got in (one, two, three, four)] == [
        ["1", "2"],
        ["x"],
        ["3", "4"],
        ["5"],
    ]
    later = [got[0].visible_at - one[0].visible_at for got in (two, three, four)]
    assert [round(ticks / TICKS_PER_SECOND) for ticks in later] == [10, 20, 30]


async def test_each_call_of_a_trip_gets_its_own_answer(queues: OpenQueues) -> None:
    store = queues.store
    await store.create_queue("more", {})
    one, two, three = await put(queues, "1", "2", "3")
    await store.delete("work", place_of(three), receipt_of(three))

    found = await asyncio.gather(
        store.peek("work", 1),
        store.delete("work", place_of(one), receipt_of(one)),
        store.delete("work", place_of(two), bytes(24)),
        store.delete("nobody", place_of(two), receipt_of(two)),
        store.delete("more", place_of(two), receipt_of(two)),
        store.delete("work", place_of(three), receipt_of(three)),
        store.claim("nobody", 1, hidden_seconds=1),
        store.put("nobody", "x", hidden_seconds=0, lifetime_seconds=1),
        store.put("more", "x", hidden_seconds=0, lifetime_seconds=1),
        return_exceptions=True,
    )

    names = [type(outcome).__name__ for outcome in found]
    assert names == [
        *("list", "NoneType", "ReceiptMismatchError", "QueueNotFoundError"),
        *("MessageNotFoundError", "MessageNotFoundError", "QueueNotFoundError"),
        *("QueueNotFoundError", "Message"),
    ]


async def test_one_message_is_deleted_once_by_calls_that_travel_together(
    queues: OpenQueues,
) -> None:
    (message,) = await put(queues, "x")
    place, receipt = place_of(message), receipt_of(message)

    found = await asyncio.gather(
        *(queues.store.delete("work", place, receipt) for _ in range(5)), return_exceptions=True
    )

    assert found[0] is None
    assert [type(outcome) for outcome in found[1:]] == [MessageNotFoundError] * 4


PLANS = {
    "CLAIM": {"message_visibility", "message_pkey"},
    "REMOVE_MET": {"message_visibility", "message_pkey"},
    "PEEK": {"message_visibility"},
    "DELETE": {"message_pkey"},
    "UPDATE": {"message_pkey"},
    "JUDGE": {"message_pkey"},
    "COUNT": {"message_pkey"},
    "REMOVE_EXPIRED": {"message_expiry", "message_pkey"},
    "REMOVE_DROPPED": {"message_pkey"},
}


@pytest.mark.parametrize("statement", PLANS)
async def test_each_statement_finds_messages_by_its_index(
    queues: OpenQueues, statement: str
) -> None:
    """Also when the planner believes that all indexes are equal, because a table was empty."""
    await queues.run("DELETE FROM partita.message")
    await queues.run("VACUUM ANALYZE partita.message")
    text: str = getattr(statements, statement)
    async with queues.pool.link() as link:
        run: Any = link.connection
        await run.execute(f"PREPARE asked AS {text}")
        values = ", ".join("NULL" for n in range(1, 10) if f"${n}" in text)
        rows: Any = await run.fetch(f"EXPLAIN EXECUTE asked ({values})")
        await run.execute("DEALLOCATE asked")
    plan = "\n".join(row[0] for row in rows)

    indexes = set(re.findall(r"using (message_\w+)", plan))
    assert indexes == PLANS[statement], plan
    assert "Seq Scan on message" not in plan
    if "LockRows" in plan and "CLAIM" in statement:
        # The index has the order: the cost does not depend on the number of messages.
        assert "Index Scan" in plan.partition("LockRows")[2].splitlines()[1]


# Two front ends


async def test_front_ends_see_at_once_what_another_did(
    queues: OpenQueues, other: OpenQueues
) -> None:
    await put(queues, "old")
    await other.store.clear("work")
    await put(queues, "new")
    assert texts_of(await claim(other)) == ["new"]

    await other.store.delete_queue("work")
    with pytest.raises(QueueNotFoundError):
        await put(queues, "lost")
    await other.store.create_queue("work", {})
    await put(queues, "again")
    assert texts_of(await claim(other)) == ["again"]


async def test_accounts_do_not_see_each_other(queues: OpenQueues) -> None:
    stranger = OpenQueues()
    await stranger.open()
    try:
        (message,) = await put(queues, "x")
        with pytest.raises(QueueNotFoundError):
            await claim(stranger)
        await stranger.store.create_queue("work", {})
        assert await stranger.store.peek("work", 5) == []
        with pytest.raises(MessageNotFoundError):
            await stranger.store.delete("work", place_of(message), receipt_of(message))
    finally:
        await stranger.close()


async def test_the_clock_of_the_database_is_used_by_default() -> None:
    opened = OpenQueues()
    await opened.open()
    try:
        await opened.store.create_queue("work", {})
        (message,) = await put(opened, "x")
        (row,) = await opened.run("SELECT partita.ticks_1() AS now")
        assert texts_of(await claim(opened)) == ["x"]
        assert 0 <= row["now"] - message.inserted_at < 60 * TICKS_PER_SECOND
    finally:
        await opened.close()


async def test_a_fleet_has_queues_that_it_sweeps() -> None:
    fleet = await Fleet.open(queue_url(), durability=Durability.FAST)
    try:
        store = (await fleet.stores("ofafleet")).queues
        await store.create_queue("work", {})
        await store.put("work", "x", hidden_seconds=0, lifetime_seconds=60)
        assert texts_of(await store.claim("work", 1, hidden_seconds=1)) == ["x"]
        await store.delete_queue("work")
        async with asyncio.timeout(30):
            while await fleet.pool.write(MESSAGES, 0):  # noqa: ASYNC110 - another task
                await asyncio.sleep(0.01)
    finally:
        await fleet.close()


# Counts


async def test_a_kept_count_includes_own_puts_and_deletes(
    queues: OpenQueues, other: OpenQueues, clock: ManualClock
) -> None:
    one, *_ = await put(queues, "1", "2")
    assert await count(queues) == 2

    await put(queues, "3")
    assert await count(queues) == 3
    await queues.store.delete("work", place_of(one), receipt_of(one))
    assert await count(queues) == 2
    await put(other, "4")
    assert await count(queues) == 2
    clock.advance(COUNT_KEPT_SECONDS)
    assert await count(queues) == 3


async def test_a_put_beside_a_count_is_counted(queues: OpenQueues) -> None:
    for number in range(20):
        counted, _ = await asyncio.gather(count(queues), put(queues, str(number)))
        assert counted is not None
        now = await count(queues)
        assert now is not None
        assert number + 1 <= now
        await claim(queues, 1)


async def test_a_long_queue_is_counted_in_parts(
    queues: OpenQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_store, "COUNT_MESSAGES", 3)
    await put(queues, *(str(n) for n in range(9)))

    assert await count(queues) == 9


# Lists


@pytest.mark.parametrize(
    ("prefix", "start", "found"),
    [
        ("wo\0", "", []),
        ("", "work\0x", ["work-2"]),
        ("", "wor\0", ["work", "work-2"]),
        ("\U0010ffff", "", []),
    ],
)
async def test_bounds_of_lists_may_be_any_text(
    queues: OpenQueues, prefix: str, start: str, found: list[str]
) -> None:
    await queues.store.create_queue("work-2", {})

    listed = await queues.store.list_queues(prefix, start, 10)

    assert [queue.name for queue in listed] == found


# Damage


async def test_a_damaged_message_is_hidden_and_those_after_it_are_delivered(
    queues: OpenQueues, caplog: pytest.LogCaptureFixture
) -> None:
    await put(queues, "broken 1", "2", "broken 3", "4")
    await queues.run(DAMAGE, queues.account_id)

    assert texts_of(await queues.store.peek("work", 5)) == ["2", "4"]
    assert texts_of(await claim(queues, 2, hidden=1)) == ["2", "4"]
    assert await claim(queues) == []
    assert caplog.text.count("of queue work is damaged and hidden") == 2


async def test_a_damaged_message_can_be_updated_with_its_text_only(queues: OpenQueues) -> None:
    (message,) = await put(queues, "broken")
    await queues.run(DAMAGE, queues.account_id)
    place, receipt = place_of(message), receipt_of(message)

    with pytest.raises(ChecksumError):
        await queues.store.update("work", place, receipt, hidden_seconds=0, text=None)
    await queues.store.update("work", place, receipt, hidden_seconds=0, text="whole")

    assert texts_of(await claim(queues)) == ["whole"]


# Sweeps


async def test_a_sweep_leaves_no_rows_behind(
    queues: OpenQueues, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "SWEEP_MESSAGES", 10)
    await put(queues, *(str(n) for n in range(25)))
    await queues.store.clear("work")
    await put(queues, *(str(n) for n in range(25)), lives=5)
    await queues.store.create_queue("more", {})
    await queues.store.put("more", "x", hidden_seconds=0, lifetime_seconds=None)
    await queues.store.delete_queue("more")
    clock.advance(6)

    await queues.store.sweep()

    assert await queues.run(MESSAGES, queues.account_id) == []
    dropped = await queues.run("SELECT id FROM partita.dropped_queue")
    clock.advance(sweep.DROPPED_SECONDS)
    await queues.store.sweep()
    assert len(dropped) - len(await queues.run("SELECT id FROM partita.dropped_queue")) >= 2


async def test_a_claim_removes_what_expired_only_while_the_clocks_agree(
    queues: OpenQueues, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lanes, "MET_MESSAGES_MAX", 5)
    await put(queues, *("dead" for _ in range(20)), lives=5)
    await put(queues, "1", "2")
    clock.advance(6)

    queues.may_expire = False
    assert texts_of(await claim(queues, 1)) == ["1"]
    assert len(await queues.run(MESSAGES, queues.account_id)) == 22
    queues.may_expire = True
    assert texts_of(await claim(queues, 4)) == ["2"]
    assert len(await queues.run(MESSAGES, queues.account_id)) == 22 - 4 - 5


async def test_one_front_end_at_a_time_sweeps(queues: OpenQueues, clock: ManualClock) -> None:
    await put(queues, "x", lives=1)
    clock.advance(2)
    async with queues.pool.link() as link, link.transaction():
        held = statements._TURN.partition("(SELECT ")[2].removesuffix(")")
        await link.read(f"SELECT {held}")
        await queues.store.sweep()
        assert len(await queues.run(MESSAGES, queues.account_id)) == 1

    await queues.store.sweep()
    assert await queues.run(MESSAGES, queues.account_id) == []


async def test_a_sweep_that_fails_is_tried_again(
    queues: OpenQueues, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "SWEEP_SECONDS", 0.01)
    await put(queues, "x", lives=1)
    clock.advance(2)
    whole = statements.REMOVE_DROPPED
    monkeypatch.setattr(statements, "REMOVE_DROPPED", "SELECT 1 / (0 * $1::int)")
    queues.database.start()
    await asyncio.sleep(0.05)

    monkeypatch.setattr(statements, "REMOVE_DROPPED", whole)

    async with asyncio.timeout(30):
        while await queues.run(MESSAGES, queues.account_id):  # noqa: ASYNC110 - another task
            await asyncio.sleep(0.01)


# Failures


async def test_a_put_whose_session_ends_in_the_middle_is_in_doubt(queues: OpenQueues) -> None:
    await put(queues, "1")
    async with queues.pool.link() as link, link.transaction():
        await link.read("LOCK TABLE partita.message IN SHARE MODE")
        putting = asyncio.ensure_future(put(queues, "2"))
        ended: list[dict[str, object]] = []
        while not ended:
            ended = await queues.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
                " AND query LIKE '%INSERT INTO partita.message%'"
            )
        with pytest.raises(InDoubtError):
            await putting

    await put(queues, "3")
    assert texts_of(await claim(queues)) == ["1", "3"]


async def test_a_cancelled_caller_ends_no_connection(queues: OpenQueues) -> None:
    await put(queues, "1")
    sessions = await queues.run(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() ORDER BY pid"
    )
    for call in (put(queues, "2"), claim(queues), queues.store.set_metadata("work", {"a": "b"})):
        task = asyncio.ensure_future(call)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await put(queues, "3")

    found = await queues.run(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() ORDER BY pid"
    )
    assert {row["pid"] for row in sessions} <= {row["pid"] for row in found}
    assert (await queues.store.get_queue("work")).metadata == {"a": "b"}
