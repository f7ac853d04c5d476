"""Runs `partita heat`: read, recognise, draw."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from partita.cli.heat.sources import read
from partita.cli.kit.commands import Given
from partita.cli.kit.errors import in_one_line, not_installed
from partita.cli.kit.facts import Facts, Line, Table, show
from partita.cli.kit.terminal import has_colours
from partita.cli.kit.text import size_text
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.heat.axes import COUNTERS
from partita.heat.drawing.labels import range_text, rate_text, title_text
from partita.heat.drawing.picture import UNITS, HotRange, Picture, draw, hottest
from partita.heat.drawing.svg import svg
from partita.heat.drawing.terminal import colours_of, print_picture, size_of
from partita.heat.kept import Column, TableTotal
from partita.heat.recorder import Reading
from partita.heat.shapes import Shape, recognise
from partita.ticks import TICKS_PER_SECOND, moment

HOTTEST_SHOWN = 8
FILE_ROWS, FILE_COLUMNS = 200, 670
"""The most cells of a drawing in a file."""
_SINCE = re.compile(r"([1-9]\d{0,5})([smhd])", re.ASCII)
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class HotTables(Facts, frozen=True):
    """The tables with load."""

    account: str
    since: str
    to: str
    counters: tuple[str, ...]
    tables: list[TableTotal]

    def lines(self) -> Iterator[Line]:
        if not self.tables:
            yield f"No load was measured in account {self.account} since {self.since}."
            return
        rows = [_table_row(table) for table in self.tables]
        headings = ("table", "read", "of it by scans", "written", "bytes out", "bytes in")
        yield Table(headings, rows)
        yield "`partita heat TABLE` draws one of them."


class TableHeat(Facts, frozen=True):
    """The load of one table."""

    account: str
    table: str
    since: str
    to: str
    kind: str
    counters: tuple[str, ...]
    hottest: list[HotRange]
    shapes: list[Shape]
    columns: list[Column]
    files: list[str]
    """The pictures that were written."""

    def lines(self) -> Iterator[Line]:
        if not self.columns:
            yield f"No load of table {self.table} was measured since {self.since}."
            return
        if self.files:
            yield f"The picture of {self.table} is in {' and '.join(self.files)}."
            yield ""
        rows = [
            (
                range_text(each.first, each.last) or "start of the table",
                rate_text(each.rate),
                f"{each.share:.0%}",
            )
            for each in self.hottest
        ]
        yield Table(("hottest ranges", UNITS[self.kind], "share"), rows)
        for shape in self.shapes:
            yield ""
            yield f"{shape.kind.value}: {shape.evidence}."
            yield f"  {shape.advice}"


def run(given: Given) -> int:
    with in_one_line(given, {}, lambda _error: None):
        to = SystemClock().ticks() // TICKS_PER_SECOND + 1
        reading = read(given, to - _seconds(given.since), to)
        if reading.table is None:
            _refuse_pictures(given)
            show(_tables(reading), is_json=given.json)
        else:
            _show_table(given, reading)
        if not (reading.columns or reading.tables or given.metrics):
            note = "A minute is kept when it is over; the present one is known to the running"
            print(f"{note} server: give --metrics URL.", file=sys.stderr)
        return 0


def _show_table(given: Given, reading: Reading) -> None:
    table = reading.table or ""
    facts = TableHeat(
        reading.account,
        table,
        *_times(reading),
        given.kind,
        COUNTERS,
        hottest(reading.columns, given.kind, HOTTEST_SHOWN),
        recognise(reading.columns),
        reading.columns,
        [file for file in (given.png, given.svg) if file],
    )
    if given.png or given.svg:
        whole = draw(reading.columns, given.kind, rows_max=FILE_ROWS, columns_max=FILE_COLUMNS)
        _write_files(given, whole, title_text(table, whole))
    elif not given.json and reading.columns:
        colours = colours_of(
            has_colours=has_colours(sys.stdout), colorterm=os.environ.get("COLORTERM", "")
        )
        rows_max, columns_max = size_of(*shutil.get_terminal_size((100, 40)), colours)
        picture = draw(reading.columns, given.kind, rows_max=rows_max, columns_max=columns_max)
        print(title_text(table, picture))
        print("\n".join(print_picture(picture, colours)))
        print()
    show(facts, is_json=given.json)


def _write_files(given: Given, picture: Picture, title: str) -> None:
    try:
        if given.svg:
            Path(given.svg).write_text(svg(picture, title), "utf-8")
        if given.png:
            try:
                from partita.heat.drawing.png import png  # noqa: PLC0415 - an extra
            except ModuleNotFoundError as error:
                hint = 'Run: pip install "./partita[ops]", or use --svg.'
                raise not_installed(error, hint) from error
            Path(given.png).write_bytes(png(picture, title))
    except OSError as error:
        raise ConfigurationError(
            "Configuration",
            f"The file {error.filename} cannot be written: {error.strerror}.",
            hint="Check the path and its permissions.",
        ) from error


def _refuse_pictures(given: Given) -> None:
    if given.png or given.svg:
        raise ConfigurationError(
            "Configuration", "A picture shows one table.", hint="Give the name of a table."
        )


def _tables(reading: Reading) -> HotTables:
    return HotTables(reading.account, *_times(reading), COUNTERS, reading.tables)


def _table_row(table: TableTotal) -> tuple[str, ...]:
    read_, scanned, written, bytes_out, bytes_in = table.counts
    counts = (f"{count:,}" for count in (read_, scanned, written))
    return table.name or "(others)", *counts, size_text(bytes_out), size_text(bytes_in)


def _times(reading: Reading) -> tuple[str, str]:
    since, to = (moment(each * TICKS_PER_SECOND) for each in (reading.since, reading.to))
    return since or "", to or ""


def _seconds(text: str) -> int:
    found = _SINCE.fullmatch(text)
    if found is None:
        raise ConfigurationError(
            "Configuration",
            f"{text!r} is not a time.",
            hint="Give --since a number and a unit: 30m, 6h, 7d.",
        )
    return int(found[1]) * _UNITS[found[2]]
