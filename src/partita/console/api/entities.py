"""One entity, and groups of staged changes."""

from typing import Any

import msgspec

from partita.console.calls import Answer, Call, Route
from partita.console.errors import invalid
from partita.console.tables.groups import Group, Staged, change_of, split
from partita.console.tables.typed_rows import shown_of
from partita.errors import PartitaError


class Changes(msgspec.Struct, forbid_unknown_fields=True):
    changes: list[Staged]
    preview: bool = False
    """Whether to return the groups without applying them."""


async def show_entity(call: Call) -> Answer:
    """Return one entity with the type of each value, and its JSON."""
    keys = _keys_of(call)
    found = await call.account.tables.get(call.arguments["table"], *keys)
    shown = shown_of(found.document, found.etag)
    return {
        "partition_key": shown.partition_key,
        "row_key": shown.row_key,
        "timestamp": shown.timestamp,
        "etag": found.etag or shown.etag,
        "properties": [[name, *typed] for name, typed in shown.properties.items()],
        "raw": msgspec.json.format(found.document, indent=2).decode(),
    }


def _keys_of(call: Call) -> tuple[str, str]:
    if "pk" not in call.query or "rk" not in call.query:
        raise invalid("The keys of the entity are missing (pk and rk).")
    return call.query["pk"], call.query["rk"]


async def save_entity(call: Call) -> Answer:
    """Apply one change; 412 if the entity is not the version of its etag."""
    change = change_of(call.decode(Staged))
    etags = await call.account.tables.run(call.arguments["table"], [change])
    return {"etag": etags[0] if etags else ""}


async def save_groups(call: Call) -> Answer:
    """Apply staged changes group by group, and stop at the first group that fails."""
    given = call.decode(Changes)
    groups = split([change_of(each) for each in given.changes])
    if given.preview:
        return {"groups": [_shown(group, "planned") for group in groups]}
    answers: list[dict[str, Any]] = []
    has_failed = False
    for group in groups:
        if has_failed:
            answers.append(_shown(group, "skipped"))
            continue
        try:
            await call.account.tables.run(call.arguments["table"], group.changes)
        except PartitaError as error:
            has_failed = True
            answers.append(_shown(group, "failed", error))
        else:
            answers.append(_shown(group, "done"))
    return {"groups": answers}


def _shown(group: Group, state: str, error: PartitaError | None = None) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "partition_key": group.partition_key,
        "indices": group.indices,
        "bytes": group.wire_bytes,
        "state": state,
    }
    if error is not None:
        position = 0 if len(group.indices) == 1 else error.facts.get("index")
        if isinstance(position, int) and 0 <= position < len(group.indices):
            shown["failed_index"] = group.indices[position]
        shown["error"] = {"code": error.code, "message": error.message, "hint": error.hint}
    return shown


ROUTES = (
    Route("GET", "/api/v1/a/{account}/tables/{table}/entity", show_entity),
    Route("POST", "/api/v1/a/{account}/tables/{table}/entity", save_entity, writes=True),
    Route("POST", "/api/v1/a/{account}/tables/{table}/groups", save_groups, writes=True),
)
