"""The local catalog of a shard: its tables, their deployment, and one step of a change.

Routed connections are validated against the local catalog. Rule: the first statement of a step
locks the row of the shard, whose `last_operation` alone tells which changes the shard has.

    partita_local_store      one row: major, minor
    partita_local_shards     one row per map that this database is a shard of
    partita_local_mappings   its mappings: id, low, high (bytes; NULL means unbounded), status
"""

from typing import Any

import msgspec
from sqlalchemy import (
    Column,
    Connection,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    String,
    Table,
    UniqueConstraint,
    delete,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateTable

from partita.errors import CatalogMismatchError, DamageError, FormatVersionError
from partita.shards.catalog.change_plans import (
    ChangePlan,
    ChangeState,
    LocalChange,
    MappingRow,
    MapRow,
    ShardRow,
    state_of,
    undone_row,
)
from partita.shards.connections.validation import enter_sql
from partita.shards.keys.mapping import LOCATION_TEXT_MAX

MAJOR, MINOR = 1, 0
"""Programs work with every minor version of their own major version."""

metadata = MetaData()
store = Table(
    "partita_local_store",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("major", Integer, nullable=False),
    Column("minor", Integer, nullable=False),
)
shards = Table(
    "partita_local_shards",
    metadata,
    Column("map_id", String(32), primary_key=True),
    Column("map_name", String(50), nullable=False),
    Column("kind", String(10), nullable=False),
    Column("key_type", String(200), nullable=False),
    Column("buckets", Integer),
    Column("shard_id", String(32), nullable=False),
    Column("location", String(LOCATION_TEXT_MAX), nullable=False),
    Column("version", String(32), nullable=False),
    Column("status", String(10), nullable=False),
    Column("last_operation", String(80), nullable=False),
)
mappings = Table(
    "partita_local_mappings",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("map_id", String(32), nullable=False),
    Column("low", LargeBinary, nullable=False),
    Column("high", LargeBinary),
    Column("status", String(10), nullable=False),
    Column("last_operation", String(80), nullable=False),
    UniqueConstraint("map_id", "low", name="partita_local_mappings_low"),
)

_SCHEMA = """
SELECT n.nspname FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = CAST(pg_catalog.to_regclass(:table) AS pg_catalog.oid)
"""
DEPLOY_LOCK = 0x7061_7274_6974_6101
"""The PostgreSQL advisory lock that serializes deployments."""


def is_deployed(connection: Connection) -> bool:
    return inspect(connection).has_table(store.name)


def deploy(connection: Connection) -> None:
    """Create missing tables, and refuse those of another major version."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_catalog.pg_advisory_xact_lock(:n)"), {"n": DEPLOY_LOCK})
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
    if connection.scalar(select(store.c.major)) is None:
        connection.execute(insert(store).values(id=MAJOR, major=MAJOR, minor=MINOR))
        _make_function(connection)
    check_version(connection)


def check_version(connection: Connection) -> None:
    row = connection.execute(select(store)).one_or_none()
    if row is None or row.major == MAJOR:
        return
    if row.id != row.major:
        # The row of a later major version has its number as the id too.
        raise DamageError(
            "StoreDamaged",
            f"The local catalog is damaged: its version {row.major} is not that of its row.",
            facts={"database": str(connection.engine.url.database)},
            hint="Restore the database of the shard, or run manager.recovery().",
        )
    raise FormatVersionError(
        "LocalCatalogVersion",
        f"The local catalog has version {row.major}.{row.minor}, this program has {MAJOR}.{MINOR}.",
        facts={"database": str(connection.engine.url.database)},
        hint="Upgrade the older of the two; manager.upgrade_store() upgrades the catalogs.",
    )


def upgrade(connection: Connection) -> None:
    """Upgrade the tables to the minor version of this program; older programs still work."""
    deploy(connection)
    _make_function(connection)
    newer = store.c.minor < MINOR
    connection.execute(update(store).where(newer).values(minor=MINOR))


def _make_function(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        schema = connection.scalar(text(_SCHEMA), {"table": mappings.name})
        quoted = connection.dialect.identifier_preparer.quote_identifier(schema)
        connection.exec_driver_sql(enter_sql(quoted))


# --- reading --------------------------------------------------------------------------------------


class LocalShard(msgspec.Struct, frozen=True):
    """The local catalog of a database for one map."""

    map: MapRow
    row: ShardRow
    mappings: tuple[MappingRow, ...]


def list_shards(connection: Connection) -> list[LocalShard]:
    """Return the local catalog by map; empty if the database has none."""
    if not is_deployed(connection):
        return []
    check_version(connection)
    rows = list(connection.execute(select(shards).order_by(shards.c.map_name)))
    return [_local_shard(connection, row) for row in rows]


def _local_shard(connection: Connection, row: Row[Any]) -> LocalShard:
    query = select(mappings).where(mappings.c.map_id == row.map_id).order_by(mappings.c.low)
    held = [
        MappingRow(one.id, one.map_id, row.shard_id, one.low, one.high, one.status)
        for one in connection.execute(query)
    ]
    return LocalShard(
        MapRow(row.map_id, row.map_name, row.kind, row.key_type, row.buckets),
        ShardRow(
            row.shard_id, row.map_id, row.location, row.version, row.status, row.last_operation
        ),
        tuple(held),
    )


# --- steps of a change ----------------------------------------------------------------------------


def read_state(connection: Connection, plan: ChangePlan, change: LocalChange) -> ChangeState:
    """Lock the row of the shard and return whether it has the change."""
    return state_of(plan, change, _lock_mark(connection, plan.map.id))


def do(connection: Connection, plan: ChangePlan, change: LocalChange) -> ChangeState:
    """Apply the change if the shard is in the state before it; return the new state."""
    if change.before is None:
        deploy(connection)
        _forget_empty_shard(connection, plan, change)
    where = read_state(connection, plan, change)
    if where == "before":
        check_version(connection)
        _write(connection, plan.map, change.after, removed=change.removed, added=change.added)
        return "after"
    return where


def undo(connection: Connection, plan: ChangePlan, change: LocalChange) -> ChangeState:
    """Undo the change, or mark the shard so that a slow process cannot apply it later."""
    where = read_state(connection, plan, change)
    if where in {"undone", "foreign"}:
        return where
    if where == "before" and change.before is None:
        return "undone"
    applied = where == "after"
    _write(
        connection,
        plan.map,
        None if change.before is None else undone_row(plan, change.before),
        removed=change.added if applied else (),
        added=change.removed if applied else (),
    )
    return "undone"


def replace(
    connection: Connection, shard_map: MapRow, shard: ShardRow, kept: tuple[MappingRow, ...]
) -> None:
    """Replace the row of the shard and its mappings; for recovery."""
    deploy(connection)
    _lock_mark(connection, shard_map.id)
    connection.execute(delete(mappings).where(mappings.c.map_id == shard_map.id))
    _write(connection, shard_map, shard, removed=(), added=kept)


def write_shard(connection: Connection, shard_map: MapRow, shard: ShardRow, was: str) -> None:
    """Write the row of the shard, and change the map id `was` of its mappings; for recovery."""
    _lock_mark(connection, was)
    connection.execute(update(mappings).where(mappings.c.map_id == was).values(map_id=shard_map.id))
    connection.execute(update(shards).where(shards.c.map_id == was).values(map_id=shard_map.id))
    _write(connection, shard_map, shard, removed=(), added=())


def _lock_mark(connection: Connection, map_id: str) -> str | None:
    mine = shards.c.map_id == map_id
    if connection.dialect.name == "sqlite":
        return _lock_mark_in_file(connection, map_id)
    if not is_deployed(connection):
        return None
    query = select(shards.c.last_operation).where(mine).with_for_update()
    return connection.scalar(query)


def _lock_mark_in_file(connection: Connection, map_id: str) -> str | None:
    # SQLite has no row locks: a write as the first statement locks the file. A snapshot taken by
    # an earlier read could be too old to write.
    mine = shards.c.map_id == map_id
    try:
        connection.execute(update(shards).where(mine).values(map_id=map_id))
    except OperationalError as error:
        if "no such table" in str(error):
            return None
        raise
    return connection.scalar(select(shards.c.last_operation).where(mine))


def _forget_empty_shard(connection: Connection, plan: ChangePlan, change: LocalChange) -> None:
    """Delete rows of the map, and of maps of the same name, that are in no global catalog.

    The map was replaced, or the process that created the row counted as dead. Only rows without
    mappings are deleted: with mappings, clients may still be routed here.
    """
    mark = _lock_mark(connection, plan.map.id)
    if mark is not None and state_of(plan, change, mark) == "after":
        return
    same = shards.c.map_name == plan.map.name
    known = select(shards.c.map_id).where(same)
    held = connection.scalar(select(mappings.c.id).where(mappings.c.map_id.in_(known)).limit(1))
    if held is not None:
        raise CatalogMismatchError(
            "ShardHoldsMappings",
            "The local catalog of the database has mappings of a map of this name.",
            facts={"map": plan.map.name, "location": change.location},
            hint="Attach the database with recovery.attach(), then call recovery.resolve().",
        )
    connection.execute(delete(shards).where(same))


def _write(
    connection: Connection,
    shard_map: MapRow,
    shard: ShardRow | None,
    *,
    removed: tuple[MappingRow, ...],
    added: tuple[MappingRow, ...],
) -> None:
    mine = shards.c.map_id == shard_map.id
    if shard is None:
        connection.execute(delete(shards).where(mine))
    # By an update, because a transaction that waits for the lock of this row must find it.
    elif not connection.execute(
        update(shards).where(mine).values(_shard_values(shard_map, shard))
    ).rowcount:
        connection.execute(insert(shards).values(_shard_values(shard_map, shard)))
    for row in removed:
        connection.execute(delete(mappings).where(mappings.c.id == row.id))
    mark = "" if shard is None else shard.last_operation
    if added:
        connection.execute(insert(mappings), [_mapping_values(row, mark) for row in added])


def _shard_values(shard_map: MapRow, shard: ShardRow) -> dict[str, object]:
    return {
        "map_id": shard_map.id,
        "map_name": shard_map.name,
        "kind": shard_map.kind,
        "key_type": shard_map.key_type,
        "buckets": shard_map.buckets,
        "shard_id": shard.id,
        "location": shard.location,
        "version": shard.version,
        "status": shard.status,
        "last_operation": shard.last_operation,
    }


def _mapping_values(row: MappingRow, mark: str) -> dict[str, object]:
    return {
        "id": row.id,
        "map_id": row.map_id,
        "low": row.low,
        "high": row.high,
        "status": row.status,
        "last_operation": mark,
    }
