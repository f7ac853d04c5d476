"""How long a fleet takes to upgrade its shards, beside bare Alembic on the same kind of files.

Fifty SQLite shards at the first revision of a small project come to the newest one; the sides
take turns.
"""

import shutil
import tempfile
import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import NullPool, create_engine

from partita.shards.fleet.fleet import Fleet
from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import ShardMapManager

SHARDS = 50
SECONDS_MAX = 5.0

ENVIRONMENT = """
from alembic import context

context.configure(connection=context.config.attributes["connection"])
with context.begin_transaction():
    context.run_migrations()
"""
REVISIONS = {
    "one": "op.create_table('blog', sa.Column('tenant_id', sa.Integer, primary_key=True))",
    "two": "op.add_column('blog', sa.Column('name', sa.String(80)))",
    "three": "op.create_index('by_name', 'blog', ['name'])",
}


def make_project(folder: Path, count: int) -> Path:
    """Write the first `count` revisions."""
    (folder / "versions").mkdir(parents=True, exist_ok=True)
    (folder / "env.py").write_text(ENVIRONMENT)
    before = None
    for revision in list(REVISIONS)[:count]:
        (folder / "versions" / f"{revision}.py").write_text(
            "import sqlalchemy as sa\nfrom alembic import op\n"
            f"revision, down_revision = {revision!r}, {before!r}\n"
            f"def upgrade():\n    {REVISIONS[revision]}\n"
        )
        before = revision
    return folder


def ours(folder: Path, shards: int, parallel: int) -> float:
    """Return the seconds that a fleet takes from the first revision to the last."""
    project = make_project(folder / "project", 1)
    with ShardMapManager.create(f"sqlite:///{folder / 'catalog.db'}") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        fleet = Fleet(manager, alembic=project)
        for number in range(shards):
            url = f"sqlite:///{folder / f'shard{number}.db'}"
            fleet.add_shard(tenants, url, [Range(number, number + 1)])
        make_project(project, len(REVISIONS))
        begun = time.perf_counter()
        report = fleet.upgrade(parallel=parallel, progress="none")
        seconds = time.perf_counter() - begun
        report.raise_if_incomplete()
        assert all(each.after == "three" for each in report.shards)
        return seconds


def bare(folder: Path, shards: int) -> float:
    """Return the seconds that Alembic's own command takes in a loop over the same revisions."""
    project = make_project(folder / "project", len(REVISIONS))
    config = Config()
    config.set_main_option("script_location", str(project))
    config.set_main_option("path_separator", "os")
    engines = [
        create_engine(f"sqlite:///{folder / f'shard{number}.db'}", poolclass=NullPool)
        for number in range(shards)
    ]

    def upgrade(revision: str) -> None:
        for engine in engines:
            with engine.connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                connection.rollback()
                config.attributes["connection"] = connection
                command.upgrade(config, revision)

    upgrade("one")
    begun = time.perf_counter()
    upgrade("head")
    return time.perf_counter() - begun


def measure(rounds: int, shards: int = SHARDS) -> dict[str, list[float]]:
    """Return the seconds of each side, one figure a round."""
    figures: dict[str, list[float]] = {"fleet": [], "fleet, 2 processes": [], "bare Alembic": []}
    for _ in range(rounds):
        for name, seconds in figures.items():
            folder = Path(tempfile.mkdtemp(prefix="partita-upgrade-"))
            try:
                if name == "bare Alembic":
                    seconds.append(bare(folder, shards))
                else:
                    seconds.append(ours(folder, shards, parallel=2 if "processes" in name else 1))
            finally:
                shutil.rmtree(folder)
    return figures
