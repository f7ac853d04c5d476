"""The size of a transaction: index entries count, too large records are refused."""

import pytest

import partita
from partita.errors import LimitExceededError, PartitaError
from partita.reliable import Sizes
from partita.reliable.storage.local_log import LocalLog
from support.states import Machine, a_state, put


class TestSizes:
    async def test_entries_that_an_index_loses_count_for_the_size_of_a_transaction(self) -> None:
        async with a_state() as state:
            tagged = await state.dictionary(
                "tagged",
                key=int,
                value=int,
                indexes={"tag": lambda value: [f"{n}-{'x' * 1000}" for n in range(value)]},
            )
            for key in range(100):
                async with state.transaction() as tx:
                    await tagged.set(tx, key, 100)

            with pytest.raises(PartitaError) as caught:  # noqa: PT012 - the commit may fail
                async with state.transaction() as tx:
                    for key in range(100):
                        await tagged.delete(tx, key)

            assert caught.value.code == "TransactionTooLarge"
            async with state.transaction() as tx:
                assert await tagged.delete(tx, 0)

    async def test_a_write_that_is_too_large_leaves_the_others_of_its_transaction(self) -> None:
        sizes = Sizes(transaction_bytes_max=2_000)
        async with partita.open_state(":memory:", sizes=sizes) as state:
            texts = await state.dictionary("texts", key=int, value=str)
            async with state.transaction() as tx:
                await texts.set(tx, 1, "before")
                with pytest.raises(LimitExceededError):
                    await texts.set(tx, 2, "x" * 2_000)
                await texts.set(tx, 3, "after")

            assert await texts.auto.get_many([1, 2, 3]) == {1: "before", 3: "after"}

    async def test_an_index_with_many_entries_is_built_in_smaller_steps(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            tagged = await state.dictionary("tagged", key=int, value=int)
            async with state.transaction() as tx:
                for key in range(400):
                    await tagged.set(tx, key, key)

        async with machine.open() as state:
            tagged = await state.dictionary(
                "tagged",
                key=int,
                value=int,
                indexes={"tag": lambda _: [f"{n}-{'x' * 900}" for n in range(30)]},
            )

            async with state.snapshot() as snapshot:
                found = [key async for key, _ in tagged.find(snapshot, tag=f"29-{'x' * 900}")]
            assert found == list(range(400))

    async def test_a_record_that_the_log_cannot_take_is_not_the_end(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            assert isinstance(state.log, LocalLog)
            state.log.record_bytes_max = 10
            with pytest.raises(LimitExceededError):
                await put(state, counts, 1)
            state.log.record_bytes_max = 100_000

            await put(state, counts, 1)
