"""An in-memory world for the steps of `partita.patterns`: plain dicts, a clock that is moved by
sleeping, and a process that can be stopped before, after or in the middle of any call.

A test double for deterministic simulation only: real servers are tested elsewhere. With a seed,
concurrent steps are interleaved at random (a call may be performed long before its answer is
delivered), messages come in any order, and pages may be short or empty. Without one, steps run
one after the other in the order in which they were given.
"""

import base64
import contextlib
import enum
import inspect
import math
import random
from collections.abc import Callable, Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

import msgspec

from partita.clock import ManualClock
from partita.errors import (
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    GroupRuleError,
    LimitExceededError,
    PartitaError,
    QueueNotFoundError,
    TableNotFoundError,
    ThrottledError,
    UnavailableError,
)
from partita.patterns.protocol.calls import (
    AppendBlob,
    Beside,
    Blob,
    BlobPage,
    Call,
    Continuation,
    CreateContainer,
    CreateQueue,
    CreateTable,
    DeleteBlob,
    DeleteMessage,
    DeleteTable,
    GetBlob,
    GetRow,
    Invoke,
    ListBlobs,
    ListedBlob,
    ListTables,
    Message,
    Parallel,
    PutBlob,
    PutMessage,
    QueryRows,
    ReceiveMessages,
    RenewMessage,
    RowOperation,
    RowPage,
    SetBlobMetadata,
    Sleep,
    Steps,
    Verb,
    WriteRows,
)
from partita.patterns.protocol.values import Instant, Int32, Row, RowKey, Value, measure
from partita.tables import edm, filters
from partita.tables import limits as table_limits
from partita.tables.entity import check_key, check_property_name, check_table_name
from partita.ticks import TICKS_PER_SECOND

T = TypeVar("T")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Crashed(BaseException):
    """The process ended here: no line of the steps runs any more."""


_WAITS = (Sleep, Parallel, Beside)
"""Calls that no service sees."""


class Fault(enum.Enum):
    """What may happen to one call."""

    CRASH_BEFORE = "the process ends before the call is performed"
    CRASH_AFTER = "the call is performed, the process ends before it sees the answer"
    CRASH_BETWEEN = "a call of two requests is half performed (append to a new blob), then the end"
    BUSY = "503: nothing is performed"
    LOST = "the call is performed, its answer is lost, the caller gets an error"
    LOST_BETWEEN = "a call of two requests is half performed, the caller gets an error"
    REPEATED = "the answer is lost and the client library sends the request again by itself"


CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_BETWEEN)
ERRORS = (Fault.BUSY, Fault.LOST, Fault.LOST_BETWEEN, Fault.REPEATED)


class StoredMessage(msgspec.Struct):
    id: str
    text: str
    visible_at: float
    receipt: str = ""
    dequeue_count: int = 0


class StoredBlob(msgspec.Struct):
    content: bytes
    etag: str
    metadata: dict[str, str]
    modified: datetime
    blocks: int = 0
    """How many blocks were appended."""


class _Task:
    """One generator being driven; `pending` is the call it waits for."""

    def __init__(self, steps: Steps[Any], parent: "_Task | None" = None, place: int = 0) -> None:
        self.steps = steps
        self.parent = parent
        self.place = place
        self.pending: Call[Any] | None = None
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_answered = True  # the first send(None) starts it
        self.wake_at = 0.0
        self.children: list[_Task] = []
        self.background: _Task | None = None
        self.waiting: list[tuple[int, Steps[Any]]] = []
        self.limit = 0
        self.answers: list[Any] = []
        self.is_done = False

    @property
    def is_parent(self) -> bool:
        return bool(self.children)


_abandoned: list[object] = []
"""Generators of crashed processes: were they collected, their `finally` blocks would run."""


class FakeWorld:
    """Performs calls on dicts; `history` is every call that reached a service, in order.

    `refuse` is asked before each call and may return an error to raise instead of performing it.
    """

    def __init__(
        self,
        *,
        seed: int | None = None,
        clock: ManualClock | None = None,
        page_size: int = 1000,
        is_hostile: bool = False,
        is_ordered: bool = True,
        latency: float = 0.0,
    ) -> None:
        self.clock = clock or ManualClock()
        self.tables: dict[str, dict[RowKey, Row]] = {}
        """By lower-cased name; `table_names` has them as they were written."""
        self.table_names: dict[str, str] = {}
        self.queues: dict[str, list[StoredMessage]] = {}
        self.containers: dict[str, dict[str, StoredBlob]] = {}
        self.history: list[Call[Any]] = []
        self.refuse: Callable[[Call[Any]], PartitaError | None] | None = None
        self.before: Callable[[Call[Any]], None] | None = None
        """A hook for tests that change the world right before a call is performed."""
        self.between: Callable[[Call[Any]], None] | None = None
        """A hook for what others do before a request whose answer was lost is sent again."""
        self.deletion_seconds = 0.0
        """How long the name of a deleted table stays taken."""
        self.append_blocks_max = 50_000
        self.adopts_empty_blobs = True
        """Whether an append at 0 goes into an empty blob that is there already."""
        self.page_size = page_size
        self.latency = latency
        self.in_flight = 0
        self.in_flight_max = 0
        self._is_hostile = is_hostile
        self._is_ordered = is_ordered
        self._random = None if seed is None else random.Random(seed)
        self._chance = random.Random(seed or 0)
        self._faults: dict[int, Fault] = {}
        self._awaited: list[tuple[Callable[[Call[Any]], bool], Fault]] = []
        self.attempts = 0
        """How many calls the steps made, refused ones included."""
        self._version = 0
        self._being_deleted: dict[str, float] = {}

    # -----------------------------------------------------------------------------------------
    # Driving

    def run(self, steps: Steps[T]) -> T:
        """Drive steps to their end and return what they return."""
        return cast("T", self._drive([steps])[0])

    def run_all(self, *steps: Steps[Any]) -> list[Any]:
        """Drive several processes at once; an error of one is its answer and ends only it."""
        return self._drive(list(steps), keep_errors=True)

    def fail(self, call: int, fault: Fault) -> None:
        """Let a fault happen to the `call`-th call from now (1 is the next one)."""
        self._faults[self.attempts + call] = fault

    def fail_when(self, is_meant: Callable[[Call[Any]], bool], fault: Fault) -> None:
        """Let a fault happen to the next call that is meant."""
        self._awaited.append((is_meant, fault))

    def restart(self) -> None:
        """Forget all faults that are still to come."""
        self._faults.clear()
        self._awaited.clear()

    def continue_etags(self, other: "FakeWorld") -> None:
        """Go on counting versions where another world stands, of which this one is a copy."""
        self._version = other._version

    def requests(self, kind: type[Call[Any]] | None = None) -> int:
        return len(self.history) if kind is None else sum(isinstance(c, kind) for c in self.history)

    @property
    def now(self) -> datetime:
        return EPOCH + timedelta(microseconds=self.clock.ticks() // 10)

    def _drive(self, roots: list[Steps[Any]], *, keep_errors: bool = False) -> list[Any]:
        tasks = [_Task(steps, None, place) for place, steps in enumerate(roots)]
        outcomes: list[Any] = [None] * len(roots)
        live = list(tasks)
        try:
            while live:
                task = self._next(live)
                if task.pending is not None and not task.is_answered:
                    self._perform_for(task, live)
                    continue
                self._resume(task, live, outcomes, keep_errors=keep_errors)
        except Crashed:
            _abandoned.extend(task.steps for task in live)
            raise
        return outcomes

    def _next(self, live: list[_Task]) -> _Task:
        while True:
            now = self.clock.monotonic()
            ready = [t for t in live if not t.is_parent and t.wake_at <= now]
            if ready:
                return self._random.choice(ready) if self._random else ready[0]
            asleep = [t.wake_at for t in live if not t.is_parent]
            assert asleep, "every task waits for another"
            self.clock.advance(max(min(asleep) - now, 1e-9))

    def _perform_for(self, task: _Task, live: list[_Task]) -> None:
        call = task.pending
        assert call is not None
        task.is_answered = True
        match call:
            case Sleep(seconds=seconds):
                task.wake_at = self.clock.monotonic() + seconds
            case Parallel(steps=steps, limit=limit):
                task.answers = [None] * len(steps)
                task.waiting = list(enumerate(steps))[::-1]
                task.limit = max(limit, 1)
                self._start_children(task, live)
            case Beside(steps=main, background=background):
                task.children = [_Task(main, task), _Task(background, task)]
                task.background = task.children[1]
                live[live.index(task) : live.index(task)] = task.children
            case _:
                self.in_flight += 1
                self.in_flight_max = max(self.in_flight_max, self.in_flight)
                try:
                    task.answer = self._attempt(call)
                except PartitaError as error:
                    task.error = error
                except Exception as error:
                    if not isinstance(call, Invoke):
                        raise
                    task.error = error
                task.wake_at = self.clock.monotonic() + self.latency

    def _start_children(self, task: _Task, live: list[_Task]) -> None:
        while task.waiting and len(task.children) < task.limit:
            place, steps = task.waiting.pop()
            child = _Task(steps, task, place)
            task.children.append(child)
            live.insert(live.index(task), child)
        if not task.children:
            task.answer = tuple(task.answers)

    def _resume(
        self, task: _Task, live: list[_Task], outcomes: list[Any], *, keep_errors: bool
    ) -> None:
        answer, error = task.answer, task.error
        if task.pending is not None and not isinstance(task.pending, _WAITS):
            self.in_flight -= 1
        task.answer = task.error = task.pending = None
        try:
            task.pending = task.steps.send(answer) if error is None else task.steps.throw(error)
            task.is_answered = False
        except StopIteration as end:
            self._end(task, live, outcomes, end.value)
        except Crashed:
            raise
        except BaseException as raised:  # noqa: BLE001 - it is the answer of the task
            self._end_badly(task, live, outcomes, raised, keep_errors=keep_errors)

    def _end(self, task: _Task, live: list[_Task], outcomes: list[Any], value: Any) -> None:
        task.is_done = True
        live.remove(task)
        parent = task.parent
        if parent is None:
            outcomes[task.place] = value
            return
        parent.children.remove(task)
        if parent.background is None:
            parent.answers[task.place] = value
            self._start_children(parent, live)
        elif task is not parent.background:
            self._cancel_children(parent, live)
            parent.background, parent.answer = None, value

    def _end_badly(
        self,
        task: _Task,
        live: list[_Task],
        outcomes: list[Any],
        error: BaseException,
        *,
        keep_errors: bool,
    ) -> None:
        task.is_done = True
        live.remove(task)
        if task.parent is None:
            if not keep_errors:
                for other in live:
                    other.steps.close()
                raise error
            outcomes[task.place] = error
            return
        parent = task.parent
        parent.children.remove(task)
        if task is parent.background:
            return  # because its errors are nobody's
        self._cancel_children(parent, live)
        parent.background, parent.error = None, error

    def _cancel_children(self, task: _Task, live: list[_Task]) -> None:
        for child in task.children:
            self._cancel_children(child, live)
            live.remove(child)
            if child.pending is not None and child.is_answered and not child.is_parent:
                self.in_flight -= not isinstance(child.pending, _WAITS)
            child.steps.close()
        for _, steps in task.waiting:
            steps.close()
        task.children, task.waiting = [], []

    # -----------------------------------------------------------------------------------------
    # One call

    def _attempt(self, call: Call[Any]) -> Any:
        self.attempts += 1
        fault = self._faults.pop(self.attempts, None) or self._awaited_fault(call)
        if fault is Fault.CRASH_BEFORE:
            raise Crashed
        if fault is Fault.BUSY:
            error = ThrottledError("ServerBusy", "The server is busy.")
            error.retry_after = 1.0
            raise error
        answer: Any = None
        if fault in (Fault.CRASH_BETWEEN, Fault.LOST_BETWEEN):
            self._perform_half(call)
        else:
            self._check_refusal(call)
            answer = self.perform(call)
            if fault is Fault.REPEATED:
                answer = self._perform_again(call)
        if fault in (Fault.CRASH_AFTER, Fault.CRASH_BETWEEN):
            raise Crashed
        if fault in (Fault.LOST, Fault.LOST_BETWEEN):
            raise UnavailableError("AnswerLost", "The connection ended before the answer came.")
        return answer

    def _awaited_fault(self, call: Call[Any]) -> Fault | None:
        for place, (is_meant, fault) in enumerate(self._awaited):
            if is_meant(call):
                del self._awaited[place]
                return fault
        return None

    def _perform_again(self, call: Call[Any]) -> Any:
        if self.between is not None:
            self.between(call)
        try:
            return self.perform(call)
        except PartitaError as error:
            error.facts["answer_lost"] = True  # as the ports say it
            raise

    def _check_refusal(self, call: Call[Any]) -> None:
        if self.before is not None:
            self.before(call)
        if self.refuse is not None and (error := self.refuse(call)) is not None:
            raise error

    def _perform_half(self, call: Call[Any]) -> None:
        """Do the first of two requests: only an append to a new blob has two."""
        if isinstance(call, AppendBlob) and call.position == 0:
            self.history.append(call)
            blobs = self._container(call.container)
            if call.name not in blobs:
                blobs[call.name] = self._blob(b"", call.metadata)
        else:
            self.perform(call)

    def perform(self, call: Call[T]) -> T:
        """Perform one call now, without faults: tests may play another process with it."""
        self.history.append(call)
        return cast("T", _PERFORMERS[type(call)](self, call))

    # -----------------------------------------------------------------------------------------
    # Tables

    def rows(self, table: str) -> list[Row]:
        """Return all rows of a table, in the order of their keys."""
        return [row for _, row in sorted(self._table(table).items())]

    def _table(self, name: str) -> dict[RowKey, Row]:
        found = self.tables.get(name.lower())
        if found is None:
            raise TableNotFoundError(
                "TableNotFound", "The table does not exist.", facts={"table": name}
            )
        return found

    def _get_row(self, call: GetRow) -> Row | None:
        row = self._table(call.table).get(call.key)
        return None if row is None else _selected(row, call.select)

    def _query_rows(self, call: QueryRows) -> RowPage:
        tree = filters.parse(call.filter)
        matches = (lambda _: True) if tree is None else filters.compile_filter(tree)
        size = min(call.size or 1000, self.page_size, 1000)
        start = call.continuation
        rows: list[Row] = []
        following: Continuation | None = None
        for key, row in self._in_order(self._table(call.table)):
            if start is not None and self._sort_key(key) < self._sort_key(
                RowKey(start.partition, start.row or "")
            ):
                continue
            if self._is_hostile and self._chance.random() < 0.2:
                following = Continuation(key.partition, key.row)
                break
            if not matches(members_of(row)):
                continue
            if len(rows) == size:
                following = Continuation(key.partition, key.row)
                break
            rows.append(_selected(row, call.select))
        return RowPage(tuple(rows), following)

    def _in_order(self, table: dict[RowKey, Row]) -> list[tuple[RowKey, Row]]:
        return sorted(table.items(), key=lambda pair: self._sort_key(pair[0]))

    def _sort_key(self, key: RowKey) -> tuple[object, ...]:
        # An endpoint that does not sort still has one order for its continuations.
        if self._is_ordered:
            return (key.partition, key.row)
        return (random.Random(f"{key.partition}/{key.row}").random(), key.partition, key.row)

    def _write_rows(self, call: WriteRows) -> tuple[str, ...]:
        table = self._table(call.table)
        _check_group(call.operations)
        changed = {key: table[key] for each in call.operations if (key := each.row.key) in table}
        etags = []
        for index, operation in enumerate(call.operations):
            try:
                etags.append(self._apply(changed, operation))
            except PartitaError as error:
                error.facts["index"] = index
                raise
        for operation in call.operations:
            table.pop(operation.row.key, None)
        table.update(changed)
        return tuple(etags)

    def _apply(self, table: dict[RowKey, Row], operation: RowOperation) -> str:
        key, verb = operation.row.key, operation.verb
        check_key("PartitionKey", key.partition)
        check_key("RowKey", key.row)
        before = table.get(key)
        if verb is Verb.INSERT and before is not None:
            raise EntityExistsError("EntityAlreadyExists", "The specified entity already exists.")
        if verb in (Verb.REPLACE, Verb.MERGE, Verb.DELETE):
            if before is None:
                raise EntityNotFoundError("ResourceNotFound", "The entity does not exist.")
            if operation.etag not in ("*", before.etag):
                raise ETagMismatchError(
                    "UpdateConditionNotSatisfied", "The update condition was not satisfied."
                )
        if verb is Verb.DELETE:
            del table[key]
            return ""
        properties = dict(operation.row.properties)
        for name in properties:
            check_property_name(name)
        if verb in (Verb.MERGE, Verb.UPSERT_MERGE) and before is not None:
            properties = before.properties | properties
        after = Row(key, properties, self._etag(), self.now)
        if measure(after) > table_limits.ENTITY_BYTES_MAX or (
            len(after.properties) > table_limits.PROPERTIES_MAX
        ):
            raise LimitExceededError("EntityTooLarge", "The entity is too large.")
        table[key] = after
        return after.etag

    def _etag(self) -> str:
        self._version += 1
        return f'W/"{self._version}"'

    def _create_table(self, call: CreateTable) -> bool:
        check_table_name(call.table)
        name = call.table.lower()
        if self._being_deleted.get(name, -math.inf) > self.clock.monotonic():
            raise UnavailableError("TableBeingDeleted", "The specified table is being deleted.")
        if name in self.tables:
            return False
        self.tables[name] = {}
        self.table_names[name] = call.table
        return True

    def _delete_table(self, call: DeleteTable) -> bool:
        name = call.table.lower()
        self.table_names.pop(name, None)
        if self.tables.pop(name, None) is None:
            return False
        self._being_deleted[name] = self.clock.monotonic() + self.deletion_seconds
        return True

    def _list_tables(self, call: ListTables) -> tuple[str, ...]:
        prefix = call.prefix.lower()
        return tuple(
            self.table_names[name] for name in sorted(self.tables) if name.startswith(prefix)
        )

    # -----------------------------------------------------------------------------------------
    # Queues

    def _queue(self, name: str) -> list[StoredMessage]:
        if name not in self.queues:
            raise QueueNotFoundError(
                "QueueNotFound", "The specified queue does not exist.", facts={"queue": name}
            )
        return self.queues[name]

    def _create_queue(self, call: CreateQueue) -> bool:
        if call.queue in self.queues:
            return False
        self.queues[call.queue] = []
        return True

    def _put_message(self, call: PutMessage) -> None:
        visible_at = self.clock.monotonic() + call.delay
        message = StoredMessage(self.clock.new_id(), call.text, visible_at)
        self._queue(call.queue).append(message)

    def _receive_messages(self, call: ReceiveMessages) -> tuple[Message, ...]:
        assert 1 <= call.count <= 32, "the service hands out 32 messages at most"
        now = self.clock.monotonic()
        seen = [message for message in self._queue(call.queue) if message.visible_at <= now]
        if self._random:
            self._random.shuffle(seen)
        claimed = []
        for message in seen[: call.count]:
            message.dequeue_count += 1
            claimed.append(self._claim(message, call.visibility))
        return tuple(claimed)

    def _claim(self, message: StoredMessage, visibility: float) -> Message:
        message.receipt = self.clock.new_id()
        message.visible_at = self.clock.monotonic() + visibility
        return Message(message.id, message.receipt, message.text, message.dequeue_count)

    def _held(self, queue: str, message: Message) -> StoredMessage | None:
        for stored in self._queue(queue):
            if stored.id == message.id and stored.receipt == message.receipt:
                return stored
        return None

    def _renew_message(self, call: RenewMessage) -> Message | None:
        stored = self._held(call.queue, call.message)
        return None if stored is None else self._claim(stored, call.visibility)

    def _delete_message(self, call: DeleteMessage) -> bool:
        stored = self._held(call.queue, call.message)
        if stored is None:
            return False
        self._queue(call.queue).remove(stored)
        return True

    # -----------------------------------------------------------------------------------------
    # Blobs

    def _container(self, name: str) -> dict[str, StoredBlob]:
        if name not in self.containers:
            raise ConflictError(
                "ContainerNotFound",
                "The specified container does not exist.",
                facts={"container": name},
            )
        return self.containers[name]

    def _blob(self, content: bytes, metadata: dict[str, str]) -> StoredBlob:
        return StoredBlob(content, self._etag(), dict(metadata), self.now)

    def _create_container(self, call: CreateContainer) -> bool:
        if call.container in self.containers:
            return False
        self.containers[call.container] = {}
        return True

    def _put_blob(self, call: PutBlob) -> str | None:
        blobs = self._container(call.container)
        before = blobs.get(call.name)
        if call.etag == "" and before is not None:
            return None
        if call.etag and (before is None or before.etag != call.etag):
            return None
        blobs[call.name] = self._blob(call.content, call.metadata)
        return blobs[call.name].etag

    def _get_blob(self, call: GetBlob) -> Blob | None:
        stored = self._container(call.container).get(call.name)
        if stored is None:
            return None
        end = None if call.length is None else call.offset + call.length
        return Blob(stored.content[call.offset : end], stored.etag, dict(stored.metadata))

    def _append_blob(self, call: AppendBlob) -> int | None:
        blobs = self._container(call.container)
        blob = blobs.get(call.name)
        if call.position == 0:
            if blob is None:
                blob = blobs[call.name] = self._blob(b"", call.metadata)
            elif not self.adopts_empty_blobs:
                return None
        if blob is None or len(blob.content) != call.position:
            return None
        if blob.blocks >= self.append_blocks_max:
            raise ConflictError(
                "BlockCountExceedsLimit",
                "The committed block count cannot exceed the maximum limit of 50,000 blocks.",
            )
        blob.content += call.content
        blob.blocks += 1
        blob.etag, blob.modified = self._etag(), self.now
        return len(blob.content)

    def _set_blob_metadata(self, call: SetBlobMetadata) -> bool:
        blob = self._container(call.container).get(call.name)
        if blob is None:
            return False
        blob.metadata = dict(call.metadata)
        blob.etag, blob.modified = self._etag(), self.now
        return True

    def _delete_blob(self, call: DeleteBlob) -> bool:
        blobs = self._container(call.container)
        blob = blobs.get(call.name)
        if blob is None or call.etag not in (None, blob.etag):
            return False
        del blobs[call.name]
        return True

    def _list_blobs(self, call: ListBlobs) -> BlobPage:
        listed: list[ListedBlob] = []
        for name, blob in sorted(self._container(call.container).items()):
            if not name.startswith(call.prefix) or name < call.continuation:
                continue
            is_cut = self._is_hostile and self._chance.random() < 0.2
            if len(listed) == self.page_size or is_cut:
                return BlobPage(tuple(listed), name)
            listed.append(
                ListedBlob(name, blob.etag, len(blob.content), blob.modified, dict(blob.metadata))
            )
        return BlobPage(tuple(listed))

    # -----------------------------------------------------------------------------------------
    # The rest

    def _invoke(self, call: Invoke) -> Any:
        answer = call.function(*call.arguments)
        return _finish(answer) if inspect.iscoroutine(answer) else answer


_PERFORMERS: dict[type, Callable[[FakeWorld, Any], Any]] = {
    GetRow: FakeWorld._get_row,
    QueryRows: FakeWorld._query_rows,
    WriteRows: FakeWorld._write_rows,
    CreateTable: FakeWorld._create_table,
    DeleteTable: FakeWorld._delete_table,
    ListTables: FakeWorld._list_tables,
    CreateQueue: FakeWorld._create_queue,
    PutMessage: FakeWorld._put_message,
    ReceiveMessages: FakeWorld._receive_messages,
    RenewMessage: FakeWorld._renew_message,
    DeleteMessage: FakeWorld._delete_message,
    CreateContainer: FakeWorld._create_container,
    PutBlob: FakeWorld._put_blob,
    GetBlob: FakeWorld._get_blob,
    AppendBlob: FakeWorld._append_blob,
    SetBlobMetadata: FakeWorld._set_blob_metadata,
    DeleteBlob: FakeWorld._delete_blob,
    ListBlobs: FakeWorld._list_blobs,
    Invoke: FakeWorld._invoke,
}


def each_fault(
    scenario: Callable[[FakeWorld], object],
    *,
    faults: tuple[Fault, ...] = CRASHES,
    build: Callable[[], FakeWorld] = FakeWorld,
) -> Iterator[tuple[FakeWorld, str]]:
    """Run a scenario once for every call in it and every fault; yield the world after it.

    The text says where it was stopped. Only a crash is swallowed: what a scenario raises after
    an error was injected is its own affair.
    """
    whole = build()
    scenario(whole)
    for call in range(1, whole.attempts + 1):
        for fault in faults:
            world = build()
            world.fail(call, fault)
            with contextlib.suppress(Crashed):
                scenario(world)
            world.restart()
            yield world, f"{fault.name} at call {call}: {_name(whole, call)}"


def _name(world: FakeWorld, call: int) -> str:
    return type(world.history[call - 1]).__name__ if call <= len(world.history) else "?"


def members_of(row: Row) -> dict[str, object]:
    """Return a row as the filter evaluator of the service wants it."""
    members: dict[str, object] = {
        "PartitionKey": row.key.partition,
        "RowKey": row.key.row,
        "Timestamp": _time_text(row.timestamp or EPOCH),
    }
    for name, value in row.properties.items():
        annotation, stored = _stored(value)
        if annotation:
            members[name + edm.TYPE_SUFFIX] = annotation
        members[name] = stored
    return members


def _stored(value: Value) -> tuple[str, object]:  # noqa: PLR0911 - one honest switch
    match value:
        case bool() | str():
            return "", value
        case Int32():
            return "", int(value)
        case int():
            return edm.INT64, str(value)
        case float():
            return ("", value) if math.isfinite(value) else (edm.DOUBLE, str(value))
        case bytes():
            return edm.BINARY, base64.b64encode(value).decode()
        case datetime():
            return edm.DATETIME, _time_text(value)
        case UUID():
            return edm.GUID, str(value)


def _time_text(moment: datetime) -> str:
    if isinstance(moment, Instant):
        ticks = edm.ticks_of(moment.text)
        assert ticks is not None
        return edm.text_of(ticks)
    return edm.text_of((moment - EPOCH) // timedelta(microseconds=1) * (TICKS_PER_SECOND // 10**6))


def _selected(row: Row, select: tuple[str, ...] | None) -> Row:
    if select is None:
        return row
    properties = {name: row.properties[name] for name in select if name in row.properties}
    return Row(row.key, properties, row.etag, row.timestamp)


def _check_group(operations: tuple[RowOperation, ...]) -> None:
    assert operations, "a group has one operation at least"
    if len(operations) > table_limits.GROUP_OPERATIONS_MAX:
        raise GroupRuleError("InvalidInput", "99: The batch request contains too many operations.")
    keys = [operation.row.key for operation in operations]
    if len({key.partition for key in keys}) > 1:
        raise GroupRuleError("CommandsInBatchActOnDifferentPartitions", "More than one partition.")
    if len(set(keys)) < len(keys):
        raise GroupRuleError("InvalidDuplicateRow", "A row is named twice.")


def _finish(coroutine: Generator[Any, Any, Any] | Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("a function of a test may not wait for anything")
