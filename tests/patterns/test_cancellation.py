"""A cancelled verb leaves nothing that a drain does not repair."""

import asyncio
from typing import Any

import pytest

from partita.patterns import Database, connect, evolve
from partita.service.hosting.in_process import LocalAccount
from support.entities import Guest, Hall, rows
from support.repeats import sample


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


class Stopping:
    """A port that cancels its caller at one of its calls, before or after it is performed."""

    def __init__(self, inner: Any, stop_at: int, *, is_after: bool) -> None:
        self.capabilities = inner.capabilities
        self.inner = inner
        self.left = stop_at
        self.is_after = is_after

    async def perform(self, call: Any, cost: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.is_after:
            raise asyncio.CancelledError
        answer = await self.inner.perform(call, cost)
        if self.left == 0:
            raise asyncio.CancelledError
        return answer

    async def close(self) -> None:
        await self.inner.close()


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("verb", sample(["save", "change", "move", "delete", "group", "all"], 3))
async def test_a_cancelled_verb_leaves_nothing_that_a_drain_does_not_repair(
    partita_account: LocalAccount, verb: str, *, is_after: bool
) -> None:
    stop_at = 0
    while True:
        stop_at += 1
        async with connect(partita_account, direct=True) as db:
            guests, halls = db.table(Guest), db.table(Hall)
            await db.create_tables()
            name = f"{verb}{stop_at}"
            await halls.save(Hall(hall=name))
            guest = await guests.save(Guest(hall=name, id=1, name="Ann"))
            await db.drain()
            port = db._port
            db._port = Stopping(port, stop_at, is_after=is_after)
            try:
                match verb:
                    case "save":
                        await guests.save(Guest(hall=name, id=2, name="Bob"))
                    case "change":
                        await halls.save(evolve(await halls.get(hall=name), host_id=2))
                    case "move":
                        await guests.move(guest, hall=f"other{stop_at}")
                    case "delete":
                        await guests.delete(guest)
                    case "group":
                        async with halls.partition(hall=name).atomic() as group:
                            group.delete(guest)
                            group.delete_if_exists(Hall, hall=name)
                    case _:
                        await guests.save_all(
                            [Guest(hall=name, id=n, name="x") for n in range(2, 5)]
                        )
                is_cancelled = False
            except asyncio.CancelledError:
                is_cancelled = True
            db._port = port
            await db.drain()
            assert await db.verify(Hall) == [], (verb, stop_at)
            found = [row.row_key for row in await rows(db, "halls") if row.row_key[:3] == "~o_"]
            assert found == [], (verb, stop_at)
            if verb == "move":
                here = [row for row in await rows(db, "halls") if row.row_key == "g_0001"]
                places = [row.partition_key for row in here]
                assert len([each for each in places if each in (name, f"other{stop_at}")]) == 1
            if not is_cancelled:
                return
