"""Elastic shards: shard maps, validated routing, fan-out, migrations and moves for SQLAlchemy.

manager = ShardMapManager.create("postgresql+psycopg://host/catalog")
tenants = manager.create_range_map("tenants", key=int, schema=...)
with tenants.sessionmaker()(42) as session, session.begin(): ...
"""

from partita.errors import (
    CatalogMismatchError,
    InDoubtError,
    InvalidShardKeyError,
    MappingExistsError,
    MappingLockedError,
    MappingNotFoundError,
    MappingOfflineError,
    MoveRefusedError,
    OperationPendingError,
    RangeError,
    SchemaMismatchError,
    ShardError,
    ShardExistsError,
    ShardInUseError,
    ShardMapExistsError,
    ShardMapNotFoundError,
    ShardNotFoundError,
    ShardOfflineError,
    StaleMappingError,
    UnknownOptionError,
    WrongShardKeyError,
)
from partita.retrying import RetryPolicy
from partita.shards.fleet.fleet import Fleet
from partita.shards.keys.mapping import Location, Mapping, MappingStatus, Shard, ShardStatus
from partita.shards.keys.ranges import Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import HashShardMap, ListShardMap, RangeShardMap
from partita.shards.routing.retry import Retry
from partita.shards.routing.session import RoutedSession

__all__ = [
    "CatalogMismatchError",
    "Fleet",
    "HashShardMap",
    "InDoubtError",
    "InvalidShardKeyError",
    "ListShardMap",
    "Location",
    "Mapping",
    "MappingExistsError",
    "MappingLockedError",
    "MappingNotFoundError",
    "MappingOfflineError",
    "MappingStatus",
    "MoveRefusedError",
    "OperationPendingError",
    "Range",
    "RangeError",
    "RangeShardMap",
    "Retry",
    "RetryPolicy",
    "RoutedSession",
    "SchemaMismatchError",
    "Shard",
    "ShardError",
    "ShardExistsError",
    "ShardInUseError",
    "ShardMapExistsError",
    "ShardMapManager",
    "ShardMapNotFoundError",
    "ShardNotFoundError",
    "ShardOfflineError",
    "ShardStatus",
    "ShardedSchema",
    "StaleMappingError",
    "UnknownOptionError",
    "WrongShardKeyError",
]
