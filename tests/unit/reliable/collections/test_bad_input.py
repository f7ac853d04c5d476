"""Every wrong thing that a caller can hand in is a PartitaError that says what to do."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from partita.errors import LimitExceededError, PartitaError, UsageError
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.values import limits
from support.states import User, a_state

if TYPE_CHECKING:
    from partita.reliable import ReliableConcurrentQueue, ReliableDictionary, ReliableQueue


class World:
    """A state with one collection of each kind, and a transaction; all without types."""

    def __init__(self, state: StateManager) -> None:
        self.state: Any = state
        self.users: ReliableDictionary[Any, Any]
        self.queue: ReliableQueue[Any]
        self.jobs: ReliableConcurrentQueue[Any]
        self.tx: Any = None
        """Opened by the test: a transaction belongs to its task."""
        self.snapshot: Any = None


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with a_state() as state:
        world = World(state)
        world.users = await state.dictionary(
            "users", key=str, value=User, indexes={"age": lambda user: user.age}
        )
        world.queue = await state.queue("queue", value=User)
        world.jobs = await state.concurrent_queue("jobs", value=User)
        async with state.transaction() as tx:
            await world.users.set(tx, "ada", User("a"))
            await world.queue.enqueue(tx, User("a"))
            await world.jobs.enqueue(tx, User("a"))
        async with state.snapshot() as snapshot:
            world.snapshot = snapshot
            digest = state.state.digest()
            yield world
            assert state.state.digest() == digest, "what was refused changed something"


async def walk(rows: Any) -> None:
    async for _ in rows:
        pass


async def _callback(world: World) -> None:
    world.tx.after_commit("callback")


ADA = User("a")
ROWS: dict[str, Callable[[World], Awaitable[Any]]] = {
    # keys
    "a key of another type": lambda w: w.users.get(w.tx, 7),
    "a key of another type in a snapshot": lambda w: w.users.get(w.snapshot, b"ada"),
    "a key of another type among many": lambda w: w.users.get_many(w.tx, ["ada", 7]),
    "no key": lambda w: w.users.set(w.tx, None, ADA),
    "half a surrogate": lambda w: w.users.set(w.tx, "\ud800", ADA),
    "a key too long": lambda w: w.users.set(w.tx, "x" * (limits.KEY_BYTES_MAX + 1), ADA),
    "a start of another type": lambda w: walk(w.users.items(w.tx, start=7)),
    "an end of another type": lambda w: walk(w.users.keys(w.tx, end=7)),
    "a prefix of another type": lambda w: walk(w.users.values(w.tx, prefix=7)),
    # values
    "a value of another type": lambda w: w.users.set(w.tx, "x", "text"),
    "no value": lambda w: w.users.set(w.tx, "x", None),
    "a field of another type": lambda w: w.users.set(w.tx, "x", User("a", "old")),  # type: ignore[arg-type]
    "a list where a tuple is declared": lambda w: w.users.set(w.tx, "x", User("a", 1, ["x"])),  # type: ignore[arg-type]
    "an integer too large": lambda w: w.users.set(w.tx, "x", User("a", 2**70)),
    "a value too large": lambda w: w.users.set(w.tx, "x", User("a" * limits.VALUE_BYTES_MAX)),
    "an item of another type": lambda w: w.queue.enqueue(w.tx, 7),
    "an item too large": lambda w: w.queue.enqueue(w.tx, User("a" * limits.VALUE_BYTES_MAX)),
    "a job of another type": lambda w: w.jobs.enqueue(w.tx, 7),
    "an update that gives another type": lambda w: w.users.upsert(w.tx, "ada", ADA, lambda _: 7),
    "a factory that gives another type": lambda w: w.users.get_or_add(w.tx, "x", lambda: 7),
    # limits and counts
    "a negative limit": lambda w: walk(w.users.items(w.tx, limit=-1)),
    "a limit that is a text": lambda w: walk(w.users.keys(w.tx, limit="1")),  # type: ignore[arg-type]
    "a limit that is half": lambda w: walk(w.queue.items(w.tx, limit=1.5)),  # type: ignore[arg-type]
    "a limit of find": lambda w: walk(w.users.find(w.tx, age=1, limit=-1)),
    "a negative count": lambda w: w.queue.dequeue_many(w.tx, -1),
    "a count that is a text": lambda w: w.jobs.dequeue_many(w.tx, "3"),  # type: ignore[arg-type]
    "a count that is true": lambda w: w.jobs.receive(w.tx, True, visibility=1),
    # times
    "a negative wait": lambda w: w.queue.dequeue(w.tx, wait=-1),
    "a wait that is no number": lambda w: w.jobs.dequeue(w.tx, wait=float("nan")),
    "a negative visibility": lambda w: w.jobs.receive(w.tx, visibility=-1),
    "a time-out that is a text": lambda w: w.users.get(w.tx, "ada", timeout="4"),  # type: ignore[call-overload]
    "a negative time-out of drop": lambda w: w.state.drop("users", timeout=-1),
    "a negative time-out of read_at_least": lambda w: w.state.read_at_least(10**9, timeout=-1),
    # transactions
    "a text for a transaction": lambda w: w.users.get("tx", "ada"),  # type: ignore[call-overload]
    "nothing for a transaction": lambda w: w.users.set(None, "ada", ADA),  # type: ignore[arg-type]
    "a state for a transaction": lambda w: w.users.count(w.state),
    "a text for a transaction of contains": lambda w: w.users.contains("tx", "ada"),  # type: ignore[arg-type]
    "a text for a transaction of items": lambda w: walk(w.users.items("tx")),  # type: ignore[arg-type]
    "a text for a transaction of find": lambda w: walk(w.users.find("tx", age=1)),  # type: ignore[arg-type]
    "a text for a transaction of a queue": lambda w: w.queue.dequeue("tx"),  # type: ignore[arg-type]
    "a text for a transaction of a peek": lambda w: w.queue.peek("tx"),  # type: ignore[arg-type]
    "a text for a transaction of a count": lambda w: w.jobs.count("tx"),  # type: ignore[arg-type]
    "a snapshot for a write": lambda w: w.users.set(w.snapshot, "ada", ADA),
    # types
    "a value type that is none": lambda w: w.state.dictionary("new", key=str, value=7),
    "a key type that is none": lambda w: w.state.dictionary("new", key=complex, value=int),
    "a key type that is a list": lambda w: w.state.dictionary("new", key=list[str], value=int),
    "a version that is none": lambda w: w.state.queue("new", value=int, version=0),
    "a version that is a text": lambda w: w.state.queue("new", value=int, version="1"),
    "another word for mutable": lambda w: w.state.queue("new", value=int, mutable="yes"),
    "a step that is unmarked": lambda w: w.state.queue("new", value=int, upcasts=[print]),
    "a time to live of zero": lambda w: w.state.dictionary("new", key=str, value=int, ttl=0),
    "an index without a function": lambda w: w.state.dictionary(
        "new", key=str, value=User, indexes={"age": 7}
    ),
    # runs
    "no attempts": lambda w: w.state.run(lambda tx: None, attempts=0),
    "no function": lambda w: w.state.run("function"),
    "an unknown schema": lambda w: w.state.promote_schema("users", 0),
    "a schema of nobody": lambda w: w.state.promote_schema("nobody", 2),
    "a collection that is not there": lambda w: w.state.drop("nobody"),
    "a callback that is none": _callback,
}


@pytest.mark.parametrize("row", ROWS)
async def test_it_is_refused_with_a_code_and_nothing_changes(world: World, row: str) -> None:
    world.tx = world.state.transaction()
    with pytest.raises(PartitaError) as refused:
        await ROWS[row](world)

    assert refused.value.code
    assert refused.value.message.endswith((".", "…"))
    await world.tx.commit()


@pytest.mark.parametrize("row", [row for row in ROWS if "transaction" in row or "value" in row])
async def test_it_says_what_to_do(world: World, row: str) -> None:
    world.tx = world.state.transaction()
    with pytest.raises(PartitaError) as refused:
        await ROWS[row](world)

    assert refused.value.hint


async def test_a_transaction_that_writes_too_many_bytes_is_refused(world: World) -> None:
    world.tx = world.state.transaction()
    mega = User("x" * 1024 * 1024)
    with pytest.raises(LimitExceededError) as refused:  # noqa: PT012 - the block as a whole is what fails
        for number in range(9):
            await world.users.set(world.tx, f"k{number}", mega)

    assert refused.value.code == "TransactionTooLarge"
    assert refused.value.hint
    await world.tx.abort()


async def test_a_transaction_that_writes_too_often_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.state.core, "transaction_operations_max", 10)
    world.tx = world.state.transaction()
    with pytest.raises(LimitExceededError) as refused:  # noqa: PT012 - the block as a whole is what fails
        for number in range(11):
            await world.queue.enqueue(world.tx, User(str(number)))

    assert refused.value.code == "TransactionTooLarge"
    await world.tx.abort()


async def test_what_is_just_within_the_limits_is_written() -> None:
    async with a_state() as state:
        texts = await state.dictionary("texts", key=str, value=str)
        longest = "k" * 4000
        async with state.transaction() as tx:
            await texts.set(tx, longest, "x" * (limits.VALUE_BYTES_MAX - 10))
            await texts.set(tx, "b", "x" * (limits.TRANSACTION_BYTES_MAX * 2 // 5))
        async with state.transaction() as tx:
            for number in range(limits.TRANSACTION_OPERATIONS_MAX):
                await texts.set(tx, f"{number:040}", "x" * 40)
        async with state.snapshot() as snapshot:
            assert await texts.count(snapshot) == limits.TRANSACTION_OPERATIONS_MAX + 2


async def test_wrong_errors_are_usage_errors_and_never_retried(world: World) -> None:
    calls = 0

    async def wrong(tx: Any) -> None:
        nonlocal calls
        calls += 1
        await world.users.set(tx, 7, ADA)

    with pytest.raises(UsageError):
        await world.state.run(wrong)
    assert calls == 1
