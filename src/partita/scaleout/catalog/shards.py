"""The shards of the fleet as one front end uses them: what the catalog says, and connections.

Connections to a shard are opened when a request needs it. The catalog keeps no secrets: a URL in
it has no password, and a front end uses the user and password of its own URL where the URL of a
shard has no user.
"""

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from partita.errors import UnavailableError
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool

HOME = 0
"""The number of the shard that is the catalog's own database."""
OPEN = b"o"
"""The state of a shard that gets new ranges."""

_SHARDS = "SELECT id, name, url, state, identity FROM partita.shard WHERE version > $1 ORDER BY id"


class Shard(msgspec.Struct, frozen=True):
    """One database of the fleet, as the catalog lists it."""

    id: int
    name: str
    url: str | None
    """None: the database of the catalog."""
    is_open: bool
    """Whether it gets new ranges."""
    identity: uuid.UUID


async def read_shards(link: Link, since: int = 0) -> list[Shard]:
    """Return the shards that changed after a version of the catalog."""
    return [
        Shard(row["id"], row["name"], row["url"], row["state"] == OPEN, row["identity"])
        for row in await link.read(_SHARDS, since)
    ]


class Shards:
    """All shards that a front end knows; `home` and `pool` lead to the database of the catalog."""

    def __init__(self, home: Connector, pool: Pool) -> None:
        self._home = home
        self._known: dict[int, Shard] = {}
        self._connectors: dict[int, Connector] = {HOME: home}
        self._pools: dict[int, Pool] = {HOME: pool}

    def __contains__(self, shard_id: int) -> bool:
        return shard_id in self._known

    def __iter__(self) -> Iterator[Shard]:
        return iter([*self._known.values()])

    def __len__(self) -> int:
        return len(self._known)

    def know(self, shards: Iterable[Shard]) -> None:
        """Take over what the catalog says."""
        for shard in shards:
            before = self._known.get(shard.id)
            self._known[shard.id] = shard
            if before is not None and (before.url, before.identity) != (shard.url, shard.identity):
                # Connections to the former address end when they fail or are refused.
                self._move(shard)

    def name_of(self, shard_id: int) -> str:
        shard = self._known.get(shard_id)
        return str(shard_id) if shard is None else shard.name

    def connector(self, shard_id: int) -> Connector:
        """Return what opens connections to a shard that is known."""
        if (found := self._connectors.get(shard_id)) is None:
            found = self._connectors[shard_id] = connector_of(self._get(shard_id), self._home)
        return found

    def pool(self, shard_id: int) -> Pool:
        """Return the connections for scans and long groups on a shard that is known."""
        if (found := self._pools.get(shard_id)) is None:
            found = self._pools[shard_id] = Pool(self.connector(shard_id))
        return found

    def pools(self) -> Sequence[Pool]:
        """Return the pools of all shards."""
        return [self.pool(shard_id) for shard_id in self._known]

    def choose(self, ranges: Mapping[int, int]) -> Shard:
        """Return the shard for a new range: the open one that has the fewest ranges."""
        candidates = [shard for shard in self._known.values() if shard.is_open]
        if not candidates:
            raise UnavailableError(
                "StoreShardsDraining",
                "No shard of the fleet takes new ranges.",
                hint="Add a shard with `partita fleet add`.",
            )
        return min(candidates, key=lambda shard: (ranges.get(shard.id, 0), shard.id))

    async def close(self) -> None:
        """Close the pools; that of the catalog's database belongs to the caller."""
        for shard_id, pool in self._pools.items():
            if shard_id != HOME:
                await pool.close()

    def _get(self, shard_id: int) -> Shard:
        return self._known[shard_id]

    def _move(self, shard: Shard) -> None:
        if shard.id != HOME and (connector := self._connectors.get(shard.id)) is not None:
            moved = connector_of(shard, self._home)
            connector.location, connector.identity = moved.location, moved.identity


def connector_of(shard: Shard, home: Connector) -> Connector:
    """Return what opens connections to a shard, with the credentials of the catalog's URL."""
    if shard.url is None:
        return home
    location = Location.parse(shard.url).with_user_of(home.location)
    return Connector(location, home.durability, identity=shard.identity)
