"""Builders for tests of moves: two shards with tables of every shape, and what lies where."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    JSON,
    Column,
    Computed,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
    update,
)

from partita.shards.catalog import global_catalog, local_catalog
from partita.shards.keys.mapping import Mapping, Shard
from partita.shards.keys.ranges import Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import AnyShardMap, ShardMapManager
from support import postgres
from support.repeats import IS_SOAK

NewDatabase = Callable[[str], str]

metadata = MetaData()
blog = Table(
    "blog",
    metadata,
    Column("tenant_id", Integer, primary_key=True),
    Column("id", Integer, primary_key=True),
    Column("slug", String(50), nullable=False),
    Column("region_id", ForeignKey("region.id")),
    UniqueConstraint("tenant_id", "slug"),
)
post = Table(
    "post",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("tenant_id", Integer, nullable=False),
    Column("blog_id", Integer, nullable=False),
    Column("answers", ForeignKey("post.id")),
    Column("body", String),
    ForeignKeyConstraint(
        ["tenant_id", "blog_id"], ["blog.tenant_id", "blog.id"], ondelete="CASCADE"
    ),
)
odd = Table(
    'odd "table" %s',
    metadata,
    Column("select", String(20), primary_key=True),
    Column('the "tenant"', Integer, primary_key=True, key="tenant"),
    Column("100%", LargeBinary, key="raw"),
    Column("json", JSON(none_as_null=True)),
    Column("number", Float),
    Column("doubled", Float, Computed("number * 2", persisted=True)),
)
region = Table(
    "region",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(20)),
)
TABLES = (blog, post, odd)
KEYS = {"blog": "tenant_id", "post": "tenant_id", 'odd "table" %s': "tenant"}
TENANTS = (1, 42, 99, 150)
"""Who has rows: the first three on the first shard."""
Content = dict[str, list[tuple[Any, ...]]]


class Moving:
    """A range map `tenants` on two shards: [0, 100) on the first, [100, 200) on the second."""

    def __init__(self, urls: NewDatabase) -> None:
        self.urls = urls
        self.catalog_url = urls("catalog")
        self.manager = ShardMapManager.create(self.catalog_url)
        schema = ShardedSchema(metadata, keys=KEYS, reference=["region"])
        self.tenants = self.manager.create_range_map("tenants", key=int, schema=schema)
        self.one = self.tenants.create_shard(urls("one"))
        self.two = self.tenants.create_shard(urls("two"))
        for shard in (self.one, self.two):
            create_tables(shard, metadata)
        self.low = self.tenants.create_mapping(Range(0, 100), self.one)
        self.high = self.tenants.create_mapping(Range(100, 200), self.two)

    def reopen(self) -> None:
        """Become another process, as far as the catalog can tell."""
        self.manager.close()
        self.manager = ShardMapManager.open(self.catalog_url)
        tenants = self.manager.get_map("tenants")
        assert tenants.kind == "range"
        self.tenants = tenants  # type: ignore[assignment]
        self.one, self.two = (tenants.get_shard(shard.location) for shard in (self.one, self.two))

    def start_again(self) -> None:
        """Put everything back as it was at first; by hand, because a move is what is tested."""
        low = mapping_of(self.tenants, 1)
        if low.shard == self.two:
            self._give_back(low)
        self.low, self.high = mapping_of(self.tenants, 1), mapping_of(self.tenants, 150)
        assert (self.low.shard, self.high.shard) == (self.one, self.two)
        with self.manager.executor.engine.begin() as connection:
            connection.execute(delete(global_catalog.jobs))
        self.fill(TENANTS)

    def _give_back(self, low: Mapping) -> None:
        table = local_catalog.mappings
        mine = table.c.id == low.id
        with self.two.connect() as two, self.one.connect() as one:
            row = two.execute(select(table).where(mine)).one()
            one.execute(insert(table).values(row._asdict()))
            two.execute(delete(table).where(mine))
            one.commit()
            two.commit()
        table = global_catalog.mappings
        with self.manager.executor.engine.begin() as connection:
            change = update(table).where(table.c.id == low.id)
            connection.execute(change.values(shard_id=self.one.id))
        self.tenants.cache.clear()

    def fill(self, tenants: Iterable[int]) -> None:
        """Give each shard the rows of its tenants and no others, the first a region as well."""
        for shard in (self.one, self.two):
            with shard.connect() as connection:
                for table in (post, blog, odd, region):
                    connection.execute(delete(table))
                if shard == self.one:
                    connection.execute(insert(region), [{"id": 1, "name": "north"}])
                fill(connection, [t for t in tenants if (t < 100) == (shard == self.one)])
                connection.commit()


@contextmanager
def two_shards(urls: NewDatabase, *, tenants: Iterable[int] = (1, 42, 99, 150)) -> Iterator[Moving]:
    moving = Moving(urls)
    try:
        for shard in (moving.one, moving.two):
            with shard.connect() as connection:
                mine = [t for t in tenants if (t < 100) == (shard == moving.one)]
                if shard == moving.one:
                    connection.execute(insert(region), [{"id": 1, "name": "north"}])
                fill(connection, mine)
                connection.commit()
        yield moving
    finally:
        moving.manager.close()


class Kept:
    """Two shards of one kind of database that many tests use one after the other.

    Making them takes longer than a move. A test that ends badly leaves none to the next one.
    """

    def __init__(self, urls: NewDatabase) -> None:
        self._urls = urls
        self._moving: Moving | None = None

    @contextmanager
    def whole(self) -> Iterator[Moving]:
        """Give shards without a trace of earlier moves."""
        moving, self._moving = self._moving, None
        if moving is None:
            moving = Moving(self._urls)
        try:
            moving.start_again()
            yield moving
            assert_nothing_is_left(moving)
        except BaseException:
            moving.manager.close()
            raise
        self._moving = moving

    def close(self) -> None:
        if self._moving is not None:
            self._moving.manager.close()


@contextmanager
def kept_databases(kind: str, folder: Path) -> Iterator[Kept]:
    if kind == "sqlite":
        made: list[str] = []

        def new(name: str) -> str:
            made.append(name)
            return f"sqlite:///{folder / name}_{len(made)}.db"

        with closing(Kept(new)) as kept:
            yield kept
        return
    server, taken = postgres.server(), list[str]()

    def take(name: str) -> str:
        taken.append(server.take_database(name))
        return server.url(taken[-1])

    with closing(Kept(take)) as kept:
        yield kept
    for name in taken:
        server.give_back(name)


@pytest.fixture(scope="module")
def kept_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    with kept_databases("sqlite", tmp_path_factory.mktemp("kept")) as kept:
        yield kept


@pytest.fixture(scope="module")
def kept_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    with kept_databases("postgresql", tmp_path_factory.mktemp("kept")) as kept:
        yield kept


@pytest.fixture(params=["sqlite", "postgresql"])
def kept(request: pytest.FixtureRequest) -> Kept:
    """Give shards that the tests of a module share, on SQLite and then on PostgreSQL."""
    name = "kept_sqlite" if request.param == "sqlite" else "kept_postgres"
    found: Kept = request.getfixturevalue(name)
    return found


def on_both(values: Iterable[Any], few: Iterable[Any]) -> list[tuple[str, Any]]:
    """Pair all values with SQLite and, outside of a soak, a few of them with PostgreSQL."""
    values = list(values)
    return [
        *(("sqlite", value) for value in values),
        *(("postgresql", value) for value in (values if IS_SOAK else few)),
    ]


def fill(connection: Any, tenants: Iterable[int], *, rows: int = 5) -> None:
    """Give each tenant rows in all tables."""
    for tenant in tenants:
        local = connection.scalar(select(func.count()).select_from(region))
        connection.execute(
            insert(blog),
            [
                {"tenant_id": tenant, "id": n, "slug": f"s{n}", "region_id": 1 if local else None}
                for n in range(rows)
            ],
        )
        first = tenant * 10_000
        connection.execute(
            insert(post),
            [
                {
                    "id": first + n,
                    "tenant_id": tenant,
                    "blog_id": n % rows,
                    # Forwards, so that a row may come before the one that it answers.
                    "answers": None,
                    "body": None if n == 0 else f"body {n} ' \\ \n %s",
                }
                for n in range(rows * 2)
            ],
        )
        connection.execute(
            post.update().where(post.c.id == first).values(answers=first + rows * 2 - 1)
        )
        connection.execute(
            insert(odd),
            [
                {
                    "select": f"k'{n}",
                    "tenant": tenant,
                    "raw": bytes(range(256)) if n else None,
                    "json": {"n": n, "é": [None, "x"]} if n else None,
                    "number": n / 3,
                }
                for n in range(rows)
            ],
        )


def create_tables(shard: Shard, tables: MetaData) -> None:
    with shard.connect() as connection:
        tables.create_all(connection)
        connection.commit()


def content(shard: Shard, tables: Iterable[Table] = TABLES) -> Content:
    """Return every row of the sharded tables on a shard."""
    with shard.connect() as connection:
        return {
            table.name: sorted((tuple(row) for row in connection.execute(select(table))), key=repr)
            for table in tables
        }


def together(*contents: Content) -> Content:
    return {
        name: sorted((row for each in contents for row in each[name]), key=repr)
        for name in contents[0]
    }


def of_tenants(found: Content, tenants: Iterable[int]) -> Content:
    wanted = set(tenants)
    places = {"blog": 0, "post": 1, 'odd "table" %s': 1}
    return {
        name: [row for row in rows if row[places[name]] in wanted] for name, rows in found.items()
    }


def jobs(manager: ShardMapManager) -> list[tuple[str, str]]:
    with manager.executor.engine.connect() as connection:
        table = global_catalog.jobs
        return [(row.step, row.state) for row in connection.execute(select(table))]


def traces(shard: Shard) -> list[str]:
    """Return what a move has put into a shard and not taken away: tables, triggers, functions."""
    with shard.connect() as connection:
        if connection.dialect.name == "sqlite":
            query = "SELECT name FROM sqlite_master WHERE substr(name, 1, 14) = 'partita_outbox'"
        else:
            query = (
                "SELECT relname FROM pg_class WHERE starts_with(relname, 'partita_outbox') UNION "
                "SELECT tgname FROM pg_trigger WHERE starts_with(tgname, 'partita_outbox') UNION "
                "SELECT proname FROM pg_proc WHERE starts_with(proname, 'partita_outbox')"
            )
        return [row[0] for row in connection.exec_driver_sql(query)]


def mapping_of(shard_map: AnyShardMap, key: Any) -> Mapping:
    return shard_map.get(key, lookup="store")


def assert_nothing_is_left(moving: Moving) -> None:
    """No capture, no lock, no unfinished change: as before or after a whole move."""
    for shard in (moving.one, moving.two):
        assert traces(shard) == []
    assert all(mapping.lock_owner is None for mapping in moving.tenants.mappings())
    assert all(mapping.is_online for mapping in moving.tenants.mappings())
