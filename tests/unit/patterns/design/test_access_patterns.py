import datetime as dt
import enum
from typing import Annotated, Any, Literal

import pytest

from partita.errors import DefinitionError, UsageError
from partita.patterns.design.access_patterns import access, check_access, require_access
from partita.patterns.design.schema_lock import Difference, compare_lock, write_lock
from partita.patterns.fields.markers import Encrypted, InBlob, Named, Series
from partita.patterns.planning.sample_values import sample
from partita.patterns.protocol.values import Int32
from partita.patterns.types.decorators import EntityType, entity, entity_type, upcast
from partita.patterns.types.indexes import index, list_index


class Grade(enum.StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(
    table="staff",
    partition="{dept}",
    row="emp_{id:06d}",
    access=[
        access("one employee", get=("dept", "id")),
        access("employees of a department", partition=("dept",)),
        access("employees from a number on", partition=("dept",), range=("id",)),
        access("by e-mail address", get=("dept", "email"), via="by_email"),
        access("older ones, for the yearly report", where=("age",), allow="scan"),
    ],
)
class Employee:
    dept: str
    id: int
    email: str
    age: int = 0
    grade: Grade = Grade.JUNIOR
    salary: Annotated[int | None, Encrypted] = None
    photo: Annotated[bytes | None, InBlob] = None
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)]


index(Employee, row="email_{email}", unique=True, name="by_email")
list_index(Employee, row="age_{age:03d}", name="by_age")
employees = entity_type(Employee)


def declared(**options: Any) -> EntityType[Any]:
    @entity(table="staff", partition="{dept}", row="emp_{id:06d}", **options)
    class Person:
        dept: str
        id: int
        age: int = 0
        notes: Annotated[dict[str, int] | None, Encrypted] = None

    return entity_type(Person)


class TestAccessPatterns:
    def test_each_is_planned(self) -> None:
        assert [str(each) for each in check_access(employees)] == [
            "one employee: point staff by dept, id",
            "employees of a department: range staff by dept",
            "employees from a number on: range staff by dept, id",
            "by e-mail address: point staff via by_email by dept, email",
            "older ones, for the yearly report: table staff residual age",
        ]

    def test_a_scan_that_is_allowed_is_not_a_problem(self) -> None:
        assert [each.is_scan for each in check_access(employees)] == [False] * 4 + [True]
        require_access(employees)

    @pytest.mark.parametrize(
        "pattern",
        [
            access("all", where=("age",)),
            access("all of them"),
            access("some of a department", partition=("dept",), where=("age",)),
        ],
    )
    def test_a_scan_that_does_not_say_so_is_refused(self, pattern: Any) -> None:
        model = declared(access=[pattern])

        (planned,) = check_access(model)
        assert planned.is_refused
        assert str(planned).startswith("REFUSED ")
        with pytest.raises(DefinitionError) as caught:
            require_access(model)
        assert caught.value.code == "AccessScans"
        assert "help:" in caught.value.hint or "SCAN" in caught.value.hint

    def test_a_condition_on_a_range_of_keys_is_not_a_scan(self) -> None:
        pattern = access("some", partition=("dept",), range=("id",), where=("age",))

        assert not check_access(declared(access=[pattern]))[0].is_scan

    def test_a_mapping_is_as_good_as_a_list(self) -> None:
        model = declared(access={"one": {"get": ("dept", "id")}})

        assert [str(each) for each in check_access(model)] == ["one: point staff by dept, id"]

    @pytest.mark.parametrize(
        ("patterns", "word"),
        [
            ([access("one", get=("depth",))], "depth"),
            ([access("one", get=("age",))], "not a key field"),
            ([access("one", where=("notes",))], "notes"),
            ([access("one", via="by_email")], "no index"),
            ([access("one"), access("one")], "the name is used twice"),
        ],
    )
    def test_a_pattern_of_what_is_not_there_is_refused(self, patterns: Any, word: str) -> None:
        with pytest.raises(DefinitionError) as caught:
            check_access(declared(access=patterns))

        assert caught.value.code == "AccessRefused"
        assert word in caught.value.message

    def test_there_is_a_sample_for_what_can_be_compared(self) -> None:
        @entity(table="kinds", partition="{a}", row="{b}")
        class Kinds:
            a: str
            b: str
            short: Int32
            shift: Literal["day", "night"]
            grade: Grade
            at: dt.datetime
            day: dt.date
            span: dt.timedelta | None

        for field in entity_type(Kinds).fields.values():
            assert field.codec.encode(sample(field)) is not None

    def test_there_is_no_sample_of_what_cannot_be_compared(self) -> None:
        with pytest.raises(UsageError):
            sample(employees.fields["hours"])


LOCK = """\
# How entities are stored and read. Written by Partita; keep it with the code.

[Employee]
table = "staff"
partition = "{dept}"
row = "emp_{id:06d}"
version = 1

[Employee.fields.age]
type = "Edm.Int64"
holds = "an int of 64 bits"
property = "Age"
default = true

[Employee.fields.dept]
type = "Edm.String"
holds = "text"

[Employee.fields.email]
type = "Edm.String"
holds = "text"
property = "Email"

[Employee.fields.grade]
type = "Edm.String"
holds = "a member of Grade"
property = "Grade"
default = true
choices = ["j", "s"]

[Employee.fields.hours]
type = "Edm.Int64"
holds = "an int of 64 bits"
way = "series h{:02d}"

[Employee.fields.id]
type = "Edm.Int64"
holds = "an int of 64 bits"

[Employee.fields.photo]
type = "Edm.Binary"
holds = "bytes"
property = "Photo"
optional = true
default = true
way = "blob in partita-large"

[Employee.fields.salary]
type = "Edm.Int64"
holds = "an int of 64 bits"
property = "Salary"
optional = true
default = true
way = "encrypted"

[Employee.indexes.by_age]
table = "staff"
partition = "{dept}"
row = "age_{age:03d}"
way = "rows"

[Employee.indexes.by_email]
table = "staff"
partition = "{dept}"
row = "email_{email}"
way = "copy"
unique = true

[Employee.access]
"one employee" = "point staff by dept, id"
"employees of a department" = "range staff by dept"
"employees from a number on" = "range staff by dept, id"
"by e-mail address" = "point staff via by_email by dept, email"
"older ones, for the yearly report" = "table staff residual age"
"""


class TestTheLockFile:
    def test_it_says_how_entities_are_stored_and_read(self) -> None:
        assert write_lock([employees]) == LOCK

    def test_nothing_differs_from_what_was_just_written(self) -> None:
        assert compare_lock(LOCK, [employees]) == []

    def test_it_does_not_depend_on_the_order_of_types(self) -> None:
        other = declared()

        assert write_lock([employees, other]) == write_lock([other, employees])

    def test_an_invalid_lock_file_is_reported(self) -> None:
        for text in ("[Employee", "[Employee]\ntable = 7\n"):
            with pytest.raises(UsageError) as caught:
                compare_lock(text, [employees])
            assert caught.value.code == "LockUnreadable"

    def test_a_type_that_is_gone_is_told(self) -> None:
        assert codes(compare_lock(LOCK, [])) == ["EntityRemoved Employee"]

    def test_a_new_type_is_fine(self) -> None:
        assert compare_lock(LOCK, [employees, declared()]) == []

    @pytest.mark.parametrize(
        ("old", "new", "expected"),
        [
            ('row = "emp_{id:06d}"', 'row = "emp_{id:04d}"', "KeyTemplateChanged Employee.row"),
            ('table = "staff"\np', 'table = "stuff"\np', "KeyTemplateChanged Employee.table"),
            ("version = 1", "version = 2", "VersionLowered Employee"),
            ('"age_{age:03d}"', '"age_{age:04d}"', "IndexChanged Employee.by_age"),
            ("indexes.by_age]", "indexes.aged]", "IndexRemoved Employee.aged"),
            (
                '"table staff residual age"',
                '"range staff by age"',
                "PlanWorse Employee: older ones, for the yearly report",
            ),
            (
                '"range staff by dept"',
                '"point staff"',
                "PlanWorse Employee: employees of a department",
            ),
            ('choices = ["j", "s"]', 'choices = ["j", "s", "t"]', "TypeNarrowed Employee.grade"),
            ('property = "Age"', 'property = "Years"', "StorageChanged Employee.age"),
            ('way = "encrypted"', "", "StorageChanged Employee.salary"),
            (
                'type = "Edm.Int64"\nholds = "an int of 64 bits"\nproperty = "Age"',
                'type = "Edm.String"\nholds = "text"\nproperty = "Age"',
                "TypeNarrowed Employee.age",
            ),
            (
                '[Employee.fields.email]\ntype = "Edm.String"\nholds',
                '[Employee.fields.address]\ntype = "Edm.String"\nholds',
                "FieldWithoutDefault Employee.email",
            ),
        ],
    )  # fmt: skip
    def test_what_the_code_no_longer_fits_is_told(self, old: str, new: str, expected: str) -> None:
        assert old in LOCK

        assert codes(compare_lock(LOCK.replace(old, new, 1), [employees])) == [expected]

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ('"range staff by dept"', '"partition staff by dept"'),
            ('"range staff by dept"', '"wormhole staff by dept"'),
            ('choices = ["j", "s"]', 'choices = ["j"]'),
            (
                'type = "Edm.Int64"\nholds = "an int of 64 bits"\nproperty = "Age"',
                'type = "Edm.Int32"\nholds = "an int of 32 bits"\nproperty = "Age"',
            ),
            ('[Employee.fields.age]', '[Employee.fields.years]'),
        ],
    )  # fmt: skip
    def test_what_still_fits_is_not_told(self, old: str, new: str) -> None:
        assert old in LOCK

        assert compare_lock(LOCK.replace(old, new), [employees]) == []


class TestEvolution:
    def test_a_new_version_needs_a_way_from_the_old_one(self) -> None:
        @entity(table="things", partition="{a}", row="{b}")
        class Thing:
            a: str
            b: str
            name: str

        kept = write_lock([entity_type(Thing)])

        @entity(table="things", partition="{a}", row="{b}", version=3, name="Thing")
        class Later:
            a: str
            b: str
            first: str
            last: str

        later = entity_type(Later)
        assert codes(compare_lock(kept, [later])) == [
            "UpcasterMissing Thing",
            "UpcasterMissing Thing",
        ]

        @upcast(Later, from_version=1)
        def first(old: dict[str, Any]) -> dict[str, Any]:
            return old

        @upcast(Later, from_version=2)
        def second(old: dict[str, Any]) -> dict[str, Any]:
            return old

        assert compare_lock(kept, [later]) == []

    def test_a_narrower_field_is_told_in_words(self) -> None:
        @entity(table="things", partition="{a}", row="{b}")
        class Thing:
            a: str
            b: str
            nick: str | None
            grade: str

        kept = write_lock([entity_type(Thing)])

        @entity(table="things", partition="{a}", row="{b}", name="Thing")
        class Later:
            a: str
            b: str
            nick: str
            grade: Annotated[Literal["a", "b"], Named("Grade")]

        found = compare_lock(kept, [entity_type(Later)])

        assert codes(found) == ["TypeNarrowed Thing.grade", "TypeNarrowed Thing.nick"]
        assert "text or None" in str(found[1])
        assert "one of 2 values of a, b" in found[0].message

    def test_a_key_field_of_another_type_is_told(self) -> None:
        @entity(table="things", partition="{a}", row="r")
        class Thing:
            a: str

        kept = write_lock([entity_type(Thing)])

        @entity(table="things", partition="{a}", row="r", name="Thing", version=2)
        class Later:
            a: int

        @upcast(Later, from_version=1)
        def first(old: dict[str, Any]) -> dict[str, Any]:
            return old

        assert codes(compare_lock(kept, [entity_type(Later)])) == ["TypeNarrowed Thing.a"]


def codes(found: list[Difference]) -> list[str]:
    return [f"{each.code} {each.subject}" for each in found]
