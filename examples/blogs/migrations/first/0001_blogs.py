"""Blogs, posts and languages."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "language",
        sa.Column("code", sa.String(), primary_key=True),
        sa.Column("name", sa.String(), nullable=False),
    )
    op.create_table(
        "blog",
        sa.Column("tenant_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("language", sa.String(), sa.ForeignKey("language.code"), nullable=False),
    )
    op.create_table(
        "post",
        sa.Column("tenant_id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("id", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("blog_id", sa.Integer(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["tenant_id", "blog_id"], ["blog.tenant_id", "blog.id"]),
    )
