"""How a lane gathers; the connection is a stand-in, because nothing is sent over it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from partita.errors import ConfigurationError, PartitaError, StoreBusyError
from partita.scaleout.connections import lane as lanes
from partita.scaleout.connections.lane import TRIP_BYTES_MAX, TRIP_ITEMS_MAX, Lane
from partita.scaleout.connections.session import translated


class Ends:
    """What opens connections, and the trips that were sent over them."""

    def __init__(self) -> None:
        self.is_closed = False
        self.trips: list[list[Any]] = []
        self.opened = 0
        self.may_arrive = asyncio.Event()
        self.may_arrive.set()
        self.failure: Exception | None = None
        self.running = self.running_max = 0

    async def connect(self) -> "Ends":
        self.opened += 1
        if self.failure is not None:
            raise self.failure
        return self

    async def close(self) -> None:
        self.is_closed = True

    async def send(self, _link: Any, items: Sequence[Any]) -> Sequence[Any]:
        self.trips.append(list(items))
        self.running += 1
        self.running_max = max(self.running_max, self.running)
        await self.may_arrive.wait()
        self.running -= 1
        return [ValueErrorFor(item) if item == "bad" else item for item in items]


def ValueErrorFor(item: str) -> PartitaError:  # noqa: N802
    return PartitaError("InvalidInput", "bad", facts={"item": item})


@pytest.fixture
async def ends() -> Ends:
    return Ends()


@pytest.fixture
async def lane(ends: Ends) -> AsyncIterator[Lane[Any, Any]]:
    lane: Lane[Any, Any] = Lane(ends, ends.send)  # type: ignore[arg-type]
    yield lane
    ends.may_arrive.set()
    await lane.close()


async def asked(
    lane: Lane[Any, Any], items: Sequence[Any], **more: Any
) -> list["asyncio.Task[Any]"]:
    tasks = [asyncio.ensure_future(lane.ask(item, **more)) for item in items]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_what_arrives_during_a_trip_is_the_next_trip(
    ends: Ends, lane: Lane[Any, Any]
) -> None:
    ends.may_arrive.clear()
    tasks = await asked(lane, [1])
    tasks += await asked(lane, range(2, 6))
    ends.may_arrive.set()

    assert await asyncio.gather(*tasks) == [1, 2, 3, 4, 5]
    assert ends.trips == [[1], [2, 3, 4, 5]]
    assert ends.opened == 1


async def test_a_trip_has_a_limit_of_items_and_of_bytes(ends: Ends, lane: Lane[Any, Any]) -> None:
    ends.may_arrive.clear()
    lane._trips_max = 1
    tasks = await asked(lane, [0])
    tasks += await asked(lane, range(TRIP_ITEMS_MAX + 1))
    tasks += await asked(lane, ["large", "too large"], size=TRIP_BYTES_MAX)
    ends.may_arrive.set()
    await asyncio.gather(*tasks)

    assert [len(trip) for trip in ends.trips] == [1, TRIP_ITEMS_MAX, 2, 1]


async def test_a_trip_has_each_key_once_and_keeps_the_order(
    ends: Ends, lane: Lane[Any, Any]
) -> None:
    ends.may_arrive.clear()
    tasks = await asked(lane, ["first"])
    for item in ("a1", "a2", "b1", "a3", "b2"):
        tasks += await asked(lane, [item], keys=(item[0],))
    tasks += await asked(lane, ["ab"], keys=("a", "b"))
    ends.may_arrive.set()
    await asyncio.gather(*tasks)

    assert ends.trips == [["first"], ["a1", "b1"], ["a2", "b2"], ["a3"], ["ab"]]


async def test_a_second_trip_starts_only_if_many_wait(ends: Ends, lane: Lane[Any, Any]) -> None:
    ends.may_arrive.clear()
    tasks = await asked(lane, range(lanes.WAITING_FOR_SECOND_TRIP))
    tasks += await asked(lane, range(lanes.WAITING_FOR_SECOND_TRIP))
    assert ends.running == 1
    tasks += await asked(lane, [0])
    assert ends.running == 2
    ends.may_arrive.set()
    await asyncio.gather(*tasks)

    assert ends.running_max == 2


async def test_an_item_s_error_is_its_own(ends: Ends, lane: Lane[Any, Any]) -> None:
    tasks = await asked(lane, ["good", "bad", "bad"])
    results = await asyncio.gather(*tasks, return_exceptions=True)

    assert results[0] == "good"
    assert [error.facts for error in results[1:]] == [{"item": "bad"}] * 2  # type: ignore[union-attr]
    assert results[1] is not results[2]


async def test_a_cancelled_caller_is_not_sent(ends: Ends, lane: Lane[Any, Any]) -> None:
    ends.may_arrive.clear()
    tasks = await asked(lane, [1])
    waiting = await asked(lane, [2, 3])
    waiting[0].cancel()
    await asyncio.sleep(0)
    ends.may_arrive.set()
    await asyncio.gather(*tasks, waiting[1])

    assert ends.trips == [[1], [3]]


async def test_an_item_that_is_asked_when_the_last_trip_ends_gets_a_trip(
    ends: Ends, lane: Lane[Any, Any]
) -> None:
    for number in range(20):
        assert await asyncio.wait_for(lane.ask(number), 5.0) == number


async def test_without_a_connection_all_that_wait_are_refused_by_one_attempt(
    ends: Ends, lane: Lane[Any, Any]
) -> None:
    ends.failure = translated(ConnectionRefusedError())
    tasks = await asked(lane, range(3 * TRIP_ITEMS_MAX))
    errors = await asyncio.gather(*tasks, return_exceptions=True)

    assert {type(error) for error in errors} == {StoreBusyError}
    assert ends.opened <= lanes.TRIPS_MAX


async def test_a_defect_is_raised_to_the_callers_and_the_lane_goes_on(
    ends: Ends, lane: Lane[Any, Any]
) -> None:
    ends.failure = ZeroDivisionError()
    tasks = await asked(lane, [1, 2])
    assert {type(each) for each in await asyncio.gather(*tasks, return_exceptions=True)} == {
        ZeroDivisionError
    }

    ends.failure = None
    assert await lane.ask(3) == 3


async def test_requests_that_waited_too_long_are_refused(
    ends: Ends, lane: Lane[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.may_arrive.clear()
    tasks = await asked(lane, [1])
    waiting = await asked(lane, [2])
    monkeypatch.setattr(lanes, "LANE_WAIT_SECONDS_MAX", -1.0)
    ends.may_arrive.set()

    assert await tasks[0] == 1
    with pytest.raises(StoreBusyError) as caught:
        await waiting[0]
    assert caught.value.facts["retry_after"] == 1


async def test_a_full_lane_and_a_closed_one_refuse(
    ends: Ends, lane: Lane[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends.may_arrive.clear()
    monkeypatch.setattr(lanes, "LANE_WAITING_MAX", 1)
    tasks = await asked(lane, [1])
    tasks += await asked(lane, [2])
    with pytest.raises(StoreBusyError):
        await lane.ask(3)
    ends.may_arrive.set()
    await asyncio.gather(*tasks)
    await lane.close()

    with pytest.raises(StoreBusyError):
        await lane.ask(4)
    assert ends.is_closed


async def test_a_configuration_error_of_the_server_reaches_the_callers(
    ends: Ends, lane: Lane[Any, Any]
) -> None:
    ends.failure = ConfigurationError("StoreUnfit", "no")

    with pytest.raises(ConfigurationError):
        await lane.ask(1)
