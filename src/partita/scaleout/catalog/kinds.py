"""The kinds of things that have ranges, and the statements of the catalog that differ for them."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

import msgspec

from partita.tables.store import Table

Named = Table
"""What a name stands for: the number of a table or queue, and its name as it was created."""


class Kind(StrEnum):
    """What a range has, as in the column `kind`."""

    TABLE = "t"
    """Entities of a table, by partition key."""
    QUEUE = "q"
    """All messages of a queue."""


class Statements(msgspec.Struct, frozen=True):
    """How the catalog keeps the names of a kind."""

    changed: str
    """Number, account and name of what changed after a version."""
    find: str
    """The same of one name."""
    dropped: str
    """The numbers of what was dropped after a version."""
    add: str
    """Account, name, what else belongs to it, number, range, epoch and shard; no row: it exists."""
    drop: str
    """Account, name, of a queue also the time or NULL; number, version and shard, a row for each
    other shard that has ranges, or one without a shard."""


STATEMENTS: Mapping[Kind, Statements] = MappingProxyType(
    {
        Kind.TABLE: Statements(
            changed="SELECT id, account_id, name FROM partita.tables WHERE version > $1",
            find="SELECT id, account_id, name FROM partita.tables"
            " WHERE account_id = $1 AND folded = $2",
            dropped="SELECT tid FROM partita.dropped_table WHERE version > $1",
            add="SELECT at_version FROM partita.add_table_1($1, $2, $3, $4, $5, $6, $7)",
            drop="SELECT tid, at_version, shard FROM partita.drop_table_2($1, $2)",
        ),
        Kind.QUEUE: Statements(
            changed="SELECT tid AS id, account_id, name FROM partita.queue WHERE version > $1",
            find="SELECT tid AS id, account_id, name FROM partita.queue"
            " WHERE account_id = $1 AND name = $2",
            dropped="SELECT id AS tid FROM partita.dropped_queue WHERE version > $1",
            add="SELECT at_version FROM partita.add_queue_1($1, $2, $3, $4, $5, $6, $7)",
            drop="SELECT tid, at_version, shard"
            " FROM partita.drop_queue_1($1, $2, coalesce($3::bigint, partita.ticks_1()))",
        ),
    }
)


def folded_name(name: str) -> str:
    """Fold the case of a name: of ASCII only, because the Kelvin sign is not a k."""
    return name.lower() if name.isascii() else name
