"""Order lines, with names that need quoting."""

import sqlalchemy as sa
from alembic import op

revision = "two"
down_revision = "one"


def upgrade() -> None:
    op.create_table(
        'Order "Lines"',
        sa.Column("tenant id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("select", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("100%", sa.String(20)),
        sa.Column("blog", sa.Integer),
        sa.ForeignKeyConstraint(
            ["tenant id", "blog"], ["blog.tenant_id", "blog.id"], name="of blog"
        ),
    )
    op.create_index("by 100%", 'Order "Lines"', ["tenant id", "100%"])


def downgrade() -> None:
    op.drop_table('Order "Lines"')
