"""One table per period of time (guide: High volume delete pattern).

Dropping a table is one request; deleting its entities one by one could be millions.

    logins20140731      the entities of 31 July 2014 UTC (day); hour: ...3118, month: 201407

A name is used for one period only: entities older than `keep` periods cannot be written, so that a
dropped table is not created again.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Literal, TypeVar

import msgspec

from partita.errors import (
    DefinitionError,
    LimitExceededError,
    PartitaError,
    TableNotFoundError,
)
from partita.patterns.protocol.calls import (
    CreateTable,
    DeleteTable,
    ListTables,
    Parallel,
    Sleep,
    Steps,
    ask,
)
from partita.patterns.protocol.utc import in_utc, utc_now
from partita.tables import limits
from partita.ticks import Clock

T = TypeVar("T")

PERIODS_MAX = 10_000
"""The maximum number of tables of a series or of a range."""
BEING_DELETED_SECONDS = 10.0
BEING_DELETED_ATTEMPTS_MAX = 12
"""The service reserves the name of a dropped table for at least 40 seconds; wait two minutes."""

Period = Literal["hour", "day", "month"]

_FORMATS: dict[str, str] = {"hour": "%m%d%H", "day": "%m%d", "month": "%m"}
"""The format after the four digits of the year."""
_NAME = re.compile(r"[A-Za-z](?:[A-Za-z0-9]*[A-Za-z])?", re.ASCII)
_DIGITS = {"hour": 10, "day": 8, "month": 6}


class TableSeries(msgspec.Struct, frozen=True):
    """The tables `name` + period; the table of a period is kept for `keep` whole periods after it.

    `ahead` tables are created before their period begins, so that its first writes find them. A
    table is dropped `grace` after its time, so that writes in progress, or writes of a process
    with a slow clock, still find it.
    """

    name: str
    period: Period = "day"
    keep: int = 60
    ahead: int = 1
    grace: timedelta = timedelta(minutes=15)

    def __post_init__(self) -> None:
        if self.period not in _FORMATS:
            raise _undefined(self, 'The period of a series is "hour", "day" or "month".')
        length = len(self.name) + _DIGITS[self.period]
        if not _NAME.fullmatch(self.name) or length > limits.TABLE_NAME_CHARACTERS_MAX:
            # With a digit at the end, `a2` + `0201012` and `a` + `20201012` would be one table.
            raise _undefined(
                self, "The name of a series has letters and digits, with a letter at both ends."
            )
        if not (1 <= self.keep <= PERIODS_MAX and 0 <= self.ahead <= self.keep):
            raise _undefined(self, f"A series keeps 1 to {PERIODS_MAX:,} periods.")

    # -----------------------------------------------------------------------------------------
    # Names

    def table_for(self, moment: datetime | date) -> str:
        """Return the table of a time; a date means its midnight in UTC."""
        return self._name_of(self._index_of(moment))

    def tables_between(
        self, start: datetime | date, end: datetime | date, *, newest_first: bool = False
    ) -> tuple[str, ...]:
        """Return the tables of all times from `start` to `end`, both inclusive."""
        first, last = self._index_of(start), self._index_of(end)
        if last - first >= PERIODS_MAX:
            raise LimitExceededError(
                "TooManyPeriods",
                f"The range has {last - first + 1:,} tables; the limit is {PERIODS_MAX:,}.",
                facts={"series": self.name, "periods_max": PERIODS_MAX},
                hint="Use a shorter range, or a longer period= of the series.",
            )
        names = [self._name_of(index) for index in range(first, last + 1)]
        return tuple(reversed(names) if newest_first else names)

    def kept_tables(self, now: datetime, *, newest_first: bool = True) -> tuple[str, ...]:
        """Return the tables that can be written now: the kept ones and the next ones."""
        present = self._index_of(now)
        names = [
            self._name_of(index)
            for index in range(present - self.keep, present + self.ahead + 1)
            if self._is_possible(index)
        ]
        return tuple(reversed(names) if newest_first else names)

    def start_of(self, table: str) -> datetime | None:
        """Return the start of the period of a table; None if it is not of this series."""
        index = self._find_index(table)
        return None if index is None else self._start_of(index)

    def expired(self, tables: Iterable[str], now: datetime) -> tuple[str, ...]:
        """Return the tables of the series that can be dropped, oldest first.

        Every entity in them is older than `keep` periods and `grace`.
        """
        present = self._index_of(now - self.grace)
        found = [(self._find_index(table), table) for table in tables]
        return tuple(
            table
            for index, table in sorted((i, t) for i, t in found if i is not None)
            if index < present - self.keep
        )

    def check_writable(self, moment: datetime | date, now: datetime) -> str:
        """Return the table for a new entity; raise if the table is dropped or too far ahead."""
        index, present = self._index_of(moment), self._index_of(now)
        if index < present - self.keep:
            raise LimitExceededError(
                "EventTooLate",
                f"The entity belongs to a period more than {self.keep} periods ago, whose table "
                "has been or will be dropped.",
                facts={"series": self.name, "table": self._name_of(index), "keep": self.keep},
                hint="Discard the entity, or raise keep= of the series.",
            )
        if index > present + self.ahead:
            raise LimitExceededError(
                "EventTooEarly",
                f"The entity belongs to a period that begins more than {self.ahead} periods from "
                "now.",
                facts={"series": self.name, "table": self._name_of(index), "ahead": self.ahead},
                hint="Check the clock that set its time, or raise ahead= of the series.",
            )
        return self._name_of(index)

    # -----------------------------------------------------------------------------------------
    # Periods as numbers

    def _index_of(self, moment: datetime | date) -> int:
        if not isinstance(moment, datetime):
            moment = datetime(moment.year, moment.month, moment.day, tzinfo=UTC)
        moment = in_utc(moment, "The time that selects the period")
        if self.period == "month":
            return moment.year * 12 + moment.month - 1
        day = moment.toordinal()
        return day if self.period == "day" else day * 24 + moment.hour

    def _is_possible(self, index: int) -> bool:
        first = self._index_of(date.min)
        return first <= index <= self._index_of(datetime.max.replace(tzinfo=UTC))

    def _start_of(self, index: int) -> datetime:
        if self.period == "month":
            return datetime(index // 12, index % 12 + 1, 1, tzinfo=UTC)
        day, hour = (index, 0) if self.period == "day" else divmod(index, 24)
        return datetime.fromordinal(day).replace(hour=hour, tzinfo=UTC)

    def _name_of(self, index: int) -> str:
        start = self._start_of(index)
        return f"{self.name}{start.year:04d}{start:{_FORMATS[self.period]}}"

    def _find_index(self, table: str) -> int | None:
        digits = table[len(self.name) :]
        is_ours = table[: len(self.name)].lower() == self.name.lower()
        if not is_ours or len(digits) != _DIGITS[self.period] or not re.fullmatch("[0-9]+", digits):
            return None
        try:
            start = datetime.strptime(digits, f"%Y{_FORMATS[self.period]}").replace(tzinfo=UTC)
        except ValueError:
            return None
        return self._index_of(start)

    # -----------------------------------------------------------------------------------------
    # Steps

    def ensure(self, now: datetime) -> Steps[tuple[str, ...]]:
        """Create the current table and the next ones; return those that did not exist."""
        present = self._index_of(now)
        made: list[str] = []
        for index in range(present, present + self.ahead + 1):
            if not self._is_possible(index):
                break
            try:
                is_made = yield from ask(CreateTable(self._name_of(index)))
            except PartitaError as error:
                # A future table can be created by the next call; the current one is needed now.
                if not _is_being_deleted(error) or index == present:
                    raise
                is_made = False
            if is_made:
                made.append(self._name_of(index))
        return tuple(made)

    def tables(self) -> Steps[tuple[str, ...]]:
        """List the existing tables of the series."""
        tables = yield from ask(ListTables(self.name))
        return tuple(table for table in tables if self._find_index(table) is not None)

    def sweep(self, now: datetime) -> Steps[tuple[str, ...]]:
        """Drop the expired tables; return those that existed.

        Can be interrupted and repeated at any time, by several processes at once.
        """
        tables = yield from ask(ListTables(self.name))
        was_there: dict[str, bool] = {}
        for table in self.expired(tables, now):
            was_there[table] = yield from ask(DeleteTable(table))
        return tuple(table for table in was_there if was_there[table])

    def write(
        self, moment: datetime | date, clock: Clock, attempt: Callable[[str], Steps[T]]
    ) -> Steps[T]:
        """Write with `attempt(table)` into the table of a time, and create it if it is missing.

        The age limit is checked again before a table is created, so that a table that was just
        dropped is not created again.
        """
        waits = 0
        is_missing = False
        while True:
            table = self.check_writable(moment, utc_now(clock))
            try:
                if is_missing:
                    yield from ask(CreateTable(table))
                return (yield from attempt(table))
            except TableNotFoundError:
                if is_missing:
                    raise  # this table was just created: another one is missing
                is_missing = True
            except PartitaError as error:
                waits += 1
                if not _is_being_deleted(error) or waits == BEING_DELETED_ATTEMPTS_MAX:
                    raise
                is_missing = True
                yield from ask(Sleep(BEING_DELETED_SECONDS))


def read_each(
    tables: Sequence[str], read: Callable[[str], Steps[T]], *, concurrency: int = 8
) -> Steps[tuple[T, ...]]:
    """Read several tables concurrently and return the answers in order, without missing tables."""
    answers = yield from ask(
        Parallel(tuple(_read_if_there(table, read) for table in tables), concurrency)
    )
    return tuple(found[0] for found in answers if found)


def read_first(
    tables: Sequence[str], read: Callable[..., Steps[Sequence[T]]], count: int
) -> Steps[tuple[T, ...]]:
    """Read one table after another with `read(table, count=...)`, until `count` entities are found.

    With the newest table first and a log tail in each table, these are the latest entities.
    """
    found: list[T] = []
    for table in tables:
        wanted = count - len(found)
        if wanted <= 0:
            break
        for answer in (yield from _read_if_there(table, partial(read, count=wanted))):
            found += answer[:wanted]
    return tuple(found)


def _read_if_there(table: str, read: Callable[[str], Steps[T]]) -> Steps[tuple[T, ...]]:
    try:
        answer = yield from read(table)
    except TableNotFoundError:
        return ()
    except PartitaError as error:
        if not _is_being_deleted(error):
            raise
        return ()
    return (answer,)


def _is_being_deleted(error: PartitaError) -> bool:
    return error.code == "TableBeingDeleted"


def _undefined(series: TableSeries, message: str) -> DefinitionError:
    return DefinitionError(
        "InvalidTableSeries",
        message,
        facts={"series": series.name, "period": series.period, "keep": series.keep},
    )
