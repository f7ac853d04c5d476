"""The guide's scalability targets, spikes and groups: a server that keeps to the targets, and a
writer that lives with it.
"""

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

import partita
from guide.stored import keys_in, opened
from partita.clock import ManualClock, SystemClock
from partita.patterns import (
    Database,
    EntityExistsError,
    Table,
    ThrottledError,
    connect,
    entity,
    evolve,
    index,
)
from partita.patterns.faults import Faults
from partita.service.hosting.in_process import LocalAccount, Respond
from partita.service.hosting.services import ServiceKind
from partita.service.http.request import Request, Response
from support.live import LiveServer

FAT = "x" * 10_000
"""Text whose entity counts for 20 of one KiB: a hundred of them are a partition's second."""


@entity(table="Readings", partition="{site}", row="{number:06d}")
class Reading:
    site: str
    number: int
    text: str = ""


@entity(table="Devices", partition="{site}", row="id_{number:06d}")
class Device:
    site: str
    number: int
    name: str


by_name = index(Device, row="name_{name}", unique=True)


def readings(count: int, site: str = "Oslo", text: str = "", start: int = 0) -> list[Reading]:
    return [Reading(site=site, number=start + n, text=text) for n in range(count)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(SystemClock().ticks())


@pytest.fixture
def strict(clock: ManualClock) -> Iterator[LocalAccount]:
    """An account that keeps to the targets, in a moment that lasts until the clock is moved."""
    with partita.open_account(None, clock=clock, enforce_targets=True) as account:
        account.client_options = {"retry_total": 0}
        yield account


@pytest.fixture
async def limited(strict: LocalAccount) -> AsyncIterator[Table[Reading]]:
    async with connect(strict) as db:
        yield (await opened(db, Reading)).table(Reading)


class TestScalabilityTargets:
    async def test_a_partition_takes_2000_entities_of_one_kib_a_second(
        self, limited: Table[Reading]
    ) -> None:
        await limited.save_all(readings(100, text=FAT))

        with pytest.raises(ThrottledError):
            await limited.save(Reading(site="Oslo", number=100))

    async def test_the_refusal_is_503_with_the_time_to_wait(
        self, strict: LocalAccount, limited: Table[Reading]
    ) -> None:
        await limited.save_all(readings(100, text=FAT))

        with pytest.raises(HttpResponseError) as refused:
            strict.tables.get_table_client("Readings").get_entity("Oslo", "000000")

        assert refused.value.status_code == 503
        response: Any = refused.value.response
        assert response.headers["Retry-After"] == "1"
        assert "ServerBusy" in str(refused.value)

    async def test_the_next_second_takes_as_many_again(
        self, clock: ManualClock, limited: Table[Reading]
    ) -> None:
        await limited.save_all(readings(100, text=FAT))
        clock.advance(1)

        outcome = await limited.save_all(readings(100, text=FAT, start=100))

        assert len(outcome.entities) == 100

    async def test_another_partition_is_not_touched_by_a_hot_one(
        self, limited: Table[Reading]
    ) -> None:
        await limited.save_all(readings(100, text=FAT))

        assert (await limited.save(Reading(site="Bergen", number=1))).site == "Bergen"

    async def test_an_account_takes_20000_entities_of_one_kib_a_second(
        self, limited: Table[Reading]
    ) -> None:
        for number in range(10):
            await limited.save_all(readings(100, site=f"site{number}", text=FAT))

        with pytest.raises(ThrottledError):
            await limited.save(Reading(site="Bergen", number=1))

    async def test_a_group_is_taken_whole_or_not_at_all(
        self, clock: ManualClock, limited: Table[Reading]
    ) -> None:
        await limited.save_all(readings(95, text=FAT))
        group = limited.partition(site="Oslo").atomic()
        for each in readings(10, text=FAT, start=95):
            group.save(each)

        with pytest.raises(ThrottledError):
            await group.__aexit__(None, None, None)

        clock.advance(10)
        assert await limited.partition(site="Oslo").all().count() == 95

    async def test_the_command_line_has_the_flag_and_clients_survive_it(
        self, tmp_path: Path
    ) -> None:
        live = LiveServer(tmp_path, "--in-memory", "--enforce-targets")
        try:
            async with connect(live.connection_string) as db:
                table = (await opened(db, Reading)).table(Reading)
                await table.save_all(readings(100, text=FAT))
                with db.measuring() as cost:
                    # Together: a slow machine could stay below the rate one after the other.
                    outcomes = await asyncio.gather(
                        *(
                            table.save_all(readings(60, text=FAT, start=start))
                            for start in range(100, 340, 60)
                        )
                    )
                assert [len(outcome.entities) for outcome in outcomes] == [60] * 4
                assert cost.requests > 4  # they were told to wait, and did
        finally:
            live.stop()


class TestAvoidingSpikes:
    @pytest.fixture
    def real(self) -> Iterator[LocalAccount]:
        """An account that keeps to the targets in the machine's own time."""
        with partita.open_account(None, enforce_targets=True) as account:
            yield account

    async def test_a_spike_is_written_all_the_same_but_by_asking_again(
        self, real: LocalAccount
    ) -> None:
        async with connect(real) as db:
            table = (await opened(db, Reading)).table(Reading)
            with db.measuring() as cost:
                outcome = await table.save_all(readings(130, text=FAT))

        assert len(outcome.entities) == 130
        assert not outcome.failures
        assert cost.requests > 2

    async def test_a_rate_below_the_target_is_never_refused(self, real: LocalAccount) -> None:
        async with connect(real) as db:
            table = (await opened(db, Reading)).table(Reading)
            with db.measuring() as cost:
                await table.save_all(readings(2_400), max_rate=1_600)

        assert cost.requests <= math.ceil(2_400 / 90)  # each group once

    async def test_the_longest_wait_that_the_service_asked_for_is_kept(
        self, partita_account: LocalAccount, partita_faults: Faults
    ) -> None:
        partita_account.client_options = {"retry_total": 0}
        async with connect(partita_account) as db:
            table = (await opened(db, Reading)).table(Reading)
            partita_faults.answer_503(times=3, retry_after=0.01, match="$batch")
            partita_faults.requests.clear()

            outcome = await table.save_all(readings(20))

        assert len(outcome.entities) == 20
        assert len(partita_faults.requests) == 4

    async def test_a_service_that_stays_busy_is_given_up_with_an_error(
        self, partita_account: LocalAccount, partita_faults: Faults
    ) -> None:
        partita_account.client_options = {"retry_total": 0}
        async with connect(partita_account) as db:
            table = (await opened(db, Reading)).table(Reading)
            partita_faults.answer_503(times=10_000, retry_after=0.001, match="Readings")

            with pytest.raises(ThrottledError):
                await table.save(Reading(site="Oslo", number=1))


class TestManyEntitiesInGroups:
    @pytest.fixture
    async def table(self, partita_db: Database) -> Table[Reading]:
        return (await opened(partita_db, Reading)).table(Reading)

    async def test_many_entities_travel_in_few_requests(
        self, partita_db: Database, table: Table[Reading]
    ) -> None:
        many = [*readings(150), *readings(50, site="Bergen")]

        with partita_db.measuring() as cost:
            outcome = await table.save_all(many)

        assert outcome.entities == many
        assert cost.requests == 3

    async def test_only_the_guilty_entity_of_a_group_fails(self, table: Table[Reading]) -> None:
        await table.save(Reading(site="Oslo", number=17))

        outcome = await table.save_all(readings(50))

        (failure,) = outcome.failures
        assert isinstance(failure.error, EntityExistsError)
        assert failure.entity.number == 17
        assert [each.number for each in outcome.entities] == [n for n in range(50) if n != 17]

    async def test_no_two_groups_of_one_partition_are_under_way_at_once(
        self, partita_account: LocalAccount, table: Table[Reading]
    ) -> None:
        under_way: Counter[str] = Counter()
        most: Counter[str] = Counter()

        async def watch(_kind: ServiceKind, request: Request, respond: Respond) -> Response:
            sites = set(re.findall(rb'"PartitionKey": ?"(\w+)"', request.body))
            for site in sites:
                under_way[site.decode()] += 1
                most[site.decode()] = max(most[site.decode()], under_way[site.decode()])
            most["all"] = max(most["all"], under_way.total())
            response = await respond(request)
            for site in sites:
                under_way[site.decode()] -= 1
            return response

        partita_account.around = watch
        sites = ("Oslo", "Bergen", "Moss", "Voss")
        await table.save_all([each for site in sites for each in readings(200, site=site)])

        assert {most[site] for site in sites} == {1}
        assert most["all"] <= 8

    async def test_loaded_entities_are_deleted_in_groups_too(
        self, partita_db: Database, table: Table[Reading]
    ) -> None:
        saved = (await table.save_all(readings(90))).entities

        with partita_db.measuring() as cost:
            outcome = await table.delete_all(saved)

        assert not outcome.failures
        assert cost.requests == 1
        assert await keys_in(partita_db, "Readings") == []

    async def test_what_a_query_finds_is_deleted_page_by_page(
        self, partita_db: Database, table: Table[Reading]
    ) -> None:
        await table.save_all([*readings(120), *readings(5, site="Bergen")])

        outcome = await table.partition(site="Oslo").all().delete()

        assert not outcome.failures
        assert {key.split("/")[0] for key in await keys_in(partita_db, "Readings")} == {"Bergen"}

    async def test_an_entity_and_its_copies_are_never_split_between_groups(
        self, partita_db: Database
    ) -> None:
        devices = (await opened(partita_db, Device)).table(Device)
        first = await devices.save_all(
            Device(site="Oslo", number=n, name=f"d{n}") for n in range(100)
        )
        assert len(first.entities) == 100

        moved = await devices.save_all(
            evolve(each, name=f"e{each.number}") for each in first.entities
        )

        assert not moved.failures
        assert await partita_db.verify(Device) == []

    async def test_progress_is_told_while_it_goes_on(self, table: Table[Reading]) -> None:
        seen: list[int] = []

        await table.save_all(readings(200), progress=seen.append)

        assert seen[-1] == 200
        assert seen == sorted(seen)
