"""Writes lines of a log in a thread, so that no log ever holds the event loop.

A pipe that is not read, a terminal that is stopped or a slow disk only fills the queue; when it
is full, lines are dropped and counted. The first line after that tells how many.
"""

import contextlib
import json
import os
import queue
import threading
from pathlib import Path
from typing import Final

from partita.errors import ConfigurationError

QUEUE_LINES_MAX: Final = 10_000
"""Lines that wait to be written; more are dropped."""
BATCH_LINES_MAX: Final = 500
"""Lines that are written at once."""
CLOSE_SECONDS_MAX: Final = 1.0
"""How long closing waits for the last lines."""
STDERR: Final = 2


class LogWriter:
    """One log: standard error, or a file that is opened again on request."""

    def __init__(self, path: Path | None = None, *, as_json: bool = False) -> None:
        self.path = path
        """None: standard error."""
        self.dropped = 0
        """Lines that were not written, because the queue was full or the write failed."""
        self._descriptor = STDERR if path is None else _opened(path)
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._as_json = as_json
        self._must_reopen = False
        self._told_dropped = 0
        self._thread = threading.Thread(target=self._run, name="partita-log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Write one line, without its end, soon; or drop it."""
        if self._lines.qsize() >= QUEUE_LINES_MAX:
            self.dropped += 1
        else:
            self._lines.put(line)

    def reopen(self) -> None:
        """Open the file again before the next line: it was renamed by log rotation."""
        self._must_reopen = True

    def close(self) -> None:
        """Write what waits, for at most CLOSE_SECONDS_MAX."""
        self._lines.put(None)
        self._thread.join(CLOSE_SECONDS_MAX)
        if self.path is not None and not self._thread.is_alive():
            os.close(self._descriptor)

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch = [self._lines.get()]
            with contextlib.suppress(queue.Empty):
                while len(batch) < BATCH_LINES_MAX:
                    batch.append(self._lines.get_nowait())
            is_open = None not in batch
            if self._must_reopen:
                self._reopen()
            self._write_all([line for line in batch if line is not None])

    def _write_all(self, lines: list[str]) -> None:
        dropped = self.dropped
        if dropped > self._told_dropped:
            lines.insert(0, self._notice(dropped - self._told_dropped))
        rest = "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
        try:
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except OSError:
            # A full disk or a closed pipe must not stop the server.
            self.dropped += len(lines)
        else:
            self._told_dropped = dropped

    def _notice(self, count: int) -> str:
        message = f"{count} lines of this log were dropped"
        if not self._as_json:
            return f"partita: {message}"
        return json.dumps({"level": "warning", "message": message, "dropped": count})

    def _reopen(self) -> None:
        self._must_reopen = False
        if self.path is None:
            return
        with contextlib.suppress(ConfigurationError):  # the old file is used further
            replaced, self._descriptor = self._descriptor, _opened(self.path)
            os.close(replaced)


def _opened(path: Path) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o600)
    except OSError as error:
        raise ConfigurationError(
            "Configuration",
            f"The log file {path} cannot be written: {error.strerror or error}.",
            hint="Check the path and its permissions.",
        ) from error
