"""The logs of a serving process: its messages, its requests, its slow requests.

All are written by `LogWriter`, which never holds the event loop.
"""

import logging
import re
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from partita.service.http.request import Request, Response
from partita.service.observing.log_lines import (
    JsonFormatter,
    SlowEntry,
    TextFormatter,
    access_entry,
    slow_entry,
)
from partita.service.observing.log_writer import LogWriter
from partita.service.observing.meter import ServiceMeter
from partita.ticks import Clock

SLOW_ENTRIES_MAX: Final = 200
"""Slow requests that are kept for /api/v1/slow."""

STANDARD_ERROR: Final = Path("-")
"""The name of an access log that is written to standard error."""

_COUNT: Final = re.compile(r"[0-9]{1,9}")

slow_logger = logging.getLogger("partita.slow")


class QueuedLog(logging.Handler):
    """Hands the messages of `logging` to a writer."""

    def __init__(self, writer: LogWriter, *, as_json: bool) -> None:
        super().__init__()
        self._writer = writer
        self.setFormatter(JsonFormatter() if as_json else TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._writer.write(self.format(record))
        except Exception:  # noqa: BLE001 - logging's own rule: a handler does not raise
            self.handleError(record)


class RequestLogs:
    """The request log on standard error, and the access log in a file or there."""

    def __init__(
        self,
        clock: Clock,
        messages: LogWriter,
        *,
        has_text: bool = False,
        access: LogWriter | None = None,
    ) -> None:
        self._clock = clock
        self._messages = messages
        self._has_text = has_text
        self._access = access

    def follow(self, meter: ServiceMeter) -> None:
        """Log the requests of a service."""
        if not self._has_text and self._access is None:
            return
        service = meter.service

        def log(request: Request, response: Response, seconds: float, _outcome: int) -> None:
            entry = access_entry(service, request, response, seconds, self._clock.ticks())
            if self._has_text:
                self._messages.write(entry.as_text())
            if self._access is not None:
                self._access.write(msgspec.json.encode(entry).decode())

        meter.listeners.append(log)


class SlowLog:
    """The last slow requests."""

    def __init__(self, clock: Clock, above_seconds: float) -> None:
        self.entries: deque[SlowEntry] = deque(maxlen=SLOW_ENTRIES_MAX)
        """The oldest first."""
        self._clock = clock
        self._above_seconds = above_seconds

    def follow(self, meter: ServiceMeter) -> None:
        """Keep and log the slow requests of a service."""
        service = meter.service

        def note(request: Request, response: Response, seconds: float, _outcome: int) -> None:
            entry = slow_entry(service, request, response, seconds, self._clock.ticks())
            self.entries.append(entry)
            slow_logger.warning("%s", entry.as_text())

        meter.slow_above_seconds, meter.on_slow = self._above_seconds, note

    async def answer(self, options: Mapping[str, str]) -> object:
        """Answer /api/v1/slow: the newest first."""
        text = options.get("limit", str(SLOW_ENTRIES_MAX))
        limit = int(text) if _COUNT.fullmatch(text) else 0
        if not 1 <= limit <= SLOW_ENTRIES_MAX:
            message = f"limit is a number from 1 to {SLOW_ENTRIES_MAX}"
            raise ValueError(message)
        return {"slow": list(self.entries)[: -limit - 1 : -1]}


class Logs:
    """The writers of a process, and what `logging` hands its messages to."""

    def __init__(self, *, as_json: bool = False, access: Path | None = None) -> None:
        self.messages = LogWriter(as_json=as_json)
        self._writers = [self.messages]
        self.access: LogWriter | None = None
        """None: no access log is written."""
        if access == STANDARD_ERROR:
            self.access = self.messages
        elif access is not None:
            self.access = LogWriter(access, as_json=True)
            self._writers.append(self.access)
        self._queued = QueuedLog(self.messages, as_json=as_json)
        logging.getLogger().addHandler(self._queued)

    def dropped(self) -> int:
        return sum(writer.dropped for writer in self._writers)

    def reopen(self) -> None:
        """Open the files again: log rotation has renamed them."""
        for writer in self._writers:
            writer.reopen()

    def close(self) -> None:
        """Write what waits, for a short time."""
        logging.getLogger().removeHandler(self._queued)
        for writer in self._writers:
            writer.close()
