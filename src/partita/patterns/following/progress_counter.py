"""Count work that is done in parallel, and report the progress in order.

Parallel steps are threads in the synchronous API: without a lock, two of them could report the same
number or a smaller one later.
"""

import threading
from collections.abc import Callable

Progress = Callable[[int], object]
"""Called with the number of entities done so far."""


class ProgressCounter:
    """The number of finished entities, reported in increasing order."""

    def __init__(self, progress: Progress, done: int = 0) -> None:
        self.done = done
        self._progress = progress
        self._counting = threading.Lock()

    def add(self, count: int = 1) -> None:
        with self._counting:
            self.done += count
            self._progress(self.done)
