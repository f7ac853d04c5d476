import datetime as dt
import enum
from decimal import Decimal
from typing import Annotated, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partita.errors import (
    InvalidKeyError,
    InvalidPropertyError,
    LimitExceededError,
    UnknownFieldError,
    UsageError,
)
from partita.patterns.fields.markers import Series
from partita.patterns.keys.intervals import (
    at_least,
    at_most,
    between,
    less_than,
    more_than,
    starting_with,
)
from partita.patterns.planning.columns import Columns, Condition, all_of, any_of
from partita.patterns.planning.filter_text import evaluate_values
from partita.patterns.planning.plans import (
    PointRead,
    QueryKind,
    QueryPlan,
    RangeRead,
    ScanRead,
    plan_query,
    worse,
)
from partita.patterns.planning.requests import PARTITIONS_MAX, POINTS_MAX, RANGES_MAX
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import entity, entity_type, upcast
from partita.patterns.types.indexes import index, list_index
from partita.tables import filters
from partita.tables.plan import PlanKind
from partita.tables.plan import plan as service_plan
from support.repeats import repeat


class Grade(enum.StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="staff", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    last: str
    email: str
    age: int = 0
    grade: Grade = Grade.JUNIOR
    nickname: str | None = None


by_email = index(Employee, row="email_{email}", unique=True)
anywhere = index(Employee, table="staffbyemail", partition="{email}", row="{dept}")
by_grade = index(Employee, row="grade_{grade}_{age:03d}_{id:06d}", copy=["last"], name="by_grade")
by_last = list_index(Employee, row="last_{last}", name="by_last")
in_blobs = list_index(Employee, row="nick_{nickname}", store="blob", name="in_blobs")


@entity(table="staff", partition="{name}", row="dept")
class Department:
    name: str
    headcount: int = 0


@entity(table="expenses", partition="{employee:06d}", row="{at:desc}_{number:04d}")
class Expense:
    employee: int
    at: dt.datetime
    number: int
    amount: Decimal


@entity(table="places", partition="{country}", row="{name}")
class Place:
    country: str
    name: str
    size: int = 0


@entity(table="readings", partition="{site}_{device:hash4}", row="{device:esc}_{number:04d}")
class Reading:
    site: Grade
    device: str
    number: int
    value: float = 0.0


@entity(table="logs", partition="all", row="{number:08d}")
class Line:
    number: int
    text: str = ""


employees, c = entity_type(Employee), Columns(entity_type(Employee))
departments, d = entity_type(Department), Columns(entity_type(Department))
expenses, x = entity_type(Expense), Columns(entity_type(Expense))
places, p = entity_type(Place), Columns(entity_type(Place))
readings, r = entity_type(Reading), Columns(entity_type(Reading))
lines, n = entity_type(Line), Columns(entity_type(Line))

MOMENT = dt.datetime(2014, 7, 31, 18, tzinfo=dt.UTC)
POINT, POINTS, RANGE, PARTITION, SPREAD, MULTI, TABLE = QueryKind
SALES = {"dept": "Sales"}

KINDS: list[tuple[Any, dict[str, Any], Condition | None, QueryKind]] = [
    # The guide: "How your choice of PartitionKey and RowKey impacts query performance".
    (places, {"country": "Sales", "name": "2"}, None, POINT),
    (places, {}, (p.country == "Sales") & (p.name == "2"), POINT),
    (places, {"country": "Sales"}, (p.name >= "S") & (p.name < "T"), RANGE),
    (places, {"country": "Sales"}, p.size == 3, PARTITION),
    (places, {}, p.size == 3, TABLE),
    (places, {}, p.name == "2", TABLE),
    (places, {"country": "Sales"}, (p.name == "121") | (p.name == "322"), POINTS),
    # One partition.
    (employees, SALES | {"id": 123}, None, POINT),
    (employees, SALES | {"id": 123}, c.age > 40, POINT),
    (employees, SALES, None, RANGE),
    (employees, SALES, c.age > 40, RANGE),
    (employees, SALES | {"id": between(100, 199)}, None, RANGE),
    (employees, SALES, c.id.between(100, 199) & (c.age > 40), RANGE),
    (employees, SALES, c.id != 7, RANGE),
    (employees, SALES, ~(c.id == 7), RANGE),
    (employees, SALES, ~(c.id != 7), POINT),
    (employees, SALES, ~((c.id < 7) | (c.id > 7)), RANGE),
    (employees, SALES, c.id.in_([1, 2, 3]), POINTS),
    (employees, SALES, c.id.in_([7]), POINT),
    (employees, SALES, c.id.in_([1, 2, 3]) & (c.id > 2), POINT),
    (employees, SALES, c.id.in_([]), POINTS),
    (employees, SALES, (c.id == 1) & (c.id == 2), POINTS),
    (employees, SALES, c.id.in_(range(POINTS_MAX)), POINTS),
    (employees, SALES, c.id.in_(range(POINTS_MAX + 1)), RANGE),
    (employees, SALES, (c.id == 1) | (c.age > 40), RANGE),
    (employees, SALES, ((c.id == 1) & (c.age > 40)) | ((c.id == 2) & (c.age < 20)), POINTS),
    (employees, SALES, c.id.between(1, 5) | c.id.between(8, 9), RANGE),
    (employees, SALES, c.id.between(1, 5) | (c.id == 8), RANGE),
    (departments, {"name": "Sales"}, None, POINT),
    (departments, {"name": "Sales"}, d.headcount > 3, POINT),
    (places, {"country": "NL"}, None, PARTITION),
    (places, {"country": "NL", "name": starting_with("")}, None, PARTITION),
    (places, {"country": "NL", "name": starting_with("Am")}, None, RANGE),
    (places, {"country": "NL", "name": at_least("Am")}, None, RANGE),
    (places, {"country": "NL", "name": at_most("Am")}, None, RANGE),
    (expenses, {"employee": 123}, None, PARTITION),
    (expenses, {"employee": 123, "at": more_than(MOMENT)}, None, RANGE),
    (expenses, {"employee": 123, "at": MOMENT}, None, RANGE),
    (expenses, {"employee": 123, "number": 7}, None, PARTITION),
    (expenses, {"employee": 123, "at": MOMENT, "number": less_than(7)}, None, RANGE),
    (lines, {}, None, PARTITION),
    (lines, {"number": 7}, None, POINT),
    (lines, {"number": between(7, 9)}, None, RANGE),
    # Several partitions.
    (employees, {}, c.dept.in_(["Sales", "Legal"]), SPREAD),
    (employees, {"id": 7}, c.dept.in_(["Sales", "Legal"]), POINTS),
    (employees, {}, (c.dept == "Sales") & (c.id == 1) | (c.dept == "Legal") & (c.id == 2), POINTS),
    (employees, {}, (c.dept == "Sales") | (c.dept == "Legal") & (c.id == 2), SPREAD),
    (employees, {"dept": starting_with("S")}, None, MULTI),
    (employees, {}, (c.dept >= "A") & (c.dept < "C"), MULTI),
    (employees, {}, c.dept.in_([f"d{n}" for n in range(PARTITIONS_MAX + 1)]), MULTI),
    (employees, {}, (c.dept == "Sales") | (c.dept > "T"), MULTI),
    (employees, {}, (c.dept == "Sales") | (c.age > 40), TABLE),
    (employees, {"id": 7}, None, TABLE),
    (employees, {}, None, TABLE),
    (departments, {}, None, TABLE),
    (readings, {"site": Grade.JUNIOR, "device": "x"}, None, RANGE),
    (readings, {"site": Grade.JUNIOR, "device": "x", "number": 7}, None, POINT),
    (readings, {"site": Grade.JUNIOR}, None, SPREAD),
    (readings, {"site": Grade.JUNIOR}, r.value > 3.0, SPREAD),
    (readings, {"device": "x"}, None, TABLE),
]


@pytest.mark.parametrize(("model", "keys", "condition", "kind"), KINDS)
def test_every_query_knows_its_class(
    model: Any, keys: dict[str, Any], condition: Condition | None, kind: QueryKind
) -> None:
    assert plan_query(model, keys, condition).kind is kind


@pytest.mark.parametrize(("model", "keys", "condition", "kind"), KINDS)
def test_no_query_claims_a_better_class_than_the_service_gives_it(
    model: Any, keys: dict[str, Any], condition: Condition | None, kind: QueryKind
) -> None:
    check_claims(plan_query(model, keys, condition))


def check_claims(made: QueryPlan) -> None:
    order = list(PlanKind)
    for read in made.requests:
        seen = service_plan(filters.parse(made.filter_of(read))).kind
        assert order.index(seen) <= order.index(read.kind)
        claimed = made.kind.value
        if claimed not in ("points", "spread"):
            assert order.index(seen) <= order.index(PlanKind(claimed))


class TestRequests:
    def test_a_point_names_both_keys_and_needs_no_filter(self) -> None:
        made = plan_query(employees, SALES | {"id": 123})

        assert made.requests == (PointRead(RowKey("Sales", "emp_000123")),)
        assert (made.filter, made.client, made.est_requests) == ("", None, 1)

    def test_a_range_has_a_filter_for_the_service(self) -> None:
        made = plan_query(employees, SALES | {"id": between(100, 199)}, c.age > 40)

        assert made.requests == (RangeRead("Sales", "emp_000100", "emp_00019:"),)
        assert made.filter == "EntityType eq 'Employee' and Age gt 40"
        assert made.filter_of(made.requests[0]) == (
            "PartitionKey eq 'Sales' and RowKey ge 'emp_000100' and RowKey lt 'emp_00019:'"
            " and EntityType eq 'Employee' and Age gt 40"
        )
        assert made.client is None

    def test_a_scan_still_says_what_rows_it_wants(self) -> None:
        made = plan_query(employees, {}, c.age > 40)

        assert made.requests == (ScanRead("", None, "emp_", "emp`"),)
        assert made.filter == "EntityType eq 'Employee' and Age gt 40"

    def test_quotes_are_doubled_in_keys(self) -> None:
        made = plan_query(places, {"country": "d'Or"})

        assert made.filter_of(made.requests[0]).startswith("PartitionKey eq 'd''Or'")

    def test_points_come_in_the_order_of_their_keys_and_each_once(self) -> None:
        made = plan_query(employees, {}, c.dept.in_(["b", "a"]) & c.id.in_([2, 1, 2]))

        assert [read.key for read in made.requests if isinstance(read, PointRead)] == [
            RowKey("a", "emp_000001"),
            RowKey("a", "emp_000002"),
            RowKey("b", "emp_000001"),
            RowKey("b", "emp_000002"),
        ]

    def test_conditions_of_points_are_decided_here(self) -> None:
        made = plan_query(employees, SALES | {"id": 123}, c.age > 40)

        assert (made.filter, made.served) == ("", None)
        assert made.client == made.residual == (c.age > 40)

    def test_conditions_on_keys_of_points_are_decided_before_anything_is_read(self) -> None:
        made = plan_query(employees, SALES, c.id.in_([1, 2, 3]) & (c.id != 2))

        assert made.est_requests == 2
        assert made.client is None

    def test_what_can_never_match_asks_nothing(self) -> None:
        made = plan_query(employees, {}, (c.age > 40) & c.id.in_([]))

        assert (made.requests, made.is_refused) == ((), False)

    def test_overlapping_ranges_are_read_as_one(self) -> None:
        made = plan_query(employees, SALES, c.id.between(1, 5) | c.id.between(4, 9))

        assert made.requests == (RangeRead("Sales", "emp_000001", "emp_00000:"),)
        assert made.client is None

    def test_many_ranges_become_one_around_them(self) -> None:
        pairs = any_of(*(c.id.between(n * 10, n * 10 + 2) for n in range(RANGES_MAX + 1)))

        made = plan_query(employees, SALES, pairs)

        assert made.requests == (RangeRead("Sales", "emp_000000", "emp_000083"),)
        assert made.client == pairs

    def test_many_points_become_a_range_and_are_told_apart_here(self) -> None:
        wanted = c.id.in_(range(0, 10 * (POINTS_MAX + 1), 10))

        made = plan_query(employees, SALES, wanted)

        assert made.requests == (RangeRead("Sales", "emp_000000", "emp_001001"),)
        assert made.client == wanted

    def test_what_the_key_does_not_say_is_decided_here(self) -> None:
        made = plan_query(expenses, {"employee": 123, "at": at_least(MOMENT), "number": 7})

        assert made.kind is RANGE
        assert evaluate_values(made.client, {"employee": 123, "number": 7})  # type: ignore[arg-type]
        assert not evaluate_values(made.client, {"employee": 123, "number": 8})  # type: ignore[arg-type]

    def test_a_mixed_condition_is_decided_here_and_the_rest_by_the_service(self) -> None:
        mixed = (c.id == 1) | (c.age > 40)

        made = plan_query(employees, SALES, mixed & (c.grade == Grade.SENIOR))

        assert made.client == mixed
        assert made.filter == "EntityType eq 'Employee' and Grade eq 's'"

    def test_an_or_is_put_into_parentheses(self) -> None:
        made = plan_query(employees, SALES, (c.age < 20) | (c.age > 40))

        assert made.filter == "EntityType eq 'Employee' and (Age lt 20 or Age gt 40)"

    def test_prefix_and_ends_of_one_field_lose_nothing(self) -> None:
        made = plan_query(places, {"country": "NL"}, p.name.startswith("Am") & (p.name < "Ams"))

        assert made.requests == (RangeRead("NL", "Am", "An"),)
        assert made.client is not None

    def test_a_filter_that_is_too_long_is_refused(self) -> None:
        made = plan_query(employees, SALES, c.last.in_(["x" * 100] * 400))

        with pytest.raises(LimitExceededError) as caught:
            made.filter_of(made.requests[0])

        assert caught.value.code == "FilterTooLong"

    def test_a_huge_product_of_choices_is_left_to_decide_here(self) -> None:
        made = plan_query(
            employees, {}, c.dept.in_([f"d{n:03d}" for n in range(200)]) & c.id.in_(range(200))
        )

        assert made.kind is SPREAD
        assert made.est_requests == 200
        assert made.client == c.id.in_(range(200))


class TestRefusal:
    @pytest.mark.parametrize("kind", [MULTI, TABLE])
    def test_scans_of_several_partitions_are_refused(self, kind: QueryKind) -> None:
        keys = {"dept": starting_with("S")} if kind is MULTI else {}

        made = plan_query(employees, keys)

        assert (made.kind, made.is_refused) == (kind, True)

    def test_a_scan_of_one_partition_is_not(self) -> None:
        assert not plan_query(places, {"country": "NL"}, p.size > 3).is_refused

    def test_a_field_outside_the_keys_cannot_be_given(self) -> None:
        with pytest.raises(UsageError) as caught:
            plan_query(employees, {"age": 40})

        assert caught.value.code == "NotAKeyField"
        assert "where(c.age == ...)" in caught.value.hint

    def test_a_field_that_is_not_there_cannot_be_given(self) -> None:
        with pytest.raises(UnknownFieldError):
            plan_query(employees, {"agee": 40})

    def test_a_value_of_another_type_cannot_be_given(self) -> None:
        with pytest.raises(InvalidKeyError):
            plan_query(employees, {"dept": "Sales", "id": "123"})
        with pytest.raises(InvalidPropertyError):
            plan_query(employees, {"dept": "Sales", "id": at_least("123")})

    def test_none_cannot_be_given(self) -> None:
        with pytest.raises(InvalidKeyError):
            plan_query(employees, {"dept": "Sales", "id": None})
        with pytest.raises(UsageError) as caught:
            plan_query(employees, {"dept": None})
        assert caught.value.code == "NeverMatches"

    def test_a_value_that_no_key_can_hold_is_told(self) -> None:
        with pytest.raises(InvalidKeyError):
            plan_query(employees, {"dept": "Sales", "id": 10**6})

    def test_ends_of_a_range_may_lie_outside_of_what_keys_can_hold(self) -> None:
        made = plan_query(employees, SALES | {"id": between(-5, 10**9)})

        assert made.kind is RANGE


class TestIndexes:
    def test_a_copy_is_read_at_its_own_key(self) -> None:
        made = plan_query(employees, SALES | {"email": "j@x"}, via=by_email)

        assert made.requests == (PointRead(RowKey("Sales", "email_j@x")),)

    def test_copies_elsewhere_are_read_there(self) -> None:
        made = plan_query(employees, {"email": "j@x"}, c.age > 40, via=anywhere)

        assert (made.kind, made.table) == (PARTITION, "staffbyemail")
        assert made.filter == f"EntityType eq 'Employee@{anywhere.name}' and Age gt 40"

    def test_keys_of_the_entity_are_properties_of_a_copy(self) -> None:
        made = plan_query(employees, {"email": "j@x"}, c.id == 7, via=anywhere)

        assert made.filter.endswith(" and Id eq 7")

    def test_what_a_partial_copy_lacks_is_decided_on_the_entity(self) -> None:
        condition = (c.last == "Cao") & (c.nickname == "J")

        made = plan_query(employees, SALES | {"grade": Grade.SENIOR}, condition, via=by_grade)

        assert made.kind is RANGE
        assert made.filter == "EntityType eq 'Employee@by_grade' and Last eq 'Cao'"
        assert made.client == (c.nickname == "J")

    def test_a_list_is_the_range_of_its_members(self) -> None:
        made = plan_query(employees, SALES | {"last": "Cao"}, c.age > 40, via=by_last)

        assert made.requests == (RangeRead("Sales", "last_Cao~", "last_Cao\xa0"),)
        assert made.filter == "EntityType eq 'Employee@by_last'"
        assert made.client == (c.age > 40)
        assert made.asked.via is by_last

    def test_a_stretch_of_lists_has_all_their_members(self) -> None:
        made = plan_query(employees, SALES | {"last": between("Ca", "Cho")}, via=by_last)

        (read,) = made.requests
        assert isinstance(read, RangeRead)
        assert read.upper is not None
        assert read.lower <= "last_Ca~emp_000001" < read.upper
        assert read.lower <= "last_Cho~emp_000001" < read.upper
        assert made.client is not None

    def test_a_list_in_a_blob_is_read_whole(self) -> None:
        made = plan_query(employees, SALES | {"nickname": "J"}, via=in_blobs)

        assert made.requests == (PointRead(RowKey("Sales", "nick_J")),)
        with pytest.raises(UsageError):
            plan_query(employees, SALES, via=in_blobs)

    def test_only_fields_of_the_index_can_be_given(self) -> None:
        with pytest.raises(UsageError) as caught:
            plan_query(employees, {"id": 7}, via=by_email)

        assert by_email.name in caught.value.message


class TestSpread:
    def test_a_spread_partition_is_read_from_all_its_places(self) -> None:
        made = plan_query(readings, {"site": Grade.JUNIOR})

        assert [read.partition for read in made.requests if isinstance(read, RangeRead)] == [
            "j_0",
            "j_1",
            "j_2",
            "j_3",
        ]
        assert (made.is_merged, made.is_ordered, made.est_requests) == (True, False, 4)

    def test_partitions_that_were_asked_for_are_read_one_after_another(self) -> None:
        made = plan_query(employees, {}, c.dept.in_(["b", "a"]))

        assert (made.is_merged, made.is_ordered) == (False, True)

    def test_a_hash_does_not_say_its_field(self) -> None:
        made = plan_query(readings, {"site": Grade.JUNIOR, "device": "x", "number": at_least(3)})

        assert made.kind is RANGE
        assert made.client is None
        assert len(made.requests) == 1


class TestTypes:
    def test_a_type_without_type_property_is_known_by_its_keys_alone(self) -> None:
        @entity(table="old", partition="{a}", row="{b}", type_property=None)
        class Old:
            a: str
            b: str

        assert plan_query(entity_type(Old), {"a": "x"}).filter == ""

    def test_a_query_for_a_parent_asks_for_its_children(self) -> None:
        @entity(table="people", partition="{dept}", row="{id:04d}", abstract=True)
        class Person:
            dept: str
            id: int
            age: int

        @entity()
        class Worker(Person):
            pass

        @entity(row="boss_{id:04d}")
        class Boss(Person):
            pass

        people = Columns(entity_type(Person))
        made = plan_query(entity_type(Person), {"dept": "x"}, people.age > 40)
        one = plan_query(entity_type(Person), {"dept": "x", "id": 7})

        assert made.filter == ("(EntityType eq 'Worker' or EntityType eq 'Boss') and Age gt 40")
        assert made.kind is PARTITION
        assert [read.key.row for read in one.requests if isinstance(read, PointRead)] == [
            "0007",
            "boss_0007",
        ]

    def test_older_versions_come_through_the_filter_and_are_decided_on_as_upcast(self) -> None:
        @entity(table="versions", partition="{a}", row="{b}", version=2)
        class Versioned:
            a: str
            b: str
            first: str

        @upcast(Versioned, from_version=1)
        def split(old: dict[str, Any]) -> dict[str, Any]:
            return old

        columns = Columns(entity_type(Versioned))
        made = plan_query(entity_type(Versioned), {"a": "x"}, columns.first == "Jun")

        assert made.filter == (
            "(EntityType eq 'Versioned' and (not (EntityVersion eq 2) or First eq 'Jun'))"
        )
        assert made.client == made.served == (columns.first == "Jun")

    def test_an_entity_of_several_rows_is_found_by_its_first(self) -> None:
        @entity(table="wide", partition="{a}", row="{b:04d}")
        class Wide:
            a: str
            b: int
            first: int
            days: Annotated[dict[int, int], Series("d{:03d}", slots=300)]
            last: int

        columns = Columns(entity_type(Wide))
        made = plan_query(entity_type(Wide), {"a": "x"}, (columns.first == 1) & (columns.last == 2))

        assert made.filter == "EntityType eq 'Wide' and First eq 1"
        assert made.client == (columns.last == 2)

    def test_what_a_resolver_may_have_encrypted_is_decided_when_it_is_opened(self) -> None:
        @entity(table="sealed", partition="{a}", row="{b}", encrypt=lambda pk, rk, name: True)
        class Sealed:
            a: str
            b: str
            age: int

        columns = Columns(entity_type(Sealed))
        made = plan_query(entity_type(Sealed), {"a": "x"}, columns.age > 1)

        assert (made.served, made.client) == (None, columns.age > 1)


class TestComparingPlans:
    def test_a_dearer_class_is_worse(self) -> None:
        table, range_, point = (
            plan_query(employees, {}),
            plan_query(employees, SALES),
            plan_query(employees, SALES | {"id": 1}),
        )

        assert worse(table, range_)
        assert worse(range_, point)
        assert not worse(point, point)

    def test_reading_what_is_not_wanted_is_worse(self) -> None:
        assert worse(plan_query(employees, SALES, c.age > 1), plan_query(employees, SALES))

    def test_a_summary_has_no_values(self) -> None:
        assert [
            plan_query(employees, SALES | {"id": 1}).summary,
            plan_query(employees, SALES | {"id": at_least(1)}, c.age > 40).summary,
            plan_query(employees, {}, c.age > 40).summary,
            plan_query(employees, SALES | {"email": "x"}, via=by_email).summary,
            plan_query(employees, SALES | {"id": 1}, via=None).summary,
            plan_query(expenses, {"employee": 1, "number": 7}).summary,
        ] == [
            "point staff by dept, id",
            "range staff by dept, id residual age",
            "table staff residual age",
            "point staff via email_email by dept, email",
            "point staff by dept, id",
            "partition expenses by employee residual number",
        ]


# ---------------------------------------------------------------------------------------------
# Every plan finds exactly what the conditions say, each once and in order

names = st.sampled_from(["", "A", "Am", "Ams", "An", "é", "\U0001f600"])
countries = st.sampled_from(["DE", "NL", "NZ"])
numbers = st.integers(0, 5)
moments = numbers.map(lambda n: MOMENT + dt.timedelta(seconds=n))


@st.composite
def conditions_on(draw: st.DrawFn, model: Any, values: dict[str, Any]) -> Condition:
    columns = Columns(model)

    def leaf() -> st.SearchStrategy[Condition]:
        @st.composite
        def one(draw: st.DrawFn) -> Condition:
            name = draw(st.sampled_from(sorted(values)))
            column = getattr(columns, name)
            value = draw(values[name])
            ways = ["==", "!=", "in"] + ([] if name == "site" else ["<", ">=", "between"])
            ways += ["starts"] if name in ("name", "country", "device") else []
            made: Condition
            match draw(st.sampled_from(ways)):
                case "==":
                    made = column == value
                case "!=":
                    made = column != value
                case "<":
                    made = column < value
                case ">=":
                    made = column >= value
                case "in":
                    made = column.in_(draw(st.lists(values[name], max_size=3)))
                case "starts":
                    made = column.startswith(value)
                case _:
                    made = column.between(value, draw(values[name]))
            return made

        return one()

    tree = st.recursive(
        leaf(),
        lambda inner: st.one_of(
            st.lists(inner, min_size=2, max_size=3).map(lambda each: all_of(*each)),
            st.lists(inner, min_size=2, max_size=3).map(lambda each: any_of(*each)),
            inner.map(lambda each: ~each),
        ),
        max_leaves=6,
    )
    return draw(tree)


MODELS: list[tuple[Any, dict[str, Any]]] = [
    (places, {"country": countries, "name": names, "size": numbers}),
    (expenses, {"employee": numbers, "at": moments, "number": numbers}),
    (readings, {"site": st.sampled_from(Grade), "device": names, "number": numbers}),
]


@pytest.mark.repeated
@pytest.mark.parametrize(("model", "values"), MODELS)
def test_a_plan_finds_exactly_what_the_conditions_say(model: Any, values: dict[str, Any]) -> None:
    defaults = {"amount": Decimal(1), "value": 1.0}
    rows = st.fixed_dictionaries(values).map(
        lambda row: {name: row.get(name, defaults.get(name)) for name in model.fields}
    )

    @settings(
        max_examples=repeat(40, 150, 150),
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        st.lists(rows, max_size=12),
        conditions_on(model, values),
        st.booleans(),
        st.data(),
    )
    def check(stored: list[Any], condition: Condition, give: bool, data: st.DataObject) -> None:
        first = model.partition.fields[0]
        keys = {first: data.draw(values[first])} if give else {}
        made = plan_query(model, keys, condition)
        check_claims(made)

        by_key = {model.key(row): row for row in stored}
        found = [key for read in made.requests for key in answers(made, read, by_key)]

        expected = [
            key
            for key, row in by_key.items()
            if all(row[name] == value for name, value in keys.items())
            and evaluate_values(condition, row)
        ]
        assert found == sorted(found)
        assert found == sorted(expected)

    check()


def answers(made: QueryPlan, read: Any, by_key: dict[RowKey, Any]) -> list[RowKey]:
    """What a service answers to one request, in order, and what is kept of it."""
    tree = filters.parse(made.filter_of(read))
    assert tree is not None
    holds = filters.compile_filter(tree)
    model = made.asked.model
    kept: list[RowKey] = []
    for key in sorted(by_key):
        row = by_key[key]
        members: dict[str, object] = {
            "PartitionKey": key.partition,
            "RowKey": key.row,
            "EntityType": model.name,
        }
        for field in model.fields.values():
            if not field.is_key:
                members[field.property] = str(row[field.name])
                members[field.property + "@odata.type"] = field.codec.edm
        if holds(members) and (made.client is None or evaluate_values(made.client, row)):
            kept.append(key)
    return kept
