"""What a verb found or did: printed as text for people or as one JSON line for programs.

On a terminal tables may wrap and have colours; in a pipe they are plain aligned text. Rich is
imported only to print a table.
"""

import io
import sys
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import msgspec

from partita.cli.kit.terminal import has_colours

if TYPE_CHECKING:
    from rich.table import Table as RichTable

PIPE_COLUMNS = 100_000
"""The width of a table in a pipe: no cell is wrapped there."""

_STYLES = {
    **dict.fromkeys(("online", "readable", "done", "upgraded", "current", "yes"), "green"),
    **dict.fromkeys(("offline", "paused", "pending", "write-only", "not tried"), "yellow"),
    **dict.fromkeys(("failed", "unknown"), "red"),
}
"""Colours of cells that are one of these words."""


class Table(NamedTuple):
    """Rows under headings; a cell without a value is shown as `-`."""

    headings: Sequence[str]
    rows: Iterable[Sequence[object]]


Line = str | Table


class Facts(msgspec.Struct, frozen=True):
    """The result of one verb; its fields are the names of the JSON object."""

    @property
    def exit_status(self) -> int:
        """The status of the process: 1 if an operator must look at the result."""
        return 0

    @property
    def as_value(self) -> object:
        """What is printed as JSON: this object, unless the verb prints a list."""
        return self

    @abstractmethod  # checked by mypy only: a Struct has a metaclass of its own
    def lines(self) -> Iterator[Line]:
        """Yield the result for people."""


def as_json(facts: Facts) -> str:
    """Return one line of JSON; a value that JSON does not have is written as text."""
    return msgspec.json.encode(facts.as_value, enc_hook=str).decode()


def as_text(lines: Iterable[Line]) -> str:
    """Return lines as they are printed to a pipe."""
    file = io.StringIO()
    print_lines(lines, file)
    return file.getvalue().removesuffix("\n")


def show(
    facts: Facts, *, is_json: bool, lines: Iterable[Line] | None = None, file: TextIO | None = None
) -> None:
    """Print a result, for people as `lines` if they are given; flushed, as readers may wait."""
    to = file or sys.stdout
    if is_json:
        print(as_json(facts), file=to)
    else:
        print_lines(facts.lines() if lines is None else lines, to)
    to.flush()


def print_lines(lines: Iterable[Line], file: TextIO) -> None:
    """Print text as it is, and tables aligned."""
    for line in lines:
        if isinstance(line, str):
            print(line, file=file)
        else:
            _print_table(line, file)


def _print_table(table: Table, file: TextIO) -> None:
    from rich.console import Console  # noqa: PLC0415 - see the module

    made = _rich_table(table, is_wrapped=file.isatty())
    if file.isatty():
        Console(file=file, no_color=not has_colours(file)).print(made)
        return
    plain = Console(file=io.StringIO(), width=PIPE_COLUMNS, color_system=None)
    with plain.capture() as captured:
        plain.print(made)
    for line in captured.get().splitlines():
        print(line.rstrip(), file=file)


def _rich_table(table: Table, *, is_wrapped: bool) -> "RichTable":
    from rich.table import Table as Made  # noqa: PLC0415 - see the module
    from rich.text import Text  # noqa: PLC0415

    made = Made(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in table.headings:
        made.add_column(Text(heading), no_wrap=not is_wrapped, overflow="fold")
    for row in table.rows:
        made.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in map(_cell, row)))
    return made


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = "-" if value is None or value == "" else str(value)
    return text.replace("\n", " ")
