"""A handler of Python's `logging` that writes records to log blobs."""

import logging
from datetime import UTC, datetime
from typing import Protocol

_OWN_LOGGERS = ("azure", "urllib3", "aiohttp", "partita")
"""Writing a log sends requests, which these loggers describe: their records would never end."""


class LineLog(Protocol):
    """A log that accepts lines without waiting."""

    def add(self, text: str | bytes, at: datetime | None = None) -> int: ...


class LogHandler(logging.Handler):
    """Adds each record to a log, as one line; the log writes its lines in the background.

    >>> with db.log_writer(LogPlace("logs", "web")) as log:  # doctest: +SKIP
    ...     logging.getLogger("shop").addHandler(LogHandler(log))
    """

    def __init__(self, log: LineLog, level: int = logging.NOTSET) -> None:
        super().__init__(level)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Add one record. An error is reported as `logging.raiseExceptions` says."""
        if record.name.partition(".")[0] in _OWN_LOGGERS:
            return
        try:
            at = datetime.fromtimestamp(record.created, UTC)
            self._log.add(self.format(record), at)
        except Exception:  # noqa: BLE001 - logging must not fail the program
            self.handleError(record)
