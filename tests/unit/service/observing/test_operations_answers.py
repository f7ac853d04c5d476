"""Questions to the operations endpoint that cannot be answered."""

from collections.abc import Mapping

import msgspec
import pytest

from partita.clock import ManualClock
from partita.errors import UnavailableError
from partita.service.observing.logs import SlowLog
from partita.service.observing.operations import Operations


async def _unavailable(_options: Mapping[str, str]) -> object:
    raise UnavailableError("HeatUnavailable", "The file cannot be used.", hint="Check the disk.")


async def test_what_is_unavailable_is_answered_with_its_code() -> None:
    operations = Operations({}, {}, ManualClock(), version="1")
    operations.routes["/api/v1/heat"] = _unavailable

    answer = await operations.ask("/api/v1/heat", "")

    assert answer.status == 503
    assert msgspec.json.decode(answer.body)["error"]["code"] == "HeatUnavailable"


@pytest.mark.parametrize("limit", ["x", "0", "-1", "201", "9" * 5000, "٣", ""])
async def test_a_limit_that_is_not_one_is_named(limit: str) -> None:
    with pytest.raises(ValueError, match="limit is a number from 1 to 200"):
        await SlowLog(ManualClock(), 1.0).answer({"limit": limit})
