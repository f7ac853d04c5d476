"""The bar of a bulk verb on a terminal, drawn by rich."""

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from partita.cli.kit.progress import FRAMES_PER_SECOND
from partita.cli.kit.terminal import has_colours


def new_bar(label: str) -> Progress:
    """Return a bar with one task; its fields are `entities` and `rate`."""
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Entities(),
        _TimeLeft(),
        TimeElapsedColumn(),
        console=Console(stderr=True, no_color=not has_colours(sys.stderr)),
        transient=True,
        refresh_per_second=FRAMES_PER_SECOND,
    )
    bar.add_task(label, total=None, entities=0, rate=0.0)
    return bar


class _Entities(ProgressColumn):
    def render(self, task: Task) -> Text:
        entities, rate = task.fields["entities"], task.fields["rate"]
        return Text(f"{entities:,} entities, {rate:,.0f}/s")


class _TimeLeft(ProgressColumn):
    """The time left, from the share that is done since the start."""

    def render(self, task: Task) -> Text:
        if not task.total or not task.completed or not task.elapsed:
            return Text("")
        left = task.elapsed * (task.total - task.completed) / task.completed
        minutes, seconds = divmod(round(left), 60)
        hours, minutes = divmod(minutes, 60)
        shown = f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
        return Text(f"{shown} left")
