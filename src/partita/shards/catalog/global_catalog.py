"""The authoritative shard maps: tables, lookups, and the global part of every change.

Rule: a change locks the row of its map first and stamps every row that it changes with its
operation. Decisions are based on rows without a stamp only. Readers see `is_readable` rows only.

    partita_store        one row: major, minor
    partita_maps         name, kind (list, range, hash), key type, schema, epoch
    partita_shards       location (never a user or a password), version, status, last operation
    partita_mappings     [low, high) in bytes, shard, status, lock owner
    partita_operations   one row per unfinished change, with its plan
    partita_jobs         moves and other long-running work
"""

from collections.abc import Iterable, Iterator

import msgspec
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Row,
    Select,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
    delete,
    func,
    insert,
    inspect,
    or_,
    select,
    text,
    update,
)
from sqlalchemy.schema import CreateTable

from partita.errors import (
    DamageError,
    FormatVersionError,
    MappingNotFoundError,
    ShardMapNotFoundError,
    ShardNotFoundError,
)
from partita.shards.catalog.change_plans import (
    ChangePlan,
    MappingRow,
    MapRow,
    ShardRow,
    decode_plan,
    encode_plan,
    stale_mapping,
    undone_row,
)
from partita.shards.keys.mapping import LOCATION_TEXT_MAX, Location

MAJOR, MINOR = 1, 0
"""Programs work with every minor version of their own major version."""

metadata = MetaData()
store = Table(
    "partita_store",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("major", Integer, nullable=False),
    Column("minor", Integer, nullable=False),
)
maps = Table(
    "partita_maps",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("name", String(50), nullable=False, unique=True),
    Column("kind", String(10), nullable=False),
    Column("key_type", String(200), nullable=False),
    Column("buckets", Integer),
    Column("schema", Text),
    Column("epoch", BigInteger, nullable=False),
)
shards = Table(
    "partita_shards",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("map_id", String(32), nullable=False),
    Column("location", String(LOCATION_TEXT_MAX), nullable=False),
    Column("identity", String(LOCATION_TEXT_MAX), nullable=False),
    Column("version", String(32), nullable=False),
    Column("status", String(10), nullable=False),
    Column("last_operation", String(80), nullable=False),
    Column("operation_id", String(32)),
    Column("is_readable", Boolean, nullable=False),
    UniqueConstraint("map_id", "identity", name="partita_shards_identity"),
)
mappings = Table(
    "partita_mappings",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("map_id", String(32), nullable=False),
    Column("shard_id", String(32), nullable=False),
    Column("low", LargeBinary, nullable=False),
    Column("high", LargeBinary),
    Column("status", String(10), nullable=False),
    Column("lock_owner", String(100)),
    Column("operation_id", String(32)),
    Column("is_readable", Boolean, nullable=False),
    UniqueConstraint("map_id", "is_readable", "low", name="partita_mappings_low"),
    Index("partita_mappings_shard", "shard_id"),
)
operations = Table(
    "partita_operations",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("map_id", String(32), nullable=False),
    Column("kind", String(30), nullable=False),
    Column("plan", Text, nullable=False),
    Column("step", String(10), nullable=False),
    Column("owner", String(200), nullable=False),
    Column("made_at", BigInteger, nullable=False),
    Column("beat_at", BigInteger, nullable=False),
)
jobs = Table(
    "partita_jobs",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("map_id", String(32), nullable=False),
    Column("kind", String(30), nullable=False),
    Column("step", String(30), nullable=False),
    Column("plan", Text, nullable=False),
    Column("progress", Text, nullable=False),
    Column("state", String(10), nullable=False),
    Column("made_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),
)

DEPLOY_LOCK = 0x7061_7274_6974_6100
"""The PostgreSQL advisory lock that serializes deployments."""

IDS_MAX = 500
"""The maximum number of ids in a statement: SQLite limits parameters."""


class StampedError(Exception):
    """A row belongs to an unfinished change, which must be finished or undone first."""

    def __init__(self, operation_id: str) -> None:
        super().__init__(operation_id)
        self.operation_id = operation_id


class ChangeRecord(msgspec.Struct, frozen=True):
    """One unfinished change."""

    plan: ChangePlan
    step: str
    owner: str
    beat_at: int


# --- the store ------------------------------------------------------------------------------------


def is_deployed(connection: Connection) -> bool:
    return inspect(connection).has_table(store.name)


def deploy(connection: Connection) -> bool:
    """Create the tables; return False if they exist."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_catalog.pg_advisory_xact_lock(:n)"), {"n": DEPLOY_LOCK})
    if is_deployed(connection):
        return False
    metadata.create_all(connection)
    connection.execute(insert(store).values(id=MAJOR, major=MAJOR, minor=MINOR))
    return True


def drop(connection: Connection) -> None:
    metadata.drop_all(connection)


def check_version(connection: Connection) -> None:
    row = connection.execute(select(store)).one_or_none()
    if row is not None and row.major == MAJOR:
        return
    if row is not None and row.id != row.major:
        # The row of a later major version has its number as the id too.
        raise DamageError(
            "StoreDamaged",
            f"The catalog is damaged: its version {row.major} is not that of its row.",
            hint="Restore a backup of the database of the catalog.",
        )
    found = "no version" if row is None else f"version {row.major}.{row.minor}"
    raise FormatVersionError(
        "CatalogVersion",
        f"The catalog has {found}, this program has {MAJOR}.{MINOR}.",
        hint="Upgrade the older of the two; manager.upgrade_store() upgrades the catalogs.",
    )


def upgrade(connection: Connection) -> None:
    """Upgrade the tables to the minor version of this program; older programs still work."""
    check_version(connection)
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table, if_not_exists=True))
    older = store.c.minor < MINOR
    connection.execute(update(store).where(older).values(minor=MINOR))


# --- maps -----------------------------------------------------------------------------------------


def list_maps(connection: Connection) -> list[MapRow]:
    return [_map_row(row) for row in connection.execute(select(maps).order_by(maps.c.name))]


def find_map(connection: Connection, name: str) -> MapRow | None:
    row = connection.execute(select(maps).where(maps.c.name == name)).one_or_none()
    return None if row is None else _map_row(row)


def insert_map(connection: Connection, row: MapRow) -> None:
    connection.execute(insert(maps).values(msgspec.structs.asdict(row)))


def delete_map(connection: Connection, map_id: str) -> None:
    """Delete the row of the map, and the records of its ended changes and jobs."""
    for table in (operations, jobs):
        connection.execute(delete(table).where(table.c.map_id == map_id))
    connection.execute(delete(maps).where(maps.c.id == map_id))


def write_schema(connection: Connection, map_id: str, schema: str | None) -> None:
    mine = maps.c.id == map_id
    connection.execute(update(maps).where(mine).values(schema=schema, epoch=maps.c.epoch + 1))


def epoch_query(paramstyle: str) -> str:
    """Return the query of `read_epoch` for the cursor of a driver."""
    return f"SELECT epoch FROM {maps.name} WHERE id = {'?' if paramstyle == 'qmark' else '%s'}"  # noqa: S608 - a constant name


def read_epoch(connection: Connection, map_id: str) -> int | None:
    """Return a number that grows with every change of the map; None if it was deleted."""
    return connection.scalar(select(maps.c.epoch).where(maps.c.id == map_id))


def lock_map(connection: Connection, map_id: str, name: str) -> MapRow:
    """Lock out all other changes of the map until the transaction ends."""
    mine = maps.c.id == map_id
    if connection.dialect.name == "sqlite":
        # SQLite has no row locks: a write as the first statement locks the file.
        connection.execute(update(maps).where(mine).values(epoch=maps.c.epoch))
        query = select(maps).where(mine)
    else:
        query = select(maps).where(mine).with_for_update()
    row = connection.execute(query).one_or_none()
    check_version(connection)  # the catalog may have been upgraded meanwhile
    if row is None:
        raise map_not_found(name)
    return _map_row(row)


def map_not_found(name: str) -> ShardMapNotFoundError:
    return ShardMapNotFoundError(
        "ShardMapNotFound",
        "The shard map does not exist.",
        facts={"map": name},
        hint="List the shard maps with list_maps().",
    )


def shard_not_found(facts: dict[str, object]) -> ShardNotFoundError:
    return ShardNotFoundError(
        "ShardNotFound",
        "The database is not a shard of this map.",
        facts=facts,
        hint="List the shards with shards(), or add one with create_shard().",
    )


def key_not_mapped(map_name: str, key: object) -> MappingNotFoundError:
    return MappingNotFoundError(
        "MappingNotFound",
        "No mapping holds this key.",
        facts={"map": map_name, "key": key},
        hint="Map the key with create_mapping() first.",
    )


# --- lookups: readable rows, without locks --------------------------------------------------------

_MAPPING_AND_SHARD = select(
    mappings, *(column.label(f"shard_{column.name}") for column in shards.c if column.name != "id")
).join(shards, shards.c.id == mappings.c.shard_id)


def find_by_key(
    connection: Connection, map_id: str, key: bytes
) -> tuple[MappingRow, ShardRow] | None:
    query = (
        _MAPPING_AND_SHARD.where(
            mappings.c.map_id == map_id, mappings.c.is_readable, mappings.c.low <= key
        )
        .order_by(mappings.c.low.desc())
        .limit(1)
    )
    row = connection.execute(query).one_or_none()
    if row is None or (row.high is not None and row.high <= key):
        return None
    return _pair(row)


def list_mappings(
    connection: Connection,
    map_id: str,
    *,
    low: bytes = b"",
    high: bytes | None = None,
    shard_id: str | None = None,
) -> Iterator[tuple[MappingRow, ShardRow]]:
    """Yield the mappings that hold keys of [low, high), in the order of their keys."""
    query = _MAPPING_AND_SHARD.where(
        mappings.c.map_id == map_id, mappings.c.is_readable, _intersects(low, high)
    )
    if shard_id is not None:
        query = query.where(mappings.c.shard_id == shard_id)
    for row in connection.execute(query.order_by(mappings.c.low)):
        yield _pair(row)


def list_shards(connection: Connection, map_id: str) -> list[ShardRow]:
    query = select(shards).where(shards.c.map_id == map_id, shards.c.is_readable)
    return [_shard_row(row) for row in connection.execute(query.order_by(shards.c.location))]


def find_shard(connection: Connection, map_id: str, identity: str) -> ShardRow | None:
    query = select(shards).where(shards.c.map_id == map_id, shards.c.identity == identity)
    row = connection.execute(query.where(shards.c.is_readable)).one_or_none()
    return None if row is None else _shard_row(row)


def list_locations(connection: Connection) -> list[str]:
    query = select(shards.c.location).where(shards.c.is_readable).distinct()
    return list(connection.scalars(query.order_by(shards.c.location)))


# --- reads under the lock of the map --------------------------------------------------------------


class LockedMap:
    """A map whose row is locked; reads raise StampedError for rows of unfinished changes."""

    def __init__(self, connection: Connection, row: MapRow) -> None:
        self.connection = connection
        self.row = row

    def shard(self, shard_id: str) -> ShardRow:
        found = self._rows(select(shards).where(shards.c.id == shard_id))
        if not found or found[0].map_id != self.row.id:
            raise shard_not_found({"map": self.row.name, "shard": shard_id})
        return _shard_row(found[0])

    def find_shard_at(self, identity: str) -> ShardRow | None:
        mine = and_(shards.c.map_id == self.row.id, shards.c.identity == identity)
        found = self._rows(select(shards).where(mine))
        return _shard_row(found[0]) if found else None

    def mapping(self, mapping_id: str) -> MappingRow:
        found = self._rows(select(mappings).where(mappings.c.id == mapping_id))
        if not found or found[0].map_id != self.row.id:
            raise stale_mapping(self.row.name, mapping_id)
        return _mapping_row(found[0])

    def overlapping(
        self, low: bytes, high: bytes | None, *, limit: int | None = None
    ) -> list[MappingRow]:
        mine = and_(mappings.c.map_id == self.row.id, _intersects(low, high))
        query = select(mappings).where(mine).order_by(mappings.c.low).limit(limit)
        return [_mapping_row(row) for row in self._rows(query)]

    def locked_by(self, owner: str) -> list[MappingRow]:
        mine = and_(mappings.c.map_id == self.row.id, mappings.c.lock_owner == owner)
        return [_mapping_row(row) for row in self._rows(select(mappings).where(mine))]

    def mappings_of(self, shard_id: str) -> list[MappingRow]:
        query = select(mappings).where(mappings.c.shard_id == shard_id).order_by(mappings.c.low)
        return [_mapping_row(row) for row in self._rows(query)]

    def count_mappings(self, shard_id: str) -> int:
        query = select(func.count()).where(mappings.c.shard_id == shard_id)
        return self.connection.scalar(query) or 0

    def has_shards(self) -> bool:
        return bool(self._rows(select(shards).where(shards.c.map_id == self.row.id).limit(1)))

    def write_lock_owner(self, mapping_ids: Iterable[str], owner: str | None) -> None:
        for some in _batches(set(mapping_ids)):
            mine = mappings.c.id.in_(some)
            self.connection.execute(update(mappings).where(mine).values(lock_owner=owner))

    # For recovery only: written without a plan, because the local catalogs are not trusted.

    def replace_mappings(self, removed: Iterable[str], added: Iterable[MappingRow]) -> None:
        _delete(self.connection, mappings, set(removed))
        mark = {"operation_id": None, "is_readable": True}
        rows = [msgspec.structs.asdict(row) | mark for row in added]
        if rows:
            self.connection.execute(insert(mappings), rows)
        _bump_epoch(self.connection, self.row.id)

    def mark_shard(self, shard_id: str, mark: str) -> ShardRow:
        row = msgspec.structs.replace(self.shard(shard_id), last_operation=mark)
        _write_shard(self.connection, row)
        return row

    def write_shard(self, row: ShardRow) -> None:
        """Insert or update the row of a shard."""
        values = _shard_values(row) | {"operation_id": None, "is_readable": True}
        mine = shards.c.id == row.id
        if not self.connection.execute(update(shards).where(mine).values(values)).rowcount:
            self.connection.execute(insert(shards).values(values))
        _bump_epoch(self.connection, self.row.id)

    def delete_shard(self, shard_id: str) -> None:
        _delete(self.connection, shards, {shard_id})
        _bump_epoch(self.connection, self.row.id)

    def _rows(self, query: Select[tuple[object, ...]]) -> list[Row[tuple[object, ...]]]:
        rows = list(self.connection.execute(query))
        for row in rows:
            if row.operation_id is not None:
                raise StampedError(row.operation_id)
        return rows


# --- the global part of a change ------------------------------------------------------------------


def prepare(connection: Connection, plan: ChangePlan, *, owner: str, now: int) -> None:
    """Stamp the rows that the plan changes, add new rows as unreadable, write the record."""
    before = {row.id for row in plan.shards_before}
    connection.execute(
        insert(operations).values(
            id=plan.id,
            map_id=plan.map.id,
            kind=plan.kind,
            plan=encode_plan(plan),
            step="do",
            owner=owner,
            made_at=now,
            beat_at=now,
        )
    )
    _stamp(connection, shards, before, plan.id)
    _stamp(connection, mappings, {row.id for row in plan.removed}, plan.id)
    mark = {"operation_id": plan.id, "is_readable": False}
    new_shards = [row for row in plan.shards_after if row.id not in before]
    if new_shards:
        connection.execute(insert(shards), [_shard_values(row) | mark for row in new_shards])
    if plan.added:
        connection.execute(
            insert(mappings), [msgspec.structs.asdict(row) | mark for row in plan.added]
        )


def finish(connection: Connection, plan: ChangePlan) -> None:
    """Make the rows of the plan readable and delete the record."""
    _delete(connection, mappings, {row.id for row in plan.removed})
    for some in _batches({row.id for row in plan.added}):
        values = {"operation_id": None, "is_readable": True}
        connection.execute(update(mappings).where(mappings.c.id.in_(some)).values(values))
    after = {row.id for row in plan.shards_after}
    _delete(connection, shards, {row.id for row in plan.shards_before} - after)
    for row in plan.shards_after:
        _write_shard(connection, row)
    connection.execute(delete(operations).where(operations.c.id == plan.id))
    _bump_epoch(connection, plan.map.id)


def revert(connection: Connection, plan: ChangePlan, *, foreign: set[str], forget: bool) -> None:
    """Restore the rows as they were before the change.

    Shards in `foreign` were not changed by the plan, so they keep their mark. Without `forget` the
    record stays as "undone", for a slow process that checks the state of its change.
    """
    _delete(connection, mappings, {row.id for row in plan.added})
    _stamp(connection, mappings, {row.id for row in plan.removed}, None)
    before = {row.id for row in plan.shards_before}
    _delete(connection, shards, {row.id for row in plan.shards_after} - before)
    for row in plan.shards_before:
        _write_shard(connection, row if row.id in foreign else undone_row(plan, row))
    mine = operations.c.id == plan.id
    if forget:
        connection.execute(delete(operations).where(mine))
    else:
        connection.execute(update(operations).where(mine).values(step="undone"))
    _bump_epoch(connection, plan.map.id)


def find_record(connection: Connection, operation_id: str) -> ChangeRecord | None:
    row = connection.execute(select(operations).where(operations.c.id == operation_id)).first()
    return (
        None
        if row is None
        else ChangeRecord(decode_plan(row.plan), row.step, row.owner, row.beat_at)
    )


def list_pending(connection: Connection, shard_id: str | None = None) -> list[str]:
    """Return the unfinished changes, of one shard or of all."""
    if shard_id is not None:
        query = select(shards.c.operation_id).where(shards.c.id == shard_id)
        return [found for found in connection.scalars(query) if found is not None]
    query = select(operations.c.id).where(operations.c.step != "undone")
    return list(connection.scalars(query.order_by(operations.c.made_at)))


def mark_undo(connection: Connection, operation_id: str) -> bool:
    """Mark the change for undo; return False if it is already finished or undone."""
    mine = and_(operations.c.id == operation_id, operations.c.step.in_(("do", "undo")))
    return bool(connection.execute(update(operations).where(mine).values(step="undo")).rowcount)


def beat(connection: Connection, operation_id: str, now: int) -> None:
    mine = operations.c.id == operation_id
    connection.execute(update(operations).where(mine).values(beat_at=now))


def forget_undone(connection: Connection, before: int) -> None:
    old = and_(operations.c.step == "undone", operations.c.beat_at < before)
    connection.execute(delete(operations).where(old))


def _stamp(connection: Connection, table: Table, ids: set[str], stamp: str | None) -> None:
    for some in _batches(ids):
        connection.execute(update(table).where(table.c.id.in_(some)).values(operation_id=stamp))


def _delete(connection: Connection, table: Table, ids: set[str]) -> None:
    for some in _batches(ids):
        connection.execute(delete(table).where(table.c.id.in_(some)))


def _batches(ids: set[str]) -> Iterator[list[str]]:
    ordered = sorted(ids)
    for start in range(0, len(ordered), IDS_MAX):
        yield ordered[start : start + IDS_MAX]


def _write_shard(connection: Connection, row: ShardRow) -> None:
    values = _shard_values(row) | {"operation_id": None, "is_readable": True}
    connection.execute(update(shards).where(shards.c.id == row.id).values(values))


def _shard_values(row: ShardRow) -> dict[str, object]:
    identity = Location.from_text(row.location).identity
    return msgspec.structs.asdict(row) | {"identity": identity}


def _bump_epoch(connection: Connection, map_id: str) -> None:
    mine = maps.c.id == map_id
    connection.execute(update(maps).where(mine).values(epoch=maps.c.epoch + 1))


def _intersects(low: bytes, high: bytes | None) -> ColumnElement[bool]:
    above = or_(mappings.c.high.is_(None), mappings.c.high > low)
    return above if high is None else and_(mappings.c.low < high, above)


def _map_row(row: Row[tuple[object, ...]]) -> MapRow:
    return MapRow(row.id, row.name, row.kind, row.key_type, row.buckets, row.schema, row.epoch)


def _shard_row(row: Row[tuple[object, ...]]) -> ShardRow:
    return ShardRow(row.id, row.map_id, row.location, row.version, row.status, row.last_operation)


def _mapping_row(row: Row[tuple[object, ...]]) -> MappingRow:
    return MappingRow(
        row.id, row.map_id, row.shard_id, row.low, row.high, row.status, row.lock_owner
    )


def _pair(row: Row[tuple[object, ...]]) -> tuple[MappingRow, ShardRow]:
    shard = ShardRow(
        row.shard_id,
        row.shard_map_id,
        row.shard_location,
        row.shard_version,
        row.shard_status,
        row.shard_last_operation,
    )
    return _mapping_row(row), shard
