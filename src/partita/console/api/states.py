"""Reliable states: collections, rows, locks, replicas. Nothing here changes a state."""

import asyncio

import msgspec

from partita.console.calls import Answer, Call, Route
from partita.console.errors import invalid
from partita.console.sources.states import OpenState, States
from partita.errors import ConfigurationError, PartitaError
from partita.reliable.observing.facts import LOCKS_PER_PAGE_MAX, ROWS_PER_PAGE_MAX, RowPage
from partita.reliable.observing.observers import Observer
from partita.service.http.request import Response

ROWS_PER_PAGE = 100
_ROW_FIELDS = (
    *("version", "bytes", "is_cut", "is_unreadable"),
    *("expires", "visible_from", "deliveries"),
)


async def show(call: Call) -> Answer:
    """Return where the states are, and the partitions on NATS."""
    states = _states(call)
    return {
        "where": states.where.rpartition("@")[2],  # without a user and a password
        "is_on_nats": states.is_on_nats,
        "partitions": await states.list_partitions(),
    }


async def status(call: Call) -> Answer:
    """Return replicas, log and checkpoint, and the collections."""
    observer = await _observer(call)
    facts = await observer.status()
    try:
        collections, error = await observer.collections(), None
    except PartitaError as refused:  # the status alone is worth showing
        collections, error = [], f"{refused.message} {refused.hint}".strip()
    return _encoded({"status": facts, "collections": collections, "error": error})


async def rows(call: Call) -> Answer:
    """Return a page of the rows of a collection."""
    start = None
    if "start" in call.query:
        try:
            start = msgspec.json.decode(call.query["start"])
        except (msgspec.DecodeError, RecursionError) as error:
            message = "The key to start at is not valid JSON; text needs double quotes."
            raise invalid(message) from error
    observer = await _observer(call)
    page = await observer.rows(
        call.query.get("collection", ""),
        after=call.query.get("after"),
        start=start,
        limit=call.whole("limit", ROWS_PER_PAGE, ROWS_PER_PAGE_MAX),
    )
    return await asyncio.to_thread(_page_shown, page)


async def locks(call: Call) -> Answer:
    """Return the locked keys with their holders and waiters."""
    observer = await _observer(call)
    return _encoded(await observer.locks(limit=call.whole("limit", 100, LOCKS_PER_PAGE_MAX)))


async def refresh(call: Call) -> Answer:
    """Read a folder again."""
    await (await _observer(call)).refresh()
    return {}


def _states(call: Call) -> States | OpenState:
    states = call.services.states
    if states is None:
        raise ConfigurationError(
            "ConsoleStateMissing",
            "This console has no reliable state to show.",
            hint="Start it with `partita console --state FOLDER` or `--state nats://HOST:4222`, or"
            " call partita.console.show_state in the program that has the state open.",
        )
    return states


async def _observer(call: Call) -> Observer:
    return await _states(call).observer(call.query.get("partition", ""))


def _page_shown(page: RowPage) -> Response:
    """Return a page with keys and values as text of JSON: numbers of pages have 53 bits."""
    rows = [
        {
            "key": row.key if isinstance(row.key, str) else _text(row.key),
            "value": _text(row.value),
            **{name: getattr(row, name) for name in _ROW_FIELDS},
        }
        for row in page.rows
    ]
    return _encoded({"sequence": page.sequence, "rows": rows, "next": page.next})


def _text(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _encoded(value: object) -> Response:
    body = msgspec.json.encode(value, enc_hook=str)
    return Response(200, [("Content-Type", "application/json; charset=utf-8")], body)


ROUTES = (
    Route("GET", "/api/v1/state", show),
    Route("GET", "/api/v1/state/status", status),
    Route("GET", "/api/v1/state/rows", rows),
    Route("GET", "/api/v1/state/locks", locks),
    Route("POST", "/api/v1/state/refresh", refresh),
)
