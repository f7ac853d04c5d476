"""A front end as a process of its own: clients that work until it is killed, and tell on stdout.

`python queue_front_end.py URL ACCOUNT_ID NAME [hasty]`. Each line is an event and a message; it is
written before a request is sent (`asks…`) and after its answer came. A hasty front end answers
puts before they are stored.
"""

import asyncio
import os
import sys

from conformance.queue_store import place_of, receipt_of
from partita.clock import SystemClock
from partita.queues.store import QueueStore
from partita.scaleout.catalog.catalog import Catalog
from partita.scaleout.connections.link import Connector
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.queues.postgres_store import QueueDatabase
from partita.storage.durability import Durability
from support.queue_ledger import HIDDEN_SECONDS, QUEUE, claimed_at

CLIENTS = 4


def tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def put(store: QueueStore, name: str, *, is_hasty: bool) -> None:
    number = 0
    while True:
        text = f"{name}-{number}"
        number += 1
        tell("asks-put", text)
        if is_hasty:
            tell("put", text)
        await store.put(QUEUE, text, hidden_seconds=0, lifetime_seconds=None)
        if not is_hasty:
            tell("put", text)


async def get(store: QueueStore) -> None:
    while True:
        for message in await store.claim(QUEUE, 3, hidden_seconds=HIDDEN_SECONDS):
            tell("claimed", message.text, claimed_at(message), message.visible_at)
            if claimed_at(message) % 3:
                tell("asks-delete", message.text)
                await store.delete(QUEUE, place_of(message), receipt_of(message))
                tell("deleted", message.text)


async def work(url: str, account_id: int, name: str, *, is_hasty: bool) -> None:
    connector = Connector(Location.parse(url), Durability.FAST)
    clock = SystemClock()
    pool = Pool(connector)
    catalog = await Catalog.open(connector, pool)
    database = QueueDatabase(catalog, pool, clock, may_expire=lambda: True)
    database.start()
    store = database.store(account_id)
    async with asyncio.TaskGroup() as group:
        for number in range(CLIENTS):
            group.create_task(put(store, f"{name}-{number}", is_hasty=is_hasty))
            group.create_task(get(store))


if __name__ == "__main__":
    asyncio.run(
        work(sys.argv[1], int(sys.argv[2]), sys.argv[3], is_hasty=sys.argv[4:] == ["hasty"])
    )
