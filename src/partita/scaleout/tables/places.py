"""Where the entities of a range are read and written: the lanes and the pool of its shard."""

from typing import NamedTuple

from partita.metrics.store_meter import StoreMeter
from partita.scaleout.catalog.ranges import Range
from partita.scaleout.catalog.shards import Shards
from partita.scaleout.connections.pool import Pool
from partita.scaleout.tables.trips import Trips


class Place(NamedTuple):
    """One shard, for the table stores of all accounts."""

    trips: Trips
    """For reads and changes of entities."""
    pool: Pool
    """For scans and counts."""


class Places:
    """The places of one front end; the lanes of a shard begin when it is first needed."""

    def __init__(self, shards: Shards, meter: StoreMeter) -> None:
        self._shards = shards
        self._meter = meter
        self._places: dict[int, Place] = {}
        meter.queue_length = lambda: sum(place.trips.waiting for place in self._places.values())

    def of(self, range_: Range) -> Place:
        """Return the place of a range that the catalog knows."""
        found = self._places.get(range_.shard)
        return self._open(range_.shard) if found is None else found

    async def close(self) -> None:
        """Finish accepted changes, then close the connections of the lanes."""
        for place in self._places.values():
            await place.trips.close()

    def _open(self, shard_id: int) -> Place:
        pool = self._shards.pool(shard_id)
        trips = Trips(self._shards.connector(shard_id), pool, self._meter)
        place = self._places[shard_id] = Place(trips, pool)
        return place
