import copy
import dataclasses
import gc
import pickle
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Annotated, Any, ClassVar, NamedTuple, TypedDict

import attrs
import msgspec
import pydantic
import pytest

from partita.errors import DefinitionError, InvalidPropertyError, UsageError
from partita.patterns.fields import load_state as origins
from partita.patterns.fields.markers import Encrypted
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType, Origin, entity, entity_type, evolve

in_staff = entity(table="staff", partition="{dept}", row="{id:06d}")


@entity(table="staff", partition="{dept}", row="{id:06d}")
class Plain:
    dept: str
    id: int
    age: int = 0
    tags: list[str] = field(default_factory=list)


@in_staff
@dataclass
class AsDataclass:
    dept: str
    id: int
    age: int = 0
    tags: list[str] = field(default_factory=list)


@in_staff
@dataclass(frozen=True)
class AsFrozenDataclass:
    dept: str
    id: int
    age: int = 0
    tags: list[str] = field(default_factory=list, hash=False)


@in_staff
@dataclass(slots=True, weakref_slot=True)
class AsSlottedDataclass:
    dept: str
    id: int
    age: int = 0
    tags: list[str] = field(default_factory=list)


@in_staff
class AsStruct(msgspec.Struct, weakref=True):
    dept: str
    id: int
    age: int = 0
    tags: list[str] = []


@in_staff
class AsStructWithDict(msgspec.Struct, dict=True):
    dept: str
    id: int
    age: int = 0
    tags: list[str] = msgspec.field(default_factory=list)


@in_staff
class AsFrozenStruct(msgspec.Struct, weakref=True, frozen=True):
    dept: str
    id: int
    age: int = 0
    tags: list[str] = []


@in_staff
class AsModel(pydantic.BaseModel):
    dept: str
    id: int
    age: Annotated[int, pydantic.Field(ge=0)] = 0
    tags: list[str] = []


@in_staff
class AsFrozenModel(pydantic.BaseModel, frozen=True):
    dept: str
    id: int
    age: int = 0
    tags: list[str] = pydantic.Field(default_factory=list)


@in_staff
@attrs.define
class AsAttrs:
    dept: str
    id: int
    age: int = 0
    tags: list[str] = attrs.field(factory=list)


@in_staff
@attrs.frozen(slots=False)
class AsFrozenAttrs:
    dept: str
    id: int
    age: int = 0
    tags: list[str] = attrs.Factory(list)


CLASSES: list[Any] = [
    Plain,
    AsDataclass,
    AsFrozenDataclass,
    AsSlottedDataclass,
    AsStruct,
    AsStructWithDict,
    AsFrozenStruct,
    AsModel,
    AsFrozenModel,
    AsAttrs,
    AsFrozenAttrs,
]
each_class = pytest.mark.parametrize("cls", CLASSES)


def an_origin() -> Origin:
    return Origin(RowKey("Sales", "000007"), ("W/1",), {"age": 1})


@each_class
def test_fields_are_those_of_the_class_with_their_defaults(cls: Any) -> None:
    fields = entity_type(cls).fields

    assert list(fields) == ["dept", "id", "age", "tags"]
    assert [each.has_default for each in fields.values()] == [False, False, True, True]
    assert fields["age"].annotation is int
    age, tags = fields["age"].default, fields["tags"].default
    assert age is not None
    assert tags is not None
    assert age() == 0
    assert tags() == []


@each_class
def test_an_object_is_made_from_its_values_and_taken_apart_again(cls: Any) -> None:
    model = entity_type(cls)
    values = {"dept": "Sales", "id": 7, "age": 47, "tags": ["a"]}

    made = model.build(values)

    assert type(made) is cls
    assert made == cls(**values)
    assert model.values(made) == values


@each_class
def test_values_that_are_not_given_are_the_defaults_of_the_class(cls: Any) -> None:
    made = entity_type(cls).build({"dept": "Sales", "id": 7})

    assert (made.age, made.tags) == (0, [])


@each_class
def test_an_origin_is_remembered_beside_the_object(cls: Any) -> None:
    model, obj, origin = entity_type(cls), cls(dept="Sales", id=7), an_origin()

    assert model.origin(obj) is None
    model.set_origin(obj, origin)
    assert model.origin(obj) is origin
    model.set_origin(obj, other := an_origin())
    assert model.origin(obj) is other
    model.set_origin(obj, None)
    assert model.origin(obj) is None


@each_class
def test_an_origin_changes_nothing_that_can_be_seen_of_an_object(cls: Any) -> None:
    obj, twin = cls(dept="Sales", id=7), cls(dept="Sales", id=7)

    entity_type(cls).set_origin(obj, an_origin())

    assert obj == twin
    assert repr(obj) == repr(twin)
    assert pickle.dumps(obj) == pickle.dumps(twin)
    if cls is AsFrozenDataclass:
        assert hash(obj) == hash(twin)
    if isinstance(obj, pydantic.BaseModel):
        assert obj.model_dump() == twin.model_dump()
        assert obj.model_fields_set == twin.model_fields_set
    if hasattr(obj, "__dict__") and cls is not AsStructWithDict:
        assert vars(obj) == vars(twin)


@each_class
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda obj: pickle.loads(pickle.dumps(obj))]
)
def test_a_copy_is_a_new_entity(cls: Any, copied: Callable[[Any], Any]) -> None:
    model, obj = entity_type(cls), cls(dept="Sales", id=7)
    model.set_origin(obj, an_origin())

    other = copied(obj)

    assert other == obj
    assert model.origin(other) is None
    assert model.origin(obj) is not None


@each_class
def test_evolve_changes_a_copy_and_keeps_the_origin(cls: Any) -> None:
    obj, origin = cls(dept="Sales", id=7, tags=["a"]), an_origin()
    entity_type(cls).set_origin(obj, origin)

    changed = evolve(obj, age=47)

    assert changed == cls(dept="Sales", id=7, age=47, tags=["a"])
    assert obj.age == 0
    assert entity_type(cls).origin(changed) is origin
    assert entity_type(cls).origin(obj) is origin


@each_class
def test_evolve_of_a_new_object_is_a_new_object(cls: Any) -> None:
    assert entity_type(cls).origin(evolve(cls(dept="Sales", id=7))) is None


@each_class
def test_evolve_refuses_a_field_that_is_not_there_and_lists_those_that_are(cls: Any) -> None:
    with pytest.raises(UsageError) as raised:
        evolve(cls(dept="Sales", id=7), ages=47)

    assert raised.value.code == "UnknownField"
    assert "dept, id, age, tags" in raised.value.hint


def test_evolve_of_something_else_is_refused() -> None:
    with pytest.raises(DefinitionError) as raised:
        evolve(object())

    assert raised.value.code == "NotAnEntity"


def test_an_origin_goes_with_its_object() -> None:
    obj = Plain(dept="Sales", id=7)
    entity_type(Plain).set_origin(obj, an_origin())
    address = id(obj)
    assert address in origins._references

    del obj
    gc.collect()

    assert address not in origins._references


# ---------------------------------------------------------------------------------------------
# Validation of the class


def test_evolve_runs_the_validation_of_the_class() -> None:
    @in_staff
    @dataclass
    class Checked:
        dept: str
        id: int
        age: int = 0

        def __post_init__(self) -> None:
            if self.age < 0:
                raise ValueError("too young")

    with pytest.raises(pydantic.ValidationError):
        evolve(AsModel(dept="Sales", id=7), age=-1)
    with pytest.raises(ValueError, match="too young"):
        evolve(Checked(dept="Sales", id=7), age=-1)


def test_stored_values_that_the_class_does_not_accept_are_refused_without_telling_them() -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        entity_type(AsModel).build({"dept": "Sales", "id": 7, "age": -12345})

    assert raised.value.code == "EntityNotAccepted"
    assert "in age" in raised.value.message
    assert "-12345" not in str(raised.value)


def test_a_missing_value_without_default_is_refused() -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        entity_type(Plain).build({"dept": "Sales"})

    assert raised.value.code == "EntityNotAccepted"


def test_aliases_of_arguments_are_used() -> None:
    @in_staff
    class Aliased(pydantic.BaseModel):
        dept: str = pydantic.Field(alias="department")
        id: int
        age: int = pydantic.Field(default=0, validation_alias="years")

    @in_staff
    @attrs.define
    class Private:
        dept: str
        id: int
        _age: int = 0

    values = {"dept": "Sales", "id": 7, "age": 47}
    aliased = entity_type(Aliased).build(values)
    assert entity_type(Aliased).values(aliased) == values
    assert evolve(aliased, age=48).age == 48

    private = entity_type(Private).build({"dept": "Sales", "id": 7, "_age": 47})
    assert private == Private(dept="Sales", id=7, age=47)
    assert entity_type(Private).fields["_age"].property == "Age"


def test_a_model_keeps_its_extra_values_when_it_evolves() -> None:
    @in_staff
    class Open(pydantic.BaseModel, extra="allow"):
        dept: str
        id: int

    obj = Open.model_validate({"dept": "Sales", "id": 7, "note": "x"})

    assert evolve(obj, dept="Marketing").model_extra == {"note": "x"}


def test_an_attribute_that_is_not_an_argument_of_the_class_is_not_a_field() -> None:
    @entity(table="staff", partition="{dept}", row="{id:06d}")
    class Computed:
        kind: ClassVar[str] = "x"
        dept: str
        id: int
        label: str = field(init=False)

        def __post_init__(self) -> None:
            self.label = f"{self.dept} {self.id}"

    assert list(entity_type(Computed).fields) == ["dept", "id"]
    assert evolve(Computed(dept="Sales", id=7), id=8).label == "Sales 8"


def test_default_factories_that_need_the_object_are_left_to_the_class() -> None:
    @in_staff
    @attrs.define
    class Derived:
        dept: str
        id: int
        length: int = attrs.field(init=False, default=0)
        label: str = attrs.field(default=attrs.Factory(lambda self: self.dept, takes_self=True))

    @in_staff
    class DerivedModel(pydantic.BaseModel):
        dept: str
        id: int
        label: str = pydantic.Field(default_factory=lambda values: values["dept"])

    for cls in (Derived, DerivedModel):
        model: EntityType[Any] = entity_type(cls)
        assert list(model.fields) == ["dept", "id", "label"]
        assert not model.fields["label"].has_default
        assert model.build({"dept": "Sales", "id": 7}).label == "Sales"


def test_a_class_of_one_field_or_none_is_taken_apart_as_well() -> None:
    @entity(table="settings", partition="all", row="{name}")
    class Flag:
        name: str

    @entity(table="settings", partition="all", row="one")
    class Single:
        pass

    assert entity_type(Flag).values(Flag(name="x")) == {"name": "x"}
    assert entity_type(Single).values(Single()) == {}


# ---------------------------------------------------------------------------------------------
# Plain classes


def test_a_plain_class_becomes_a_slotted_dataclass_with_keyword_arguments() -> None:
    assert not hasattr(Plain(dept="Sales", id=7), "__dict__")
    assert repr(Plain(dept="Sales", id=7)) == "Plain(dept='Sales', id=7, age=0, tags=[])"
    with pytest.raises(TypeError):
        Plain("Sales", 7)  # type: ignore[call-arg]
    assert dataclasses.is_dataclass(Plain)


def test_fields_without_default_may_follow_fields_with_one() -> None:
    @entity(table="staff", partition="{dept}", row="{id:06d}")
    class Late:
        dept: str = "Sales"
        id: int

    assert Late(id=7).dept == "Sales"


def test_a_plain_class_may_be_frozen() -> None:
    @entity(table="staff", partition="{dept}", row="{id:06d}", frozen=True)
    class Frozen:
        dept: str
        id: int

    frozen = Frozen(dept="Sales", id=7)
    entity_type(Frozen).set_origin(frozen, an_origin())

    assert hash(frozen) == hash(Frozen(dept="Sales", id=7))
    assert entity_type(Frozen).origin(evolve(frozen, id=8)) is not None
    with pytest.raises(dataclasses.FrozenInstanceError):
        frozen.id = 8  # type: ignore[misc]


def test_only_a_plain_class_is_frozen_by_entity() -> None:
    frozen = entity(table="staff", partition="{dept}", row="{id:06d}", frozen=True)

    assert frozen(AsFrozenDataclass) is AsFrozenDataclass
    for cls in (AsDataclass, AsStruct, AsModel, AsAttrs):
        with pytest.raises(DefinitionError, match="frozen= applies to plain classes only"):
            frozen(cls)


def test_super_works_in_the_methods_of_a_plain_class() -> None:
    class Named:
        def label(self) -> str:
            return "a"

        @property
        def title(self) -> str:
            return "b"

        @classmethod
        def kind(cls) -> str:
            return "c"

    @entity(table="staff", partition="{dept}", row="{id:06d}")
    class Person(Named):
        dept: str
        id: int

        def label(self) -> str:
            return super().label() + "!"

        @property
        def title(self) -> str:
            return super().title + "!"

        @classmethod
        def kind(cls) -> str:
            return super().kind() + "!"

        def own_class(self) -> object:
            return __class__  # type: ignore[name-defined]

    person = Person(dept="Sales", id=7)

    assert (person.label(), person.title, person.kind()) == ("a!", "b!", "c!")
    assert person.own_class() is Person


def test_a_plain_class_may_be_derived_from_plain_classes_with_a_place_for_attributes() -> None:
    class Mixin:
        @cached_property
        def slow(self) -> int:
            return 7

    @entity(table="staff", partition="{dept}", row="{id:06d}")
    class Person(Mixin):
        dept: str
        id: int

    person = Person(dept="Sales", id=7)
    entity_type(Person).set_origin(person, an_origin())

    assert person.slow == 7
    assert entity_type(Person).origin(person) is not None


def test_annotations_may_be_text_even_in_a_function() -> None:
    class Local(msgspec.Struct):
        x: int

    @in_staff
    class Person:
        dept: "str"
        id: "int"
        place: "Local | None" = None
        salary: "Annotated[int | None, Encrypted]" = None

    fields = entity_type(Person).fields

    assert fields["place"].codec.encode(Local(1)) == '{"x":1}'
    assert fields["salary"].is_encrypted


# ---------------------------------------------------------------------------------------------
# Refusals


def _slotted_dataclass() -> object:
    @dataclass(slots=True)
    class Refused:
        dept: str
        id: int

    return Refused


def _bare_struct() -> object:
    class Refused(msgspec.Struct):
        dept: str
        id: int

    return Refused


def _slotted_attrs() -> object:
    @attrs.define(weakref_slot=False)
    class Refused:
        dept: str
        id: int

    return Refused


def _own_init() -> object:
    class Refused:
        dept: str
        id: int

        def __init__(self) -> None: ...

    return Refused


def _own_slots() -> object:
    class Refused:
        __slots__ = ("dept", "id")
        dept: str
        id: int

    return Refused


def _named_tuple() -> object:
    class Refused(NamedTuple):
        dept: str
        id: int

    return Refused


def _typed_dict() -> object:
    class Refused(TypedDict):
        dept: str
        id: int

    return Refused


def _child_of_attrs() -> object:
    class Refused(AsAttrs):
        pass

    return Refused


def _mutable_default() -> object:
    class Refused:
        dept: str
        id: int
        tags: list[str] = []  # noqa: RUF012 - what is refused

    return Refused


def _init_var() -> object:
    @dataclass
    class Refused:
        dept: str
        id: int
        seed: InitVar[int] = 0

    return Refused


def _alias_path() -> object:
    class Refused(pydantic.BaseModel):
        dept: str = pydantic.Field(validation_alias=pydantic.AliasPath("a", 0))
        id: int

    return Refused


def _attrs_without_annotation() -> object:
    return attrs.make_class("Refused", ["dept", "id"])


@pytest.mark.parametrize(
    ("make", "reason", "hint"),
    [
        (_slotted_dataclass, "neither weak references", "weakref_slot=True"),
        (_bare_struct, "neither weak references", "weakref=True"),
        (_slotted_attrs, "neither weak references", "weakref_slot=False"),
        (_own_init, "defines __init__", "@dataclass"),
        (_own_slots, "defines __slots__", "@dataclass"),
        (_named_tuple, "derived from tuple", "a plain class"),
        (_typed_dict, "derived from dict", "a plain class"),
        (_child_of_attrs, "derived from AsAttrs", "a plain class"),
        (_mutable_default, "mutable default", "default_factory"),
        (_init_var, "InitVar", "Make it a field"),
        (_alias_path, "compound alias", "plain string alias"),
        (_attrs_without_annotation, "no annotation", "Annotate"),
        (lambda: "Refused", "Only a class", "to a class"),
    ],
)
def test_a_class_that_cannot_be_an_entity_is_refused_with_a_way_out(
    make: Callable[[], Any], reason: str, hint: str
) -> None:
    cls = make()

    with pytest.raises(DefinitionError) as raised:
        in_staff(cls)

    assert raised.value.code == "ClassRefused"
    assert reason in raised.value.message
    assert hint in str(raised.value)


def test_an_annotation_that_cannot_be_resolved_is_refused() -> None:
    class Refused:
        dept: "str"
        id: "Missing"  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(DefinitionError) as raised:
        in_staff(Refused)

    assert raised.value.code == "AnnotationUnresolved"
    assert "'Missing'" in raised.value.message


def test_a_decorator_above_that_makes_another_class_is_told() -> None:
    @attrs.define
    @in_staff
    class Wrong:
        dept: str
        id: int

    with pytest.raises(DefinitionError, match="above every other decorator"):
        entity_type(Wrong)


def test_a_class_that_is_not_an_entity_is_reported() -> None:
    class Child(Plain):
        pass

    for cls in (Child, int):
        with pytest.raises(DefinitionError) as raised:
            entity_type(cls)
        assert raised.value.code == "NotAnEntity"


def test_the_type_of_an_entity_class_is_one_object() -> None:
    assert isinstance(entity_type(Plain), EntityType)
    assert entity_type(Plain) is entity_type(Plain)
