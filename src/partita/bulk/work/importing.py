"""Import: the rows of a file into a table."""

import asyncio
import contextlib
import os
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from partita.bulk.batches import Change
from partita.bulk.canonical import Digest
from partita.bulk.checkpoint import SUFFIX, Checkpoint
from partita.bulk.entities import parse_entity
from partita.bulk.files import STANDARD, FileKind, Output, opened, read_pieces
from partita.bulk.formats.csv_rows import CsvOptions, csv_rows
from partita.bulk.formats.json_lines import document_rows, line_rows
from partita.bulk.formats.parquet import parquet_rows
from partita.bulk.formats.rows import Reject, Row, reason_of
from partita.bulk.grouping import Planned
from partita.bulk.pace import Pace
from partita.bulk.wire import Query, TableClient
from partita.bulk.work.observing import SILENT, Observer
from partita.bulk.work.writing import (
    WINDOW_BYTES_MAX,
    WINDOW_ROWS_MAX,
    Mode,
    Tally,
    Window,
    Writer,
)
from partita.errors import ConfigurationError, PartitaError, TableNotFoundError
from partita.tables.entity import check_table_name
from partita.ticks import Clock

TURN_ROWS = 100
"""Rows that are read in one turn of the event loop."""
SAVE_SECONDS = 1.0
REJECTS_SUFFIX = ".rejects.jsonl"
SUM_SUFFIX = ".sum.json"


class Sum(msgspec.Struct, frozen=True):
    """The content of `<file>.sum.json`: how many entities a file has, and their digest."""

    entities: int
    sha256_sum: str
    table: str = ""
    filter: str = ""


class ImportTask(msgspec.Struct, frozen=True):
    """What is imported, and how."""

    table: str
    file: str
    kind: FileKind
    mode: Mode = Mode.REPLACE
    options: CsvOptions = CsvOptions()
    concurrency: int = 8
    rate_max: float | None = None
    is_dry: bool = False
    restart: bool = False
    rejects: str = ""
    """The file for rejected rows; empty: beside the input."""

    @property
    def rejects_file(self) -> str:
        name = "stdin" if self.file == STANDARD else self.file
        return self.rejects or name + REJECTS_SUFFIX


class Imported(msgspec.Struct, frozen=True):
    """What an import did."""

    tally: Tally
    digest: str = ""
    """The sum of the file, if it was computed."""
    expected: str = ""
    """The sum of `<file>.sum.json`; empty if there is none."""
    resumed_at: int = 0
    """The number of rows that a former run had completed."""
    throttled: int = 0


def read_rows(file: BinaryIO, task: ImportTask) -> Iterator[Row | Reject]:
    """Read the rows of an open file by its kind."""
    if task.kind.format == "parquet":
        return parquet_rows(file, task.options)
    pieces = read_pieces(file, task.kind.compression)
    if task.kind.format == "csv":
        return csv_rows(pieces, task.options)
    return line_rows(pieces) if task.kind.format == "jsonl" else document_rows(pieces)


def find_sum(file: str) -> Sum | None:
    """Return the sum that an export wrote beside a file."""
    try:
        return msgspec.json.decode(Path(file + SUM_SUFFIX).read_bytes(), type=Sum)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise ConfigurationError(
            "FileUnreadable",
            f"The file {file}{SUM_SUFFIX} is not a sum of an export.",
            hint="Remove it to import without verification.",
        ) from error


async def check(task: ImportTask, observer: Observer = SILENT) -> Imported:
    """Read and check every row, and write nothing."""
    tally, digest = Tally(), Digest()
    with opened(task.file) as file, _Rejects(task, None) as rejects:
        for row in read_rows(file, task):
            found = _checked(row)
            if isinstance(found, Reject):
                tally.rejected += 1
                rejects.write([found])
            else:
                tally.written += 1
                digest.add(found.document)
            if tally.total % TURN_ROWS == 0:
                observer.advance(TURN_ROWS)
                await asyncio.sleep(0)
        rejects.sync()
    expected = find_sum(task.file)
    return Imported(tally, digest.text, expected.sha256_sum if expected else "")


def _checked(row: Row | Reject) -> Row | Reject:
    if isinstance(row, Reject):
        return row
    try:
        parse_entity(row.document)
    except (PartitaError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return Reject(row.place, reason_of(error), row.document[:2000].decode("utf-8", "replace"))
    return row


async def import_file(
    client: TableClient, task: ImportTask, clock: Clock, observer: Observer = SILENT
) -> Imported:
    """Import a file; a run that was killed is continued.

    The table is created if it does not exist. TypesMissing and HeaderUnusable are raised before
    anything is written.
    """
    check_table_name(task.table)
    checkpoint = None
    if task.file != STANDARD:
        checkpoint = Checkpoint(Path(task.file + SUFFIX), _description(client, task))
    state = None if checkpoint is None else checkpoint.load(restart=task.restart)
    expected = find_sum(task.file)
    with opened(task.file) as file, _Rejects(task, state) as rejects:
        rows = read_rows(file, task)
        first = next(rows, None)  # raises what is wrong with the whole file
        await _ensure_table(client, task.table)
        run = _ImportRun(client, task, clock, checkpoint, rejects, observer)
        if state is not None:
            run.continue_from(state)
        digest = Digest(*run.summed) if expected is not None else None
        windows = _windows(first, rows, run.rows_done, task.mode, digest)
        run.file, run.file_bytes = file, _size(file)
        pace = Pace(clock, task.concurrency, task.rate_max)
        writer = Writer(client, task.table, task.mode, pace, is_resumed=state is not None)
        run.save()
        await writer.write(windows, run.done, observer.advance, concurrency=task.concurrency)
        run.save()
    if checkpoint is not None:
        checkpoint.remove()
    return Imported(
        run.tally,
        "" if digest is None else Digest(digest.count, digest.total).text,
        "" if expected is None else expected.sha256_sum,
        0 if state is None else int(state["rows"]),
        client.throttled_count,
    )


def _description(client: TableClient, task: ImportTask) -> dict[str, Any]:
    try:
        found = Path(task.file).stat()
    except OSError as error:
        raise ConfigurationError(
            "FileUnusable",
            f"The file {task.file} cannot be opened: {error.strerror or error}.",
            hint="Check the path and its permissions.",
        ) from error
    renames = task.options.renames
    return {
        "verb": "import",
        "to": client.endpoint,
        "table": task.table,
        "format": task.kind.format,
        "on_existing": task.mode.value,
        "types": dict(task.options.types),
        "keys": [task.options.partition_key, task.options.row_key],
        **({"renames": dict(renames)} if renames else {}),
        "bytes": found.st_size,
        "modified_ns": found.st_mtime_ns,
    }


def _size(file: BinaryIO) -> int:
    """Return the bytes of a file; 0 if it is a stream."""
    found = os.fstat(file.fileno())
    return found.st_size if stat.S_ISREG(found.st_mode) else 0


async def _ensure_table(client: TableClient, table: str) -> None:
    # Asked first: a signature for one table may write it, but not create tables.
    try:
        await client.query(table, Query(select=("PartitionKey",), top=1))
    except TableNotFoundError:
        await client.create_table(table)


class _ImportRun:
    """The progress of an import, and what is saved of it."""

    def __init__(
        self,
        client: TableClient,
        task: ImportTask,
        clock: Clock,
        checkpoint: Checkpoint | None,
        rejects: "_Rejects",
        observer: Observer,
    ) -> None:
        self._client = client
        self._task = task
        self._clock = clock
        self._checkpoint = checkpoint
        self._rejects = rejects
        self._observer = observer
        self._saved_at = clock.monotonic()
        self.tally = Tally()
        self.rows_done = 0
        self.file: BinaryIO | None = None
        self.file_bytes = 0
        self.summed = (0, 0)
        """Count and sum of the digest at the last window that is done."""

    def continue_from(self, state: dict[str, Any]) -> None:
        self.rows_done = int(state["rows"])
        self.tally = msgspec.convert(state["tally"], Tally)
        self.summed = int(state["summed"][0]), int(state["summed"][1], 16)
        if self.rows_done:
            self._observer.tell(f"Continuing after {self.rows_done:,} rows.")

    def done(self, window: Window, tally: Tally, rejects: list[Reject]) -> None:
        self.tally.add(tally)
        self.rows_done = int(window.position["rows"])
        self.summed = window.position["summed"]
        self._rejects.write(rejects)
        if self.file is not None and self.file_bytes:
            self._observer.share(self.file.tell() / self.file_bytes)
        if self._clock.monotonic() - self._saved_at >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        length = self._rejects.sync()
        self._saved_at = self._clock.monotonic()
        if self._checkpoint is not None:
            self._checkpoint.save(
                {
                    "rows": self.rows_done,
                    "tally": msgspec.to_builtins(self.tally),
                    "summed": [self.summed[0], f"{self.summed[1]:x}"],
                    "rejects_bytes": length,
                }
            )


class _Rejects:
    """The file of rejected rows; it is created with the first one."""

    def __init__(self, task: ImportTask, state: dict[str, Any] | None) -> None:
        self._name = task.rejects_file
        length = None if state is None else int(state["rejects_bytes"])
        self._output = Output(self._name, length=length) if length else None
        if not length:
            with contextlib.suppress(FileNotFoundError):
                Path(self._name).unlink()  # of a former import of this file

    def __enter__(self) -> "_Rejects":
        return self

    def __exit__(self, *_: object) -> None:
        if self._output is not None:
            self._output.close()

    def write(self, rejects: list[Reject]) -> None:
        for reject in rejects:
            if self._output is None:
                self._output = Output(self._name)
            line = {
                "line": reject.place,
                "reason": _printable(reject.reason),
                "row": _printable(reject.text),
            }
            self._output.write(msgspec.json.encode(line) + b"\n")

    def sync(self) -> int:
        return 0 if self._output is None else self._output.sync()


def _printable(text: str) -> str:
    """Return a text of which bytes that are not UTF-8 are printed as escapes."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


async def _windows(
    first: Row | Reject | None,
    rows: Iterator[Row | Reject],
    rows_done: int,
    mode: Mode,
    digest: Digest | None,
) -> AsyncIterator[Window]:
    """Yield the rows after those that are done; let other tasks run every few rows."""
    kind = mode.kind
    changes: list[Planned] = []
    rejects: list[Reject] = []
    size = number = 0
    row = first
    while row is not None:
        number += 1
        if number > rows_done:
            if isinstance(row, Reject):
                rejects.append(row)
            else:
                change = Change(kind, row.partition_key, row.row_key, row.document)
                changes.append(Planned(change, row.place))
                size += len(row.document)
                if digest is not None:
                    _add(digest, row)
            if len(changes) + len(rejects) >= WINDOW_ROWS_MAX or size >= WINDOW_BYTES_MAX:
                yield _window(changes, rejects, number, digest)
                changes, rejects, size = [], [], 0
        if number % TURN_ROWS == 0:
            await asyncio.sleep(0)
        row = next(rows, None)
    if changes or rejects:
        yield _window(changes, rejects, number, digest)


def _add(digest: Digest, row: Row) -> None:
    # The service refuses such a row, and names the reason.
    with contextlib.suppress(PartitaError, msgspec.MsgspecError, TypeError):
        digest.add(row.document)


def _window(
    changes: list[Planned], rejects: list[Reject], number: int, digest: Digest | None
) -> Window:
    summed = (0, 0) if digest is None else (digest.count, digest.total)
    return Window(changes, rejects, {"rows": number, "summed": summed})
