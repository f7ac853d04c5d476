"""The outbox: remembered references and the sweep."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from partita.clock import ManualClock
from partita.patterns import Database, RawEntity, entity
from partita.patterns.protocol.capabilities import ORDERED
from partita.patterns.protocol.values import RowKey
from partita.patterns.writing.context import PENDING_MAX, Context, OutboxReference
from support.entities import Stranger, strangers_anywhere


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


def test_threads_that_save_at_once_forget_old_entries_and_nothing_else() -> None:
    context = Context(ManualClock(), ORDERED)
    references = [OutboxReference("t", RowKey("p", str(n))) for n in range(60_000)]

    def remember(part: list[OutboxReference]) -> None:
        for each in part:
            context.remember(each)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            parts = [references[n::8] for n in range(8)]
            for done in [threads.submit(remember, part) for part in parts]:
                done.result()
    finally:
        sys.setswitchinterval(switch)

    assert len(context.pending) == PENDING_MAX


async def test_a_sweep_goes_on_where_a_table_is_missing_or_a_stranger_wrote(
    db: Database,
) -> None:
    @entity(table="never", partition="{a}", row="{b}")
    class NeverMade:
        a: str
        b: str

    strangers = db.table(Stranger)
    await db.create_tables()
    db.table(NeverMade)
    await db.raw("strange").save(RawEntity("Rome", "~o_boom", {"X": "y"}))
    await strangers.save(Stranger(city="Rome", name="Ann", age=40))

    report = await db.sweep(age=-10)

    assert report.entries == 1
    assert [each.city for each in await strangers.via(strangers_anywhere).range(age=40).list()]
