"""Alembic's environment: on the connection that the fleet gives, or on sqlalchemy.url."""

from typing import Any

from alembic import context
from models import Base
from sqlalchemy import create_engine, pool


def run(**where: Any) -> None:
    context.configure(target_metadata=Base.metadata, **where)
    with context.begin_transaction():
        context.run_migrations()


url = context.config.get_main_option("sqlalchemy.url", "")
connection = context.config.attributes.get("connection")
if context.is_offline_mode():
    run(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"})
elif connection is not None:
    run(connection=connection)
else:
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        run(connection=connection)
