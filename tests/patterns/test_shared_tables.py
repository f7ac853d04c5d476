"""Several types in one table: keys and index rows that would collide are refused."""

import pytest

from partita.errors import DefinitionError, PartitaError
from partita.patterns import Database, entity, index


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


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
