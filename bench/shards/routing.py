"""What routing costs: connect and `SELECT 1`, plain against routed, in one process and run.

    python bench/shards/routing.py [--rounds 60] [--json FILE]

Variants are interleaved in small batches and compared by their medians, because the machine's pace
changes from second to second. Plain SQLAlchemy on SQLite begins real transactions (the recipe of
its documentation), as routing does; `legacy` is the driver's own mode, which begins none.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from partita.shards.manager import ShardMapManager
from partita.shards.ranges import Range
from partita.shards.router import Validate

BATCH = 20
MAPPINGS = 10_000
ONE = text("SELECT 1")
TARGETS = {
    "postgresql": {"always": 1.7, "lease": 1.15, "never": 1.10, "session": 1.7},
    "sqlite": {"always": 1.5, "never": 1.10, "session": 1.5},
}
Variant = Callable[[], object]


def plain_engine(url: str) -> Engine:
    engine = create_engine(url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", lambda driver, _: setattr(driver, "isolation_level", None))
        event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return engine


def connecting(engine: Engine) -> Variant:
    def run() -> object:
        with engine.connect() as connection:
            return connection.execute(ONE).scalar()

    return run


def measure(catalog: str, shard: str, rounds: int) -> dict[str, object]:
    with ShardMapManager.create(catalog) as manager:
        tenants = manager.create_range_map("tenants", key=int)
        ranges = [Range(start, start + 10) for start in range(0, 10 * MAPPINGS, 10)]
        tenants.create_mappings(ranges, tenants.create_shard(shard))
        tenants.load()
        make = tenants.sessionmaker()
        engine, legacy = plain_engine(shard), create_engine(shard)

        def routed(validate: Validate) -> Variant:
            def run() -> object:
                with tenants.connect(50_005, validate=validate) as connection:
                    return connection.execute(ONE).scalar()

            return run

        def plain_session() -> object:
            with Session(engine) as session:
                return session.execute(ONE).scalar()

        def routed_session() -> object:
            with make(50_005) as session:
                return session.execute(ONE).scalar()

        variants: dict[str, Variant] = {
            "plain": connecting(engine),
            "legacy": connecting(legacy),
            "always": routed("always"),
            "lease": routed("lease"),
            "never": routed("never"),
            "plain session": plain_session,
            "session": routed_session,
        }
        medians = interleaved(variants, rounds)
        lookup = timed(lambda: tenants.find_cached(50_005), 20_000)
        name = engine.dialect.name
        engine.dispose()
        legacy.dispose()
    ratios = {
        variant: round(
            medians[variant] / medians["plain session" if "session" in variant else "plain"], 2
        )
        for variant in variants
    }
    targets = TARGETS[name]
    return {
        "dialect": name,
        "microseconds": {variant: round(value, 1) for variant, value in medians.items()},
        "ratio": ratios,
        "ratio to legacy": {
            variant: round(medians[variant] / medians["legacy"], 2)
            for variant in ("plain", "always", "lease", "never")
        },
        "target": targets,
        "missed": [variant for variant, most in targets.items() if ratios[variant] > most],
        "cached lookup in microseconds": round(lookup, 2),
    }


def interleaved(variants: dict[str, Variant], rounds: int) -> dict[str, float]:
    """Return the median microseconds of each variant."""
    seen: dict[str, list[float]] = {name: [] for name in variants}
    for number in range(rounds + 3):
        for name, run in variants.items():
            run()  # the lease of another variant was given back: take it before the clock runs
            spent = timed(run, BATCH)
            if number >= 3:
                seen[name].append(spent)
    return {name: statistics.median(values) for name, values in seen.items()}


def timed(run: Variant, times: int) -> float:
    started = time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - started) / times * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    from shards.postgres import postgres_url, stop_server  # noqa: PLC0415 - after the path is set

    with tempfile.TemporaryDirectory() as folder:
        outcome = [
            measure(
                f"sqlite:///{folder}/catalog.db", f"sqlite:///{folder}/one.db", arguments.rounds
            ),
            measure(postgres_url("catalog"), postgres_url("one"), arguments.rounds),
        ]
    stop_server()
    rendered = json.dumps(outcome, indent=2)
    print(rendered)
    if arguments.json:
        arguments.json.write_text(rendered + "\n")


if __name__ == "__main__":
    main()
