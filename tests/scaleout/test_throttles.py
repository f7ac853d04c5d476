"""Partitions whose rate an operator has limited, on real databases and two front ends."""

import pytest

from partita.cli.main import main
from partita.clock import ManualClock
from partita.errors import ConfigurationError, StoreBusyError
from partita.scaleout.tables.throttles import PartitionRate, Throttles
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.operations import EntityGroup, InsertOrReplace
from partita.tables.paging import KeyRange
from support.control_fleets import Session, session, urls

__all__ = ["session"]

SLOW = 0.01
"""Entities per second: one request uses up the limit for longer than the test takes."""


async def write(session: Session, partition_key: str) -> None:
    operation = InsertOrReplace(EntityKey(partition_key, "r"), {"A": 1})
    await TableEngine(session.store).run("Staff", EntityGroup([operation]))


async def test_a_limited_partition_is_refused_and_the_others_are_not(session: Session) -> None:
    await session.control.throttle("Staff", "hot", SLOW, account=session.account)
    await session.store.fleet.catalog.refresh()
    await write(session, "hot")

    with pytest.raises(StoreBusyError) as refused:
        await write(session, "hot")
    with pytest.raises(StoreBusyError):
        await session.store.get(session.table, EntityKey("hot", "r"))
    with pytest.raises(StoreBusyError):
        await session.store.scan(
            session.table, KeyRange(EntityKey("hot", ""), EntityKey("hot", "z")), None, 10
        )

    assert refused.value.code == "ServerBusy"
    assert refused.value.facts["retry_after"] not in (0, 1)
    await write(session, "cool")
    assert await session.keys() == ["cool", "hot"]


async def test_a_limit_ends_and_is_listed_until_then(session: Session) -> None:
    control, account = session.control, session.account
    await control.throttle("staff", "hot", 5.0, account=account)
    await control.throttle("Staff", "hot", SLOW, account=account)
    (limit,) = [each for each in await control.throttles() if each.account == account]
    assert (limit.table, limit.partition_key, limit.rate) == ("Staff", "hot", SLOW)

    await control.throttle("Staff", "hot", None, account=account)
    await session.store.fleet.catalog.refresh()

    assert [each for each in await control.throttles() if each.account == account] == []
    for _ in range(3):
        await write(session, "hot")


async def test_a_rate_that_is_none_is_refused(session: Session) -> None:
    with pytest.raises(ConfigurationError):
        await session.control.throttle("Staff", "hot", 0.0, account=session.account)


def test_the_verb_needs_a_rate_or_off(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["fleet", "throttle", "Staff", "--partition", "p", "--connect", urls()[0]]

    assert main(words) == 2
    assert "--off" in capsys.readouterr().err


def test_front_ends_divide_a_rate() -> None:
    clock, value = ManualClock(), b'[{"table":"Staff","partition_key":"p","rate":100}]'
    alone, one_of_two = Throttles(clock, lambda: 1), Throttles(clock, lambda: 2)

    def passed(throttles: Throttles) -> int:
        for count in range(1000):
            try:
                throttles.charge(value, "staff", "p", 1)
            except StoreBusyError:
                return count
        return 1000

    assert (passed(alone), passed(one_of_two)) == (100, 50)
    clock.advance(0.5)
    assert (passed(alone), passed(one_of_two)) == (50, 25)
    assert PartitionRate("Staff", "p", 100).is_of("STAFF", "p")
