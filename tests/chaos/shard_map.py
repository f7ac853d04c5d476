"""A range map of notes on two shards of one PostgreSQL, as the processes of a scenario see it."""

from partita.shards import Range, ShardedSchema, ShardMapManager
from support.routed import Base, Routed

MOVED_TENANT = 5
TENANTS = (5, 42, 150)
"""The first two are in the range that moves, the third is a neighbour."""


def create_map(catalog: str, one: str, two: str) -> None:
    with ShardMapManager.create(catalog) as manager:
        schema = ShardedSchema(Base.metadata, keys={"note": "tenant_id"})
        tenants = manager.create_range_map("tenants", key=int, schema=schema)
        shards = [tenants.create_shard(url) for url in (one, two)]
        for shard in shards:
            with shard.connect() as connection:
                Base.metadata.create_all(connection)
                connection.commit()
        tenants.create_mapping(Range(0, 100), shards[0])
        tenants.create_mapping(Range(100, 200), shards[1])


def differences(
    routed: Routed, done: set[tuple[int, int]], doubt: set[tuple[int, int]], unheard: int
) -> list[str]:
    """Return what is wrong with the stored notes.

    `unheard` processes were killed: each may have committed one note without saying so.
    """
    owners = {tenant: routed.tenants.get(tenant, lookup="store").shard for tenant in TENANTS}
    found: dict[tuple[int, int], int] = {}
    wrong = []
    for shard in (routed.one, routed.two):
        for note in routed.notes(shard):
            found[note] = found.get(note, 0) + 1
            if owners[note[0]] != shard:
                wrong.append(f"note {note} is on a shard that does not own it")
    wrong += [f"note {note} is lost" for note in sorted(done - found.keys())]
    wrong += [f"note {note} is stored {count} times" for note, count in found.items() if count > 1]
    unknown = found.keys() - done - doubt
    if len(unknown) > unheard:
        wrong.append(f"{len(unknown)} notes were not asked for, {unheard} writers were killed")
    return wrong
