"""Refuse rows whose sharding key is outside the mapping of a routed connection.

Such a row would be stored on this shard, while routing would look for it on another. The check
covers the parameters of INSERT and UPDATE statements that SQLAlchemy compiles: ORM objects and Core
statements. It does not cover text, expressions evaluated by the database, and INSERT from SELECT.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table
from sqlalchemy.engine.default import DefaultExecutionContext

from partita.errors import InvalidShardKeyError, WrongShardKeyError
from partita.shards.keys.mapping import Mapping as ShardMapping
from partita.shards.keys.schema import ShardedSchema

if TYPE_CHECKING:
    from sqlalchemy.sql.compiler import SQLCompiler

Names = tuple[str, ...]
Parameters = Mapping[str, Any]

_NAMES, _CHECKED = "_partita_key_names", "_partita_rows_checked"
"""Attributes of a compiled statement and of its execution context."""
_ABSENT = object()


class RowKeys:
    """The sharding columns of the tables of one shard map."""

    def __init__(self, schema: ShardedSchema, encode: Callable[[Any], bytes]) -> None:
        self._columns = {
            (table.schema, table.table): table.columns for table in schema.sharded_tables()
        }
        self._encode = encode

    def check(self, context: DefaultExecutionContext, key: Any, mapping: ShardMapping) -> None:
        """Refuse the statement (WrongShardKeyError) if it stores a row of another mapping.

        `key` is the key of the connection: rows with the same key need no look-up.
        """
        compiled: Any = context.compiled
        owner, names = getattr(compiled, _NAMES, (None, ()))
        if owner is not self:  # another map in the same database may share the statement
            names = self._names_in(compiled)
            setattr(compiled, _NAMES, (self, names))
        if not names:
            return
        rows = context.compiled_parameters
        if len(rows) > 1:
            # The statement may be sent in several parts, each of which calls this.
            if hasattr(context, _CHECKED):
                return
            setattr(context, _CHECKED, True)
        first, is_composite = names[0], len(names) > 1
        for parameters in rows:
            if not is_composite and parameters.get(first, _ABSENT) == key:
                continue
            for row in _keys_in(names, parameters, key if is_composite else (key,)):
                if not self._belongs(row, mapping):
                    raise _wrong_key(compiled.statement.table, row, mapping)

    def _belongs(self, row: Sequence[Any], mapping: ShardMapping) -> bool:
        if None in row:
            return True  # not a row of any shardlet; the database may refuse it
        try:
            position = self._encode(row[0] if len(row) == 1 else row)
        except InvalidShardKeyError:
            return True  # only the type of the column can convert it to a key
        return mapping.key_range.contains(position)

    def _names_in(self, compiled: "SQLCompiler") -> Names:
        """Return the names of the parameters with the parts of the key; empty: nothing to check."""
        statement: Any = compiled.statement
        table = statement.table
        if not isinstance(table, Table) or getattr(statement, "select", None) is not None:
            return ()
        columns = self._columns.get((table.schema, table.name), ())
        keys = {column.name: column.key for column in table.columns}
        if not keys.keys() >= set(columns):
            return ()
        names = tuple(keys[name] for name in columns)
        if not compiled.isupdate:
            return names
        # Of an UPDATE only the SET clause counts; its condition may use the same names.
        are_set = (getattr(compiled.binds.get(name), "_is_crud", False) for name in names)
        return names if any(are_set) else ()


def _keys_in(names: Names, parameters: Parameters, own: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield the key of each row; missing parts are taken from the key of the connection."""
    row = tuple(parameters.get(name, _ABSENT) for name in names)
    if any(part is not _ABSENT for part in row):
        yield _completed(row, own)
        return
    for number in count():  # VALUES (…), (…) in one statement
        row = tuple(parameters.get(f"{name}_m{number}", _ABSENT) for name in names)
        if all(part is _ABSENT for part in row):
            return
        yield _completed(row, own)


def _completed(row: tuple[Any, ...], own: Sequence[Any]) -> tuple[Any, ...]:
    if _ABSENT not in row:
        return row
    return tuple(mine if part is _ABSENT else part for part, mine in zip(row, own, strict=True))


def _wrong_key(table: Table, row: Sequence[Any], mapping: ShardMapping) -> WrongShardKeyError:
    key = row[0] if len(row) == 1 else tuple(row)
    return WrongShardKeyError(
        "WrongShardKey",
        f"A row of {table.name!r} has the sharding key {key!r}, which is outside the mapping of "
        "this session or connection.",
        facts={
            "map": mapping.map_name,
            "table": table.fullname,
            "key": key,
            "mapping": mapping.range,
            "shard": mapping.shard.location.text,
        },
        hint="Write the row in a session of its own key: map.sessionmaker()(key). Pass "
        "check_keys=False to store it on this shard anyway.",
    )
