"""The sharded tables of a schema with their sharding columns, and the reference tables.

Sharded tables hold the rows of shardlets and move with them; reference tables are the same on
every shard. A table is identified by schema and name, not by one quoted text, so that names may
contain dots and quotes. The JSON form is stored in the global catalog and never changes:

    {"version": 1,
     "sharded": [{"schema": null, "table": "blog", "columns": ["tenant_id"]}, ...],
     "reference": [{"schema": null, "table": "region"}, ...]}

Both lists are in the order in which rows are copied: parents before children.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import (
    BigInteger,
    Column,
    Date,
    DateTime,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    TypeDecorator,
    Uuid,
)
from sqlalchemy.schema import sort_tables_and_constraints
from sqlalchemy.types import TypeEngine

from partita.errors import DamageError, FormatVersionError, SchemaError
from partita.shards.keys.shard_key import KeyType

SCHEMA_FORMAT_VERSION = 1
_NARROWER = frozenset(((bool, int), (datetime, date)))
"""Subclasses whose values are not keys of the base class."""
COLUMN_TYPES: dict[type, TypeEngine[Any]] = {
    int: BigInteger(),
    str: String(),
    bytes: LargeBinary(),
    UUID: Uuid(),
    date: Date(),
    datetime: DateTime(timezone=True),
    timedelta: Interval(),
    Decimal: Numeric(),
}
"""The type of a sharding column whose declaration is unknown, by the type of the key."""


class TableName(msgspec.Struct, frozen=True):
    """A table with its database schema."""

    schema: str | None
    table: str

    @property
    def name(self) -> str:
        """The key of the table in its MetaData: `sales.order`."""
        return self.table if self.schema is None else f"{self.schema}.{self.table}"


class ShardedTable(TableName, frozen=True):
    """A table whose rows belong to shardlets."""

    columns: tuple[str, ...]
    """Names of the sharding columns in the database: one per part of the key."""


class _Stored(msgspec.Struct):
    version: int
    sharded: list[ShardedTable]
    reference: list[TableName]


class ShardedSchema:
    """The sharded and reference tables of one shard map; immutable.

    `keys` names the sharding column of each sharded table (a list of them for a composite key).
    Tables are named as in the MetaData: `"blog"`, `"sales.order"`.
    """

    def __init__(
        self,
        metadata: MetaData,
        *,
        keys: Mapping[str, str | Sequence[str]],
        reference: Iterable[str] = (),
    ) -> None:
        # A declarative base is accepted in place of its MetaData.
        metadata = getattr(metadata, "metadata", metadata)
        tables = _find_tables(metadata, [*keys, *reference])
        self.metadata: MetaData | None = metadata
        ordered = [table for table in _in_copy_order(metadata) if table.key in tables]
        self._sharded = [_sharded(table, keys[table.key]) for table in ordered if table.key in keys]
        self._reference = [_name(table) for table in ordered if table.key not in keys]

    @classmethod
    def from_json(cls, text: str | bytes, metadata: MetaData | None = None) -> "ShardedSchema":
        """Parse the stored form; with `metadata` it is checked like a new schema."""
        stored = _read(text)
        if metadata is not None:
            keys = {table.name: table.columns for table in stored.sharded}
            return cls(metadata, keys=keys, reference=[table.name for table in stored.reference])
        schema = cls.__new__(cls)
        schema.metadata = None
        schema._sharded = stored.sharded  # noqa: SLF001 - its own class
        schema._reference = stored.reference  # noqa: SLF001
        return schema

    def to_json(self) -> str:
        """Return the stored form; equal schemas have equal texts."""
        stored = _Stored(SCHEMA_FORMAT_VERSION, self._sharded, self._reference)
        return json.dumps(msgspec.to_builtins(stored), separators=(",", ":"))

    def sharded_tables(self) -> list[ShardedTable]:
        """Return the sharded tables, parents before children."""
        return list(self._sharded)

    def reference_tables(self) -> list[TableName]:
        """Return the reference tables, parents before children."""
        return list(self._reference)

    def other_tables(self) -> list[TableName]:
        """Return the other tables of the MetaData, which moves do not change."""
        if self.metadata is None:
            return []
        listed = {table.name for table in (*self._sharded, *self._reference)}
        return [_name(table) for table in _in_copy_order(self.metadata) if table.key not in listed]

    def find_sharded(self, name: str) -> ShardedTable | None:
        """Return the sharded table with this name in the MetaData, or None."""
        return next((table for table in self._sharded if table.name == name), None)

    def check_key_type(self, key: KeyType) -> None:
        """Raise SchemaError if the sharding columns cannot hold such keys."""
        for sharded in self._sharded:
            if len(sharded.columns) != len(key.parts):
                raise _column_mismatch(sharded, key, f"{len(sharded.columns)} columns")
            if self.metadata is not None:
                _check_columns(self.metadata.tables[sharded.name], sharded, key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShardedSchema) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __repr__(self) -> str:
        keys = {table.name: table.columns for table in self._sharded}
        return f"ShardedSchema(keys={keys!r}, reference={[t.name for t in self._reference]!r})"


def _find_tables(metadata: MetaData, names: list[str]) -> set[str]:
    for name in names:
        if name not in metadata.tables:
            raise SchemaError(
                "UnknownTable",
                f"The MetaData has no table {name!r}.",
                facts={"table": name, "tables": sorted(metadata.tables)},
                hint="Use the name of the MetaData, with the schema: 'sales.order'.",
            )
        if names.count(name) > 1:
            raise SchemaError(
                "TableListedTwice",
                f"The table {name!r} is listed twice.",
                facts={"table": name},
                hint="List a table once, as sharded or as reference table.",
            )
    return set(names)


def _in_copy_order(metadata: MetaData) -> list[Table]:
    # Not sorted_tables, which warns about cycles of foreign keys; they are allowed here.
    by_name = sorted(metadata.tables.values(), key=lambda table: table.key)
    ordered = sort_tables_and_constraints(by_name)  # type: ignore[no-untyped-call]
    return [table for table, _ in ordered if table is not None]


def _sharded(table: Table, given: str | Sequence[str]) -> ShardedTable:
    names = (given,) if isinstance(given, str) else tuple(given)
    columns = tuple(str(_find_column(table, name).name) for name in names)
    if not columns or len(set(columns)) != len(columns):
        raise SchemaError(
            "InvalidShardingColumns",
            f"The sharding columns of {table.key!r} are empty or contain a column twice.",
            facts={"table": table.key, "columns": columns},
            hint="Name one column, or one per part of a composite key.",
        )
    named = _name(table)
    return ShardedTable(named.schema, named.table, columns)


def _find_column(table: Table, name: str) -> Column[Any]:
    for column in table.columns:
        if name in (column.name, column.key):
            return column
    raise SchemaError(
        "UnknownColumn",
        f"The table {table.key!r} has no column {name!r}.",
        facts={"table": table.key, "column": name, "columns": [c.name for c in table.columns]},
        hint="Name the column that holds the sharding key.",
    )


def _name(table: Table) -> TableName:
    # str(), because names of SQLAlchemy may be instances of a subclass.
    return TableName(None if table.schema is None else str(table.schema), str(table.name))


def _check_columns(table: Table, sharded: ShardedTable, key: KeyType) -> None:
    for name, part in zip(sharded.columns, key.parts, strict=True):
        column_type = _find_column(table, name).type
        if not _fits(column_type, part):
            raise _column_mismatch(sharded, key, f"column {name} of type {column_type!r}")


def _fits(column_type: TypeEngine[Any], part: type) -> bool:
    if isinstance(column_type, TypeDecorator):
        return True  # its conversion of values is not known
    try:
        found = column_type.python_type
    except NotImplementedError:
        found = object
    if found is object:
        return True  # unknown to SQLAlchemy; the first row will show
    if isinstance(column_type, DateTime) and not column_type.timezone:
        return False  # without a time zone, the value depends on the session
    return issubclass(found, part) and (found, part) not in _NARROWER


def _column_mismatch(sharded: ShardedTable, key: KeyType, found: str) -> SchemaError:
    return SchemaError(
        "ShardingColumnMismatch",
        f"The table {sharded.name!r} has {found} for a sharding key of type {key.name}.",
        facts={"table": sharded.name, "columns": sharded.columns, "expected": key.name},
        hint="Declare the column with the key type of the map; use DateTime(timezone=True).",
    )


def _read(text: str | bytes) -> _Stored:
    try:
        stored = msgspec.json.decode(text, type=_Stored)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise DamageError("StoreDamaged", "The stored sharded schema is damaged.") from error
    if stored.version != SCHEMA_FORMAT_VERSION:
        if msgspec.json.decode(text, type=dict[str, Any]).keys() == set(_Stored.__struct_fields__):
            # A later format has other members, so that its number cannot be a damaged one.
            raise DamageError("StoreDamaged", "The version of the sharded schema is damaged.")
        raise FormatVersionError(
            "FormatVersion",
            "The sharded schema was stored by another version of Partita.",
            facts={"version": stored.version, "expected": SCHEMA_FORMAT_VERSION},
            hint="Install a version of Partita at least as new as the one that wrote it: pip "
            "install --upgrade partita. Nothing was changed.",
        )
    return stored
