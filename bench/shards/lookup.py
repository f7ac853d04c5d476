"""What a warm lookup costs: `find_cached(key)`, encoding included, among 10,000 and a million.

`hot` asks a thousand keys again and again, `any` asks keys from all over the map: among a million
that is a matter of the processor's caches. Processor time, because nothing waits here.
"""

import gc
import random
import time
from pathlib import Path

from partita.shards.keys.mapping import Mapping
from partita.shards.keys.ranges import Range, encode_range
from partita.shards.maps.manager import ShardMapManager

US_MAX = {10_000: 1.5, 1_000_000: 3.0}
KEYS = 20_000
HOT_KEYS = 1_000
WIDTH = 10


def measure(folder: Path, mappings: int, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of one lookup, one figure a round."""
    folder.mkdir()
    with ShardMapManager.create(f"sqlite:///{folder / 'catalog.db'}") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        shard = tenants.create_shard(f"sqlite:///{folder / 'one.db'}")
        ranges = [Range(start * WIDTH, (start + 1) * WIDTH) for start in range(mappings)]
        tenants.cache.load(
            Mapping(f"{n:032x}", "tenants", shard, encode_range(each, tenants.key_type), each)
            for n, each in enumerate(ranges)
        )
        draw = random.Random(mappings)
        everywhere = [draw.randrange(mappings * WIDTH) for _ in range(KEYS)]
        asked = {"hot": everywhere[:HOT_KEYS] * (KEYS // HOT_KEYS), "any": everywhere}
        seen: dict[str, list[float]] = {name: [] for name in asked}
        gc.collect()
        gc.freeze()
        for _ in range(rounds):
            for name, keys in asked.items():
                seen[name].append(_timed(tenants.find_cached, keys))
        gc.unfreeze()
        return seen


def _timed(find: object, keys: list[int]) -> float:
    assert callable(find)
    started = time.thread_time()
    for key in keys:
        find(key)
    return (time.thread_time() - started) / len(keys) * 1e6
