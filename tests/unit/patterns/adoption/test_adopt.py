"""Inference without I/O: rows to classes."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.clock import ManualClock
from partita.patterns.adoption import adopt as adoption
from partita.patterns.adoption.adopt import Adoption
from partita.patterns.adoption.proof import import_text
from partita.patterns.protocol.values import Int32, Row, RowKey, Value
from partita.patterns.types.decorators import entity_type

NOON = datetime(2014, 7, 31, 12, 5, tzinfo=UTC)


def a_row(partition: str, row: str, **properties: Value) -> Row:
    return Row(RowKey(partition, row), dict(properties))


def adopt(table: str, rows: list[Row]) -> Adoption:
    return adoption.adopt(table, rows, ManualClock())


def templates(found: Adoption) -> dict[str, tuple[str, str]]:
    return {each.name: (each.partition, each.row) for each in found.classes}


def test_types_are_told_apart_by_their_type_property() -> None:
    rows = [a_row("Sales", f"e{n}", EntityType="Employee", Age=n) for n in range(3)]
    rows.append(a_row("Sales", "d", EntityType="Department", Budget=1))

    found = adopt("staff", rows)

    assert found.type_property == "EntityType"
    assert [each.stored_type for each in found.classes] == ["Employee", "Department"]
    assert found.misfits == []


def test_a_weak_name_of_a_type_property_needs_types_of_other_shapes() -> None:
    one_shape = [a_row("p", f"{n:03d}", Kind=f"k{n % 2}", Age=n) for n in range(4)]
    two_shapes = [*one_shape[:2:2], a_row("p", "004", Kind="note", Text="a", Author="b")]

    assert adopt("staff", one_shape).type_property is None
    assert adopt("staff", two_shapes).type_property == "Kind"


def test_a_property_that_some_rows_lack_is_optional() -> None:
    rows = [a_row("p", "001", First="a", Last="b"), a_row("p", "002", First="a")]

    [employee] = adopt("staff", rows).classes

    assert employee.optional == ["last"]


def test_names_that_users_have_are_values_and_not_literals() -> None:
    rows = [a_row("p", f"{user}_{n:03d}", Text="a") for user in ("ann", "bob") for n in range(3)]

    assert templates(adopt("notes", rows)) == {"Notes": ("{partition}", "{name:esc}_{id:03d}")}


def test_words_with_other_shapes_after_them_are_literals() -> None:
    rows = [a_row("p", f"emp_{n:03d}", Age=n, Last="x") for n in range(3)]
    rows += [a_row("p", f"rev_{n:03d}_{2010 + n}", Rating=5.0, Text="a") for n in range(3)]

    assert templates(adopt("staff", rows)) == {
        "Emp": ("{partition}", "emp_{age_key:03d}"),
        "Rev": ("{partition}", "rev_{rev_id:03d}_{year:04d}"),
    }


@pytest.mark.parametrize(
    ("keys", "values", "template"),
    [
        (["9992", "9989"], [7, 10], "{n_key:04d:desc}"),
        (["2147483640", "2147483637"], [7, 10], "{n_key:int32:desc}"),
        (["9223372036854775800", "9223372036854775797"], [7, 10], "{n_key:int64:desc}"),
        (["0993", "1010"], [-7, 10], "{n_key:+03d}"),
        (["0007", "0010"], [7, 10], "{n_key:04d}"),
        (["junc@x.com", "kenk@x.com"], ["JunC@x.com", "kenk@x.com"], "{n_key:lower}"),
        (["0635423907000000000", "0635423943000000000"], [1, 2], "{at:asc}"),
        (["2519955068999999999", "2519955032999999999"], [1, 2], "{at:desc}"),
        (["20140731", "20140801"], [1, 2], "{day:asc}"),
        (["2014-07", "2014-08"], [1, 2], "{at:%Y-%m}"),
        (["7", "10"], [1, 2], "{row}"),
    ],
)
def test_the_code_of_a_row_key(keys: list[str], values: list[Value], template: str) -> None:
    found = adopt(
        "numbers", [a_row("p", *pair[:1], N=pair[1]) for pair in zip(keys, values, strict=True)]
    )

    assert [each.row for each in found.classes] == [template]
    assert found.misfits == []


def test_the_hour_of_a_time_in_the_row_key_is_the_same_field() -> None:
    times = [NOON + timedelta(hours=n) for n in range(3)]
    ticks = [(each - datetime(1, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 10
             for each in times]  # fmt: skip
    rows = [
        a_row(f"{at:%Y%m%d%H}", f"{tick:019d}", Text="a")
        for at, tick in zip(times, ticks, strict=True)
    ]

    [event] = adopt("events", rows).classes

    assert (event.partition, event.row) == ("{at:%Y%m%d%H}", "{at:asc}")


def test_rows_with_an_unusual_key_or_type_are_listed() -> None:
    rows = [a_row("p", f"{n:04d}", Age=Int32(n)) for n in range(20)]
    rows += [a_row("p", "00020", Age=Int32(1)), a_row("p", "0021", Age="old")]

    found = adopt("staff", rows)

    assert [each.row_key for each in found.misfits] == ["00020", "0021"]
    assert [(each.rows, each.fitting) for each in found.classes] == [(22, 20)]


def test_numbers_keep_the_narrower_type_that_they_are_stored_in() -> None:
    rows = [a_row("p", "001", N=Int32(1)), a_row("p", "002", N=2**40), a_row("p", "003", N=7)]

    found = adopt("numbers", rows)

    assert found.classes[0].fields["n"] == "int"
    assert found.misfits == []


def test_json_lists_and_numbered_properties_are_recognised() -> None:
    rows = [
        a_row(
            "p",
            f"{n:03d}",
            Tags='["a", "b"]',
            Options='{"z": 1, "a": 2}',
            EmployeeIDs="000001,000002",
            **{f"h{hour:02d}": float(n) for hour in range(24)},
        )
        for n in range(3)
    ]

    found = adopt("mixed", rows)

    fields = found.classes[0].fields
    assert fields["tags"] == "list[str]"
    assert fields["options"] == "dict[str, int]"
    assert fields["h"] == 'Annotated[dict[int, float], Series("h{:02d}", slots=24)]'
    assert found.misfits == []
    made: Any = vars(import_text(found.module))["Mixed"]
    assert "employee_ids_list" in vars(made)


def test_rows_of_the_typed_layer_itself_are_left_out() -> None:
    rows = [
        a_row("Sales", "emp_001", EntityType="Employee", Email="a"),
        a_row("Sales", "email_a", EntityType="Employee@by_email", Email="a"),
        a_row("Sales", "~out_1", EntityType="~outbox"),
    ]

    found = adopt("staff", rows)

    assert (found.rows, found.hidden) == (1, 2)


def test_classes_that_only_their_keys_tell_apart_are_named() -> None:
    rows = [a_row("Sales", f"{n:06d}", Age=n + 1, Last="Hall") for n in range(3)]
    rows += [a_row("Sales", name, Ids="000001") for name in ("Jones", "Hall")]

    assert adopt("staff", rows).overlaps == [("Staff", "Staff2")]


def test_a_hostile_property_name_does_not_become_code() -> None:
    evil = 'x"\nimport os #'
    rows = [Row(RowKey("p", f"{n:03d}"), {evil: n, "class": "a"}) for n in range(3)]

    found = adopt("staff", rows)

    assert "\nimport os" not in found.module
    assert found.misfits == []


def test_an_empty_table_gives_a_module_without_classes() -> None:
    found = adopt("staff", [])

    assert found.classes == []
    import_text(found.module)


names = st.text("abAB12_ é'\"\\{}\n", min_size=1, max_size=6)
values = st.one_of(
    st.text(max_size=6),
    st.integers(-(2**40), 2**40),
    st.booleans(),
    st.floats(allow_nan=False),
    st.binary(max_size=3),
    st.uuids(),
    st.sampled_from(["[1]", '{"a": 1}', "a,b", "2014-07-31", ""]),
)
keys = st.text("abZ01_-|:~{}'é", max_size=8)


@given(
    st.lists(
        st.builds(Row, st.builds(RowKey, keys, keys), st.dictionaries(names, values, max_size=4)),
        max_size=8,
    )
)
def test_every_module_can_be_imported_and_every_row_is_accounted_for(rows: list[Row]) -> None:
    found = adopt("staff", rows)

    declared = vars(import_text(found.module))
    assert sum(each.rows for each in found.classes) == found.rows
    assert sum(each.fitting for each in found.classes) == found.rows - len(found.misfits)
    assert all(entity_type(declared[each.name]) for each in found.classes)
