"""The synchronous API: the names of `partita.patterns`, without asyncio.

Generated from aio.py by tools/make_sync.py. Do not edit: change the source instead.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, datetime, timedelta
from functools import partial
from types import TracebackType
from typing import Any, Generic, Literal, TypeVar, get_args, overload

import msgspec

from partita.clock import SystemClock
from partita.errors import UsageError
from partita.patterns.design.explain import explain
from partita.patterns.encryption.keyring import Keyring
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following import rotate_keys as rotating
from partita.patterns.following import worker
from partita.patterns.following.eventual_transactions import EventualTransaction, start_message
from partita.patterns.following.index_lifecycle import Drift
from partita.patterns.following.worker import Report
from partita.patterns.grants.grants import Grant, Issuer, terms_of
from partita.patterns.keys.intervals import starting_with
from partita.patterns.operations import bulk, raw, references, verbs
from partita.patterns.operations.groups import Collected
from partita.patterns.operations.joins import Cache, aim, join, load_many
from partita.patterns.operations.partition_skew import Balance, count_partitions
from partita.patterns.operations.rate_limit import Rate
from partita.patterns.operations.raw import RawEntity
from partita.patterns.operations.references import Reference
from partita.patterns.operations.run_query import (
    Ask,
    Misfits,
    Position,
    check_allowed,
    print_continuation,
    read_each,
    read_page,
    read_slice,
)
from partita.patterns.operations.verbs import key_of
from partita.patterns.planning.columns import Columns, Condition, checked_condition
from partita.patterns.planning.plans import QueryKind, QueryPlan, plan_query
from partita.patterns.ports.connecting import Where, credential_of, open_sync
from partita.patterns.ports.sync_port import SyncPort, run_steps
from partita.patterns.protocol.calls import Continuation, Cost, CreateQueue, PutMessage, Steps, ask
from partita.patterns.protocol.utc import utc_now
from partita.patterns.protocol.values import RowKey, Value
from partita.patterns.scan_warnings import warn_of_scan
from partita.patterns.series.log_blobs import LogBuffering, LogLine, LogReader, LogWriter
from partita.patterns.series.log_names import LogPlace
from partita.patterns.series.periods import Periods
from partita.patterns.single_flight import Turns
from partita.patterns.types import projections
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.types.indexes import AnyIndex, Index, ListIndex
from partita.patterns.types.table_series import TableSeries
from partita.patterns.writing.context import Context, Options
from partita.patterns.writing.load import find_any
from partita.ticks import Clock

T = TypeVar("T")
S = TypeVar("S")

_measured: ContextVar[tuple[Cost, ...]] = ContextVar("measured", default=())


def _ignore(_: int) -> None:
    return


def connect(
    where: Where,
    *,
    keyring: Keyring | None = None,
    direct: bool = False,
    clock: Clock | None = None,
    **options: Any,
) -> "Database":
    """Return a database to be used as a context: a folder, memory, a server, or the cloud.

    `where` is "partita:./folder", "partita::memory:", an account of `partita.open_account`,
    "UseDevelopmentStorage=true", or any connection string of Azure or Cosmos. `direct=True`
    skips the official SDK for accounts in this process. Further options are those of `Options`.

    >>> from partita.patterns import entity
    >>> from partita.patterns.sync import connect
    >>> @entity(table="staff", partition="{dept}", row="{id:06d}")
    ... class Worker:
    ...     dept: str
    ...     id: int
    ...     name: str
    >>> def main() -> str:
    ...     with connect("partita::memory:") as db:
    ...         workers = db.table(Worker)
    ...         db.create_tables()
    ...         workers.save(Worker(dept="Sales", id=7, name="Jun"))
    ...         return workers.get(dept="Sales", id=7).name
    >>> main()
    'Jun'
    """
    unknown = sorted(set(options) - set(Options.__struct_fields__))
    if unknown:
        raise UsageError(
            "UnknownOption",
            f"connect() has no option {unknown[0]!r}.",
            hint=f"It has {', '.join(Options.__struct_fields__)}.",
        )
    return Database(
        where,
        keyring=keyring,
        direct=direct,
        clock=clock or SystemClock(),
        options=Options(**options),
    )


class Page(msgspec.Struct, Generic[T], frozen=True):
    """Some entities of an answer; `continuation` (None: no more) can be stored."""

    entities: list[T]
    continuation: str | None
    cost: Cost


class Database:
    """Tables, queues and blobs of one account, with the types that are used in them."""

    def __init__(
        self,
        where: Where,
        *,
        keyring: Keyring | None,
        direct: bool,
        clock: Clock,
        options: Options,
    ) -> None:
        self._where = where
        self._keyring = keyring
        self._is_direct = direct
        self._clock = clock
        self._options = options
        self._port: SyncPort | None = None
        self._context: Context | None = None
        self._tables: dict[type[Any], Table[Any]] = {}
        self.cost = Cost()
        """Everything that was asked of the services so far."""

    # -- opening and closing

    def open(self) -> "Database":
        """Open what the context manager opens."""
        if self._port is None:
            self._port = open_sync(self._where, direct=self._is_direct)
            before = self._context
            self._context = Context(
                self._clock,
                self._port.capabilities,
                keyring=self._keyring,
                options=self._options,
            )
            self._context.database = self
            if before is not None:  # it was open before: what it knew it still knows
                self._context.transactions.update(before.transactions)
                self._context.series.update(before.series)
                for model in before.models.values():
                    self._context.know(model)
        return self

    def close(self) -> None:
        if self._port is not None:
            port, self._port = self._port, None
            port.close()

    def __enter__(self) -> "Database":
        return self.open()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def context(self) -> Context:
        """What the steps need to know; for those who write steps of their own."""
        if self._context is None:
            raise UsageError(
                "DatabaseNotOpen",
                "The database is not open.",
                hint="Use it as a context: with connect(...) as db.",
            )
        return self._context

    def run(self, steps: Steps[S], cost: Cost | None = None) -> S:
        """Drive steps, and count what they cost."""
        if self._port is None:
            steps.close()
            raise UsageError(
                "DatabaseNotOpen",
                "The database is not open, or was closed.",
                hint="Use it as a context: with connect(...) as db.",
            )
        spent = Cost()
        try:
            return run_steps(steps, self._port, spent)
        finally:
            for each in (self.cost, *_measured.get(), *(() if cost is None else (cost,))):
                each.add(spent)

    @contextmanager
    def measuring(self) -> Generator[Cost, None, None]:
        """Count what is asked of the services inside the context.

        >>> def show(db) -> None:
        ...     with db.measuring() as cost:
        ...         db.table(Worker).get(dept="Sales", id=7)
        ...     print(cost.requests, cost.entities)
        """
        cost = Cost()
        token = _measured.set((*_measured.get(), cost))
        try:
            yield cost
        finally:
            _measured.reset(token)

    # -- types

    def table(self, cls: type[T]) -> "Table[T]":
        """Return the table of an entity class: the same at every call."""
        found = self._tables.get(cls)
        if found is None:
            model = entity_type(cls)
            model.check_upcasters()
            self.context.know(model)
            found = self._tables[cls] = Table(self, model)
        return found

    def mixed(
        self,
        *classes: type[Any],
        keep_unknown: bool = False,
        resolve: raw.Resolve | None = None,
    ) -> "Mixed":
        """Return several types of one table to be read together.

        `keep_unknown` returns what is of none of them, or of a newer version, as raw entities.
        `resolve` is given the raw entities that do not say their type, and returns a class.
        """
        models = [entity_type(cls) for cls in classes]
        raw.check_together(models, resolve)
        for model in models:
            self.context.know(model)
        return Mixed(self, models, keeps_unknown=keep_unknown, resolve=resolve)

    def raw(self, table: str) -> "RawTable":
        """Return a table whose entities have no type here."""
        return RawTable(self, table)

    def periods(self, cls: type[T], series: TableSeries, *, at: str) -> "PeriodTables[T]":
        """Return a type that is kept in a table for each period, by its field `at`."""
        periods = Periods(entity_type(cls), series, at)
        self.context.series.setdefault(periods.model.name, {})[series] = at
        return PeriodTables(self, periods)

    def create_tables(self) -> list[str]:
        """Create what is missing of all tables in use; return the names of those made now."""
        return self.run(lifecycle.create_tables(self.context))

    # -- what follows

    def know(self, transaction: EventualTransaction) -> None:
        """Let workers of this database run an eventually consistent transaction."""
        self.context.transactions[transaction.name] = transaction

    def start(self, transaction: EventualTransaction, /, **arguments: Any) -> None:
        """Start an eventually consistent transaction by a message on the queue."""
        self.know(transaction)
        self.context.capabilities.require_queues("Starting a transaction")
        self.run(_start(self.context, transaction, arguments))

    def drain(self, *, sweep: bool = True) -> Report:
        """Do everything that waits to be done: outbox entries and messages.

        The sweep reads all tables for entries whose hints were lost. What fails does not prevent
        the rest from being done; the first error is raised at the end.
        """
        report = Report()
        self.run(worker.drain(self.context, report, with_sweep=sweep))
        return report

    def sweep(self, *, age: float = 60.0) -> Report:
        """Do outbox entries older than `age` seconds; it scans the tables."""
        report = Report()
        self.run(worker.sweep(self.context, report, age=age))
        return report

    def forget(self, *names: str) -> int:
        """Take what is declared no more out of waiting entries; return how many entries had it.

        The names are those that `EntryUnknown` and `partita patterns status` tell, such as
        `view:Order@totals`. What this program knows is not forgotten. It scans the tables.
        """
        return self.run(worker.forget(self.context, names))

    def work_once(self, queue: str | None = None) -> Report:
        """Take waiting messages once, of one queue or of all, and do them.

        A message that fails does not prevent the others from being done: it is in the report, and
        is tried again when its claim ends. An error of your own functions is raised at the end.
        """
        report = Report()
        queues = self.context.options.queues if queue is None else (queue,)
        self.run(worker.work_queues(self.context, queues, report))
        return report

    def rebuild(self, index: AnyIndex, *, progress: Callable[[int], object] = _ignore) -> int:
        """Bring every stored entity into an index, and let it be read."""
        self.context.know(index.owner)
        return self.run(lifecycle.rebuild(self.context, index, progress))

    def replay(
        self, cls: type[Any], view: str, *, progress: Callable[[int], object] = _ignore
    ) -> int:
        """Show every stored entity of a type to a view; empty first what the view wrote."""
        model = entity_type(cls)
        self.context.know(model)
        return self.run(lifecycle.replay(self.context, model, view, progress))

    def disable(self, index: AnyIndex, *, progress: Callable[[int], object] = _ignore) -> int:
        """Stop an index and remove its rows."""
        self.context.know(index.owner)
        return self.run(lifecycle.disable(self.context, index, progress))

    def verify(self, cls: type[Any], *, progress: Callable[[int], object] = _ignore) -> list[Drift]:
        """Compare the indexes and derived fields of a type with its entities."""
        model = entity_type(cls)
        self.context.know(model)
        return self.run(lifecycle.verify(self.context, model, progress))

    def repair(
        self,
        cls: type[Any],
        drifts: list[Drift],
        *,
        progress: Callable[[int], object] = _ignore,
    ) -> int:
        """Put right what `verify` found."""
        model = entity_type(cls)
        return self.run(lifecycle.repair(self.context, model, drifts, progress))

    def balance(self, cls: type[Any], *, progress: Callable[[int], object] = _ignore) -> Balance:
        """Count the entities of a type by partition, and judge; it reads all keys of its table."""
        return self.run(count_partitions(entity_type(cls), progress))

    # -- references

    def load(self, reference: Reference[S, T], entities: Iterable[S]) -> list[T | None]:
        """Return what each entity refers to, or None; each distinct one is read once."""
        return self.run(references.load_targets(self.context, reference, entities))

    def dangling(
        self,
        reference: Reference[Any, Any],
        *,
        targets: "Database | None" = None,
        progress: Callable[[int], object] = _ignore,
    ) -> list[Drift]:
        """Return the entities that refer to what is not there; it scans their table.

        `targets` is the database of the entities referred to, if they lie in another.
        """
        aim = self if targets is None else targets
        query: Query[Any] = self.table(reference.owner.cls).all().allow_scan()
        if not reference.owner.is_wide:
            query = query.select(*reference.needed_fields)
        found: list[Drift] = []
        continuation, done = None, 0
        while True:
            page = query.page(size=1000, continuation=continuation)
            steps = references.suspects(aim.context, reference, page.entities)
            keys = aim.run(steps)
            owners = self.run(references.still_named(self.context, reference, keys))
            steps = references.suspects(aim.context, reference, owners)
            found += references.drifts(reference, aim.run(steps))
            done += len(page.entities)
            progress(done)
            continuation = page.continuation
            if continuation is None:
                return found

    def collect_blobs(
        self, container: str = "partita-large", *, progress: Callable[[int], object] = _ignore
    ) -> int:
        """Remove blobs of large properties that no entity names."""
        return self.run(lifecycle.collect_blobs(self.context, container, progress))

    def rotate(self, cls: type[Any], *, progress: Callable[[int], object] = _ignore) -> int:
        """Wrap the content keys of a type's entities with the keyring's current key.

        Those in tables of periods are reached once `periods` was called, or by its `rotate`.
        """
        model = entity_type(cls)
        return self.run(rotating.rotate(self.context, model, progress))

    # -- access, logs

    def grant(
        self,
        cls: type[Any],
        /,
        *,
        permissions: str | None = None,
        ttl: timedelta | None = None,
        policy_id: str = "",
        force: bool = False,
        **given: Any,
    ) -> Grant:
        """Return a signature that gives access to the entities with these key fields, no others.

        For reading and for an hour, if nothing else is said. A policy stored with the table may
        say both instead. Keys that are not one range need several signatures: see `grants`.
        """
        terms = terms_of(permissions, ttl, policy_id)
        return self._issuer().grant(entity_type(cls), given, terms, force=force)

    def grants(
        self,
        cls: type[Any],
        /,
        *,
        permissions: str | None = None,
        ttl: timedelta | None = None,
        policy_id: str = "",
        force: bool = False,
        **given: Any,
    ) -> list[Grant]:
        """Return a signature for each range of keys that these key fields stand for."""
        terms = terms_of(permissions, ttl, policy_id)
        return self._issuer().grants(entity_type(cls), given, terms, force=force)

    def _issuer(self) -> Issuer:
        account, key, endpoint = credential_of(self._where)
        return Issuer(account, key, self._clock, endpoint=endpoint)

    def log_writer(self, place: LogPlace, buffering: LogBuffering | None = None) -> "Log":
        """Return a writer of log lines into blobs."""
        return Log(self, LogWriter(place, self._clock, buffering))

    def log_lines(self, place: LogPlace, start: datetime, end: datetime) -> Iterator[LogLine]:
        """Yield the log lines of a time range, in order."""
        scan = LogReader(place).scan(start, end)
        while (lines := self.run(scan.read())) is not None:
            yield from lines


def _start(
    context: Context, transaction: EventualTransaction, arguments: Mapping[str, Any]
) -> Steps[None]:
    text = msgspec.json.encode(start_message(transaction, dict(arguments))).decode()
    queue = context.queue_of(text)
    yield from ask(CreateQueue(queue))
    yield from ask(PutMessage(queue, text))


class Table(Generic[T]):
    """The entities of one type. `c` gives its columns for conditions."""

    def __init__(self, db: Database, model: EntityType[T]) -> None:
        self._db = db
        self._model = model
        self.c: Columns[T] = Columns(model)

    # -- one entity

    def get(self, **key: Any) -> T:
        """Return the entity with these key fields; raises EntityNotFoundError."""
        return self._db.run(verbs.get(self._db.context, self._model, key))

    def get_or_none(self, **key: Any) -> T | None:
        """Return the entity with these key fields, or None."""
        steps = find_any(self._db.context, self._model, key_of(self._model, key))
        return self._db.run(steps)

    def get_many(self, keys: Iterable[Mapping[str, Any]]) -> list[T | None]:
        """Return entities by their key fields, each distinct one read once, several at once."""
        wanted = [key_of(self._model, key) for key in keys]
        found = self._db.run(load_many(self._db.context, self._model, wanted))
        return [found[key] for key in wanted]

    def save(self, entity: T, *, force: bool = False) -> T:
        """Insert a new entity, or replace one that is still as it was loaded.

        Raises EntityExistsError, ETagMismatchError, EntityNotFoundError or
        UniqueViolationError. `force=True` writes whatever is stored.
        """
        return self._db.run(verbs.save(self._db.context, self._model, entity, force=force))

    def upsert(self, entity: T, *, merge: bool | Collection[str] = False) -> T:
        """Write an entity whatever is stored; with `merge` write some fields and keep the rest.

        `merge=True` writes the fields that you set: of an object that was loaded, those that
        changed; of a new one, those that are neither None nor at their default (a pydantic model
        tells which were given). `merge=["text", "stars"]` writes these fields whatever they hold.
        Slots of a series that the object does not have are kept.
        """
        return self._db.run(verbs.upsert(self._db.context, self._model, entity, merge=merge))

    def patch(self, entity: T, /, *, force: bool = False, **changes: Any) -> T:
        """Change some fields of a loaded entity, sending no others."""
        return self._db.run(
            verbs.patch(self._db.context, self._model, entity, changes, force=force)
        )

    def update(self, function: Callable[[T], T], /, **key: Any) -> T:
        """Let a pure function change an entity; it is asked again if somebody was faster."""
        steps = verbs.update_by(self._db.context, self._model, key, function)
        return self._db.run(steps)

    def delete(self, entity: T, *, force: bool = False) -> None:
        """Delete an entity that is still as it was loaded."""
        self._db.run(verbs.delete(self._db.context, self._model, entity, force=force))

    def delete_if_exists(self, **key: Any) -> bool:
        """Delete whatever has these key fields; False if nothing has."""
        return self._db.run(verbs.delete_by(self._db.context, self._model, key))

    def increment(self, entity: T, field: str, slot: int | None = None, *, by: Any = 1) -> Any:
        """Add to a number, or to a slot of a series, and return what it became."""
        return self._db.run(verbs.increment(self._db.context, self._model, entity, field, slot, by))

    def move(self, entity: T, /, **key: Any) -> T:
        """Give a loaded entity other key fields; crash-safe also between partitions."""
        return self._db.run(verbs.move(self._db.context, self._model, entity, key))

    # -- many entities

    def save_all(
        self,
        entities: Iterable[T],
        *,
        max_rate: float | None = None,
        concurrency: int = 8,
        progress: Callable[[int], object] = _ignore,
    ) -> bulk.BulkOutcome:
        """Save many entities in groups; `max_rate` smooths the traffic to so many a second."""
        return self._write_all(entities, "save", max_rate, concurrency, progress)

    def upsert_all(
        self,
        entities: Iterable[T],
        *,
        max_rate: float | None = None,
        concurrency: int = 8,
        progress: Callable[[int], object] = _ignore,
    ) -> bulk.BulkOutcome:
        """Write many entities whatever is stored."""
        return self._write_all(entities, "upsert", max_rate, concurrency, progress)

    def delete_all(
        self,
        entities: Iterable[T],
        *,
        max_rate: float | None = None,
        concurrency: int = 8,
        progress: Callable[[int], object] = _ignore,
    ) -> bulk.BulkOutcome:
        """Delete many loaded entities in groups."""
        return self._write_all(entities, "delete", max_rate, concurrency, progress)

    def _write_all(
        self,
        entities: Iterable[T],
        mode: bulk.Mode,
        max_rate: float | None,
        concurrency: int,
        progress: Callable[[int], object],
    ) -> bulk.BulkOutcome:
        steps = bulk.write_all(
            self._db.context,
            self._model,
            list(entities),
            mode,
            rate=None if max_rate is None else Rate(max_rate),
            concurrency=concurrency,
            progress=progress,
        )
        cost = Cost()
        outcome = self._db.run(steps, cost)
        outcome.cost = cost
        return outcome

    # -- queries

    def partition(self, **given: Any) -> "Partition[T]":
        """Return one partition, by the fields of the partition key."""
        return Partition(self._db, self._model, given)

    def where(self, condition: Condition) -> "Query[T]":
        """Return the query for a condition; `explain()` tells how it would be read."""
        return Query(self._db, self._model, {}, checked_condition(condition))

    def all(self) -> "Query[T]":
        """Return the query for every entity: a table scan, which must be allowed."""
        return Query(self._db, self._model, {}, None)

    def via(self, index: Index[T] | ListIndex[T], *, verify: bool = False) -> "Via[T]":
        """Return the entities as an index sees them; `verify=True` reads each itself as well."""
        known = self._model.all_indexes()
        if index not in known:
            raise UsageError(
                "IndexOfAnother",
                f"{index!r} is no index of {self._model.name}.",
                facts={"type": self._model.name, "indexes": [each.name for each in known]},
                hint="Give what index() or list_index() returned, to the table of the type that "
                "it was declared for.",
            )
        return Via(self._db, self._model, index, verify=verify)

    def partitions(self, givens: Iterable[Mapping[str, Any]], *, limit: int = 8) -> "Partitions[T]":
        """Return several partitions to be read at once, at most `limit` at a time."""
        return Partitions([self.partition(**given) for given in givens], limit)

    def cached(self, ttl: float, *, entries_max: int = 10_000) -> "CachedTable[T]":
        """Return a view of the table that remembers what it read for `ttl` seconds."""
        return CachedTable(self._db, self._model, ttl, entries_max)


class Partition(Generic[T]):
    """The entities of one type in one partition."""

    def __init__(self, db: Database, model: EntityType[T], given: Mapping[str, Any]) -> None:
        unknown = [name for name in given if name not in model.partition.fields]
        if unknown:
            raise UsageError(
                "KeyFields",
                f"{unknown[0]!r} is not in the partition key of {model.name}.",
                hint=f"It is made of {', '.join(model.partition.fields) or 'no fields'}.",
            )
        self.db = self._db = db
        self._model = model
        self._given = dict(given)

    def _query(self, given: Mapping[str, Any], condition: Condition | None = None) -> "Query[T]":
        return Query(self._db, self._model, {**self._given, **given}, condition)

    def range(self, **given: Any) -> "Query[T]":
        """Return the entities whose row key fields are these values, or lie between them.

        The fields are given from the first on; the last may be `between(...)`,
        `at_least(...)`, `starting_with(...)` or another interval.
        """
        return self._query(given)

    def prefix(self, **given: str) -> "Query[T]":
        """Return the entities whose last given field begins with a text."""
        *_, last = given or [None]
        if last is None:
            raise UsageError("KeyFields", "prefix() needs a field.", hint='prefix(last="Ca")')
        return self._query({**given, last: starting_with(given[last])})

    def where(self, condition: Condition) -> "Query[T]":
        return self._query({}, checked_condition(condition))

    def all(self) -> "Query[T]":
        return self._query({})

    def latest(self, count: int) -> "Query[T]":
        """Return the newest `count` entities: the row key begins with `:desc`.

        Where it does not, the first ones are `all().limit(count)`.
        """
        self._db.context.capabilities.require_ordered("latest()")
        verbs.check_newest_first(self._model)
        query: Query[T] = Query(self._db, self._model, self._given, None, is_latest=True)
        return query.limit(count)

    def page(self, *, size: int = 100, continuation: str | None = None) -> Page[T]:
        return self._query({}).page(size=size, continuation=continuation)

    def atomic(self) -> "Group":
        """Return a group for this partition: everything in it happens, or nothing."""
        partition = self._model.partition.format(self._given)
        return Group(self._db, self._model, self._given, partition)

    def __iter__(self) -> Iterator[T]:
        yield from self._query({})


class Query(Generic[T]):
    """A question that was not sent yet. Each method returns another one."""

    def __init__(  # noqa: PLR0913 - what a query is made of
        self,
        db: Database,
        model: EntityType[Any],
        given: Mapping[str, Any],
        condition: Condition | None,
        *,
        via: AnyIndex | None = None,
        is_scan_allowed: bool = False,
        selected: tuple[str, ...] | None = None,
        make: Callable[[dict[str, Any]], Any] | None = None,
        count_max: int | None = None,
        verify: bool = False,
        misfits: Misfits = "raise",
        is_latest: bool = False,
    ) -> None:
        self._db = db
        self._model = model
        self._given = given
        self._condition = condition
        self._via = via
        self._is_scan_allowed = is_scan_allowed
        self._selected = selected
        self._make = make
        self._count_max = count_max
        self._verify = verify
        self._misfits = misfits
        self._is_latest = is_latest
        self.cost = Cost()
        """What this query has cost so far."""

    def _with(self, **changes: Any) -> Any:
        kept: dict[str, Any] = {
            "condition": self._condition,
            "via": self._via,
            "is_scan_allowed": self._is_scan_allowed,
            "selected": self._selected,
            "make": self._make,
            "count_max": self._count_max,
            "verify": self._verify,
            "misfits": self._misfits,
            "is_latest": self._is_latest,
        }
        return Query(self._db, self._model, self._given, **{**kept, **changes})

    @property
    def plan(self) -> QueryPlan:
        """How the query is read."""
        return plan_query(self._model, self._given, self._condition, via=self._via)

    def explain(self) -> str:
        """Say how the query is read, and what would be better."""
        return explain(
            self.plan,
            is_allowed=self._may_scan,
            limit=self._count_max,
            is_latest=self._is_latest,
        )

    @property
    def _may_scan(self) -> bool:
        return self._is_scan_allowed or self._db.context.options.scans != "refuse"

    def where(self, condition: Condition) -> "Query[T]":
        condition = checked_condition(condition)
        joined = condition if self._condition is None else self._condition & condition
        query: Query[T] = self._with(condition=joined)
        return query

    def limit(self, count: int) -> "Query[T]":
        """Stop after so many entities."""
        if count < 0:
            raise UsageError("InvalidLimit", "A limit is not negative.", facts={"limit": count})
        query: Query[T] = self._with(count_max=count)
        return query

    def allow_scan(self) -> "Query[T]":
        """Say that reading a whole table is meant."""
        query: Query[T] = self._with(is_scan_allowed=True)
        return query

    @overload
    def misfits(self, policy: Literal["raise", "skip"], /) -> "Query[T]": ...
    @overload
    def misfits(self, policy: Literal["raw"], /) -> "Query[T | RawEntity]": ...
    def misfits(self, policy: Misfits, /) -> Any:
        """Choose what becomes of stored entities whose keys do not fit the type's templates.

        "raise" is the default: InvalidKeyError, code KeyNotOfTemplate. "skip" leaves them out;
        "raw" returns each as a RawEntity, in its place in the order of keys.
        """
        if policy not in get_args(Misfits):
            raise UsageError(
                "UnknownOption",
                f"misfits() does not take {policy!r}.",
                hint='Say misfits("raise"), misfits("skip") or misfits("raw").',
            )
        return self._with(misfits=policy)

    @overload
    def select(self, fields: type[S], /) -> "Query[S]": ...
    @overload
    def select(self, fields: str, /, *more: str) -> "Query[projections.Partial[T]]": ...
    def select(self, fields: Any, /, *more: str) -> Any:
        """Read only some fields: by name, or those of a smaller class."""
        if isinstance(fields, str):
            return self._with(selected=self._checked((fields, *more)), make=None)
        names = projections.fields_of(fields)
        return self._with(selected=self._checked(names), make=lambda values: fields(**values))

    def _checked(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise UsageError(
                "NotSelectable",
                "The class that was given to select() declares no fields.",
                hint="Annotate those that it has, as those of the entity are called.",
            )
        for name in names:
            field = self._model.fields.get(name)
            if field is None or field.is_in_blob:
                raise UsageError(
                    "NotSelectable",
                    f"{self._model.name} has no field {name!r} that can be selected.",
                    hint=f"It has {', '.join(self._model.fields)}; large values are read whole.",
                )
        return names

    def request(self) -> Ask:
        """Return the query as it is performed, for steps of one's own."""
        plan = self.plan
        is_warned = plan.is_refused and self._db.context.options.scans == "warn"
        if is_warned and not self._is_scan_allowed:
            warn_of_scan(self.explain())
        return Ask(plan, self._may_scan, self._selected, self._verify, self._make, self._misfits)

    def page(self, *, size: int = 100, continuation: str | None = None) -> Page[T]:
        """Return up to `size` entities, and where the next page starts."""
        if size < 1:
            raise UsageError("InvalidPageSize", "A page has at least one entity.")
        query = self.request()
        cost = Cost()
        steps = read_page(self._db.context, query, continuation, size, self._count_max)
        found = self._db.run(steps, cost)
        self.cost.add(cost)
        return Page(found.entities, print_continuation(query, found.position), cost)

    def __iter__(self) -> Iterator[T]:
        query = self.request()
        check_allowed(query)
        position: Position | None = Position()
        left = self._count_max
        # What is decided here is rare in small pages: then as many are read as a page holds.
        is_counted = query.plan.client is None
        while position is not None and (left is None or left > 0):
            steps = read_slice(self._db.context, query, position, left if is_counted else None)
            found = self._db.run(steps, self.cost)
            yield from found.entities[:left]
            position = found.position
            left = None if left is None else left - len(found.entities)

    def list(self) -> list[T]:
        """Return all entities of the answer."""
        return list(self)

    def first(self) -> T | None:
        """Return the first entity, or None."""
        found = self.limit(1).list()
        return found[0] if found else None

    def count(self) -> int:
        """Count the entities by reading their keys: those of the index, where one is asked.

        An index is believed unless it is asked with `verify=True`.
        """
        query: Query[Any] = self._with(selected=self._model.key_fields[:1], make=None)
        return len([None for _ in query])

    def delete(
        self, *, max_rate: float | None = None, progress: Callable[[int], object] = _ignore
    ) -> bulk.BulkOutcome:
        """Delete what the query finds, in groups, page by page."""
        outcome = bulk.BulkOutcome()
        cost = outcome.cost
        position: Position | None = Position()
        query = self.request()
        left = self._count_max
        rate = None if max_rate is None else Rate(max_rate)

        def count(done: int, before: int = 0) -> None:
            progress(before + done)

        while position is not None and (left is None or left > 0):
            found = self._db.run(read_slice(self._db.context, query, position, left), cost)
            entities = found.entities[:left]
            left = None if left is None else left - len(entities)
            steps = bulk.write_all(
                self._db.context,
                self._model,
                entities,
                "delete",
                rate=rate,
                concurrency=8,
                progress=partial(count, before=len(outcome.entities) + len(outcome.failures)),
            )
            done = self._db.run(steps, cost)
            outcome.entities += done.entities
            outcome.failures += done.failures
            position = found.position
        self.cost.add(cost)
        return outcome


class Via(Generic[T]):
    """Entities as an index sees them."""

    def __init__(
        self, db: Database, model: EntityType[T], index: AnyIndex, *, verify: bool
    ) -> None:
        self._db = db
        self._model = model
        self._index = index
        self._verify = verify

    def range(self, **given: Any) -> Query[T]:
        """Return the entities with these fields of the index's keys, or between them."""
        return Query(self._db, self._model, given, None, via=self._index, verify=self._verify)

    def prefix(self, **given: str) -> Query[T]:
        """Return the entities whose last given field begins with a text."""
        *_, last = given or [None]
        if last is None:
            raise UsageError("KeyFields", "prefix() needs a field.", hint='prefix(last="Ca")')
        return self.range(**{**given, last: starting_with(given[last])})

    def where(self, condition: Condition) -> Query[T]:
        return self.range().where(condition)

    def all(self) -> Query[T]:
        return self.range()

    def get_or_none(self, **given: Any) -> T | None:
        """Return the entity that a point of the index stands for."""
        query = self.range(**given)
        if query.plan.kind is not QueryKind.POINT or isinstance(self._index, ListIndex):
            raise UsageError(
                "KeyFields",
                f"get() needs every field of the index's keys: "
                f"{', '.join(self._index.key_fields)}.",
                hint="Use range(...) for more than one entity.",
            )
        return query.first()

    def get(self, **given: Any) -> T:
        entity = self.get_or_none(**given)
        if entity is None:
            key = RowKey(self._index.partition.format(given), self._index.row.format(given))
            raise verbs.absent(self._model, key)
        return entity


class Partitions(Generic[T]):
    """Several partitions, read at once."""

    def __init__(self, members: Sequence[Partition[T]], limit: int) -> None:
        self._members = members
        self._limit = limit
        self.cost = Cost()
        """What reading them has cost so far."""

    def list(self) -> list[list[T]]:
        """Return the entities of each partition, in the order in which they were given.

        The first error stops the others.
        """
        if not self._members:
            return []
        db = self._members[0].db
        queries = [member.all().request() for member in self._members]
        return db.run(read_each(db.context, queries, self._limit), self.cost)


class Group:
    """Changes that are sent together when the context ends; nothing is sent if it raises."""

    def __init__(
        self,
        db: Database,
        model: EntityType[Any],
        given: Mapping[str, Any],
        partition: str,
    ) -> None:
        self._db = db
        self._model = model
        self._given = given
        self._collected = Collected(db.context, model, partition)
        self._is_over = False
        self.entities: list[Any] = []
        """The saved entities, after the group was committed."""
        self.cost = Cost()
        """What it took to commit the group."""

    def save(self, entity: Any, *, force: bool = False) -> None:
        """Insert a new entity, or replace one that is still as it was loaded.

        `force` writes it whatever is stored, as `upsert` does.
        """
        if force:
            self._open().upsert(entity, merge=False)
        else:
            self._open().save(entity)

    def upsert(self, entity: Any, *, merge: bool | Collection[str] = False) -> None:
        """Write an entity whatever is stored; `merge` as `upsert` of the table has it."""
        self._open().upsert(entity, merge=merge)

    def patch(self, entity: Any, /, **changes: Any) -> None:
        """Change some fields of an entity that is still as it was loaded, sending no others.

        The changed object is in `entities` when the group was committed.
        """
        self._open().patch(entity, changes)

    def delete(self, entity: Any) -> None:
        """Delete an entity that is still as it was loaded."""
        self._open().delete(entity)

    def delete_if_exists(self, cls: type[Any] | None = None, /, **key: Any) -> None:
        """Delete by key; the fields of the partition are known. `cls` names another type."""
        model = self._model if cls is None else entity_type(cls)
        known = self._given if model is self._model else {}
        self._open().remove(model, key_of(model, {**known, **key}))

    def start(self, transaction: EventualTransaction, /, **arguments: Any) -> None:
        """Start an eventually consistent transaction if the group is committed."""
        self._db.know(transaction)
        self._open().start(transaction, arguments)

    def _open(self) -> Collected:
        if self._is_over:
            raise UsageError(
                "GroupEnded",
                "The group has ended: what is put into it now would never be sent.",
                hint="Put everything into it before the block ends, or make another group.",
            )
        return self._collected

    def __enter__(self) -> "Group":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        collected, self._is_over = self._open(), True
        if kind is None:
            self.entities = self._db.run(collected.commit(), self.cost)


class CachedTable(Generic[T]):
    """Entities that are remembered for a while, for joins in the client."""

    def __init__(self, db: Database, model: EntityType[T], ttl: float, entries_max: int) -> None:
        self._db = db
        self._model = model
        self._cache = Cache(db.context.clock, ttl, entries_max)
        self._turns = Turns()

    def get(self, **key: Any) -> T:
        """Return the entity with these key fields; raises EntityNotFoundError."""
        entity = self.get_or_none(**key)
        if entity is None:
            raise verbs.absent(self._model, key_of(self._model, key))
        return entity

    def get_or_none(self, **key: Any) -> T | None:
        """Return the entity with these key fields, or None; that is remembered as well."""
        wanted = key_of(self._model, key)
        entity: T | None
        if (known := self._cache.find(wanted)) is not None:
            entity = known.entity
        else:
            with self._turns.of([wanted]):
                steps = load_many(self._db.context, self._model, [wanted], self._cache)
                entity = self._db.run(steps)[wanted]
        return entity

    def save(self, entity: T) -> T:
        """Save an entity, and remember it instead of what was known."""
        asked_at = self._cache.now()
        verbs.check_entity(self._model, entity)
        with self._cache.doubting(self._model.key(self._model.values(entity))):
            saved = self._db.run(verbs.save(self._db.context, self._model, entity))
        self._cache.put(self._model.key(self._model.values(saved)), saved, asked_at)
        result: T = saved
        return result

    def delete(self, entity: T) -> None:
        """Delete an entity, and remember that it is gone."""
        asked_at = self._cache.now()
        verbs.check_entity(self._model, entity)
        key = self._model.key(self._model.values(entity))
        with self._cache.doubting(key):
            self._db.run(verbs.delete(self._db.context, self._model, entity))
        self._cache.put(key, None, asked_at)

    def join(
        self, left: Iterable[S], on: Callable[[S], Mapping[str, Any] | None]
    ) -> list[tuple[S, T | None]]:
        """Pair each of `left` with the entity whose key fields `on` returns."""
        aimed = aim(left, self._model, on)
        keys = [key for _, key in aimed if key is not None]
        with self._turns.of(self._cache.missing(keys)):
            return self._db.run(join(self._db.context, aimed, self._model, self._cache))


class Mixed:
    """Several types of one table."""

    def __init__(
        self,
        db: Database,
        models: Sequence[EntityType[Any]],
        *,
        keeps_unknown: bool,
        resolve: raw.Resolve | None,
    ) -> None:
        self._db = db
        self._models = models
        self._keeps_unknown = keeps_unknown
        self._resolve = resolve

    def partition(self, partition_key: str | None = None, /, **given: Any) -> Iterator[Any]:
        """Yield the entities of a partition, each as its own type, in the order of row keys.

        It is named by the fields of the partition key of one of the types, or by its text.
        """
        partition = raw.partition_of(self._models, partition_key, given)
        continuation: Continuation | None = None
        while True:
            found = self._db.run(
                raw.read_mixed(
                    self._db.context,
                    self._models,
                    partition,
                    continuation,
                    keeps_unknown=self._keeps_unknown,
                    resolve=self._resolve,
                )
            )
            yield from found.entities
            continuation = found.continuation
            if continuation is None:
                return


class RawTable:
    """A table whose entities are property bags."""

    def __init__(self, db: Database, name: str) -> None:
        self._db = db
        self._name = name

    def get(self, partition_key: str, row_key: str) -> RawEntity:
        return self._db.run(raw.get_raw(self._name, RowKey(partition_key, row_key)))

    def save(self, entity: RawEntity) -> RawEntity:
        """Insert an entity without etag, or replace the one with that etag."""
        return self._db.run(raw.save_raw(self._name, entity))

    def patch(self, entity: RawEntity, changes: Mapping[str, Value]) -> RawEntity:
        """Merge properties that the entity has already."""
        return self._db.run(raw.patch_raw(self._name, entity, changes))

    def delete(self, entity: RawEntity) -> None:
        self._db.run(raw.delete_raw(self._name, entity))

    def query(self, filter_text: str = "") -> Iterator[RawEntity]:
        """Yield the entities that a `$filter` selects."""
        continuation: Continuation | None = None
        while True:
            found = self._db.run(raw.query_raw(self._name, filter_text, continuation))
            yield from found.entities
            continuation = found.continuation
            if continuation is None:
                return


class PeriodTables(Generic[T]):
    """Entities in a table for each period: old ones go by dropping tables."""

    def __init__(self, db: Database, periods: Periods[T]) -> None:
        self._db = db
        self._periods = periods

    # -- tables

    def ensure(self) -> tuple[str, ...]:
        """Make the table of the present period, and the next; return those made now."""
        return self._db.run(self._periods.series.ensure(utc_now(self._db.context.clock)))

    def sweep(self) -> tuple[str, ...]:
        """Drop the tables of periods that are not kept any more; return their names."""
        return self._db.run(self._periods.series.sweep(utc_now(self._db.context.clock)))

    def rotate(self, *, progress: Callable[[int], object] = _ignore) -> int:
        """Wrap the content keys in the tables of all periods with the keyring's current key."""
        steps = rotating.rotate_series(self._db.context, self._periods.series, progress)
        return self._db.run(steps)

    def table(self, at: datetime | date, /) -> Table[T]:
        """Return the table of one period, by a moment in it, for every verb and query."""
        model = self._periods.model.in_table(self._periods.series.table_for(at))
        return Table(self._db, model)

    # -- entities

    def save(self, entity: T) -> T:
        """Save an entity into the table of its moment, which is made if it is missing."""
        return self._db.run(self._periods.save(self._db.context, entity))

    def save_all(
        self,
        entities: Iterable[T],
        *,
        max_rate: float | None = None,
        concurrency: int = 8,
        progress: Callable[[int], object] = _ignore,
    ) -> bulk.BulkOutcome:
        """Save many entities in groups, period after period."""
        steps = self._periods.save_all(
            self._db.context,
            entities,
            rate=None if max_rate is None else Rate(max_rate),
            concurrency=concurrency,
            progress=progress,
        )
        cost = Cost()
        outcome = self._db.run(steps, cost)
        outcome.cost = cost
        return outcome

    def get(self, at: datetime | date | None = None, /, **key: Any) -> T:
        """Return the entity with these key fields; raises EntityNotFoundError.

        Its moment is given first where it is not in the keys.
        """
        entity = self.get_or_none(at, **key)
        if entity is None:
            raise verbs.absent(self._periods.model, key_of(self._periods.model, key))
        return entity

    def get_or_none(self, at: datetime | date | None = None, /, **key: Any) -> T | None:
        """Return the entity with these key fields, or None."""
        return self._db.run(self._periods.find(self._db.context, at, key))

    def latest(self, count: int, **given: Any) -> list[T]:
        """Return the newest `count` entities of a partition, over all periods.

        One request a period, until there are enough; the row key begins with `:desc`.
        """
        self._db.context.capabilities.require_ordered("latest()")
        return list(self._db.run(self._periods.latest(self._db.context, given, count)))

    def between(
        self,
        start: datetime | date,
        end: datetime | date,
        *,
        allow_scan: bool = False,
        **given: Any,
    ) -> Iterator[T]:
        """Yield the entities from `start` to `end`, both inside, that have these key fields.

        One request a period, at least, and in the order of periods that the row keys have: the
        newest first with `:desc`. Without the whole partition key it must be allowed to scan.
        """
        scan = self._periods.scan(self._db.context, start, end, given, is_scan_allowed=allow_scan)
        while (entities := self._db.run(scan.read())) is not None:
            yield from entities


class Log:
    """Log lines on their way into blobs. Close it, or use it as a context."""

    def __init__(self, db: Database, writer: LogWriter) -> None:
        self._db = db
        self._writer = writer

    def append(self, text: str | bytes, at: datetime | None = None) -> int:
        """Append a line and return its ticket; it is durable once `acknowledged` reaches it."""
        return self._db.run(self._writer.append(text, at))

    def flush(self) -> int:
        """Make everything durable that was appended."""
        return self._db.run(self._writer.flush())

    @property
    def acknowledged(self) -> int:
        return self._writer.acknowledged

    def close(self) -> None:
        self._db.run(self._writer.close())

    def __enter__(self) -> "Log":
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()
