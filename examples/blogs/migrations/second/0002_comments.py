"""Comments."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "comment",
        sa.Column("tenant_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("post_id", sa.Integer(), nullable=False),
        sa.Column("text", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id", "post_id"], ["post.tenant_id", "post.id"]),
    )
