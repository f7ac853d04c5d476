"""The one progress bar: on standard error, and only if that is a terminal."""

import sys
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from partita.cli.kit.terminal import has_colours

FRAMES_PER_SECOND = 5


class Bar:
    """A bar with one step at a time; a context manager that removes what was drawn.

    Nothing is drawn if it is hidden, and then only messages are printed. `shows_rate` adds bytes
    per second.
    """

    def __init__(self, label: str, *, is_hidden: bool = False, shows_rate: bool = False) -> None:
        self._label = label
        self._shows_rate = shows_rate
        self._is_hidden = is_hidden or not sys.stderr.isatty()
        self._progress: Progress | None = None
        self._total: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()

    def begin(self, total: int | None, unit: str = "", label: str = "") -> None:
        """Start a step, which has a bar of its own; without a total only the count is drawn."""
        self.close()
        if self._is_hidden:
            return
        self._total = total
        amount: ProgressColumn = DownloadColumn() if unit == "B" else _Amount(unit)
        title = TextColumn("{task.description}" + ("" if total else ":"), markup=False)
        columns: list[ProgressColumn] = [title, BarColumn(), amount] if total else [title, amount]
        if self._shows_rate:
            columns.append(TransferSpeedColumn())
        console = Console(stderr=True, no_color=not has_colours(sys.stderr))
        self._progress = Progress(
            *columns, console=console, transient=True, refresh_per_second=FRAMES_PER_SECOND
        )
        self._progress.add_task(label or self._label, total=total)
        self._progress.start()
        self._progress.refresh()

    def advance(self, step: int) -> None:
        """Add to what is done; the end is not exceeded."""
        if self._progress is not None:
            self.update(min(self._task.completed + step, self._total or sys.maxsize))

    def progress(self, done: int, total: int) -> None:
        """Report progress of which a new total begins a new step."""
        if not self._is_hidden and (self._progress is None or total != self._total):
            self.begin(total)
        self.update(done)

    def step(self, label: str, done: int, total: int | None, unit: str = "B") -> None:
        """Report progress of a named step; a new name begins a new bar."""
        if not self._is_hidden and (self._progress is None or self._task.description != label):
            self.begin(total, unit, label)
        self.update(done, total)

    def update(self, done: float, total: int | None = None) -> None:
        if self._progress is not None:
            self._progress.update(self._task.id, completed=done, total=total)

    def tell(self, text: str) -> None:
        """Print a line on standard error, above the bar if there is one."""
        if self._progress is None:
            print(text, file=sys.stderr)
        else:
            self._progress.console.print(Text(text))

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @property
    def _task(self) -> Task:
        assert self._progress is not None
        return self._progress.tasks[0]


class _Amount(ProgressColumn):
    """How much is done, of how much if that is known, in a unit."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        of = "" if task.total is None else f"/{task.total:,.0f}"
        return Text(f"{task.completed:,.0f}{of} {self._unit}".rstrip())
