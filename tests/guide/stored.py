"""What the tests of the patterns share: databases with their tables made, and a look at rows."""

from typing import Any

from partita.patterns import Database


async def opened(db: Database, *classes: type[Any]) -> Database:
    """Let a database know some types, and make their tables."""
    for cls in classes:
        db.table(cls)
    await db.create_tables()
    return db


async def keys_in(db: Database, table: str) -> list[str]:
    """The keys of all entities of a table, of strangers and copies too; not the hidden ones."""
    return [
        f"{each.partition_key}/{each.row_key}"
        async for each in db.raw(table).query()
        if not each.partition_key.startswith("~") and not each.row_key.startswith("~")
    ]


async def hidden_in(db: Database, table: str, prefix: str = "~o_") -> list[str]:
    """The row keys of hidden rows: those of the outbox, unless another prefix is given."""
    rows = [each.row_key async for each in db.raw(table).query()]
    return [row for row in rows if row.startswith(prefix)]
