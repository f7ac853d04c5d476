"""Conditions, fields and keys that a type checker can check, at run time."""

import dataclasses
from decimal import Decimal
from typing import Annotated, Any

import attrs
import msgspec
import pydantic
import pytest

from partita.errors import DefinitionError, UnknownFieldError, UsageError
from partita.patterns import (
    Database,
    EntityNotFoundError,
    Series,
    Table,
    entity,
    evolve,
    index,
    is_absent,
    is_in,
    is_present,
    present,
)
from partita.patterns.keys.intervals import Interval


@entity(table="plain", partition="{dept}", row="{id:06d}")
class Plain:
    dept: str
    id: int
    age: int | None = None
    is_active: bool = True
    hours: Decimal = Decimal(0)
    days: Annotated[dict[int, int], Series("d{:02d}", slots=31)] = dataclasses.field(
        default_factory=dict
    )


@entity(table="members", partition="{club}", row="{id:06d}")
class Member:
    club: str
    id: int
    email: str
    is_active: bool = True


by_email = index(Member, row="email_{email}", unique=True)


@entity(table="dataclasses", partition="{dept}", row="{id:06d}")
@dataclasses.dataclass
class Data:
    dept: str
    id: int
    age: int


@entity(table="structs", partition="{dept}", row="{id:06d}")
class Struct(msgspec.Struct, weakref=True):
    dept: str
    id: int
    age: int


@entity(table="models", partition="{dept}", row="{id:06d}")
class Model(pydantic.BaseModel):
    dept: str
    id: int
    age: int


@entity(table="attributes", partition="{dept}", row="{id:06d}")
@attrs.define
class Attributes:
    dept: str
    id: int
    age: int


@dataclasses.dataclass(kw_only=True)
class PlainKey:
    dept: str
    id: int


@pytest.fixture
async def people(db: Database) -> Table[Plain]:
    table = db.table(Plain)
    await db.create_tables()
    await table.save_all(
        [
            Plain(dept="Sales", id=1, age=39),
            Plain(dept="Sales", id=2, age=41, is_active=False),
            Plain(dept="Sales", id=3),
            Plain(dept="Legal", id=4, age=50),
        ]
    )
    return table


@pytest.mark.parametrize("cls", [Plain, Data, Struct, Model, Attributes])
async def test_every_kind_of_class_can_be_filtered_and_selected_by_a_function(
    db: Database, cls: Any
) -> None:
    table = db.table(cls)
    await db.create_tables()
    await table.save_all([cls(dept="Sales", id=number, age=30 + number) for number in range(4)])

    found = table.where(lambda e: (e.dept == "Sales") & (e.age > 31))

    assert await found.select(lambda e: (e.id, e.age)).list() == [(2, 32), (3, 33)]
    assert (await found.first()) == await table.get(dept="Sales", id=2)


@pytest.mark.parametrize(
    ("chosen", "ids"),
    [
        (lambda e: present(e.age) > 40, [2]),
        (lambda e: ~e.is_active, [2]),
        (lambda e: e.is_active & is_present(e.age), [1]),
        (lambda e: is_present(e.age) & e.is_active, [1]),
        (lambda e: e.is_active, [1, 3]),
        (lambda e: is_absent(e.age) | (e.age == 39), [1, 3]),
        (lambda e: is_in(e.id, [2, 3, 4]), [2, 3]),
        (lambda e: e.age.between(39, 40), [1]),
    ],
)
async def test_a_function_can_make_every_condition(
    people: Table[Plain], chosen: Any, ids: list[int]
) -> None:
    found = people.partition(dept="Sales").where(chosen).select(lambda e: e.id)

    assert await found.list() == ids


async def test_a_function_is_planned_like_the_columns(people: Table[Plain]) -> None:
    by_function = people.where(lambda e: (e.dept == "Sales") & (e.id >= 2))
    by_columns = people.where((people.c.dept == "Sales") & (people.c.id >= 2))

    assert by_function.explain() == by_columns.explain()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda e: e.id > 1 and e.id < 3,
        lambda e: e.id > 1 or e.id < 3,
        lambda e: not e.id > 1,
        lambda e: e.is_active and e.id > 1,
        lambda e: not e.is_active,
        lambda e: e.dept in ("Sales", "Legal"),
    ],
)
async def test_python_operators_raise_an_error_that_names_the_others(
    people: Table[Plain], wrong: Any
) -> None:
    with pytest.raises(TypeError, match=r"& for and, \| for or, ~ for not"):
        people.where(wrong)


async def test_a_misspelled_field_is_answered_with_the_most_similar_one(
    people: Table[Plain],
) -> None:
    wrong: Any = lambda e: e.agee > 40  # noqa: E731

    with pytest.raises(UnknownFieldError) as caught:
        people.where(wrong)
    with pytest.raises(UsageError) as refused:
        await people.get(dep="Sales", id=1)
    with pytest.raises(UsageError) as of_partition:
        people.partition(dep="Sales")
    with pytest.raises(UsageError) as of_copy:
        evolve(Plain(dept="Sales", id=1), houers=1)
    with pytest.raises(UsageError) as of_projection:
        people.all().select("aeg")

    assert "Did you mean 'age'?" in caught.value.hint
    assert "Did you mean 'dept'?" in refused.value.hint
    assert "Did you mean 'dept'?" in of_partition.value.hint
    assert "Did you mean 'hours'?" in of_copy.value.hint
    assert "Did you mean 'age'?" in of_projection.value.hint


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (lambda e: e.dept.lower() == "sales", "NotFilterable"),
        (lambda e: e.id == e.age, "NotFilterable"),
        (lambda e: e.id, "NotACondition"),
        (lambda e: is_in(1, [e.id]), "NotAField"),
    ],
)
async def test_what_the_service_cannot_decide_is_refused(
    people: Table[Plain], wrong: Any, code: str
) -> None:
    with pytest.raises(UsageError) as caught:
        people.where(wrong)

    assert caught.value.code == code


async def test_select_takes_fields_alone(people: Table[Plain]) -> None:
    for wrong in (lambda e: 1, lambda e: (e.id, 1), lambda e: [e.id]):
        with pytest.raises(UsageError) as caught:
            people.all().select(wrong)
        assert caught.value.code == "NotAField"


async def test_increment_takes_a_field_or_a_slot_of_a_series(people: Table[Plain]) -> None:
    one = await people.get(dept="Sales", id=1)

    assert await people.increment(one, lambda e: e.hours, by=Decimal("1.5")) == Decimal("1.5")
    assert await people.increment(one, lambda e: e.age) == 40
    assert await people.increment(one, lambda e: e.days, 3, by=2) == 2


async def test_keys_can_be_given_by_functions(people: Table[Plain]) -> None:
    sales = people.partition(lambda e: e.dept == "Sales")

    by_function = sales.range(lambda e: (e.id >= 2) & (e.id < 4))

    assert await by_function.select(lambda e: e.id).list() == [2, 3]
    by_name = people.partition(dept="Sales").range(id=Interval(2, 4, has_upper_inside=False))
    assert by_function.explain() == by_name.explain()
    assert await sales.range(lambda e: e.id == 2).list() == [await people.get(dept="Sales", id=2)]
    async with sales.atomic() as group:
        group.delete_if_exists(id=2)
    assert await people.get_or_none(dept="Sales", id=2) is None


async def test_keys_of_an_index_can_be_given_by_functions(db: Database) -> None:
    members = db.table(Member)
    await db.create_tables()
    await members.save_all(
        [Member(club="A", id=1, email="jun"), Member(club="A", id=2, email="ken")]
    )
    via = members.via(by_email)

    found = via.range(lambda e: (e.club == "A") & e.email.startswith("k"))

    assert await found.select(lambda e: e.id).list() == [2]
    assert found.explain() == via.prefix(club="A", email="k").explain()
    assert (await via.get(lambda e: (e.club == "A") & (e.email == "jun"))).id == 1
    assert await via.get_or_none(lambda e: (e.club == "A") & (e.email == "bo")) is None
    with pytest.raises(EntityNotFoundError):
        await via.get(lambda e: (e.club == "A") & (e.email == "bo"))
    with pytest.raises(UsageError) as caught:
        via.range(lambda e: e.is_active)
    assert caught.value.code == "NotAKeyField"


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (lambda e: e.id == 1, "NotAKeyField"),
        (lambda e: e.dept > "Sales", "KeyFields"),
        (lambda e: (e.dept == "Sales") | (e.dept == "Legal"), "KeyFields"),
        (lambda e: (e.dept == "Sales") & (e.dept == "Legal"), "KeyFields"),
        (lambda e: e.dept, "NotACondition"),
    ],
)
async def test_a_partition_takes_one_value_for_each_of_its_fields(
    people: Table[Plain], wrong: Any, code: str
) -> None:
    with pytest.raises(UsageError) as caught:
        people.partition(wrong)

    assert caught.value.code == code
    assert "partition()" in caught.value.message


async def test_a_range_takes_only_fields_of_its_keys(people: Table[Plain]) -> None:
    with pytest.raises(UsageError) as caught:
        people.partition(dept="Sales").range(lambda e: present(e.age) > 40)

    assert caught.value.code == "NotAKeyField"
    assert "Use id in range(), and where() for" in caught.value.hint


async def test_a_table_with_a_key_class_is_the_same_table(
    db: Database, people: Table[Plain]
) -> None:
    keyed = db.table(Plain, key=PlainKey)

    assert keyed is people
    assert (await keyed.get(dept="Sales", id=1)).age == 39


async def test_a_key_class_must_declare_the_key_fields_with_their_types(db: Database) -> None:
    def of_text(*, dept: str, id: str) -> None: ...  # noqa: A002 - the name of the field

    def of_one(*, dept: str) -> None: ...

    for wrong in (of_text, of_one):
        with pytest.raises(DefinitionError) as caught:
            db.table(Plain, key=wrong)
        assert caught.value.code == "KeyClassRefused"
        assert "dept: str; id: int" in caught.value.hint
