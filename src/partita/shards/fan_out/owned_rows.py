"""Restrict a statement to the rows that a shard owns: those whose keys are in its mappings.

While a shardlet moves, its rows are on two shards; a consistent fan-out counts them on the shard
that owns them by its local catalog. Rule: a sharded table is replaced by a common table expression
of the same name, so that any statement sees owned rows only.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import msgspec
from sqlalchemy import (
    CTE,
    ColumnElement,
    Connection,
    Integer,
    MetaData,
    SelectBase,
    String,
    TableClause,
    TextualSelect,
    and_,
    collate,
    column,
    false,
    literal,
    literal_column,
    or_,
    select,
    table,
    tuple_,
)
from sqlalchemy.sql import visitors
from sqlalchemy.types import TypeEngine

from partita.errors import LimitExceededError, NotSupportedError
from partita.shards.fan_out.shard_statement import CODE_POINT_COLLATIONS
from partita.shards.keys.ranges import KeyRange, Range
from partita.shards.keys.schema import COLUMN_TYPES, ShardedTable
from partita.shards.keys.shard_key import KeyType

OWNED_RANGES_MAX = 200
"""The maximum number of ranges in a statement; with more, each key is checked in Python."""
FOREIGN_KEYS_MAX = 20_000
"""The maximum number of keys on a shard that it does not own: parameters are limited."""

_ORDERED_TYPES = frozenset({"int", "str", "bytes", "uuid", "date"})
"""Key types that every database orders as their encoding does."""


class OwnedRows(msgspec.Struct, frozen=True):
    """The rows that one shard owns."""

    tables: tuple[ShardedTable, ...]
    key_type: KeyType
    key_ranges: tuple[KeyRange, ...]
    """In order."""
    ranges: tuple[Range, ...]
    """The same as values; empty for hash maps, whose ranges are of buckets."""
    position_of: Callable[[Any], bytes]
    """Encodes a sharding key as the key ranges are encoded."""
    metadata: MetaData | None = None

    def restrict(self, statement: SelectBase, connection: Connection) -> SelectBase:
        """Return the statement over owned rows; may read the keys of the shard first."""
        _check(statement)
        written = str(statement.compile(dialect=connection.dialect)).lower()
        quote = connection.dialect.identifier_preparer.quote_identifier
        named = [each for each in self.tables if quote(each.table)[1:-1].lower() in written]
        shadows = [shadow for each in named for shadow in self._shadow(each, connection)]
        return _with_first(statement, shadows) if shadows else statement

    def _shadow(self, sharded: ShardedTable, connection: Connection) -> Iterable[CTE]:
        if sharded.schema is not None:
            raise NotSupportedError(
                "ConsistentSchema",
                "A consistent fan-out cannot read a table that is named with its schema.",
                facts={"table": sharded.name},
                hint="Set the search_path of the connections and omit the schema.",
            )
        source = self._source(sharded, connection.dialect.name)
        predicate = self._predicate(source, sharded, connection)
        if predicate is None:
            return
        everything: ColumnElement[Any] = literal_column("*")
        rows = select(everything).select_from(source).where(predicate)
        # Not materialized, so that the caller's conditions use the indexes of the table.
        yield rows.cte(sharded.table).prefix_with("NOT MATERIALIZED")

    def _source(self, sharded: ShardedTable, dialect: str) -> TableClause:
        # SQLite takes the bare name for the expression itself; "main" names the table.
        schema = "main" if dialect == "sqlite" else None
        known = self.metadata.tables.get(sharded.name) if self.metadata is not None else None
        declared = {} if known is None else {each.name: each.type for each in known.columns}
        columns = [
            column(name, _compared_type(declared.get(name), part))
            for name, part in zip(sharded.columns, self.key_type.parts, strict=True)
        ]
        return table(sharded.table, *columns, schema=schema)

    def _predicate(
        self, source: TableClause, sharded: ShardedTable, connection: Connection
    ) -> ColumnElement[bool] | None:
        keys = [source.columns[name] for name in sharded.columns]
        if self._can_compare(keys):
            dialect = connection.dialect.name
            return or_(false(), *(_within(keys[0], each, dialect) for each in self.ranges))
        foreign = self._foreign_keys(source, keys, connection)
        if not foreign:
            return None
        # A null among the values of NOT IN would hide every row.
        complete = [key for key in foreign if None not in key]
        are_there = and_(*(key.is_not(None) for key in keys))
        if len(keys) == 1:
            return and_(are_there, keys[0].not_in([key for (key,) in complete]))
        return and_(are_there, tuple_(*keys).not_in(complete))

    def _can_compare(self, keys: Sequence[ColumnElement[Any]]) -> bool:
        is_short = len(self.ranges) <= OWNED_RANGES_MAX and bool(self.ranges or not self.key_ranges)
        return is_short and len(keys) == 1 and self.key_type.name in _ORDERED_TYPES

    def _foreign_keys(
        self, source: TableClause, keys: Sequence[ColumnElement[Any]], connection: Connection
    ) -> list[tuple[Any, ...]]:
        query = select(*keys).select_from(source).distinct()
        found: list[tuple[Any, ...]] = []
        rows = connection.execute(query, execution_options={"stream_results": True})
        for row in rows:
            if self._owns(tuple(row)):
                continue
            if len(found) == FOREIGN_KEYS_MAX:
                raise _too_many(source.name)
            found.append(tuple(row))
        return found

    def _owns(self, key: tuple[Any, ...]) -> bool:
        aware = tuple(_aware(part) for part in key)
        if None in aware:
            return False
        place = self.position_of(aware[0] if len(aware) == 1 else aware)
        index = bisect_right(self.key_ranges, place, key=lambda each: each.low) - 1
        return index >= 0 and self.key_ranges[index].contains(place)


def _with_first(statement: SelectBase, shadows: list[CTE]) -> SelectBase:
    # In PostgreSQL an expression sees only earlier ones, so those of the caller come last.
    own = statement._independent_ctes  # noqa: SLF001 - SQLAlchemy has no public way to ask for it
    changed: Any = statement.add_cte(*shadows)
    for name in ("_independent_ctes", "_independent_ctes_opts"):
        all_of_them = getattr(changed, name)
        setattr(changed, name, (*all_of_them[len(own) :], *all_of_them[: len(own)]))
    return cast("SelectBase", changed)


def _compared_type(declared: TypeEngine[Any] | None, part: type) -> TypeEngine[Any]:
    # A bound of the map may exceed the maximum of an INTEGER column.
    if declared is None or isinstance(declared, Integer):
        return COLUMN_TYPES[part]
    return declared


def _check(statement: SelectBase) -> None:
    recursive = any(
        isinstance(each, CTE) and each.recursive for each in visitors.iterate(statement)
    )
    if recursive or isinstance(statement, TextualSelect):
        raise NotSupportedError(
            "ConsistentStatement",
            "A consistent fan-out accepts neither text nor recursive common table expressions.",
            hint="Write the statement with select(), or omit consistent=True.",
        )


def _within(key: ColumnElement[Any], owned: Range, dialect: str) -> ColumnElement[bool]:
    if owned.is_point:
        return key == literal(owned.low, key.type)
    compared = key
    if isinstance(key.type, String):
        compared = collate(key, CODE_POINT_COLLATIONS.get(dialect, "C"))
    low = [] if owned.low is None else [compared >= literal(owned.low, key.type)]
    high = [] if owned.high is None else [compared < literal(owned.high, key.type)]
    return and_(key.is_not(None), *low, *high)


def _aware(part: Any) -> Any:
    # SQLite stores no time zone; stored values are UTC.
    if isinstance(part, datetime) and part.tzinfo is None:
        return part.replace(tzinfo=UTC)
    return part


def _too_many(name: str) -> LimitExceededError:
    return LimitExceededError(
        "TooManyForeignKeys",
        f"The shard has more than {FOREIGN_KEYS_MAX} keys that belong to another shard.",
        facts={"table": name, "foreign_keys_max": FOREIGN_KEYS_MAX},
        hint="Wait until the move has deleted the rows on its source.",
    )
