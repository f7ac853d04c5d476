"""Blogs."""

import sqlalchemy as sa
from alembic import op

revision = "one"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "blog",
        sa.Column("tenant_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(80), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("blog")
