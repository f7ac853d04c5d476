"""Types with parents: indexes and verbs of a parent reach the entities of its children."""

import pytest

from partita.errors import UsageError
from partita.patterns import Database, UniqueViolationError, entity, evolve, index


@pytest.fixture
def db(direct_db: Database) -> Database:
    return direct_db


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


async def test_children_share_a_unique_index_of_their_parent(db: Database) -> None:
    shapes = db.table(Shape)
    await db.create_tables()
    await shapes.save(Circle(board="b", id=1, code="x"))

    with pytest.raises(UniqueViolationError):
        await shapes.save(Square(board="b", id=2, code="x"))
    with pytest.raises(UniqueViolationError):
        await db.table(Square).upsert(Square(board="b", id=2, code="x"))


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
