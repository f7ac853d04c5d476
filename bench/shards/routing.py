"""What routing costs: connect and `SELECT 1`, plain against routed, in one process.

Variants take turns in small batches, because the machine's pace changes from second to second.
`plain` begins a real transaction on SQLite (the recipe of SQLAlchemy's documentation), as routing
does; `bare` is the driver's own mode, which begins none for a SELECT.
"""

import time
from collections.abc import Callable

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap
from partita.shards.routing.router import Validate

BATCH = 20
WARM_RUNS = 40
RECONNECT_ROUNDS = 5
"""Then all connections are new: one server process may be twice as fast as another for long."""
MAPPINGS = 10_000
KEY = 50_005
ONE = text("SELECT 1")
Variant = Callable[[], object]

RATIOS_MAX = {
    "postgresql": {"always": 1.7, "lease": 1.15, "session": 1.7},
    "sqlite": {"always": 1.5, "session": 1.5},
}
"""Over plain; a session over a plain session."""


def measure(catalog: str, shard: str, rounds: int) -> dict[str, list[float]]:
    """Return the microseconds of each variant, one figure a round."""
    with ShardMapManager.create(catalog) as manager:
        tenants = manager.create_range_map("tenants", key=int)
        ranges = [Range(start, start + 10) for start in range(0, 10 * MAPPINGS, 10)]
        tenants.create_mappings(ranges, tenants.create_shard(shard))
        tenants.load()
        plain, bare = _plain_engine(shard), create_engine(shard)

        def disposing() -> None:
            for pools in (tenants.engines, plain, bare):
                pools.dispose()

        try:
            return _interleaved(_variants(tenants, plain, bare), rounds, disposing)
        finally:
            disposing()


def _variants(tenants: RangeShardMap, plain: Engine, bare: Engine) -> dict[str, Variant]:
    make = tenants.sessionmaker()

    def connecting(engine: Engine) -> Variant:
        def run() -> object:
            with engine.connect() as connection:
                return connection.execute(ONE).scalar()

        return run

    def routed(validate: Validate) -> Variant:
        def run() -> object:
            with tenants.connect(KEY, validate=validate) as connection:
                return connection.execute(ONE).scalar()

        return run

    def plain_session() -> object:
        with Session(plain) as session:
            return session.execute(ONE).scalar()

    def routed_session() -> object:
        with make(KEY) as session:
            return session.execute(ONE).scalar()

    return {
        "plain": connecting(plain),
        "always": routed("always"),
        "bare": connecting(bare),
        "lease": routed("lease"),
        "never": routed("never"),
        "plain session": plain_session,
        "session": routed_session,
    }


def _plain_engine(url: str) -> Engine:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def _interleaved(
    variants: dict[str, Variant], rounds: int, disposing: Callable[[], None]
) -> dict[str, list[float]]:
    seen: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds):
        is_fresh = number % RECONNECT_ROUNDS == 0
        if is_fresh:
            disposing()
        for name, run in variants.items():
            # The first ones connect, or take the lease back that another variant gave up.
            for _ in range(WARM_RUNS if is_fresh else 1):
                run()
            started = time.perf_counter()
            for _ in range(BATCH):
                run()
            seen[name].append((time.perf_counter() - started) / BATCH * 1e6)
    return seen
