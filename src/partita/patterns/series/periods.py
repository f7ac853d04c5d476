"""Entities of one type in one table per period (the guide's high volume delete pattern).

An entity is written to the table of its period. Reads look in the tables of all periods that may
contain the entity; any of them may be missing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from functools import partial
from typing import Any, Generic, TypeVar

from partita.errors import DefinitionError, PartitaError, UsageError
from partita.patterns.operations.bulk import BulkOutcome, Failure, write_all
from partita.patterns.operations.continuations import Position, Slice
from partita.patterns.operations.rate_limit import Rate
from partita.patterns.operations.run_query import Ask, check_allowed, read_slice
from partita.patterns.operations.verbs import check_entity, key_of, save
from partita.patterns.planning.columns import Columns
from partita.patterns.planning.plans import plan_query
from partita.patterns.protocol.calls import Steps
from partita.patterns.protocol.utc import utc_now
from partita.patterns.types.decorators import EntityType
from partita.patterns.types.table_series import TableSeries, read_first
from partita.patterns.writing.context import Context
from partita.patterns.writing.load import find_any

T = TypeVar("T")


class Periods(Generic[T]):
    """A type, its table series, and the field that decides the period of an entity."""

    def __init__(self, model: EntityType[T], series: TableSeries, at: str) -> None:
        field = model.fields.get(at)
        if field is None or field.annotation not in (datetime, date):
            raise DefinitionError(
                "PeriodsRefused",
                f"{model.name}.{at} is not a datetime or date, so it cannot decide the period.",
                hint="Pass the name of a datetime or date field in at=.",
            )
        if not all(each.followers.is_plain for each in model.family()):
            raise DefinitionError(
                "PeriodsRefused",
                f"{model.name} has indexes, derived fields, large or wide values, which are not "
                "removed when the table of a period is dropped.",
                hint="Use a type without them in period tables.",
            )
        model.check_upcasters()
        self.model = model
        self.series = series
        self.at = at

    @property
    def is_newest_first(self) -> bool:
        """Return whether the entities of a partition sort newest first."""
        row = self.model.row
        return row.fields[:1] == (self.at,) and row.is_descending(self.at)

    # -----------------------------------------------------------------------------------------
    # Writing

    def save(self, context: Context, entity: T) -> Steps[T]:
        moment = check_entity(self.model, entity).values(entity)[self.at]
        return self.series.write(
            moment, context.clock, lambda table: save(context, self.model.in_table(table), entity)
        )

    def save_all(
        self,
        context: Context,
        entities: Iterable[T],
        *,
        rate: Rate | None,
        concurrency: int,
        progress: Callable[[int], object],
    ) -> Steps[BulkOutcome]:
        """Save many entities, one period after the other; entities of expired periods fail."""
        places: dict[str, list[tuple[int, T]]] = {}
        moments: dict[str, Any] = {}
        saved: dict[int, T] = {}
        failed: dict[int, Failure] = {}
        for place, entity in enumerate(entities):
            moment = check_entity(self.model, entity).values(entity)[self.at]
            try:
                table = self.series.check_writable(moment, utc_now(context.clock))
            except PartitaError as error:
                failed[place] = Failure(entity, error)
                continue
            places.setdefault(table, []).append((place, entity))
            moments[table] = moment
        for table, members in places.items():
            attempt = partial(
                self._save_in,
                context,
                [entity for _, entity in members],
                rate,
                concurrency,
                progress,
            )
            done = yield from self.series.write(moments[table], context.clock, attempt)
            written, failures = list(done.entities), list(done.failures)
            for place, entity in reversed(members):
                # An object that was passed twice fails the second time.
                if failures and failures[-1].entity is entity:
                    failed[place] = failures.pop()
                else:
                    saved[place] = written.pop()
        return BulkOutcome(
            [saved[place] for place in sorted(saved)], [failed[place] for place in sorted(failed)]
        )

    def _save_in(
        self,
        context: Context,
        entities: Sequence[T],
        rate: Rate | None,
        concurrency: int,
        progress: Callable[[int], object],
        table: str,
    ) -> Steps[BulkOutcome]:
        return write_all(
            context,
            self.model.in_table(table),
            entities,
            "save",
            rate=rate,
            concurrency=concurrency,
            progress=progress,
        )

    # -----------------------------------------------------------------------------------------
    # Reading

    def find(
        self, context: Context, at: datetime | date | None, key: Mapping[str, Any]
    ) -> Steps[T | None]:
        """Read one entity; its moment is only needed if it is not part of the keys."""
        if at is None and self.at not in key:
            raise UsageError(
                "KeyFields",
                f"{self.at!r} is missing, which decides the period of a {self.model.name}.",
                hint="Pass the moment first: get(moment, ...).",
            )
        table = self.series.table_for(key[self.at] if at is None else at)
        read = partial(self._find_in, context, key_of(self.model, key))
        found = yield from read_first([table], read, 1)
        return found[0] if found else None

    def _find_in(self, context: Context, key: Any, table: str, *, count: int) -> Steps[list[T]]:
        entity = yield from find_any(context, self.model.in_table(table), key)
        return [] if entity is None or count < 1 else [entity]

    def latest(self, context: Context, given: Mapping[str, Any], count: int) -> Steps[Sequence[T]]:
        if not self.is_newest_first:
            raise UsageError(
                "NotALogTail",
                f"The row key of {self.model.name} does not begin with a descending {self.at!r}.",
                facts={"type": self.model.name, "row": self.model.row.text},
                hint=f'Begin the row key with it: row="{{{self.at}:desc}}_...".',
            )
        tables = self.series.kept_tables(utc_now(context.clock))
        check_allowed(Ask(plan_query(self.model, given)))
        return read_first(tables, partial(self._first_in, context, given), count)

    def _first_in(
        self, context: Context, given: Mapping[str, Any], table: str, *, count: int
    ) -> Steps[list[T]]:
        query = Ask(plan_query(self.model.in_table(table), given))
        return (yield from read_slice(context, query, Position(), count)).entities

    def scan(
        self,
        context: Context,
        start: datetime | date,
        end: datetime | date,
        given: Mapping[str, Any],
        *,
        is_scan_allowed: bool,
    ) -> "PeriodScan[T]":
        """Start reading the entities between two moments, both included."""
        moment = getattr(Columns(self.model), self.at)
        condition = (moment >= start) & (moment <= end)
        tables = self.series.tables_between(start, end, newest_first=self.is_newest_first)
        queries = [
            Ask(plan_query(self.model.in_table(table), given, condition), is_scan_allowed)
            for table in tables
        ]
        if queries:
            check_allowed(queries[0])
        return PeriodScan(context, queries)


class PeriodScan(Generic[T]):
    """A reader of several tables; it holds one page."""

    def __init__(self, context: Context, queries: Sequence[Ask]) -> None:
        self._context = context
        self._queries = list(reversed(queries))
        self._position = Position()

    def read(self) -> Steps[list[T] | None]:
        """Return the next page that is not empty; None at the end."""
        while self._queries:
            # A missing table, or one dropped between two pages, has no further page.
            pages = yield from read_first([self._queries[-1].plan.table], self._page, 1)
            piece = pages[0] if pages else Slice([])
            if piece.position is None:
                self._queries.pop()
            self._position = piece.position or Position()
            if piece.entities:
                return piece.entities
        return None

    def _page(self, _table: str, *, count: int) -> Steps[list[Slice]]:
        assert count == 1
        query = self._queries[-1]
        return [(yield from read_slice(self._context, query, self._position, None))]
