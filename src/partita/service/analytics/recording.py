"""What is gathered of the requests of one service of an account, until it is written. No I/O.

A request adds a line to the log of its hour and counts to the metrics of its hour and minute, as
the properties of the service say. `take_…` hands over what is ready to be written.
"""

from typing import Final

import msgspec

from partita.service.accounts.service_properties_xml import Logging, Metrics, ServiceProperties
from partita.service.analytics.log_blobs import (
    LOG_BYTES_MAX,
    LOG_SECONDS_MAX,
    WAITING_BYTES_MAX,
    Log,
    hour_of,
)
from partita.service.analytics.log_lines import DELETE, READ, WRITE, is_logged, log_line, type_of
from partita.service.analytics.metric_rows import (
    BYTES_IN,
    TICKS_PER_HOUR,
    TICKS_PER_MINUTE,
    Counts,
    Period,
    period_key,
)
from partita.service.http.request import Request, Response
from partita.service.observing.outcomes import SUCCESS
from partita.tables.system_tables import hour_table, minute_table

PERIODS_WAITING_MAX: Final = 240
"""Hours and minutes of metrics that wait because the store refuses them; more are dropped."""


class Rows(msgspec.Struct, frozen=True):
    """The counts of a period, to be added to a table."""

    table: str
    partition_key: str
    counts: dict[str, Counts]
    """By row key."""


class _Counting:
    """The current period of the hourly or of the minute metrics."""

    def __init__(self, table: str, length: int) -> None:
        self.table = table
        self.length = length
        self.settings = Metrics()
        self.period: Period | None = None
        """None if the metrics are switched off, or nothing is counted yet."""


class Recording:
    """The log and the metrics of one service of an account."""

    def __init__(self, service: str) -> None:
        self.service = service.lower()
        """In the names of logs: blob, queue or table."""
        self.logging = Logging()
        self.hours = _Counting(hour_table(service), TICKS_PER_HOUR)
        self.minutes = _Counting(minute_table(service), TICKS_PER_MINUTE)
        self.numbers: dict[int, int] = {}
        """By hour: the number of its next log, of the hours that logs were written for last."""
        self.is_on = False
        """Whether requests are recorded."""
        self.dropped_lines = 0
        self._logged: frozenset[str] = frozenset()
        self._log: Log | None = None
        self._full: list[Log] = []
        self._waiting_bytes = 0
        """Of the lines that are not written yet."""
        self._rows: list[Rows] = []

    @property
    def has_retention(self) -> bool:
        """Whether old logs or rows are removed."""
        settings = (self.logging, self.hours.settings, self.minutes.settings)
        return any(each.retention_days is not None for each in settings)

    def follow(self, properties: ServiceProperties, ticks: int) -> bool:
        """Record what the properties of the service say; return whether they have changed."""
        current = (self.logging, self.hours.settings, self.minutes.settings)
        if current == (properties.logging, properties.hour_metrics, properties.minute_metrics):
            return False
        logging = self.logging = properties.logging
        wanted = {READ: logging.read, WRITE: logging.write, DELETE: logging.delete}
        self._logged = frozenset(type_ for type_, is_wanted in wanted.items() if is_wanted)
        metrics = (
            (self.hours, properties.hour_metrics),
            (self.minutes, properties.minute_metrics),
        )
        for counting, settings in metrics:
            if counting.settings == settings:
                continue
            self._end(counting)
            counting.settings = settings
            self._period_at(counting, ticks)
        self.is_on = logging.is_on or any(settings.enabled for _, settings in metrics)
        return True

    # Requests

    def note(
        self,
        request: Request,
        response: Response,
        seconds: float,
        outcome: int,
        *,
        ticks: int,
        now: float,
    ) -> None:
        """Record a request that has ended, at these ticks and this monotonic time."""
        operation, upload = request.observed.operation, request.upload
        for counting in (self.hours, self.minutes):
            period = self._period_at(counting, ticks)
            if period is not None:
                period.add(
                    operation,
                    outcome,
                    seconds=seconds,
                    bytes_in=len(request.body) if upload is None else upload.received_bytes,
                    bytes_out=response.length,
                )
        if not self._logged:
            return
        type_ = type_of(operation, request.method)
        if type_ in self._logged and is_logged(outcome, response.status):
            if self._waiting_bytes >= WAITING_BYTES_MAX:
                self.dropped_lines += 1
                return
            line = log_line(
                request,
                response,
                service=self.service,
                version=self.logging.version,
                outcome=outcome,
                seconds=seconds,
                ended=ticks,
            )
            self._log_at(ticks, now).add(line, type_, ticks)
            self._waiting_bytes += len(line)

    def note_own(self, size: int) -> None:
        """Count a request of Storage Analytics itself."""
        for counting in (self.hours, self.minutes):
            if counting.period is not None:
                counting.period.system[SUCCESS] += 1
                counting.period.system[BYTES_IN] += size

    def _log_at(self, ticks: int, now: float) -> Log:
        log, hour, version = self._log, hour_of(ticks), self.logging.version
        if log is not None and (
            log.size >= LOG_BYTES_MAX or (log.hour, log.version) != (hour, version)
        ):
            self._full.append(log)
            log = None
        if log is None:
            log = self._log = Log(hour, version, now)
        return log

    def _period_at(self, counting: _Counting, ticks: int) -> Period | None:
        period = counting.period
        if counting.settings.enabled and (period is None or not period.covers(ticks)):
            self._end(counting)
            period = counting.period = Period.of(ticks, counting.length)
        return period

    def _end(self, counting: _Counting) -> None:
        """End the current period, also one without requests."""
        period, counting.period = counting.period, None
        if period is not None:
            rows = period.rows(include_apis=counting.settings.include_apis)
            self._rows.append(Rows(counting.table, period_key(period.start), rows))

    # What is ready to be written

    @property
    def has_full_log(self) -> bool:
        return bool(self._full) or (self._log is not None and self._log.size >= LOG_BYTES_MAX)

    def take_logs(self, ticks: int, now: float, *, is_last: bool = False) -> list[Log]:
        """Return the logs that are due: large, old, or of an hour that is over; at the end, all."""
        log = self._log
        if log is not None and (
            is_last
            or log.size >= LOG_BYTES_MAX
            or now - log.begun >= LOG_SECONDS_MAX
            or log.hour != hour_of(ticks)
        ):
            self._full.append(log)
            self._log = None
        logs, self._full = self._full, []
        return logs

    def wrote(self, log: Log) -> None:
        self._waiting_bytes -= log.size

    def keep_log(self, log: Log) -> None:
        """Keep a log that could not be written for the next attempt."""
        self._full.append(log)

    def take_rows(self, ticks: int, *, is_last: bool = False) -> list[Rows]:
        """Return the counts of the periods that are over; at the end, also of the current ones."""
        for counting in (self.hours, self.minutes):
            if is_last:
                self._end(counting)
            else:
                self._period_at(counting, ticks)
        rows, self._rows = self._rows, []
        return rows

    def keep_rows(self, rows: Rows) -> None:
        """Keep counts that could not be written for the next attempt."""
        if len(self._rows) < PERIODS_WAITING_MAX:
            self._rows.append(rows)
