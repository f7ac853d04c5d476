"""Abstract parents find and delete the entities of their children."""

import pytest

from partita.errors import UsageError
from partita.patterns import Database, entity


@entity(table="boats", partition="{port}", row="{id:04d}", abstract=True)
class Boat:
    port: str
    id: int


@entity(row="tug_{id:04d}")
class Tug(Boat):
    pass


@entity(row="ferry_{id:04d}")
class Ferry(Boat):
    pass


@entity()
class Canoe(Boat):
    pass


@pytest.mark.parametrize("verb", ["get", "get_or_none", "delete_if_exists"])
@pytest.mark.parametrize("pair", [(Tug, Ferry), (Tug, Canoe), (Ferry, Canoe)])
async def test_of_two_children_an_abstract_parent_means_neither(
    db: Database, verb: str, pair: tuple[type[Boat], type[Boat]]
) -> None:
    boats = db.table(Boat)
    await db.create_tables()
    await boats.save_all([one(port="p", id=1) for one in pair])

    with pytest.raises(UsageError, match="KeyAmbiguous"):
        await getattr(boats, verb)(port="p", id=1)

    assert len(await boats.partition(port="p").all().list()) == 2


@pytest.mark.parametrize("cls", [Tug, Ferry, Canoe])
async def test_an_abstract_parent_finds_and_deletes_the_one_child_that_there_is(
    db: Database, cls: type[Boat]
) -> None:
    boats = db.table(Boat)
    await db.create_tables()
    await boats.save(cls(port="p", id=1))

    assert await boats.get(port="p", id=1) == cls(port="p", id=1)
    assert await boats.delete_if_exists(port="p", id=1)
    assert await boats.get_or_none(port="p", id=1) is None
    assert not await boats.delete_if_exists(port="p", id=1)
