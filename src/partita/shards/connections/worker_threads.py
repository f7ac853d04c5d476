"""Threads that are kept between fan-outs: starting one costs more than a small query.

Rule: a thread does not keep its pool alive. When the pool is closed or garbage-collected, idle
threads end at once and busy ones after their work.
"""

import threading
import weakref
from collections.abc import Callable

IDLE_THREADS_MAX = 32
"""The maximum number of idle threads."""
_IDLE_NAME = "partita-idle-worker"
Work = Callable[[], None]


class WorkerThreads:
    """Starts work in an idle thread or in a new one; work is never queued."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may end a fan-out anywhere
        self._idle: list[_WorkerThread] = []
        self._generation = 0
        self.started = 0
        """The number of threads created so far."""

    @property
    def idle(self) -> int:
        """The number of idle threads."""
        return len(self._idle)

    def start(self, work: Work, name: str) -> None:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
            if worker is None:
                self.started += 1
                worker = _WorkerThread(weakref.ref(self), self._generation)
        worker.give(work, name)

    def rest(self, worker: "_WorkerThread") -> bool:
        """Keep the worker for later work; return False if its thread must end."""
        with self._lock:
            if worker.generation != self._generation or len(self._idle) >= IDLE_THREADS_MAX:
                return False
            self._idle.append(worker)
            return True

    def close(self) -> None:
        """End the idle threads and wait for them; later work starts new threads."""
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


class _WorkerThread:
    """One thread and its current work."""

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
            del work  # it would keep a fan-out alive while the thread is idle
            self._thread.name = _IDLE_NAME
            pool = self._pool()
            if pool is None or not pool.rest(self):
                return
            del pool
