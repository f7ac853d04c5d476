import datetime as dt
import doctest
import enum
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, NewType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from partita.errors import DefinitionError, NewerVersionError, SchemaError
from partita.patterns.fields import codecs, naming
from partita.patterns.fields.markers import (
    CopiedFrom,
    CountOf,
    Encrypted,
    EncryptedMark,
    InBlob,
    Named,
    Series,
)
from partita.patterns.fields.naming import pascal_case, same_name, snake_case
from partita.patterns.protocol.values import RowKey
from partita.patterns.types import decorators as model
from partita.patterns.types.decorators import entity, entity_type, evolve, upcast
from partita.patterns.types.entity_types import EntityType
from partita.patterns.types.row_layout import ROW_PROPERTIES, ROWS_MAX


class Grade(enum.StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="staff", partition="{name}", row="dept")
class Department:
    name: str
    manager_id: int
    manager_email: Annotated[
        str | None, CopiedFrom("Employee", "email", where={"dept": "name", "id": "manager_id"})
    ] = None
    headcount: Annotated[int, CountOf("Employee", where={"dept": "name"})] = 0


@entity(table="staff", partition="{dept}", row="emp_{id:06d}", version=2)
class Employee:
    dept: str
    id: int
    first: str
    last: str
    email: str
    age: int = 0
    grade: Grade = Grade.JUNIOR
    salary: Annotated[int | None, Encrypted] = None
    photo: Annotated[bytes | None, InBlob] = None
    messages: Annotated[dict[int, int], Series("m{:03d}", slots=365)] = field(default_factory=dict)


@upcast(Employee, from_version=1)
def split_name(old: dict[str, Any]) -> dict[str, Any]:
    first, _, last = old.pop("name").partition(" ")
    return old | {"first": first, "last": last}


def declared(fields: dict[str, Any], **options: Any) -> EntityType[Any]:
    """Declare a type with these annotations besides `dept` and `id`."""
    cls = type("Declared", (), {"__annotations__": {"dept": str, "id": int, **fields}})
    given: dict[str, Any] = {"table": "staff", "partition": "{dept}", "row": "{id:06d}"}
    return entity_type(entity(**{**given, **options})(cls))


def refusal_of(fields: dict[str, Any], **options: Any) -> DefinitionError:
    with pytest.raises(DefinitionError) as raised:
        declared(fields, **options)
    return raised.value


# ---------------------------------------------------------------------------------------------
# The example of the guide


def test_a_type_knows_its_table_keys_fields_and_marks() -> None:
    found = entity_type(Employee)

    assert (found.name, found.table, found.version) == ("Employee", "staff", 2)
    assert found.key({"dept": "Sales", "id": 123}) == RowKey("Sales", "emp_000123")
    assert found.key_fields == ("dept", "id")
    assert [each.name for each in found.fields.values() if each.is_key] == ["dept", "id"]
    assert found.sealed_properties == {"Salary"}
    assert found.fields["photo"].is_in_blob
    assert found.fields["photo"].blob == InBlob
    assert found.fields["messages"].slot_names[17] == "m017"
    assert found.fields["messages"].codec.edm == "Edm.Int64"
    assert found.fields["email"].property == "Email"
    assert found.fields["salary"].annotation == int | None
    assert found.type_property == "EntityType"
    assert not found.followers.is_plain


def test_a_type_with_more_properties_than_a_row_takes_is_wide() -> None:
    assert entity_type(Employee).is_wide
    assert entity_type(Employee).layout.rows == 2
    assert not entity_type(Department).is_wide


def test_plain_fields_may_need_further_rows_too() -> None:
    found = declared({f"f{number}": int | None for number in range(300)})

    assert found.layout.rows == 2


def test_a_wide_type_has_no_tilde_in_its_row_keys() -> None:
    refused = refusal_of(
        {"days": Annotated[dict[int, int], Series("d{:03d}", slots=365)]}, row="a~{id:06d}"
    )

    assert refused.code == "TemplateReserved"


def test_derived_fields_find_their_source_that_is_defined_later() -> None:
    found = entity_type(Employee)

    assert [(each.owner, each.field.name) for each in found.followers.dependents] == [
        (entity_type(Department), "manager_email"),
        (entity_type(Department), "headcount"),
    ]
    headcount = entity_type(Department).fields["headcount"]
    assert entity_type(Department).source_of(headcount) is found
    assert set(entity_type(Department).related()) == {found, entity_type(Department)}
    assert entity_type(Department) in set(found.related())


def test_a_plain_type_is_one_row_that_nothing_follows() -> None:
    assert declared({"age": int}).followers.is_plain


def test_options_are_kept_as_they_were_given() -> None:
    def resolver(partition: str, row: str, name: str) -> bool:
        return name == "Age"

    found = declared(
        {"age": int}, encrypt=resolver, access=["by age"], allow_hot=True, name="Person"
    )

    assert found.encrypt is resolver
    assert found.access == ["by age"]
    assert found.allow_hot
    assert found.name == "Person"


# ---------------------------------------------------------------------------------------------
# Names of properties


@pytest.mark.parametrize(
    ("name", "property_name"),
    [("age", "Age"), ("manager_id", "ManagerId"), ("line_2", "Line2"), ("class_", "Class")],
)
def test_fields_are_stored_under_names_in_pascal_case(name: str, property_name: str) -> None:
    assert declared({name: int}).fields[name].property == property_name


def test_another_name_or_policy_is_taken() -> None:
    found = declared({"age": Annotated[int, Named("years")], "e_mail": str}, naming=same_name)

    assert found.fields["age"].property == "years"
    assert found.fields["e_mail"].property == "e_mail"


@given(st.lists(st.text("abcdefgh", min_size=2), min_size=1).map("_".join))
def test_names_of_words_come_back_from_pascal_case(name: str) -> None:
    assert snake_case(pascal_case(name)) == name


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"row_key": str}, "property of the service"),
        ({"timestamp": dt.datetime}, "property of the service"),
        ({"partition_key": str}, "property of the service"),
        ({"entity_type": str}, "property of the library"),
        ({"entity_version": int}, "property of the library"),
        ({"age": Annotated[int, Named("_Age")]}, "begins with '_'"),
        ({"age": Annotated[int, Named("_PartitaEnc")]}, "begins with '_'"),
        ({"age": Annotated[int, Named("Manager Rating")]}, "not a valid property name"),
        ({"age": Annotated[int, Named("")]}, "not a valid property name"),
        ({"age": Annotated[int, Named("a" * 256)]}, "not a valid property name"),
        ({"first_name": str, "firstName": str}, ""),
        ({"age": int, "years": Annotated[int, Named("Age")]}, "also the property of 'age'"),
        ({"h01": Annotated[int, Named("h01")],
          "hours": Annotated[dict[int, int], Series("h{:02d}", slots=24)]},
         "also the property of 'h01'"),
        ({"one": Annotated[dict[int, int], Series("h{:02d}", slots=24)],
          "other": Annotated[dict[int, int], Series("h{:d}", slots=24)]},
         "also the property of 'one'"),
        ({"hours": Annotated[dict[int, int], Series("h {:02d}", slots=24)]},
         "not a valid property name"),
        ({"hours": Annotated[dict[int, int], Series("{:02d}", slots=24)]},
         "not a valid property name"),
    ],
)  # fmt: skip
def test_a_property_name_that_cannot_be_is_refused(fields: dict[str, Any], reason: str) -> None:
    refused = refusal_of(fields)

    assert refused.code == "PropertyNameRefused"
    assert reason in refused.message
    assert refused.hint


def test_the_name_of_a_key_field_is_free() -> None:
    found = declared({"row_key": str}, row="{row_key}")

    assert found.fields["row_key"].property_names == ()


# ---------------------------------------------------------------------------------------------
# Refused fields


@pytest.mark.parametrize(
    ("fields", "options", "reason"),
    [
        ({"id": int | None}, {}, "cannot be None"),
        ({"id": Annotated[int, Encrypted]}, {}, "Keys are never encrypted"),
        ({"id": Annotated[int, Named("Number")]}, {}, "not a property"),
        ({"id": Annotated[str, InBlob]}, {}, "outside the entity"),
        ({"id": Annotated[dict[int, int], Series("h{}", slots=2)]}, {}, "outside the entity"),
        (
            {"id": Annotated[int, CountOf("Employee", where={"dept": "dept"})]},
            {},
            "cannot be derived",
        ),
        ({"a": Annotated[bytes, InBlob, Encrypted]}, {}, "hash of its content"),
        ({"a": Annotated[dict[int, int], Series("h{}", slots=2), Encrypted]}, {}, "cannot encrypt"),
        (
            {"a": Annotated[dict[int, int], Series("h{}", slots=2), InBlob]},
            {},
            "Series and InBlob cannot be combined",
        ),
        (
            {"a": Annotated[int, CountOf("X", where={"a": "dept"}), Encrypted]},
            {},
            "stored unencrypted in its source",
        ),
        ({"a": Annotated[int, Encrypted, Encrypted]}, {}, "two markers"),
        ({"a": Annotated[int, Named("A"), Named("B")]}, {}, "two markers"),
        ({"a": Annotated[int, EncryptedMark]}, {}, "class of a marker"),
        ({"a": list[Annotated[str, Encrypted]]}, {}, "inside the type"),
        ({"a": Annotated[int, InBlob]}, {}, "Only bytes, text and nested values"),
        ({"a": Annotated[bytes, InBlob("No_Container")]}, {}, "not a valid container name"),
        ({"a": Annotated[bytes, InBlob("no")]}, {}, "not a valid container name"),
        ({"a": Annotated[list[int], Series("h{}", slots=2)]}, {}, "dict from slot"),
        ({"a": Annotated[dict[str, int], Series("h{}", slots=2)]}, {}, "dict from slot"),
        ({"a": Annotated[dict[int, int] | None, Series("h{}", slots=2)]}, {}, "dict from slot"),
        ({"a": Annotated[dict[int, int | None], Series("h{}", slots=2)]}, {}, "hold None"),
        ({"a": Annotated[dict[int, int], Series("h{}", slots=0)]}, {}, "1 to 5000 slots"),
        ({"a": Annotated[dict[int, int], Series("h{}", slots=5001)]}, {}, "1 to 5000 slots"),
        ({"a": Annotated[dict[int, int], Series("h{}", 1, first=-1)]}, {}, "numbered from 0"),
        ({"a": Annotated[dict[int, int], Series("hour", slots=2)]}, {}, "two slots the same name"),
        ({"a": Annotated[dict[int, int], Series("h{:q}", slots=2)]}, {}, "cannot be formatted"),
        ({"a": Annotated[dict[int, int], Series("h{}{}", slots=2)]}, {}, "cannot be formatted"),
        ({"a": Annotated[dict[int, int], Series("h{x}", slots=2)]}, {}, "cannot be formatted"),
        ({"a": Annotated[str, CountOf("X", where={"a": "dept"})]}, {}, "A count must be an int"),
    ],
)
def test_a_field_that_cannot_work_is_refused_with_a_way_out(
    fields: dict[str, Any], options: dict[str, Any], reason: str
) -> None:
    refused = refusal_of(fields, **options)

    assert refused.code == "FieldRefused"
    assert reason in refused.message
    assert refused.message.startswith("Declared.")
    assert refused.hint


def test_a_field_of_a_type_that_cannot_be_stored_is_refused() -> None:
    refused = refusal_of({"anything": Any})

    assert refused.code == "FieldTypeRefused"
    assert refused.facts == {"field": "Declared.anything"}


def test_a_marker_beside_none_counts() -> None:
    found = declared({"salary": Annotated[int, Encrypted] | None})

    assert found.fields["salary"].is_encrypted
    assert found.fields["salary"].codec.is_optional


Secret = NewType("Secret", Annotated[str, Encrypted])


def test_a_marker_behind_a_new_type_or_an_alias_counts() -> None:
    alias = TypeAliasType("alias", Annotated[str, Encrypted])
    found = declared({"one": Secret, "two": alias, "three": Secret | None, "four": alias | None})

    assert all(found.fields[name].is_encrypted for name in ("one", "two", "three", "four"))
    for nested in (list[Secret], list[alias], dict[str, list[Secret]]):
        assert "inside the type" in refusal_of({"five": nested}).message


def test_a_series_may_lie_in_a_blob_as_a_whole() -> None:
    series = Series("m{:04d}", slots=5000, store="blob")
    found = declared({"messages": Annotated[dict[int, int], series]}).fields["messages"]

    assert found.is_in_blob
    assert found.property_names == ("Messages",)
    assert found.codec.encode({17: 1}) == '{"17":1}'
    assert found.codec.decode('{"17":1}') == {17: 1}


def test_a_value_in_a_blob_has_no_limit() -> None:
    found = declared({"photo": Annotated[bytes, InBlob("photos")]}).fields["photo"]

    assert found.blob is not None
    assert found.blob.container == "photos"
    assert found.codec.encode(bytes(100_000)) == bytes(100_000)


def test_a_single_row_has_252_properties_at_most() -> None:
    full: dict[str, Any] = {"days": Annotated[dict[int, int], Series("d{}", slots=252, first=1)]}
    more = full | {"name": str}

    assert declared(full, single_row=True).layout.rows == 1
    assert refusal_of(more, single_row=True).code == "EntityTooWide"


def test_more_rows_than_a_group_writes_are_refused() -> None:
    enough = ROW_PROPERTIES * ROWS_MAX
    series = {
        f"s{number}": Annotated[dict[int, int], Series(f"s{number}_{{}}", slots=5000)]
        for number in range(enough // 5000 + 1)
    }

    refused = refusal_of(series)

    assert refused.code == "EntityTooWide"
    assert "blob" in refused.hint


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table": "a"}, "not a valid table name"),
        ({"table": "my-table"}, "not a valid table name"),
        ({"table": "Tables"}, "not a valid table name"),
        ({"version": 0}, "start at 1"),
        ({"name": "Emp@x"}, "'@' or '~'"),
        ({"type_property": "the type"}, "not a valid type_property"),
        ({"type_property": "RowKey"}, "not a valid type_property"),
        ({"type_property": "_Type"}, "not a valid type_property"),
        ({"table": None}, "table= is missing"),
        ({"row": None}, "row= is missing"),
    ],
)
def test_options_that_cannot_work_are_refused(options: dict[str, Any], reason: str) -> None:
    refused = refusal_of({}, **options)

    assert refused.code == "EntityRefused"
    assert reason in refused.message
    assert refused.hint


@pytest.mark.parametrize(
    "options",
    [{"row": "{number}"}, {"row": "{id:q}"}, {"row": "{id"}, {"partition": "{dept:hash16}"}],
)
def test_templates_are_proven_at_definition(options: dict[str, Any]) -> None:
    assert refusal_of({}, **options).code.startswith("Template")


# ---------------------------------------------------------------------------------------------
# Derived fields


def test_a_source_may_be_given_as_a_class() -> None:
    @entity(table="staff", partition="{dept}", row="sum")
    class Summary:
        dept: str
        count: Annotated[int, CountOf(Employee, where={"dept": "dept"})] = 0

    try:
        assert entity_type(Employee).dependents[-1].owner is entity_type(Summary)
        assert entity_type(Summary).source_of(entity_type(Summary).fields["count"]) is entity_type(
            Employee
        )
    finally:
        entity_type(Employee).declare(dependents=entity_type(Employee).dependents[:-1])


def test_a_source_that_is_defined_first_is_found_in_its_scope() -> None:
    @entity(table="staff", partition="{dept}", row="{id:06d}")
    class Member:
        dept: str
        id: int

    @entity(table="staff", partition="{dept}", row="sum")
    class Summary:
        dept: str
        count: Annotated[int, CountOf("Member", where={"dept": "dept"})] = 0

    assert [each.owner for each in entity_type(Member).dependents] == [entity_type(Summary)]


def test_definitions_that_are_run_again_take_the_place_of_the_old_ones() -> None:
    def define() -> tuple[EntityType[Any], EntityType[Any]]:
        @entity(table="staff", partition="{dept}", row="sum")
        class Summary:
            dept: str
            count: Annotated[int, CountOf("Member", where={"dept": "dept"})] = 0

        @entity(table="staff", partition="{dept}", row="{id:06d}")
        class Member:
            dept: str
            id: int

        return entity_type(Member), entity_type(Summary)

    first_member, first_summary = define()
    assert [each.owner for each in first_member.dependents] == [first_summary]
    member, summary = define()

    assert [each.owner for each in member.dependents] == [summary]
    assert summary.sources == {"count": member}


def test_a_source_that_never_comes_is_missed_when_it_is_needed() -> None:
    found = declared({"count": Annotated[int, CountOf("Nobody", where={"x": "dept"})]})

    with pytest.raises(DefinitionError) as raised:
        found.source_of(found.fields["count"])

    assert raised.value.code == "SourceMissing"
    assert "'Nobody'" in raised.value.message


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Annotated[int, CountOf(Employee, where={})], "where= is empty"),
        (Annotated[int, CountOf(Employee, where={"team": "dept"})], "no field 'team'"),
        (Annotated[int, CountOf(Employee, where={"dept": "team"})], "no field 'team'"),
        (Annotated[int, CountOf(Employee, where={"age": "dept"})], "differ in type"),
        (
            Annotated[int, CountOf(Employee, where={"dept": "dept"})],
            "identify one Declared: it lacks id",
        ),
        (Annotated[int, CountOf(Employee, where={"salary": "id"})], "is encrypted"),
        (
            Annotated[str, CopiedFrom(Employee, "email", where={"dept": "dept", "id": "id"})],
            "The source may not exist",
        ),
        (
            Annotated[int | None, CopiedFrom(Employee, "last", where={"dept": "dept", "id": "id"})],
            "differs in type from Employee.last",
        ),
        (
            Annotated[str | None, CopiedFrom(Employee, "mail", where={"dept": "dept", "id": "id"})],
            "no field 'mail'",
        ),
        (
            Annotated[str | None, CopiedFrom(Employee, "email", where={"dept": "dept"})],
            "identify one Employee: it lacks id",
        ),
        (
            Annotated[
                int | None, CopiedFrom(Employee, "salary", where={"dept": "dept", "id": "id"})
            ],
            "is encrypted",
        ),
    ],
)
def test_a_derived_field_that_cannot_be_kept_is_refused(annotation: Any, reason: str) -> None:
    before = entity_type(Employee).dependents

    refused = refusal_of({"derived": annotation})

    assert refused.code == "DerivedRefused"
    assert reason in refused.message
    assert refused.hint
    assert entity_type(Employee).dependents == before


def test_a_count_that_would_read_a_whole_table_is_refused_when_it_is_declared() -> None:
    @entity(table="zoo", partition="{park}_{year:04d}", row="animal_{id:04d}")
    class Animal:
        park: int
        year: int
        id: int
        dept: str = ""

    counted = Annotated[int, CountOf(Animal, where={"dept": "dept"})]
    refused = refusal_of({"animals": counted}, row="all")

    assert refused.code == "DerivedRefused"
    assert "would read the whole table of Animal: 'park' of its partition key" in refused.message
    assert "Map park, year to a field of " in refused.hint
    assert entity_type(Animal).dependents == ()


def test_a_count_over_partitions_that_a_hash_numbers_is_not_refused() -> None:
    @entity(table="zoo", partition="{id:hash16}", row="animal_{id:04d}")
    class Animal:
        id: int
        dept: str = ""

    counted = Annotated[int, CountOf(Animal, where={"dept": "dept"})]

    assert declared({"animals": counted}, row="all").sources == {"animals": entity_type(Animal)}


def test_a_field_is_not_copied_from_a_type_below_which_another_has_keys_of_its_own() -> None:
    @entity(table="zoo", partition="{park}", row="animal_{id:04d}")
    class Animal:
        park: str
        id: int
        name: str = ""

    @entity(row="bird_{id:04d}")
    class Bird(Animal):
        wings: int = 2

    refused = refusal_of(
        {
            "name": Annotated[
                str | None, CopiedFrom(Animal, "name", where={"park": "dept", "id": "id"})
            ]
        }
    )

    assert refused.code == "DerivedRefused"
    assert "Bird is derived from Animal and has its own keys" in refused.message
    assert "Copy from Bird, or" in refused.hint
    assert entity_type(Animal).dependents == ()
    copied = Annotated[str | None, CopiedFrom(Bird, "name", where={"park": "dept", "id": "id"})]
    assert declared({"name": copied}).sources == {"name": entity_type(Bird)}
    counted = Annotated[int, CountOf(Animal, where={"park": "dept", "id": "id"})]
    assert declared({"count": counted}).sources == {"count": entity_type(Animal)}


def test_a_type_with_keys_of_its_own_is_not_derived_from_one_that_is_copied_from() -> None:
    @entity(table="zoo", partition="{park}", row="animal_{id:04d}")
    class Animal:
        park: str
        id: int
        name: str = ""

    copied = Annotated[str | None, CopiedFrom(Animal, "name", where={"park": "dept", "id": "id"})]
    declared({"name": copied})

    @entity()
    class Bird(Animal):
        wings: int = 2

    with pytest.raises(DefinitionError) as raised:

        @entity(row="eagle_{id:04d}")
        class Eagle(Bird):
            span: int = 2

    assert raised.value.code == "DerivedRefused"
    assert "Eagle" in raised.value.message
    assert [each.name for each in entity_type(Animal).family()] == ["Animal", "Bird"]


def test_a_source_that_is_not_an_entity_is_refused() -> None:
    marker = CountOf(dict, where={"dept": "dept"})

    assert refusal_of({"count": Annotated[int, marker]}).code == "NotAnEntity"


# ---------------------------------------------------------------------------------------------
# Versions


def test_an_upcaster_sees_stored_properties_by_the_names_of_fields() -> None:
    seen: dict[str, Any] = {}
    hours = Annotated[dict[int, int], Series("h{}", slots=3)]
    found = declared({"first_name": str, "hours": hours}, version=2)

    @upcast(found.cls, from_version=1)
    def step(old: dict[str, Any]) -> dict[str, Any]:
        seen.update(old)
        return {**old, "first_name": old.pop("full_name")}

    upcast_properties = found.upcast(
        {"FullName": "Jun", "HTTPStatus": 7, "h1": 5, "Dept": "a property"},
        {"dept": "Sales", "id": 7},
        1,
    )

    assert seen == {
        "full_name": "Jun",
        "http_status": 7,
        "h1": 5,
        "Dept": "a property",
        "dept": "Sales",
        "id": 7,
    }
    assert upcast_properties == {
        "FirstName": "Jun",
        "FullName": "Jun",
        "HTTPStatus": 7,
        "h1": 5,
        "Dept": "a property",
    }


def test_upcasters_run_in_order_up_to_the_current_version() -> None:
    found = declared({"age": int}, version=3)
    upcast(found.cls, from_version=2)(lambda old: {**old, "age": old["age"] + 1})
    upcast(found.cls, from_version=1)(lambda old: {**old, "age": old["age"] * 10})
    keys = {"dept": "Sales", "id": 7}

    assert found.upcast({"Age": 4}, keys, 1) == {"Age": 41}
    assert found.upcast({"Age": 4}, keys, 2) == {"Age": 5}
    assert found.upcast({"Age": 4}, keys, 3) == {"Age": 4}


def test_an_upcaster_may_give_values_as_the_class_has_them() -> None:
    found = declared({"grade": Grade, "amount": Decimal, "tags": list[str], "gone": int | None,
                      "at": dt.datetime}, version=2)  # fmt: skip
    moment = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    new = {
        "grade": Grade.SENIOR,
        "amount": Decimal("9.50"),
        "tags": ["a"],
        "gone": None,
        "at": moment,
    }
    upcast(found.cls, from_version=1)(lambda old: {**old, **new})

    upcast_properties = found.upcast({"Gone": 7}, {"dept": "Sales", "id": 7}, 1)

    assert upcast_properties == {"Grade": "s", "Amount": "9.5", "Tags": '["a"]', "At": moment}
    assert type(upcast_properties["Grade"]) is str


def test_an_upcaster_cannot_spoil_what_was_read() -> None:
    found = declared({"age": int}, version=2)
    upcast(found.cls, from_version=1)(lambda old: {**old, "age": old.pop("age")})
    properties = {"Age": 7}

    found.upcast(properties, {"dept": "Sales", "id": 7}, 1)

    assert properties == {"Age": 7}


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda old: {**old, "id": 8}, "UpcasterChangedKey"),
        (lambda old: {"age": 1}, "UpcasterChangedKey"),
        (lambda old: {**old, "unknown": [1]}, "UpcasterUnknownField"),
    ],
)
def test_what_an_upcaster_must_not_return_is_refused(
    function: Callable[[dict[str, Any]], dict[str, Any]], code: str
) -> None:
    found = declared({"age": int}, version=2)
    upcast(found.cls, from_version=1)(function)

    with pytest.raises(SchemaError) as raised:
        found.upcast({"Age": 7}, {"dept": "Sales", "id": 7}, 1)

    assert raised.value.code == code


def test_a_hole_in_the_chain_of_upcasters_is_refused() -> None:
    found = declared({}, version=4)
    upcast(found.cls, from_version=1)(lambda old: old)
    upcast(found.cls, from_version=3)(lambda old: old)

    with pytest.raises(DefinitionError, match="from_version=2"):
        found.check_upcasters()
    upcast(found.cls, from_version=2)(lambda old: old)
    found.check_upcasters()


def test_an_old_entity_without_upcaster_is_refused() -> None:
    with pytest.raises(SchemaError) as raised:
        declared({}, version=2).upcast({}, {"dept": "Sales", "id": 7}, 1)

    assert raised.value.code == "UpcasterMissing"


def test_a_newer_entity_is_refused() -> None:
    with pytest.raises(NewerVersionError):
        declared({}).upcast({}, {"dept": "Sales", "id": 7}, 2)


@pytest.mark.parametrize("version", [0, 2, 3])
def test_an_upcaster_from_a_version_that_is_not_older_is_refused(version: int) -> None:
    found = declared({}, version=2)

    with pytest.raises(DefinitionError) as raised:
        upcast(found.cls, from_version=version)(lambda old: old)

    assert raised.value.code == "UpcasterRefused"


def test_a_second_upcaster_from_one_version_is_refused() -> None:
    with pytest.raises(DefinitionError) as raised:
        upcast(Employee, from_version=1)(lambda old: old)

    assert raised.value.code == "UpcasterRefused"


# ---------------------------------------------------------------------------------------------
# Inheritance


@entity(table="people", partition="{dept}", row="{id:06d}", abstract=True, naming=same_name)
class Person:
    dept: str
    id: int
    name: str = ""


@entity()
class Clerk(Person):
    desk: int = 0


@entity(row="boss_{id:06d}", name="Boss")
class Manager(Clerk):
    reports: Annotated[int | None, Named("Reports")] = None


def test_a_child_takes_over_what_it_does_not_give() -> None:
    found = entity_type(Clerk)

    assert found.table == "people"
    assert found.key({"dept": "Sales", "id": 7}) == RowKey("Sales", "000007")
    assert found.fields["name"].property == "name"
    assert list(found.fields) == ["dept", "id", "name", "desk"]
    assert not found.is_abstract
    assert entity_type(Person).is_abstract


def test_a_child_may_have_its_own_keys_and_name() -> None:
    found = entity_type(Manager)

    assert found.key({"dept": "Sales", "id": 7}) == RowKey("Sales", "boss_000007")
    assert found.name == "Boss"
    assert found.table == "people"


def test_a_family_is_known_from_above_and_from_below() -> None:
    person, clerk, manager = entity_type(Person), entity_type(Clerk), entity_type(Manager)

    assert list(person.family()) == [person, clerk, manager]
    assert list(manager.lineage()) == [manager, clerk, person]
    assert manager.parent is clerk
    assert set(clerk.related()) == {person, clerk, manager}


def test_objects_of_a_child_are_made_and_evolve_as_such() -> None:
    boss = Manager(dept="Sales", id=7, reports=3)

    assert evolve(boss, desk=4) == Manager(dept="Sales", id=7, desk=4, reports=3)
    assert isinstance(boss, Person)


def test_indexes_views_and_watchers_of_a_parent_are_those_of_its_children() -> None:
    @entity(table="people", partition="{dept}", row="{id:06d}")
    class Parent:
        dept: str
        id: int

    @entity()
    class Child(Parent):
        pass

    above, below = entity_type(Parent), entity_type(Child)
    assert below.followers.is_plain
    above.declare(indexes=["an index"], views=["a view"])

    assert below.followers.indexes == ("an index",)
    assert below.followers.views == ("a view",)
    assert not below.followers.is_plain


def test_every_kind_of_class_can_be_a_parent() -> None:
    @entity(table="people", partition="{dept}", row="{id:06d}")
    @dataclass(frozen=True)
    class Frozen:
        dept: str
        id: int

    @entity(frozen=True)
    class Child(Frozen):
        age: int = 0

    @entity(table="people", partition="{dept}", row="{id:06d}")
    class Struct(msgspec.Struct, weakref=True):
        dept: str
        id: int

    @entity()
    class StructChild(Struct):
        age: int = 0

    assert hash(Child(dept="Sales", id=7)) == hash(Child(dept="Sales", id=7))
    assert evolve(StructChild(dept="Sales", id=7), age=4).age == 4


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"table": "others"}, "is in the table 'people'"),
        ({"name": "Person"}, "the same name as Person"),
        ({"type_property": None}, "Without a type property"),
    ],
)
def test_a_child_that_could_not_be_told_apart_is_refused(
    options: dict[str, Any], reason: str
) -> None:
    cls = type("Stranger", (Person,), {})

    with pytest.raises(DefinitionError) as raised:
        entity(**options)(cls)

    assert raised.value.code == "EntityRefused"
    assert reason in raised.value.message


# ---------------------------------------------------------------------------------------------
# For readers and users


@pytest.mark.parametrize("module", [model, codecs, naming])
def test_the_examples_in_the_docstrings_run(module: ModuleType) -> None:
    failed, attempted = doctest.testmod(module)

    assert failed == 0
    assert attempted > 0


def test_a_type_prints_its_name_and_table() -> None:
    assert repr(entity_type(Employee)) == "<entity type Employee of table staff>"


USER_MODULE = """
from dataclasses import dataclass, field
from typing import Annotated, Any

import attrs
import msgspec
import pydantic

from partita.patterns.fields.markers import Encrypted, InBlob, Series
from partita.patterns.types.decorators import entity, entity_type, evolve, upcast


@entity(table="staff", partition="{dept}", row="{id:06d}", version=2)
class Plain:
    dept: str
    salary: Annotated[int | None, Encrypted] = None
    photo: Annotated[bytes | None, InBlob] = None
    messages: Annotated[dict[int, int], Series("m{:03d}", slots=9)] = field(default_factory=dict)
    id: int


@upcast(Plain, from_version=1)
def rename(old: dict[str, Any]) -> dict[str, Any]:
    return old


@entity()
class Child(Plain):
    desk: int


@entity(table="staff", partition="{dept}", row="{id:06d}")
@dataclass(frozen=True)
class Frozen:
    dept: str
    id: int


@entity(table="staff", partition="{dept}", row="{id:06d}")
class Struct(msgspec.Struct, weakref=True):
    dept: str
    id: int


@entity(table="staff", partition="{dept}", row="{id:06d}")
class Model(pydantic.BaseModel):
    dept: str
    id: int


@entity(table="staff", partition="{dept}", row="{id:06d}")
@attrs.define
class Attrs:
    dept: str
    id: int


plain: Plain = evolve(Plain(dept="Sales", id=7), salary=70_000)
child: Child = Child(dept="Sales", id=7, desk=1)
others = (Frozen("Sales", 7), Struct("Sales", 7), Model(dept="Sales", id=7), Attrs("Sales", 7))
found: Plain = entity_type(Plain).build({"dept": "Sales", "id": 7})
"""

WRONG_MODULE = (
    USER_MODULE
    + """
Plain(dept="Sales")
Plain(dept="Sales", id="7")
Child(dept="Sales", id=7)
wrong: Child = evolve(plain)
"""
)


def test_users_pass_the_type_checker_without_a_plug_in_and_are_told_of_mistakes(
    tmp_path: Path,
) -> None:
    (tmp_path / "right.py").write_text(USER_MODULE)
    (tmp_path / "wrong.py").write_text(WRONG_MODULE)

    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "right.py", "wrong.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    lines = checked.stdout.splitlines()
    wrong_at = USER_MODULE.count("\n") + 2
    assert not [line for line in lines if line.startswith("right.py")], checked.stdout
    assert [int(line.split(":")[1]) for line in lines if ": error:" in line] == [
        wrong_at,
        wrong_at + 1,
        wrong_at + 2,
        wrong_at + 3,
    ]


WRITE_PLAIN = "import pickle, sys, user; sys.stdout.buffer.write(pickle.dumps(user.plain))"


def test_a_module_of_a_user_means_the_same_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(USER_MODULE)
    code = (
        "import pickle, sys, user\n"
        "from partita.patterns.types.decorators import entity_type\n"
        "found = pickle.loads(sys.stdin.buffer.read())\n"
        "assert found == user.plain and type(found) is user.Plain\n"
        "print(entity_type(user.Plain).key(entity_type(user.Plain).values(found)))\n"
    )

    written = subprocess.run(
        [sys.executable, "-c", WRITE_PLAIN], cwd=tmp_path, capture_output=True, check=True
    )
    read = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        input=written.stdout,
        capture_output=True,
        check=True,
    )

    assert read.stdout.decode().strip() == "RowKey(partition='Sales', row='000007')"
