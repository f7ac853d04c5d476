"""Blogs of many tenants: each row of a tenant is on the tenant's shard, languages are on all of them."""

from sqlalchemy import ForeignKey, ForeignKeyConstraint, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from partita.shards import ShardedSchema


class Base(DeclarativeBase):
    pass


class Language(Base):  # a reference table: the same rows on every shard
    __tablename__ = "language"
    code: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]


class Blog(Base):
    __tablename__ = "blog"
    tenant_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str]
    language: Mapped[str] = mapped_column(ForeignKey("language.code"))


class Post(Base):
    __tablename__ = "post"
    __table_args__ = (ForeignKeyConstraint(["tenant_id", "blog_id"], ["blog.tenant_id", "blog.id"]),)
    tenant_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    blog_id: Mapped[int]
    title: Mapped[str]


class Comment(Base):  # came with the second release
    __tablename__ = "comment"
    __table_args__ = (ForeignKeyConstraint(["tenant_id", "post_id"], ["post.tenant_id", "post.id"]),)
    tenant_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    post_id: Mapped[int]
    text: Mapped[str]


first_release = MetaData()
for model in (Language, Blog, Post):
    model.metadata.tables[model.__tablename__].to_metadata(first_release)
second_release = Base.metadata


def sharded(metadata: MetaData) -> ShardedSchema:
    """Every table is sharded by its tenant, but the languages."""
    names = [name for name in metadata.tables if name != "language"]
    return ShardedSchema(metadata, keys=dict.fromkeys(names, "tenant_id"), reference=["language"])
