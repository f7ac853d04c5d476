"""The restriction of a statement to the rows that a shard owns."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, cast
from uuid import UUID, uuid5

import pytest
from sqlalchemy import Column, Executable, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.types import (
    BigInteger,
    Date,
    DateTime,
    Interval,
    LargeBinary,
    Numeric,
    String,
    TypeEngine,
    Uuid,
)

from partita.shards import Range
from partita.shards.fan_out.owned_rows import OwnedRows
from partita.shards.keys.ranges import KeyRange, encode_range
from partita.shards.keys.schema import ShardedTable
from partita.shards.keys.shard_key import key_type
from support import catalogs
from support.catalogs import NewDatabase
from support.shop import Blog, Shop, a_shared_shop

both_urls = catalogs.both_urls
MOMENT = datetime(2024, 5, 1, tzinfo=UTC)
KEYS: dict[type, tuple[TypeEngine[Any], list[Any]]] = {
    int: (BigInteger(), [-(2**63), -1, 0, 2**40, 2**63 - 1]),
    str: (String(), ["", "B", "_", "a", "a ", "aB", "ab", "é", "\uffee", "\U0001f600"]),
    bytes: (LargeBinary(), [b"", b"\x00", b"\x00\x00", b"a", b"a\x00", b"\xff"]),
    UUID: (Uuid(), [UUID(int=1 << shift) for shift in (0, 7, 56, 63, 64, 79, 80, 95, 96, 127)]),
    date: (Date(), [date.min, date(1969, 12, 31), date(2024, 2, 29), date.max]),
    datetime: (DateTime(timezone=True), [MOMENT + timedelta(microseconds=n) for n in (-1, 0, 9)]),
    timedelta: (Interval(), [timedelta(days=n, microseconds=1) for n in (-400, -1, 0, 400)]),
    Decimal: (Numeric(20, 3), [Decimal(n) for n in ("-10.5", "-2.5", "0", "0.125", "9", "10")]),
}


@pytest.fixture
def shop() -> Iterator[Shop]:
    with a_shared_shop("sqlite") as made:
        yield made


def owned(table: Table, key: type, *ranges: Range) -> OwnedRows:
    kind = key_type(key)
    key_ranges = tuple(encode_range(each, kind) for each in ranges)
    sharded = ShardedTable(schema=None, table=table.name, columns=("k",))
    return OwnedRows((sharded,), kind, key_ranges, ranges, kind.encode, table.metadata)


def rows_of(table: Table, owned_rows: OwnedRows, keys: list[object]) -> list[object]:
    with create_engine("sqlite://").connect() as connection:
        table.create(connection)
        connection.execute(insert(table), [{"k": key} for key in keys])
        restricted = cast("Executable", owned_rows.restrict(select(table.c.k), connection))
        return list(connection.scalars(restricted))


def test_a_row_without_a_key_hides_no_others() -> None:
    table = Table("t", MetaData(), Column("k", Uuid))
    mine = uuid5(UUID(int=0), "mine")
    whole = owned(table, UUID, Range(None, None))
    hashed = OwnedRows(whole.tables, whole.key_type, (KeyRange(),), (), whole.position_of)
    assert rows_of(table, hashed, [mine, None]) == [mine]


@pytest.mark.filterwarnings("ignore:Dialect sqlite")  # SQLite keeps decimals as floats
@pytest.mark.parametrize("key", KEYS, ids=lambda key: key.__name__)
def test_a_database_divides_rows_in_the_order_of_the_encoded_keys(
    both_urls: NewDatabase, key: type
) -> None:
    column, keys = KEYS[key]
    assert keys == sorted(keys, key=key_type(key).encode)
    table = Table("t", MetaData(), Column("n", Integer), Column("k", column))
    engine = create_engine(both_urls("one"))
    with engine.connect() as connection:
        table.create(connection)
        connection.execute(insert(table), [{"n": n, "k": one} for n, one in enumerate(keys)])
        for place, bound in enumerate(keys):
            upper = owned(table, key, Range(bound, None))

            restricted = cast("Executable", upper.restrict(select(table.c.n), connection))

            assert sorted(connection.scalars(restricted)) == list(range(place, len(keys)))
        connection.rollback()
    engine.dispose()


@pytest.mark.parametrize("name", ['we"ird', "50%", "Select", "a b"])
def test_tables_with_odd_names_are_restricted_too(name: str) -> None:
    table = Table(name, MetaData(), Column("k", Integer))
    assert rows_of(table, owned(table, int, Range(0, 10)), [5, 50]) == [5]


def test_bounds_may_be_greater_than_the_column_holds() -> None:
    with a_shared_shop() as shop:
        mapping = shop.map.mappings()[2]
        shop.map.create_mapping(Range(mapping.range.high, 2**62), mapping.shard)
        found = shop.fan_out(select(Blog.tenant_id), consistent=True, order_by=Blog.tenant_id)
        assert [row.tenant_id for row in found] == [1, 42, 150, 201]


def test_a_statement_with_expressions_of_its_own_is_restricted_before_them(shop: Shop) -> None:
    named = select(Blog.tenant_id).cte("named")
    statement = select(named.c.tenant_id).add_cte(select(Blog.id).cte("unused"))
    view = shop.map.mappings()[0]
    restricted = OwnedRows(
        (ShardedTable(schema=None, table="blog", columns=("tenant_id",)),),
        key_type(int),
        (view.key_range,),
        (view.range,),
        shop.map.encode_key,
    )
    with shop.shards[0].connect() as connection:
        written = str(restricted.restrict(statement, connection))
    assert written.index("blog AS") < written.index("unused AS") < written.index("named AS")
