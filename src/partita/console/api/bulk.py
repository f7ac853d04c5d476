"""Bulk work on a table as jobs: count, delete by a filter, import, export."""

import asyncio
from pathlib import Path

import msgspec

from partita.bulk.entities import PARTITION_KEY, ROW_KEY
from partita.bulk.files import FileKind, kind_of_file, opened, read_pieces
from partita.bulk.formats.columns import FileColumn
from partita.bulk.formats.csv_rows import CsvOptions, describe_columns
from partita.bulk.formats.parquet import describe_parquet
from partita.bulk.wire import Query
from partita.bulk.work.exporting import ExportTask, export_table
from partita.bulk.work.importing import Imported, ImportTask, check, import_file
from partita.bulk.work.observing import Observer
from partita.bulk.work.reading import count_entities, delete_where
from partita.bulk.work.writing import Mode
from partita.console.calls import Answer, Call, Confirmation, Route
from partita.console.errors import invalid, not_found
from partita.console.jobs import Job
from partita.console.transfers.files import download_of, save_upload
from partita.errors import ConfigurationError
from partita.tables.filters import parse

MODES = ("replace", "merge", "skip", "fail")
EXPORT_FORMATS = ("jsonl", "jsonl.gz", "csv", "csv.gz", "parquet")


class Count(msgspec.Struct, forbid_unknown_fields=True):
    filter: str = ""


class DeleteWhere(Confirmation):
    """A filter, and the name of the table as the user typed it."""

    filter: str


class Import(msgspec.Struct, forbid_unknown_fields=True):
    upload: str
    mode: str = "replace"
    types: dict[str, str] = {}
    """The types of the columns of a CSV file that does not name them."""
    partition_key: str = PARTITION_KEY
    """The column that has the partition key, of a CSV or Parquet file."""
    row_key: str = ROW_KEY
    is_dry: bool = False


class Export(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    filter: str = ""


async def count(call: Call) -> Answer:
    """Count the entities that a filter selects."""
    text = call.decode(Count).filter
    parse(text)
    client, table = call.account.tables, call.arguments["table"]

    async def work(job: Job) -> None:
        total = await count_entities(client, table, text, observer=_observer(job))
        job.counts["entities"] = total

    return call.start_job("count", f"Count {table}", work)


async def delete(call: Call) -> Answer:
    """Delete the entities that a filter selects, in the versions that are read."""
    given, table = call.confirmed("table", DeleteWhere), call.arguments["table"]
    parse(given.filter)
    client, clock = call.account.tables, call.services.clock

    async def work(job: Job) -> None:
        done = await delete_where(client, table, given.filter, clock, observer=_observer(job))
        job.counts["entities"] = done.tally.written
        if done.changed:
            job.note = f"{done.tally.rejected} entities were changed meanwhile and are kept."

    return call.start_job("delete", f"Delete entities of {table}", work)


async def upload(call: Call) -> Answer:
    """Keep a file for an import; return its columns, with types that were guessed."""
    name = call.query.get("name", "")
    kind = _kind_of(name)
    kept = call.services.files.new(name)
    with call.services.files.using(kept):
        length = await save_upload(call.request, kept.path)
        columns = await asyncio.to_thread(_columns, kept.path, kind)
    return {"upload": kept.identity, "bytes": length, "format": kind.format, "columns": columns}


def _kind_of(name: str) -> FileKind:
    try:
        return kind_of_file(name)
    except ConfigurationError as error:  # an error of the page, not of the server
        raise invalid(error.message, error.hint) from error


def _columns(path: Path, kind: FileKind) -> list[FileColumn]:
    """Return the columns of a file; lines of JSON have none."""
    with opened(str(path)) as file:
        if kind.format == "csv":
            return describe_columns(read_pieces(file, kind.compression))
        return describe_parquet(file) if kind.format == "parquet" else []


async def import_upload(call: Call) -> Answer:
    """Import a kept file, or only check it."""
    given, table = call.decode(Import), call.arguments["table"]
    if given.mode not in MODES:
        raise invalid("The mode of an import is replace, merge, skip or fail.")
    kept = call.services.files.get(given.upload)
    client, clock = call.account.tables, call.services.clock
    task = ImportTask(
        table=table,
        file=str(kept.path),
        kind=_kind_of(kept.name),
        mode=Mode(given.mode),
        options=CsvOptions(given.types, given.partition_key, given.row_key),
        restart=True,
    )

    async def work(job: Job) -> None:
        observer = _observer(job)
        done: Imported
        with call.services.files.using(kept):
            if given.is_dry:
                done = await check(task, observer)
            else:
                done = await import_file(client, task, clock, observer)
        job.counts |= {
            "entities": done.tally.written,
            "skipped": done.tally.skipped,
            "rejected": done.tally.rejected,
        }
        if done.tally.rejected:
            rejects = Path(task.rejects_file).name
            job.result = {"file": kept.identity, "name": rejects, "is_reject": True}

    title = f"{'Check' if given.is_dry else 'Import'} {kept.name} for {table}"
    return call.start_job("check" if given.is_dry else "import", title, work)


async def export(call: Call) -> Answer:
    """Export what a filter selects into a file; the page downloads it by a ticket."""
    given, table = call.decode(Export), call.arguments["table"]
    parse(given.filter)
    if given.format not in EXPORT_FORMATS:
        message = f"The format of an export is one of {', '.join(EXPORT_FORMATS)}."
        raise invalid(message)
    client, clock = call.account.tables, call.services.clock
    kept = call.services.files.new(f"{table}.{given.format}")
    task = ExportTask(
        table, str(kept.path), kind_of_file(kept.name), Query(filter=given.filter), replace=True
    )

    async def work(job: Job) -> None:
        with call.services.files.using(kept):
            done = await export_table(client, task, clock, _observer(job))
        job.counts |= {"entities": done.entities, "bytes": done.file_bytes}
        job.result = {"file": kept.identity, "name": kept.name}

    return call.start_job("export", f"Export {table} as {given.format}", work)


async def download_result(call: Call) -> Answer:
    """Return a ticket for the file that a job made."""
    job = call.services.jobs.find(call.arguments["job"])
    if job is None or "file" not in job.result:
        raise not_found("The file of this job")
    kept, name = call.services.files.get(job.result["file"]), job.result["name"]
    path = kept.path.with_name(name) if job.result.get("is_reject") else kept.path
    return {"ticket": call.services.tickets.issue(lambda: download_of(path, name))}


def _observer(job: Job) -> Observer:
    def advance(done: int) -> None:
        job.counts["entities"] = job.counts.get("entities", 0) + done

    def tell(text: str) -> None:
        job.note = text

    return Observer(advance, tell=tell)


_TABLE = "/api/v1/a/{account}/tables/{table}"

ROUTES = (
    Route("POST", f"{_TABLE}/count", count),
    Route("POST", f"{_TABLE}/delete-where", delete, writes=True),
    Route("POST", f"{_TABLE}/uploads", upload, writes=True, streams=True),
    Route("POST", f"{_TABLE}/import", import_upload, writes=True),
    Route("POST", f"{_TABLE}/export", export),
    Route("POST", "/api/v1/jobs/{job}/download", download_result),
)
