"""Arguments of collections and transactions that are refused or converted."""

import pytest

from partita.errors import (
    CollectionMismatchError,
    LockTimeoutError,
    TransactionUseError,
    UsageError,
)
from support.states import a_state


class TestArguments:
    async def test_a_lock_mode_given_as_a_number_is_that_mode(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            async with state.transaction() as reader, state.transaction() as writer:
                await counts.get(reader, 1, None)

                with pytest.raises(LockTimeoutError):
                    await counts.get(writer, 1, None, lock=3, timeout=0)  # type: ignore[call-overload]
                await counts.get(writer, 1, None, lock=1, timeout=0)  # type: ignore[call-overload]

    @pytest.mark.parametrize("lock", [0, 7, "shared", None])
    async def test_a_lock_mode_that_is_none_is_refused(self, lock: object) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            async with state.transaction() as tx:
                with pytest.raises(UsageError, match="LockMode"):
                    await counts.get(tx, 1, None, lock=lock)  # type: ignore[call-overload]

    async def test_numbers_without_bounds_are_as_good_as_no_limit(self) -> None:
        async with a_state() as state:
            jobs = await state.queue("jobs", value=int)
            async with state.transaction() as tx:
                await jobs.enqueue(tx, 1)
            async with state.transaction() as tx:
                assert await jobs.dequeue_many(tx, 10**30, wait=10**400) == [1]

    async def test_a_rewrite_says_what_it_cannot_take(self) -> None:
        async with a_state() as state:
            jobs = await state.queue("jobs", value=int)
            counts = await state.dictionary("counts", key=int, value=int)
            for batch in (0, -1, "many"):
                with pytest.raises(UsageError):
                    await state.rewrite(counts, batch=batch)  # type: ignore[arg-type]
            with pytest.raises(CollectionMismatchError):
                await state.rewrite(jobs)  # type: ignore[arg-type]

    async def test_no_sequence_can_be_waited_for_where_nothing_was_written(self) -> None:
        async with a_state() as state:
            with pytest.raises(UsageError, match="sequence"):
                await state.read_at_least(None)  # type: ignore[arg-type]

    async def test_a_coroutine_function_is_not_a_callback(self) -> None:
        async with a_state() as state:

            async def later(_: int) -> None: ...

            async with state.transaction() as tx:
                with pytest.raises(TransactionUseError):
                    tx.after_commit(later)

    async def test_indexes_are_given_by_name(self) -> None:
        async with a_state() as state:
            with pytest.raises(UsageError):
                await state.dictionary("a", key=int, value=int, indexes=[len])  # type: ignore[call-overload]
