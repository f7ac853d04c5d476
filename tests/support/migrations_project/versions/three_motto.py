"""A motto for each blog."""

import sqlalchemy as sa
from alembic import op

revision = "three"
down_revision = "two"


def upgrade() -> None:
    op.add_column("blog", sa.Column("motto", sa.String(200)))


def downgrade() -> None:
    op.drop_column("blog", "motto")
