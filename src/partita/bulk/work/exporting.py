"""Export: the entities of a query into a file.

JSON lines are written as the pages arrive, in no order if ranges are read at the same time. CSV and
Parquet need to know all columns first: their entities are kept as JSON lines beside the file, in
`<file>.partita-rows`, until the table is read.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from partita.bulk.canonical import Digest
from partita.bulk.checkpoint import SUFFIX, Checkpoint
from partita.bulk.entities import SYSTEM, Typed, cut_lines, lines_of, parse_entity
from partita.bulk.files import STANDARD, FileKind, Output, opened, read_pieces, writing
from partita.bulk.formats import csv_rows
from partita.bulk.formats.columns import Column, ColumnCounter
from partita.bulk.formats.json_lines import split_lines
from partita.bulk.formats.parquet import fits_nanoseconds, import_pyarrow, write_parquet
from partita.bulk.scanning import Scan
from partita.bulk.wire import Page, Query, TableClient
from partita.bulk.work.importing import SUM_SUFFIX, Sum
from partita.bulk.work.observing import SILENT, Observer
from partita.errors import ConfigurationError
from partita.tables import edm
from partita.tables.edm import TYPE_SUFFIX
from partita.ticks import Clock

SAVE_SECONDS = 1.0
ROWS_SUFFIX = ".partita-rows"


class ExportTask(msgspec.Struct, frozen=True):
    """What is exported, and how."""

    table: str
    file: str
    kind: FileKind
    query: Query = Query()
    columns: tuple[str, ...] = ()
    """The properties of a CSV or Parquet file, in this order; empty: all that are found."""
    concurrency: int = 4
    is_safe: bool = False
    """Whether cells that look like formulas are marked as text; such a file loses its values."""
    restart: bool = False
    replace: bool = False

    @property
    def is_converted(self) -> bool:
        return self.kind.format in ("csv", "parquet")

    @property
    def rows_file(self) -> str:
        return self.file + ROWS_SUFFIX if self.is_converted else self.file


class Exported(msgspec.Struct, frozen=True):
    """What an export wrote."""

    entities: int
    file_bytes: int
    digest: str
    is_resumed: bool = False
    throttled: int = 0


async def export_table(
    client: TableClient, task: ExportTask, clock: Clock, observer: Observer = SILENT
) -> Exported:
    """Export a query; a run that was killed is continued, and an existing file is not replaced."""
    is_stream = task.file == STANDARD
    if task.kind.format == "parquet":
        import_pyarrow()
    if is_stream and task.is_converted:
        raise ConfigurationError(
            "Configuration",
            "Only JSON lines can be written to standard output.",
            hint="Give --to FILE for CSV and Parquet.",
        )
    checkpoint = (
        None if is_stream else Checkpoint(Path(task.file + SUFFIX), _described(client, task))
    )
    state = None if checkpoint is None else checkpoint.load(restart=task.restart)
    if not is_stream and state is None:
        _check_new(task)
    run = _ExportRun(client, task, clock, checkpoint, state, observer)
    try:
        await run.read()
    finally:
        run.output.close()
    length = run.output.length
    if task.is_converted:
        length = await asyncio.to_thread(_convert, task)
    if not is_stream:
        _write_sum(task, run.digest)
    if checkpoint is not None:
        checkpoint.remove()
    if task.is_converted:
        _remove(task.rows_file)
    return Exported(
        run.digest.count, length, run.digest.text, state is not None, client.throttled_count
    )


def _described(client: TableClient, task: ExportTask) -> dict[str, Any]:
    return {
        "verb": "export",
        "from": client.endpoint,
        "table": task.table,
        "filter": task.query.filter,
        "select": list(task.query.select),
        "format": task.kind.format,
        "compression": task.kind.compression,
    }


def _check_new(task: ExportTask) -> None:
    if Path(task.file).exists() and not (task.replace or task.restart):
        raise ConfigurationError(
            "FileExists",
            f"The file {task.file} exists already.",
            facts={"file": task.file},
            hint="Give another name, or --replace to write it anew.",
        )


class _ExportRun:
    """The rows that are being written, and what is saved of their progress."""

    def __init__(
        self,
        client: TableClient,
        task: ExportTask,
        clock: Clock,
        checkpoint: Checkpoint | None,
        state: dict[str, Any] | None,
        observer: Observer,
    ) -> None:
        parts = None if state is None else Scan.parts_of(state["parts"])
        length = None if state is None else int(state["bytes"])
        self._clock = clock
        self._checkpoint = checkpoint
        self._observer = observer
        self._scan = Scan(
            client,
            task.table,
            task.query,
            concurrency=task.concurrency,
            parts=parts,
            is_decoded=False,
        )
        compression = "" if task.is_converted else task.kind.compression
        self.output = Output(task.rows_file, compression, length=length)
        self.digest = Digest()
        if state is not None:
            self.digest = Digest.parse(int(state["entities"]), str(state["sha256_sum"]))
            observer.tell(f"Continuing after {self.digest.count:,} entities.")
            observer.advance(self.digest.count)

    async def read(self) -> None:
        self._save()  # the same command continues from here on
        saved_at = self._clock.monotonic()
        async for part, page in self._scan.pages():
            before = self.digest.count
            lines = self._add(page)
            self.output.write(lines)
            part.advance(page)
            self._observer.advance(self.digest.count - before)
            if self._clock.monotonic() - saved_at >= SAVE_SECONDS:
                self._save()
                saved_at = self._clock.monotonic()
        self._save()

    def _add(self, page: Page) -> bytes:
        """Add the documents of a page to the digest; return them as lines."""
        # Mostly one decoding is enough: it checks the lines and returns their canonical forms.
        lines = cut_lines(page.body)
        if lines is None or not self.digest.add_equal_lines(lines):
            lines = lines_of(page.entities)
            self.digest.add_lines(lines)
        return lines

    def _save(self) -> None:
        length = self.output.sync()
        if self._checkpoint is not None:
            self._checkpoint.save(
                {
                    "bytes": length,
                    "entities": self.digest.count,
                    "sha256_sum": self.digest.text,
                    "parts": self._scan.state(),
                }
            )


def _write_sum(task: ExportTask, digest: Digest) -> None:
    found = Sum(digest.count, digest.text, task.table, task.query.filter)
    text = msgspec.json.format(msgspec.json.encode(found)) + b"\n"
    with writing(task.file + SUM_SUFFIX):
        Path(task.file + SUM_SUFFIX).write_bytes(text)


def _remove(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        Path(name).unlink()


# --- CSV and Parquet


def _entities(name: str) -> Iterator[Typed]:
    with opened(name) as file:
        for line in split_lines(read_pieces(file)):
            if line:
                yield parse_entity(line)


def _convert(task: ExportTask) -> int:
    """Write the rows that were read as CSV or Parquet; return the bytes of the file."""
    columns = _columns(task)
    if task.kind.format == "parquet":
        with writing(task.file), Path(task.file).open("wb") as file:
            write_parquet(file, _entities(task.rows_file), columns)
            return file.tell() if not file.closed else Path(task.file).stat().st_size
    output = Output(task.file, task.kind.compression)
    output.write(csv_rows.print_header(columns))
    for entity in _entities(task.rows_file):
        output.write(csv_rows.print_row(entity, columns, is_safe=task.is_safe))
    length = output.sync()
    output.close()
    return length


def _columns(task: ExportTask) -> list[Column]:
    counter = ColumnCounter()
    odd: set[str] = set()
    for entity in _entities(task.rows_file):
        counter.add(entity)
        if task.kind.format == "parquet":
            odd |= _unfit_times(entity)
    found = [
        Column(column.name, None) if column.name in odd else column for column in counter.columns()
    ]
    if not task.columns:
        return found
    by_name = {column.name: column for column in found}
    wanted = [name for name in task.columns if name not in SYSTEM]  # every file has those
    return [by_name.get(name, Column(name, edm.STRING)) for name in wanted]


def _unfit_times(entity: Typed) -> set[str]:
    """Return the DateTime properties that 64 bits of nanoseconds cannot hold."""
    properties = entity.properties
    return {
        name
        for name in properties
        if properties.get(name + TYPE_SUFFIX) == edm.DATETIME
        and not fits_nanoseconds(str(properties[name]))
    }
