"""Which copy belongs to which two databases: each module needs its own driver only."""

from partita.errors import MoveRefusedError
from partita.shards.connections.engines import Engines
from partita.shards.keys.mapping import Location
from partita.shards.moving.copying import RowCopy, Shardlet


def open_copy(engines: Engines, source: Location, target: Location, shardlet: Shardlet) -> RowCopy:
    """Connect to both shards; they must be of one kind."""
    if source.backend != target.backend or source.backend not in {"postgresql", "sqlite"}:
        raise MoveRefusedError(
            "MoveRefused",
            f"Rows cannot be moved from {source.backend} to {target.backend}.",
            facts={"source": source.text, "target": target.text},
            hint="Move between two databases of PostgreSQL or two files of SQLite.",
        )
    # Imported here because each needs the driver of its own database only.
    if source.backend == "sqlite":
        from partita.shards.moving.copying_sqlite import SqliteCopy  # noqa: PLC0415

        return SqliteCopy(engines, source, target, shardlet)
    from partita.shards.moving.copying_postgres import PostgresCopy  # noqa: PLC0415

    return PostgresCopy(engines, source, target, shardlet)
