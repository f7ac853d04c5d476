"""The synchronous API: the names of `partita.patterns`, without asyncio.

Generated from aio.py by tools/make_sync.py. Do not edit: change the source instead.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    get_args,
    overload,
)

import msgspec

from partita.clock import SystemClock
from partita.errors import UnavailableError, UsageError
from partita.patterns.adoption.adopt import Adoption, adopt
from partita.patterns.adoption.sampling import SAMPLE_ROWS, sample_rows
from partita.patterns.background import ThreadLoops
from partita.patterns.design.explain import explain
from partita.patterns.encryption.keyring import Keyring
from partita.patterns.fields.large_values import LargeValue
from partita.patterns.fields.naming import did_you_mean
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following import rotate_keys as rotating
from partita.patterns.following import worker
from partita.patterns.following.eventual_transactions import (
    EventualTransaction,
    NamedSteps,
    Transaction,
    start_message,
)
from partita.patterns.following.index_lifecycle import Drift
from partita.patterns.following.worker import Report
from partita.patterns.grants.blob_urls import signed_url
from partita.patterns.grants.granted_ranges import partitions_between
from partita.patterns.grants.grants import TTL_DEFAULT, Grant, Issuer, check_policies, terms_of
from partita.patterns.keys.intervals import starting_with
from partita.patterns.operations import bulk, large_fields, mixed, raw, references, verbs, versions
from partita.patterns.operations.continuations import (
    Position,
    Reader,
    print_continuation,
    read_page,
)
from partita.patterns.operations.groups import Collected
from partita.patterns.operations.joins import Cache, aim, join, load_many, preload
from partita.patterns.operations.mixed import Resolve
from partita.patterns.operations.partition_skew import Balance, count_partitions
from partita.patterns.operations.rate_limit import Rate
from partita.patterns.operations.raw import RawEntity
from partita.patterns.operations.references import Reference
from partita.patterns.operations.run_query import (
    Ask,
    Misfits,
    QueryTerms,
    read_each,
    read_slice,
    reader_of,
)
from partita.patterns.operations.verbs import key_of
from partita.patterns.planning.columns import Columns, Condition
from partita.patterns.planning.plans import QueryKind, QueryPlan, plan_query
from partita.patterns.planning.predicates import (
    Predicate,
    chosen_field,
    condition_of,
    key_condition,
    key_values,
    projection_of,
)
from partita.patterns.ports.connecting import Where, credential_of, open_sync
from partita.patterns.ports.sync_port import SyncPort, run_steps
from partita.patterns.protocol.calls import (
    Cost,
    CreateQueue,
    GetPolicies,
    PutMessage,
    SetPolicies,
    Steps,
    TablePolicy,
    ask,
)
from partita.patterns.protocol.utc import utc_now
from partita.patterns.protocol.values import RowKey, Value
from partita.patterns.scan_warnings import warn_of_scan
from partita.patterns.series.log_blobs import LogBuffering, LogLine, LogReader, LogWriter
from partita.patterns.series.log_names import LogPlace
from partita.patterns.series.periods import Periods
from partita.patterns.single_flight import KeyLocks
from partita.patterns.types import projections
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.types.indexes import AnyIndex, Index, ListIndex
from partita.patterns.types.key_classes import check_key_class
from partita.patterns.types.table_series import TableSeries
from partita.patterns.writing.chunks import Download
from partita.patterns.writing.context import Context, Options
from partita.patterns.writing.load import find_any
from partita.ticks import Clock

T = TypeVar("T")
S = TypeVar("S")
P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
N = TypeVar("N", int, float, Decimal, timedelta)

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
    """Return a database, to be used as a context manager.

    `where` is a folder ("partita:./folder"), memory ("partita::memory:"), an account from
    `partita.open_account`, the local emulator ("UseDevelopmentStorage=true"), or any connection
    string of Azure Storage or Azure Cosmos DB. `direct=True` bypasses the official SDK for accounts
    in this process. Further options are the fields of `Options`.

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
            hint=f"Use one of: {', '.join(Options.__struct_fields__)}.",
        )
    return Database(
        where,
        keyring=keyring,
        direct=direct,
        clock=clock or SystemClock(),
        options=Options(**options),
    )


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of entities; `continuation` can be stored, and is None on the last page."""

    entities: list[T]
    continuation: str | None
    cost: Cost


class Database:
    """The tables, queues and blobs of one account, and the entity types that are stored there."""

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
        """The cost of all requests so far."""

    # -- opening and closing

    def open(self) -> "Database":
        """Open the database and return it, as entering the context manager does."""
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
            if before is not None:  # reopened: keep the registered types
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

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def context(self) -> Context:
        """What steps need: clock, capabilities, keys, types. For code that writes its own steps."""
        if self._context is None:
            raise _not_open()
        return self._context

    def run(self, steps: Steps[S], cost: Cost | None = None) -> S:
        """Run steps and return their result; add their cost to `cost` and to the database's."""
        if self._port is None:
            steps.close()
            raise _not_open()
        spent = Cost()
        try:
            return run_steps(steps, self._port, spent)
        finally:
            for each in (self.cost, *_measured.get(), *(() if cost is None else (cost,))):
                each.add(spent)

    @contextmanager
    def measuring(self) -> Generator[Cost, None, None]:
        """Count the requests that are made inside the context.

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

    @overload
    def table(self, cls: type[T]) -> "Table[T]": ...
    @overload
    def table(self, cls: type[T], *, key: Callable[P, object]) -> "KeyedTable[T, P]": ...
    def table(self, cls: type[T], *, key: Callable[..., object] | None = None) -> "Table[T]":
        """Return the table of an entity class; always the same object.

        `key` is a class that declares the key fields, such as a TypedDict: with it, a type checker
        checks the key arguments of `get` and the other methods.
        """
        if key is not None:
            check_key_class(entity_type(cls), key)
        found = self._tables.get(cls)
        if found is None:
            model = entity_type(cls)
            model.check_upcasters()
            self.context.know(model)
            found = self._tables[cls] = KeyedTable(self, model)
        return found

    @overload
    def mixed(
        self, one: type[A], two: type[B], /, *, resolve: Resolve | None = ...
    ) -> "Mixed[A | B]": ...
    @overload
    def mixed(
        self, one: type[A], two: type[B], three: type[C], /, *, resolve: Resolve | None = ...
    ) -> "Mixed[A | B | C]": ...
    @overload
    def mixed(
        self,
        one: type[A],
        two: type[B],
        three: type[C],
        four: type[D],
        /,
        *,
        resolve: Resolve | None = ...,
    ) -> "Mixed[A | B | C | D]": ...
    @overload
    def mixed(
        self,
        *classes: type[Any],
        keep_unknown: bool = ...,
        resolve: Resolve | None = ...,
    ) -> "Mixed[Any]": ...
    def mixed(
        self,
        *classes: type[Any],
        keep_unknown: bool = False,
        resolve: Resolve | None = None,
    ) -> "Mixed[Any]":
        """Return several types of one table, to be read together.

        With `keep_unknown`, entities of other types or of newer versions are returned as raw
        entities. `resolve` is called for raw entities without a type name, and returns a class.
        """
        models = tuple(entity_type(cls) for cls in classes)
        mixed.check_together(models, resolve)
        for model in models:
            self.context.know(model)
        return Mixed(self, mixed.MixedTypes(models, keep_unknown, resolve))

    def raw(self, table: str) -> "RawTable":
        """Return a table for entities without a declared type."""
        return RawTable(self, table)

    def adopt(
        self,
        table: str,
        *,
        rows: int = SAMPLE_ROWS,
        report: Callable[[int], object] = lambda _: None,
    ) -> Adoption:
        """Return entity classes for a table that another program wrote, from some of its rows.

        `report` is called with the number of rows that were read so far.
        """
        found = self.run(sample_rows(table, rows, report=report))
        return adopt(table, found, self.context.sealing.clock)

    def periods(self, cls: type[T], series: TableSeries, *, at: str) -> "PeriodTables[T]":
        """Return a type that is stored in one table per period, chosen by its field `at`."""
        periods = Periods(entity_type(cls), series, at)
        self.context.series.setdefault(periods.model.name, {})[series] = at
        return PeriodTables(self, periods)

    def create_tables(self) -> list[str]:
        """Create the missing tables of all known types; return the names of the created ones."""
        return self.run(lifecycle.create_tables(self.context))

    def drop_tables(self) -> list[str]:
        """Delete the tables of all known types and of their indexes, with everything in them.

        Returns the names of the deleted ones. Large values in blobs stay; `collect_blobs` removes
        them.
        """
        return self.run(lifecycle.drop_tables(self.context))

    # -- workers and indexes

    def know(self, transaction: NamedSteps) -> None:
        """Register an eventually consistent transaction, so that workers can run it."""
        self.context.transactions[transaction.name] = transaction

    @overload
    def start(
        self, transaction: Transaction[P], /, *positional: P.args, **arguments: P.kwargs
    ) -> None: ...
    @overload
    def start(self, transaction: EventualTransaction, /, **arguments: Any) -> None: ...
    def start(self, transaction: NamedSteps, /, *positional: Any, **arguments: Any) -> None:
        """Start an eventually consistent transaction by putting a message on the queue."""
        self.know(transaction)
        self.context.capabilities.require_queues("Starting a transaction")
        started = start_message(transaction, arguments, positional)
        self.run(_put(self.context, msgspec.json.encode(started).decode()))

    def drain(self, *, sweep: bool = True) -> Report:
        """Process all pending work: outbox entries and queue messages.

        The sweep scans all tables for outbox entries whose messages were lost. If an entry fails,
        the rest is still processed; the first error is raised at the end.
        """
        report = Report()
        self.run(worker.drain(self.context, report, with_sweep=sweep))
        return report

    def sweep(self, *, age: float = 60.0) -> Report:
        """Process outbox entries that are older than `age` seconds; this scans the tables."""
        report = Report()
        self.run(worker.sweep(self.context, report, age=age))
        return report

    def forget(self, *names: str) -> int:
        """Remove work that is no longer declared from pending entries; return how many changed.

        The names are those that the error `EntryUnknown` and `partita patterns status` report,
        such as `view:Order@totals`. Names that this program declares are kept. This scans the
        tables.
        """
        return self.run(worker.forget(self.context, names))

    def work_once(self, queue: str | None = None) -> Report:
        """Receive messages once, from one queue or from all, and process them.

        If a message fails, the others are still processed: the failure is in the report, and the
        message is retried when it becomes visible again. An error that one of your own functions
        raised is raised at the end.
        """
        report = Report()
        queues = self.context.options.queues if queue is None else (queue,)
        self.run(worker.work_queues(self.context, queues, report))
        return report

    def worker(self, *, tasks: int = 4, poll: float = 0.5, sweep_every: float = 60.0) -> "Worker":
        """Return workers that process the outbox and the queues beside this program.

        `tasks` messages are processed at a time. `poll` is the pause of an idle worker in seconds;
        every `sweep_every` seconds the tables are scanned for entries whose messages were lost.
        """
        return Worker(self, worker.Pace(tasks, poll, sweep_every))

    def rebuild(self, index: AnyIndex, *, progress: Callable[[int], object] = _ignore) -> int:
        """Add every stored entity to an index, then allow queries to use it."""
        self.context.know(index.owner)
        return self.run(lifecycle.rebuild(self.context, index, progress))

    def replay(
        self, cls: type[Any], view: str, *, progress: Callable[[int], object] = _ignore
    ) -> int:
        """Delete the rows that a view wrote, then apply the view to every entity of a type."""
        model = entity_type(cls)
        self.context.know(model)
        return self.run(lifecycle.replay(self.context, model, view, progress))

    def disable(self, index: AnyIndex, *, progress: Callable[[int], object] = _ignore) -> int:
        """Stop maintaining an index and delete its rows."""
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
        """Repair the differences that `verify` found; return how many."""
        model = entity_type(cls)
        return self.run(lifecycle.repair(self.context, model, drifts, progress))

    def balance(self, cls: type[Any], *, progress: Callable[[int], object] = _ignore) -> Balance:
        """Count the entities of a type per partition and rate the balance; reads all its keys."""
        return self.run(count_partitions(entity_type(cls), progress))

    # -- references

    def load(self, reference: Reference[S, T], entities: Iterable[S]) -> list[T | None]:
        """Return the target of each entity's reference, or None; each target is read once."""
        return self.run(references.load_targets(self.context, reference, entities))

    def dangling(
        self,
        reference: Reference[Any, Any],
        *,
        targets: "Database | None" = None,
        progress: Callable[[int], object] = _ignore,
    ) -> list[Drift]:
        """Return the entities whose reference has no target; this scans their table.

        `targets` is the database of the targets, if they are stored in another one.
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
        """Delete blobs of large properties that no entity refers to; return how many."""
        return self.run(lifecycle.collect_blobs(self.context, container, progress))

    def rotate(self, cls: type[Any], *, progress: Callable[[int], object] = _ignore) -> int:
        """Wrap the content keys of a type's entities with the keyring's current key.

        Tables per period are included if `periods` was called for the type; otherwise use `rotate`
        of what it returns.
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
        """Return a SAS that gives access to the entities with these key fields only.

        By default it permits reading, for one hour. `policy_id` names a stored access policy of
        the table that sets both instead. Keys that are not one range need several signatures: see
        `grants`.
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
        """Return one SAS for each range of keys that these key fields cover."""
        terms = terms_of(permissions, ttl, policy_id)
        return self._issuer().grants(entity_type(cls), given, terms, force=force)

    def grant_table(
        self,
        cls: type[Any],
        /,
        *,
        partitions: tuple[str, str] = ("", ""),
        permissions: str | None = None,
        ttl: timedelta | None = None,
        policy_id: str = "",
        force: bool = False,
    ) -> Grant:
        """Return a SAS for the whole table of a type, or for some of its partitions.

        `partitions` has the first and the last partition key as text, both inclusive; "" is
        unbounded. Everything in the partitions can be read: entities of other types, rows of
        indexes, and hidden rows. Prefer `grant`.
        """
        model = entity_type(cls)
        others = [each for each in self.context.models.values() if each.table == model.table]
        span = partitions_between(model.table, *partitions)
        terms = terms_of(permissions, ttl, policy_id)
        return self._issuer().grant_partitions([model, *others], span, terms, force=force)

    def policies(self, cls: type[Any], /) -> dict[str, TablePolicy]:
        """Return the stored access policies of the table of a type, by name."""
        return self.run(ask(GetPolicies(entity_type(cls).table)))

    def set_policies(self, cls: type[Any], policies: Mapping[str, TablePolicy], /) -> None:
        """Replace the stored access policies of the table of a type, at most five.

        A grant with `policy_id=` ends when its policy is removed or expires.
        """
        check_policies(policies)
        self.run(ask(SetPolicies(entity_type(cls).table, dict(policies))))

    def _issuer(self) -> Issuer:
        account, key, endpoint = credential_of(self._where)
        return Issuer(account, key, self._clock, endpoint=endpoint)

    def url_of(self, value: LargeValue, ttl: timedelta = TTL_DEFAULT) -> str:
        """Return an address that reads a large value until `ttl` has passed; it is a secret."""
        return signed_url(value, credential_of(self._where, "blobs"), self._clock, ttl)

    def log_writer(self, place: LogPlace, buffering: LogBuffering | None = None) -> "Log":
        """Return a writer that appends log lines to blobs."""
        return Log(self, LogWriter(place, self._clock, buffering))

    def log_lines(self, place: LogPlace, start: datetime, end: datetime) -> Iterator[LogLine]:
        """Yield the log lines of a time range, in order."""
        scan = LogReader(place).scan(start, end)
        while (lines := self.run(scan.read())) is not None:
            yield from lines


def _not_open() -> UsageError:
    return UsageError(
        "DatabaseNotOpen",
        "The database is not open, or it was closed.",
        hint="Use it as a context manager: with connect(...) as db.",
    )


def _put(context: Context, text: str) -> Steps[None]:
    queue = context.queue_of(text)
    yield from ask(CreateQueue(queue))
    yield from ask(PutMessage(queue, text))


class Table(Generic[T]):
    """The entities of one type. `c` has its columns, for conditions."""

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
        """Return entities by their key fields; each distinct one is read once, in parallel."""
        wanted = [key_of(self._model, key) for key in keys]
        found = self._db.run(load_many(self._db.context, self._model, wanted))
        return [found[key] for key in wanted]

    def save(self, entity: T, *, force: bool = False, if_match: str | None = None) -> T:
        """Insert a new entity, or replace a loaded one that has not changed since.

        Raises EntityExistsError, ETagMismatchError, EntityNotFoundError or
        UniqueViolationError. `force=True` overwrites whatever is stored. `if_match` is a version
        from `etag_of`, for an object that was not loaded here: the stored entity is replaced if it
        still has this version ("*": any version, but it must exist).
        """
        if if_match is not None:
            steps = versions.save_version(self._db.context, self._model, entity, if_match)
            return self._db.run(steps)
        return self._db.run(verbs.save(self._db.context, self._model, entity, force=force))

    def upsert(self, entity: T, *, merge: bool | Collection[str] = False) -> T:
        """Insert or overwrite an entity; with `merge`, write some fields and keep the others.

        `merge=True` writes the fields that were set: for a loaded object, those that changed; for
        a new object, those that are neither None nor equal to their default (for a pydantic model,
        those that were given). `merge=["text", "stars"]` writes exactly these fields. Slots of a
        series that the object does not have are kept.
        """
        return self._db.run(verbs.upsert(self._db.context, self._model, entity, merge=merge))

    def patch(self, entity: T, /, *, force: bool = False, **changes: Any) -> T:
        """Change some fields of a loaded entity; only these are sent."""
        return self._db.run(
            verbs.patch(self._db.context, self._model, entity, changes, force=force)
        )

    def patch_by_key(
        self,
        key: Mapping[str, Any],
        /,
        *,
        if_match: str | None = None,
        create: bool = False,
        **changes: Any,
    ) -> str:
        """Write some fields of the entity with these key fields, and return its new etag.

        Without followers, this is one request that reads nothing: a merge. Of a series, only the
        given slots are written. `if_match` is a version from `etag_of`; `create=True` inserts an
        entity that does not exist.
        """
        steps = versions.patch_by_key(
            self._db.context, self._model, key, changes, if_match=if_match, create=create
        )
        return self._db.run(steps)

    def update(self, function: Callable[[T], T], /, **key: Any) -> T:
        """Change an entity by a pure function, which is called again after a conflicting write."""
        steps = verbs.update_by(self._db.context, self._model, key, function)
        return self._db.run(steps)

    def delete(self, entity: T, *, force: bool = False, if_match: str | None = None) -> None:
        """Delete a loaded entity that has not changed since; `force=True` deletes it anyway.

        `if_match` is the version of an object that was not loaded here, as in `save`.
        """
        if if_match is not None:
            steps = versions.delete_version(self._db.context, self._model, entity, if_match)
            self._db.run(steps)
            return
        self._db.run(verbs.delete(self._db.context, self._model, entity, force=force))

    def delete_if_exists(self, **key: Any) -> bool:
        """Delete the entity with these key fields; return False if there is none."""
        return self._db.run(verbs.delete_by(self._db.context, self._model, key))

    @overload
    def increment(
        self, entity: T, field: Callable[[T], N | None], *, by: N = ..., create: bool = ...
    ) -> N: ...
    @overload
    def increment(
        self,
        entity: T,
        field: Callable[[T], Mapping[int, N]],
        slot: int,
        *,
        by: N = ...,
        create: bool = ...,
    ) -> N: ...
    @overload
    def increment(
        self,
        entity: T,
        field: str,
        slot: int | None = None,
        *,
        by: Any = 1,
        create: bool = False,
    ) -> Any: ...
    def increment(
        self,
        entity: T,
        field: str | Callable[[T], Any],
        slot: int | None = None,
        *,
        by: Any = 1,
        create: bool = False,
    ) -> Any:
        """Add `by` to a number, or to a slot of a series, and return the new value.

        The field is given by name, or as in `lambda e: e.hours`. The object need not be loaded.
        With `create=True` it is inserted if it does not exist.
        """
        name = field if isinstance(field, str) else chosen_field(self._model, field).name
        return self._db.run(
            verbs.increment(
                self._db.context,
                self._model,
                entity,
                verbs.Addition(name, slot, by),
                create=create,
            )
        )

    def move(self, entity: T, /, **key: Any) -> T:
        """Change the key fields of a loaded entity; crash-safe, also across partitions."""
        return self._db.run(verbs.move(self._db.context, self._model, entity, key))

    def large(self, entity: T, field: str) -> "Large[T]":
        """Return a large value of an entity, to be read or written in chunks, or by its address."""
        return Large(self._db, self._model, entity, field)

    # -- many entities

    def save_all(
        self,
        entities: Iterable[T],
        *,
        max_rate: float | None = None,
        concurrency: int = 8,
        progress: Callable[[int], object] = _ignore,
    ) -> bulk.BulkOutcome:
        """Save many entities in groups; `max_rate` limits the entities per second."""
        return self._write_all(entities, "save", max_rate, concurrency, progress)

    def upsert_all(
        self,
        entities: Iterable[T],
        *,
        max_rate: float | None = None,
        concurrency: int = 8,
        progress: Callable[[int], object] = _ignore,
    ) -> bulk.BulkOutcome:
        """Insert or overwrite many entities in groups."""
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

    def partition(self, key: Predicate[T] | None = None, /, **given: Any) -> "Partition[T]":
        """Return one partition, given the fields of the partition key.

        They are given by name, or by a function: `partition(lambda e: e.dept == "Sales")`.
        """
        if key is not None:
            names = self._model.partition.fields
            given = {**key_values(self._model, names, key, "partition"), **given}
        return Partition(self._db, self._model, given)

    def where(self, condition: Condition | Predicate[T]) -> "Query[T]":
        """Return the query for a condition; its `explain()` describes how it is read.

        The condition is made from `c`, or by a function: `where(lambda e: e.age > 40)`.
        """
        return Query(self._db, self._model, QueryTerms({})).where(condition)

    def all(self) -> "Query[T]":
        """Return the query for all entities: a table scan, which `allow_scan()` must permit."""
        return Query(self._db, self._model, QueryTerms({}))

    def via(self, index: Index[T] | ListIndex[T], *, verify: bool = False) -> "Via[T]":
        """Return the entities as stored in an index; `verify=True` also reads each entity."""
        known = self._model.followers.indexes
        if index not in known:
            raise UsageError(
                "IndexOfAnother",
                f"{index!r} is not an index of {self._model.name}.",
                facts={"type": self._model.name, "indexes": [each.name for each in known]},
                hint="Pass the result of index() or list_index() to the table of the type that it "
                "was declared for.",
            )
        return Via(self._db, self._model, index, verify=verify)

    def partitions(self, givens: Iterable[Mapping[str, Any]], *, limit: int = 8) -> "Partitions[T]":
        """Return several partitions, to be read in parallel, at most `limit` at a time."""
        return Partitions([self.partition(**given) for given in givens], limit)

    def cached(
        self, ttl: float, *, entries_max: int = 10_000, preload: bool = False
    ) -> "CachedTable[T]":
        """Return a view of the table that caches entities for `ttl` seconds.

        `preload=True` is for a small table: the first read, and the first after `ttl` seconds,
        reads all its entities, at most `entries_max`, and no other read sends a request.
        """
        return CachedTable(self._db, self._model, ttl, entries_max, preload=preload)


class Large(Generic[T]):
    """One large value of an entity, which is stored in a blob."""

    def __init__(self, db: Database, model: EntityType[T], entity: T, field: str) -> None:
        self._db = db
        self._model = verbs.check_entity(model, entity)
        self._entity = entity
        self._field = large_fields.large_field(self._model, field).name

    @property
    def value(self) -> LargeValue:
        """The reference that the entity stores, with the length and the hash of the value."""
        return large_fields.large_value_of(self._model, self._entity, self._field)

    def url(self, ttl: timedelta = TTL_DEFAULT) -> str:
        """Return an address that reads the value until `ttl` has passed; it is a secret.

        It is for a browser or another program. The blob is removed when the value is replaced.
        """
        return self._db.url_of(self.value, ttl)

    def stream(self) -> Iterator[bytes]:
        """Yield the value in chunks. Raises at the end if it is not what was written."""
        download = Download(self.value)
        while chunk := self._db.run(download.read()):
            yield chunk

    def read(self) -> bytes:
        """Return the whole value."""
        return b"".join(list(self.stream()))

    def write(self, chunks: Iterable[bytes]) -> T:
        """Write the value in chunks of any size, then save the entity with it, and return it.

        Only one block of 4 MiB is in memory. If the entity cannot be saved, the blob is left for
        `collect_blobs`.
        """
        context, name = self._db.context, self._field
        upload = large_fields.new_upload(context, self._model, self._entity, name)
        for chunk in chunks:
            self._db.run(upload.put(chunk))
        value = self._db.run(upload.finish())
        steps = large_fields.save_large(context, self._model, self._entity, name, value)
        self._entity = self._db.run(steps)
        return self._entity


class KeyedTable(Table[T], Generic[T, P]):
    """A table whose key arguments have the names and types that a key class declares."""

    if TYPE_CHECKING:

        def get(self, *_: P.args, **key: P.kwargs) -> T: ...

        def get_or_none(self, *_: P.args, **key: P.kwargs) -> T | None: ...

        def update(self, function: Callable[[T], T], /, *_: P.args, **key: P.kwargs) -> T: ...

        def delete_if_exists(self, *_: P.args, **key: P.kwargs) -> bool: ...


class Partition(Generic[T]):
    """The entities of one type in one partition."""

    def __init__(self, db: Database, model: EntityType[T], given: Mapping[str, Any]) -> None:
        unknown = [name for name in given if name not in model.partition.fields]
        if unknown:
            raise UsageError(
                "KeyFields",
                f"{unknown[0]!r} is not in the partition key of {model.name}.",
                hint=f"Give these fields: {', '.join(model.partition.fields) or 'none'}."
                f"{did_you_mean(unknown[0], model.partition.fields)}",
            )
        self.db = self._db = db
        self._model = model
        self._given = dict(given)

    def _query(self, given: Mapping[str, Any]) -> "Query[T]":
        return Query(self._db, self._model, QueryTerms({**self._given, **given}))

    def range(self, keys: Predicate[T] | None = None, /, **given: Any) -> "Query[T]":
        """Return the query for entities with these row key fields.

        Give the fields in the order of the row key, starting with the first; the last one may be
        an interval, such as `between(...)`, `at_least(...)` or `starting_with(...)`. Or give a
        function that compares them: `range(lambda e: (e.id >= 100) & (e.id < 200))`.
        """
        if keys is not None:
            condition = key_condition(self._model, self._model.row.fields, keys, "range")
            return self._query(given).where(condition)
        return self._query(given)

    def prefix(self, **given: str) -> "Query[T]":
        """Return the query for entities whose last given field starts with a text."""
        return self._query(_starting(given))

    def where(self, condition: Condition | Predicate[T]) -> "Query[T]":
        return self._query({}).where(condition)

    def all(self) -> "Query[T]":
        return self._query({})

    def latest(self, count: int) -> "Query[T]":
        """Return the query for the newest `count` entities.

        The row key must start with a field that is declared with `:desc`. For other types,
        `all().limit(count)` returns the first entities.
        """
        self._db.context.capabilities.require_ordered("latest()")
        verbs.check_newest_first(self._model)
        query: Query[T] = Query(self._db, self._model, QueryTerms(self._given, is_latest=True))
        return query.limit(count)

    def page(self, *, size: int = 100, continuation: str | None = None) -> Page[T]:
        return self._query({}).page(size=size, continuation=continuation)

    def pages(self, *, size: int = 100) -> Iterator[Page[T]]:
        """Yield pages of up to `size` entities."""
        return self._query({}).pages(size=size)

    def atomic(self) -> "Group":
        """Return a group of changes in this partition: all of them are applied, or none."""
        partition = self._model.partition.format(self._given)
        return Group(self._db, self._model, self._given, partition)

    def __iter__(self) -> Iterator[T]:
        yield from self._query({})


def _starting(given: Mapping[str, str]) -> dict[str, Any]:
    *_, last = given or [None]
    if last is None:
        raise UsageError("KeyFields", "prefix() needs a field.", hint='Try prefix(last="Ca").')
    return {**given, last: starting_with(given[last])}


class _Pages(ABC, Generic[T]):
    """Reading page by page, for every kind of query."""

    _db: Database
    cost: Cost

    @abstractmethod
    def _reader(self) -> Reader: ...

    @abstractmethod
    def _limited(self, count: int) -> Self: ...

    def limit(self, count: int) -> Self:
        """Return at most `count` entities."""
        if count < 0:
            raise UsageError(
                "InvalidLimit", "A limit must not be negative.", facts={"limit": count}
            )
        return self._limited(count)

    def page(self, *, size: int = 100, continuation: str | None = None) -> Page[T]:
        """Return up to `size` entities, with the continuation of the next page."""
        reader = self._reader()
        cost = Cost()
        found = self._db.run(read_page(reader, continuation, size), cost)
        self.cost.add(cost)
        following = None
        if found.position is not None:
            following = print_continuation(reader.fingerprint(), found.position)
        return Page(found.entities, following, cost)

    def pages(self, *, size: int = 100, continuation: str | None = None) -> Iterator[Page[T]]:
        """Yield pages of up to `size` entities; none is empty."""
        while True:
            page = self.page(size=size, continuation=continuation)
            if page.entities:
                yield page
            continuation = page.continuation
            if continuation is None:
                return

    def __iter__(self) -> Iterator[T]:
        reader = self._reader()
        position: Position | None = Position()
        left = reader.count_max
        while position is not None and (left is None or left > 0):
            steps = reader.read(position, left if reader.is_counted else None)
            found = self._db.run(steps, self.cost)
            yield from found.entities[:left]
            position = found.position
            left = None if left is None else left - len(found.entities)

    def list(self) -> list[T]:
        """Return all entities as a list."""
        return list(self)

    def first(self) -> T | None:
        """Return the first entity, or None."""
        found = self.limit(1).list()
        return found[0] if found else None


class Query(_Pages[T]):
    """A query that is sent when it is iterated or listed. Its methods return new queries."""

    def __init__(self, db: Database, model: EntityType[Any], terms: QueryTerms) -> None:
        self._db = db
        self._model = model
        self._terms = terms
        self.cost = Cost()
        """The cost of this query so far."""

    def _with(self, **changes: Any) -> "Query[Any]":
        terms = msgspec.structs.replace(self._terms, **changes)
        return Query(self._db, self._model, terms)

    @property
    def plan(self) -> QueryPlan:
        """How the query is read."""
        return plan_query(
            self._model, self._terms.given, self._terms.condition, via=self._terms.via
        )

    def explain(self) -> str:
        """Return a description of how the query is read, with advice to improve it."""
        return explain(
            self.plan,
            is_allowed=self._may_scan,
            limit=self._terms.count_max,
            is_latest=self._terms.is_latest,
        )

    @property
    def _may_scan(self) -> bool:
        return self._terms.is_scan_allowed or self._db.context.options.scans != "refuse"

    def where(self, condition: Condition | Predicate[T]) -> "Query[T]":
        """Add a condition: one on `table.c`, or a function such as `lambda e: e.age > 40`."""
        added = condition_of(self._model, condition)
        before = self._terms.condition
        return self._with(condition=added if before is None else before & added)

    def _limited(self, count: int) -> "Query[T]":
        return self._with(count_max=count)

    def allow_scan(self) -> "Query[T]":
        """Permit the query to read a whole table."""
        return self._with(is_scan_allowed=True)

    @overload
    def misfits(self, policy: Literal["raise", "skip"], /) -> "Query[T]": ...
    @overload
    def misfits(self, policy: Literal["raw"], /) -> "Query[T | RawEntity]": ...
    def misfits(self, policy: Misfits, /) -> Any:
        """Choose how to handle stored entities whose keys do not match the type's templates.

        "raise", the default, raises InvalidKeyError with the code KeyNotOfTemplate. "skip" omits
        such entities; "raw" returns each as a RawEntity, in the order of keys.
        """
        if policy not in get_args(Misfits):
            raise UsageError(
                "UnknownOption",
                f"misfits() does not take {policy!r}.",
                hint='Use misfits("raise"), misfits("skip") or misfits("raw").',
            )
        return self._with(misfits=policy)

    @overload
    def select(self, fields: type[S], /) -> "Query[S]": ...
    @overload
    def select(self, fields: str, /, *more: str) -> "Query[projections.Partial[T]]": ...
    @overload
    def select(self, fields: Callable[[T], S], /) -> "Query[S]": ...
    def select(self, fields: Any, /, *more: str) -> Any:
        """Read only some fields: given by name, by a function, or as a class that declares them.

        `select(lambda e: e.email)` returns the values of a field, `select(lambda e: (e.id,
        e.email))` tuples.
        """
        if isinstance(fields, str):
            return self._with(selected=self._checked((fields, *more)), make=None)
        if not isinstance(fields, type):
            names, make = projection_of(self._model, fields)
            return self._with(selected=self._checked(names), make=make)
        names = projections.fields_of(fields)
        return self._with(selected=self._checked(names), make=lambda values: fields(**values))

    def _checked(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise UsageError(
                "NotSelectable",
                "The class that was passed to select() declares no fields.",
                hint="Annotate its fields, with the names of the entity's fields.",
            )
        for name in names:
            field = self._model.fields.get(name)
            if field is None or field.is_in_blob:
                raise UsageError(
                    "NotSelectable",
                    f"{self._model.name} has no field {name!r} that can be selected.",
                    hint=f"Select from {', '.join(self._model.fields)}; large values cannot be "
                    f"selected.{did_you_mean(name, self._model.fields)}",
                )
        return names

    def request(self) -> Ask:
        """Return the query in the form that steps take, for code that writes its own steps."""
        plan = self.plan
        is_warned = plan.is_refused and self._db.context.options.scans == "warn"
        if is_warned and not self._terms.is_scan_allowed:
            warn_of_scan(self.explain())
        return Ask(
            plan,
            self._may_scan,
            self._terms.selected,
            self._terms.verify,
            self._terms.make,
            self._terms.misfits,
        )

    def _reader(self) -> Reader:
        return reader_of(self._db.context, self.request(), self._terms.count_max)

    def count(self) -> int:
        """Count the entities by reading their keys, or those of the index that the query uses.

        The rows of an index are counted as they are, unless `via` was given `verify=True`.
        """
        query = self._with(selected=self._model.key_fields[:1], make=None)
        return len([None for _ in query])

    def delete(
        self, *, max_rate: float | None = None, progress: Callable[[int], object] = _ignore
    ) -> bulk.BulkOutcome:
        """Delete the entities of the query in groups, page by page."""
        outcome = bulk.BulkOutcome()
        cost = outcome.cost
        position: Position | None = Position()
        query = self.request()
        left = self._terms.count_max
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
    """The entities of one type as stored in an index."""

    def __init__(
        self, db: Database, model: EntityType[T], index: AnyIndex, *, verify: bool
    ) -> None:
        self._db = db
        self._model = model
        self._index = index
        self._verify = verify

    def range(self, keys: Predicate[T] | None = None, /, **given: Any) -> Query[T]:
        """Return the query for these fields of the index's keys; the last may be an interval.

        Or give a function that compares them: `range(lambda e: e.email.startswith("j"))`.
        """
        terms = QueryTerms(given, via=self._index, verify=self._verify)
        query: Query[T] = Query(self._db, self._model, terms)
        if keys is not None:
            condition = key_condition(self._model, self._index.key_fields, keys, "range")
            return query.where(condition)
        return query

    def prefix(self, **given: str) -> Query[T]:
        """Return the query for entities whose last given field starts with a text."""
        return self.range(**_starting(given))

    def where(self, condition: Condition | Predicate[T]) -> Query[T]:
        return self.range().where(condition)

    def all(self) -> Query[T]:
        return self.range()

    def _values(self, key: Predicate[T] | None, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if key is None:
            return given
        return {**key_values(self._model, self._index.key_fields, key, "get"), **given}

    def get_or_none(self, key: Predicate[T] | None = None, /, **given: Any) -> T | None:
        """Return the entity with these fields of the index's keys, or None.

        They are given by name, or by a function: `lambda e: e.email == "junc@contoso.com"`.
        """
        query = self.range(**self._values(key, given))
        if query.plan.kind is not QueryKind.POINT or isinstance(self._index, ListIndex):
            raise UsageError(
                "KeyFields",
                f"get() needs every field of the index's keys: "
                f"{', '.join(self._index.key_fields)}.",
                hint="Give every field, or use range(...) for more than one entity.",
            )
        return query.first()

    def get(self, key: Predicate[T] | None = None, /, **given: Any) -> T:
        """Return the entity with these fields of the index's keys; raises EntityNotFoundError."""
        values = self._values(key, given)
        entity = self.get_or_none(**values)
        if entity is None:
            sought = RowKey(self._index.partition.format(values), self._index.row.format(values))
            raise verbs.absent(self._model, sought)
        return entity


class Partitions(Generic[T]):
    """Several partitions of one type, read in parallel."""

    def __init__(self, members: Sequence[Partition[T]], limit: int) -> None:
        self._members = members
        self._limit = limit
        self.cost = Cost()
        """The cost of reading them so far."""

    def list(self) -> list[list[T]]:
        """Return a list of entities for each partition, in the given order.

        The first error stops the remaining reads.
        """
        if not self._members:
            return []
        db = self._members[0].db
        queries = [member.all().request() for member in self._members]
        return db.run(read_each(db.context, queries, self._limit), self.cost)


class Group:
    """Changes that are sent together at the end of the block; none is sent if it raises."""

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
        """The saved entities, once the group was committed."""
        self.cost = Cost()
        """The cost of committing the group."""

    def save(self, entity: Any, *, force: bool = False) -> None:
        """Insert a new entity, or replace a loaded one that has not changed since.

        `force=True` overwrites whatever is stored, as `upsert` does.
        """
        if force:
            self._open().upsert(entity, merge=False)
        else:
            self._open().save(entity)

    def upsert(self, entity: Any, *, merge: bool | Collection[str] = False) -> None:
        """Insert or overwrite an entity; `merge` works as in `Table.upsert`."""
        self._open().upsert(entity, merge=merge)

    def patch(self, entity: Any, /, **changes: Any) -> None:
        """Change some fields of a loaded entity that has not changed since; only these are sent.

        The changed object is in `entities` once the group was committed.
        """
        self._open().patch(entity, changes)

    def delete(self, entity: Any) -> None:
        """Delete a loaded entity that has not changed since."""
        self._open().delete(entity)

    def delete_if_exists(self, cls: type[Any] | None = None, /, **key: Any) -> None:
        """Delete by key, without the fields of the partition; `cls` names another type."""
        model = self._model if cls is None else entity_type(cls)
        known = self._given if model is self._model else {}
        self._open().remove(model, key_of(model, {**known, **key}))

    @overload
    def start(
        self, transaction: Transaction[P], /, *positional: P.args, **arguments: P.kwargs
    ) -> None: ...
    @overload
    def start(self, transaction: EventualTransaction, /, **arguments: Any) -> None: ...
    def start(self, transaction: NamedSteps, /, *positional: Any, **arguments: Any) -> None:
        """Start an eventually consistent transaction if the group is committed."""
        self._db.know(transaction)
        self._open().start(transaction, arguments, positional)

    def _open(self) -> Collected:
        if self._is_over:
            raise UsageError(
                "GroupEnded",
                "The group has ended; further changes would never be sent.",
                hint="Add all changes before the block ends, or use another group.",
            )
        return self._collected

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        collected, self._is_over = self._open(), True
        if kind is None:
            self.entities = self._db.run(collected.commit(), self.cost)


_WHOLE_TABLE = RowKey("", "")
"""The lock of callers that read a whole table into the cache."""


class CachedTable(Generic[T]):
    """Entities that are cached for a time, for joins in the client."""

    def __init__(
        self,
        db: Database,
        model: EntityType[T],
        ttl: float,
        entries_max: int,
        *,
        preload: bool = False,
    ) -> None:
        self._db = db
        self._model = model
        self._entries_max = entries_max
        self._is_preloaded = preload
        self._cache = Cache(db.context.clock, ttl, entries_max)
        self._locks = KeyLocks()

    def get(self, **key: Any) -> T:
        """Return the entity with these key fields; raises EntityNotFoundError."""
        entity = self.get_or_none(**key)
        if entity is None:
            raise verbs.absent(self._model, key_of(self._model, key))
        return entity

    def get_or_none(self, **key: Any) -> T | None:
        """Return the entity with these key fields, or None; absence is cached as well."""
        wanted = key_of(self._model, key)
        self._preload()
        entity: T | None
        if (known := self._cache.find(wanted)) is not None:
            entity = known.entity
        else:
            with self._locks.hold([wanted]):
                steps = load_many(self._db.context, self._model, [wanted], self._cache)
                entity = self._db.run(steps)[wanted]
        return entity

    def _preload(self) -> None:
        if not self._is_preloaded or self._cache.is_complete:
            return
        with self._locks.hold([_WHOLE_TABLE]):
            if not self._cache.is_complete:
                steps = preload(self._db.context, self._model, self._cache, self._entries_max)
                self._db.run(steps)

    def save(self, entity: T) -> T:
        """Save an entity and replace it in the cache."""
        asked_at = self._cache.now()
        verbs.check_entity(self._model, entity)
        with self._cache.doubting(self._model.key(self._model.values(entity))):
            saved = self._db.run(verbs.save(self._db.context, self._model, entity))
        self._cache.put(self._model.key(self._model.values(saved)), saved, asked_at)
        result: T = saved
        return result

    def delete(self, entity: T) -> None:
        """Delete an entity and cache its absence."""
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
        self._preload()
        with self._locks.hold(self._cache.missing(keys)):
            return self._db.run(join(self._db.context, aimed, self._model, self._cache))


class Mixed(Generic[T]):
    """Several types of one table."""

    def __init__(self, db: Database, types: mixed.MixedTypes) -> None:
        self._db = db
        self._types = types

    def partition(self, partition_key: str | None = None, /, **given: Any) -> "MixedQuery[T]":
        """Return the query for a partition, in the order of row keys, each entity as its own type.

        The partition is given by the key fields of one of the types, or by its key as text.
        """
        return MixedQuery(self._db, mixed.MixedTerms(self._types, partition_key, given))

    def range(self, **given: Any) -> "MixedQuery[T]":
        """Return the query for a range of row keys that covers several types, in one request.

        Give the fields of the partition key and then those of the row keys. A field limits the
        types that have it; the last one may be an interval.
        """
        fields = mixed.partition_fields(self._types.models, given)
        rows = {name: limit for name, limit in given.items() if name not in fields}
        return MixedQuery(self._db, mixed.MixedTerms(self._types, None, fields, rows))

    def prefix(self, **given: str) -> "MixedQuery[T]":
        """Return the query for entities whose last given field starts with a text."""
        return self.range(**_starting(given))


class MixedQuery(_Pages[T]):
    """A query for several types; one request per page. Its methods return new queries."""

    def __init__(self, db: Database, terms: mixed.MixedTerms) -> None:
        self._db = db
        self._terms = terms
        self.cost = Cost()
        """The cost of this query so far."""

    def where(self, condition: Condition | Predicate[Any]) -> "MixedQuery[T]":
        """Limit the entities of one type, by its columns; those of other types are returned.

        A function is a condition on the first of the types.
        """
        added = condition_of(self._terms.types.models[0], condition)
        conditions = (*self._terms.conditions, added)
        return MixedQuery(self._db, msgspec.structs.replace(self._terms, conditions=conditions))

    def _limited(self, count: int) -> "MixedQuery[T]":
        return MixedQuery(self._db, msgspec.structs.replace(self._terms, count_max=count))

    def _reader(self) -> Reader:
        plan = mixed.plan_mixed(self._terms)
        return Reader(
            partial(mixed.read_mixed, self._db.context, plan),
            lambda: plan.fingerprint,
            self._terms.count_max,
            is_counted=not self._terms.conditions,
        )


class RawTable:
    """A table whose entities are plain properties, without a declared type."""

    def __init__(self, db: Database, name: str) -> None:
        self._db = db
        self._name = name

    def get(self, partition_key: str, row_key: str) -> RawEntity:
        return self._db.run(raw.get_raw(self._name, RowKey(partition_key, row_key)))

    def save(self, entity: RawEntity) -> RawEntity:
        """Insert an entity that has no etag, or replace the stored one that has the same etag."""
        return self._write(entity, raw.insertion_or_replacement(entity))

    def upsert(self, entity: RawEntity, *, merge: bool = False) -> RawEntity:
        """Insert or overwrite an entity; with `merge`, other stored properties are kept."""
        return self._write(entity, raw.overwriting(entity, merge=merge))

    def _write(self, entity: RawEntity, change: raw.RawChange) -> RawEntity:
        [written] = self._db.run(raw.write_group(self._name, entity.partition_key, [change]))
        return written

    def patch(self, entity: RawEntity, changes: Mapping[str, Value]) -> RawEntity:
        """Change properties that the entity already has."""
        return self._db.run(raw.patch_raw(self._name, entity, changes))

    def delete(self, entity: RawEntity) -> None:
        """Delete an entity that has this etag; any version if it has none."""
        steps = raw.write_group(self._name, entity.partition_key, [raw.deletion(entity)])
        self._db.run(steps)

    def query(self, filter_text: str = "", /, **parameters: Value) -> "RawQuery":
        """Return the entities that a `$filter` selects; `@name` in it stands for a parameter.

        The filter is sent as it is: no plan is made, and a scan is not refused.
        """
        terms = raw.RawTerms(self._name, raw.bind(filter_text, parameters))
        return RawQuery(self._db, terms)

    def atomic(self, partition_key: str) -> "RawGroup":
        """Return a group of changes in one partition: all of them are applied, or none."""
        return RawGroup(self._db, self._name, partition_key)


class RawQuery(_Pages[RawEntity]):
    """The entities of a raw table that a filter selects. Its methods return new queries."""

    def __init__(self, db: Database, terms: raw.RawTerms) -> None:
        self._db = db
        self._terms = terms
        self.cost = Cost()
        """The cost of this query so far."""

    def select(self, *names: str) -> "RawQuery":
        """Read only these properties, and the keys."""
        selected = tuple(dict.fromkeys(("PartitionKey", "RowKey", *names)))
        return RawQuery(self._db, msgspec.structs.replace(self._terms, selected=selected))

    def _limited(self, count: int) -> "RawQuery":
        return RawQuery(self._db, msgspec.structs.replace(self._terms, count_max=count))

    def _reader(self) -> Reader:
        terms = self._terms
        return Reader(partial(raw.read_raw, terms), lambda: terms.fingerprint, terms.count_max)


class RawGroup:
    """Changes of raw entities that are sent together at the end of the block."""

    def __init__(self, db: Database, table: str, partition_key: str) -> None:
        self._db = db
        self._table = table
        self._partition_key = partition_key
        self._changes: list[raw.RawChange] = []
        self.entities: list[RawEntity] = []
        """The written entities with their new etags, once the group was committed."""

    def save(self, entity: RawEntity) -> None:
        """Insert an entity that has no etag, or replace the stored one that has the same etag."""
        self._changes.append(raw.insertion_or_replacement(entity))

    def upsert(self, entity: RawEntity, *, merge: bool = False) -> None:
        """Insert or overwrite an entity; with `merge`, other stored properties are kept."""
        self._changes.append(raw.overwriting(entity, merge=merge))

    def delete(self, entity: RawEntity) -> None:
        """Delete an entity that has this etag; any version if it has none."""
        self._changes.append(raw.deletion(entity))

    def __enter__(self) -> "RawGroup":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            steps = raw.write_group(self._table, self._partition_key, self._changes)
            self.entities = self._db.run(steps)


class PeriodTables(Generic[T]):
    """Entities in one table per period; old entities are removed by dropping tables."""

    def __init__(self, db: Database, periods: Periods[T]) -> None:
        self._db = db
        self._periods = periods

    # -- tables

    def ensure(self) -> tuple[str, ...]:
        """Create the tables of the current and the next period; return the created ones."""
        return self._db.run(self._periods.series.ensure(utc_now(self._db.context.clock)))

    def sweep(self) -> tuple[str, ...]:
        """Drop the tables of periods that are past retention; return their names."""
        return self._db.run(self._periods.series.sweep(utc_now(self._db.context.clock)))

    def rotate(self, *, progress: Callable[[int], object] = _ignore) -> int:
        """Wrap the content keys in all tables with the keyring's current key."""
        steps = rotating.rotate_series(self._db.context, self._periods.series, progress)
        return self._db.run(steps)

    def table(self, at: datetime | date, /) -> Table[T]:
        """Return the table of the period that contains a time, with all verbs and queries."""
        model = self._periods.model.in_table(self._periods.series.table_for(at))
        return Table(self._db, model)

    # -- entities

    def save(self, entity: T) -> T:
        """Save an entity in the table of its period, which is created if it is missing."""
        return self._db.run(self._periods.save(self._db.context, entity))

    def save_all(
        self,
        entities: Iterable[T],
        *,
        max_rate: float | None = None,
        concurrency: int = 8,
        progress: Callable[[int], object] = _ignore,
    ) -> bulk.BulkOutcome:
        """Save many entities in groups, one period after another."""
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

        Give its time as the first argument if the keys do not contain it.
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

        This takes one request per period until there are enough. The row key must start with a
        field that is declared with `:desc`.
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
        """Yield the entities from `start` to `end`, inclusive, that have these key fields.

        This takes at least one request per period. Periods are read in the order of the row keys:
        the newest first with `:desc`. Without all fields of the partition key, `allow_scan` is
        required.
        """
        scan = self._periods.scan(self._db.context, start, end, given, is_scan_allowed=allow_scan)
        while (entities := self._db.run(scan.read())) is not None:
            yield from entities


class Log:
    """A buffered writer of log lines to blobs. Close it, or use it as a context manager.

    Inside the context, lines are written after `LogBuffering.seconds_max` seconds also if no
    further line is appended.
    """

    def __init__(self, db: Database, writer: LogWriter) -> None:
        self._db = db
        self._writer = writer
        self._loops: ThreadLoops | None = None

    def append(self, text: str | bytes, at: datetime | None = None) -> int:
        """Append a line and return its number; it is durable once `acknowledged` reaches it."""
        return self._db.run(self._writer.append(text, at))

    def add(self, text: str | bytes, at: datetime | None = None) -> int:
        """Buffer a line without waiting, and return its number; see `LogHandler`."""
        return self._writer.add(text, at)

    def flush(self) -> int:
        """Make all appended lines durable; return `acknowledged`."""
        return self._db.run(self._writer.flush())

    @property
    def acknowledged(self) -> int:
        return self._writer.acknowledged

    def close(self) -> None:
        if self._loops is not None:
            loops, self._loops = self._loops, None
            loops.stop()
        self._db.run(self._writer.close())

    def _flush_if_due(self) -> float:
        return self._db.run(self._writer.flush_if_due())

    def __enter__(self) -> "Log":
        if self._loops is None:
            self._loops = ThreadLoops("partita-log")
            self._loops.start(self._flush_if_due)
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Worker:
    """Workers of this process: they process the outbox and the queues beside the program.

    Use it as a context manager. At its end the work in progress is finished; what waits is left
    for the next worker.
    """

    def __init__(self, db: Database, pace: worker.Pace) -> None:
        self._db = db
        self._pace = pace
        self._loops: ThreadLoops | None = None
        self._failed = 0
        """How many turns in a row failed, because the service does not answer."""
        self.report = Report()
        """What was done so far, with the latest failures."""

    def settled(self) -> None:
        """Wait until the work that this process has caused so far is done.

        Work that keeps failing is not waited for: it is in `report`.
        """
        known = list(self._db.context.pending)
        self._db.run(worker.wait_for(self._db.context, known, self.report))

    def _work(self) -> float:
        return self._turn(worker.work_turn(self._db.context, self._pace, self.report))

    def _sweep(self) -> float:
        return self._turn(worker.sweep_turn(self._db.context, self._pace, self.report))

    def _turn(self, steps: Steps[float]) -> float:
        try:
            seconds = self._db.run(steps)
        except UnavailableError:  # the work is stored: it is done when the service answers again
            self._failed += 1
            return min(self._pace.poll * 2.0**self._failed, worker.PAUSE_SECONDS_MAX)
        self._failed = 0
        return seconds

    def __enter__(self) -> "Worker":
        self._loops = ThreadLoops("partita-worker")
        for _ in range(self._pace.tasks):
            self._loops.start(self._work)
        if self._pace.sweep_every:
            self._loops.start(self._sweep)
        return self

    def __exit__(self, *_: object) -> None:
        if self._loops is not None:
            loops, self._loops = self._loops, None
            loops.stop()
