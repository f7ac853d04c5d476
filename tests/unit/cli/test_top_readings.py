from typing import Any

import pytest

from partita.cli.top.readings import hot_ranges, reading_of
from partita.metrics.store_meter import StoreMeter
from partita.service.http.request import Request, Response
from partita.service.observing.meter import ServiceMeter


def an_answer(meter: ServiceMeter, uptime: float) -> dict[str, Any]:
    return {
        "version": "1",
        "uptime_seconds": uptime,
        "services": {"tables": {**meter.facts(), "connections": 2}},
        "store": StoreMeter().facts(),
        "loop": {"lag_seconds": 0.002, "longest_turn_seconds": 0.01, "long_turns_total": 0},
        "refused_signatures_total": 0,
        "throttled_total": 0,
        "log_dropped_total": 0,
    }


def answered(meter: ServiceMeter, count: int, seconds: float) -> None:
    for _ in range(count):
        request = Request("GET", "/a")
        request.observed.operation = "QueryEntity"
        meter.answered(request, Response(200, [], b"12345"), seconds)


def test_rates_and_quantiles_are_of_the_time_between() -> None:
    meter = ServiceMeter("tables")
    answered(meter, 100, 5.0)
    before = an_answer(meter, 10.0)
    answered(meter, 40, 0.0008)

    (tables,) = reading_of(before, an_answer(meter, 14.0), [], []).services

    assert (tables.requests, tables.bytes_out, tables.connections) == (10, 50, 2)
    assert 0.5 < tables.p50_ms < tables.p99_ms < 1.0


def test_after_a_restart_everything_counts_from_zero() -> None:
    meter = ServiceMeter("tables")
    answered(meter, 100, 0.001)
    before = an_answer(meter, 1000.0)
    restarted = ServiceMeter("tables")
    answered(restarted, 6, 0.001)

    reading = reading_of(before, an_answer(restarted, 3.0), [], [])

    assert reading.services[0].requests == pytest.approx(2)


def test_the_hottest_ranges_are_of_the_newest_complete_minute() -> None:
    axis = [["a\x001", "a\x002", [60, 0, 0, 0, 0]], ["b\x00", "b\x009", [60, 0, 240, 0, 0]]]
    answer = {
        "columns": [
            {"start": 0, "seconds": 60, "is_open": False, "axis": axis},
            {"start": 60, "seconds": 60, "is_open": True, "axis": []},
        ]
    }

    hottest, other = hot_ranges("Staff", answer)

    assert (hottest.first, hottest.last) == ("b / ", "b / 9")
    assert (hottest.reads, hottest.writes) == (1, 4)
    assert other.reads == 1
    assert hot_ranges("Staff", {"columns": []}) == []
