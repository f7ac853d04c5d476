"""Random histories of a state with its log and checkpoints, without collections on top of them.

A history remembers its digest after every record: what a checkpoint or backup brings back is
compared with that.
"""

import random
from collections.abc import Iterable

from partita.clock import ManualClock
from partita.reliable.manager.backup import finish_restore
from partita.reliable.state.records import (
    FORMAT,
    Alter,
    Clear,
    Create,
    Delete,
    Drop,
    Enqueue,
    Entry,
    Operation,
    Outcome,
    Put,
    Record,
    decode_record,
    encode_record,
    record_hash,
)
from partita.reliable.state.state import Collection, Description, State, encode_description
from partita.reliable.storage.checkpoint import Checkpoints
from partita.reliable.storage.disk import Disk
from partita.reliable.storage.local_log import Durability, LocalLog
from partita.ticks import Clock

KINDS = ("dictionary", "dictionary", "queue", "index")


class History:
    """A state that random records change, one at a time."""

    def __init__(
        self, log: LocalLog, state: State, checkpoints: Checkpoints, *, clock: Clock, seed: int
    ) -> None:
        self.log = log
        self.state = state
        self.checkpoints = checkpoints
        self.clock = clock
        self.digests = {state.sequence: state.digest()}
        self._random = random.Random(f"{seed}/{state.sequence}")

    @classmethod
    async def open(
        cls,
        disk: Disk,
        *,
        seed: int = 0,
        segment_bytes: int = 4096,
        clock: Clock | None = None,
        durability: Durability = "full",
    ) -> "History":
        """Recover as a state is opened: restore, checkpoint, log."""
        await finish_restore(disk)
        state, checkpoints = State(), Checkpoints(disk)
        found = await checkpoints.load(state)
        chain = None if found is None else (found.sequence, found.hash)
        log = await LocalLog.open(
            disk, chain=chain, durability=durability, segment_bytes=segment_bytes
        )
        async for _, raw in log.read_from(state.sequence + 1):
            state.apply(decode_record(raw), record_hash(raw))
        return cls(log, state, checkpoints, clock=clock or ManualClock(seed=seed), seed=seed)

    async def commit(self, operations: Iterable[Operation] | None = None, *, epoch: int = 0) -> int:
        """Append and apply one record, of random operations unless they are given."""
        record, raw = self.next_record(operations, epoch=epoch)
        await self.log.append(record.sequence, raw)
        self.state.apply(record, record_hash(raw))
        self.digests[record.sequence] = self.state.digest()
        return record.sequence

    async def commits(self, count: int) -> None:
        for _ in range(count):
            await self.commit()

    def next_record(
        self, operations: Iterable[Operation] | None = None, *, epoch: int = 0
    ) -> tuple[Record, bytes]:
        state = self.state
        if operations is None:
            operations = self._operations()
        record = Record(
            FORMAT,
            epoch or state.epoch,
            state.sequence + 1,
            state.hash,
            max(self.clock.ticks(), state.ticks) + self._random.randrange(1000),
            f"replica-{epoch}" if epoch else "",
            [Entry(f"tx-{state.sequence}", list(operations))],
        )
        return record, encode_record(record)

    async def checkpoint(self) -> None:
        """Write a checkpoint and cut the log, as the state's housekeeping does."""
        await self.log.sync()
        written = await self.checkpoints.write(self.state)
        await self.log.truncate(written.sequence + 1)

    async def close(self) -> None:
        await self.log.close()

    def _operations(self) -> list[Operation]:
        collections = [self.state.collections[one] for one in sorted(self.state.collections)]
        if len(collections) < 2 or self._random.random() < 0.05:
            return [self._create(collections)]
        chosen = self._random.choice(collections)
        kind = self._random.random()
        if kind < 0.03 and not self.state.indexes_of(chosen):
            return [Drop(chosen.id)]
        if kind < 0.08:
            return [Clear(chosen.id), *self._writes(chosen, set())]
        if kind < 0.12:
            version = chosen.description.written_version + 1
            return [Alter(chosen.id, encode_description(_described(chosen, version)))]
        if kind < 0.25:
            expires = self.state.ticks + 20_000
            outcome = Outcome(f"key-{self.state.sequence}", self._bytes(30), expires)
            return [outcome, *self._writes(chosen, set(chosen.rows.values))]
        return self._writes(chosen, set(chosen.rows.values))

    def _create(self, collections: list[Collection]) -> Create:
        number = self.state.next_collection
        kind = self._random.choice(KINDS)
        owners = [one.id for one in collections if one.description.kind == "dictionary"]
        is_index = kind == "index" and owners
        description = Description(
            f"collection-{number}",
            kind if kind != "index" or is_index else "dictionary",
            owner=self._random.choice(owners) if is_index else 0,
        )
        return Create(number, encode_description(description))

    def _writes(self, collection: Collection, present: set[bytes]) -> list[Operation]:
        if collection.description.kind == "queue":
            taken = [Delete(collection.id, key) for key in sorted(present)[:1]]
            return [*taken, *(Enqueue(collection.id, self._bytes(40)) for _ in range(2))]
        writes: list[Operation] = []
        for _ in range(self._random.randrange(1, 8)):
            if present and self._random.random() < 0.3:
                key = self._random.choice(sorted(present))
                present.remove(key)
                writes.append(Delete(collection.id, key))
            else:
                key = b"%04d" % self._random.randrange(300)
                present.add(key)
                writes.append(Put(collection.id, key, self._bytes(120)))
        return writes

    def _bytes(self, most: int) -> bytes:
        return self._random.randbytes(self._random.randrange(most))


def _described(collection: Collection, version: int) -> Description:
    old = collection.description
    return Description(old.name, old.kind, owner=old.owner, written_version=version)


def digest_in_epoch(state: State, epoch: int) -> str:
    """Return the digest as if the state were of another epoch: a restore raises it."""
    own, state.epoch = state.epoch, epoch
    digest = state.digest()
    state.epoch = own
    return digest
