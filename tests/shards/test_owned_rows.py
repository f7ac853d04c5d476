"""The restriction of a statement to the rows that a shard owns."""

from collections.abc import Iterator
from typing import cast
from uuid import UUID, uuid5

import pytest
from sqlalchemy import Column, Executable, Integer, MetaData, Table, create_engine, insert, select
from sqlalchemy.types import Uuid

from partita.shards import Range
from partita.shards.fan_out.owned_rows import OwnedRows
from partita.shards.keys.ranges import KeyRange, encode_range
from partita.shards.keys.schema import ShardedTable
from partita.shards.keys.shard_key import key_type
from support.shop import Blog, Shop, a_shared_shop


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
