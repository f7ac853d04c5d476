"""The schema that the newest revision must lead to; names that need quoting on purpose."""

from sqlalchemy import Column, ForeignKeyConstraint, Index, Integer, MetaData, String, Table

metadata = MetaData()

blog = Table(
    "blog",
    metadata,
    Column("tenant_id", Integer, primary_key=True, autoincrement=False),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(80), nullable=False),
    Column("motto", String(200)),
)

order_lines = Table(
    'Order "Lines"',
    metadata,
    Column("tenant id", Integer, primary_key=True, autoincrement=False),
    Column("select", Integer, primary_key=True, autoincrement=False),
    Column("100%", String(20)),
    Column("blog", Integer),
    ForeignKeyConstraint(["tenant id", "blog"], ["blog.tenant_id", "blog.id"], name="of blog"),
)
Index("by 100%", order_lines.c["tenant id"], order_lines.c["100%"])
