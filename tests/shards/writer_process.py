"""A process that writes notes through routing.

`writer_process.py CATALOG WRITER VALIDATE TENANTS [pooled]` prints `done TENANT ID` for each
committed note and `doubt TENANT ID` for each whose commit was not answered, and ends with its
input. `pooled` prepares no statements: behind a pooler they would belong to other clients.
"""

import random
import sys
import threading
import time

from sqlalchemy.exc import DBAPIError

from partita.errors import InDoubtError, PartitaError
from partita.shards.maps.manager import ShardMapManager
from partita.shards.routing.retry import Retry
from partita.shards.routing.session import RoutedSession
from support.routed import Note, count_notes

IDS_PER_WRITER = 1_000_000
PATIENT = Retry(longest=0.2, budget=120)
POOLED = {"connect_args": {"prepare_threshold": None}}


def main(catalog: str, writer: int, validate: str, tenants: list[int], *modes: str) -> None:
    chance = random.Random(writer)
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    options = POOLED if "pooled" in modes else {}
    with ShardMapManager.open(catalog, engine_options=options) as manager:
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
            except (InDoubtError, DBAPIError):
                print("doubt", tenant, number, flush=True)
            except PartitaError as error:
                print("failed", tenant, number, error.code, flush=True)


if __name__ == "__main__":
    catalog, writer, validate, tenants, *modes = sys.argv[1:]
    main(catalog, int(writer), validate, [int(part) for part in tenants.split(",")], *modes)
