"""`upsert(merge=True)`: a merge writes what the caller set, and nothing else."""

import dataclasses
from typing import Annotated, Any

import attrs
import msgspec
import pydantic
import pytest

from partita.errors import ETagMismatchError, UsageError
from partita.patterns import (
    CopiedFrom,
    Database,
    Encrypted,
    InBlob,
    RawEntity,
    Series,
    Table,
    connect,
    entity,
    evolve,
    index,
    sync,
    upcast,
    view,
)
from partita.patterns.faults import Faults
from partita.service.hosting.in_process import LocalAccount
from support.staff import KEYRING

WHERE: dict[str, Any] = {"partition": "{site}", "row": "{id:04d}"}


@entity(table="mergedplain", **WHERE)
class Plain:
    site: str
    id: int
    name: str
    text: str = "-"
    stars: int | None = None
    open: bool = False
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = dataclasses.field(
        default_factory=dict
    )


@entity(table="mergeddata", **WHERE)
@dataclasses.dataclass
class Data:
    site: str
    id: int
    name: str
    text: str = "-"
    stars: int | None = None
    open: bool = False
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = dataclasses.field(
        default_factory=dict
    )


@entity(table="mergedstruct", **WHERE)
class Struct(msgspec.Struct, kw_only=True, weakref=True):
    site: str
    id: int
    name: str
    text: str = "-"
    stars: int | None = None
    open: bool = False
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = {}


@entity(table="mergedmodel", **WHERE)
class Model(pydantic.BaseModel):
    site: str
    id: int
    name: str
    text: str = "-"
    stars: int | None = None
    open: bool = False
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = {}


@entity(table="mergedattrs", **WHERE)
@attrs.define
class Attrs:
    site: str
    id: int
    name: str
    text: str = "-"
    stars: int | None = None
    open: bool = False
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = attrs.field(factory=dict)


KINDS: list[Any] = [Plain, Data, Struct, Model, Attrs]
KEY: dict[str, Any] = {"site": "s", "id": 1}
STORED: dict[str, Any] = {
    "name": "old",
    "text": "kept",
    "stars": 4,
    "open": True,
    "hours": {1: 1, 2: 2},
}


async def prepared(db: Database, kind: Any, **stored: Any) -> Table[Any]:
    table = db.table(kind)
    await db.create_tables()
    if stored:
        await table.save(kind(**KEY, **stored))
    return table


@pytest.mark.parametrize("kind", KINDS)
async def test_a_merge_leaves_fields_that_were_not_set(
    db: Database, kind: Any, partita_faults: Faults
) -> None:
    table = await prepared(db, kind, **STORED)

    with db.measuring() as cost:
        await table.upsert(kind(**KEY, name="new", hours={2: 5}), merge=True)

    assert cost.requests == 1
    assert partita_faults.requests[-1].startswith(("PATCH", "MERGE"))
    expected = STORED | {"name": "new", "hours": {1: 1, 2: 5}}
    assert await table.get(**KEY) == kind(**KEY, **expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_merge_leaves_fields_that_were_not_set_without_a_loop(
    partita_account: LocalAccount, kind: Any
) -> None:
    with sync.connect(partita_account) as db:
        table = db.table(kind)
        db.create_tables()
        table.save(kind(**KEY, **STORED))

        with db.measuring() as cost:
            table.upsert(kind(**KEY, name="new", hours={2: 5}), merge=True)

        assert cost.requests == 1
        expected = STORED | {"name": "new", "hours": {1: 1, 2: 5}}
        assert table.get(**KEY) == kind(**KEY, **expected)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_merge_makes_an_entity_that_is_not_there(db: Database, kind: Any) -> None:
    table = await prepared(db, kind)

    with db.measuring() as cost:
        await table.upsert(kind(**KEY, name="new"), merge=True)

    assert cost.requests == 1
    assert await table.get(**KEY) == kind(**KEY, name="new")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_merge_of_named_fields_writes_them_at_their_defaults_too(
    db: Database, kind: Any
) -> None:
    table = await prepared(db, kind, **STORED)

    with db.measuring() as cost:
        await table.upsert(kind(**KEY, name="unused"), merge=["text", "open"])

    assert cost.requests == 1
    assert await table.get(**KEY) == kind(**KEY, **STORED | {"text": "-", "open": False})

    await table.upsert(kind(**KEY, name="unused"), merge=["stars"])
    expected = STORED | {"text": "-", "open": False, "stars": None}
    assert await table.get(**KEY) == kind(**KEY, **expected)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_merge_of_named_fields_makes_a_whole_entity_where_there_is_none(
    db: Database, kind: Any
) -> None:
    table = await prepared(db, kind)

    await table.upsert(kind(**KEY, name="new", stars=1), merge=["stars"])

    assert await table.get(**KEY) == kind(**KEY, name="new", stars=1)


async def test_a_pydantic_model_tells_what_was_set_to_its_default(db: Database) -> None:
    table = await prepared(db, Model, **STORED)
    given = Model(**KEY, name="old", open=False)
    given.text = "-"

    with db.measuring() as cost:
        await table.upsert(evolve(given, name="new"), merge=True)

    assert cost.requests == 1
    expected = STORED | {"name": "new", "open": False, "text": "-"}
    assert await table.get(**KEY) == Model(**KEY, **expected)

    await table.upsert(Model(**KEY, name="new", stars=None), merge=True)
    assert (await table.get(**KEY)).stars is None


@pytest.mark.parametrize("kind", KINDS)
async def test_a_merge_of_a_loaded_entity_writes_what_changed_since(
    db: Database, kind: Any
) -> None:
    table = await prepared(db, kind, **STORED)
    loaded = await table.get(**KEY)
    await table.patch(await table.get(**KEY), name="theirs", hours={1: 7, 2: 2, 3: 3})

    with db.measuring() as cost:
        await table.upsert(evolve(loaded, open=False, hours={1: 1, 2: 5}), merge=True)

    assert cost.requests == 1
    expected = STORED | {"name": "theirs", "open": False, "hours": {1: 7, 2: 5, 3: 3}}
    assert await table.get(**KEY) == kind(**KEY, **expected)

    await table.upsert(evolve(loaded, stars=None), merge=True)
    assert (await table.get(**KEY)).stars is None
    assert (await table.get(**KEY)).name == "theirs"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_merge_of_a_loaded_entity_that_is_gone_makes_it_whole(
    db: Database, kind: Any
) -> None:
    table = await prepared(db, kind, **STORED)
    loaded = await table.get(**KEY)
    await table.delete_if_exists(**KEY)

    await table.upsert(evolve(loaded, open=False), merge=True)

    assert await table.get(**KEY) == kind(**KEY, **STORED | {"open": False})


async def test_every_port_merges_alike(any_db: Database) -> None:
    table = await prepared(any_db, Plain, **STORED)
    loaded = await table.get(**KEY)

    await table.upsert(Plain(**KEY, name="new"), merge=True)
    await table.upsert(evolve(loaded, open=False), merge=True)
    assert await table.get(**KEY) == Plain(**KEY, **STORED | {"name": "new", "open": False})

    await table.delete_if_exists(**KEY)
    await table.upsert(evolve(loaded, open=False), merge=True)
    assert await table.get(**KEY) == Plain(**KEY, **STORED | {"open": False})


async def test_a_loaded_entity_with_other_keys_is_merged_as_a_new_one(db: Database) -> None:
    table = await prepared(db, Plain, **STORED)
    await table.save(Plain(site="s", id=2, name="other", text="theirs"))

    moved = evolve(await table.get(**KEY), id=2, text="-")
    await table.upsert(moved, merge=True)

    expected = STORED | {"text": "theirs"}
    assert await table.get(site="s", id=2) == Plain(site="s", id=2, **expected)


async def test_saving_what_was_merged_does_not_erase_what_it_did_not_say(db: Database) -> None:
    table = await prepared(db, Plain, **STORED)
    merged = await table.upsert(Plain(**KEY, name="new"), merge=True)

    with pytest.raises(ETagMismatchError, match="merged"):
        await table.save(evolve(merged, name="newer"))

    await table.upsert(evolve(merged, name="newest"), merge=True)
    assert await table.get(**KEY) == Plain(**KEY, **STORED | {"name": "newest"})


async def test_a_merge_in_a_group_writes_what_was_set(db: Database) -> None:
    table = await prepared(db, Plain, **STORED)
    loaded = await table.get(**KEY)
    await table.save(Plain(site="s", id=2, **STORED))

    with db.measuring() as cost:
        async with table.partition(site="s").atomic() as group:
            group.upsert(Plain(site="s", id=2, name="new"), merge=True)
            group.upsert(Plain(site="s", id=3, name="made"), merge=True)
    assert cost.requests == 1
    async with table.partition(site="s").atomic() as group:
        group.upsert(evolve(loaded, open=False, hours={5: 5}), merge=True)
        group.upsert(Plain(site="s", id=2, name="unused"), merge=["text"])

    hours = {1: 1, 2: 2, 5: 5}
    assert await table.get(**KEY) == Plain(**KEY, **STORED | {"open": False, "hours": hours})
    expected = STORED | {"name": "new", "text": "-"}
    assert await table.get(site="s", id=2) == Plain(site="s", id=2, **expected)
    assert await table.get(site="s", id=3) == Plain(site="s", id=3, name="made")


async def test_only_fields_can_be_named(db: Database) -> None:
    table = await prepared(db, Plain)

    for names in (["nonsense"], "text"):
        with pytest.raises(UsageError, match="UnknownField"):
            await table.upsert(Plain(**KEY, name="new"), merge=names)


# ---------------------------------------------------------------------------------------------
# Types that something follows, and others that one request cannot merge


@entity(table="mergedsites", partition="{site}", row="site")
class Site:
    site: str
    owner: str = ""


@entity(table="mergedsites", partition="{site}", row="m_{id:04d}")
class Followed:
    site: str
    id: int
    name: str
    text: str = "-"
    pin: Annotated[int | None, Encrypted] = None
    photo: Annotated[bytes | None, InBlob] = None
    hours: Annotated[dict[int, int], Series("h{:03d}", slots=300)] = dataclasses.field(
        default_factory=dict
    )
    owner: Annotated[str | None, CopiedFrom(Site, "owner", where={"site": "site"})] = None


by_text = index(Followed, row="text_{text:esc}_{id:04d}")
shown: list[str] = []


@view(Followed)
def show(_db: Any, _key: Any, followed: Followed | None) -> None:
    shown.append("" if followed is None else followed.text)


async def test_a_merge_of_a_followed_type_writes_what_was_set(
    partita_account: LocalAccount,
) -> None:
    async with connect(partita_account, keyring=KEYRING) as db:
        table = await prepared(db, Followed)
        await db.table(Site).save(Site(site="s", owner="Ann"))
        stored = await table.save(
            Followed(**KEY, name="a", text="b", pin=1, photo=b"face", hours={1: 1, 299: 2})
        )
        await table.upsert(Followed(**KEY, name="new", hours={299: 3}), merge=True)
        await table.upsert(Followed(**KEY, name="unused", pin=2), merge=["pin"])
        await table.upsert(evolve(stored, photo=b"mask"), merge=True)
        await db.drain()

        assert await table.get(**KEY) == Followed(
            **KEY, name="new", text="b", pin=2, photo=b"mask", hours={1: 1, 299: 3}, owner="Ann"
        )
        found = await table.via(by_text).get(site="s", text="b", id=1)
        assert found.name == "new"
        assert await db.verify(Followed) == []
        assert shown[-1] == "b"

        merged = await table.upsert(Followed(**KEY, name="newer"), merge=True)
        assert merged.owner == "Ann"
        with pytest.raises(ETagMismatchError):
            await table.save(evolve(merged, name="newest"))


@entity(table="mergedaged", version=2, name="Aged", **WHERE)
class Aged:
    site: str
    id: int
    first: str = ""
    last: str = ""


@upcast(Aged, from_version=1)
def split(old: dict[str, Any]) -> dict[str, Any]:
    first, _, last = old.pop("name").partition(" ")
    return old | {"first": first, "last": last}


async def test_a_merge_upcasts_what_an_older_version_stored(db: Database) -> None:
    table = await prepared(db, Aged)
    stored = RawEntity("s", "0001", {"EntityType": "Aged", "Name": "Jun Cao"})
    await db.raw("mergedaged").save(stored)

    await table.upsert(Aged(**KEY, last="Li"), merge=True)

    assert await table.get(**KEY) == Aged(**KEY, first="Jun", last="Li")
