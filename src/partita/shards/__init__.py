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
from partita.shards.fleet import Fleet
from partita.shards.manager import ShardMapManager
from partita.shards.mapping import Location, Mapping, MappingStatus, Shard
from partita.shards.ranges import Range
from partita.shards.retry import Retry
from partita.shards.schema import ShardedSchema
from partita.shards.session import RoutedSession
from partita.shards.shard_map import HashShardMap, ListShardMap, RangeShardMap

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
    "ShardedSchema",
    "StaleMappingError",
    "UnknownOptionError",
    "WrongShardKeyError",
]
