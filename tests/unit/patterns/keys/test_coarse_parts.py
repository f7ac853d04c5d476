from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import DefinitionError, InvalidKeyError
from partita.patterns.design.lints import lint
from partita.patterns.keys.format_specs import Role
from partita.patterns.keys.intervals import at_least, between, less_than, starting_with
from partita.patterns.keys.templates import KeyTemplate
from partita.patterns.planning.columns import Columns
from partita.patterns.planning.plans import QueryKind, plan_query
from partita.patterns.types.decorators import entity, entity_type
from partita.patterns.types.indexes import index

NOON = datetime(2014, 7, 31, 12, 30, tzinfo=UTC)
FORMS = ["%Y", "%Y%m", "%Y-%m-%d", "%Y%m%d%H", "%Y-%m-%dT%H:%M", "%Y%m%d%H%M%S"]

times = st.datetimes(timezones=st.just(UTC))


def a_template(text: str, role: Role = "row", **annotations: object) -> KeyTemplate:
    return KeyTemplate.compile(text, annotations, role=role, owner="Thing")


def a_pair(partition: str, row: str, **annotations: object) -> tuple[KeyTemplate, KeyTemplate]:
    made = KeyTemplate.compile(partition, annotations, role="partition", owner="Thing")
    return KeyTemplate.check_pair(
        made, KeyTemplate.compile(row, annotations, role="row", owner="Thing")
    )


@pytest.mark.parametrize(
    ("text", "annotation", "value", "key"),
    [
        ("{x:%Y%m%d%H}", datetime, NOON, "2014073112"),
        ("{x:%Y-%m}", date, date(2014, 7, 31), "2014-07"),
        ("{x:04d:desc}", int, 7, "9992"),
        ("{x:+03d}", int, -7, "0993"),
        ("{x:+03d}", int, 7, "1007"),
        ("{x:+03d:desc}", int, 7, "0992"),
        ("{x:int32:desc}", int, 7, "2147483640"),
        ("{x:int64:desc}", int, 7, "9223372036854775800"),
        ("{x:lower}", str, "JunC", "junc"),
    ],
)
def test_the_written_form(text: str, annotation: object, value: Any, key: str) -> None:
    assert a_template(text, x=annotation).format({"x": value}) == key


@pytest.mark.parametrize("form", FORMS)
@given(one=times, other=times)
def test_periods_sort_as_their_times(form: str, one: datetime, other: datetime) -> None:
    template = a_template(f"{{at:{form}}}", at=datetime)
    keys = [template.format({"at": each}) for each in sorted((one, other))]

    assert keys == sorted(keys)


@pytest.mark.parametrize("form", FORMS)
@given(at=times)
def test_a_whole_period_is_read_as_its_first_moment(form: str, at: datetime) -> None:
    _, template = a_pair("p", f"{{at:{form}}}", at=datetime)
    start = template.parse(a_template(f"{{at:{form}}}", at=datetime).format({"at": at}))["at"]

    assert template.parse(template.format({"at": start})) == {"at": start}
    assert start <= at


@pytest.mark.parametrize("spec", ["04d:desc", "+04d", "+04d:desc", "int32:desc", "int64:desc"])
@given(one=st.integers(-9999, 9999), other=st.integers(-9999, 9999))
def test_numbers_sort_in_the_declared_order(spec: str, one: int, other: int) -> None:
    if not spec.startswith("+"):
        one, other = abs(one), abs(other)
    template = a_template(f"{{n:{spec}}}", n=int)
    ordered = sorted((one, other), reverse=spec.endswith("desc"))
    keys = [template.format({"n": each}) for each in ordered]

    assert keys == sorted(keys)
    assert [template.parse(key)["n"] for key in keys] == ordered


def test_a_period_beside_the_whole_time_accepts_every_time() -> None:
    partition, row = a_pair("{at:%Y%m%d%H}", "{at:desc}", at=datetime)

    assert partition.format({"at": NOON}) == "2014073112"
    assert partition.parse("2014073112") == {}
    assert row.parse(row.format({"at": NOON})) == {"at": NOON}


def test_a_period_alone_refuses_a_time_that_it_cannot_give_back() -> None:
    partition, _ = a_pair("{at:%Y%m%d%H}", "{id:04d}", at=datetime, id=int)

    with pytest.raises(InvalidKeyError) as caught:
        partition.format({"at": NOON})

    assert caught.value.code == "KeyOutOfRange"
    assert partition.format({"at": NOON.replace(minute=0)}) == "2014073112"


@pytest.mark.parametrize("form", ["%Y", "%Y%m%d%H"])
@pytest.mark.parametrize(("year", "hours"), [(1, 5), (9999, -5)])
def test_a_time_outside_the_years_of_utc_is_refused(form: str, year: int, hours: int) -> None:
    zone = timezone(timedelta(hours=hours))
    at = datetime(1, 1, 1, tzinfo=zone) if year == 1 else datetime(9999, 12, 31, 23, tzinfo=zone)

    with pytest.raises(InvalidKeyError) as caught:
        a_template(f"{{at:{form}}}", at=datetime).format({"at": at})

    assert caught.value.code == "KeyOutOfRange"


def test_a_coarse_part_is_not_ordered_by_its_field() -> None:
    assert not a_template("{at:%Y%m}_{at:asc}", at=datetime).is_ordered("at")
    assert a_template("{at:asc}", at=datetime).is_ordered("at")


def test_lowered_text_alone_refuses_capital_letters() -> None:
    _, row = a_pair("p", "{email:lower}", email=str)

    with pytest.raises(InvalidKeyError) as caught:
        row.format({"email": "JunC@contoso.com"})

    assert caught.value.code == "KeyOutOfRange"
    assert row.parse("junc@contoso.com") == {"email": "junc@contoso.com"}
    assert not row.matches("JunC@contoso.com")


def test_a_key_whose_digits_form_no_date_does_not_match() -> None:
    _, row = a_pair("p", "{day:%Y%m%d}", day=date)

    assert row.matches("20140731")
    assert not row.matches("20140732")


@pytest.mark.parametrize("spec", ["%d%m%Y", "%m", "%Y%d", "%Y%j", "%Y/%m", "%Y%m%H", "%Y~%m"])
def test_a_form_that_does_not_sort_is_refused(spec: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        a_template(f"{{at:{spec}}}", at=datetime)

    assert caught.value.code == "TemplateSpec"
    assert "%Y%m%d" in caught.value.hint


def test_a_prefix_of_lowered_text_limits_the_keys_and_expresses_nothing() -> None:
    bounds = a_template("{email:lower}", email=str).bounds({"email": starting_with("JU")})

    assert (bounds.lower, bounds.upper, bounds.expressed) == ("ju", "jv", frozenset())


def test_the_whole_periods_of_an_interval_begin_in_it() -> None:
    partition, _ = a_pair("{at:%Y%m%d%H}", "{id:04d}", at=datetime, id=int)

    later = NOON + timedelta(hours=2)
    assert partition.spread_values({"at": between(NOON, later)}) == ("2014073113", "2014073114")
    assert partition.spread_values({"at": less_than(NOON)}) == ("",)


@entity(table="events", partition="{at:%Y%m%d%H}", row="{at:asc}_{id:04d}", allow_hot=True)
class Event:
    at: datetime
    id: int
    text: str = ""


@entity(table="staff", partition="{dept}", row="{id:04d}")
class Employee:
    dept: str
    id: int
    hired: datetime = NOON


by_month = index(
    Employee, table="staffbymonth", partition="{hired:%Y%m}", row="{dept:esc}_{id:04d}"
)


def _plan(*, hours: int) -> Any:
    columns = Columns(entity_type(Event))
    condition = (columns.at >= NOON) & (columns.at < NOON + timedelta(hours=hours))
    return plan_query(entity_type(Event), {}, condition)


def test_an_interval_of_times_reads_the_partitions_of_its_periods_in_order() -> None:
    plan = _plan(hours=2)

    assert plan.kind is QueryKind.SPREAD
    assert [each.partition for each in plan.requests] == ["2014073112", "2014073113", "2014073114"]
    assert plan.is_ordered
    assert plan.residual is None  # the row keys have the whole time


def test_an_interval_of_very_many_periods_reads_a_range_of_partitions() -> None:
    assert _plan(hours=24 * 30).kind is QueryKind.MULTI_PARTITION
    open_end = plan_query(entity_type(Event), {"at": at_least(NOON)})
    assert open_end.kind is QueryKind.MULTI_PARTITION


def test_a_condition_that_only_a_period_limits_is_evaluated_on_each_entity() -> None:
    given = {"hired": NOON, "dept": "Sales", "id": 1}
    plan = plan_query(entity_type(Employee), given, via=by_month)

    assert plan.kind is QueryKind.POINT
    assert plan.residual is not None


def test_a_partition_by_period_is_an_append_risk() -> None:
    @entity(table="events", partition="{at:%Y%m%d}", row="{at:asc}")
    class Reading:
        at: datetime
        value: int = 0

    assert [each.code for each in lint(Reading)] == ["MonotonePartition"]
