"""`partita import`, `copy` and `delete-where`."""

import fnmatch
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from partita.bulk.connecting import connected, place_text
from partita.bulk.files import STANDARD, kind_of_file, opened, read_pieces
from partita.bulk.formats.columns import Column, parse_renames, parse_types
from partita.bulk.formats.csv_rows import CsvOptions, guess_types
from partita.bulk.wire import Query, TableClient
from partita.bulk.work import reading
from partita.bulk.work.copying import CopyTask, compare, copy_table
from partita.bulk.work.importing import Imported, ImportTask, check, import_file
from partita.bulk.work.writing import Mode
from partita.cli.bulk.drawing import Meter
from partita.cli.bulk.facts import (
    CopyFacts,
    DeleteFacts,
    FileImported,
    ImportFacts,
    TableCopied,
)
from partita.cli.bulk.opening import get_where, open_client, place_of, plan_of, plan_text
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Table, print_lines
from partita.cli.kit.terminal import is_interactive
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.tables.plan import PlanKind

# --- import


async def import_files(given: Given) -> ImportFacts:
    clock = SystemClock()
    where = get_where(given)
    _check_rejects(given)
    tasks = [_import_task(given, name) for name in given.files]
    done: list[FileImported] = []
    with Meter(f"Import {given.table}", clock, is_hidden=given.quiet) as meter:
        throttled = 0
        if given.dry_run:
            done = [_imported(task, await check(task, meter.observer)) for task in tasks]
        else:
            async with open_client(where, is_new_allowed=True) as client:
                for task in tasks:
                    found = await import_file(client, task, clock, meter.observer)
                    done.append(_imported(task, found))
                throttled = client.throttled_count
        seconds = meter.seconds
    written = sum(each.written + each.skipped for each in done)
    return ImportFacts(
        given.table,
        place_of(where),
        given.dry_run,
        done,
        round(seconds, 3),
        round(written / seconds, 1),
        throttled,
    )


def _check_rejects(given: Given) -> None:
    """Refuse a file of rejected rows that would replace another file of the command."""
    if not given.rejects:
        return
    if len(given.files) > 1:
        raise ConfigurationError(
            "Configuration",
            "--rejects names the file of one import, and several files are given.",
            hint="Leave --rejects out: bad rows go to FILE.rejects.jsonl, beside each file.",
        )
    if Path(given.rejects).resolve() == Path(given.files[0]).resolve():
        raise ConfigurationError(
            "Configuration",
            "--rejects names the file that is imported.",
            hint="Give --rejects another name.",
        )


def _import_task(given: Given, name: str) -> ImportTask:
    kind = kind_of_file(name, given.format)
    options = CsvOptions(
        parse_types(given.types),
        given.partition_key,
        given.row_key,
        parse_renames(given.rename),
    )
    if given.infer and kind.format == "csv":
        options = _inferred(given, name, kind.compression, options)
    return ImportTask(
        given.table,
        name,
        kind,
        Mode(given.on_existing),
        options,
        given.concurrency,
        given.max_rate,
        given.dry_run,
        given.restart,
        given.rejects or "",
    )


def _inferred(given: Given, name: str, compression: str, options: CsvOptions) -> CsvOptions:
    """Guess the missing types from all rows, and show them before anything is written."""
    if name == STANDARD:
        raise ConfigurationError(
            "Configuration",
            "--infer reads the file twice, which standard input does not permit.",
            hint="Save the rows to a file, or give --types.",
        )
    with opened(name) as file:
        guessed = guess_types(read_pieces(file, compression), options)
    if guessed:
        _show_guess(given, name, guessed)
    types = {column.name: str(column.kind) for column in guessed}
    return msgspec.structs.replace(options, types={**types, **options.types})


def _show_guess(given: Given, name: str, guessed: list[Column]) -> None:
    rows = [(column.name, str(column.kind).removeprefix("Edm.")) for column in guessed]
    print(f"Types of {name}, guessed from all rows:", file=sys.stderr)
    print_lines([Table(("COLUMN", "TYPE"), rows)], sys.stderr)
    is_asked = not (given.yes or given.json or given.dry_run) and is_interactive()
    if is_asked and not click.confirm("Import with these types?", default=True, err=True):
        raise ConfigurationError(
            "Cancelled", "Nothing was imported.", hint="Change types with --types NAME=TYPE."
        )


def _imported(task: ImportTask, found: Imported) -> FileImported:
    tally = found.tally
    return FileImported(
        task.file,
        tally.written,
        tally.skipped,
        tally.rejected,
        task.rejects_file if tally.rejected else "",
        found.digest == found.expected if found.expected and found.digest else None,
        found.resumed_at,
    )


# --- copy


async def copy(given: Given) -> CopyFacts:
    clock = SystemClock()
    source_where, target_where = getattr(given, "from"), given.to
    condition = given.where or ""
    has_settings = given.with_settings and not (given.dry_run or given.verify_only)
    done: list[TableCopied] = []
    with Meter("Copy", clock, is_hidden=given.quiet) as meter:
        async with connected(source_where) as source:
            tables = await _tables(source, given)
            if given.dry_run:
                for table in tables:
                    found = await reading.count_entities(
                        source, table, condition, observer=meter.observer
                    )
                    done.append(TableCopied(table, table, source_entities=found))
            else:
                async with connected(target_where, is_new_allowed=True) as target:
                    done = [await _copied(given, source, target, each, meter) for each in tables]
                    if has_settings:
                        await _copy_settings(source, target, done)
        seconds = round(meter.seconds, 3)
    return CopyFacts(
        place_text(source_where),
        place_text(target_where),
        given.dry_run,
        done,
        seconds,
        has_settings,
    )


async def _copy_settings(
    source: TableClient, target: TableClient, tables: Sequence[TableCopied]
) -> None:
    for each in tables:
        await target.set_policies(each.to_table, await source.get_policies(each.table))
    await target.set_properties(await source.get_properties())


async def _tables(source: TableClient, given: Given) -> list[str]:
    if given.to_table and len(given.names) != 1:
        raise ConfigurationError(
            "Configuration",
            "--to-table needs exactly one table.",
            hint="Name one table, or leave --to-table out.",
        )
    if given.names and given.pattern:
        raise ConfigurationError(
            "Configuration", "Tables are named twice.", hint="Name tables, or give --tables."
        )
    if given.names:
        return list(given.names)
    if not given.pattern:
        raise ConfigurationError(
            "Configuration",
            "No table is named.",
            hint="Name the tables, or give --tables '*' for all of them.",
        )
    found = [
        table
        for table in await source.list_tables()
        if fnmatch.fnmatchcase(table.lower(), given.pattern.lower())
    ]
    if not found:
        raise ConfigurationError(
            "Configuration",
            f"No table of the source matches {given.pattern!r}.",
            hint="List the tables with `partita query --connect WHERE`.",
        )
    return found


async def _copied(
    given: Given, source: TableClient, target: TableClient, table: str, meter: Meter
) -> TableCopied:
    to_table = given.to_table or table
    query = Query(given.where or "")
    made = TableCopied(table, to_table)
    if not given.verify_only:
        progress = given.progress_file or f"{table}.copy.partita-progress"
        if given.progress_file and len(given.names) != 1:
            progress = str(Path(given.progress_file).with_name(f"{table}.{given.progress_file}"))
        task = CopyTask(
            table,
            to_table,
            query,
            Mode(given.on_existing),
            given.concurrency,
            given.max_rate,
            given.restart,
            progress,
        )
        found = await copy_table(source, target, task, SystemClock(), meter.observer)
        made = TableCopied(
            table,
            to_table,
            found.tally.written,
            found.tally.skipped,
            found.tally.rejected,
            [each.reason for each in found.rejects],
        )
    if not (given.verify or given.verify_only):
        return made
    compared = await compare(source, target, (table, to_table), query, meter.observer)
    return msgspec.structs.replace(
        made,
        is_verified=True,
        source_entities=compared.source_entities,
        target_entities=compared.target_entities,
        different=compared.different,
        differences=compared.differences,
        source_sum=compared.source_sum,
        target_sum=compared.target_sum,
    )


# --- delete-where


async def delete_where(given: Given) -> DeleteFacts:
    clock = SystemClock()
    condition = (given.where or "").strip()
    plan = plan_of(condition)
    if not given.all and (plan is None or plan.kind is PlanKind.TABLE):
        raise ConfigurationError(
            "ScanNotAllowed",
            "The filter reads the whole table." if condition else "No filter is given.",
            facts={"table": given.table},
            hint="Add a condition on PartitionKey, or give --all.",
        )
    async with open_client(get_where(given)) as client:
        with Meter(f"Count {given.table}", clock, is_hidden=given.quiet) as meter:
            found = await reading.count_entities(
                client, given.table, condition, observer=meter.observer
            )
        if given.dry_run or not found:
            return DeleteFacts(given.table, condition, plan_text(condition), given.dry_run, found)
        _confirm(given, found)
        label = f"{given.table}: delete"
        with Meter(label, clock, is_hidden=given.quiet, total=found) as meter:
            deleted = await reading.delete_where(
                client,
                given.table,
                condition,
                clock,
                force=given.force,
                concurrency=given.concurrency,
                rate_max=given.max_rate,
                observer=meter.observer,
            )
            seconds = round(meter.seconds, 3)
    return DeleteFacts(
        given.table,
        condition,
        plan_text(condition),
        is_dry=False,
        found=found,
        deleted=deleted.tally.written,
        already_deleted=deleted.tally.skipped,
        changed=deleted.tally.rejected,
        changed_keys=tuple(deleted.changed),
        seconds=seconds,
    )


def _confirm(given: Given, found: int) -> None:
    """Ask for the name of the table on a terminal; a script must give --yes."""
    if given.yes:
        return
    if not is_interactive():
        raise ConfigurationError(
            "NotConfirmed",
            f"{given.table} has {found:,} such entities, and the removal is not confirmed.",
            hint="Give --yes to delete them, or --dry-run to count only.",
        )
    text = f"{found:,} entities will be removed. Type the name of the table to go on"
    if click.prompt(text, err=True, default="", show_default=False).strip() != given.table:
        raise ConfigurationError("Cancelled", "Nothing was deleted.")
