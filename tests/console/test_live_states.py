"""`show_state`: the console of a state that the program itself has open."""

import asyncio
from pathlib import Path
from typing import Any

import partita
from console.api import Api
from partita.console import show_state
from partita.reliable.sync import open_state


async def test_locks_of_the_own_process_have_holders_and_waiters(tmp_path: Path) -> None:
    async with partita.open_state(tmp_path) as state, show_state(state, port=0) as address:
        visits = await state.dictionary("visits", key=str, value=int)
        api = Api(address)

        async def wait_for_ada() -> None:
            async with state.transaction() as tx:
                await visits.set(tx, "ada", 2, timeout=60)

        async with state.transaction() as tx:
            await visits.set(tx, "ada", 1)
            waiting = asyncio.create_task(wait_for_ada())
            found: dict[str, Any] = {"waiting": 0}
            while not found["waiting"]:
                found = (await asyncio.to_thread(api.get, "/state/locks")).json
        await waiting
        status = (await asyncio.to_thread(api.get, "/state/status")).json
        rows = (await asyncio.to_thread(api.get, "/state/rows", collection="visits")).json

    lock = found["locks"][0]
    assert (lock["collection"], lock["key"]) == ("visits", "ada")
    assert [len(lock["holders"]), len(lock["waiters"])] == [1, 1]
    assert Path(__file__).name in lock["holders"][0]["origin"]
    assert (status["status"]["kind"], status["collections"][0]["count"]) == ("open", 1)
    assert [(row["key"], row["value"]) for row in rows["rows"]] == [("ada", "2")]


def test_a_state_without_asyncio_is_shown_and_needs_the_token(tmp_path: Path) -> None:
    with open_state(tmp_path) as state, show_state(state, port=0) as address:
        visits = state.dictionary("visits", key=str, value=int)
        with state.transaction() as tx:
            visits.set(tx, "ada", 1)
        api = Api(address)
        shown = api.get("/state/status").json
        refused = api.send("GET", "/api/v1/state/status")
        wrong = api.get("/state/rows", collection="visits", partition="p")

    assert shown["collections"][0]["count"] == 1
    assert refused.status == 401
    assert wrong.code == "InvalidStateAddress"


def test_the_address_stays_the_same_with_a_token_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with open_state(tmp_path / "state") as state:
        with show_state(state, port=0, token_file=file) as first:
            pass
        with show_state(state, port=0, token_file=file) as second:
            pass

    assert first.partition("#")[2] == second.partition("#")[2]
    assert file.stat().st_mode & 0o777 == 0o600
