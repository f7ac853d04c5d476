"""Progress of a bulk verb: entities, rate, and the time left where the end is known."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

from partita.bulk.work.observing import Observer
from partita.ticks import Clock

if TYPE_CHECKING:
    from rich.progress import Progress

_WHOLE = 1000.0


class Meter:
    """Draws on standard error if that is a terminal; a context manager that removes it."""

    def __init__(
        self, label: str, clock: Clock, *, is_hidden: bool = False, total: int | None = None
    ) -> None:
        self._is_hidden = is_hidden or not sys.stderr.isatty()
        self._clock = clock
        self._total = total
        self.entities = 0
        self.started = clock.monotonic()
        self._progress: Progress | None = None
        self._label = label

    def __enter__(self) -> Self:
        self.started = self._clock.monotonic()
        if not self._is_hidden:
            from partita.cli.bulk.bars import new_bar  # noqa: PLC0415 - a third of the start time

            self._progress = new_bar(self._label)
            self._progress.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @property
    def observer(self) -> Observer:
        return Observer(self.advance, self.share, self.tell)

    @property
    def seconds(self) -> float:
        return max(self._clock.monotonic() - self.started, 1e-6)

    def advance(self, entities: int) -> None:
        self.entities += entities
        if self._progress is not None:
            task = self._progress.tasks[0]
            rate = self.entities / self.seconds
            self._progress.update(task.id, entities=self.entities, rate=rate)
            if self._total:
                self.share(self.entities / self._total)

    def share(self, share: float) -> None:
        if self._progress is not None:
            task = self._progress.tasks[0]
            self._progress.update(task.id, total=_WHOLE, completed=min(share, 1.0) * _WHOLE)

    def tell(self, text: str) -> None:
        if self._progress is None:
            print(text, file=sys.stderr)
        else:
            self._progress.console.print(text, markup=False, highlight=False)
