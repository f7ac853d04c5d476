"""What an adversary tried on the core: every test is a suspicion, and most of them were true."""

import asyncio
import contextlib
import copy
import datetime as dt
import itertools
import math
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from decimal import Decimal
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
import pytest_asyncio

from partita.clock import ManualClock
from partita.errors import DefinitionError, PartitaError, UnavailableError, UsageError
from partita.patterns import (
    CopiedFrom,
    CountOf,
    Database,
    Encrypted,
    ETagMismatchError,
    InBlob,
    IndexNotReadableError,
    RawEntity,
    Series,
    UniqueViolationError,
    connect,
    entity,
    evolve,
    index,
    list_index,
    upcast,
    view,
)
from partita.patterns.encryption.keyring import AesKey, Keyring
from partita.patterns.faults import Faults
from partita.patterns.fields.load_state import find_origin
from partita.patterns.operations import verbs
from partita.patterns.ports.metering import MeteredTransport, metered
from partita.patterns.protocol.calls import Cost, WriteRows
from partita.patterns.protocol.capabilities import ORDERED
from partita.patterns.protocol.utc import utc_now
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import entity_type
from partita.patterns.types.table_series import TableSeries
from partita.patterns.writing.context import PENDING_MAX, Context, OutboxReference
from partita.service.hosting.in_process import LocalAccount
from patterns.simulated import begin
from unit.patterns.fake_world import FakeWorld

KEYRING = Keyring.from_bytes("test", bytes(range(32)))


@pytest_asyncio.fixture
async def db(partita_account: LocalAccount) -> AsyncIterator[Database]:
    async with connect(partita_account, keyring=KEYRING, direct=True) as opened:
        yield opened


async def rows(db: Database, table: str) -> list[RawEntity]:
    return [row async for row in db.raw(table).query() if row.partition_key != "~partita"]


# ---------------------------------------------------------------------------------------------
# Families of types


@entity(table="shapes", partition="{board}", row="s_{id:04d}")
class Shape:
    board: str
    id: int
    code: str


@entity()
class Circle(Shape):
    radius: int = 0


@entity()
class Square(Shape):
    side: int = 0


by_code = index(Shape, row="code_{code}", unique=True)
shapes_anywhere = index(Shape, table="shapesbycode", partition="{code}", row="{board:esc}_{id:04d}")


async def test_an_index_of_a_parent_returns_children_whole(db: Database) -> None:
    shapes = db.table(Shape)
    await db.create_tables()
    await shapes.save(Circle(board="b", id=1, code="x", radius=7))

    found = await shapes.via(by_code).get(board="b", code="x")

    assert found == Circle(board="b", id=1, code="x", radius=7)


async def test_what_was_read_by_an_index_of_a_parent_and_saved_keeps_its_type(
    db: Database,
) -> None:
    shapes = db.table(Shape)
    await db.create_tables()
    await shapes.save(Circle(board="b", id=1, code="x", radius=7))

    found = await shapes.via(by_code).get(board="b", code="x")
    await shapes.save(evolve(found, code="y"))

    assert await shapes.get(board="b", id=1) == Circle(board="b", id=1, code="y", radius=7)


async def test_the_table_of_a_child_sees_only_children_by_an_index_of_the_parent(
    db: Database,
) -> None:
    shapes, circles = db.table(Shape), db.table(Circle)
    await db.create_tables()
    await shapes.save(Circle(board="b", id=1, code="x", radius=7))
    await shapes.save(Square(board="b", id=2, code="y", side=3))

    found = await circles.via(by_code).range(board="b").list()

    assert found == [Circle(board="b", id=1, code="x", radius=7)]


async def test_force_over_an_entity_of_another_type_of_the_family(db: Database) -> None:
    shapes = db.table(Shape)
    await db.create_tables()
    await shapes.save(Circle(board="b", id=1, code="x", radius=7))

    try:
        await shapes.upsert(Square(board="b", id=1, code="y", side=3))
    except UsageError:
        return
    await db.drain()

    assert await db.verify(Shape) == []


async def test_another_type_under_the_keys_of_a_deleted_one_settles(db: Database) -> None:
    shapes = db.table(Shape)
    await db.create_tables()
    circle = await shapes.save(Circle(board="b", id=1, code="x", radius=7))
    await db.drain()
    await shapes.delete(circle)
    await shapes.save(Square(board="b", id=1, code="y", side=3))
    await db.drain()

    assert await db.verify(Shape) == []


@entity(table="cards", partition="{deck}", row="c_{id:04d}")
class Card:
    deck: str
    id: int
    mark: str = ""


@entity()
class Joker(Card):
    colour: str = "red"


marked = index(Card, row="mark_{mark:esc}_{id:04d}", where=lambda card: card.mark != "")


async def test_a_condition_of_a_parents_index_takes_children(db: Database) -> None:
    cards = db.table(Card)
    await db.create_tables()
    await cards.save(Joker(deck="d", id=1, mark="a"))

    found = await cards.via(marked).range(deck="d").list()

    assert found == [Joker(deck="d", id=1, mark="a")]


@entity(table="plain", partition="{deck}", row="{id:04d}")
class Plain:
    deck: str
    id: int


@entity()
class Fancy(Plain):
    name: str = ""


fancy_names = index(Fancy, row="name_{name:esc}_{id:04d}")


async def test_upsert_all_of_a_child_with_an_index_keeps_the_index(db: Database) -> None:
    plain = db.table(Plain)
    await db.create_tables()
    await plain.save(Fancy(deck="d", id=1, name="old"))

    outcome = await plain.upsert_all([Fancy(deck="d", id=1, name="new")])

    assert outcome.failures == []
    assert await db.verify(Fancy) == []


async def test_upsert_of_a_parent_over_a_child_leaves_no_orphan(db: Database) -> None:
    plain = db.table(Plain)
    await db.create_tables()
    await plain.save(Fancy(deck="d", id=1, name="old"))

    try:
        await plain.upsert(Plain(deck="d", id=1))
    except UsageError:
        return

    assert await db.verify(Fancy) == []


# ---------------------------------------------------------------------------------------------
# Versions


@entity(table="members", partition="{club}", row="m_{id:04d}", name="Member", version=1)
class MemberV1:
    club: str
    id: int
    name: str
    email: str


MEMBER_V1_EMAIL = index(MemberV1, row="email_{email}", unique=True, name="by_email")


@entity(table="members", partition="{club}", row="m_{id:04d}", name="Member", version=2)
class MemberV2:
    club: str
    id: int
    first: str
    email: str
    points: int = 10


MEMBER_V2_EMAIL = index(MemberV2, row="email_{email}", unique=True, name="by_email")


@upcast(MemberV2, from_version=1)
def _first(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "first": old.pop("name").split()[0]} if "name" in old else _missing(old)


def _missing(old: dict[str, Any]) -> dict[str, Any]:
    raise KeyError(str(sorted(old)))


@pytest_asyncio.fixture
async def upgraded(partita_account: LocalAccount) -> AsyncIterator[Database]:
    """A database in which version 1 of a program left two members, opened by version 2."""
    async with connect(partita_account, direct=True) as old:
        table = old.table(MemberV1)
        await old.create_tables()
        await table.save(MemberV1(club="c", id=1, name="Jun Cao", email="jun@x"))
        await table.save(MemberV1(club="c", id=2, name="Ken Kwok", email="ken@x"))
    async with connect(partita_account, direct=True) as new:
        new.table(MemberV2)
        await new.create_tables()
        yield new


JUN = MemberV2(club="c", id=1, first="Jun", email="jun@x")


async def test_a_copy_of_an_older_version_is_read_by_its_entity(upgraded: Database) -> None:
    members = upgraded.table(MemberV2)

    found = await members.via(MEMBER_V2_EMAIL).get(club="c", email="jun@x")

    assert found == JUN
    await members.save(evolve(found, points=11))


async def test_older_versions_are_counted_and_selected(upgraded: Database) -> None:
    everybody = upgraded.table(MemberV2).partition(club="c").all()

    assert await everybody.count() == 2
    assert [each.first for each in await everybody.select("first").list()] == ["Jun", "Ken"]
    assert [each.id for each in await everybody.select("id").list()] == [1, 2]


async def test_selected_by_an_index_of_an_older_version(upgraded: Database) -> None:
    via = upgraded.table(MemberV2).via(MEMBER_V2_EMAIL).range(club="c")

    assert [each.first for each in await via.select("first").list()] == ["Jun", "Ken"]


@entity(table="scores", partition="{game}", row="{id:04d}", name="Score", version=1)
class ScoreV1:
    game: str
    id: int
    count: int = 0


@entity(table="scores", partition="{game}", row="{id:04d}", name="Score", version=2)
class ScoreV2:
    game: str
    id: int
    total: int = 0
    lives: int = 3


@upcast(ScoreV2, from_version=1)
def _total(old: dict[str, Any]) -> dict[str, Any]:
    return {**old, "total": old.pop("count", 0)}


async def test_increment_of_an_older_version_is_not_lost(partita_account: LocalAccount) -> None:
    async with connect(partita_account, direct=True) as old:
        table = old.table(ScoreV1)
        await old.create_tables()
        await table.save(ScoreV1(game="g", id=1, count=5))
    async with connect(partita_account, direct=True) as new:
        scores = new.table(ScoreV2)
        loaded = await scores.get(game="g", id=1)

        assert await scores.increment(loaded, "total") == 6
        assert (await scores.get(game="g", id=1)).total == 6


async def test_increment_starts_from_the_default_of_a_field_that_is_new(db: Database) -> None:
    scores = db.table(ScoreV2)
    await db.create_tables()
    await db.raw("scores").save(
        RawEntity("g", "0001", {"EntityType": "Score", "EntityVersion": 2, "Total": 1})
    )
    loaded = await scores.get(game="g", id=1)
    assert loaded.lives == 3

    assert await scores.increment(loaded, "lives") == 4


# ---------------------------------------------------------------------------------------------
# Series, wide entities, projections


@entity(table="meters", partition="{site}", row="{id:04d}")
class Meter:
    site: str
    id: int
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = field(default_factory=dict)


seen: list[Any] = []


@entity(table="watched", partition="{site}", row="{id:04d}")
class Watched:
    site: str
    id: int
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = field(default_factory=dict)


@view(Watched)
def note_watched(_db: Any, _key: Any, entity: Any) -> None:
    seen.append(entity)


@entity(table="copied", partition="{site}", row="m_{id:04d}")
class Copied:
    site: str
    id: int
    name: str
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = field(default_factory=dict)


copied_by_name = index(Copied, row="name_{name:esc}_{id:04d}", copy=["hours"])


async def test_upsert_with_merge_keeps_the_slots_that_it_does_not_name(db: Database) -> None:
    meters = db.table(Meter)
    await db.create_tables()
    await meters.save(Meter(site="s", id=1, hours={1: 1, 2: 2}))

    await meters.upsert(Meter(site="s", id=1, hours={2: 5}), merge=True)

    assert (await meters.get(site="s", id=1)).hours == {1: 1, 2: 5}


async def test_increment_of_a_series_is_shown_to_views(db: Database) -> None:
    watched = db.table(Watched)
    await db.create_tables()
    saved = await watched.save(Watched(site="s", id=1))
    await db.drain()

    await watched.increment(saved, "hours", 3)
    await db.drain()

    assert seen[-1].hours == {3: 1}


async def test_increment_of_a_series_that_an_index_copies_reaches_the_copy(db: Database) -> None:
    table = db.table(Copied)
    await db.create_tables()
    saved = await table.save(Copied(site="s", id=1, name="a"))

    await table.increment(saved, "hours", 3)

    assert await db.verify(Copied) == []


@entity(table="wide", partition="{site}", row="w_{id:04d}")
class Wide:
    site: str
    id: int
    minutes: Annotated[dict[int, int], Series("m{:04d}", slots=3000)] = field(default_factory=dict)
    name: str = ""


async def test_an_entity_of_more_than_ten_rows_is_read_and_written(db: Database) -> None:
    table = db.table(Wide)
    await db.create_tables()
    minutes = dict.fromkeys(range(0, 3000, 7), 1)
    await table.save(Wide(site="s", id=1, minutes=minutes, name="a"))

    loaded = await table.get(site="s", id=1)
    assert loaded.minutes == minutes
    for slot in (3, 300, 700, 2500, 2990):
        loaded = await table.save(evolve(loaded, minutes={**loaded.minutes, slot: 9}))
        loaded = await table.get(site="s", id=1)
        assert loaded.minutes[slot] == 9
    await table.delete(loaded)

    assert await rows(db, "wide") == []


async def test_a_projection_of_a_wide_entity_has_all_of_a_field(db: Database) -> None:
    table = db.table(Wide)
    await db.create_tables()
    await table.save(Wide(site="s", id=1, minutes={1: 1, 2999: 2}, name="a"))

    [found] = await table.partition(site="s").all().select("minutes", "name").list()

    assert (found.minutes, found.name) == ({1: 1, 2999: 2}, "a")


@entity(table="narrow", partition="{site}", row="n_{id:04d}", name="Reading")
class ReadingWide:
    site: str
    id: int
    slots: Annotated[dict[int, int], Series("p{:03d}", slots=500)] = field(default_factory=dict)


@entity(table="narrow", partition="{site}", row="n_{id:04d}", name="Reading")
class ReadingNarrow:
    site: str
    id: int
    slots: Annotated[dict[int, int], Series("p{:03d}", slots=100)] = field(default_factory=dict)


async def test_a_type_that_became_narrower_reads_and_writes_what_is_stored(
    partita_account: LocalAccount,
) -> None:
    filled = dict.fromkeys(range(500), 1)
    async with connect(partita_account, direct=True) as old:
        table = old.table(ReadingWide)
        await old.create_tables()
        await table.save(ReadingWide(site="s", id=1, slots=filled))
    async with connect(partita_account, direct=True) as new:
        narrow = new.table(ReadingNarrow)
        loaded = await narrow.get(site="s", id=1)
        assert loaded.slots == dict.fromkeys(range(100), 1)
        assert [each.id for each in await narrow.partition(site="s").all().list()] == [1]
        await narrow.save(evolve(loaded, slots={**loaded.slots, 5: 7}))
        assert (await narrow.get(site="s", id=1)).slots[5] == 7
    async with connect(partita_account, direct=True) as old:
        table = old.table(ReadingWide)
        assert (await table.get(site="s", id=1)).slots == {**filled, 5: 7}


@entity(table="shifted", partition="{site}", row="n_{id:04d}", name="Shifted")
class ShiftedBefore:
    site: str
    id: int
    slots: Annotated[dict[int, int], Series("p{:03d}", slots=300)] = field(default_factory=dict)


@entity(table="shifted", partition="{site}", row="n_{id:04d}", name="Shifted")
class ShiftedAfter:
    site: str
    id: int
    name: str = ""
    slots: Annotated[dict[int, int], Series("p{:03d}", slots=300)] = field(default_factory=dict)


async def test_increment_finds_a_slot_in_the_row_where_the_type_had_it_before(
    partita_account: LocalAccount,
) -> None:
    async with connect(partita_account, direct=True) as old:
        before = old.table(ShiftedBefore)
        await old.create_tables()
        await before.save(ShiftedBefore(site="s", id=1, slots=dict.fromkeys(range(300), 7)))
    async with connect(partita_account, direct=True) as new:
        after = new.table(ShiftedAfter)
        loaded = await after.get(site="s", id=1)

        for slot in (0, 245, 246, 299):
            assert await after.increment(loaded, "slots", slot) == 8

        stored = await after.get(site="s", id=1)
        assert stored.slots == dict.fromkeys(range(300), 7) | dict.fromkeys((0, 245, 246, 299), 8)


# ---------------------------------------------------------------------------------------------
# Secrets


async def everything(db: Database, account: LocalAccount, tables: list[str]) -> str:
    """Return all that is stored, as one text: rows, and names and contents of blobs."""
    found = [repr(row) for table in tables for row in await rows(db, table)]
    for container in account.blobs.list_containers():
        client = account.blobs.get_container_client(container.name)
        found += [
            f"{blob.name} {client.download_blob(blob.name).readall()!r}"
            for blob in client.list_blobs()
        ]
    return "\n".join(found)


@entity(table="files", partition="{owner}", row="{id:04d}", encrypt=lambda _pk, _rk, _name: True)
class Secret:
    owner: str
    id: int
    title: str = ""
    body: Annotated[str | None, InBlob] = None


async def test_a_resolver_that_encrypts_everything_leaves_no_blob_in_the_clear(
    db: Database, partita_account: LocalAccount
) -> None:
    secrets = db.table(Secret)
    await db.create_tables()

    with pytest.raises(UsageError):
        await secrets.save(Secret(owner="o", id=1, title="t", body="the launch codes"))

    assert "launch codes" not in await everything(db, partita_account, ["files"])


@entity(
    table="patients", partition="{ward}", row="p_{id:04d}", encrypt=lambda _p, _r, n: n == "Name"
)
class Patient:
    ward: str
    id: int
    name: str


patients_by_name = index(Patient, row="name_{name:esc}_{id:04d}")


async def test_an_index_of_a_field_that_a_resolver_encrypts_is_refused(
    db: Database, partita_account: LocalAccount
) -> None:
    patients = db.table(Patient)
    await db.create_tables()

    with pytest.raises(UsageError):
        await patients.save(Patient(ward="w", id=1, name="Jekyll"))

    assert "Jekyll" not in await everything(db, partita_account, ["patients"])


async def test_a_copy_of_a_field_that_a_resolver_encrypts_is_refused(
    db: Database, partita_account: LocalAccount
) -> None:
    @entity(
        table="safe", partition="{ward}", row="p_{id:04d}", encrypt=lambda _p, _r, n: n == "Name"
    )
    class Inmate:
        ward: str
        id: int
        name: str

    try:

        @entity(table="safe", partition="{ward}", row="bed_{id:04d}")
        class Bed:
            ward: str
            id: int
            name: Annotated[
                str | None, CopiedFrom(Inmate, "name", where={"ward": "ward", "id": "id"})
            ] = None

        inmates, beds = db.table(Inmate), db.table(Bed)
        await db.create_tables()
        await beds.save(Bed(ward="w", id=1))
        await inmates.save(Inmate(ward="w", id=1, name="Jekyll"))
    except UsageError:
        pass

    assert "Jekyll" not in await everything(db, partita_account, ["safe"])


# ---------------------------------------------------------------------------------------------
# Conditions of indexes


@entity(table="albums", partition="{owner}", row="a_{id:04d}")
class Album(pydantic.BaseModel):
    owner: str
    id: int
    cover: Annotated[bytes | None, InBlob] = None
    is_public: bool = False


public = index(Album, row="public_{id:04d}", where=lambda album: album.is_public)
covered = index(Album, row="covered_{id:04d}", where=lambda album: album.cover is not None)
empty_cover = index(
    Album,
    row="large_{id:04d}",
    where=lambda album: album.cover is not None and len(album.cover) > 3,
)


async def test_a_condition_sees_the_same_before_and_after_of_a_value_in_a_blob(
    db: Database,
) -> None:
    albums = db.table(Album)
    await db.create_tables()
    await albums.save(Album(owner="o", id=1, cover=b"a long cover"))

    loaded = await albums.get(owner="o", id=1)
    await albums.save(evolve(loaded, is_public=True))
    loaded = await albums.get(owner="o", id=1)
    await albums.save(evolve(loaded, is_public=False))
    await db.drain()

    assert await db.verify(Album) == []
    assert [each.id for each in await albums.via(covered).range(owner="o").list()] == [1]
    await albums.delete(await albums.get(owner="o", id=1))
    await db.drain()
    assert [row.row_key for row in await rows(db, "albums")] == []


# ---------------------------------------------------------------------------------------------
# Types that say no type


@entity(table="strange", partition="{city}", row="{name}", type_property=None)
class Stranger:
    city: str
    name: str
    age: int = 0


strangers_anywhere = index(
    Stranger, table="strangebyage", partition="{age:04d}", row="{city:esc}_{name:esc}"
)


async def test_hidden_rows_are_none_of_a_type_that_says_no_type(db: Database) -> None:
    strangers = db.table(Stranger)
    await db.create_tables()
    await strangers.save(Stranger(city="Rome", name="Ann", age=40))
    assert any(row.row_key.startswith("~o_") for row in await rows(db, "strange"))

    in_rome = strangers.partition(city="Rome").all()
    assert [each.name for each in await in_rome.list()] == ["Ann"]
    assert await in_rome.count() == 1
    assert await strangers.all().allow_scan().count() == 1
    assert [each.name for each in await strangers.all().allow_scan().list()] == ["Ann"]
    outcome = await in_rome.delete()
    assert outcome.failures == []


async def test_a_rebuild_reaches_partitions_behind_the_tilde(partita_account: LocalAccount) -> None:
    async with connect(partita_account, direct=True) as db:
        db.table(Stranger)
        await db.create_tables()
        await db.raw("strange").save(RawEntity("Žilina", "Ann", {"Age": 40}))
        await db.raw("strange").save(RawEntity("Rome", "~o_0000000000000000001_00", {"X": 1}))

        await db.rebuild(strangers_anywhere)
        found = await db.table(Stranger).via(strangers_anywhere).range(age=40).list()

        assert [each.city for each in found] == ["Žilina"]


# ---------------------------------------------------------------------------------------------
# Derived fields


@entity(table="crew", partition="{ship}", row="ship")
class Ship:
    ship: str
    home: str | None = None
    locals: Annotated[int, CountOf("Sailor", where={"ship": "ship", "port": "home"})] = 0


@entity(table="ports", partition="{name}", row="port")
class Port:
    name: str
    sailors: Annotated[int, CountOf("Sailor", where={"port": "name"})] = 0


@entity(table="crew", partition="{ship}", row="s_{id:04d}")
class Sailor:
    ship: str
    id: int
    port: str | None = None


async def test_an_owner_may_have_none_where_it_counts_by(db: Database) -> None:
    ships, sailors = db.table(Ship), db.table(Sailor)
    await db.create_tables()
    await sailors.save(Sailor(ship="Argo", id=1, port=None))
    await sailors.save(Sailor(ship="Argo", id=2, port="Iolcus"))

    await ships.save(Ship(ship="Argo"))
    await db.drain()
    await sailors.save(Sailor(ship="Argo", id=3, port=None))
    await db.drain()

    stored = await ships.get(ship="Argo")
    assert await db.verify(Ship) == []
    await ships.save(evolve(stored, home="Iolcus"))
    await db.drain()
    assert (await ships.get(ship="Argo")).locals == 1
    assert await db.verify(Ship) == []


@entity(table="wide", partition="{dept}", row="v_{id:04d}", name="Voter")
class Voter:
    dept: str
    id: int
    votes: Annotated[dict[int, int], Series("v{:03d}", slots=300)] = field(default_factory=dict)
    party: str = "none"
    nick: str = ""


@entity(table="wide", partition="{dept}", row="tally", name="Tally")
class Tally:
    dept: str
    party: str = "green"
    chief: int = 1
    count: Annotated[int, CountOf("Voter", where={"dept": "dept", "party": "party"})] = 0
    nick: Annotated[
        str | None, CopiedFrom("Voter", "nick", where={"dept": "dept", "id": "chief"})
    ] = None


async def test_what_lies_in_a_further_row_of_a_source_is_counted_and_copied(db: Database) -> None:
    voters, tallies = db.table(Voter), db.table(Tally)
    await db.create_tables()
    for number, party in enumerate(["green", "red", "green"], start=1):
        await voters.save(Voter(dept="d", id=number, party=party, nick=f"n{number}"))

    saved = await tallies.save(Tally(dept="d"))

    assert (saved.count, saved.nick) == (2, "n1")
    assert await db.verify(Tally) == []


@entity(table="tree", partition="{space}", row="f_{id:04d}")
class Folder:
    space: str
    id: int
    parent: int = 0
    children: Annotated[int, CountOf("Folder", where={"space": "space", "parent": "id"})] = 0


async def test_a_type_counts_its_own_kind_also_in_one_group(db: Database) -> None:
    folders = db.table(Folder)
    await db.create_tables()
    async with folders.partition(space="s").atomic() as group:
        for number, parent in ((1, 0), (2, 1), (3, 1), (4, 2)):
            group.save(Folder(space="s", id=number, parent=parent))
    two, three = [await folders.get(space="s", id=number) for number in (2, 3)]
    async with folders.partition(space="s").atomic() as group:
        group.save(evolve(three, parent=2))
        group.delete(two)
    await folders.delete_if_exists(space="s", id=1)

    assert await db.verify(Folder) == []
    async with folders.partition(space="s").atomic() as group:
        group.save(Folder(space="s", id=2, parent=2))
    assert (await folders.get(space="s", id=2)).children == 3
    assert await db.verify(Folder) == []


# ---------------------------------------------------------------------------------------------
# What a class does not know


@entity(table="people", partition="{team}", row="p_{id:04d}", name="Person")
class PersonOld:
    team: str
    id: int
    email: str


by_email_old = index(PersonOld, row="email_{email}", unique=True, name="by_email")


@entity(table="people", partition="{team}", row="p_{id:04d}", name="Person")
class PersonNew:
    team: str
    id: int
    email: str
    pin: Annotated[int | None, Encrypted] = None
    photo: Annotated[bytes | None, InBlob] = None


by_email_new = index(PersonNew, row="email_{email}", unique=True, name="by_email")


@entity(table="plainpeople", partition="{team}", row="p_{id:04d}", name="Person")
class PlainOld:
    team: str
    id: int
    email: str


@entity(table="plainpeople", partition="{team}", row="p_{id:04d}", name="Person")
class PlainNew:
    team: str
    id: int
    email: str
    pin: Annotated[int | None, Encrypted] = None
    nick: str = ""


async def stored_by(account: LocalAccount, cls: type[Any], **values: Any) -> None:
    async with connect(account, keyring=KEYRING, direct=True) as db:
        table = db.table(cls)
        await db.create_tables()
        await table.save(cls(**values))


async def test_an_entity_from_a_copy_keeps_what_its_class_does_not_know_when_it_is_moved(
    partita_account: LocalAccount,
) -> None:
    await stored_by(partita_account, PersonNew, team="a", id=1, email="x", pin=1234)

    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        people = db.table(PersonOld)
        found = await people.via(by_email_old).get(team="a", email="x")
        await people.move(found, id=2)
        assert "1234" not in repr(await rows(db, "people"))
    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        assert (await db.table(PersonNew).get(team="a", id=2)).pin == 1234


async def test_blobs_of_a_field_that_a_class_does_not_know_are_not_collected(
    partita_account: LocalAccount,
) -> None:
    await stored_by(partita_account, PersonNew, team="a", id=1, email="x", photo=b"face")

    async with connect(partita_account, keyring=KEYRING, direct=True, blob_grace=-10.0) as db:
        db.table(PersonOld)
        await db.collect_blobs()
    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        assert (await db.table(PersonNew).get(team="a", id=1)).photo == b"face"


@pytest.mark.parametrize("verb", ["force", "merge", "upsert_all", "merge all"])
async def test_a_forced_write_and_a_save_after_it_keep_what_the_class_does_not_know(
    partita_account: LocalAccount, verb: str
) -> None:
    await stored_by(partita_account, PlainNew, team="a", id=1, email="x", pin=1234, nick="n")

    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        people = db.table(PlainOld)
        loaded = await people.get(team="a", id=1)
        match verb:
            case "force":
                saved = await people.save(evolve(loaded, email="y"), force=True)
            case "merge":
                saved = await people.upsert(PlainOld(team="a", id=1, email="y"), merge=True)
            case "merge all":
                saved = await people.upsert(evolve(loaded, email="y"), merge=True)
            case _:
                [saved] = (await people.upsert_all([evolve(loaded, email="y")])).entities
        assert saved.email == "y"
        await people.save(evolve(saved, email="z"))
        assert "1234" not in repr(await rows(db, "plainpeople"))
    async with connect(partita_account, keyring=KEYRING, direct=True) as db:
        kept = await db.table(PlainNew).get(team="a", id=1)
        assert kept == PlainNew(team="a", id=1, email="z", pin=1234, nick="n")


# ---------------------------------------------------------------------------------------------
# Objects


@entity(table="lists", partition="{owner}", row="{id:04d}")
class Todo:
    owner: str
    id: int
    tags: list[str] = field(default_factory=list)
    done: int = 0


def test_what_is_changed_while_a_save_is_under_way_is_a_change_for_the_next() -> None:
    world, model = FakeWorld(), entity_type(Todo)
    context = begin(world, models=(model,))
    todo = Todo(owner="o", id=1, tags=["a"])

    def append(call: Any) -> None:
        if isinstance(call, WriteRows) and len(todo.tags) == 1:
            todo.tags.append("b")

    world.before = append
    saved = world.run(verbs.save(context, model, todo))
    world.run(verbs.patch(context, model, saved, {"done": 1}))

    stored = world.run(verbs.get(context, model, {"owner": "o", "id": 1}))
    assert stored.tags == ["a", "b"]


async def test_a_deleted_object_is_a_new_one_however_it_was_deleted(db: Database) -> None:
    todos = db.table(Todo)
    await db.create_tables()
    todo = await todos.save(Todo(owner="o", id=1))

    await todos.delete(todo, force=True)
    await todos.save(todo)
    async with todos.partition(owner="o").atomic() as group:
        group.delete(todo)
    await todos.save(todo)
    await todos.delete_all([todo])
    await todos.save(todo)

    assert await todos.get(owner="o", id=1) == todo


async def test_a_database_that_is_opened_again_knows_its_types(
    partita_account: LocalAccount,
) -> None:
    db = connect(partita_account, direct=True)
    async with db:
        db.table(Stranger)
    async with db:
        strangers = db.table(Stranger)
        await db.create_tables()
        await strangers.save(Stranger(city="Rome", name="Ann", age=40))
        await db.drain()

        assert await db.verify(Stranger) == []


async def test_damaged_versions_are_an_error_of_ours(db: Database) -> None:
    members = db.table(MemberV2)
    await db.create_tables()
    await db.raw("members").save(
        RawEntity("c", "m_0001", {"EntityType": "Member", "EntityVersion": "two"})
    )

    with pytest.raises(PartitaError):
        await members.get(club="c", id=1)


# ---------------------------------------------------------------------------------------------
# Limits and conditions


@entity(table="logs", partition="{day}", row="{number:06d}", encrypt=lambda _p, _r, _n: False)
class Line:
    """A resolver might encrypt any property, so that conditions are decided here."""

    day: str
    number: int
    weight: int = 0


async def test_a_limit_with_a_condition_that_is_decided_here_reads_whole_pages(
    db: Database,
) -> None:
    lines = db.table(Line)
    await db.create_tables()
    await lines.save_all([Line(day="d", number=n, weight=n) for n in range(300)])
    heavy = lines.partition(day="d").where(lines.c.weight >= 298)
    assert heavy.plan.client is not None

    with db.measuring() as cost:
        found = await heavy.limit(1).list()

    assert [each.number for each in found] == [298]
    assert cost.requests == 1


@entity(table="tagged", partition="{owner}", row="t_{id:04d}")
class Tagged:
    owner: str
    id: int
    tag: str


in_tag = list_index(Tagged, table="bytag", partition="{tag}", row="{owner}", store="table")


async def test_a_limit_over_lists_ends(db: Database) -> None:
    tagged = db.table(Tagged)
    await db.create_tables()
    await tagged.save_all([Tagged(owner=f"o{n % 4}", id=n, tag=f"t{n % 3}") for n in range(48)])
    await db.drain()

    query = tagged.via(in_tag).all().allow_scan()
    async with asyncio.timeout(60):
        for limit in (1, 2, 5, 47, 48, 100):
            assert len(await query.limit(limit).list()) == min(limit, 48)


# ---------------------------------------------------------------------------------------------
# Several types in one table


async def test_rows_of_an_index_and_entities_of_another_type_do_not_meet(db: Database) -> None:
    @entity(table="mixed", partition="{team}", row="a_{id:04d}")
    class Alpha:
        team: str
        id: int
        name: str

    @entity(table="mixed", partition="{team}", row="b_{name}")
    class Beta:
        team: str
        name: str
        text: str = ""

    index(Alpha, row="b_{name:esc}_{id:04d}", name="by_name")
    try:
        alphas, betas = db.table(Alpha), db.table(Beta)
        await db.create_tables()
        await betas.save(Beta(team="t", name="x_0001", text="precious"))
        await alphas.save(Alpha(team="t", id=1, name="x"))
    except PartitaError:
        return

    assert (await betas.get(team="t", name="x_0001")).text == "precious"


async def test_indexes_of_two_types_do_not_write_the_same_rows(db: Database) -> None:
    @entity(table="mixed", partition="{team}", row="a_{id:04d}")
    class Alpha:
        team: str
        id: int
        name: str
        colour: str = "red"

    @entity(table="mixed", partition="{team}", row="b_{id:04d}")
    class Beta:
        team: str
        id: int
        name: str
        shape: str = "round"

    alpha_names = index(Alpha, row="by_{name:esc}_{id:04d}", name="by_name")
    index(Beta, row="by_{name:esc}_{id:04d}", name="by_name")
    try:
        alphas, betas = db.table(Alpha), db.table(Beta)
        await db.create_tables()
        await alphas.save(Alpha(team="t", id=1, name="x"))
        await betas.save(Beta(team="t", id=1, name="x"))
    except PartitaError:
        return

    assert await db.verify(Alpha) == []
    assert (await alphas.via(alpha_names).get(team="t", name="x", id=1)).colour == "red"


async def test_a_child_and_its_parent_have_no_indexes_of_one_name() -> None:
    @entity(table="mixed", partition="{team}", row="a_{id:04d}")
    class Mother:
        team: str
        id: int
        name: str

    @entity()
    class Daughter(Mother):
        nick: str = ""

    index(Mother, table="mothers", partition="{name}", row="{team:esc}_{id:04d}", name="by")
    with pytest.raises(DefinitionError):
        index(Daughter, table="daughters", partition="{nick}", row="{team:esc}_{id:04d}", name="by")


async def test_rows_of_a_childs_index_do_not_meet_those_of_its_parent() -> None:
    @entity(table="mixed", partition="{team}", row="a_{id:04d}")
    class Mother:
        team: str
        id: int
        name: str

    @entity()
    class Daughter(Mother):
        nick: str = ""

    index(Mother, row="n_{name}", unique=True)
    with pytest.raises(DefinitionError):
        index(Daughter, row="n_{nick}", unique=True)


# ---------------------------------------------------------------------------------------------
# Groups and unique values


@entity(table="users", partition="{org}", row="u_{id:04d}")
class User:
    org: str
    id: int
    login: str
    age: int = 0


by_login = index(User, row="login_{login}", unique=True)
login_copies = index(User, row="copy_{login}", copy=["age"])
login_members = list_index(User, row="member_{login}")
login_lists = list_index(User, row="list_{login}", store="partition")


async def users_of(db: Database, *logins: str) -> list[User]:
    db.table(User)
    await db.create_tables()
    found = [User(org="o", id=n, login=login) for n, login in enumerate(logins)]
    return [await db.table(User).save(each) for each in found]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
async def test_unique_values_go_round_in_one_group(db: Database, order: tuple[int, ...]) -> None:
    users = await users_of(db, "a", "b", "c")
    wanted = {0: "b", 1: "c", 2: "a"}

    async with db.table(User).partition(org="o").atomic() as group:
        for number in order:
            group.save(evolve(users[number], login=wanted[number]))
    await db.drain()

    for number, login in wanted.items():
        assert (await db.table(User).via(by_login).get(org="o", login=login)).id == number
    assert await db.verify(User) == []


async def test_a_value_is_handed_over_in_a_group_and_not_taken_twice(db: Database) -> None:
    one, two, three = await users_of(db, "a", "b", "c")
    users = db.table(User)

    async def sent(*changed: User) -> None:
        async with users.partition(org="o").atomic() as group:
            for each in changed:
                group.save(each)

    with pytest.raises(UniqueViolationError):
        await sent(evolve(one, login="x"), evolve(two, login="a"), evolve(three, login="a"))
    with pytest.raises(UniqueViolationError):
        await sent(evolve(one, age=1), evolve(two, login="a"))
    assert await db.verify(User) == []

    async with users.partition(org="o").atomic() as group:
        group.delete(one)
        group.save(evolve(two, login="a"))
        group.save(User(org="o", id=9, login="b"))
    assert await db.verify(User) == []
    assert (await users.via(by_login).get(org="o", login="a")).id == 1


async def test_a_move_and_a_new_value_in_one(db: Database) -> None:
    one, _, _ = await users_of(db, "a", "b", "c")

    moved = await db.table(User).move(one, id=7, login="d")

    assert await db.verify(User) == []
    assert (await db.table(User).via(by_login).get(org="o", login="d")) == moved
    with pytest.raises(UniqueViolationError):
        await db.table(User).move(moved, id=8, login="b")
    assert await db.verify(User) == []


# ---------------------------------------------------------------------------------------------
# Hostile input


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    "text", ["\ud800", "\udfff\ud800", "a\0b", "\U0010ffff", "'", "%41", "\ufffe"]
)
async def test_odd_texts_are_stored_or_refused_by_us(
    partita_account: LocalAccount, text: str, direct: bool
) -> None:
    async with connect(partita_account, direct=direct, keyring=KEYRING) as db:
        todos, people = db.table(Todo), db.table(PlainNew)
        await db.create_tables()
        try:
            await people.save(PlainNew(team="a", id=1, email=text, nick=text))
            assert (await people.get(team="a", id=1)).nick == text
            found = await people.where(people.c.nick == text).allow_scan().list()
            assert [each.nick for each in found] == [text]
            page = await people.where(people.c.nick == text).allow_scan().page(size=1)
            assert len(page.entities) == 1
        except PartitaError:
            pass
        try:
            await todos.save(Todo(owner=text, id=1))
            assert [each.owner for each in await todos.partition(owner=text).all().list()] == [text]
        except PartitaError:
            pass


async def test_odd_numbers_are_refused_by_us(db: Database) -> None:
    todos = db.table(Todo)
    await db.create_tables()
    here = todos.partition(owner="o")

    for wrong in (
        lambda: here.page(size=0),
        lambda: here.page(size=-1),
        lambda: here.all().limit(-1).list(),
        lambda: todos.save_all([Todo(owner="o", id=1)], max_rate=0),
        lambda: todos.save_all([Todo(owner="o", id=1)], max_rate=-1),
        lambda: here.page(size=1, continuation="x" * 1_000_000),
        lambda: here.page(size=1, continuation=""),
        lambda: here.page(size=1, continuation="Ω"),
        lambda: here.page(size=1, continuation=7),  # type: ignore[arg-type]
        lambda: todos.increment(Todo(owner="o", id=1), "tags"),
        lambda: todos.get(owner="o", id=10**9),
        lambda: todos.get(owner="o", id=-1),
        lambda: todos.get(owner="o", id="1"),
    ):
        with pytest.raises(PartitaError):
            await wrong()


# ---------------------------------------------------------------------------------------------
# Owners that are wide, indexed and shown


@entity(table="halls", partition="{hall}", row="hall")
class Hall:
    hall: str
    days: Annotated[dict[int, int], Series("d{:03d}", slots=300)] = field(default_factory=dict)
    guests: Annotated[int, CountOf("Guest", where={"hall": "hall"})] = 0
    host: Annotated[
        str | None, CopiedFrom("Guest", "name", where={"hall": "hall", "id": "host_id"})
    ] = None
    host_id: int = 1


@entity(table="halls", partition="{hall}", row="g_{id:04d}")
class Guest:
    hall: str
    id: int
    name: str


halls_by_guests = index(Hall, table="hallsbyguests", partition="{guests:06d}", row="{hall}")
halls_by_host = index(Hall, row="host_{host}")
shown_halls: dict[str, int] = {}


@view(Hall)
def show_hall(_db: Any, key: dict[str, Any], hall: Hall | None) -> None:
    shown_halls[key["hall"]] = -1 if hall is None else hall.guests


async def test_derived_fields_in_a_further_row_of_a_wide_owner_are_kept_and_followed(
    db: Database,
) -> None:
    halls, guests = db.table(Hall), db.table(Guest)
    await db.create_tables()
    one = await guests.save(Guest(hall="h", id=1, name="Ann"))
    hall = await halls.save(Hall(hall="h", days={299: 1}))
    assert (hall.guests, hall.host) == (1, "Ann")

    two = await guests.save(Guest(hall="h", id=2, name="Bob"))
    one = await guests.save(evolve(one, name="Amy"))
    with pytest.raises(ETagMismatchError):
        await halls.save(evolve(hall, days={1: 1}))
    hall = await halls.get(hall="h")
    hall = await halls.save(evolve(hall, days={299: 2}, host_id=2))
    async with halls.partition(hall="h").atomic() as group:
        group.save(evolve(hall, days={298: 2}))
        group.delete(one)
        group.save(evolve(two, name="Ben"))
        group.save(Guest(hall="h", id=3, name="Cat"))
    await db.drain()

    stored = await halls.get(hall="h")
    assert (stored.guests, stored.host, stored.days) == (2, "Ben", {298: 2})
    assert await db.verify(Hall) == []
    assert shown_halls["h"] == 2
    await guests.delete_all(await guests.partition(hall="h").all().list())
    await db.drain()
    assert await db.verify(Hall) == []
    stored = await halls.get(hall="h")
    assert (stored.guests, stored.host, shown_halls["h"]) == (0, None, 0)


# ---------------------------------------------------------------------------------------------
# Keys that change


@entity(table="vaults", partition="{bank}", row="v_{id:04d}")
class Vault:
    bank: str
    id: int


@entity()
class DeepVault(Vault):
    name: str = ""
    code: Annotated[int | None, Encrypted] = None


deep_anywhere = index(DeepVault, table="deepvaults", partition="{name}", row="{bank:esc}_{id:04d}")


async def test_rotation_of_a_parent_reaches_the_copies_of_its_children(
    partita_account: LocalAccount,
) -> None:
    async with connect(partita_account, direct=True, keyring=KEYRING) as db:
        db.table(Vault)
        await db.create_tables()
        await db.table(Vault).save(DeepVault(bank="b", id=1, name="n", code=4711))
        await db.drain()
    both = KEYRING.add(AesKey("new", bytes(32))).with_current("new")
    async with connect(partita_account, direct=True, keyring=both) as db:
        db.table(Vault)
        await db.rotate(Vault)
    async with connect(
        partita_account, direct=True, keyring=Keyring.from_bytes("new", bytes(32))
    ) as db:
        [found] = await db.table(DeepVault).via(deep_anywhere).range(name="n").list()
        assert found.code == 4711


# ---------------------------------------------------------------------------------------------
# Services without order, answers that are lost


WIDE, TODO, SCORE = entity_type(Wide), entity_type(Todo), entity_type(ScoreV2)


def test_a_wide_entity_is_read_whole_from_a_service_that_does_not_sort() -> None:
    for seed in range(20):
        world = FakeWorld(seed=seed, is_ordered=False)
        context = begin(world, models=(WIDE,))
        minutes = dict.fromkeys(range(0, 3000, 11), 1)
        world.run(verbs.save(context, WIDE, Wide(site="s", id=1, minutes=minutes, name="a")))

        loaded = world.run(verbs.get(context, WIDE, {"site": "s", "id": 1}))

        assert loaded.minutes == minutes
        world.run(verbs.save(context, WIDE, evolve(loaded, minutes={5: 5})))
        world.run(verbs.delete_key(context, WIDE, WIDE.key({"site": "s", "id": 1})))
        assert world.rows("wide") == [
            row for row in world.rows("wide") if row.key.partition[0] == "~"
        ]


@pytest.mark.parametrize("others", range(8))
@pytest.mark.parametrize("verb", ["increment", "update"])
def test_a_write_whose_answer_was_lost_is_not_made_twice(verb: str, others: int) -> None:
    """Others write in between: either it is seen that it was done, or it is in doubt."""
    world = FakeWorld()
    context = begin(world, models=(SCORE,))
    saved = world.run(verbs.save(context, SCORE, ScoreV2(game="g", id=1)))
    for _ in range(4):
        world.run(verbs.increment(context, SCORE, saved, "total", None, 1))
    key = SCORE.key({"game": "g", "id": 1})
    lost: list[Any] = []

    def refuse(call: Any) -> PartitaError | None:
        if not isinstance(call, WriteRows) or lost:
            return None
        lost.append(call)
        world.perform(call)  # the answer is lost, and the client asks again after the others
        for _ in range(others):
            world.run(verbs.increment(context, SCORE, saved, "total", None, 1))
        return ETagMismatchError("UpdateConditionNotSatisfied", "No.", facts={"answer_lost": True})

    world.refuse = refuse
    told: Any = None
    try:
        if verb == "increment":
            world.run(verbs.increment(context, SCORE, saved, "total", None, 1))
        else:
            world.run(
                verbs.update(context, SCORE, key, lambda old: evolve(old, total=old.total + 1))
            )
    except UnavailableError as error:
        told = error.code

    stored = world.run(verbs.get(context, SCORE, {"game": "g", "id": 1}))
    assert stored.total == 4 + 1 + others, told
    assert told in (None, "WriteInDoubt")


# ---------------------------------------------------------------------------------------------
# Ends in the middle


class Stopping:
    """A port that cancels its caller at one of its calls, before or after it is performed."""

    def __init__(self, inner: Any, stop_at: int, *, is_after: bool) -> None:
        self.capabilities = inner.capabilities
        self.inner = inner
        self.left = stop_at
        self.is_after = is_after

    async def perform(self, call: Any, cost: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.is_after:
            raise asyncio.CancelledError
        answer = await self.inner.perform(call, cost)
        if self.left == 0:
            raise asyncio.CancelledError
        return answer

    async def close(self) -> None:
        await self.inner.close()


@pytest.mark.parametrize("is_after", [False, True])
@pytest.mark.parametrize("verb", ["save", "change", "move", "delete", "group", "all"])
async def test_a_cancelled_verb_leaves_nothing_that_a_drain_does_not_repair(
    partita_account: LocalAccount, verb: str, *, is_after: bool
) -> None:
    stop_at = 0
    while True:
        stop_at += 1
        async with connect(partita_account, direct=True) as db:
            guests, halls = db.table(Guest), db.table(Hall)
            await db.create_tables()
            name = f"{verb}{stop_at}"
            await halls.save(Hall(hall=name))
            guest = await guests.save(Guest(hall=name, id=1, name="Ann"))
            await db.drain()
            port = db._port
            db._port = Stopping(port, stop_at, is_after=is_after)
            try:
                match verb:
                    case "save":
                        await guests.save(Guest(hall=name, id=2, name="Bob"))
                    case "change":
                        await halls.save(evolve(await halls.get(hall=name), host_id=2))
                    case "move":
                        await guests.move(guest, hall=f"other{stop_at}")
                    case "delete":
                        await guests.delete(guest)
                    case "group":
                        async with halls.partition(hall=name).atomic() as group:
                            group.delete(guest)
                            group.delete_if_exists(Hall, hall=name)
                    case _:
                        await guests.save_all(
                            [Guest(hall=name, id=n, name="x") for n in range(2, 5)]
                        )
                is_cancelled = False
            except asyncio.CancelledError:
                is_cancelled = True
            db._port = port
            await db.drain()
            assert await db.verify(Hall) == [], (verb, stop_at)
            found = [row.row_key for row in await rows(db, "halls") if row.row_key[:3] == "~o_"]
            assert found == [], (verb, stop_at)
            if verb == "move":
                here = [row for row in await rows(db, "halls") if row.row_key == "g_0001"]
                places = [row.partition_key for row in here]
                assert len([each for each in places if each in (name, f"other{stop_at}")]) == 1
            if not is_cancelled:
                return


# ---------------------------------------------------------------------------------------------
# Programs of two ages


async def test_an_older_worker_leaves_what_it_does_not_know_to_a_newer_one(
    partita_account: LocalAccount,
) -> None:
    def older() -> type[Any]:
        @entity(table="goods", partition="{shop}", row="g_{id:04d}")
        class Good:
            shop: str
            id: int
            name: str

        return Good

    def newer() -> tuple[type[Any], Any]:
        good = older()
        made = index(
            good, table="goodsbyname", partition="{name}", row="{shop:esc}_{id:04d}", name="by_name"
        )
        return good, made

    good, by_name = newer()
    async with connect(partita_account, direct=True) as db:
        goods = db.table(good)
        await db.create_tables()
        await goods.save(good(shop="s", id=1, name="n"))
    async with connect(partita_account, direct=True) as old:
        old.table(older())
        with contextlib.suppress(PartitaError):
            await old.drain()
    async with connect(partita_account, direct=True) as db:
        goods = db.table(good)
        await db.drain()
        assert [each.id for each in await goods.via(by_name).range(name="n").list()] == [1]


async def test_an_index_that_is_no_longer_declared_does_not_hold_up_the_outbox(
    partita_account: LocalAccount,
) -> None:
    def declared(*, with_index: bool) -> tuple[type[Any], Any]:
        @entity(table="goods", partition="{shop}", row="g_{id:04d}")
        class Good:
            shop: str
            id: int
            name: str

        if not with_index:
            return Good, None
        return Good, index(
            Good, table="goodsbyname", partition="{name}", row="{shop:esc}_{id:04d}", name="by_name"
        )

    good, by_name = declared(with_index=True)
    async with connect(partita_account, direct=True) as db:
        goods = db.table(good)
        await db.create_tables()
        await goods.save(good(shop="s", id=1, name="n"))
        await db.disable(by_name)
    async with connect(partita_account, direct=True) as new:
        new.table(declared(with_index=False)[0])
        await new.drain()

        assert [row.row_key for row in await rows(new, "goods")] == ["g_0001"]


# ---------------------------------------------------------------------------------------------
# Other faces


async def test_a_raw_entity_without_an_etag_is_patched_without_a_condition(db: Database) -> None:
    db.table(Todo)
    await db.create_tables()
    stored = await db.raw("lists").save(RawEntity("o", "0001", {"Done": 1}))

    patched = await db.raw("lists").patch(RawEntity("o", "0001", {"Done": 1}), {"Done": 2})

    assert patched.etag != stored.etag
    assert (await db.raw("lists").get("o", "0001")).properties["Done"] == 2


async def test_types_that_say_their_type_differently_are_not_read_together(db: Database) -> None:
    @entity(table="zoo", partition="{house}", row="l_{id:04d}")
    class Lion:
        house: str
        id: int

    @entity(table="zoo", partition="{house}", row="t_{id:04d}", type_property="Kind")
    class Tiger:
        house: str
        id: int

    lions, tigers = db.table(Lion), db.table(Tiger)
    await db.create_tables()
    await lions.save(Lion(house="h", id=1))
    await tigers.save(Tiger(house="h", id=1))

    try:
        found = [type(each) async for each in db.mixed(Lion, Tiger).partition("h")]
    except UsageError:
        return

    assert found == [Lion, Tiger]


def test_a_copy_of_a_struct_that_keeps_its_origin_in_a_dict_is_a_new_entity() -> None:
    @entity(table="structs", partition="{a}", row="{b}")
    class Kept(msgspec.Struct, dict=True):
        a: str
        b: str

    world, model = FakeWorld(), entity_type(Kept)
    context = begin(world, models=(model,))
    saved = world.run(verbs.save(context, model, Kept("x", "y")))

    for made in (copy.copy(saved), copy.deepcopy(saved)):
        assert find_origin(made) is None


def test_threads_that_save_at_once_forget_old_entries_and_nothing_else() -> None:
    context = Context(ManualClock(), ORDERED)
    references = [OutboxReference("t", RowKey("p", str(n))) for n in range(60_000)]

    def remember(part: list[OutboxReference]) -> None:
        for each in part:
            context.remember(each)

    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as threads:
            parts = [references[n::8] for n in range(8)]
            for done in [threads.submit(remember, part) for part in parts]:
                done.result()
    finally:
        sys.setswitchinterval(switch)

    assert len(context.pending) == PENDING_MAX


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_repeated_request_that_timed_out_in_the_service_is_in_doubt(status: int) -> None:
    class Answering:
        def __init__(self) -> None:
            self.statuses = [status, 409]

        def send(self, _request: Any, **_options: Any) -> Any:
            return SimpleNamespace(status_code=self.statuses.pop(0))

    transport = MeteredTransport(Answering(), is_whole=False)  # type: ignore[arg-type]
    with metered(Cost()) as meter:
        transport.send(None)
        transport.send(None)

    assert meter.is_in_doubt


# ---------------------------------------------------------------------------------------------
# The life of indexes, and of the outbox


async def test_children_share_a_unique_index_of_their_parent(db: Database) -> None:
    shapes = db.table(Shape)
    await db.create_tables()
    await shapes.save(Circle(board="b", id=1, code="x"))

    with pytest.raises(UniqueViolationError):
        await shapes.save(Square(board="b", id=2, code="x"))
    with pytest.raises(UniqueViolationError):
        await db.table(Square).upsert(Square(board="b", id=2, code="x"))


async def test_a_process_that_saw_an_index_disabled_follows_it_when_it_is_rebuilt_elsewhere(
    partita_account: LocalAccount,
) -> None:
    async with (
        connect(partita_account, direct=True) as here,
        connect(partita_account, direct=True) as there,
    ):
        for db in (here, there):
            db.table(User)
            await db.create_tables()
        await here.table(User).save(User(org="o", id=1, login="a"))
        await here.disable(by_login)
        await there.rebuild(by_login)

        await here.table(User).save(User(org="o", id=2, login="b"))
        with pytest.raises(UniqueViolationError):
            await here.table(User).save(User(org="o", id=3, login="a"))

        assert await there.verify(User) == []


async def test_a_rebuild_that_meets_the_same_value_twice_names_the_second(
    partita_account: LocalAccount,
) -> None:
    def declared() -> type[Any]:
        @entity(table="pupils", partition="{school}", row="p_{id:04d}")
        class Pupil:
            school: str
            id: int
            login: str

        return Pupil

    pupil = declared()
    async with connect(partita_account, direct=True) as db:
        pupils = db.table(pupil)
        await db.create_tables()
        for number in (1, 2, 3):
            await pupils.save(pupil(school="s", id=number, login="abx"[number - 1]))
        await pupils.save(pupil(school="s", id=4, login="b"))
    pupil = declared()
    unique = index(pupil, row="login_{login}", unique=True)
    async with connect(partita_account, direct=True) as db:
        pupils = db.table(pupil)
        await db.create_tables()
        with pytest.raises(UniqueViolationError) as refused:
            await db.rebuild(unique)
        assert refused.value.facts["entity"] == "p_0004"
        with pytest.raises(IndexNotReadableError):
            await pupils.via(unique).get(school="s", login="a")

        await pupils.save(evolve(await pupils.get(school="s", id=4), login="c"))
        await db.rebuild(unique)
        assert (await pupils.via(unique).get(school="s", login="c")).id == 4


async def test_an_upcaster_of_an_indexed_field_is_found_by_verify_and_put_right(
    partita_account: LocalAccount,
) -> None:
    @entity(table="subs", partition="{club}", row="m_{id:04d}", name="Sub")
    class SubV1:
        club: str
        id: int
        email: str

    index(SubV1, row="email_{email}", unique=True, name="by_email")

    @entity(table="subs", partition="{club}", row="m_{id:04d}", name="Sub", version=2)
    class SubV2:
        club: str
        id: int
        email: str

    by_email = index(SubV2, row="email_{email}", unique=True, name="by_email")

    @upcast(SubV2, from_version=1)
    def lower(old: dict[str, Any]) -> dict[str, Any]:
        return old | {"email": old["email"].lower()}

    async with connect(partita_account, direct=True) as db:
        old = db.table(SubV1)
        await db.create_tables()
        for number in (1, 2, 3):
            await old.save(SubV1(club="c", id=number, email=f"JUN{number}@X"))
    async with connect(partita_account, direct=True) as db:
        subs = db.table(SubV2)
        await db.create_tables()
        await subs.save(await subs.get(club="c", id=1))
        await subs.delete(await subs.get(club="c", id=2))
        await db.repair(SubV2, await db.verify(SubV2))

        assert await db.verify(SubV2) == []
        assert (await subs.via(by_email).get(club="c", email="jun3@x")).id == 3
        keys = [row.row_key for row in await rows(db, "subs")]
        assert keys == ["email_jun1@x", "email_jun3@x", "m_0001", "m_0003"]


async def test_a_sweep_goes_on_where_a_table_is_missing_or_a_stranger_wrote(
    db: Database,
) -> None:
    @entity(table="never", partition="{a}", row="{b}")
    class NeverMade:
        a: str
        b: str

    strangers = db.table(Stranger)
    await db.create_tables()
    db.table(NeverMade)
    await db.raw("strange").save(RawEntity("Rome", "~o_boom", {"X": "y"}))
    await strangers.save(Stranger(city="Rome", name="Ann", age=40))

    report = await db.sweep(age=-10)

    assert report.entries == 1
    assert [each.city for each in await strangers.via(strangers_anywhere).range(age=40).list()]


async def test_many_wide_entities_are_counted_by_keys_and_read_at_once(db: Database) -> None:
    table = db.table(Wide)
    await db.create_tables()
    for number in range(12):
        await table.save(Wide(site="s", id=number, minutes={2999: number}))

    with db.measuring() as cost:
        assert await table.partition(site="s").all().count() == 12
    assert cost.requests == 1
    found = await table.partition(site="s").all().list()
    assert [each.minutes[2999] for each in found] == list(range(12))


async def test_an_object_that_two_tasks_save_is_saved_by_one(db: Database) -> None:
    todos = db.table(Todo)
    await db.create_tables()
    todo = await todos.save(Todo(owner="o", id=1))
    todo.done = 5

    outcomes = await asyncio.gather(*(todos.save(todo) for _ in range(5)), return_exceptions=True)

    assert sum(not isinstance(each, Exception) for each in outcomes) >= 1
    assert all(isinstance(each, Todo | ETagMismatchError) for each in outcomes)
    assert (await todos.get(owner="o", id=1)).done == 5


@entity(table="spread", partition="{hash_of:hash4}", row="{at:06d}_{hash_of:esc}")
class Spread:
    hash_of: str
    at: int
    weight: int = 0


async def test_pages_of_a_spread_partition_leave_nothing_out_and_repeat_nothing(
    partita_account: LocalAccount, partita_faults: Faults
) -> None:
    async with connect(partita_account) as db:
        spread = db.table(Spread)
        await db.create_tables()
        words = ["a", "b", "\ufffd", "\U0001f600", "~", "' or '1' eq '1", "k"]
        await spread.save_all(
            [Spread(hash_of=words[n % 7], at=n // 3, weight=n) for n in range(60)]
        )
        partita_faults.hostile_paging(7)
        everything = spread.all().allow_scan()
        assert everything.plan.is_merged
        wanted = sorted(range(60))
        for size in (2, 7, 60):
            found: list[int] = []
            continuation = None
            while True:
                page = await everything.page(size=size, continuation=continuation)
                found += [each.weight for each in page.entities]
                continuation = page.continuation
                if continuation is None:
                    break
            assert sorted(found) == wanted, size


@pytest.mark.parametrize("verb", ["save", "save_all", "group"])
async def test_a_row_of_ours_whose_key_would_be_too_long_is_refused_before_it_is_sent(
    db: Database, verb: str
) -> None:
    users = db.table(User)
    await db.create_tables()
    user = User(org="o", id=1, login="x" * 507)

    async def sent() -> None:
        if verb == "save":
            await users.save(user)
        elif verb == "group":
            async with users.partition(org="o").atomic() as group:
                group.save(user)
        else:
            raise (await users.save_all([user])).failures[0].error

    with pytest.raises(UsageError):
        await sent()


@entity(table="owners", partition="{name}", row="{name}")
class LongOwner:
    name: str
    count: Annotated[int, CountOf("LongSource", where={"name": "name"})] = 0


@entity(table="owners", partition="{name}", row="{id:04d}")
class LongSource:
    name: str
    id: int


async def test_an_owner_may_have_the_longest_key(db: Database) -> None:
    owners, sources = db.table(LongOwner), db.table(LongSource)
    await db.create_tables()
    name = "n" * 512

    await sources.save(LongSource(name=name, id=1))
    await owners.save(LongOwner(name=name))
    await sources.save(LongSource(name=name, id=2))

    assert (await owners.get(name=name)).count == 2


@entity(table="points", partition="{day:asc}", allow_hot=True, row="{number:04d}")
class Point:
    day: dt.date
    number: int


async def test_the_same_object_twice_in_a_save_of_periods_fails_once(db: Database) -> None:
    points = db.periods(Point, TableSeries("points", "day"), at="day")
    await points.ensure()
    today = utc_now(db.context.clock).date()
    one, two = Point(day=today, number=1), Point(day=today, number=2)

    outcome = await points.save_all([one, one, two])

    assert [each.number for each in outcome.entities] == [1, 2]
    assert len(outcome.failures) == 1


# ---------------------------------------------------------------------------------------------
# Equal, and yet not the same


@entity(table="prices", partition="{shop}", row="p_{id:04d}")
class Price:
    shop: str
    id: int
    amount: Decimal
    ratio: float = 0.0


prices_by_id = index(Price, row="copy_{id:04d}")


async def test_a_copy_follows_a_number_that_is_only_written_otherwise(db: Database) -> None:
    prices = db.table(Price)
    await db.create_tables()
    saved = await prices.save(Price(shop="s", id=1, amount=Decimal("1.0")))

    await prices.save(evolve(saved, amount=Decimal("1.00"), ratio=-0.0))

    assert await db.verify(Price) == []


async def test_what_is_no_number_does_not_keep_an_entity_from_being_saved(db: Database) -> None:
    prices = db.table(Price)
    await db.create_tables()
    await prices.save(Price(shop="s", id=1, amount=Decimal(1), ratio=math.nan))

    found = await prices.via(prices_by_id).get(shop="s", id=1)
    await prices.save(evolve(found, amount=Decimal(2)))

    assert (await prices.get(shop="s", id=1)).amount == 2
    assert await db.verify(Price) == []


# ---------------------------------------------------------------------------------------------
# Left as it was, for a while


async def test_an_older_worker_leaves_a_view_that_it_does_not_know_to_a_newer_one(
    partita_account: LocalAccount,
) -> None:
    shown: list[Any] = []

    def declared() -> type[Any]:
        @entity(table="events", partition="{room}", row="{id:04d}")
        class Event:
            room: str
            id: int

        return Event

    event = declared()

    @view(event)
    def show(_db: Any, _key: Any, entity: Any) -> None:
        shown.append(entity)

    async with connect(partita_account, direct=True) as db:
        events = db.table(event)
        await db.create_tables()
        await events.save(event(room="r", id=1))
    async with connect(partita_account, direct=True) as old:
        old.table(declared())
        with contextlib.suppress(PartitaError):
            await old.drain()
    async with connect(partita_account, direct=True) as db:
        db.table(event)
        await db.drain()

    assert len(shown) == 1


async def test_a_page_of_what_is_decided_here_takes_few_requests(db: Database) -> None:
    lines = db.table(Line)
    await db.create_tables()
    await lines.save_all([Line(day="d", number=n, weight=n) for n in range(100)])

    page = await lines.partition(day="d").where(lines.c.weight >= 99).page(size=1)

    assert [each.number for each in page.entities] == [99]
    assert page.cost.requests <= 10


async def test_a_child_with_keys_of_its_own_is_got_from_the_table_of_its_parent(
    db: Database,
) -> None:
    @entity(table="zoo", partition="{house}", row="a_{id:04d}")
    class Animal:
        house: str
        id: int

    @entity(row="b_{id:04d}")
    class Bird(Animal):
        wings: int = 2

    animals = db.table(Animal)
    await db.create_tables()
    await animals.save(Bird(house="h", id=1))
    assert await animals.partition(house="h").range(id=1).list() == [Bird(house="h", id=1)]

    assert await animals.get(house="h", id=1) == Bird(house="h", id=1)


@entity(table="herd", partition="{house}", row="a_{id:04d}")
class Beast:
    house: str
    id: int
    name: str = ""


@entity(row="b_{id:02d}")
class Crow(Beast):
    wings: int = 2


@entity(row="c_{id:04d}")
class Cow(Beast):
    pass


@entity(partition="stall_{house}")
class Calf(Cow):
    pass


async def test_verbs_of_a_parent_reach_children_with_keys_of_their_own(db: Database) -> None:
    beasts = db.table(Beast)
    await db.create_tables()
    await beasts.save_all([Crow(house="h", id=1), Calf(house="h", id=2), Beast(house="h", id=3)])

    assert await beasts.get_or_none(house="h", id=2) == Calf(house="h", id=2)
    assert await beasts.get_many([{"house": "h", "id": each} for each in (1, 2, 3, 4)]) == [
        Crow(house="h", id=1),
        Calf(house="h", id=2),
        Beast(house="h", id=3),
        None,
    ]
    changed = await beasts.update(lambda each: evolve(each, name="Karl"), house="h", id=1)
    assert changed == Crow(house="h", id=1, name="Karl")
    assert await beasts.cached(ttl=60).get_or_none(house="h", id=1) == changed
    assert await beasts.delete_if_exists(house="h", id=2)
    async with beasts.partition(house="h").atomic() as group:
        group.delete_if_exists(id=1)
    assert not await beasts.delete_if_exists(house="h", id=1)
    assert await beasts.all().allow_scan().list() == [Beast(house="h", id=3)]


async def test_of_several_with_the_same_key_fields_the_own_type_is_meant(db: Database) -> None:
    beasts = db.table(Beast)
    await db.create_tables()
    await beasts.save_all([Beast(house="h", id=1), Crow(house="h", id=1)])

    with db.measuring() as cost:
        assert await beasts.get(house="h", id=1) == Beast(house="h", id=1)

    assert cost.requests == 1


@pytest.mark.parametrize("verb", ["get", "get_or_none", "delete_if_exists"])
async def test_of_several_types_below_none_is_guessed(db: Database, verb: str) -> None:
    beasts = db.table(Beast)
    await db.create_tables()
    await beasts.save_all([Cow(house="h", id=1), Crow(house="h", id=1)])

    with pytest.raises(UsageError, match="KeyAmbiguous"):
        await getattr(beasts, verb)(house="h", id=1)

    assert await db.table(Cow).get(house="h", id=1) == Cow(house="h", id=1)


async def test_a_key_that_a_type_below_cannot_have_is_not_asked_for(db: Database) -> None:
    beasts = db.table(Beast)
    await db.create_tables()
    await beasts.save(Cow(house="h", id=1234))

    assert await beasts.get(house="h", id=1234) == Cow(house="h", id=1234)
