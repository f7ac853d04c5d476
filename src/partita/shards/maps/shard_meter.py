"""The metrics of one ShardMapManager, for `partita.metrics.render()`."""

import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Protocol

from partita.metrics.families import Family, Sample
from partita.metrics.names import claim_name
from partita.metrics.sources import register
from partita.shards.catalog.executor import Executor

LABEL = "catalog"
"""The location of the global catalog, which has no credentials."""

_COUNTERS = {
    "routes": ("partita_shard_routes_total", "Connections that were routed."),
    "reroutes": ("partita_shard_stale_reroutes_total", "Connections whose mapping was stale."),
    "refused": ("partita_shard_refused_total", "Connections refused: the mapping was offline."),
    "retries": ("partita_shard_retries_total", "Further attempts of run() and routed functions."),
    "lookups": ("partita_shard_lookups_total", "Lookups of mappings."),
    "misses": ("partita_shard_cache_misses_total", "Lookups that read the global catalog."),
    "fan_outs": ("partita_shard_fan_outs_total", "Statements that were run on many shards."),
    "fan_out_shards": ("partita_shard_fan_out_shards_total", "Shards that they read."),
    "fan_out_failures": ("partita_shard_fan_out_failures_total", "Shards that failed in them."),
    "moves": ("partita_shard_moves_total", "Moves that were completed."),
    "move_rows": ("partita_shard_move_rows_total", "Rows that moves copied."),
    "operations": ("partita_shard_operations_total", "Changes of the catalogs."),
}


class MeasuredMaps(Protocol):
    """What is measured of a ShardMapManager."""

    @property
    def executor(self) -> Executor: ...

    @property
    def counters(self) -> Mapping[str, int]: ...


class ShardMeter:
    """Registers the metrics of a manager, which owns it."""

    def __init__(self, manager: MeasuredMaps) -> None:
        self._manager = weakref.ref(manager)
        name = claim_name(LABEL, manager.executor.catalog.text, self)
        self._labels = {LABEL: name}
        register(self)

    def families(self) -> Iterator[Family]:
        manager = self._manager()
        if manager is None:
            return
        counts = manager.counters
        for name, (family, text) in _COUNTERS.items():
            yield Family(family, "counter", text, [Sample(counts.get(name, 0), self._labels)])
        moves = manager.executor.moves
        steps = Counter(list(moves.steps.values()))
        yield Family(
            "partita_shard_move_step",
            "gauge",
            "Moves that are running, by step.",
            [Sample(count, {**self._labels, "step": step}) for step, count in steps.items()],
        )
        yield Family(
            "partita_shard_move_fence_seconds",
            "histogram",
            "Time for which moves refused transactions.",
            moves.fence_seconds.samples(self._labels),
        )
