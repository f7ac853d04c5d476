"""One suite for every port of the typed layer: SDK and direct, both faces, in process and by HTTP.

What holds for one port holds for all: the core cannot tell them apart.
"""

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

import pytest

from partita.errors import (
    ConfigurationError,
    ConflictError,
    EntityExistsError,
    EntityNotFoundError,
    ETagMismatchError,
    FilterSyntaxError,
    GroupRuleError,
    InvalidKeyError,
    NotAuthorizedError,
    NotSupportedError,
    PartitaError,
    QueueNotFoundError,
    TableNotFoundError,
    ThrottledError,
    UnavailableError,
    UsageError,
)
from partita.patterns.faults import Faults, ShufflingPort
from partita.patterns.ports.aio_port import AsyncPort, run_steps
from partita.patterns.ports.connecting import open_async, open_sync
from partita.patterns.ports.sync_port import SyncPort
from partita.patterns.ports.sync_port import run_steps as run_steps_sync
from partita.patterns.protocol.calls import (
    AppendBlob,
    Blob,
    Call,
    Cost,
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
    ListTables,
    Parallel,
    PutBlob,
    PutMessage,
    QueryRows,
    ReceiveMessages,
    RenewMessage,
    RowOperation,
    SetBlobMetadata,
    Sleep,
    Steps,
    Verb,
    WriteRows,
    ask,
)
from partita.patterns.protocol.values import Instant, Int32, Row, RowKey, measure
from partita.service.hosting.in_process import LocalAccount, open_account
from support.live import LiveServer

T = TypeVar("T")

IN_PROCESS = ("aio", "sync", "direct", "direct-sync", "shuffled")
BY_HTTP = ("aio-http", "sync-http")
SDK = ("aio", "sync")


class Face:
    """Either face of a port, driven in one way; `cost` is what was asked of it so far."""

    def __init__(self, port: AsyncPort | None, twin: SyncPort | None) -> None:
        self._port = port
        self._twin = twin
        self.cost = Cost()

    @property
    def capabilities(self) -> Any:
        return (self._port or self._twin).capabilities  # type: ignore[union-attr]

    async def ask(self, call: Call[T]) -> T:
        return await self.run(ask(call))

    async def run(self, steps: Steps[T]) -> T:
        if self._port is not None:
            return await run_steps(steps, self._port, self.cost)
        assert self._twin is not None
        return run_steps_sync(steps, self._twin, self.cost)

    async def close(self) -> None:
        if self._port is not None:
            await self._port.close()
        if self._twin is not None:
            self._twin.close()


async def open_face(kind: str, where: Any) -> Face:
    is_direct = kind.startswith("direct")
    if "sync" in kind:
        return Face(None, open_sync(where, direct=is_direct))
    port = await open_async(where, direct=is_direct)
    return Face(ShufflingPort(port) if kind == "shuffled" else port, None)


@pytest.fixture
def account() -> Iterator[LocalAccount]:
    with open_account(None) as opened:
        yield opened


@pytest.fixture
def faults(account: LocalAccount) -> Faults:
    return Faults(account)


@pytest.fixture(params=[*IN_PROCESS, *BY_HTTP])
async def face(request: pytest.FixtureRequest) -> AsyncIterator[Face]:
    """Each port in turn."""
    kind: str = request.param
    if kind.endswith("-http"):
        server: LiveServer = request.getfixturevalue("server")
        opened = await open_face(kind, server.connection_string)
    else:
        opened = await open_face(kind, request.getfixturevalue("account"))
    yield opened
    await opened.close()


@pytest.fixture(params=SDK)
async def sdk(request: pytest.FixtureRequest, account: LocalAccount) -> AsyncIterator[Face]:
    """The ports over the SDK, at an account in which faults may happen."""
    opened = await open_face(request.param, account)
    yield opened
    await opened.close()


@pytest.fixture
async def staff(face: Face) -> str:
    """A table that exists and is empty."""
    name = f"T{uuid.uuid4().hex}"
    assert await face.ask(CreateTable(name))
    return name


def a_row(row_key: str = "00010", /, **properties: Any) -> Row:
    return Row(RowKey("Sales", row_key), properties)


def insert(table: str, *rows: Row) -> WriteRows:
    return WriteRows(table, tuple(RowOperation(Verb.INSERT, row) for row in rows))


def write(table: str, verb: Verb, row: Row, etag: str = "*") -> WriteRows:
    return WriteRows(table, (RowOperation(verb, row, etag),))


async def refused(face: Face, call: Call[Any]) -> PartitaError:
    with pytest.raises(PartitaError) as caught:
        await face.ask(call)
    return caught.value


# Rows

EVERYTHING: dict[str, Any] = {
    "Text": "caf\N{LATIN SMALL LETTER E WITH ACUTE} \N{GRINNING FACE}",
    "Empty": "",
    "Bytes": b"\x00\xff",
    "Truth": True,
    "Small": Int32(-(2**31)),
    "Large": 2**63 - 1,
    "Number": -1.5e300,
    "Endless": float("-inf"),
    "Id": UUID(int=7),
    "At": Instant.of(datetime(2026, 1, 2, 3, 4, 5, 1, UTC), "2026-01-02T03:04:05.0000012Z"),
}


async def test_a_row_comes_back_with_its_types(face: Face, staff: str) -> None:
    (etag,) = await face.ask(insert(staff, a_row(**EVERYTHING)))

    found = await face.ask(GetRow(staff, RowKey("Sales", "00010")))

    assert found is not None
    assert found.properties == EVERYTHING
    assert {name: type(value) for name, value in found.properties.items()} == {
        name: type(value) for name, value in EVERYTHING.items()
    }
    assert found.properties["At"].text == "2026-01-02T03:04:05.0000012Z"  # type: ignore[union-attr]
    assert found.etag == etag
    assert isinstance(found.timestamp, Instant)
    assert found.timestamp.text.replace(":", "%3A") in etag


@pytest.mark.parametrize("key", [RowKey("", ""), RowKey("it's", "50% \N{GRINNING FACE}=&+")])
async def test_hostile_keys_are_kept(face: Face, staff: str, key: RowKey) -> None:
    await face.ask(insert(staff, Row(key, {"Age": 7})))

    found = await face.ask(GetRow(staff, key))
    page = await face.ask(QueryRows(staff))

    assert found is not None
    assert found.key == key
    assert [row.key for row in page.rows] == [key]


async def test_a_missing_row_is_none_and_a_missing_table_raises(face: Face, staff: str) -> None:
    key = RowKey("Sales", "00010")

    assert await face.ask(GetRow(staff, key)) is None
    error = await refused(face, GetRow("Nowhere", key))

    assert (type(error), error.code) == (TableNotFoundError, "TableNotFound")
    assert error.facts["table"] == "Nowhere"


async def test_only_what_is_selected_is_read(face: Face, staff: str) -> None:
    await face.ask(insert(staff, a_row(Age=Int32(7), Name="Ken")))

    one = await face.ask(GetRow(staff, RowKey("Sales", "00010"), ("Age", "Absent")))
    keys = await face.ask(QueryRows(staff, select=()))

    assert one is not None
    assert one.properties == {"Age": 7}
    assert one.etag != ""
    assert one.timestamp is None
    assert [(row.key, row.properties) for row in keys.rows] == [(RowKey("Sales", "00010"), {})]


async def test_a_timestamp_may_be_selected(face: Face, staff: str) -> None:
    await face.ask(insert(staff, a_row(Age=7)))

    found = await face.ask(GetRow(staff, RowKey("Sales", "00010"), ("Timestamp",)))

    assert found is not None
    assert found.timestamp is not None
    assert found.properties == {}


# Pages


async def test_a_page_has_at_most_its_size_and_the_next_goes_on(face: Face, staff: str) -> None:
    await face.ask(insert(staff, *(a_row(f"{n}", N=n) for n in range(5))))

    first = await face.ask(QueryRows(staff, size=2))
    second = await face.ask(QueryRows(staff, size=2, continuation=first.continuation))
    third = await face.ask(QueryRows(staff, size=2, continuation=second.continuation))

    assert [len(page.rows) for page in (first, second, third)] == [2, 2, 1]
    assert third.continuation is None
    read = [row.key.row for page in (first, second, third) for row in page.rows]
    assert sorted(read) == ["0", "1", "2", "3", "4"]
    if face.capabilities.is_ordered:
        assert read == sorted(read)


async def test_a_filter_chooses(face: Face, staff: str) -> None:
    await face.ask(insert(staff, *(a_row(f"{n}", N=n) for n in range(5))))

    page = await face.ask(QueryRows(staff, "PartitionKey eq 'Sales' and N ge 3L"))

    assert {row.key.row for row in page.rows} == {"3", "4"}


async def test_a_filter_that_cannot_be_read_is_refused(face: Face, staff: str) -> None:
    error = await refused(face, QueryRows(staff, "Age eq ("))

    assert (type(error), error.code) == (FilterSyntaxError, "InvalidInput")


# Writes


async def test_verbs_do_what_they_say(face: Face, staff: str) -> None:
    key = RowKey("Sales", "00010")

    await face.ask(insert(staff, a_row(Name="Ken", Age=Int32(7))))
    await face.ask(write(staff, Verb.MERGE, a_row(Age=Int32(8))))
    merged = await face.ask(GetRow(staff, key))
    await face.ask(write(staff, Verb.REPLACE, a_row(Age=Int32(9))))
    replaced = await face.ask(GetRow(staff, key))
    await face.ask(write(staff, Verb.UPSERT_MERGE, a_row(Name="Jo")))
    upserted = await face.ask(GetRow(staff, key))
    await face.ask(write(staff, Verb.UPSERT_REPLACE, a_row("00011", Name="Li")))
    (gone,) = await face.ask(write(staff, Verb.DELETE, a_row()))

    assert [row and row.properties for row in (merged, replaced, upserted)] == [
        {"Name": "Ken", "Age": 8},
        {"Age": 9},
        {"Age": 9, "Name": "Jo"},
    ]
    assert gone == ""
    assert [row.key.row for row in (await face.ask(QueryRows(staff))).rows] == ["00011"]


@pytest.mark.parametrize("verb", [Verb.REPLACE, Verb.MERGE, Verb.DELETE])
async def test_a_stale_etag_is_refused(face: Face, staff: str, verb: Verb) -> None:
    (stale,) = await face.ask(insert(staff, a_row(Age=7)))
    (current,) = await face.ask(write(staff, Verb.MERGE, a_row(Age=8)))

    error = await refused(face, write(staff, verb, a_row(Age=9), stale))
    await face.ask(write(staff, verb, a_row(Age=9), current))

    assert (type(error), error.code) == (ETagMismatchError, "UpdateConditionNotSatisfied")
    assert error.facts == {"table": staff, "index": 0}


@pytest.mark.parametrize("verb", [Verb.REPLACE, Verb.MERGE, Verb.DELETE])
async def test_a_change_of_a_missing_row_is_refused(face: Face, staff: str, verb: Verb) -> None:
    error = await refused(face, write(staff, verb, a_row(Age=9)))

    assert (type(error), error.code) == (EntityNotFoundError, "ResourceNotFound")
    assert error.facts == {"table": staff, "index": 0}


async def test_an_insert_over_a_row_is_refused(face: Face, staff: str) -> None:
    await face.ask(insert(staff, a_row(Age=7)))

    error = await refused(face, insert(staff, a_row(Age=8)))

    assert (type(error), error.code) == (EntityExistsError, "EntityAlreadyExists")
    assert error.message == "The specified entity already exists."
    assert error.facts == {"table": staff, "index": 0}


@pytest.mark.parametrize("verb", list(Verb))
async def test_a_write_to_a_missing_table_is_refused(face: Face, verb: Verb) -> None:
    error = await refused(face, write("Nowhere", verb, a_row()))

    assert (type(error), error.code) == (TableNotFoundError, "TableNotFound")


async def test_a_group_answers_the_etags_in_order(face: Face, staff: str) -> None:
    (first,) = await face.ask(insert(staff, a_row("1", N=1)))

    etags = await face.ask(
        WriteRows(
            staff,
            (
                RowOperation(Verb.DELETE, a_row("1"), first),
                RowOperation(Verb.INSERT, a_row("2", N=2)),
                RowOperation(Verb.UPSERT_MERGE, a_row("3", N=3)),
            ),
        )
    )

    rows = {row.key.row: row.etag for row in (await face.ask(QueryRows(staff))).rows}
    assert etags == ("", rows["2"], rows["3"])


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_failing_group_names_the_place_and_changes_nothing(
    face: Face, staff: str, place: int
) -> None:
    await face.ask(insert(staff, a_row("taken")))
    rows = [a_row(f"{n}") for n in range(3)]
    rows[place] = a_row("taken", N=1)

    error = await refused(face, insert(staff, *rows))

    assert (type(error), error.facts["index"]) == (EntityExistsError, place)
    assert error.message == "The specified entity already exists."
    assert len((await face.ask(QueryRows(staff))).rows) == 1


async def test_conditions_hold_inside_a_group(face: Face, staff: str) -> None:
    (stale,) = await face.ask(insert(staff, a_row("1", N=1)))
    await face.ask(write(staff, Verb.MERGE, a_row("1", N=2)))

    for verb in (Verb.REPLACE, Verb.MERGE, Verb.DELETE):
        error = await refused(
            face,
            WriteRows(
                staff,
                (
                    RowOperation(Verb.INSERT, a_row("2")),
                    RowOperation(verb, a_row("1", N=3), stale),
                ),
            ),
        )
        assert (type(error), error.facts["index"]) == (ETagMismatchError, 1)


async def test_a_group_breaks_no_rule(face: Face, staff: str) -> None:
    twice = await refused(face, insert(staff, a_row("1"), a_row("1")))
    apart = await refused(face, insert(staff, a_row("1"), Row(RowKey("Other", "1"), {})))
    many = await refused(face, insert(staff, *(a_row(f"{n}") for n in range(101))))

    assert [type(error) for error in (twice, apart)] == [GroupRuleError, GroupRuleError]
    assert [error.code for error in (twice, apart, many)] == [
        "InvalidDuplicateRow",
        "CommandsInBatchActOnDifferentPartitions",
        "InvalidInput",
    ]
    assert isinstance(many, UsageError)


async def test_a_key_that_the_service_forbids_is_refused(face: Face, staff: str) -> None:
    error = await refused(face, insert(staff, a_row("a/b")))

    assert isinstance(error, UsageError)
    assert error.code == "OutOfRangeInput"


async def test_a_row_that_is_too_large_is_refused(face: Face, staff: str) -> None:
    error = await refused(face, insert(staff, a_row(**{f"P{n}": "x" * 32_000 for n in range(17)})))

    assert isinstance(error, UsageError)
    assert error.code in ("EntityTooLarge", "RequestBodyTooLarge")


# Tables


async def test_tables_are_made_once_and_deleted_once(face: Face) -> None:
    prefix = f"T{uuid.uuid4().hex[:20]}"
    names = [f"{prefix}a", f"{prefix}b"]

    assert [await face.ask(CreateTable(name)) for name in [*names, names[0]]] == [True, True, False]
    assert await face.ask(ListTables(prefix)) == tuple(names)
    assert set(names) <= set(await face.ask(ListTables()))
    assert [await face.ask(DeleteTable(names[0])) for _ in range(2)] == [True, False]
    assert await face.ask(ListTables(prefix)) == (names[1],)


async def test_an_illegal_table_name_is_refused(face: Face) -> None:
    error = await refused(face, CreateTable("no-dash"))

    assert (type(error), error.code) == (InvalidKeyError, "InvalidResourceName")


# Queues


@pytest.fixture
async def queue(face: Face) -> str:
    name = f"q{uuid.uuid4().hex}"
    assert await face.ask(CreateQueue(name))
    return name


async def test_a_queue_is_made_once(face: Face, queue: str) -> None:
    assert not await face.ask(CreateQueue(queue))


async def test_a_message_is_claimed_renewed_and_deleted_once(face: Face, queue: str) -> None:
    await face.ask(PutMessage(queue, '{"a": "<&>\N{GRINNING FACE}"}'))

    (message,) = await face.ask(ReceiveMessages(queue, count=32, visibility=30))
    nothing = await face.ask(ReceiveMessages(queue))
    renewed = await face.ask(RenewMessage(queue, message, visibility=0.5))
    assert renewed is not None

    assert (message.text, message.dequeue_count) == ('{"a": "<&>\N{GRINNING FACE}"}', 1)
    assert nothing == ()
    assert (renewed.id, renewed.text) == (message.id, message.text)
    assert renewed.receipt != message.receipt
    assert await face.ask(RenewMessage(queue, message)) is None
    assert not await face.ask(DeleteMessage(queue, message))
    assert await face.ask(DeleteMessage(queue, renewed))
    assert not await face.ask(DeleteMessage(queue, renewed))
    assert await face.ask(RenewMessage(queue, renewed)) is None


async def test_a_delayed_message_is_not_seen(face: Face, queue: str) -> None:
    await face.ask(PutMessage(queue, "later", delay=100))

    assert await face.ask(ReceiveMessages(queue, count=32)) == ()


async def test_a_missing_queue_is_refused(face: Face) -> None:
    error = await refused(face, PutMessage("nowhere", "text"))

    assert (type(error), error.facts["queue"]) == (QueueNotFoundError, "nowhere")


# Blobs


@pytest.fixture
async def container(face: Face) -> str:
    name = f"c{uuid.uuid4().hex}"
    assert await face.ask(CreateContainer(name))
    return name


async def test_a_container_is_made_once(face: Face, container: str) -> None:
    assert not await face.ask(CreateContainer(container))


async def test_a_blob_is_written_under_its_condition(face: Face, container: str) -> None:
    first = await face.ask(PutBlob(container, "a/b", b"1", {"owner": "ken"}, etag=""))
    assert first is not None
    assert await face.ask(GetBlob(container, "a/b")) == Blob(b"1", first, {"owner": "ken"})

    assert await face.ask(PutBlob(container, "a/b", b"2", etag="")) is None
    second = await face.ask(PutBlob(container, "a/b", b"2", etag=first))
    assert second not in (None, first)
    assert await face.ask(PutBlob(container, "a/b", b"3", etag=first)) is None
    third = await face.ask(PutBlob(container, "a/b", b""))
    assert third is not None
    assert await face.ask(GetBlob(container, "a/b")) == Blob(b"", third, {})


async def test_a_blob_is_deleted_under_its_condition(face: Face, container: str) -> None:
    etag = await face.ask(PutBlob(container, "a", b"1"))
    assert etag is not None

    assert not await face.ask(DeleteBlob(container, "a", '"0x0"'))
    assert await face.ask(DeleteBlob(container, "a", etag))
    assert not await face.ask(DeleteBlob(container, "a"))
    assert await face.ask(GetBlob(container, "a")) is None


async def test_an_append_names_the_end_of_the_blob(face: Face, container: str) -> None:
    assert await face.ask(AppendBlob(container, "log", b"abc", 0, {"hour": "7"})) == 3
    assert await face.ask(AppendBlob(container, "log", b"xyz", 0)) is None
    assert await face.ask(AppendBlob(container, "log", b"def", 3)) == 6
    assert await face.ask(AppendBlob(container, "log", b"def", 3)) is None
    assert await face.ask(AppendBlob(container, "none", b"def", 3)) is None

    found = await face.ask(GetBlob(container, "log"))
    assert found is not None
    assert (found.content, found.metadata) == (b"abcdef", {"hour": "7"})


async def test_an_append_blob_that_was_made_and_not_written_is_gone_on_with(
    face: Face, container: str
) -> None:
    assert await face.ask(AppendBlob(container, "log", b"", 0)) == 0

    assert await face.ask(AppendBlob(container, "log", b"abc", 0)) == 3


async def test_blobs_are_listed_with_their_metadata(face: Face, container: str) -> None:
    etag = await face.ask(PutBlob(container, "a/1", b"123", {"owner": "ken"}))
    await face.ask(PutBlob(container, "b/1", b""))

    page = await face.ask(ListBlobs(container, prefix="a/"))

    assert page.continuation == ""
    assert [(b.name, b.etag, b.length, b.metadata) for b in page.blobs] == [
        ("a/1", etag, 3, {"owner": "ken"})
    ]
    assert page.blobs[0].modified.tzinfo is not None


async def test_metadata_are_set_on_a_blob_that_is_there(face: Face, container: str) -> None:
    await face.ask(PutBlob(container, "a", b"1"))

    assert await face.ask(SetBlobMetadata(container, "a", {"owner": "li"}))
    assert not await face.ask(SetBlobMetadata(container, "none", {"owner": "li"}))

    found = await face.ask(GetBlob(container, "a"))
    assert found is not None
    assert found.metadata == {"owner": "li"}


async def test_a_missing_container_is_refused(face: Face) -> None:
    error = await refused(face, GetBlob("nowhere", "a"))

    assert (type(error), error.code) == (ConflictError, "ContainerNotFound")


# Cost


async def test_the_cost_is_what_was_sent_and_carried(face: Face, staff: str) -> None:
    row = a_row(Age=7)
    before = face.cost.copy()

    await face.ask(insert(staff, row))
    await face.ask(GetRow(staff, row.key))
    await face.ask(GetRow(staff, RowKey("Sales", "absent")))
    await face.ask(QueryRows(staff))
    await face.ask(write(staff, Verb.DELETE, row))

    assert face.cost.requests - before.requests == 5
    assert face.cost.entities - before.entities == 4
    carried = 3 * measure(row) + measure(Row(row.key, {}))
    assert face.cost.bytes - before.bytes == carried


async def test_a_group_is_one_request(face: Face, staff: str) -> None:
    before = face.cost.requests

    await face.ask(insert(staff, *(a_row(f"{n}") for n in range(100))))

    assert face.cost.requests - before == 1


async def test_messages_and_blobs_cost_their_bytes(face: Face, queue: str, container: str) -> None:
    before = face.cost.copy()

    await face.ask(PutMessage(queue, "four"))
    await face.ask(ReceiveMessages(queue))
    await face.ask(PutBlob(container, "a", b"123456"))
    await face.ask(GetBlob(container, "a"))

    assert face.cost.bytes - before.bytes == 2 * 4 + 2 * 6
    assert face.cost.requests - before.requests == 4


# Steps


async def test_steps_get_answers_and_errors(face: Face, staff: str) -> None:
    def steps() -> Steps[str]:
        try:
            yield from ask(GetRow("Nowhere", RowKey("a", "b")))
        except TableNotFoundError as error:
            yield from ask(Sleep(0))
            found = yield from ask(GetRow(staff, RowKey("a", "b")))
            return f"{error.code} {found}"
        return ""

    assert await face.run(steps()) == "TableNotFound None"


async def test_steps_run_in_parallel_and_answer_in_order(face: Face, staff: str) -> None:
    def save(number: int) -> Steps[int]:
        yield from ask(insert(staff, Row(RowKey(f"{number}", ""), {})))
        return number

    def steps() -> Steps[tuple[Any, ...]]:
        return (yield from ask(Parallel(tuple(map(save, range(20))), limit=4)))

    before = face.cost.copy()
    assert await face.run(steps()) == tuple(range(20))
    assert face.cost.requests - before.requests == 20
    assert face.cost.entities - before.entities == 20


async def test_no_more_than_the_limit_run_at_once(face: Face) -> None:
    running = 0
    most = 0
    counting = threading.Lock()

    def enter() -> None:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)

    def leave() -> None:
        nonlocal running
        with counting:
            running -= 1

    def step() -> Steps[None]:
        yield from ask(Invoke(enter))
        yield from ask(Sleep(0.002))
        for _ in range(5000):  # a busy machine starts threads late
            if most >= 3:
                break
            yield from ask(Sleep(0.002))
        yield from ask(Invoke(leave))

    await face.run(ask(Parallel(tuple(step() for _ in range(12)), limit=3)))

    assert most == 3


async def test_nothing_in_parallel_is_an_empty_answer(face: Face) -> None:
    assert await face.run(ask(Parallel(()))) == ()


async def test_the_first_error_ends_the_others_and_is_raised_plainly(face: Face) -> None:
    closed: list[str] = []

    def fail() -> Steps[None]:
        yield from ask(Sleep(0))
        raise KeyError("the reason")

    def wait() -> Steps[None]:
        try:
            yield from ask(Sleep(60))
        finally:
            closed.append("waiting")

    def never() -> Steps[None]:
        closed.append("begun")
        yield from ask(Sleep(60))

    with pytest.raises(KeyError, match="the reason"):
        await face.run(ask(Parallel((wait(), fail(), never()), limit=2)))

    assert closed == ["waiting"]


async def test_an_error_in_parallel_can_be_caught_by_the_steps(face: Face) -> None:
    def outer() -> Steps[str]:
        try:
            yield from ask(Parallel((ask(GetRow("Nowhere", RowKey("a", "b"))),)))
        except TableNotFoundError:
            return "caught"
        return ""

    assert await face.run(outer()) == "caught"


async def test_inner_parallel_steps_end_with_the_outer_ones(face: Face) -> None:
    def fail() -> Steps[None]:
        yield from ask(Sleep(0.01))
        raise KeyError("the reason")

    def nest() -> Steps[Any]:
        return (yield from ask(Parallel((ask(Sleep(60)), ask(Sleep(60))))))

    with pytest.raises(KeyError, match="the reason"):
        await face.run(ask(Parallel((nest(), fail()))))


async def test_what_a_function_returns_or_raises_reaches_the_steps(face: Face) -> None:
    def steps() -> Steps[tuple[int, str]]:
        quotient = yield from ask(Invoke(divmod, (7, 2)))
        try:
            yield from ask(Invoke(divmod, (7, 0)))
        except ZeroDivisionError as error:
            return quotient[0], type(error).__name__
        return 0, ""

    assert await face.run(steps()) == (3, "ZeroDivisionError")


async def double(number: int) -> int:
    return 2 * number


async def test_the_asynchronous_face_awaits_a_function(account: LocalAccount) -> None:
    port = await open_async(account)

    assert await run_steps(ask(Invoke(double, (21,))), port, Cost()) == 42


def test_the_synchronous_face_refuses_what_must_be_awaited(account: LocalAccount) -> None:
    port = open_sync(account)

    with pytest.raises(UsageError, match="double is asynchronous") as caught:
        run_steps_sync(ask(Invoke(double, (21,))), port, Cost())
    with pytest.raises(UsageError, match="is asynchronous"):
        run_steps_sync(ask(Invoke(lambda: double(21))), port, Cost())

    assert caught.value.code == "AsynchronousFunction"


async def test_cancelled_steps_are_closed(account: LocalAccount) -> None:
    port = await open_async(account)
    closed: list[str] = []
    started = asyncio.Event()

    def inner() -> Steps[None]:
        try:
            started.set()
            yield from ask(Sleep(60))
        finally:
            closed.append("inner")

    def outer() -> Steps[None]:
        try:
            yield from ask(Parallel((inner(),)))
        finally:
            closed.append("outer")

    task = asyncio.create_task(run_steps(outer(), port, Cost()))
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert closed == ["inner", "outer"]


# Faults that the SDK meets


async def test_a_busy_service_is_asked_again(sdk: Face, faults: Faults) -> None:
    await sdk.ask(CreateTable("Staff"))
    before = sdk.cost.requests
    faults.answer_503(times=2, retry_after=0.001)

    await sdk.ask(insert("Staff", a_row(Age=7)))

    assert sdk.cost.requests - before == 3
    assert faults.count == sdk.cost.requests


async def test_a_service_that_stays_busy_is_given_up_with_its_advice(
    sdk: Face, faults: Faults
) -> None:
    await sdk.ask(CreateTable("Staff"))
    faults.answer_503(times=100, retry_after=0.002)

    error = await refused(sdk, insert("Staff", a_row(Age=7)))

    assert isinstance(error, ThrottledError)
    assert (error.code, error.retry_after) == ("ServerBusy", 0.002)
    assert faults.count == 5


async def test_busy_queues_and_blobs_are_asked_again(sdk: Face, faults: Faults) -> None:
    await sdk.ask(CreateQueue("letters"))
    await sdk.ask(CreateContainer("pictures"))
    faults.answer_503(times=1, match="/letters/messages")
    faults.answer_503(times=1, match="/pictures/a")

    await sdk.ask(PutMessage("letters", "text"))
    assert await sdk.ask(PutBlob("pictures", "a", b"1")) is not None

    assert sdk.cost.requests == 6


@pytest.mark.parametrize("match", ["POST", "PUT", "PATCH", "DELETE", "$batch"])
async def test_a_lost_answer_is_asked_for_again_and_the_doubt_is_told(
    sdk: Face, faults: Faults, match: str
) -> None:
    await sdk.ask(CreateTable("Staff"))
    (etag,) = await sdk.ask(insert("Staff", a_row("1", Age=7)))
    call = {
        "POST": insert("Staff", a_row("2")),
        "PUT": write("Staff", Verb.REPLACE, a_row("1", Age=8), etag),
        "PATCH": write("Staff", Verb.MERGE, a_row("1", Age=8), etag),
        "DELETE": write("Staff", Verb.DELETE, a_row("1"), etag),
        "$batch": insert("Staff", a_row("2"), a_row("3")),
    }[match]
    faults.lose_answers(match=match)

    error = await refused(sdk, call)

    assert isinstance(error, EntityExistsError | ETagMismatchError | EntityNotFoundError)
    assert error.facts["answer_lost"] is True


async def test_an_error_without_a_lost_answer_tells_no_doubt(sdk: Face, faults: Faults) -> None:
    await sdk.ask(CreateTable("Staff"))
    await sdk.ask(insert("Staff", a_row()))
    faults.refuse_connections(match="POST")

    error = await refused(sdk, insert("Staff", a_row()))

    assert "answer_lost" not in error.facts


async def test_answers_that_stay_lost_are_told(sdk: Face, faults: Faults) -> None:
    await sdk.ask(CreateTable("Staff"))
    faults.lose_answers(times=100)

    error = await refused(sdk, QueryRows("Staff"))

    assert (type(error), error.code) == (UnavailableError, "AnswerLost")
    assert error.facts["answer_lost"] is True


async def test_hostile_paging_loses_and_repeats_nothing(sdk: Face, faults: Faults) -> None:
    await sdk.ask(CreateTable("Staff"))
    await sdk.ask(insert("Staff", *(a_row(f"{n:02}") for n in range(40))))
    faults.hostile_paging(seed=3)

    read: list[str] = []
    sizes: list[int] = []
    call = QueryRows("Staff")
    while True:
        page = await sdk.ask(call)
        sizes.append(len(page.rows))
        read += [row.key.row for row in page.rows]
        if page.continuation is None:
            break
        call = QueryRows("Staff", continuation=page.continuation)

    assert read == [f"{n:02}" for n in range(40)]
    assert 0 in sizes
    assert max(sizes) <= 3


async def test_a_fault_may_be_any_error_at_a_chosen_request(sdk: Face, faults: Faults) -> None:
    faults.fail_next("Tables")
    first = await refused(sdk, CreateTable("Staff"))
    faults.fail_next(lambda line: line.startswith("POST"), error=MemoryError("crash"))

    with pytest.raises(MemoryError, match="crash"):
        await sdk.ask(CreateTable("Staff"))

    assert first.code == "FaultInjected"
    assert faults.count == 2
    assert await sdk.ask(CreateTable("Staff"))


# Unreachable, unauthorised, absent


@pytest.mark.parametrize("kind", SDK)
async def test_an_endpoint_where_nobody_listens_is_named(kind: str) -> None:
    where = (
        "AccountName=devstoreaccount1;AccountKey=a2V5;"
        "TableEndpoint=http://127.0.0.1:9/devstoreaccount1"
    )
    face = await open_face(kind, where)
    _retry_at_once(face)

    error = await refused(face, CreateTable("Staff"))

    await face.close()
    assert (type(error), error.code) == (UnavailableError, "ServiceUnreachable")
    assert "http://127.0.0.1:9/devstoreaccount1" in error.message
    assert "partita serve" in error.hint
    assert "answer_lost" not in error.facts


@pytest.mark.parametrize("kind", SDK)
async def test_a_server_that_hangs_up_leaves_a_doubt(kind: str) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as deaf:
        port = deaf.sockets[0].getsockname()[1]
        face = await open_face(
            kind, f"AccountName=abc;AccountKey=a2V5;TableEndpoint=http://127.0.0.1:{port}/abc"
        )
        _retry_at_once(face)
        if kind == "sync":  # its calls block, and the server lives on this loop
            error = await asyncio.to_thread(lambda: asyncio.run(refused(face, QueryRows("Staff"))))
        else:
            error = await refused(face, QueryRows("Staff"))
        await face.close()

    assert error.code == "AnswerLost"
    assert error.facts["answer_lost"] is True


def _retry_at_once(face: Face) -> None:
    port: Any = face._port or face._twin
    clients = getattr(port, "_inner", port)._clients  # of the SDK, which sends requests again
    build = clients.arguments
    clients.arguments = lambda *place, **options: (
        build(*place, **options) | {"retry_backoff_factor": 0}
    )


@pytest.mark.parametrize("kind", SDK)
async def test_a_wrong_key_is_told_and_not_shown(kind: str, server: LiveServer) -> None:
    where = f"AccountName=devstoreaccount1;AccountKey=a2V5;TableEndpoint={server.endpoint}"
    face = await open_face(kind, where)

    error = await refused(face, CreateTable("Staff"))

    await face.close()
    assert (type(error), error.code) == (NotAuthorizedError, "AuthenticationFailed")
    assert "a2V5" not in str(error)


@pytest.mark.parametrize("kind", SDK)
async def test_a_service_that_was_not_named_is_absent(kind: str, server: LiveServer) -> None:
    where = f"AccountName=devstoreaccount1;AccountKey=a2V5;TableEndpoint={server.endpoint}"
    face = await open_face(kind, where)

    queues = await refused(face, CreateQueue("letters"))
    blobs = await refused(face, CreateContainer("pictures"))

    await face.close()
    assert [type(error) for error in (queues, blobs)] == [NotSupportedError] * 2
    assert [error.code for error in (queues, blobs)] == ["ServiceAbsent"] * 2


# Opening and closing


@pytest.mark.parametrize("kind", ["aio", "sync", "direct", "direct-sync"])
async def test_a_folder_is_made_kept_and_given_free(kind: str, tmp_path: Path) -> None:
    where = f"partita:{tmp_path / 'new' / 'folder'}"
    face = await open_face(kind, where)
    await face.ask(CreateTable("Staff"))
    await face.ask(insert("Staff", a_row(Age=7)))
    await face.close()

    again = await open_face(kind, where)
    found = await again.ask(GetRow("Staff", RowKey("Sales", "00010")))
    await again.close()

    assert found is not None
    assert found.properties == {"Age": 7}


@pytest.mark.parametrize("kind", ["aio", "sync", "direct", "direct-sync"])
async def test_an_account_that_was_handed_in_stays_open(kind: str, account: LocalAccount) -> None:
    face = await open_face(kind, account)
    await face.ask(CreateTable("Staff"))
    await face.close()

    assert [table.name for table in account.tables.list_tables()] == ["Staff"]


@pytest.mark.parametrize("kind", ["aio", "sync", "direct", "direct-sync"])
async def test_a_closed_account_is_told(kind: str) -> None:
    account = open_account(None)
    face = await open_face(kind, account)
    account.close()

    error = await refused(face, CreateTable("Staff"))

    await face.close()
    assert error.code == "AccountClosed"


async def test_the_direct_way_is_for_accounts_in_this_process(server: LiveServer) -> None:
    with pytest.raises(ConfigurationError) as caught:
        await open_async(server.connection_string, direct=True)
    with pytest.raises(ConfigurationError):
        open_sync(server.connection_string, direct=True)

    assert caught.value.code == "NotInProcess"


def test_the_direct_way_works_from_one_loop_after_another(account: LocalAccount) -> None:
    port = asyncio.run(open_async(account, direct=True))

    made = asyncio.run(port.perform(CreateTable("Staff"), Cost()))
    again = asyncio.run(port.perform(CreateTable("Staff"), Cost()))

    assert (made, again) == (True, False)


async def test_what_was_asked_directly_happens_though_the_wait_is_cancelled(
    account: LocalAccount,
) -> None:
    port = await open_async(account, direct=True)
    cost = Cost()
    await port.perform(CreateTable("Staff"), cost)
    task = asyncio.create_task(port.perform(insert("Staff", a_row(Age=7)), cost))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await port.perform(GetRow("Staff", RowKey("Sales", "00010")), cost) is not None


async def test_a_continuation_of_one_port_is_good_for_another(account: LocalAccount) -> None:
    direct, usual = await open_async(account, direct=True), await open_async(account)
    cost = Cost()
    await direct.perform(CreateTable("Staff"), cost)
    await direct.perform(insert("Staff", *(a_row(f"{n}") for n in range(4))), cost)

    first = await usual.perform(QueryRows("Staff", size=2), cost)
    rest = await direct.perform(QueryRows("Staff", continuation=first.continuation), cost)
    same = await direct.perform(QueryRows("Staff", size=2), cost)

    assert [row.key.row for row in rest.rows] == ["2", "3"]
    assert same.continuation == first.continuation


async def test_a_shuffling_port_gives_no_order_across_pages(account: LocalAccount) -> None:
    port = ShufflingPort(await open_async(account, direct=True), seed=1)
    cost = Cost()
    await port.perform(CreateTable("Staff"), cost)
    await port.perform(insert("Staff", *(a_row(f"{n:02}") for n in range(50))), cost)

    page = await port.perform(QueryRows("Staff", size=10), cost)

    assert not port.capabilities.is_ordered
    assert [row.key.row for row in page.rows] != [f"{n:02}" for n in range(10)]
    assert page.continuation is not None
