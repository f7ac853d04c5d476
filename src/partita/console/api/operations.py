"""Metrics, slow requests and heat: answers of an operations endpoint, as it gives them."""

import asyncio
from typing import Final
from urllib.parse import urlencode

import msgspec

from partita.console.calls import Answer, Call, Route
from partita.console.errors import invalid
from partita.errors import ConfigurationError, UnavailableError
from partita.heat.answers import decode
from partita.heat.shapes import recognise
from partita.service.http.request import Response

_JSON: Final = ("Content-Type", "application/json; charset=utf-8")
_STATUSES_KEPT: Final = frozenset({400, 404})
"""Statuses of the endpoint that are the fault of the question; others become 502."""


class _Refusal(msgspec.Struct, frozen=True):
    message: str = ""
    hint: str = ""


class _Refused(msgspec.Struct, frozen=True):
    error: _Refusal = _Refusal()


async def now(call: Call) -> Answer:
    """Return the totals of the server since its start."""
    return await _asked(call, "/api/v1/now", {})


async def slow(call: Call) -> Answer:
    """Return the last slow requests, the newest first."""
    return await _asked(call, "/api/v1/slow", _given(call, "limit"))


async def heat(call: Call) -> Answer:
    """Return which tables of the account have load, the hottest first."""
    wanted = _given(call, "from", "to") | {"account": call.account.name}
    return await _asked(call, "/api/v1/heat", wanted)


async def heat_columns(call: Call) -> Answer:
    """Return the stored axes of a table, and what they show."""
    if not call.query.get("table"):
        raise invalid("table must be the name of a table.")
    wanted = _given(call, "table", "from", "to") | {"account": call.account.name}
    answer = await _asked(call, "/api/v1/heat", wanted)
    return await asyncio.to_thread(_with_shapes, answer.body)


def _with_shapes(body: bytes) -> Response:
    reading = decode(body)
    value = {"columns": reading.columns, "shapes": recognise(reading.columns)}
    return Response(200, [_JSON], msgspec.json.encode(value))


def _given(call: Call, *names: str) -> dict[str, str]:
    return {name: call.query[name] for name in names if name in call.query}


async def _asked(call: Call, path: str, query: dict[str, str]) -> Response:
    operations = call.services.operations
    if operations is None:
        raise ConfigurationError(
            "ConsoleOperationsMissing",
            "This console has no operations endpoint to ask.",
            hint="Start it with `partita serve --console`, or with `partita console --metrics`.",
        )
    answer = await operations(path, urlencode(query))
    if answer.status == 200:
        return Response(200, [_JSON], answer.body)
    try:
        found = msgspec.json.decode(answer.body, type=_Refused).error
    except msgspec.DecodeError:  # it is another program that answers
        found = _Refusal()
    # 401 of the endpoint is not passed on: the page would take it for its own token.
    raise UnavailableError(
        "ConsoleOperationsRefused",
        found.message or f"The operations endpoint answered with status {answer.status}.",
        facts={"status": answer.status if answer.status in _STATUSES_KEPT else 502},
        hint=found.hint or "Check --metrics and --metrics-token-file.",
    )


ROUTES = (
    Route("GET", "/api/v1/operations/now", now),
    Route("GET", "/api/v1/operations/slow", slow),
    Route("GET", "/api/v1/a/{account}/heat", heat),
    Route("GET", "/api/v1/a/{account}/heat/columns", heat_columns),
)
