"""Runs on the connection that it is given: what a fleet needs of every environment."""

from alembic import context

from support.migrations_project.models import metadata


def run(**where: object) -> None:
    context.configure(target_metadata=metadata, **where)  # type: ignore[arg-type]
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run(
        url=context.config.get_main_option("sqlalchemy.url"),
        literal_binds=True,
        dialect_opts={"paramstyle": "named"},
    )
else:
    run(connection=context.config.attributes["connection"])
