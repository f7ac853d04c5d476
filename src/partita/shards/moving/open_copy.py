"""Open the RowCopy for two databases; each implementation imports its own driver."""

from partita.errors import MoveRefusedError
from partita.shards.connections.engines import Engines
from partita.shards.keys.mapping import Location
from partita.shards.moving.copying import RowCopy, Shardlet


def open_copy(engines: Engines, source: Location, target: Location, shardlet: Shardlet) -> RowCopy:
    """Connect to both shards, which must be databases of the same kind."""
    if source.backend != target.backend or source.backend not in {"postgresql", "sqlite"}:
        raise MoveRefusedError(
            "MoveRefused",
            f"Rows cannot be moved from {source.backend} to {target.backend}.",
            facts={"source": source.text, "target": target.text},
            hint="Move between two PostgreSQL databases or two SQLite files.",
        )
    # Imported here, because each needs only the driver of its own database.
    if source.backend == "sqlite":
        from partita.shards.moving.copying_sqlite import SqliteCopy  # noqa: PLC0415

        return SqliteCopy(engines, source, target, shardlet)
    from partita.shards.moving.copying_postgres import PostgresCopy  # noqa: PLC0415

    return PostgresCopy(engines, source, target, shardlet)
