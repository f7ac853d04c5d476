"""Builders for Alembic projects and databases that the tests of fleets upgrade."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, NullPool, create_engine, text

PROJECT = Path(__file__).parent / "migrations_project"


def a_project(folder: Path, *, env: str | None = None) -> Path:
    """Copy the project, perhaps with another env.py."""
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    if env is not None:
        (folder / "env.py").write_text(env)
    return folder


def add_revision(project: Path, revision: str, after: str, *lines: str) -> None:
    """Add a revision whose upgrade() is these lines."""
    body = "\n    ".join(lines) or "pass"
    (project / "versions" / f"{revision}.py").write_text(
        "import sqlalchemy as sa\nfrom alembic import op\n\n"
        f"revision = {revision!r}\ndown_revision = {after!r}\n\n\n"
        f"def upgrade():\n    {body}\n"
    )


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """Give an unrouted connection and leave no pool behind."""
    engine: Engine = create_engine(url, poolclass=NullPool)
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def run_sql(url: str, *statements: str) -> None:
    with connected(url) as connection:
        for statement in statements:
            connection.execute(text(statement))
        connection.commit()
