"""A process that writes notes through routing: `writer_process.py CATALOG WRITER VALIDATE TENANTS`.

It prints `done TENANT ID` for each committed note and `doubt TENANT ID` for each whose commit
was not answered, and ends with its input.
"""

import random
import sys
import threading
import time

from partita.errors import InDoubtError, PartitaError
from partita.shards.maps.manager import ShardMapManager
from partita.shards.routing.retry import Retry
from partita.shards.routing.session import RoutedSession
from support.routed import Note, count_notes

IDS_PER_WRITER = 1_000_000
PATIENT = Retry(longest=0.2, budget=120)


def main(catalog: str, writer: int, validate: str, tenants: list[int]) -> None:
    chance = random.Random(writer)
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    with ShardMapManager.open(catalog) as manager:
        shard_map = manager.get_map("tenants")
        number = writer * IDS_PER_WRITER
        print("ready", flush=True)
        while not ended.is_set():
            number += 1
            tenant = chance.choice(tenants)
            pause = chance.choice((0, 0, 0.001, 0.01))

            def write(
                session: RoutedSession,
                tenant: int = tenant,
                number: int = number,
                pause: float = pause,
            ) -> None:
                session.scalar(count_notes)
                time.sleep(pause)
                session.add(Note(tenant_id=tenant, id=number))

            try:
                shard_map.run(tenant, write, retry=PATIENT, validate=validate)
                print("done", tenant, number, flush=True)
            except InDoubtError:
                print("doubt", tenant, number, flush=True)
            except PartitaError as error:
                print("failed", tenant, number, error.code, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], [int(part) for part in sys.argv[4].split(",")])
