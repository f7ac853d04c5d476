"""A process that moves one range to and fro: `shard_mover.py CATALOG PORT [naive]`.

It connects to the shards at PORT, whatever port the catalog names. It resumes an unfinished move
first, and prints `moved` after each. `naive` copies without capture and switches later: rows that
are written in between are lost.
"""

import sys
import time

from sqlalchemy import URL, make_url
from sqlalchemy.exc import DBAPIError

from chaos.shard_map import MOVED_TENANT
from partita.errors import PartitaError
from partita.shards import Location
from partita.shards.keys.mapping import Mapping, Shard
from partita.shards.maps.manager import ShardMapManager
from partita.shards.moving import move
from support.routed import carry_rows

PAUSE_SECONDS = 0.2


def move_naively(manager: ShardMapManager, mapping: Mapping, to: Shard) -> None:
    tenants = manager.get_map("tenants")
    carry_rows(manager, mapping, to)
    changed = tenants.set_offline(mapping, grace=0.2)
    tenants.set_online(tenants.update_mapping(changed, shard=to))


def main(catalog: str, port: int, *modes: str) -> None:
    def credentials(location: Location) -> URL:
        return make_url(location.text).set(port=port)

    with ShardMapManager.open(catalog, credentials=credentials) as manager:
        tenants = manager.get_map("tenants")
        while True:
            try:
                mapping = tenants.get(MOVED_TENANT, lookup="store")
                to = next(shard for shard in tenants.shards() if shard != mapping.shard)
                if "naive" in modes:
                    move_naively(manager, mapping, to)
                    states = ["done"]
                else:
                    resumed = move.resume(manager)
                    reports = resumed or [move.move(manager, mapping, to, grace=0.5)]
                    states = [report.error or report.state for report in reports]
                print("moved" if states == ["done"] else f"failed {states}", flush=True)
            except (PartitaError, DBAPIError) as error:
                print("failed", repr(error)[:200], flush=True)
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
