"""Closing: waiting callers, checkpoints, cancelled closes, failed logs."""

import asyncio
from pathlib import Path

import pytest

import partita
from partita.errors import InDoubtError, NotPrimaryError, StateClosedError, UsageError
from support.states import Machine, a_state, put, settle


class TestTheEnd:
    async def test_a_callback_that_was_cancelled_keeps_nobody_waiting(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)

            def cancelled(_: int) -> None:
                raise asyncio.CancelledError

            async with asyncio.timeout(60.0):
                async with state.transaction() as tx:
                    await counts.set(tx, 1, 1)
                    tx.after_commit(cancelled)
                await put(state, counts, 2)

    async def test_an_error_of_our_own_is_told_to_all_who_wait(self) -> None:
        async with a_state() as state:
            counts = await state.dictionary("counts", key=int, value=int)

            def fails(*_: object) -> None:
                raise ZeroDivisionError

            counts.collection.watchers.append(fails)
            async with asyncio.timeout(60.0):
                ends = await asyncio.gather(
                    *(put(state, counts, key) for key in range(3)), return_exceptions=True
                )
                with pytest.raises(StateClosedError):
                    await put(state, counts, 4)

            assert [type(end) for end in ends] == [InDoubtError] * 3

    async def test_closing_waits_for_a_checkpoint_that_is_being_written(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            await put(state, counts, 1)
            machine.disk.sync_seconds = 0.05
            writing = asyncio.create_task(state.checkpoint())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            await state.close()

            assert writing.done()

    async def test_a_cancelled_close_goes_on_and_a_second_waits_for_it(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            gone: list[object] = []
            let_go = state.on_close
            assert let_go is not None
            state.on_close = lambda: gone.append(let_go())
            await state.dictionary("counts", key=int, value=int)
            machine.disk.sync_seconds = 0.05
            closing = asyncio.create_task(state.close())
            await asyncio.sleep(0)
            closing.cancel()
            await asyncio.wait([closing])

            await state.close()

            assert gone == [None]

    async def test_a_closed_state_stays_closed_when_its_log_fails_afterwards(self) -> None:
        machine = Machine()
        async with machine.open() as state:
            counts = await state.dictionary("counts", key=int, value=int)
            machine.disk.sync_seconds = 0.05
            sent = [asyncio.create_task(put(state, counts, key)) for key in range(2)]
            await settle()

            async def refuse(*_: object, **__: object) -> bytes:
                raise NotPrimaryError("NotPrimary", "Another is.")

            state.log.append = refuse  # type: ignore[method-assign]
            sent += [asyncio.create_task(put(state, counts, key)) for key in range(2, 4)]
            await asyncio.sleep(0)
            await state.close()
            await asyncio.wait(sent)
            assert state._core.committer is None
            with pytest.raises(StateClosedError):
                state.transaction()

    async def test_a_wrong_mutation_check_leaves_the_folder_free(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PARTITA_CHECK_MUTATION", "perhaps")
        with pytest.raises(UsageError):
            async with partita.open_state(tmp_path):
                pass
        monkeypatch.setenv("PARTITA_CHECK_MUTATION", "on")
        async with partita.open_state(tmp_path) as state:
            assert state.is_primary
