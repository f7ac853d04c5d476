"""Notices of a whole state, every change of a feed, sizes, and a state in memory."""

import asyncio
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

import partita
from partita.errors import LimitExceededError, LockTimeoutError, NotPrimaryError, UsageError
from partita.reliable import (
    CollectionNotice,
    Commit,
    Dictionary,
    Queue,
    RetryPolicy,
    Sizes,
    StateManager,
    Transaction,
    sync,
)
from partita.reliable.opening import open_replicated
from partita.simulation.disk import SimDisk
from partita.simulation.loop import SimClock, run, running_loop
from partita.simulation.stream import SimCluster
from support.states import Machine, a_state

NUMBERS = Dictionary("numbers", key=str, value=int, indexes={"number": lambda number: number})
QUEUE = Queue("queue", value=int)


class TestNotices:
    async def test_every_commit_is_announced_with_what_it_wrote(self) -> None:
        async with a_state() as state:
            numbers, queue = await state.open(NUMBERS), await state.open(QUEUE)
            commits: list[Commit] = []
            state.on_commit(commits.append)
            async with state.transaction() as tx:
                await numbers.set(tx, "a", 1)
                await queue.enqueue(tx, 1)
            async with state.transaction() as reading:
                await numbers.get(reading, "a")

            assert tx.commit_sequence is not None
            [commit] = commits
            assert commit.sequence == tx.commit_sequence
            assert commit.transactions == (tx.id,)
            assert commit.collections == ("numbers", "queue")

    async def test_collections_are_announced_without_their_indexes(self) -> None:
        async with a_state() as state:
            notices: list[CollectionNotice] = []
            state.on_collections(notices.append)
            await state.open(NUMBERS)
            await state.drop("numbers")

            assert [(one.kind, one.name) for one in notices] == [
                ("added", "numbers"),
                ("dropped", "numbers"),
            ]

    async def test_it_ends_when_it_is_stopped(self) -> None:
        async with a_state() as state:
            numbers = await state.open(NUMBERS)
            commits: list[Commit] = []
            stop = state.on_commit(commits.append)
            await numbers.auto.set("a", 1)
            stop()
            await numbers.auto.set("a", 2)

            assert len(commits) == 1

    async def test_a_function_that_fails_does_not_fail_the_commit(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(_: Commit) -> None:
            raise ValueError("broken")

        async with a_state() as state:
            numbers = await state.open(NUMBERS)
            state.on_commit(fail)
            await numbers.auto.set("a", 1)

            assert await numbers.auto.get("a") == 1
            assert "broken" in caplog.text

    def test_a_secondary_announces_them_too(self) -> None:
        async def scenario() -> tuple[list[int], list[str]]:
            cluster = SimCluster(seed=0)
            clocks = [SimClock(running_loop(), name) for name in "ab"]
            primary, secondary = [
                await open_replicated(cluster.connect(name), SimDisk(clock), clock)
                for name, clock in zip("ab", clocks, strict=True)
            ]
            commits: list[Commit] = []
            notices: list[CollectionNotice] = []
            secondary.on_commit(commits.append)
            secondary.on_collections(notices.append)
            await (await primary.open(QUEUE)).auto.enqueue(1)
            await secondary.read_at_least(primary.sequence)
            found = [one.sequence for one in commits], [one.name for one in notices]
            assert found[0][-1] == primary.sequence
            await secondary.close()
            await primary.close()
            return found

        assert run(scenario(), seed=0).value[1] == ["queue"]

    def test_the_synchronous_state_has_them(self) -> None:
        with sync.open_state(":memory:") as state:
            commits: list[Commit] = []
            state.on_commit(commits.append)
            state.open(QUEUE).auto.enqueue(1)

            assert commits[-1].collections == ("queue",)


class TestEveryChange:
    async def changes(self, *, every_change: bool) -> list[tuple[str, int | None, int | None]]:
        declared = Dictionary("numbers", key=str, value=int, every_change=every_change)
        async with a_state() as state:
            numbers = await state.open(declared)
            await numbers.auto.set("b", 0)
            since = state.sequence
            async with state.transaction() as tx:
                await numbers.set(tx, "a", 1)
                await numbers.set(tx, "a", 2)
                await numbers.delete(tx, "a")
                await numbers.delete(tx, "b")
                await numbers.set(tx, "a", 3)
            async with numbers.changes(since=since) as feed:
                found = [await anext(feed)]
                while not found[-1].is_last:
                    found.append(await anext(feed))
            assert await numbers.auto.get_many(["a", "b"]) == {"a": 3}
            return [(one.kind, one.old, one.new) for one in found]

    async def test_all_are_in_the_feed_on_request(self) -> None:
        assert await self.changes(every_change=True) == [
            ("add", None, 1),
            ("update", 1, 2),
            ("delete", 2, None),
            ("delete", 0, None),
            ("add", None, 3),
        ]

    async def test_otherwise_the_feed_has_the_net_change_of_each_key(self) -> None:
        assert await self.changes(every_change=False) == [("add", None, 3), ("delete", 0, None)]


class TestSizes:
    async def test_a_larger_transaction_fits_if_the_state_is_opened_for_it(
        self, tmp_path: Path
    ) -> None:
        sizes = Sizes(record_bytes_max=24 << 20, transaction_bytes_max=20 << 20)
        texts = Dictionary("texts", key=int, value=str)
        async with partita.open_state(tmp_path, sizes=sizes) as state:
            found = await state.open(texts)
            async with state.transaction() as tx:
                for number in range(4):
                    await found.set(tx, number, "x" * (3 << 20))

        async with partita.open_state(tmp_path) as state:
            found = await state.open(texts)
            assert await found.auto.count() == 4
            async with state.transaction() as tx:
                await found.set(tx, 0, "x" * (3 << 20))
                await found.set(tx, 1, "x" * (3 << 20))
                with pytest.raises(LimitExceededError):
                    await found.set(tx, 2, "x" * (3 << 20))
                await tx.abort()

    async def test_smaller_limits_are_kept(self) -> None:
        sizes = Sizes(transaction_operations_max=2, transaction_bytes_max=2_000)
        async with partita.open_state(":memory:", sizes=sizes) as state:
            texts = await state.open(Dictionary("texts", key=int, value=str))
            async with state.transaction() as tx:
                await texts.set(tx, 1, "")
                await texts.set(tx, 2, "")
                with pytest.raises(LimitExceededError, match="2 rows"):
                    await texts.set(tx, 3, "")
            with pytest.raises(LimitExceededError, match="2000 bytes"):
                await texts.auto.set(1, "x" * 2_001)

    @pytest.mark.parametrize(
        "sizes",
        [
            Sizes(record_bytes_max=1, transaction_bytes_max=1024),
            Sizes(record_bytes_max=1 << 40),
            Sizes(transaction_bytes_max=9 << 20),
            Sizes(transaction_operations_max=0),
        ],
    )
    async def test_impossible_sizes_are_refused(self, sizes: Sizes) -> None:
        with pytest.raises(UsageError, match="not possible"):
            async with partita.open_state(":memory:", sizes=sizes):
                pass


class TestInMemory:
    async def test_each_opening_is_a_new_state_and_leaves_no_file(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        for _ in range(2):
            async with partita.open_state(":memory:") as state:
                numbers = await state.open(NUMBERS)
                assert await numbers.auto.count() == 0
                await numbers.auto.set("a", 1)
                await state.checkpoint()

        assert os.listdir(tmp_path) == []  # noqa: PTH208

    async def test_it_can_be_backed_up(self, tmp_path: Path) -> None:
        async with partita.open_state(":memory:") as state:
            await (await state.open(NUMBERS)).auto.set("a", 1)
            await state.backup(tmp_path / "backups")
        await asyncio.to_thread(sync.restore_state, tmp_path / "backups", tmp_path / "restored")

        async with partita.open_state(tmp_path / "restored") as state:
            assert await (await state.open(NUMBERS)).auto.get("a") == 1

    async def test_a_fixture_opens_one_for_an_asynchronous_test(
        self, partita_state: AbstractAsyncContextManager[StateManager]
    ) -> None:
        async with partita_state as state:
            numbers = await state.open(NUMBERS)
            await numbers.auto.set("a", 1)

            assert await numbers.auto.get("a") == 1

    def test_a_fixture_opens_one_for_a_synchronous_test(
        self, partita_state_sync: sync.StateManager
    ) -> None:
        numbers = partita_state_sync.open(NUMBERS)
        numbers.auto.set("a", 1)

        assert numbers.auto.get("a") == 1


class TestRunning:
    async def test_call_returns_the_value(self) -> None:
        async with a_state() as state:
            numbers = await state.open(NUMBERS)

            async def count(tx: Transaction, by: int) -> int:
                return await numbers.upsert(tx, "a", lambda: by, lambda number: number + by)

            assert await state.call(count, 2) == 2
            assert await state.call(count, 3, idempotency_key="k", isolation="snapshot") == 5
            assert await state.call(count, 3, idempotency_key="k") == 5

    async def test_a_policy_limits_the_attempts(self) -> None:
        tried = 0

        async def fail(tx: Transaction) -> None:
            nonlocal tried
            tried += 1
            raise LockTimeoutError.of("", "numbers", tx.id, 0.0)

        async with Machine().open() as state:
            with pytest.raises(LockTimeoutError):
                await state.run(fail, retry=RetryPolicy(attempts=3, first_delay=0))
            with pytest.raises(LockTimeoutError):
                await state.run(fail, retry=RetryPolicy(attempts=3, first_delay=0), attempts=2)

        assert tried == 5

    async def test_the_function_for_a_first_value_is_called_only_for_a_new_key(self) -> None:
        async with a_state() as state:
            numbers = await state.open(NUMBERS)
            made: list[int] = []

            def make() -> int:
                made.append(1)
                return 10

            for _ in range(3):
                await numbers.auto.upsert("a", make, lambda number: number + 1)

            assert (made, await numbers.auto.get("a")) == ([1], 12)

    async def test_expected_by_position_warns(self) -> None:
        async with a_state() as state:
            numbers = await state.open(NUMBERS)
            async with state.transaction() as tx:
                await numbers.set(tx, "a", 1)
                with pytest.warns(DeprecationWarning, match="expected="):
                    assert await numbers.compare_and_set(tx, "a", 2, 1)
                with pytest.raises(TypeError, match="by keyword"):
                    await numbers.compare_and_set(tx, "a", 2)


class TestOrderOfNotices:
    async def test_an_aborted_transaction_is_not_announced(self) -> None:
        async with a_state() as state:
            numbers = await state.open(NUMBERS)
            commits: list[Commit] = []
            state.on_commit(commits.append)
            tx = state.transaction()
            await numbers.set(tx, "a", 1)
            await tx.abort()

            assert commits == []

    async def test_a_commit_is_announced_before_it_returns_and_in_the_order_of_the_log(
        self,
    ) -> None:
        async with a_state() as state:
            numbers = await state.open(NUMBERS)
            announced: list[int] = []
            state.on_commit(lambda commit: announced.append(commit.sequence))
            expected = []
            for number in range(5):
                async with state.transaction() as tx:
                    await numbers.set(tx, "a", number)
                expected.append(tx.commit_sequence)
                assert announced == expected

    async def test_the_function_reads_the_commit_that_is_announced(self) -> None:
        async with a_state() as state:
            numbers = await state.open(NUMBERS)
            sequences: list[tuple[int, int]] = []
            state.on_commit(lambda commit: sequences.append((commit.sequence, state.sequence)))
            await numbers.auto.set("a", 1)

            [(announced, applied)] = sequences
            assert announced == applied

    async def test_a_full_copy_is_announced_as_rebuilt(self) -> None:
        async with a_state() as state, a_state() as other:
            queue = await other.open(QUEUE)
            await queue.auto.enqueue(1)
            notices: list[CollectionNotice] = []
            commits: list[Commit] = []
            state.on_collections(notices.append)
            state.on_commit(commits.append)
            state.depose(NotPrimaryError("NotPrimary", "Another is."))
            state.replace(other.state)

            assert [(one.kind, one.sequence) for one in notices] == [("rebuilt", other.sequence)]
            assert commits == []

    async def test_collections_that_are_recovered_are_not_announced_as_added(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            await state.open(NUMBERS)
        async with machine.open() as state:
            notices: list[CollectionNotice] = []
            state.on_collections(notices.append)
            await state.open(NUMBERS)
            await state.open(QUEUE)

            assert [one.name for one in notices] == ["queue"]
