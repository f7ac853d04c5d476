"""A tally of work that is done side by side: progress is told of each piece, in order.

Steps that run at once are threads in the synchronous face: without a lock two of them would
count the same number, and a bar would go backwards.
"""

import threading
from collections.abc import Callable

Progress = Callable[[int], object]
"""Called with the number of entities done so far."""


class Tally:
    """How many are done; whoever watches is told one number at a time, each larger."""

    def __init__(self, progress: Progress, done: int = 0) -> None:
        self.done = done
        self._progress = progress
        self._counting = threading.Lock()

    def add(self, count: int = 1) -> None:
        with self._counting:
            self.done += count
            self._progress(self.done)
