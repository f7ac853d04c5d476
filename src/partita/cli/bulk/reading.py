"""`partita export`, `query` and `count`."""

import sys
from typing import Any

import msgspec

from partita.bulk.entities import parse_entity, without_etag
from partita.bulk.files import kind_of_file
from partita.bulk.formats import csv_rows
from partita.bulk.formats.columns import ColumnCounter
from partita.bulk.wire import Query, TableClient
from partita.bulk.work import reading
from partita.bulk.work.exporting import ExportTask, export_table
from partita.cli.bulk.drawing import Meter
from partita.cli.bulk.facts import (
    CountFacts,
    ExplainFacts,
    ExportFacts,
    QueryFacts,
    TablesFacts,
)
from partita.cli.bulk.opening import (
    MEANINGS,
    advice_on,
    get_where,
    names_of,
    open_client,
    place_of,
    plan_of,
    plan_text,
    type_advice,
)
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import show
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.tables.edm import TYPE_SUFFIX
from partita.tables.limits import PAGE_ENTITIES_MAX

KEYS = ("PartitionKey", "RowKey")


async def export(given: Given) -> ExportFacts | CountFacts | None:
    clock = SystemClock()
    kind = kind_of_file(given.to, given.format)
    if kind.format == "json":
        raise ConfigurationError(
            "Configuration",
            "JSON documents are only read.",
            hint="Use JSON lines: a name that ends in .jsonl, or --format jsonl.",
        )
    select = names_of(given.select)
    selected = (*KEYS, "Timestamp", *(n for n in select if n not in KEYS)) if select else ()
    condition = given.where or ""
    async with open_client(get_where(given)) as client:
        if given.dry_run:
            return await _counted(client, given, clock)
        task = ExportTask(
            given.table,
            given.to,
            kind,
            Query(condition, selected),
            names_of(given.columns),
            given.concurrency,
            given.spreadsheet_safe,
            given.restart,
            given.replace,
        )
        with Meter(f"Export {given.table}", clock, is_hidden=given.quiet) as meter:
            found = await export_table(client, task, clock, meter.observer)
        facts = ExportFacts(
            given.table,
            given.to,
            found.entities,
            found.file_bytes,
            found.digest,
            found.is_resumed,
            round(meter.seconds, 3),
            round(found.entities / meter.seconds, 1),
            found.throttled,
            plan_text(condition),
        )
    if given.to == "-":
        sys.stdout.flush()
        show(facts, is_json=given.json, file=sys.stderr)
        return None
    return facts


async def count(given: Given) -> CountFacts:
    async with open_client(get_where(given)) as client:
        found = await _counted(client, given, SystemClock())
    if not found.entities:
        _note_on_types(found.where)
    return found


def _note_on_types(condition: str) -> None:
    """Say why a filter may have found nothing, on standard error."""
    if note := type_advice(condition):
        print(note, file=sys.stderr)


async def _counted(client: TableClient, given: Given, clock: SystemClock) -> CountFacts:
    condition = given.where or ""
    with Meter(f"Count {given.table}", clock, is_hidden=given.quiet) as meter:
        found = await reading.count_entities(
            client,
            given.table,
            condition,
            concurrency=given.concurrency,
            observer=meter.observer,
        )
    return CountFacts(given.table, condition, found, plan_text(condition), round(meter.seconds, 3))


async def query(given: Given) -> Any:
    where = get_where(given)
    async with open_client(where) as client:
        if given.table is None:
            return TablesFacts(client.account, place_of(where), await client.list_tables())
        if given.explain:
            return await _explained(client, given)
        return await _queried(client, given)


async def _explained(client: TableClient, given: Given) -> ExplainFacts:
    condition = given.where or ""
    found = plan_of(condition)
    if found is None:
        raise ConfigurationError(
            "Configuration",
            "The filter cannot be planned: the service may refuse it.",
            facts={"filter": condition},
            hint="Write comparisons such as: PartitionKey eq 'a' and Age gt 40.",
        )
    page = await client.query(given.table, Query(condition, KEYS, 1), explain=True)
    return ExplainFacts(
        given.table,
        condition,
        plan_text(condition),
        page.plan,
        MEANINGS[found.kind] if not found.span.is_empty else "It reads nothing.",
        advice_on(found, condition),
        page.ranges,
    )


async def _queried(client: TableClient, given: Given) -> QueryFacts | None:
    condition, select = given.where or "", names_of(given.select)
    selected = (*KEYS, *(name for name in select if name not in KEYS)) if select else ()
    top = given.top or None
    shape = given.format or ("table" if sys.stdout.isatty() or given.json else "jsonl")
    found: list[msgspec.Raw] = []
    size = min(top or PAGE_ENTITIES_MAX, PAGE_ENTITIES_MAX)
    has_more = False
    start = None
    counted = 0
    while True:
        page = await client.query(given.table, Query(condition, selected, size), start)
        entities = page.entities if top is None else page.entities[: top - counted]
        counted += len(entities)
        if shape == "jsonl" and not given.json:
            for entity in entities:
                sys.stdout.buffer.write(without_etag(entity) + b"\n")
        else:
            found += entities
        start = page.continuation
        if start is None or (top is not None and counted >= top):
            has_more = start is not None
            break
    sys.stdout.buffer.flush()
    if not counted:
        _note_on_types(condition)
    if shape == "jsonl" and not given.json:
        if has_more:
            print(f"The first {counted:,} entities; raise --top for more.", file=sys.stderr)
        return None
    if shape == "csv" and not given.json:
        _print_csv(found)
        return None
    return _table_of(given.table, found, has_more=has_more, plan=plan_text(condition))


def _print_csv(found: list[msgspec.Raw]) -> None:
    entities = [parse_entity(without_etag(entity)) for entity in found]
    counter = ColumnCounter()
    for entity in entities:
        counter.add(entity)
    columns = counter.columns()
    sys.stdout.buffer.write(csv_rows.print_header(columns))
    for entity in entities:
        sys.stdout.buffer.write(csv_rows.print_row(entity, columns))
    sys.stdout.buffer.flush()


def _table_of(table: str, found: list[msgspec.Raw], *, has_more: bool, plan: str) -> QueryFacts:
    members = [msgspec.json.decode(without_etag(entity)) for entity in found]
    names = {name: None for each in members for name in each if not name.endswith(TYPE_SUFFIX)}
    rows = [[_shown(each.get(name)) for name in names] for each in members]
    raw = [msgspec.Raw(without_etag(entity)) for entity in found]
    return QueryFacts(table, list(names), rows, raw, has_more, plan)


def _shown(value: object) -> object:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value
