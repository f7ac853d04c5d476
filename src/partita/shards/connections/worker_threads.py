"""Threads that are kept between fan-outs: starting one costs more than a small query.

Rule: no thread keeps its pool alive. A pool that is closed or collected ends its idle threads, and
a busy one ends after its work.
"""

import threading
import weakref
from collections.abc import Callable

IDLE_THREADS_MAX = 32
"""The most threads that wait for work; those beyond end."""
_IDLE_NAME = "partita-idle-worker"
Work = Callable[[], None]


class WorkerThreads:
    """Starts work in an idle thread, or in a new one: work never waits for other work."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # because the collector may end a fan-out anywhere
        self._idle: list[_Worker] = []
        self._generation = 0
        self.started = 0
        """How many threads were made."""

    @property
    def idle(self) -> int:
        """How many threads wait for work."""
        return len(self._idle)

    def start(self, work: Work, name: str) -> None:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
            if worker is None:
                self.started += 1
                worker = _Worker(weakref.ref(self), self._generation)
        worker.give(work, name)

    def rest(self, worker: "_Worker") -> bool:
        """Take the worker back; False: it is not needed any more."""
        with self._lock:
            if worker.generation != self._generation or len(self._idle) >= IDLE_THREADS_MAX:
                return False
            self._idle.append(worker)
            return True

    def close(self) -> None:
        """End the idle threads and wait for them; the next work starts new ones."""
        with self._lock:
            idle, self._idle = self._idle, []
            self._generation += 1
        for worker in idle:
            worker.give(None, _IDLE_NAME)
        for worker in idle:
            worker.join()

    def __del__(self) -> None:
        for worker in self._idle:
            worker.give(None, _IDLE_NAME)


class _Worker:
    """One thread, and the work that it was given."""

    def __init__(self, pool: "weakref.ref[WorkerThreads]", generation: int) -> None:
        self.generation = generation
        self._pool = pool
        self._work: Work | None = None
        self._given = threading.Lock()
        self._given.acquire()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._is_started = False

    def give(self, work: Work | None, name: str) -> None:
        self._work, self._thread.name = work, name
        self._given.release()
        if not self._is_started:
            self._is_started = True
            self._thread.start()

    def join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._given.acquire()
            work, self._work = self._work, None
            if work is None:
                return
            work()
            del work  # because it would keep a fan-out alive while the thread is idle
            self._thread.name = _IDLE_NAME
            pool = self._pool()
            if pool is None or not pool.rest(self):
                return
            del pool
