"""Blogs on two shards: write, ask all shards, upgrade them, split a range and move it while somebody writes.

python app.py                        SQLite files in this folder
python app.py CATALOG ONE TWO        URLs of three empty databases, such as postgresql+psycopg://host/one
"""

import itertools
import os
import sys
import threading
from pathlib import Path

from alembic.config import Config
from models import Blog, Comment, Language, Post, first_release, second_release, sharded
from sqlalchemy import func, insert, select

from partita.shards import Fleet, Range, RoutedSession, ShardMapExistsError, ShardMapManager

MIGRATIONS = Path(__file__).parent / "migrations"
FILES = [f"sqlite:///blogs-{name}.db" for name in ("catalog", "one", "two")]


def alembic(*releases: str) -> Config:
    """The migrations of these releases; an application that grows day by day has one folder."""
    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(MIGRATIONS))
    config.set_main_option("version_locations", os.pathsep.join(str(MIGRATIONS / name) for name in releases))
    return config


def add_blog(session: RoutedSession, tenant: int, name: str, language: str) -> None:
    session.add(Blog(tenant_id=tenant, id=1, name=name, language=language))
    session.add(Post(tenant_id=tenant, id=1, blog_id=1, title=f"{name} is open"))


def main(catalog: str, one: str, two: str) -> None:
    try:
        manager = ShardMapManager.create(catalog)
    except ShardMapExistsError:
        sys.exit(f"{catalog} has a catalog already: begin with empty databases.")
    tenants = manager.create_range_map("tenants", key=int, schema=sharded(first_release))

    # A database is registered, gets its schema, is verified, and only then gets keys.
    fleet = Fleet(manager, alembic=alembic("first"), metadata=first_release)
    first = fleet.add_shard(tenants, one, mappings=[Range(0, 100)])
    second = fleet.add_shard(tenants, two, mappings=[Range(100, 200)])
    for shard in (first, second):  # what is not sharded is written past routing, to every shard
        with shard.connect() as unrouted:
            unrouted.execute(insert(Language), [{"code": "en", "name": "English"}, {"code": "it", "name": "Italian"}])
            unrouted.commit()
    print("tenants 0 to 99 are on the first shard, 100 to 199 on the second")

    # A session belongs to one tenant: it finds the shard and is validated at each transaction.
    Session = tenants.sessionmaker()  # noqa: N806 - as SQLAlchemy's users write it
    for tenant, name, language in ((7, "Seven seas", "en"), (42, "Answers", "en"), (150, "Cucina", "it")):
        with Session(tenant) as session, session.begin():
            add_blog(session, tenant, name, language)

    # One question to all shards.
    blogs = tenants.fan_out(select(Blog.tenant_id, Blog.name), order_by=Blog.name)
    print("blogs:", ", ".join(f"{row.name} ({row.tenant_id})" for row in blogs))
    counted = tenants.fan_out(
        select(Blog.language, func.count().label("blogs")).group_by(Blog.language), reduce={"blogs": "count"}
    )
    print("languages:", dict(sorted(tuple(row) for row in counted)))

    # The second release: all shards get its revision, a canary first.
    fleet = Fleet(manager, alembic=alembic("first", "second"), metadata=second_release)
    report = fleet.upgrade(canary=[first], progress="none")
    report.raise_if_incomplete()
    tenants.set_schema(sharded(second_release))  # from now on comments move with their tenant
    print("upgraded:", ", ".join(f"{each.before} to {each.after}" for each in report.shards))

    @tenants.routed("tenant")
    def comment(session: RoutedSession, tenant: int, number: int, text: str) -> None:
        session.add(Comment(tenant_id=tenant, id=number, post_id=1, text=text))

    comment(42, 0, "Why 42?")  # the decorator hands the session in

    # Split [0, 100) and carry the upper half over, while somebody comments on a blog in it.
    _, upper = tenants.split(at=40)
    is_moved = threading.Event()
    numbers = itertools.count(1)

    def comment_all_the_time() -> None:
        while not is_moved.is_set():
            comment(42, next(numbers), "And another thing")  # tried again through routing, if need be

    writer = threading.Thread(target=comment_all_the_time)
    writer.start()
    try:
        moved = fleet.move(upper, to=second)
    finally:
        is_moved.set()
        writer.join()
    print(f"{moved.range} is on the second shard: {tenants.get(42).shard == second}")

    with Session(42) as session:
        comments = session.scalar(select(func.count()).select_from(Comment))
    written = next(numbers)
    print(f"{comments} of {written} comments are there, none twice and none lost: {comments == written}")
    with first.connect() as unrouted:
        left = [unrouted.scalar(select(func.count()).where(model.tenant_id >= 40)) for model in (Blog, Post, Comment)]
    print("rows left behind:", sum(left))
    print("all shards are current and without drift:", fleet.status().is_healthy)
    manager.close()


if __name__ == "__main__":
    main(*(sys.argv[1:4] or FILES))
