"""Clients of two front ends on one queue: no message is lost, doubled or there after its delete."""

from collections.abc import AsyncIterator

import pytest

from partita.scaleout.queues import statements
from support.queue_databases import OpenQueues
from support.queue_ledger import QUEUE, Clients, Ledger
from support.repeats import repeat

SECONDS = repeat(1.0, 8.0, 300.0)
BROKEN_SECONDS = 60.0
"""At most: it ends when the ledger is wrong."""


@pytest.fixture
async def front_ends() -> AsyncIterator[list[OpenQueues]]:
    one = OpenQueues()
    await one.open()
    two = OpenQueues(account_id=one.account_id)
    await two.open()
    await one.store.create_queue(QUEUE, {})
    one.database.start()
    two.database.start()
    yield [one, two]
    await one.close()
    await two.close()


@pytest.mark.repeated
@pytest.mark.timeout(900)
async def test_every_message_is_claimed_by_one_client_at_a_time_until_it_is_deleted(
    front_ends: list[OpenQueues],
) -> None:
    ledger = Ledger()
    clients = Clients([front_end.store for front_end in front_ends], ledger)

    await clients.run(SECONDS, until=lambda: not (clients.is_putting or ledger.left))

    print(f"{len(ledger.histories)} messages")
    assert ledger.judge() == []
    assert ledger.left == []
    assert len(ledger.histories) > 100
    assert await front_ends[0].store.peek(QUEUE, 1) == []


@pytest.mark.parametrize(
    ("statement", "part", "found"),
    [
        ("CLAIM", " FOR UPDATE SKIP LOCKED", "was claimed while it was hidden"),
        ("DELETE", " AND m.receipt = a.receipt", "was deleted with an old receipt"),
    ],
)
async def test_the_ledger_finds_statements_without_locks_or_receipts(
    front_ends: list[OpenQueues],
    monkeypatch: pytest.MonkeyPatch,
    statement: str,
    part: str,
    found: str,
) -> None:
    whole = " ".join(getattr(statements, statement).split())
    assert part in whole
    monkeypatch.setattr(statements, statement, whole.replace(part, ""))
    ledger = Ledger()
    clients = Clients([front_end.store for front_end in front_ends], ledger)

    def is_found() -> bool:
        return any(line.endswith(found) for line in ledger.judge())

    await clients.run(BROKEN_SECONDS, until=is_found)

    assert is_found()
