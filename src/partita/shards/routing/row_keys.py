"""Refuse rows whose sharding key lies outside the mapping that a routed connection serves.

Such a row would be stored on this shard, and routing would look for it on another one. Checked are
the values that INSERT statements store and UPDATE statements set, where SQLAlchemy compiled the
statement and the value is a parameter of it: objects of the ORM, and statements of Core. Text, an
expression that the database evaluates, and INSERT from SELECT are not.
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
"""Kept with a compiled statement, and with the execution of one."""
_ABSENT = object()


class RowKeys:
    """Where the tables of one shard map hold the sharding key."""

    def __init__(self, schema: ShardedSchema, encode: Callable[[Any], bytes]) -> None:
        self._columns = {
            (table.schema, table.table): table.columns for table in schema.sharded_tables()
        }
        self._encode = encode

    def check(self, context: DefaultExecutionContext, key: Any, mapping: ShardMapping) -> None:
        """Refuse the statement (WrongShardKeyError) if it stores a row of another mapping.

        `key` is the key that the connection was routed by: a row with this key is not looked up.
        """
        compiled: Any = context.compiled
        owner, names = getattr(compiled, _NAMES, (None, ()))
        if owner is not self:  # another map may share the database, and so the statement
            names = self._names_in(compiled)
            setattr(compiled, _NAMES, (self, names))
        if not names:
            return
        rows = context.compiled_parameters
        if len(rows) > 1:
            # Sent in several parts, and each of them comes by here.
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
            return True  # a row of no shardlet, which is the database's to refuse
        try:
            position = self._encode(row[0] if len(row) == 1 else row)
        except InvalidShardKeyError:
            return True  # the column's type makes a key of it, and only it knows which
        return mapping.key_range.contains(position)

    def _names_in(self, compiled: "SQLCompiler") -> Names:
        """Return the names of the parameters that hold the parts of the key; none: no check."""
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
        # Of an UPDATE only what it sets counts, and the condition may use the same names.
        are_set = (getattr(compiled.binds.get(name), "_is_crud", False) for name in names)
        return names if any(are_set) else ()


def _keys_in(names: Names, parameters: Parameters, own: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Give the key of each row; parts that the statement leaves out are the connection's own."""
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
        f"A row of {table.name!r} has the sharding key {key!r}, which lies outside the mapping "
        "that this session or connection was routed by.",
        facts={
            "map": mapping.map_name,
            "table": table.fullname,
            "key": key,
            "mapping": mapping.range,
            "shard": mapping.shard.location.text,
        },
        hint="Write the row in a session of its own key: map.sessionmaker()(key). With "
        "check_keys=False the session stores it here all the same.",
    )
