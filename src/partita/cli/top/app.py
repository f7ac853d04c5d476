"""The live view of `partita top`, by Textual (extra `ops`)."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Input, Static

from partita.cli.top.readings import Reading
from partita.cli.top.tables import (
    HOT_HEADINGS,
    OPERATION_HEADINGS,
    SLOW_HEADINGS,
    headline,
    hot_rows,
    operation_rows,
    slow_rows,
    store_line,
)
from partita.errors import PartitaError


class Readings(Protocol):
    """Where the readings come from; `read` blocks."""

    def read(self) -> Reading: ...


class TopApp(App[None]):
    """Polls an endpoint and shows the reading; a failed one is told and tried again."""

    TITLE = "partita top"
    AUTO_FOCUS = ""
    CSS = """
    #head { background: $primary; color: $text; padding: 0 1; }
    #store, #told { padding: 0 1; }
    #told { color: $error; }
    DataTable { height: auto; margin: 1 0 0 0; }
    #filter { display: none; }
    #filter.shown { display: block; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("p", "pause", "Pause"),
        Binding("s", "sort", "Sort by p99"),
        Binding("slash", "find", "Filter"),
        Binding("escape", "clear", "Clear", show=False),
    ]

    def __init__(self, readings: Readings, interval_seconds: float) -> None:
        super().__init__()
        self._readings = readings
        self._interval_seconds = interval_seconds
        self.is_paused = False
        self.is_sorted_by_p99 = False
        self.wanted = ""
        """Only operations and objects that contain this text are shown."""
        self.reading: Reading | None = None

    def compose(self) -> ComposeResult:
        yield Static("waiting for the first reading", id="head")
        yield Static("", id="store")
        yield Static("", id="told")
        yield Input(placeholder="operation or object", id="filter", disabled=True)
        with VerticalScroll():
            yield DataTable[str](id="operations", show_cursor=False)
            yield DataTable[str](id="hot", show_cursor=False)
            yield DataTable[str](id="slow", show_cursor=False)
        yield Footer()

    def on_mount(self) -> None:
        for name, headings in (
            ("operations", OPERATION_HEADINGS),
            ("hot", HOT_HEADINGS),
            ("slow", SLOW_HEADINGS),
        ):
            self._table(name).add_columns(*headings)
        self.set_interval(self._interval_seconds, self.refresh_reading)

    async def refresh_reading(self) -> None:
        """Take a reading in a thread, and show it."""
        if self.is_paused:
            return
        told = self.query_one("#told", Static)
        try:
            self.reading = await asyncio.to_thread(self._readings.read)
        except PartitaError as error:
            told.update(f"{error.message} {error.hint}")
            return
        told.update("")
        self._show()

    def _show(self) -> None:
        reading = self.reading
        if reading is None:
            return
        paused = "   PAUSED" if self.is_paused else ""
        self.query_one("#head", Static).update(headline(reading) + paused)
        self.query_one("#store", Static).update(store_line(reading))
        operations = list(operation_rows(reading))
        if self.is_sorted_by_p99:
            operations.sort(key=lambda row: -float(row[5]))
        self._fill("operations", operations)
        self._fill("hot", hot_rows(reading))
        self._fill("slow", slow_rows(reading))

    def _fill(self, name: str, rows: Iterable[Sequence[str]]) -> None:
        table = self._table(name)
        table.clear()
        wanted = self.wanted.lower()
        for row in rows:
            if wanted in " ".join(row).lower():
                table.add_row(*row)

    def _table(self, name: str) -> "DataTable[str]":
        return self.query_one(f"#{name}", DataTable)

    def action_pause(self) -> None:
        self.is_paused = not self.is_paused
        self._show()

    def action_sort(self) -> None:
        self.is_sorted_by_p99 = not self.is_sorted_by_p99
        self._show()

    def action_find(self) -> None:
        box = self.query_one("#filter", Input)
        box.add_class("shown")
        box.disabled = False
        box.focus()

    def action_clear(self) -> None:
        box = self.query_one("#filter", Input)
        box.value = ""
        box.remove_class("shown")
        box.disabled = True
        self.set_focus(None)

    def on_input_changed(self, changed: Input.Changed) -> None:
        self.wanted = changed.value
        self._show()
