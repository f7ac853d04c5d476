"""Changes a catalog and kills itself in the middle of a step, random or named: run by the tests."""

import contextlib
import os
import random
import signal
import sys

from partita.errors import ConflictError, UsageError
from partita.shards.keys.mapping import MappingStatus
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap


def main(url: str, how: str) -> None:
    manager = ShardMapManager.open(url)
    tenants = manager.get_map("tenants")
    assert isinstance(tenants, RangeShardMap)
    if how.startswith("at "):
        manager.executor.fault = lambda point: die() if point == how[3:] else None
        move(tenants)
    else:
        change_until_death(manager, tenants, random.Random(int(how)))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def change_until_death(
    manager: ShardMapManager, tenants: RangeShardMap, chance: random.Random
) -> None:
    left = chance.randrange(1, 120)

    def fault(_point: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            die()

    manager.executor.fault = fault
    while True:
        # Another writer may have changed the mapping since it was read.
        with contextlib.suppress(ConflictError, UsageError):
            change(tenants, chance)


def move(tenants: RangeShardMap) -> None:
    """Give the one mapping to the shard that does not have it."""
    (mapping,) = tenants.mappings()
    (other,) = [shard for shard in tenants.shards() if shard != mapping.shard]
    tenants.update_mapping(mapping, shard=other)


def change(tenants: RangeShardMap, chance: random.Random) -> None:
    mappings = tenants.mappings()
    mapping = chance.choice(mappings)
    kind = chance.randrange(4)
    if kind == 0:
        low = -1000 if mapping.range.low is None else mapping.range.low
        high = 1000 if mapping.range.high is None else mapping.range.high
        if high - low > 1:
            tenants.split(mapping, at=chance.randrange(low + 1, high))
    elif kind == 1:
        at = mappings.index(mapping)
        neighbour = mappings[at + 1] if at + 1 < len(mappings) else mapping
        alike = (neighbour.shard, neighbour.status) == (mapping.shard, mapping.status)
        if neighbour is not mapping and alike:
            tenants.merge(mapping, neighbour)
    elif kind == 2 or mapping.is_online:
        statuses = (MappingStatus.ONLINE, MappingStatus.OFFLINE)
        tenants.update_mapping(mapping, status=chance.choice(statuses))
    else:
        tenants.update_mapping(mapping, shard=chance.choice(tenants.shards()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
