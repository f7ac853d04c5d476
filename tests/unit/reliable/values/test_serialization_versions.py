"""Five versions of one type, each written and read by each other, as in a rolling upgrade."""

import enum
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import DamageError, SchemaError
from partita.reliable.values.serialization import (
    Schema,
    ValueCodec,
    downcast,
    stored_version,
    upcast,
)
from partita.reliable.values.value_shape import IDENTITY

GOLDEN = Path(__file__).parent / "golden"


class PersonV1(msgspec.Struct, frozen=True):
    name: str
    age: int


class PersonV2(msgspec.Struct, frozen=True):
    name: str
    age: int
    email: str = ""


class PersonV3(msgspec.Struct, frozen=True):
    first: str
    last: str
    age: int
    email: str = ""


class Address(msgspec.Struct, frozen=True):
    street: str


class PersonV4(msgspec.Struct, frozen=True):
    first: str
    last: str
    born: int
    email: str = ""
    address: Address | None = None


class Badge(msgspec.Struct, frozen=True):
    id: Annotated[int, IDENTITY]
    text: str


class PersonV5(msgspec.Struct, frozen=True):
    first: str
    last: str
    born: int
    email: str = ""
    address: Address | None = None
    badges: tuple[Badge, ...] = ()


@upcast(from_=2, to=3)
def split_name(person: dict[str, Any]) -> dict[str, Any]:
    first, _, last = person.pop("name").partition(" ")
    return {**person, "first": first, "last": last}


@downcast(from_=3, to=2)
def join_name(person: dict[str, Any]) -> dict[str, Any]:
    return {**person, "name": f"{person.pop('first')} {person.pop('last')}"}


@upcast(from_=3, to=4)
def year_of_birth(person: dict[str, Any]) -> dict[str, Any]:
    return {**person, "born": 2000 - person.pop("age")}


@downcast(from_=4, to=3)
def age_in_2000(person: dict[str, Any]) -> dict[str, Any]:
    return {**person, "age": 2000 - person.pop("born")}


STEPS = {3: [split_name, join_name], 4: [year_of_birth, age_in_2000]}
TYPES: dict[int, Any] = {1: PersonV1, 2: PersonV2, 3: PersonV3, 4: PersonV4, 5: PersonV5}
ADA: dict[int, Any] = {
    1: PersonV1("Ada King", 36),
    2: PersonV2("Ada King", 36, "ada@example.org"),
    3: PersonV3("Ada", "King", 36, "ada@example.org"),
    4: PersonV4("Ada", "King", 1964, "ada@example.org", Address("Dorset")),
    5: PersonV5(
        "Ada", "King", 1964, "ada@example.org", Address("Dorset"), (Badge(7, "x"), Badge(8, "y"))
    ),
}
VERSIONS = (1, 2, 3, 4, 5)
WRITTEN = [(code, version) for code in VERSIONS for version in VERSIONS if version <= code]


def people(code: int, write: int | None = None) -> ValueCodec[Any]:
    steps = [step for at, both in STEPS.items() if at <= code for step in both]
    return ValueCodec(TYPES[code], schema=Schema(code, write), steps=steps)


# The matrix


@pytest.mark.parametrize(("code", "version"), WRITTEN)
@pytest.mark.parametrize("reader", VERSIONS)
def test_every_reader_reads_every_version_up_to_its_own(
    code: int, version: int, reader: int
) -> None:
    stored = people(code, version).encode(ADA[code], version=version)
    assert stored_version(stored) == version

    if reader < version:
        with pytest.raises(SchemaError) as error:
            people(reader).decode(stored)
        assert error.value.code == "SchemaTooNew"
        assert error.value.facts == {"version": version, "version_max": reader}
        return
    person = people(reader).decode(stored)

    assert person == known_to_both(code, reader)


def known_to_both(code: int, reader: int) -> Any:
    """Ada as the reader's type has her, with defaults for what the writer did not know."""
    added = {"email": (2, ""), "address": (4, None), "badges": (5, ())}
    missing = {name: default for name, (since, default) in added.items() if code < since <= reader}
    return msgspec.structs.replace(ADA[reader], **missing)


@pytest.mark.parametrize(("code", "version"), WRITTEN)
@pytest.mark.parametrize("other", VERSIONS)
def test_what_other_code_does_not_know_survives_its_writing(
    code: int, version: int, other: int
) -> None:
    if other < version:
        return
    stored = people(code, version).encode(ADA[code], version=version)
    between = people(other, version)
    person = msgspec.structs.replace(between.decode(stored), **changed_name(other))

    again = between.encode(person, version=version, stored=stored)

    assert people(code).decode(again) == msgspec.structs.replace(ADA[code], **changed_name(code))


def changed_name(code: int) -> dict[str, str]:
    return {"name": "Eve King"} if code < 3 else {"first": "Eve"}


@pytest.mark.parametrize("reader", VERSIONS)
@pytest.mark.parametrize(("code", "version"), WRITTEN)
def test_reading_and_writing_is_not_a_mutation_in_any_version(
    code: int, version: int, reader: int
) -> None:
    writer = people(code, version)
    stored = writer.encode(ADA[code], version=version)
    assert writer.mutated_path(ADA[code], stored) is None
    if reader < version:
        return

    person = people(reader).decode(stored)

    assert people(reader).mutated_path(person, stored) is None
    changed = msgspec.structs.replace(person, **changed_name(reader))
    assert people(reader).mutated_path(changed, stored) == next(iter(changed_name(reader)))


def test_a_row_moves_to_the_new_version_with_the_next_write() -> None:
    stored = people(2).encode(ADA[2], version=2)
    code = people(5, 2)
    person = code.decode(stored)

    kept = code.encode(person, version=2, stored=stored)
    moved = code.encode(person, version=5, stored=stored)

    assert stored_version(kept) == 2
    assert people(2).decode(kept) == ADA[2]
    assert stored_version(moved) == 5
    assert people(5).decode(moved) == person


# Golden bytes: what was ever written is read for ever


class Colour(enum.Enum):
    RED = "red"


class Kinds(msgspec.Struct, frozen=True):
    text: str = "\x00é\U0001f600"
    blob: bytes = b"\x00\xff"
    small: int = -1
    large: int = 2**64 - 1
    number: float = 1.5
    truth: bool = True
    nothing: None = None
    money: Decimal = Decimal("1.10")
    moment: datetime = datetime(2024, 2, 29, 12, 30, 1, 250000, tzinfo=UTC)
    day: date = date(2024, 2, 29)
    clock: time = time(1, 2, 3)
    span: timedelta = timedelta(days=1, seconds=2, microseconds=3)
    identity: UUID = UUID(int=0x0123456789ABCDEF)
    colour: Colour = Colour.RED
    pair: tuple[int, str] = (1, "a")
    numbers: tuple[int, ...] = (3, 1, 2)
    names: frozenset[str] = frozenset({"b", "a", "c"})
    colours: frozenset[Colour] = frozenset({Colour.RED})
    address: Address | None = Address("Dorset")


KINDS: ValueCodec[Kinds] = ValueCodec(Kinds, schema=Schema())


def golden(name: str) -> bytes:
    return bytes.fromhex((GOLDEN / f"{name}.hex").read_text())


GOLDEN_ROWS: dict[str, Callable[[], bytes]] = {
    f"person_code{code}_version{version}": lambda code=code, version=version: people(
        code, version
    ).encode(ADA[code], version=version)
    for code, version in WRITTEN
} | {
    "kinds_version1": lambda: KINDS.encode(Kinds(), version=1),
    "kinds_version1_expiring": lambda: KINDS.encode(Kinds(), version=1, expires=17_000_000_000),
    "person_code1_over_code5": lambda: people(1).encode(
        PersonV1("Eve King", 37),
        version=1,
        stored=people(5, 1).encode(ADA[5], version=1),
    ),
}


def test_every_golden_file_is_tested() -> None:
    assert sorted(path.stem for path in GOLDEN.glob("*.hex")) == sorted(GOLDEN_ROWS)


@pytest.mark.parametrize("name", GOLDEN_ROWS)
def test_the_same_bytes_are_still_written(name: str) -> None:
    assert GOLDEN_ROWS[name]() == golden(name)


@pytest.mark.parametrize(("code", "version"), WRITTEN)
def test_golden_rows_are_read(code: int, version: int) -> None:
    stored = golden(f"person_code{code}_version{version}")

    assert people(code).decode(stored) == ADA[code]
    assert people(5).decode(stored).last == "King"


def test_golden_rows_of_every_kind_are_read() -> None:
    assert KINDS.decode(golden("kinds_version1")) == Kinds()
    assert KINDS.decode(golden("kinds_version1_expiring")) == Kinds()


def test_a_golden_row_that_older_code_rewrote_is_read() -> None:
    eve = people(5).decode(golden("person_code1_over_code5"))

    assert eve == msgspec.structs.replace(ADA[5], first="Eve", born=1963)


# Unknown fields


class Leaf(msgspec.Struct, frozen=True):
    name: str


class LeafNew(msgspec.Struct, frozen=True):
    name: str
    colour: str = "green"


class Oak(msgspec.Struct, frozen=True, tag="oak"):
    leaf: Leaf


class OakNew(msgspec.Struct, frozen=True, tag="oak"):
    leaf: LeafNew
    age: int = 100


class Elm(msgspec.Struct, frozen=True, tag="elm"):
    leaf: Leaf


class ElmNew(msgspec.Struct, frozen=True, tag="elm"):
    leaf: LeafNew
    height: int = 20


class Tool(msgspec.Struct, frozen=True):
    id: Annotated[int, IDENTITY]
    name: str


class ToolNew(msgspec.Struct, frozen=True):
    id: Annotated[int, IDENTITY]
    name: str
    price: int = 0


class Wood(msgspec.Struct):
    trees: tuple[Oak | Elm, ...] = ()
    best: Oak | Elm | None = None
    pair: tuple[Leaf, int] = (Leaf("a"), 1)
    tools: list[Tool] = []
    by_name: dict[str, Leaf] = {}
    by_number: dict[int, Leaf] = {}
    leaves: frozenset[Leaf] = frozenset()


class WoodNew(msgspec.Struct):
    trees: tuple[OakNew | ElmNew, ...] = ()
    best: OakNew | ElmNew | None = None
    pair: tuple[LeafNew, int] = (LeafNew("a"), 1)
    tools: list[ToolNew] = []
    by_name: dict[str, LeafNew] = {}
    by_number: dict[int, LeafNew] = {}
    leaves: frozenset[LeafNew] = frozenset()
    extra: dict[int, str] = {}


OLD: ValueCodec[Wood] = ValueCodec(Wood, schema=Schema(), mutable="copy")
NEW: ValueCodec[WoodNew] = ValueCodec(WoodNew, schema=Schema(), mutable="copy")


def rewritten(before: WoodNew, change: Callable[[Wood], object]) -> WoodNew:
    stored = NEW.encode(before, version=1)
    wood = OLD.decode(stored)
    change(wood)
    return NEW.decode(OLD.encode(wood, version=1, stored=stored))


def test_unknown_fields_of_nested_structs_survive() -> None:
    before = WoodNew(
        best=OakNew(LeafNew("a", "red"), 7),
        pair=(LeafNew("b", "blue"), 1),
        by_name={"x": LeafNew("c", "grey"), "gone": LeafNew("d", "pink")},
        by_number={5: LeafNew("e", "black")},
        extra={2: "two", 1: "one"},
    )

    def change(wood: Wood) -> None:
        wood.best = Oak(Leaf("new"))
        wood.pair = (Leaf("new"), 2)
        wood.by_name = {"x": Leaf("new"), "y": Leaf("y")}
        wood.by_number[5] = Leaf("new")

    assert rewritten(before, change) == WoodNew(
        best=OakNew(LeafNew("new", "red"), 7),
        pair=(LeafNew("new", "blue"), 2),
        by_name={"x": LeafNew("new", "grey"), "y": LeafNew("y", "green")},
        by_number={5: LeafNew("new", "black")},
        extra={2: "two", 1: "one"},
    )


def test_another_member_of_a_union_starts_without_unknown_fields() -> None:
    before = WoodNew(best=OakNew(LeafNew("a", "red"), 7))

    after = rewritten(before, lambda wood: setattr(wood, "best", Elm(Leaf("a"))))

    assert after.best == ElmNew(LeafNew("a", "green"), 20)


def test_a_field_set_to_none_takes_its_unknown_fields_along() -> None:
    after = rewritten(
        WoodNew(best=OakNew(LeafNew("a", "red"), 7)), lambda wood: setattr(wood, "best", None)
    )

    assert after.best is None


def test_unchanged_elements_keep_unknown_fields_wherever_they_move() -> None:
    first, second = OakNew(LeafNew("a", "red"), 1), ElmNew(LeafNew("b", "blue"), 2)

    def change(wood: Wood) -> None:
        wood.trees = (Oak(Leaf("new")), wood.trees[1], wood.trees[0])

    after = rewritten(WoodNew(trees=(first, second)), change)

    assert after.trees == (OakNew(LeafNew("new", "green"), 100), second, first)


def test_equal_elements_keep_their_unknown_fields_in_order() -> None:
    before = WoodNew(trees=tuple(OakNew(LeafNew("a"), age) for age in (1, 2, 3)))

    after = rewritten(before, lambda wood: setattr(wood, "trees", wood.trees[1:]))

    assert [tree.age for tree in after.trees if isinstance(tree, OakNew)] == [1, 2]


def test_elements_with_an_identity_keep_unknown_fields_though_they_change() -> None:
    before = WoodNew(tools=[ToolNew(1, "saw", 10), ToolNew(2, "axe", 20), ToolNew(3, "nail", 1)])

    def change(wood: Wood) -> None:
        wood.tools = [Tool(2, "big axe"), Tool(4, "rope"), Tool(1, "saw")]

    assert rewritten(before, change).tools == [
        ToolNew(2, "big axe", 20),
        ToolNew(4, "rope", 0),
        ToolNew(1, "saw", 10),
    ]


def test_a_set_keeps_unknown_fields_until_it_changes() -> None:
    before = WoodNew(leaves=frozenset({LeafNew("a", "red"), LeafNew("b", "blue")}))

    same = rewritten(before, lambda wood: wood.tools.append(Tool(1, "saw")))
    other = rewritten(before, lambda wood: setattr(wood, "leaves", frozenset({Leaf("a")})))

    assert same.leaves == before.leaves
    assert other.leaves == frozenset({LeafNew("a", "green")})


def test_a_codec_tells_where_unknown_fields_may_be_lost() -> None:
    assert OLD.loses_unknown == ("trees", "leaves")
    assert people(5).loses_unknown == ()
    assert ValueCodec(tuple[int, ...], schema=Schema()).loses_unknown == ()


def test_unknown_fields_are_dropped_where_it_is_said() -> None:
    old: ValueCodec[Leaf] = ValueCodec(Leaf, schema=Schema(), preserve_unknown=False)
    new: ValueCodec[LeafNew] = ValueCodec(LeafNew, schema=Schema())
    stored = new.encode(LeafNew("a", "red"), version=1)

    assert new.decode(old.encode(Leaf("b"), version=1, stored=stored)) == LeafNew("b", "green")


def test_unknown_fields_survive_many_rewrites_by_both_sides() -> None:
    stored = people(5, 1).encode(ADA[5], version=1)

    for code in (1, 2, 5, 3, 1, 4, 2):
        one = people(code, 1)
        stored = one.encode(one.decode(stored), version=1, stored=stored)

    assert people(5).decode(stored) == ADA[5]


def test_an_omitted_default_is_not_taken_from_the_stored_row() -> None:
    class Lean(msgspec.Struct, frozen=True, omit_defaults=True):
        name: str = ""
        nick: str = ""

    lean: ValueCodec[Lean] = ValueCodec(Lean, schema=Schema())
    stored = lean.encode(Lean("a", "b"), version=1)

    assert lean.decode(lean.encode(Lean("a"), version=1, stored=stored)) == Lean("a")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.integers(0, 3), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), PLAIN, max_size=4))
def test_any_unknown_field_survives(unknown: dict[str, Any]) -> None:
    old: ValueCodec[Leaf] = ValueCodec(Leaf, schema=Schema())
    stored = b"\x00\x01" + msgspec.msgpack.encode({"name": "x", **unknown})

    again = old.encode(Leaf("y"), version=1, stored=stored)

    assert msgspec.msgpack.decode(again[2:]) == {**unknown, "name": "y"}
    assert old.mutated_path(Leaf("y"), again) is None
    assert old.mutated_path(Leaf("x"), again) == "name"
    assert old.encode(Leaf("y"), version=1, stored=again) == again


# What is refused


def test_a_row_that_is_newer_than_the_code_is_not_overwritten() -> None:
    stored = people(5).encode(ADA[5], version=5)

    with pytest.raises(SchemaError) as error:
        people(4).encode(ADA[4], version=4, stored=stored)

    assert error.value.code == "SchemaTooNew"


def test_a_damaged_row_is_not_overwritten_unseen() -> None:
    with pytest.raises(DamageError):
        people(1).encode(ADA[1], version=1, stored=b"\x00\x01\xc1")


@pytest.mark.parametrize("version", [0, -1, 3])
def test_a_version_that_the_code_does_not_know_is_not_written(version: int) -> None:
    with pytest.raises(SchemaError) as error:
        people(2).encode(ADA[2], version=version)

    assert error.value.code == "SchemaTooNew"


def test_an_older_version_needs_the_downcast_of_each_upcast() -> None:
    with pytest.raises(SchemaError) as error:
        ValueCodec(PersonV3, schema=Schema(3, write=2), steps=[split_name])
    assert error.value.code == "MissingDowncast"

    late: ValueCodec[PersonV3] = ValueCodec(PersonV3, schema=Schema(3), steps=[split_name])
    with pytest.raises(SchemaError) as error:
        late.encode(ADA[3], version=2)
    assert error.value.code == "MissingDowncast"


@pytest.mark.parametrize(
    "schema", [Schema(0), Schema(-1), Schema(2, 3), Schema(2, 0), Schema(0x8000)]
)
def test_versions_out_of_range_are_refused(schema: Schema) -> None:
    with pytest.raises(SchemaError) as error:
        ValueCodec(int, schema=schema)

    assert error.value.code == "InvalidSchema"


@pytest.mark.parametrize(("from_", "to"), [(1, 3), (2, 1), (0, 1), (1, 1)])
def test_an_upcast_is_one_step_up(from_: int, to: int) -> None:
    with pytest.raises(SchemaError) as error:
        upcast(from_=from_, to=to)

    assert error.value.code == "InvalidStep"


@pytest.mark.parametrize(("from_", "to"), [(3, 1), (1, 2), (1, 0)])
def test_a_downcast_is_one_step_down(from_: int, to: int) -> None:
    with pytest.raises(SchemaError) as error:
        downcast(from_=from_, to=to)

    assert error.value.code == "InvalidStep"


@pytest.mark.parametrize(
    ("version", "steps"),
    [
        (3, [lambda person: person]),
        (3, [split_name, split_name]),
        (2, [split_name]),
        (3, [join_name]),
        (2, [year_of_birth]),
    ],
)
def test_steps_that_do_not_fit_are_refused(version: int, steps: list[Any]) -> None:
    with pytest.raises(SchemaError) as error:
        ValueCodec(TYPES[version], schema=Schema(version), steps=steps)

    assert error.value.code == "InvalidStep"


def test_an_upcast_that_fails_says_so() -> None:
    stored = b"\x00\x02" + msgspec.msgpack.encode({"age": 5})

    with pytest.raises(SchemaError) as error:
        people(3).decode(stored)

    assert error.value.code == "StepFailed"


@upcast(from_=1, to=2)
def forget_name(person: dict[str, Any]) -> dict[str, Any]:
    return {**person, "name": person["name"]}


@downcast(from_=2, to=1)
def break_name(person: dict[str, Any]) -> dict[str, Any]:
    return {"age": person["age"]}


def test_a_downcast_whose_bytes_could_not_be_read_is_not_written() -> None:
    broken: ValueCodec[PersonV2] = ValueCodec(
        PersonV2, schema=Schema(2, write=1), steps=[forget_name, break_name]
    )

    with pytest.raises(SchemaError) as error:
        broken.encode(ADA[2], version=1)

    assert error.value.code == "StepFailed"


@upcast(from_=1, to=2)
def no_email(person: dict[str, Any]) -> dict[str, Any]:
    return person


@downcast(from_=2, to=1)
def drop_email(person: dict[str, Any]) -> dict[str, Any]:
    person.pop("email")
    return person


def test_a_downcast_that_loses_a_field_is_not_a_mutation() -> None:
    lossy: ValueCodec[PersonV2] = ValueCodec(
        PersonV2, schema=Schema(2, write=1), steps=[no_email, drop_email]
    )
    stored = lossy.encode(ADA[2], version=1)

    assert lossy.decode(stored).email == ""
    assert lossy.mutated_path(ADA[2], stored) is None
    assert lossy.mutated_path(msgspec.structs.replace(ADA[2], age=1), stored) == "age"


@given(st.sampled_from(VERSIONS), st.binary(max_size=30) | PLAIN.map(msgspec.msgpack.encode))
def test_hostile_rows_of_older_versions_are_damage_or_no_such_type(
    version: int, payload: bytes
) -> None:
    with pytest.raises((DamageError, SchemaError)):
        people(5).decode(version.to_bytes(2) + payload)
