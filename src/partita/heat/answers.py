"""What was read of heat as JSON, for `/api/v1/heat`, the console and `partita heat`.

    {"account": "…", "table": "Orders", "since": 1700000000, "to": 1700003600, "tables": [],
     "columns": [{"start": 1700000000, "seconds": 60, "is_open": false,
                  "axis": [["first key", "last key", [reads, scanned, writes, bytes_out, bytes_in]],
                           …]}, …]}

Times are seconds since 1970. A key is a partition key, U+0000 and a row key; order by code points.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from partita.heat.recorder import Heat, Reading
from partita.ticks import TICKS_PER_SECOND, Clock

SINCE_SECONDS = 3600
"""The time before `to` that is read if nothing else is asked for."""
_TIME_DIGITS_MAX = 12


def decode(text: bytes) -> Reading:
    """Read an answer; raise msgspec.DecodeError for anything else."""
    return msgspec.json.decode(text, type=Reading)


def route(
    heat: Heat | None, account: str, clock: Clock
) -> Callable[[Mapping[str, str]], Awaitable[msgspec.Raw]]:
    """Return what answers the parameters `account`, `table`, `from` and `to` of a request.

    `account` is the one that is read if none is named. Without a table the answer has the tables
    with load, and no columns. ValueError is raised for a parameter that is not valid.
    """

    async def answer(parameters: Mapping[str, str]) -> msgspec.Raw:
        to = _time(parameters, "to", clock.ticks() // TICKS_PER_SECOND + 1)
        since = _time(parameters, "from", to - SINCE_SECONDS)
        name, table = parameters.get("account", account), parameters.get("table")
        reading = None if heat is None else await heat.read(name, table, since, to)
        if reading is None:
            message = f"the heat of account {name!r} is not measured"
            raise ValueError(message)
        return msgspec.Raw(await asyncio.to_thread(msgspec.json.encode, reading))

    return answer


def _time(parameters: Mapping[str, str], name: str, default: int) -> int:
    text = parameters.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _TIME_DIGITS_MAX):
        message = f"{name} must be a number of seconds since 1970"
        raise ValueError(message)
    return int(text)
