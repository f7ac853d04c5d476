"""A run of transactions over all kinds of collections, and a plain model of what they mean.

Every transaction says before its commit what it does to the model, under its own id. The model
at a sequence follows from which transactions the records up to there hold: it knows nothing of
keys, rows or indexes. What the disk did meanwhile is counted in its events.
"""

import asyncio
import copy
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec

from partita.reliable import LockMode, ReliableDictionary, Transaction
from partita.reliable.collections.concurrent_queue import ReliableConcurrentQueue
from partita.reliable.collections.queue import ReliableQueue
from partita.reliable.manager.state_manager import StateManager
from partita.reliable.opening import Durability, open_local
from partita.reliable.state.records import Create, Drop, decode_record, record_hash
from partita.reliable.state.state import Description, State
from partita.reliable.storage.local_log import LocalLog
from partita.simulation.disk import Event, SimDisk
from partita.simulation.loop import SimClock, running_loop
from partita.simulation.loop import run as run_simulated
from partita.ticks import TICKS_PER_SECOND, Clock

CLIENTS = 5
STEPS = 60
"""Transactions of one client: a run makes more than 200 commits."""
ACCOUNTS = 4
OPENING_BALANCE = 100
NAMES = [f"user{number}" for number in range(6)]
TAGS = ["red", "green", "blue"]
SESSION_SECONDS = 1.5
SYNC_SECONDS = 0.004
THINKING_SECONDS = [0.0, 0.0625, 0.0625, 0.125]
"""Before a step: they often meet at one moment, and are committed in one group."""


class User(msgspec.Struct, frozen=True):
    text: str
    tags: tuple[str, ...] = ()


def tags_of(user: User) -> list[str]:
    return list(user.tags)


@dataclass
class Model:
    """What a state holds, as a child would write it down."""

    accounts: dict[int, int] = field(default_factory=dict)
    users: dict[str, User] = field(default_factory=dict)
    outbox: list[str] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)
    sessions: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Value and the tick at which it ends."""
    temp: dict[int, int] | None = None
    """None: the collection does not exist."""
    outcomes: dict[str, int] = field(default_factory=dict)

    def sessions_at(self, ticks: int) -> dict[int, int]:
        return {key: value for key, (value, end) in self.sessions.items() if end > ticks}


Effect = Callable[[Model], None]


@dataclass
class Reference:
    """What must be found at one sequence."""

    digest: str
    ticks: int
    model: Model
    transactions: int
    """How many of the run's transactions the records up to here hold."""


@dataclass
class Run:
    """All that happened: events of the disk, records, and what clients knew at which event."""

    events: list[Event] = field(default_factory=list)
    records: list[tuple[int, bytes]] = field(default_factory=list)
    effects: dict[str, Effect] = field(default_factory=dict)
    begun: list[tuple[int, int]] = field(default_factory=list)
    """Events of the disk when a record was handed to the log, and its sequence."""
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    """Events of the disk when a client was told of its commit, and the sequence."""
    checkpoints: int = 0
    first_kept: int = 1
    """The first record that the log still held at the end."""

    def references(self) -> list[Reference]:
        """Return what must be found at each sequence, 0 among them."""
        state, model = State(), Model()
        state.epoch = 1
        names: dict[int, str] = {}
        count = 0
        found = [Reference(state.digest(), 0, copy.deepcopy(model), 0)]
        for _, raw in self.records:
            record = decode_record(raw)
            state.apply(record, record_hash(raw))
            for entry in record.entries:
                for operation in entry.operations:
                    match operation:
                        case Create(number, description):
                            names[number] = msgspec.msgpack.decode(
                                description, type=Description
                            ).name
                            if names[number] == "temp":
                                model.temp = {}
                        case Drop(number) if names[number] == "temp":
                            model.temp = None
                if entry.transaction_id in self.effects:
                    count += 1
                    self.effects[entry.transaction_id](model)
            found.append(Reference(state.digest(), state.ticks, copy.deepcopy(model), count))
        return found

    def known(self) -> list[tuple[int, int]]:
        """Return, for each number of events, the newest sequence told of and the newest begun."""
        told, begun = dict(self.acknowledged), dict(self.begun)
        found, newest = [], (0, 0)
        for number in range(len(self.events) + 1):
            newest = (max(newest[0], told.get(number, 0)), max(newest[1], begun.get(number, 0)))
            found.append(newest)
        return found


@dataclass
class Collections:
    """The collections of one open state."""

    accounts: ReliableDictionary[int, int]
    users: ReliableDictionary[str, User]
    outbox: ReliableQueue[str]
    jobs: ReliableConcurrentQueue[str]
    sessions: ReliableDictionary[int, int]

    @classmethod
    async def open(cls, state: StateManager) -> "Collections":
        return cls(
            await state.dictionary("accounts", key=int, value=int),
            await state.dictionary("users", key=str, value=User, indexes={"tag": tags_of}),
            await state.queue("outbox", value=str),
            await state.concurrent_queue("jobs", value=str),
            await state.dictionary("sessions", key=int, value=int, ttl=SESSION_SECONDS),
        )


class Client:
    """One task with its own chance, number and steps."""

    def __init__(
        self, number: int, state: StateManager, opened: Collections, run: Run, disk: SimDisk
    ) -> None:
        self.number = number
        self.state = state
        self.opened = opened
        self.run = run
        self.disk = disk
        self.chance = random.Random(number)
        self.kinds = [
            self.transfer,
            self.write_user,
            self.forget_user,
            self.send,
            self.take,
            self.offer_job,
            self.do_job,
            self.begin_session,
        ]

    async def work(self, steps: int) -> None:
        for step in range(steps):
            await asyncio.sleep(self.chance.choice(THINKING_SECONDS))
            if self.number == 0 and step % 7 == 3:
                await self.replace_temp(step)
            elif step % 10 == 9:
                await self.change_its_mind()
            else:
                await self.one(self.chance.choice(self.kinds), step)

    async def one(self, kind: Callable[[Transaction, int], Awaitable[Effect]], step: int) -> None:
        """Run one transaction; every third under an idempotency key, with its result."""
        key = f"{self.number}/{step}" if step % 3 == 0 else None

        async def play(tx: Transaction) -> int:
            effect = await kind(tx, step)

            def with_outcome(model: Model) -> None:
                effect(model)
                if key is not None:
                    model.outcomes[key] = step

            self.run.effects[tx.id] = with_outcome
            return step

        committed = await self.state.run(play, idempotency_key=key)
        if committed.commit_sequence is not None:
            self.run.acknowledged.append((len(self.disk.events), committed.commit_sequence))

    async def transfer(self, tx: Transaction, step: int) -> Effect:
        one, two = sorted(self.chance.sample(range(ACCOUNTS), 2))
        accounts = self.opened.accounts
        balances = {
            key: await accounts.get(tx, key, OPENING_BALANCE, lock=LockMode.UPDATE)
            for key in (one, two)
        }
        amount = self.chance.randint(-20, 20)
        after = {one: balances[one] - amount, two: balances[two] + amount}
        for key, balance in after.items():
            await accounts.set(tx, key, balance)
        return lambda model: model.accounts.update(after)

    async def write_user(self, tx: Transaction, step: int) -> Effect:
        text = f"{self.number}/{step}" * self.chance.choice([1, 1, 1, 60, 250])
        name = self.chance.choice(NAMES)
        user = User(text, tuple(self.chance.sample(TAGS, self.chance.randint(0, 2))))
        await self.opened.users.set(tx, name, user)
        return lambda model: model.users.update({name: user})

    async def forget_user(self, tx: Transaction, step: int) -> Effect:
        if step % 8 == 0:
            await self.opened.users.clear(tx)
            return lambda model: model.users.clear()
        name = self.chance.choice(NAMES)
        await self.opened.users.delete(tx, name)
        return lambda model: _forget(model.users, name)

    async def send(self, tx: Transaction, step: int) -> Effect:
        items = [f"{self.number}/{step}/{n}" for n in range(self.chance.randint(1, 3))]
        for item in items:
            await self.opened.outbox.enqueue(tx, item)
        return lambda model: model.outbox.extend(items)

    async def take(self, tx: Transaction, step: int) -> Effect:
        taken = await self.opened.outbox.dequeue_many(tx, self.chance.randint(1, 4))

        def effect(model: Model) -> None:
            assert model.outbox[: len(taken)] == taken, "the queue was not first in, first out"
            del model.outbox[: len(taken)]

        return effect

    async def offer_job(self, tx: Transaction, step: int) -> Effect:
        job = f"{self.number}/{step}"
        await self.opened.jobs.enqueue(tx, job)
        return lambda model: model.jobs.add(job)

    async def do_job(self, tx: Transaction, step: int) -> Effect:
        jobs = await self.opened.jobs.dequeue_many(tx, 2)
        user = User(f"did {jobs}", ("done",))
        await self.opened.users.set(tx, NAMES[0], user)

        def effect(model: Model) -> None:
            assert model.jobs.issuperset(jobs), "a job was done twice"
            model.jobs.difference_update(jobs)
            model.users[NAMES[0]] = user

        return effect

    async def begin_session(self, tx: Transaction, step: int) -> Effect:
        key = self.chance.randrange(4)
        await self.opened.sessions.set(tx, key, step)
        end = tx.now + round(SESSION_SECONDS * TICKS_PER_SECOND)
        return lambda model: model.sessions.update({key: (step, end)})

    async def replace_temp(self, step: int) -> None:
        """Drop a collection and create it again; its records tell the model."""
        if self.state.state.find("temp") is not None:
            await self.state.drop("temp")
        temp = await self.state.dictionary("temp", key=int, value=int)

        async def fill(tx: Transaction, step: int) -> Effect:
            await temp.set(tx, step, step)

            def effect(model: Model) -> None:
                assert model.temp == {}, "a new collection was not empty"
                model.temp[step] = step

            return effect

        await self.one(fill, step)

    async def change_its_mind(self) -> None:
        async with self.state.transaction() as tx:
            await self.transfer(tx, 0)
            await self.opened.outbox.enqueue(tx, "never sent")
            await tx.abort()


def _forget(users: dict[str, User], name: str) -> None:
    users.pop(name, None)


def a_run(
    *,
    seed: int = 0,
    steps: int = STEPS,
    durability: Durability = "full",
    checkpoint_bytes: int = 4_000,
    segment_bytes: int = 3_000,
) -> Run:
    """Play the whole run on a virtual loop, to a clean close."""

    async def main() -> Run:
        clock = SimClock(running_loop())
        disk = SimDisk(clock)
        disk.sync_seconds = SYNC_SECONDS
        return await play(disk, clock)

    async def play(disk: SimDisk, clock: Clock) -> Run:
        run = Run()
        state = await open_local(
            disk, clock, durability=durability, checkpoint_bytes=checkpoint_bytes
        )
        assert isinstance(state.log, LocalLog)
        state.log.segment_bytes = segment_bytes
        watch(state, run, disk)
        opened = await Collections.open(state)
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                client = Client(number, state, opened, run, disk)
                group.create_task(client.work(steps))
        run.first_kept = state.log.first
        await state.close()
        run.events = disk.events
        return run

    return run_simulated(main(), seed=seed).value


def watch(state: StateManager, run: Run, disk: SimDisk) -> None:
    """Keep a copy of every record that goes to the log, and count the checkpoints."""
    append, write = state.log.append, state.checkpoints.write

    async def recorded(sequence: int, raw: bytes, *, alone: bool = False) -> bytes:
        run.records.append((sequence, raw))
        run.begun.append((len(disk.events), sequence))
        return await append(sequence, raw, alone=alone)

    async def counted(of: State) -> object:
        before = state.checkpoints.newest
        written = await write(of)
        run.checkpoints += written is not before
        return written

    state.log.append = recorded  # type: ignore[method-assign]
    state.checkpoints.write = counted  # type: ignore[method-assign,assignment]


async def model_of(state: StateManager) -> Model:
    """Read everything by the ways that users have; a collection that is not there is empty."""
    names = {one.name for one in state.collections()}
    found = Model()
    async with state.snapshot() as snapshot:
        if "accounts" in names:
            accounts = await state.dictionary("accounts", key=int, value=int)
            found.accounts = {key: value async for key, value in accounts.items(snapshot)}
            assert await accounts.count(snapshot) == len(found.accounts)
        if "users" in names:
            users = await state.dictionary("users", key=str, value=User)
            found.users = {key: value async for key, value in users.items(snapshot)}
            assert await users.count(snapshot) == len(found.users)
        if "outbox" in names:
            outbox = await state.queue("outbox", value=str)
            found.outbox = [item async for item in outbox.items(snapshot)]
        if "jobs" in names:
            jobs = await state.concurrent_queue("jobs", value=str)
            listed = [item async for item in jobs.items(snapshot)]
            found.jobs = set(listed)
            assert len(found.jobs) == len(listed)
        if "sessions" in names:
            sessions = await state.dictionary("sessions", key=int, value=int, ttl=SESSION_SECONDS)
            found.sessions = {key: (value, 0) async for key, value in sessions.items(snapshot)}
        if "temp" in names:
            temp = await state.dictionary("temp", key=int, value=int)
            found.temp = {key: value async for key, value in temp.items(snapshot)}
    for key in state.state.outcomes:
        outcome = await state.outcome(key, int)
        assert outcome is not None
        found.outcomes[key] = outcome.value
    return found
