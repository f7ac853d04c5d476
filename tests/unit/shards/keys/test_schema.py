import uuid
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from partita.errors import DamageError, FormatVersionError, SchemaError
from partita.shards.keys.schema import ShardedSchema, ShardedTable, TableName
from partita.shards.keys.shard_key import key_type


def a_metadata() -> sa.MetaData:
    """A shop: comments belong to posts, posts to blogs; regions are the same everywhere."""
    metadata = sa.MetaData()
    sa.Table(
        "a_comment",
        metadata,
        sa.Column("tenant_id", sa.BigInteger, primary_key=True),
        sa.Column("post_id", sa.ForeignKey("m_post.id")),
    )
    sa.Table(
        "m_post",
        metadata,
        sa.Column("tenant_id", sa.Integer),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("blog_id", sa.ForeignKey("z_blog.id")),
    )
    sa.Table(
        "z_blog",
        metadata,
        sa.Column("tenant_id", sa.Integer),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("region_id", sa.ForeignKey("region.id")),
    )
    sa.Table("region", metadata, sa.Column("id", sa.Integer, primary_key=True))
    sa.Table("audit", metadata, sa.Column("id", sa.Integer, primary_key=True))
    return metadata


KEYS = {"a_comment": "tenant_id", "m_post": "tenant_id", "z_blog": "tenant_id"}


def one_column(column_type: Any) -> ShardedSchema:
    metadata = sa.MetaData()
    sa.Table("item", metadata, sa.Column("key", column_type))
    return ShardedSchema(metadata, keys={"item": "key"})


def test_sharded_tables_come_parents_first() -> None:
    schema = ShardedSchema(a_metadata(), keys=KEYS, reference=["region"])

    assert [table.name for table in schema.sharded_tables()] == ["z_blog", "m_post", "a_comment"]
    assert schema.sharded_tables()[0] == ShardedTable(None, "z_blog", ("tenant_id",))
    assert schema.reference_tables() == [TableName(None, "region")]


def test_reference_tables_come_parents_first() -> None:
    metadata = sa.MetaData()
    sa.Table("city", metadata, sa.Column("land_id", sa.ForeignKey("land.id")))
    sa.Table("land", metadata, sa.Column("id", sa.Integer, primary_key=True))
    schema = ShardedSchema(metadata, keys={}, reference=["city", "land"])

    assert [table.name for table in schema.reference_tables()] == ["land", "city"]
    assert schema.sharded_tables() == []


def test_tables_in_neither_list_are_named() -> None:
    schema = ShardedSchema(a_metadata(), keys={"z_blog": "tenant_id"}, reference=["region"])

    assert {table.name for table in schema.other_tables()} == {"a_comment", "m_post", "audit"}


def test_foreign_keys_in_a_circle_are_allowed() -> None:
    metadata = sa.MetaData()
    for name, other in (("hen", "egg"), ("egg", "hen")):
        sa.Table(
            name,
            metadata,
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("other_id", sa.ForeignKey(f"{other}.id", name=f"fk_{name}")),
        )
    sa.Table(
        "farm", metadata, sa.Column("id", sa.Integer), sa.Column("hen_id", sa.ForeignKey("hen.id"))
    )
    schema = ShardedSchema(metadata, keys={"farm": "id", "hen": "id", "egg": "id"})

    assert [table.name for table in schema.sharded_tables()] == ["egg", "hen", "farm"]


def test_a_table_may_point_to_itself() -> None:
    metadata = sa.MetaData()
    sa.Table(
        "node",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("parent_id", sa.ForeignKey("node.id")),
    )

    assert ShardedSchema(metadata, keys={"node": "id"}).find_sharded("node") is not None


def test_a_sharded_table_is_found_by_name() -> None:
    schema = ShardedSchema(a_metadata(), keys=KEYS, reference=["region"])

    assert schema.find_sharded("z_blog") == ShardedTable(None, "z_blog", ("tenant_id",))
    assert schema.find_sharded("region") is None
    assert schema.find_sharded("nothing") is None


def test_the_lists_of_a_schema_cannot_be_changed_from_outside() -> None:
    schema = ShardedSchema(a_metadata(), keys=KEYS, reference=["region"])
    schema.sharded_tables().clear()
    schema.reference_tables().clear()

    assert len(schema.sharded_tables()) == 3
    assert len(schema.reference_tables()) == 1


@pytest.mark.parametrize(
    ("keys", "reference"),
    [({"blog": "tenant_id"}, []), ({}, ["nothing"]), ({"Z_BLOG": "tenant_id"}, [])],
)
def test_an_unknown_table_is_refused(keys: dict[str, str], reference: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        ShardedSchema(a_metadata(), keys=keys, reference=reference)

    assert caught.value.code == "UnknownTable"
    assert "z_blog" in str(caught.value.facts["tables"])


@pytest.mark.parametrize("column", ["tenant", "TENANT_ID", ""])
def test_an_unknown_column_is_refused(column: str) -> None:
    with pytest.raises(SchemaError) as caught:
        ShardedSchema(a_metadata(), keys={"z_blog": column})

    assert caught.value.code == "UnknownColumn"
    assert caught.value.facts["columns"] == ["tenant_id", "id", "region_id"]


@pytest.mark.parametrize("reference", [["region", "region"], ["region", "z_blog"]])
def test_a_table_is_listed_once(reference: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        ShardedSchema(a_metadata(), keys={"z_blog": "tenant_id"}, reference=reference)

    assert caught.value.code == "TableListedTwice"


@pytest.mark.parametrize("columns", [[], ["id", "id"]])
def test_sharding_columns_are_some_and_different(columns: list[str]) -> None:
    with pytest.raises(SchemaError) as caught:
        ShardedSchema(a_metadata(), keys={"z_blog": columns})

    assert caught.value.code == "InvalidShardingColumns"


def test_names_that_need_quotes_stay_themselves() -> None:
    metadata = sa.MetaData()
    sa.Table("Order; drop", metadata, sa.Column('customer "id"', sa.Integer), schema="Sales.EU")
    schema = ShardedSchema(metadata, keys={"Sales.EU.Order; drop": 'customer "id"'})

    assert schema.sharded_tables() == [ShardedTable("Sales.EU", "Order; drop", ('customer "id"',))]
    assert ShardedSchema.from_json(schema.to_json()) == schema
    assert ShardedSchema.from_json(schema.to_json(), metadata) == schema


def test_tables_of_one_name_in_two_schemas_are_two_tables() -> None:
    metadata = sa.MetaData()
    for name in (None, "sales", "old"):
        sa.Table("order", metadata, sa.Column("id", sa.Integer), schema=name)
    schema = ShardedSchema(metadata, keys={"sales.order": "id"}, reference=["order"])

    assert schema.sharded_tables() == [ShardedTable("sales", "order", ("id",))]
    assert schema.reference_tables() == [TableName(None, "order")]
    assert schema.other_tables() == [TableName("old", "order")]


def test_a_column_is_stored_by_its_name_in_the_database() -> None:
    metadata = sa.MetaData()
    sa.Table("item", metadata, sa.Column("cust_id", sa.Integer, key="customer"))

    for given in ("customer", "cust_id"):
        schema = ShardedSchema(metadata, keys={"item": given})
        assert schema.sharded_tables() == [ShardedTable(None, "item", ("cust_id",))]


GOLDEN = (
    '{"version":1,"sharded":[{"schema":null,"table":"z_blog","columns":["tenant_id"]},'
    '{"schema":null,"table":"m_post","columns":["tenant_id"]},'
    '{"schema":null,"table":"a_comment","columns":["tenant_id"]}],'
    '"reference":[{"schema":null,"table":"region"}]}'
)


def test_the_stored_form_never_changes() -> None:
    schema = ShardedSchema(a_metadata(), keys=KEYS, reference=["region"])

    assert schema.to_json() == GOLDEN
    assert ShardedSchema.from_json(GOLDEN).to_json() == GOLDEN
    assert ShardedSchema.from_json(GOLDEN.encode(), a_metadata()).to_json() == GOLDEN


def test_the_order_of_writing_makes_no_difference() -> None:
    turned = ShardedSchema(a_metadata(), keys=dict(reversed(KEYS.items())), reference=["region"])
    schema = ShardedSchema(a_metadata(), keys=KEYS, reference=["region"])

    assert turned == schema
    assert hash(turned) == hash(schema)
    assert turned.to_json() == schema.to_json()
    assert schema != ShardedSchema(a_metadata(), keys=KEYS)
    assert schema != GOLDEN
    assert repr(schema).startswith("ShardedSchema(keys={'z_blog': ('tenant_id',)")


def test_a_stored_schema_is_used_without_the_metadata() -> None:
    schema = ShardedSchema.from_json(GOLDEN)

    assert schema.metadata is None
    assert [table.name for table in schema.sharded_tables()] == ["z_blog", "m_post", "a_comment"]
    assert schema.other_tables() == []
    schema.check_key_type(key_type(str))
    with pytest.raises(SchemaError):
        schema.check_key_type(key_type((int, int)))


def test_a_stored_schema_is_checked_against_the_metadata() -> None:
    metadata = a_metadata()
    metadata.remove(metadata.tables["a_comment"])

    with pytest.raises(SchemaError):
        ShardedSchema.from_json(GOLDEN, metadata)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version":1}', '{"version":1,"sharded":[{}],"reference":[]}', b"\xff"]
)
def test_a_stored_form_that_cannot_be_read_is_damage(text: str | bytes) -> None:
    with pytest.raises(DamageError) as caught:
        ShardedSchema.from_json(text)

    assert caught.value.code == "StoreDamaged"


def test_the_stored_form_of_a_later_version_is_refused() -> None:
    with pytest.raises(FormatVersionError):
        ShardedSchema.from_json('{"version":2,"sharded":[],"reference":[],"more":[]}')


def test_a_damaged_number_is_not_taken_for_a_later_version() -> None:
    with pytest.raises(DamageError) as caught:
        ShardedSchema.from_json('{"version":3,"sharded":[],"reference":[]}')

    assert caught.value.code == "StoreDamaged"


class Colour(Enum):
    RED = "red"


class UuidText(sa.TypeDecorator[uuid.UUID]):
    impl = sa.String
    cache_ok = True


class Citext(sa.types.UserDefinedType[str]):
    cache_ok = True

    @property
    def python_type(self) -> type[Any]:
        raise NotImplementedError


FITTING: list[tuple[object, Any]] = [
    (int, sa.Integer),
    (int, sa.BigInteger()),
    (int, sa.SmallInteger()),
    (int, postgresql.BIGINT()),
    (str, sa.String(50)),
    (str, sa.Text()),
    (str, sa.Unicode()),
    (str, sa.Enum("a", "b", name="letters")),
    (str, sa.Uuid(as_uuid=False)),
    (bytes, sa.LargeBinary()),
    (bytes, postgresql.BYTEA()),
    (uuid.UUID, sa.Uuid()),
    (uuid.UUID, postgresql.UUID()),
    (uuid.UUID, UuidText()),
    (date, sa.Date()),
    (datetime, sa.DateTime(timezone=True)),
    (datetime, postgresql.TIMESTAMP(timezone=True)),
    (timedelta, sa.Interval()),
    (timedelta, postgresql.INTERVAL()),
    (Decimal, sa.Numeric(12, 2)),
    (int, sa.types.NullType()),
    (str, Citext()),
]


@pytest.mark.parametrize(("declared", "column_type"), FITTING)
def test_a_column_that_holds_the_keys_is_accepted(declared: object, column_type: Any) -> None:
    one_column(column_type).check_key_type(key_type(declared))


UNFIT: list[tuple[object, Any]] = [
    (int, sa.String()),
    (int, sa.Boolean()),
    (int, sa.Numeric()),
    (int, sa.Float()),
    (str, sa.Integer()),
    (str, sa.Uuid()),
    (str, sa.LargeBinary()),
    (str, sa.Enum(Colour)),
    (bytes, sa.String()),
    (uuid.UUID, sa.String(36)),
    (uuid.UUID, sa.Uuid(as_uuid=False)),
    (date, sa.DateTime(timezone=True)),
    (datetime, sa.DateTime()),
    (datetime, sa.Date()),
    (timedelta, sa.Integer()),
    (Decimal, sa.Numeric(asdecimal=False)),
    (Decimal, sa.Float()),
    (Decimal, sa.Integer()),
    ((int, str), sa.Integer()),
]


@pytest.mark.parametrize(("declared", "column_type"), UNFIT)
def test_a_column_that_cannot_hold_the_keys_is_refused(declared: object, column_type: Any) -> None:
    with pytest.raises(SchemaError) as caught:
        one_column(column_type).check_key_type(key_type(declared))

    assert caught.value.code == "ShardingColumnMismatch"
    assert caught.value.facts["table"] == "item"


def test_a_composite_key_needs_a_column_for_each_part() -> None:
    metadata = sa.MetaData()
    sa.Table("item", metadata, sa.Column("region", sa.String), sa.Column("number", sa.Integer))
    schema = ShardedSchema(metadata, keys={"item": ["region", "number"]})

    schema.check_key_type(key_type((str, int)))
    assert schema.sharded_tables()[0].columns == ("region", "number")
    assert ShardedSchema.from_json(schema.to_json(), metadata) == schema
    for wrong in (str, (int, str), (str, int, int)):
        with pytest.raises(SchemaError):
            schema.check_key_type(key_type(wrong))
