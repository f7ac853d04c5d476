"""Functions that run again and again beside the program, in tasks or in threads.

The workers of a database in the same process and the timed flush of a log use them. A turn returns
the seconds to wait before the next one; there is at least one turn, and `stop` ends the wait, but
never a turn.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable


class AsyncLoops:
    """Loops in tasks of the running event loop."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, turn: Callable[[], Awaitable[float]]) -> None:
        """Run turns of a function until `stop`."""
        self._tasks.append(asyncio.create_task(self._run(turn), name=self._name))

    async def _run(self, turn: Callable[[], Awaitable[float]]) -> None:
        while True:
            seconds = await turn()
            try:
                async with asyncio.timeout(seconds):
                    await self._stopping.wait()
            except TimeoutError:
                continue
            return

    async def stop(self) -> None:
        """Wait for the turns in progress; raise the first error of a turn."""
        self._stopping.set()
        tasks, self._tasks = self._tasks, []
        await asyncio.gather(*tasks)


class ThreadLoops:
    """Loops in threads, which do not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def start(self, turn: Callable[[], float]) -> None:
        """Run turns of a function until `stop`."""
        thread = threading.Thread(target=self._run, args=(turn,), name=self._name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, turn: Callable[[], float]) -> None:
        try:
            while not self._stopping.wait(turn()):
                pass
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self._errors.append(error)

    def stop(self) -> None:
        """Wait for the turns in progress; raise the first error of a turn."""
        self._stopping.set()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
