"""Moves between two shards: what arrives, what is refused, what can be stopped and taken back."""

import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Date,
    DateTime,
    ForeignKey,
    Integer,
    Interval,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Uuid,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from partita.errors import (
    CatalogMismatchError,
    MappingOfflineError,
    MoveRefusedError,
    OperationPendingError,
    PartitaError,
    StaleMappingError,
    UnavailableError,
)
from partita.shards.keys.mapping import Location, Shard
from partita.shards.keys.ranges import Range
from partita.shards.keys.schema import ShardedSchema
from partita.shards.maps.manager import ShardMapManager
from partita.shards.moving import copying_postgres, copying_sqlite, move
from partita.shards.moving.move import MoveProgress, StopMove
from partita.shards.moving.move_plan import STEPS, Step
from shards.moves import (
    Kept,
    Moving,
    NewDatabase,
    assert_nothing_is_left,
    blog,
    content,
    create_tables,
    fill,
    jobs,
    kept,
    kept_postgres,
    kept_sqlite,
    mapping_of,
    odd,
    of_tenants,
    on_both,
    post,
    region,
    together,
    traces,
    two_shards,
)
from support.catalogs import assert_catalogs_agree
from support.repeats import sample, sample_pairs

if TYPE_CHECKING:
    from partita.shards.moving.blockers import Blocker

__all__ = ["kept", "kept_postgres", "kept_sqlite"]

BEFORE_SWITCH = STEPS[: STEPS.index("switch") + 1]


def at_step(step: Step, do: Callable[[], Any]) -> Callable[[MoveProgress], None]:
    """Do something once, when the step begins."""
    done: list[Step] = []

    def on_progress(progress: MoveProgress) -> None:
        if progress.step == step and not done:
            done.append(step)
            do()

    return on_progress


def stop() -> None:
    raise StopMove


def on(shard: Shard, *statements: Any) -> None:
    with shard.connect() as connection:
        for statement in statements:
            connection.execute(text(statement) if isinstance(statement, str) else statement)
        connection.commit()


# --- what arrives ---------------------------------------------------------------------------------


def test_a_move_carries_all_rows_and_leaves_none_behind(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        before = together(content(moving.one), content(moving.two))

        report = move.move(moving.manager, moving.low, moving.two, batch_rows=3)

        assert report.state == "done"
        assert report.rows == 60
        assert content(moving.one) == {name: [] for name in before}
        assert content(moving.two) == before
        assert mapping_of(moving.tenants, 42).shard == moving.two
        assert_nothing_is_left(moving)
        assert_catalogs_agree(moving.tenants)
        assert moving.manager.counters["moves"] == 1


def test_a_split_range_moves_and_the_other_half_stays(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        before = together(content(moving.one), content(moving.two))
        _, upper = moving.tenants.split(at=40)

        move.move(moving.manager, upper, moving.two)

        assert content(moving.one) == of_tenants(before, [1])
        assert content(moving.two) == of_tenants(before, [42, 99, 150])


def test_ranges_of_two_shards_merge_after_a_move(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        move.move(moving.manager, moving.low, moving.two)

        merged = moving.tenants.merge(mapping_of(moving.tenants, 1), moving.high)

        assert merged.range == Range(0, 200)
        assert_catalogs_agree(moving.tenants)


def test_a_range_moves_there_and_back(kept: Kept) -> None:
    with kept.whole() as moving:
        before = content(moving.one)

        for shard in (moving.two, moving.one, moving.two, moving.one):
            move.move(moving.manager, mapping_of(moving.tenants, 1), shard)

        assert content(moving.one) == before


def test_reference_tables_are_copied_where_they_are_empty(kept: Kept) -> None:
    with kept.whole() as moving:
        move.move(moving.manager, moving.low, moving.two)

        assert content(moving.two, [region]) == {"region": [(1, "north")]}
        assert content(moving.one, [region]) == {"region": [(1, "north")]}


def test_reference_tables_with_rows_are_left_alone(kept: Kept) -> None:
    with kept.whole() as moving:
        on(moving.two, insert(region).values(id=1, name="south"))

        move.move(moving.manager, moving.low, moving.two)

        assert content(moving.two, [region]) == {"region": [(1, "south")]}


def test_an_empty_range_moves(database_urls: NewDatabase) -> None:
    with two_shards(database_urls, tenants=[]) as moving:
        assert move.move(moving.manager, moving.low, moving.two).rows == 0
        assert mapping_of(moving.tenants, 1).shard == moving.two


def test_an_offline_mapping_stays_offline(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        mapping = moving.tenants.set_offline(moving.low)

        move.move(moving.manager, mapping, moving.two)

        assert not mapping_of(moving.tenants, 1).is_online
        assert len(content(moving.two)["blog"]) == 20


def test_a_mapping_of_a_list_map_moves(database_urls: NewDatabase) -> None:
    tables = MetaData()
    note = Table("note", tables, Column("who", String(20), primary_key=True), Column("n", Integer))
    with ShardMapManager.create(database_urls("catalog")) as manager:
        people = manager.create_list_map(
            "people", key=str, schema=ShardedSchema(tables, keys={"note": "who"})
        )
        one, two = (
            people.create_shard(database_urls("one")),
            people.create_shard(database_urls("two")),
        )
        for shard in (one, two):
            create_tables(shard, tables)
        ann = people.create_mapping("ann", one)
        people.create_mapping("anna", one)
        on(one, insert(note).values([{"who": "ann", "n": 1}, {"who": "anna", "n": 2}]))

        move.move(manager, ann, two)

        assert content(one, [note]) == {"note": [("anna", 2)]}
        assert content(two, [note]) == {"note": [("ann", 1)]}


def test_buckets_of_a_hash_map_move(database_urls: NewDatabase) -> None:
    tables = MetaData()
    item = Table("item", tables, Column("id", Integer, primary_key=True), Column("who", String(20)))
    with ShardMapManager.create(database_urls("catalog")) as manager:
        people = manager.create_hash_map(
            "people", key=str, buckets=16, schema=ShardedSchema(tables, keys={"item": "who"})
        )
        one, two = (
            people.create_shard(database_urls("one")),
            people.create_shard(database_urls("two")),
        )
        for shard in (one, two):
            create_tables(shard, tables)
        upper = people.create_mapping(Range(8, 16), one)
        people.create_mapping(Range(0, 8), one)
        rows = [{"id": n, "who": f"w{n % 50}"} for n in range(300)]
        on(one, insert(item).values(rows))
        moved = {r["who"] for r in rows if people.get(r["who"], lookup="store").range.low == 8}

        def change() -> None:
            on(one, update(item).where(item.c.id < 40).values(id=item.c.id + 1_000))
            on(one, delete(item).where(item.c.id.between(60, 80)))

        move.move(manager, upper, two, batch_rows=7, on_progress=at_step("catch_up", change))

        assert {row[1] for row in content(two, [item])["item"]} == moved
        assert not moved & {row[1] for row in content(one, [item])["item"]}
        assert len(content(one, [item])["item"]) + len(content(two, [item])["item"]) == 279


MOMENT = datetime(2024, 5, 1, tzinfo=UTC)
KEY_TYPES: dict[str, tuple[Any, Any, list[Any], Range]] = {
    "int": (int, BigInteger(), [-(2**40), -1, 0, 5, 2**40], Range(-1, 5)),
    "str": (str, String(20), ["", "B", "a", "a'b", "é", "z"], Range("a", "é")),
    "bytes": (bytes, LargeBinary(), [b"", b"\x00", b"a", b"\xff"], Range(b"\x00", b"b")),
    "uuid": (uuid.UUID, Uuid(), [uuid.UUID(int=n << 120) for n in (0, 9, 99, 200)], Range(uuid.UUID(int=9 << 120), uuid.UUID(int=100 << 120))),  # noqa: E501
    "date": (date, Date(), [date(1999, 1, 1), date(2024, 2, 29), date(2025, 1, 1)], Range(date(2000, 1, 1), None)),  # noqa: E501
    "datetime": (datetime, DateTime(timezone=True), [MOMENT + timedelta(hours=n) for n in (-5, 0, 5)], Range(MOMENT, None)),  # noqa: E501
    "timedelta": (timedelta, Interval(), [timedelta(days=n) for n in (-3, 0, 400)], Range(None, timedelta(1))),  # noqa: E501
    "decimal": (Decimal, Numeric(20, 3), [Decimal("-2.5"), Decimal(0), Decimal("10.125")], Range(Decimal(-1), None)),  # noqa: E501
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Dialect sqlite")  # SQLite keeps decimals as floats
@pytest.mark.parametrize("name", sample(KEY_TYPES, 3))
def test_ranges_of_every_kind_of_key_move(database_urls: NewDatabase, name: str) -> None:
    key, column, values, wanted = KEY_TYPES[name]
    tables = MetaData()
    thing = Table("thing", tables, Column("k", column, primary_key=True), Column("n", Integer))
    with ShardMapManager.create(database_urls("catalog")) as manager:
        things = manager.create_range_map(
            "things", key=key, schema=ShardedSchema(tables, keys={"thing": "k"})
        )
        one, two = (
            things.create_shard(database_urls("one")),
            things.create_shard(database_urls("two")),
        )
        for shard in (one, two):
            create_tables(shard, tables)
        mapping = things.create_mapping(wanted, one)
        on(one, insert(thing).values([{"k": value, "n": n} for n, value in enumerate(values)]))
        inside = [
            n
            for n, value in enumerate(values)
            if mapping.key_range.contains(things.encode_key(value))
        ]

        move.move(
            manager,
            mapping,
            two,
            batch_rows=1,
            on_progress=at_step(
                "catch_up", lambda: on(one, update(thing).values(n=thing.c.n + 10))
            ),
        )

        assert inside
        assert sorted(row[1] for row in content(two, [thing])["thing"]) == [n + 10 for n in inside]
        assert len(content(one, [thing])["thing"]) == len(values) - len(inside)


def test_composite_keys_move_by_their_first_part(database_urls: NewDatabase) -> None:
    tables = MetaData()
    order = Table(
        "order",
        tables,
        Column("region", String(5), primary_key=True),
        Column("customer", Integer, primary_key=True),
        Column("id", Integer, primary_key=True),
    )
    with ShardMapManager.create(database_urls("catalog")) as manager:
        schema = ShardedSchema(tables, keys={"order": ["region", "customer"]})
        orders = manager.create_range_map("orders", key=(str, int), schema=schema)
        one, two = (
            orders.create_shard(database_urls("one")),
            orders.create_shard(database_urls("two")),
        )
        for shard in (one, two):
            create_tables(shard, tables)
        mapping = orders.create_mapping(Range(("eu", 5), ("us",)), one)
        rows = [(r, c, n) for r in ("as", "eu", "us") for c in (4, 5, 6) for n in (1, 2)]
        on(one, insert(order).values(rows))

        move.move(manager, mapping, two, batch_rows=1)

        assert content(two, [order])["order"] == [
            row for row in rows if row[:2] in {("eu", 5), ("eu", 6)}
        ]


def test_tables_in_schemas_and_of_own_types_move(new_postgres: NewDatabase) -> None:
    tables = MetaData()
    Table(
        "sale",
        tables,
        Column("id", Integer, primary_key=True),
        Column("tenant", Integer),
        schema="my.sales",
    )
    with ShardMapManager.create(new_postgres("catalog")) as manager:
        schema = ShardedSchema(tables, keys={"my.sales.sale": "tenant"})
        tenants = manager.create_range_map("tenants", key=int, schema=schema)
        one, two = (
            tenants.create_shard(new_postgres("one")),
            tenants.create_shard(new_postgres("two")),
        )
        on(two, "CREATE TYPE first_of_its_kind AS ENUM ('x')")
        for shard in (one, two):
            on(shard, 'CREATE SCHEMA "my.sales"', "CREATE TYPE mood AS ENUM ('good', 'bad')")
            create_tables(shard, tables)
            on(
                shard,
                'ALTER TABLE "my.sales".sale ADD COLUMN moods mood[],'
                " ADD COLUMN number int GENERATED ALWAYS AS IDENTITY",
            )
        on(one, """INSERT INTO "my.sales".sale VALUES (1, 7, '{good,bad}'), (2, 8, NULL)""")
        mapping = tenants.create_mapping(Range(0, 100), one)

        change = at_step("catch_up", lambda: on(one, 'UPDATE "my.sales".sale SET tenant = 9'))
        move.move(manager, mapping, two, on_progress=change)

        with two.connect() as connection:
            found = connection.execute(
                text('SELECT id, tenant, moods::text, number FROM "my.sales".sale')
            )
            assert sorted(map(tuple, found)) == [(1, 9, "{good,bad}", 1), (2, 9, None, 2)]


def type_without_case() -> list[str]:
    """Return the DDL of a type that, like those of extensions, has operators of its own."""
    signs = {"lt": "<", "le": "<=", "eq": "=", "ge": ">=", "gt": ">"}
    of_two = "public.loud, public.loud"
    return [
        "CREATE TYPE loud",
        "CREATE FUNCTION loud_in(cstring) RETURNS loud LANGUAGE internal IMMUTABLE AS 'textin'",
        "CREATE FUNCTION loud_out(loud) RETURNS cstring LANGUAGE internal IMMUTABLE AS 'textout'",
        "CREATE TYPE loud (INPUT = loud_in, OUTPUT = loud_out, LIKE = pg_catalog.text)",
        f"""CREATE FUNCTION loud_cmp({of_two}) RETURNS int LANGUAGE sql IMMUTABLE AS
        'SELECT bttextcmp(lower(CAST($1 AS text) COLLATE "C"), lower(CAST($2 AS text)))'""",
        *(
            f"CREATE FUNCTION loud_{name}({of_two}) RETURNS boolean LANGUAGE sql IMMUTABLE "
            f"AS 'SELECT public.loud_cmp($1, $2) {sign} 0'"
            for name, sign in signs.items()
        ),
        *(
            f"CREATE OPERATOR {sign} (LEFTARG = loud, RIGHTARG = loud, FUNCTION = loud_{name})"
            for name, sign in signs.items()
        ),
        "CREATE OPERATOR CLASS loud_ops DEFAULT FOR TYPE loud USING btree AS "
        + ", ".join(f"OPERATOR {number} {sign}" for number, sign in enumerate(signs.values(), 1))
        + f", FUNCTION 1 loud_cmp({of_two})",
    ]


def test_keys_of_a_type_with_operators_of_its_own_move(
    new_postgres: NewDatabase,
) -> None:
    tables = MetaData()
    Table("sale", tables, Column("code", String, primary_key=True), Column("tenant", Integer))
    codes = ["a", "B", "c", "D", "e"]
    with ShardMapManager.create(new_postgres("catalog")) as manager:
        schema = ShardedSchema(tables, keys={"sale": "tenant"})
        tenants = manager.create_range_map("tenants", key=int, schema=schema)
        one, two = (tenants.create_shard(new_postgres(name)) for name in ("one", "two"))
        for shard in (one, two):
            on(shard, *type_without_case())
            on(shard, "CREATE TABLE sale (code loud PRIMARY KEY, tenant int)")
        on(one, *(f"INSERT INTO sale VALUES ('{code}', 7)" for code in codes))
        mapping = tenants.create_mapping(Range(0, 100), one)

        change = at_step("catch_up", lambda: on(one, "UPDATE sale SET tenant = 8"))
        move.move(manager, mapping, two, batch_rows=1, on_progress=change)

        with two.connect() as connection:
            found = connection.execute(
                text("SELECT CAST(code AS text), tenant FROM sale ORDER BY sale.code")
            )
            assert list(map(tuple, found)) == [(code, 8) for code in codes]


# --- changes while it moves -----------------------------------------------------------------------


def changes(moving: Moving) -> None:
    """Change rows of the range in every way."""
    on(
        moving.one,
        insert(blog).values(tenant_id=42, id=77, slug="new"),
        update(blog).where(blog.c.tenant_id == 1, blog.c.id == 1).values(slug="changed"),
        update(odd).where(odd.c.tenant == 99).values(number=odd.c.number + 1, raw=b"\0"),
        update(odd).where(odd.c.tenant == 1, odd.c.select == "k'1").values(select="renamed"),
        update(post).where(post.c.id == 10_001).values(id=5_000_001),
        delete(post).where(post.c.id.in_([420_003, 420_004])),
        delete(blog).where(blog.c.tenant_id == 99, blog.c.id == 3),  # and its posts, by cascade
    )


@pytest.mark.parametrize(
    ("kept", "step"),
    on_both(("reference", "copy", "catch_up", "fence"), ("copy", "fence")),
    indirect=["kept"],
)
def test_changes_while_it_moves_arrive(kept: Kept, step: Step) -> None:
    with kept.whole() as moving:
        expected: list[Any] = []

        def change() -> None:
            changes(moving)
            expected.append(content(moving.one))

        move.move(
            moving.manager, moving.low, moving.two, batch_rows=2, on_progress=at_step(step, change)
        )

        found = content(moving.two)
        assert of_tenants(found, range(100)) == expected[0]
        assert len(of_tenants(found, [150])["blog"]) == 5


def test_rows_that_leave_or_enter_the_range_follow_it(database_urls: NewDatabase) -> None:
    with two_shards(database_urls, tenants=[1, 42, 99]) as moving:
        _, upper = moving.tenants.split(at=40)

        def change() -> None:
            on(
                moving.one,
                update(odd).where(odd.c.tenant == 42).values(tenant=2),
                update(odd).where(odd.c.tenant == 1).values(tenant=41),
                update(odd).where(odd.c.tenant == 99).values(tenant=98),
            )

        move.move(moving.manager, upper, moving.two, on_progress=at_step("catch_up", change))

        assert {row[1] for row in content(moving.one)[odd.name]} == {2}
        assert {row[1] for row in content(moving.two)[odd.name]} == {41, 98}


def test_unique_values_that_change_owners_while_copying_do_not_clash(
    database_urls: NewDatabase,
) -> None:
    with two_shards(database_urls, tenants=[1]) as moving:

        def on_progress(progress: MoveProgress) -> None:
            # The first batch has copied row 0; now its slug goes to row 4, which comes later.
            if progress.table == "blog" and not swapped:
                swapped.append(True)
                for row, slug in ((0, "gone"), (4, "s0"), (0, "s4")):
                    mine = blog.c.id == row
                    on(moving.one, update(blog).where(mine).values(slug=slug))

        swapped: list[bool] = []
        move.move(moving.manager, moving.low, moving.two, batch_rows=2, on_progress=on_progress)

        slugs = {row[1]: row[2] for row in content(moving.two)["blog"]}
        assert swapped
        assert slugs == {0: "s4", 1: "s1", 2: "s2", 3: "s3", 4: "s0"}


def test_rows_pushed_out_by_insert_or_replace_are_noticed(new_sqlite: NewDatabase) -> None:
    with two_shards(new_sqlite, tenants=[1]) as moving:
        replace = "INSERT OR REPLACE INTO blog (tenant_id, id, slug) VALUES (1, 9, 's2')"

        move.move(
            moving.manager,
            moving.low,
            moving.two,
            on_progress=at_step("catch_up", lambda: on(moving.one, replace)),
        )

        assert [row[1:3] for row in content(moving.two)["blog"]] == [
            (0, "s0"),
            (1, "s1"),
            (3, "s3"),
            (4, "s4"),
            (9, "s2"),
        ]


def test_a_transaction_that_is_older_than_the_capture_is_not_lost(
    new_postgres: NewDatabase,
) -> None:
    with two_shards(new_postgres, tenants=[1]) as moving:
        older = moving.one.connect()
        older.execute(insert(blog).values(tenant_id=1, id=50, slug="older"))
        end = threading.Timer(0.6, older.commit)
        end.start()

        move.move(moving.manager, moving.low, moving.two)

        end.join()
        older.close()
        assert (1, 50, "older", None) in content(moving.two)["blog"]


def test_a_table_that_moves_cannot_be_truncated(new_postgres: NewDatabase) -> None:
    with two_shards(new_postgres) as moving:

        def truncate() -> None:
            with pytest.raises(DBAPIError, match="being moved"):
                on(moving.one, "TRUNCATE blog, post")

        move.move(moving.manager, moving.low, moving.two, on_progress=at_step("copy", truncate))

        assert len(of_tenants(content(moving.two), range(100))["blog"]) == 15


def test_triggers_of_the_application_do_not_fire_twice(new_postgres: NewDatabase) -> None:
    with two_shards(new_postgres) as moving:
        for shard in (moving.one, moving.two):
            on(
                shard,
                "CREATE TABLE seen (id int)",
                "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN INSERT INTO seen VALUES (1); RETURN NULL; END $$",
                "CREATE TRIGGER see AFTER INSERT OR UPDATE OR DELETE ON blog "
                "FOR EACH ROW EXECUTE FUNCTION see()",
            )

        move.move(moving.manager, moving.low, moving.two)

        for shard in (moving.one, moving.two):
            with shard.connect() as connection:
                assert connection.scalar(text("SELECT count(*) FROM seen")) == 0


# --- clients --------------------------------------------------------------------------------------


def test_a_client_that_slept_through_the_move_is_rerouted(kept: Kept) -> None:
    with kept.whole() as moving:
        with ShardMapManager.open(moving.catalog_url) as other:
            client = other.get_map("tenants")
            assert client.get(42).shard == moving.one

            move.move(moving.manager, moving.low, moving.two)

            assert client.find_cached(42).shard == moving.one  # type: ignore[union-attr]
            client.run(
                42,
                lambda session: session.execute(insert(blog).values(tenant_id=42, id=9, slug="x")),
            )
            assert client.get(42).shard == moving.two
        assert content(moving.one)["blog"] == []


def test_a_client_that_writes_when_it_should_not_is_cut_off(kept: Kept) -> None:
    with kept.whole() as moving:
        session = moving.tenants.sessionmaker()(42)
        neighbour = moving.tenants.sessionmaker()(150)
        # Only read so far: on SQLite an open writer of the target would keep the mover waiting.
        assert session.scalar(select(func.count()).select_from(blog)) == 15
        assert neighbour.scalar(select(func.count()).select_from(blog)) == 5

        report = move.move(moving.manager, moving.low, moving.two, grace=0.05)

        with pytest.raises((DBAPIError, PartitaError)):  # noqa: PT012 - either may fail
            session.execute(insert(blog).values(tenant_id=42, id=9, slug="late"))
            session.commit()
        session.rollback()
        session.close()
        assert report.terminated == 1
        mine = select(func.count()).select_from(post).where(post.c.tenant_id == 150)
        assert neighbour.scalar(mine) == 10
        neighbour.close()
        assert content(moving.one)["blog"] == []


# --- refused before anything is changed -----------------------------------------------------------


def assert_refused(moving: Moving, *reasons: str, to: Shard | None = None) -> None:
    with pytest.raises(MoveRefusedError) as refused:
        move.move(moving.manager, moving.low, to or moving.two)

    for reason in reasons:
        assert reason in refused.value.message
    assert jobs(moving.manager) == []
    assert_nothing_is_left(moving)


def test_every_reason_against_a_move_is_told_at_once(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        on(
            moving.two,
            "ALTER TABLE post ADD COLUMN extra integer",
            'DROP TABLE "odd ""table"" %s"',
        )

        assert_refused(
            moving,
            'table odd "table" %s is missing on the target',
            "column post.extra is missing on the source",
        )


def test_a_target_with_rows_of_the_range_is_refused(kept: Kept) -> None:
    with kept.whole() as moving:
        on(moving.two, insert(blog).values(tenant_id=42, id=1, slug="stray"))

        assert_refused(moving, "the target already has rows of the range")

        assert len(content(moving.two)["blog"]) == 6


def test_a_map_without_schema_is_refused(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        moving.tenants.set_schema(None)

        assert_refused(moving, "the map has no schema")


def test_the_shard_where_it_is_and_shards_of_other_maps_are_refused(
    database_urls: NewDatabase,
) -> None:
    with two_shards(database_urls) as moving:
        others = moving.manager.create_range_map("others", key=int)
        elsewhere = others.create_shard(database_urls("elsewhere"))
        same = others.create_shard(database_urls("more"))

        assert_refused(moving, "already on this shard", to=moving.one)
        assert_refused(moving, "not a shard of the map", to=elsewhere)
        assert_refused(moving, "not a shard of the map", to=same)


def test_a_mapping_that_changed_meanwhile_is_refused(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        moving.tenants.split(at=40)

        with pytest.raises(StaleMappingError):
            move.move(moving.manager, moving.low, moving.two)

        assert jobs(moving.manager) == []
        assert_nothing_is_left(moving)


def test_a_move_of_a_stale_mapping_drops_it_from_the_cache(new_sqlite: NewDatabase) -> None:
    with two_shards(new_sqlite) as moving, ShardMapManager.open(moving.catalog_url) as other:
        theirs = other.get_map("tenants")
        theirs.load()
        half, _ = moving.tenants.split(at=40)

        with pytest.raises(StaleMappingError):
            move.move(other, theirs.get(1, lookup="cache"), moving.two)

        assert theirs.find_cached(1) is None
        assert theirs.get(1, lookup="cache") == half


def test_a_locked_mapping_is_refused(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        with moving.tenants.lock(moving.low), pytest.raises(PartitaError, match="MappingLocked"):
            move.move(moving.manager, moving.low, moving.two)

        assert jobs(moving.manager) == []
        assert_nothing_is_left(moving)


def test_tables_that_cannot_move_are_refused(database_urls: NewDatabase) -> None:
    tables = MetaData()
    Table("plain", tables, Column("tenant", Integer), Column("n", Integer))
    Table("owner", tables, Column("id", Integer, primary_key=True), Column("tenant", Integer))
    Table(
        "extra",
        tables,
        Column("id", Integer, primary_key=True),
        Column("owner", ForeignKey("owner.id")),
    )
    Table("leaving", tables, Column("id", Integer, primary_key=True), Column("tenant", Integer), Column("extra", ForeignKey("extra.id")))  # fmt: skip # noqa: E501
    with ShardMapManager.create(database_urls("catalog")) as manager:
        keys = {"plain": "tenant", "owner": "tenant", "leaving": "tenant"}
        tenants = manager.create_range_map(
            "tenants", key=int, schema=ShardedSchema(tables, keys=keys)
        )
        one, two = (
            tenants.create_shard(database_urls("one")),
            tenants.create_shard(database_urls("two")),
        )
        for shard in (one, two):
            create_tables(shard, tables)
        mapping = tenants.create_mapping(Range(0, 100), one)

        with pytest.raises(MoveRefusedError) as refused:
            move.move(manager, mapping, two)

        for reason in (
            "table plain has no primary key",
            "a foreign key of leaving leaves the shardlet, to extra",
            "table extra, which is not sharded, has a foreign key to owner",
        ):
            assert reason in refused.value.message


def test_rows_that_point_out_of_their_shardlet_are_refused(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        _, upper = moving.tenants.split(at=40)
        on(moving.one, update(post).where(post.c.id == 420_001).values(answers=10_000))

        with pytest.raises(MoveRefusedError, match="rows refer to rows outside the shardlet: post"):
            move.move(moving.manager, upper, moving.two)

        assert jobs(moving.manager) == []


def test_triggers_on_sqlite_are_refused(new_sqlite: NewDatabase) -> None:
    with two_shards(new_sqlite) as moving:
        on(moving.two, "CREATE TRIGGER mine AFTER INSERT ON blog BEGIN SELECT 1; END")

        assert_refused(moving, "has triggers, which SQLite cannot disable")


def test_a_move_between_kinds_of_databases_is_refused(
    new_sqlite: NewDatabase, new_postgres: NewDatabase
) -> None:
    with two_shards(new_sqlite) as moving:
        other = moving.tenants.create_shard(new_postgres("other"))

        assert_refused(moving, to=other)


# --- stopped and taken back -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "step"),
    sample_pairs(on_both(STEPS, ("lock", "copy", "fence", "switch", "clean_up")), 3),
    indirect=["kept"],
)
def test_a_move_that_is_stopped_can_be_resumed(kept: Kept, step: Step) -> None:
    with kept.whole() as moving:
        before = together(content(moving.one), content(moving.two))

        paused = move.move(
            moving.manager, moving.low, moving.two, batch_rows=2, on_progress=at_step(step, stop)
        )

        assert paused.state == "paused"
        assert mapping_of(moving.tenants, 1).is_online
        changes(moving) if step != "clean_up" else None
        expected = (
            before
            if step == "clean_up"
            else together(content(moving.one), of_tenants(before, [150]))
        )
        moving.reopen()
        (report,) = move.resume(moving.manager)
        assert report.state == "done"
        assert report.job_id == paused.job_id
        assert content(moving.two) == expected
        assert content(moving.one)["blog"] == []
        assert move.resume(moving.manager) == []
        assert_nothing_is_left(moving)


def test_a_move_interrupted_in_the_middle_of_copying_goes_on_from_there(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move, "RECORD_SECONDS", -1.0)
    with kept.whole() as moving:

        def on_progress(progress: MoveProgress) -> None:
            if progress.table == "post":
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            move.move(moving.manager, moving.low, moving.two, batch_rows=4, on_progress=on_progress)

        assert jobs(moving.manager) == [("copy", "paused")]
        copied: list[MoveProgress] = []
        (report,) = move.resume(moving.manager, on_progress=copied.append)
        assert {event.table for event in copied if event.step == "copy"} >= {"post"}
        assert "blog" not in {event.table for event in copied if event.step == "copy"}
        assert report.rows == 60


@pytest.mark.parametrize(
    ("kept", "step"),
    sample_pairs(on_both(BEFORE_SWITCH, ("capture", "catch_up", "switch")), 3),
    indirect=["kept"],
)
def test_a_move_can_be_cancelled_before_the_switch(kept: Kept, step: Step) -> None:
    with kept.whole() as moving:
        before = content(moving.one), content(moving.two)
        paused = move.move(moving.manager, moving.low, moving.two, on_progress=at_step(step, stop))
        moving.reopen()

        report = move.cancel(moving.manager, paused.job_id)

        assert report.state == "cancelled"
        assert (content(moving.one), content(moving.two)) == before
        assert mapping_of(moving.tenants, 1).shard == moving.one
        assert_nothing_is_left(moving)
        assert move.resume(moving.manager) == []
        assert move.move(moving.manager, mapping_of(moving.tenants, 1), moving.two).state == "done"


def test_a_move_cannot_be_cancelled_after_the_switch(kept: Kept) -> None:
    with kept.whole() as moving:
        paused = move.move(
            moving.manager, moving.low, moving.two, on_progress=at_step("clean_up", stop)
        )

        for _ in range(20):  # none meets the lock of the one before
            with pytest.raises(MoveRefusedError, match="MoveSwitched"):
                move.cancel(moving.manager, paused.job_id)

        assert [report.state for report in move.resume(moving.manager)] == ["done"]
        with pytest.raises(MoveRefusedError, match="MoveSwitched"):
            move.cancel(moving.manager, paused.job_id)


def test_only_one_mover_is_at_work_on_a_job(kept: Kept) -> None:
    with kept.whole() as moving:
        seen: list[Any] = []

        def meddle() -> None:
            with ShardMapManager.open(moving.catalog_url) as other:
                (job,) = move.list_moves(other)
                seen.append(move.resume(other))
                with pytest.raises(OperationPendingError, match="MoveRunning"):
                    move.cancel(other, job.job_id)

        report = move.move(
            moving.manager, moving.low, moving.two, on_progress=at_step("copy", meddle)
        )

        assert seen == [[]]
        assert report.state == "done"


@pytest.mark.parametrize("step", ["capture", "copy", "catch_up", "verify", "clean_up"])
def test_a_removed_lock_file_stops_the_move(new_sqlite: NewDatabase, step: Step) -> None:
    with two_shards(new_sqlite) as moving:
        before = together(content(moving.one), content(moving.two))

        with pytest.raises(OperationPendingError, match="MoveRunning"):
            move.move(
                moving.manager,
                moving.low,
                moving.two,
                on_progress=at_step(step, lambda: _lock_file(moving).unlink()),
            )

        assert [report.state for report in move.resume(moving.manager)] == ["done"]
        assert together(content(moving.one), content(moving.two)) == before


def test_a_mover_whose_lock_file_was_replaced_leaves_the_job_to_the_next(
    new_sqlite: NewDatabase,
) -> None:
    with two_shards(new_sqlite) as moving:
        before = together(content(moving.one), content(moving.two))

        def take_over() -> None:
            _lock_file(moving).unlink()
            with ShardMapManager.open(moving.catalog_url) as other:
                (report,) = move.resume(other, on_progress=at_step("catch_up", stop))
                assert report.state == "paused"

        with pytest.raises(OperationPendingError, match="MoveRunning"):
            move.move(
                moving.manager, moving.low, moving.two, on_progress=at_step("copy", take_over)
            )

        assert [report.step for report in move.list_moves(moving.manager)] == ["catch_up"]
        assert [report.state for report in move.resume(moving.manager)] == ["done"]
        assert together(content(moving.one), content(moving.two)) == before


def _lock_file(moving: Moving) -> Path:
    source = Path(moving.one.location.identity.removeprefix("sqlite://"))
    (found,) = source.parent.glob(f"{source.name}-partita-*")
    return found


def test_a_lock_that_was_broken_stops_the_move(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:

        def unlock() -> None:
            moving.tenants.force_unlock(mapping_of(moving.tenants, 1))

        with pytest.raises(StaleMappingError, match="MoveLockLost"):
            move.move(moving.manager, moving.low, moving.two, on_progress=at_step("fence", unlock))

        assert mapping_of(moving.tenants, 1).is_online
        assert mapping_of(moving.tenants, 1).shard == moving.one


def test_an_unknown_job_cannot_be_cancelled(kept: Kept) -> None:
    with kept.whole() as moving, pytest.raises(PartitaError, match="MoveNotFound"):
        move.cancel(moving.manager, "0" * 32)


# --- what is noticed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kept", "step"), on_both(("catch_up", "fence"), ["fence"]), indirect=["kept"]
)
@pytest.mark.parametrize(
    "damage",
    [
        update(blog).where(blog.c.tenant_id == 42, blog.c.id == 3).values(slug="wrong"),
        delete(odd).where(odd.c.tenant == 42, odd.c.select == "k'2"),
        insert(odd).values(tenant=7, select="more"),
    ],
    ids=["changed", "missing", "additional"],
)
def test_verification_notices_rows_that_differ(kept: Kept, step: Step, damage: Any) -> None:
    with kept.whole() as moving:
        before = content(moving.one), content(moving.two)

        with pytest.raises(CatalogMismatchError, match="MoveRowsDiffer"):
            move.move(
                moving.manager,
                moving.low,
                moving.two,
                on_progress=at_step(step, lambda: on(moving.two, damage)),
            )

        assert mapping_of(moving.tenants, 42).shard == moving.one
        assert mapping_of(moving.tenants, 42).is_online
        (job,) = move.list_moves(moving.manager)
        assert "MoveRowsDiffer" in job.error
        move.cancel(moving.manager, job.job_id)
        assert (content(moving.one), content(moving.two)) == before


@pytest.mark.parametrize("step", ["catch_up", "fence"])
def test_a_row_that_comes_to_point_out_of_the_shardlet_stops_the_move(
    database_urls: NewDatabase, step: Step
) -> None:
    with two_shards(database_urls) as moving:
        _, upper = moving.tenants.split(at=40)
        outwards = update(post).where(post.c.id == 420_003)

        with pytest.raises(MoveRefusedError, match="MoveRowsDangle"):
            move.move(
                moving.manager,
                upper,
                moving.two,
                on_progress=at_step(step, lambda: on(moving.one, outwards.values(answers=10_001))),
            )

        assert mapping_of(moving.tenants, 42).shard == moving.one
        assert mapping_of(moving.tenants, 42).is_online
        on(moving.one, outwards.values(answers=None))
        assert [report.state for report in move.resume(moving.manager)] == ["done"]


def test_without_verification_nothing_is_compared(kept: Kept) -> None:
    with kept.whole() as moving:
        damage = delete(odd).where(odd.c.tenant == 42)

        report = move.move(
            moving.manager,
            moving.low,
            moving.two,
            verify=False,
            on_progress=at_step("catch_up", lambda: on(moving.two, damage)),
        )

        assert report.state == "done"
        assert of_tenants(content(moving.two), [42])[odd.name] == []


def test_keys_that_are_taken_on_the_target_stop_the_move(database_urls: NewDatabase) -> None:
    tables = MetaData()
    item = Table("item", tables, Column("id", Integer, primary_key=True), Column("tenant", Integer))
    with ShardMapManager.create(database_urls("catalog")) as manager:
        schema = ShardedSchema(tables, keys={"item": "tenant"})
        tenants = manager.create_range_map("tenants", key=int, schema=schema)
        one, two = (
            tenants.create_shard(database_urls("one")),
            tenants.create_shard(database_urls("two")),
        )
        for shard, tenant in ((one, 1), (two, 150)):
            create_tables(shard, tables)
            on(shard, insert(item).values([{"id": n, "tenant": tenant} for n in range(5)]))
        mapping = tenants.create_mapping(Range(0, 100), one)

        with pytest.raises(MoveRefusedError, match="MoveRowsCollide"):
            move.move(manager, mapping, two)

        (job,) = move.list_moves(manager)
        move.cancel(manager, job.job_id)
        assert content(two, [item])["item"] == [(n, 150) for n in range(5)]
        assert traces(one) == []


def test_a_fence_that_takes_too_long_opens_the_source_again_under_a_new_id(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kept.whole() as moving:
        monkeypatch.setattr(move, "FENCE_SECONDS_MAX", 0.0)

        with pytest.raises(UnavailableError, match="MoveFenceFailed"):
            move.move(moving.manager, moving.low, moving.two)

        mapping = mapping_of(moving.tenants, 42)
        assert mapping.shard == moving.one
        assert mapping.is_online
        assert mapping.id != moving.low.id
        assert jobs(moving.manager) == [("catch_up", "paused")]
        moving.tenants.run(
            42, lambda session: session.execute(insert(blog).values(tenant_id=42, id=9, slug="x"))
        )
        monkeypatch.undo()
        assert [report.state for report in move.resume(moving.manager)] == ["done"]
        assert (42, 9, "x", None) in content(moving.two)["blog"]


def test_a_fence_that_falls_opens_the_source_again(
    kept_postgres: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move, "FENCE_TRIES", 2)
    with kept_postgres.whole() as moving:
        # Once: the second try goes through.
        kill = (
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
            "AND mode = 'ExclusiveLock' AND objsubid = 2"
        )

        report = move.move(
            moving.manager,
            moving.low,
            moving.two,
            on_progress=at_step("switch", lambda: on(moving.one, kill)),
        )

        assert report.state == "done"
        assert mapping_of(moving.tenants, 42).shard == moving.two


def test_an_error_after_the_switch_does_not_turn_it_back(kept: Kept) -> None:
    with kept.whole() as moving:

        def fail(point: str) -> None:
            if point == "move switch committed":
                raise RuntimeError(point)

        before = together(content(moving.one), content(moving.two))
        moving.manager.executor.fault = fail
        report = move.move(moving.manager, moving.low, moving.two)
        moving.reopen()

        assert report.state == "done"
        assert mapping_of(moving.tenants, 42).shard == moving.two
        assert content(moving.two) == before


# --- progress and pace ----------------------------------------------------------------------------


def test_progress_tells_the_ten_steps_in_order(kept: Kept) -> None:
    with kept.whole() as moving:
        events: list[MoveProgress] = []

        move.move(moving.manager, moving.low, moving.two, batch_rows=2, on_progress=events.append)

        assert list(dict.fromkeys(event.step for event in events)) == list(STEPS)
        assert list(dict.fromkeys(event.number for event in events)) == list(range(1, 11))
        assert {event.rows_total for event in events if event.number > 2} == {60}
        copied = [event.rows for event in events if event.step == "copy" and event.table]
        assert copied == sorted(copied)
        assert copied[0] == 2


def test_the_rate_limit_makes_pauses(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    with kept.whole() as moving:
        pauses: list[float] = []
        monkeypatch.setattr("partita.shards.moving.move.time.sleep", pauses.append)

        move.move(moving.manager, moving.low, moving.two, batch_rows=10, rate=10.0)

        assert max(pauses) > 1.0


def test_many_rows_move_in_batches_and_are_compared_in_parts(
    database_urls: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move, "COMPARED_ROWS", 30)
    monkeypatch.setattr(move, "DELETED_ROWS", 17)
    monkeypatch.setattr(move, "FENCED_ROWS_MAX", 100)
    with two_shards(database_urls, tenants=[]) as moving:
        with moving.one.connect() as connection:
            fill(connection, range(20), rows=10)
            connection.commit()
        before = content(moving.one)
        events: list[MoveProgress] = []

        report = move.move(
            moving.manager, moving.low, moving.two, batch_rows=13, on_progress=events.append
        )

        assert report.rows == 800
        # Keys of two digits are among them: their order is not that of their text.
        copied = [each.rows for each in events if (each.step, each.table) == ("copy", "blog")]
        assert {later - earlier for earlier, later in pairwise(copied)} == {13}
        assert content(moving.two) == before
        assert content(moving.one)["post"] == []


def test_a_role_without_the_right_to_switch_off_foreign_keys_is_told_so(
    new_postgres: NewDatabase,
) -> None:
    with two_shards(new_postgres) as moving:
        name = f"mover_{uuid.uuid4().hex[:8]}"
        on(moving.one, f"CREATE ROLE {name} LOGIN")
        for shard in (moving.one, moving.two):
            on(
                shard,
                f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}",
                f"GRANT USAGE, CREATE ON SCHEMA public TO {name}",
            )

        def credentials(where: Location) -> str | None:
            is_catalog = where == moving.manager.location
            return None if is_catalog else f"postgresql://{name}@127.0.0.1/x"

        with (
            ShardMapManager.open(moving.catalog_url, credentials=credentials) as other,
            pytest.raises(MoveRefusedError, match="GRANT SET ON PARAMETER"),
        ):
            move.move(other, mapping_of(other.get_map("tenants"), 1), moving.two)


# --- who keeps a move waiting ---------------------------------------------------------------------

IDLE_WRITE = update(blog).where(blog.c.tenant_id == 42).values(slug=blog.c.slug)


def test_a_move_names_an_idle_writer_and_goes_on_when_it_ends(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving, moving.one.connect() as neighbour:
        pid = _pid_of(neighbour)
        neighbour.execute(IDLE_WRITE)
        told: list[Blocker] = []

        def listen(progress: MoveProgress) -> None:
            if progress.blockers:
                told.extend(progress.blockers)
                neighbour.rollback()

        report = move.move(moving.manager, moving.low, moving.two, on_progress=listen)

        assert report.state == "done"
        assert report.terminated == 0
        assert {each.pid for each in told} == {pid}
        assert all("UPDATE blog" in each.statement for each in told)
        assert all(each.age_seconds is not None for each in told)


def test_a_move_ends_an_idle_writer_on_request(database_urls: NewDatabase) -> None:
    with two_shards(database_urls) as moving:
        before = together(content(moving.one), content(moving.two))
        neighbour = moving.one.connect()
        neighbour.execute(IDLE_WRITE)

        report = move.move(
            moving.manager, moving.low, moving.two, grace=0.0, terminate_blockers=True
        )

        assert report.state == "done"
        assert report.terminated == 1
        with pytest.raises((DBAPIError, MappingOfflineError)):
            neighbour.execute(IDLE_WRITE)
        neighbour.close()
        assert content(moving.two) == before


def test_an_idle_writer_that_comes_before_the_fence_is_named_and_ended(
    new_sqlite: NewDatabase,
) -> None:
    with two_shards(new_sqlite) as moving:
        neighbour = moving.one.connect()
        told: list[Blocker] = []

        def listen(progress: MoveProgress) -> None:
            told.extend(progress.blockers)
            write(progress)

        write = at_step("fence", lambda: neighbour.execute(IDLE_WRITE))
        report = move.move(
            moving.manager,
            moving.low,
            moving.two,
            grace=0.0,
            terminate_blockers=True,
            on_progress=listen,
        )

        assert report.state == "done"
        assert {each.pid for each in told} == {os.getpid()}
        with pytest.raises((DBAPIError, MappingOfflineError)):
            neighbour.execute(IDLE_WRITE)
        neighbour.close()


def test_a_move_that_waited_in_vain_names_who_held_it(
    database_urls: NewDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying_postgres, "LOCK_TRIES", 2)
    monkeypatch.setattr(copying_sqlite, "LOCK_SECONDS_MAX", 1.0)
    with two_shards(database_urls) as moving, moving.one.connect() as neighbour:
        pid = _pid_of(neighbour)
        neighbour.execute(IDLE_WRITE)
        with pytest.raises(UnavailableError) as caught:
            move.move(moving.manager, moving.low, moving.two)
        assert caught.value.code == "MoveTableBusy"
        assert caught.value.facts["pids"] == [pid]
        assert "UPDATE blog" in str(caught.value)
        neighbour.rollback()

        (report,) = move.resume(moving.manager)
        assert report.state == "done"


def test_a_writer_of_another_process_is_named_and_ended(new_sqlite: NewDatabase) -> None:
    with two_shards(new_sqlite) as moving:
        file = moving.one.location.identity.removeprefix("sqlite://")
        hold = (
            "import sqlite3, sys, time; c = sqlite3.connect(sys.argv[1], isolation_level=None);"
            "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(600)"
        )
        told: list[Blocker] = []
        with subprocess.Popen(
            [sys.executable, "-c", hold, file], stdout=subprocess.PIPE, text=True
        ) as holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            report = move.move(
                moving.manager,
                moving.low,
                moving.two,
                grace=0.0,
                terminate_blockers=True,
                on_progress=lambda progress: told.extend(progress.blockers),
            )
            assert holder.wait() == -signal.SIGTERM
        assert report.state == "done"
        assert {each.pid for each in told} == {holder.pid}
        assert "BEGIN IMMEDIATE" in told[0].application


def _pid_of(connection: Any) -> int:
    if connection.dialect.name == "sqlite":
        return os.getpid()
    return int(connection.scalar(text("SELECT pg_backend_pid()")))
