"""The contract of partita.reliable.storage.log as a suite that every Log subclasses.

Nothing here knows how a log keeps things. A subclass says how to open one, and how to open it
again as the next process would. Records are real ones: a log may check that they continue each
other.
"""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from partita.errors import (
    LimitExceededError,
    NotReadableError,
    PartitaError,
)
from partita.reliable.state.records import (
    FORMAT,
    NO_HASH,
    Entry,
    Put,
    Record,
    decode_record,
    encode_record,
    record_hash,
)
from partita.reliable.storage.log import Log
from partita.reliable.values.limits import RECORD_BYTES_MAX

Kept = list[tuple[int, bytes]]


class RecordChain:
    """Makes records that continue each other."""

    def __init__(self, sequence: int = 0, previous: bytes = NO_HASH, epoch: int = 1) -> None:
        self.sequence = sequence
        self.previous = previous
        self.epoch = epoch

    @classmethod
    async def after(cls, log: Log) -> "RecordChain":
        """Continue what the log holds; a log may open with a record of its own."""
        chain = cls(log.last)
        async for _, raw in log.read_from(log.first):
            chain.previous, chain.epoch = record_hash(raw), decode_record(raw).epoch
        return chain

    def next(self, value: bytes = b"value") -> tuple[int, bytes]:
        self.sequence += 1
        entry = Entry(f"tx-{self.sequence}", [Put(1, b"key-%d" % self.sequence, value)])
        record = Record(FORMAT, self.epoch, self.sequence, self.previous, 0, "", [entry])
        raw = encode_record(record)
        self.previous = record_hash(raw)
        return self.sequence, raw

    async def append_to(self, log: Log, count: int, value: bytes = b"value") -> Kept:
        appended = [self.next(value) for _ in range(count)]
        for sequence, raw in appended:
            await log.append(sequence, raw)
        return appended


async def read(log: Log, sequence: int) -> Kept:
    return [found async for found in log.read_from(sequence)]


async def take(records: AsyncIterator[tuple[int, bytes]], count: int) -> Kept:
    return [await anext(records) for _ in range(count)]


class LogConformance(ABC):
    folder: Path
    log: Log
    chain: RecordChain

    @abstractmethod
    async def open_log(self) -> Log:
        """Open an empty log (but for what opening may append itself)."""

    @abstractmethod
    async def reopen(self, log: Log) -> Log:
        """Close the log and open it again, as the next process would."""

    @pytest.fixture(autouse=True)
    async def opened(self, tmp_path: Path) -> AsyncIterator[None]:
        self.folder = tmp_path
        self.log = await self.open_log()
        self.chain = await RecordChain.after(self.log)
        yield
        await self.log.close()

    async def test_a_new_log_ends_before_it_begins(self) -> None:
        assert self.log.last == self.chain.sequence
        assert self.log.first <= self.log.last + 1
        assert await read(self.log, self.log.last + 1) == []

    async def test_what_was_appended_is_read_in_order(self) -> None:
        appended = await self.chain.append_to(self.log, 20)

        assert await read(self.log, appended[0][0]) == appended
        assert self.log.last == appended[-1][0]

    async def test_reading_starts_at_any_sequence(self) -> None:
        appended = await self.chain.append_to(self.log, 12)

        for number, (sequence, _) in enumerate(appended):
            assert await read(self.log, sequence) == appended[number:]

    async def test_the_next_process_finds_what_was_acknowledged(self) -> None:
        appended = await self.chain.append_to(self.log, 12)

        self.log = await self.reopen(self.log)

        found = await read(self.log, appended[0][0])
        assert found[: len(appended)] == appended

    async def test_the_next_process_goes_on_where_the_last_one_stopped(self) -> None:
        appended = await self.chain.append_to(self.log, 5)
        for _ in range(3):
            self.log = await self.reopen(self.log)
            self.chain = await RecordChain.after(self.log)
            appended += await self.chain.append_to(self.log, 2)

        found = dict(await read(self.log, self.log.first))
        assert [found[sequence] for sequence, _ in appended] == [raw for _, raw in appended]

    async def test_a_log_without_a_record_can_be_opened_again(self) -> None:
        self.log = await self.reopen(self.log)
        self.chain = await RecordChain.after(self.log)

        appended = await self.chain.append_to(self.log, 1)

        assert await read(self.log, appended[0][0]) == appended

    @pytest.mark.parametrize("step", [-1, 0, 2])
    async def test_a_record_that_is_not_the_next_is_refused(self, step: int) -> None:
        appended = await self.chain.append_to(self.log, 3)
        last = self.log.last
        other = RecordChain(last + step - 1, self.chain.previous, self.chain.epoch)

        with pytest.raises(PartitaError):
            await self.log.append(*other.next(b"other"))

        assert self.log.last == last
        assert await read(self.log, appended[0][0]) == appended

    async def test_a_refused_record_does_not_stop_the_log(self) -> None:
        await self.chain.append_to(self.log, 1)
        too_far = RecordChain(self.log.last + 5, self.chain.previous, self.chain.epoch)
        with pytest.raises(PartitaError):
            await self.log.append(*too_far.next())

        appended = await self.chain.append_to(self.log, 1)

        assert await read(self.log, appended[0][0]) == appended

    async def test_a_record_as_large_as_allowed_is_kept(self) -> None:
        room = self.log.record_bytes_max - 200
        appended = await self.chain.append_to(self.log, 1, bytes(range(256)) * (room // 256))
        appended += await self.chain.append_to(self.log, 1)

        self.log = await self.reopen(self.log)

        found = await read(self.log, appended[0][0])
        assert found[:2] == appended

    async def test_a_record_that_is_too_large_is_refused_and_nothing_is_written(self) -> None:
        assert self.log.record_bytes_max <= RECORD_BYTES_MAX
        sequence, raw = RecordChain(self.log.last, self.chain.previous, self.chain.epoch).next(
            bytes(self.log.record_bytes_max)
        )

        with pytest.raises(LimitExceededError):
            await self.log.append(sequence, raw)

        appended = await self.chain.append_to(self.log, 1)
        assert await read(self.log, sequence) == appended

    async def test_readers_do_not_disturb_each_other(self) -> None:
        appended = await self.chain.append_to(self.log, 30, bytes(5000))
        start = appended[0][0]

        one, two = self.log.read_from(start), self.log.read_from(start)
        ahead = await take(one, 20)
        behind = await take(two, 5)

        assert ahead == appended[:20]
        assert behind == appended[:5]
        assert [found async for found in one] == appended[20:]
        assert [found async for found in two] == appended[5:]

    async def test_a_reader_meets_what_is_appended_while_it_reads(self) -> None:
        appended = await self.chain.append_to(self.log, 5)
        records = self.log.read_from(appended[0][0])
        found = await take(records, 2)

        appended += await self.chain.append_to(self.log, 5)
        found += [record async for record in records]

        assert found == appended[: len(found)]
        assert len(found) >= 5

    async def test_a_follower_gets_what_is_there_and_what_comes(self) -> None:
        appended = await self.chain.append_to(self.log, 3)
        follower = asyncio.create_task(take(self.log.follow(appended[0][0]), 8))
        await asyncio.sleep(0)

        for _ in range(5):
            appended += await self.chain.append_to(self.log, 1)
            await asyncio.sleep(0)

        assert await follower == appended

    async def test_a_follower_may_wait_for_a_sequence_that_is_far_ahead(self) -> None:
        follower = asyncio.create_task(take(self.log.follow(self.log.last + 3), 1))
        await asyncio.sleep(0)

        appended = await self.chain.append_to(self.log, 3)

        assert await follower == appended[2:]

    async def test_many_followers_see_the_same(self) -> None:
        start = self.log.last + 1
        followers = [asyncio.create_task(take(self.log.follow(start), 10)) for _ in range(5)]
        appended = await self.chain.append_to(self.log, 10)

        assert await asyncio.gather(*followers) == [appended] * 5

    async def test_a_cancelled_follower_does_not_hinder_the_others(self) -> None:
        start = self.log.last + 1
        gone = asyncio.create_task(take(self.log.follow(start), 1))
        stays = asyncio.create_task(take(self.log.follow(start), 1))
        await asyncio.sleep(0)
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone

        appended = await self.chain.append_to(self.log, 1)

        assert await stays == appended

    async def test_following_ends_when_the_log_is_closed(self) -> None:
        appended = await self.chain.append_to(self.log, 2)

        found: Kept = []

        async def follow() -> None:
            async for each in self.log.follow(appended[0][0]):
                found.append(each)

        follower = asyncio.create_task(follow())
        while len(found) < len(appended):  # noqa: ASYNC110 - the follower works beside
            await asyncio.sleep(0.001)
        await self.log.close()

        await follower
        assert found == appended

    async def test_a_closed_log_appends_nothing(self) -> None:
        await self.log.close()

        with pytest.raises(PartitaError):
            await self.log.append(*self.chain.next())

    async def test_a_log_may_be_closed_twice(self) -> None:
        await self.chain.append_to(self.log, 1)

        await self.log.close()
        await self.log.close()

    async def test_a_cancelled_append_leaves_no_doubt_for_the_next(self) -> None:
        appended = await self.chain.append_to(self.log, 2)
        sequence, raw = self.chain.next()
        append = asyncio.create_task(self.log.append(sequence, raw))
        await asyncio.sleep(0)
        append.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await append

        # Its fate is open until the next append; then it is at its sequence, or never.
        with contextlib.suppress(PartitaError):
            await self.log.append(sequence, raw)
        assert self.log.last == sequence
        appended += [(sequence, raw)]
        appended += await self.chain.append_to(self.log, 2)

        assert await read(self.log, appended[0][0]) == appended
        self.log = await self.reopen(self.log)
        found = await read(self.log, appended[0][0])
        assert found[: len(appended)] == appended

    async def test_truncation_keeps_all_that_was_not_given_free(self) -> None:
        appended = await self.chain.append_to(self.log, 20, bytes(3000))
        below = appended[12][0]

        await self.log.truncate(below)

        assert self.log.first <= below
        assert await read(self.log, below) == appended[12:]
        appended += await self.chain.append_to(self.log, 3)
        self.log = await self.reopen(self.log)
        found = await read(self.log, below)
        assert found[: len(appended) - 12] == appended[12:]

    async def test_what_was_truncated_is_not_readable(self) -> None:
        appended = await self.chain.append_to(self.log, 20, bytes(3000))
        await self.log.truncate(appended[-1][0] + 1)

        assert self.log.first > appended[0][0]
        for records in (self.log.read_from(appended[0][0]), self.log.follow(appended[0][0])):
            with pytest.raises(NotReadableError):
                await anext(records)

    async def test_a_log_of_which_everything_was_truncated_goes_on(self) -> None:
        appended = await self.chain.append_to(self.log, 10)
        await self.log.truncate(appended[-1][0] + 1)

        self.log = await self.reopen(self.log)
        assert self.log.last >= appended[-1][0]
        if self.log.last > appended[-1][0]:
            self.chain = await RecordChain.after(self.log)
        appended = await self.chain.append_to(self.log, 2)

        assert await read(self.log, appended[0][0]) == appended

    async def test_truncating_nothing_or_twice_changes_nothing(self) -> None:
        appended = await self.chain.append_to(self.log, 5)
        first = self.log.first

        await self.log.truncate(first)
        await self.log.truncate(0)

        assert self.log.first == first
        await self.log.truncate(appended[3][0])
        await self.log.truncate(appended[3][0])
        assert await read(self.log, appended[3][0]) == appended[3:]

    async def test_a_sequence_before_the_first_is_not_readable(self) -> None:
        await self.chain.append_to(self.log, 2)

        with pytest.raises(NotReadableError):
            await anext(self.log.read_from(self.log.first - 1))

    async def test_appends_and_truncations_go_on_side_by_side(self) -> None:
        appended: Kept = []

        async def truncate_often() -> None:
            for _ in range(10):
                await self.log.truncate(self.log.last - 5)
                await asyncio.sleep(0)

        truncating = asyncio.create_task(truncate_often())
        for _ in range(30):
            appended += await self.chain.append_to(self.log, 1, bytes(2000))
        await truncating

        assert await read(self.log, appended[-5][0]) == appended[-5:]
        self.log = await self.reopen(self.log)
        found = await read(self.log, appended[-5][0])
        assert found[:5] == appended[-5:]
