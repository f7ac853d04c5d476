"""Tables: list, create, drop; pages of entities; the plan of a filter."""

from typing import Final

from partita.bulk.wire import Continuation, Query
from partita.console.calls import Answer, Call, Confirmation, NewName, Route
from partita.console.tables.advice import describe_filter
from partita.console.tables.typed_rows import page_of, shown_of
from partita.errors import InvalidRequestError
from partita.tables.entity import check_table_name
from partita.tables.filters import parse

PAGE_ENTITIES: Final = 200
PAGE_ENTITIES_MAX: Final = 1000


async def list_tables(call: Call) -> Answer:
    return {"tables": sorted(await call.account.tables.list_tables(), key=str.lower)}


async def create_table(call: Call) -> Answer:
    name = check_table_name(call.decode(NewName).name)
    await call.account.tables.create_table(name, may_exist=False)
    return {"name": name}


async def drop_table(call: Call) -> Answer:
    """Delete a table; the request repeats its name."""
    call.confirmed("table", Confirmation)
    await call.account.tables.delete_table(call.arguments["table"])
    return {}


async def show_plan(call: Call) -> Answer:
    """Plan a filter while it is typed; nothing is read."""
    return describe_filter(call.query.get("filter", ""))


async def list_entities(call: Call) -> Answer:
    """Return one page: from a continuation, or from a key on.

    A filter that may read every partition needs `scan`, which the page sets after asking.
    """
    query, clock = call.query, call.services.clock
    text = query.get("filter", "")
    if "scan" not in query and describe_filter(text).is_scan:
        raise InvalidRequestError(
            "ConsoleScanUnasked",
            "This filter may read the whole table.",
            hint="Confirm it on the page, or name a partition.",
        )
    start = None
    if "next_pk" in query:
        start = Continuation(query["next_pk"], query.get("next_rk", ""))
    elif "from_pk" in query:
        text = _from_key(text, query["from_pk"], query.get("from_rk", ""))
    top = call.whole("top", PAGE_ENTITIES, PAGE_ENTITIES_MAX)
    began = clock.monotonic()
    page = await call.account.tables.query(
        call.arguments["table"], Query(filter=text, top=top), start, explain=True
    )
    seconds = clock.monotonic() - began
    names, rows = page_of(map(shown_of, page.entities))
    following = page.continuation
    return {
        "names": names,
        "rows": rows,
        "next": following and [following.partition_key, following.row_key],
        "plan": page.plan,
        "examined": page.examined,
        "bytes": sum(map(len, map(bytes, page.entities))),
        "ms": round(seconds * 1000, 1),
    }


def _from_key(text: str, partition_key: str, row_key: str) -> str:
    """Return a filter for the same entities from a key on.

    Continuations of other services are opaque, so that a jump must be a condition.
    """
    parse(text)
    key = f"PartitionKey ge {_quoted(partition_key)}"
    if row_key:
        key = (
            f"(PartitionKey gt {_quoted(partition_key)} or (PartitionKey eq"
            f" {_quoted(partition_key)} and RowKey ge {_quoted(row_key)}))"
        )
    return f"({text}) and {key}" if text.strip() else key


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


ROUTES = (
    Route("GET", "/api/v1/a/{account}/tables", list_tables),
    Route("POST", "/api/v1/a/{account}/tables", create_table, writes=True),
    Route("POST", "/api/v1/a/{account}/tables/{table}/drop", drop_table, writes=True),
    Route("GET", "/api/v1/a/{account}/tables/{table}/plan", show_plan),
    Route("GET", "/api/v1/a/{account}/tables/{table}/entities", list_entities),
)
