"""The guide's notes on Cosmos DB: no order by keys. A port that shuffles stands in for it.

What means something without order works and answers the same entities; what does not is refused
before the first request.
"""

import datetime as dt
from collections.abc import AsyncIterator
from dataclasses import field
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pytest

from partita.clock import SystemClock
from partita.errors import NotSupportedError
from partita.patterns import (
    Database,
    NotOrderedError,
    Series,
    TableSeries,
    between,
    connect,
    entity,
    eventual,
    evolve,
    idempotent,
    index,
)
from partita.patterns.faults import ShufflingPort
from partita.patterns.ports.connecting import open_async
from partita.patterns.protocol.capabilities import COSMOS, capabilities_of
from partita.patterns.writing.context import Context, Options
from partita.service.hosting.in_process import LocalAccount


@entity(table="notes", partition="{topic}", row="{number:06d}")
class Note:
    topic: str
    number: int
    stars: int = 0


by_stars = index(Note, row="stars_{stars:04d}_{number:06d}")


@entity(table="expenses", partition="{employee:06d}", row="{at:desc}_{number:04d}")
class Expense:
    employee: int
    at: dt.datetime
    number: int
    amount: Decimal


@entity(table="readings", partition="{number:hash4}", row="{number:08d}")
class Reading:
    number: int


@entity(table="plain", partition="{topic}", row="{number:06d}")
class Plain:
    topic: str
    number: int


elsewhere = index(Plain, table="plainby", partition="{number:06d}", row="{topic}")


@entity(table="years", partition="{name}", row="{year:04d}")
class Year:
    name: str
    year: int
    days: Annotated[dict[int, int], Series("d{:03d}", slots=600)] = field(default_factory=dict)


@idempotent
async def do_nothing(_db: Database, _arguments: dict[str, Any]) -> None:
    return


nothing = eventual("nothing", do_nothing)


class UnorderedDatabase(Database):
    """The public face of an endpoint like Cosmos: no order, no queues, no blobs."""

    async def open(self) -> Database:
        port = ShufflingPort(await open_async(self._where), seed=5)
        port.capabilities = msgspec.structs.replace(
            port.capabilities, has_queues=False, has_blobs=False
        )
        self._port = port
        self._context = Context(self._clock, port.capabilities, options=self._options)
        return self


@pytest.fixture
async def db(partita_account: LocalAccount) -> AsyncIterator[Database]:
    shuffled = UnorderedDatabase(
        partita_account, keyring=None, direct=False, clock=SystemClock(), options=Options()
    )
    async with shuffled as db:
        for cls in (Note, Expense, Reading, Plain, Year):
            db.table(cls)
        await db.create_tables()
        yield db


@pytest.fixture
async def filled(db: Database) -> Database:
    await db.table(Note).save_all([Note(topic="t", number=n, stars=n % 5) for n in range(60)])
    return db


class TestWhatNeedsOrderIsRefused:
    async def test_the_log_tail_is_refused_before_the_first_request(self, db: Database) -> None:
        with db.measuring() as cost, pytest.raises(NotOrderedError) as refused:
            db.table(Expense).partition(employee=123).latest(10)

        assert "latest() requires rows in key order" in refused.value.message
        assert "sort them" in refused.value.hint
        assert cost.requests == 0

    async def test_the_tail_of_a_series_of_tables_is_refused(self, db: Database) -> None:
        days = db.periods(Expense, TableSeries("expenses", period="day", keep=7), at="at")

        with pytest.raises(NotOrderedError):
            await days.latest(10, employee=123)

    async def test_a_spread_partition_cannot_be_merged_in_order(self, db: Database) -> None:
        with pytest.raises(NotOrderedError, match="Reading a spread partition"):
            await db.table(Reading).all().list()

    async def test_the_first_n_are_refused_where_an_order_is_what_was_asked_for(
        self, filled: Database
    ) -> None:
        with pytest.raises(NotOrderedError):
            filled.table(Note).partition(topic="t").latest(1)


class TestWhatNeedsNoOrderWorks:
    async def test_a_range_finds_the_same_entities_in_no_order(self, filled: Database) -> None:
        query = filled.table(Note).partition(topic="t").range(number=between(10, 40))

        found = [each.number for each in await query.list()]

        assert sorted(found) == list(range(10, 41))
        assert found != sorted(found)

    async def test_pages_hold_every_entity_once(self, filled: Database) -> None:
        query = filled.table(Note).partition(topic="t").all()
        found, continuation = [], None
        while True:
            page = await query.page(size=7, continuation=continuation)
            found += [each.number for each in page.entities]
            if (continuation := page.continuation) is None:
                break

        assert sorted(found) == list(range(60))

    async def test_points_conditions_and_indexes_work(self, filled: Database) -> None:
        notes = filled.table(Note)

        assert (await notes.get(topic="t", number=7)).stars == 2
        few = await notes.partition(topic="t").where(notes.c.stars == 3).list()
        assert sorted(each.number for each in few) == list(range(3, 60, 5))
        via = await notes.via(by_stars).range(topic="t", stars=3).list()
        assert sorted(each.number for each in via) == list(range(3, 60, 5))

    async def test_writes_are_conditional_and_groups_atomic(self, filled: Database) -> None:
        notes = filled.table(Note)
        async with notes.partition(topic="t").atomic() as group:
            for number in (1, 2):
                group.save(evolve(await notes.get(topic="t", number=number), stars=9))

        via = await notes.via(by_stars).range(topic="t", stars=9).list()
        assert sorted(each.number for each in via) == [1, 2]
        assert await filled.verify(Note) == []

    async def test_a_wide_entity_is_put_together_whatever_comes_first(self, db: Database) -> None:
        years = db.table(Year)
        full = {day: day for day in range(600)}
        for year in range(2020, 2026):
            await years.save(Year(name="Jun", year=year, days=full))

        assert (await years.get(name="Jun", year=2021)).days == full
        found = await years.partition(name="Jun").all().list()
        assert sorted(each.year for each in found) == list(range(2020, 2026))
        assert all(each.days == full for each in found)

    async def test_an_index_elsewhere_follows_by_the_sweep_alone(self, db: Database) -> None:
        await db.table(Plain).save(Plain(topic="t", number=1))

        await db.drain()

        found = await db.table(Plain).via(elsewhere).get(number=1, topic="t")
        assert found == Plain(topic="t", number=1)

    async def test_what_needs_a_queue_says_so(self, db: Database) -> None:
        with pytest.raises(NotSupportedError, match="requires queues"):
            await db.start(nothing)


class TestWhatAnEndpointCanDoIsKnownFromItsAddress:
    def test_cosmos_gives_no_order_and_has_neither_queues_nor_blobs(self) -> None:
        found = capabilities_of("https://contoso.table.cosmos.azure.com:443/")

        assert found is COSMOS
        assert (found.is_ordered, found.has_queues, found.has_blobs) == (False, False, False)

    @pytest.mark.parametrize(
        "endpoint",
        [
            "https://contoso.table.core.windows.net",
            "http://127.0.0.1:10002/devstoreaccount1",
            "https://contoso.table.core.chinacloudapi.cn",
        ],
    )
    def test_table_storage_and_its_emulators_sort(self, endpoint: str) -> None:
        assert capabilities_of(endpoint).is_ordered

    async def test_connecting_to_cosmos_asks_nothing_of_it(self) -> None:
        key = "a2V5"
        where = (
            "DefaultEndpointsProtocol=https;AccountName=contoso;"
            f"AccountKey={key};TableEndpoint=https://contoso.table.cosmos.azure.com:443/;"
        )
        async with connect(where) as db:
            assert not db.context.capabilities.is_ordered
            with pytest.raises(NotOrderedError, match="which Cosmos DB does not provide"):
                db.table(Expense).partition(employee=1).latest(3)
