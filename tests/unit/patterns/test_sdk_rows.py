"""Rows survive the SDK's own conversions, and the engine's, to the bit and to the type."""

import json
import math
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from azure.data.tables import EntityProperty, TableEntity
from azure.data.tables._deserialize import _convert_to_entity
from azure.data.tables._serialize import _add_entity_properties
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidPropertyError
from partita.patterns import direct_rows, sdk_rows
from partita.patterns.values import Instant, Int32, Row, RowKey, Value
from partita.tables.entity import build

KEY = RowKey("Sales", "00010")


def answered(members: dict[str, Any]) -> TableEntity:
    """Read an answer as the client does."""
    entity: TableEntity = _convert_to_entity(members)  # type: ignore[no-untyped-call]
    return entity


def through_sdk(properties: dict[str, Value]) -> Row:
    """Send as the client does, read as the client does."""
    sent = json.loads(json.dumps(_add_entity_properties(sdk_rows.entity_of(Row(KEY, properties)))))
    return sdk_rows.row_of(answered(sent))


def through_engine(properties: dict[str, Value]) -> Row:
    stored = build((KEY.partition, KEY.row), 1, direct_rows.members_of(properties))
    # Without the members at hand they are read from the document, as after a restart.
    return direct_rows.row_of(type(stored)(*KEY_PARTS, stored.ticks, stored.document))


KEY_PARTS = (KEY.partition, KEY.row)
BOTH_WAYS = pytest.mark.parametrize("through", [through_sdk, through_engine])

VALUES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.binary(max_size=30),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1).map(Int32),
    st.floats(allow_nan=False).map(lambda value: value or 0.0),
    st.uuids(),
)


@BOTH_WAYS
@given(value=VALUES)
def test_every_value_comes_back_with_its_type(through: Any, value: Value) -> None:
    back = through({"P": value}).properties["P"]

    assert back == value
    assert type(back) is type(value)


@BOTH_WAYS
@given(moment=st.datetimes(datetime(1601, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis puts the zone in
def test_every_moment_comes_back(through: Any, moment: datetime) -> None:
    back = through({"P": moment}).properties["P"]

    assert back == moment
    assert isinstance(back, Instant)


@BOTH_WAYS
@pytest.mark.parametrize(
    "value",
    [
        0,
        2**31 - 1,
        2**31,
        -(2**63),
        2**63 - 1,
        Int32(-(2**31)),
        Int32(2**31 - 1),
        "",
        " ",
        "\N{GRINNING FACE}\ue000\x01\t\n",
        b"",
        b"\x00\xff",
        True,
        False,
        math.inf,
        -math.inf,
        1e308,
        5e-324,
        UUID(int=0),
    ],
)
def test_extremes_come_back(through: Any, value: Value) -> None:
    back = through({"P": value}).properties["P"]

    assert (back, type(back)) == (value, type(value))


@BOTH_WAYS
def test_not_a_number_comes_back(through: Any) -> None:
    back = through({"P": math.nan}).properties["P"]

    assert isinstance(back, float)
    assert math.isnan(back)


@BOTH_WAYS
def test_a_moment_that_was_read_goes_back_with_its_seven_digits(through: Any) -> None:
    read = Instant.of(datetime(2026, 1, 2, 3, 4, 5, 123456, UTC), "2026-01-02T03:04:05.1234567Z")

    back = through({"P": read}).properties["P"]

    assert (back, back.text) == (read, "2026-01-02T03:04:05.1234567Z")


@BOTH_WAYS
def test_a_moment_reckoned_from_one_that_was_read_is_stored_by_its_value(through: Any) -> None:
    read = Instant.of(datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00.0000001Z")

    back = through({"P": read + timedelta(seconds=1)}).properties["P"]

    assert back == datetime(2026, 1, 2, 0, 0, 1, tzinfo=UTC)


@BOTH_WAYS
def test_a_moment_of_another_zone_is_stored_in_utc(through: Any) -> None:
    moment = datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    back = through({"P": moment}).properties["P"]

    assert back == moment
    assert back.utcoffset() == timedelta(0)


@BOTH_WAYS
@pytest.mark.parametrize(
    ("value", "code"),
    [
        (datetime(2026, 1, 2), "NaiveDatetime"),  # noqa: DTZ001 - that is what is refused
        (datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=2))), "PropertyOutOfRange"),
        (2**63, "PropertyOutOfRange"),
        (-(2**63) - 1, "PropertyOutOfRange"),
        (Int32(2**31), "PropertyOutOfRange"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(through: Any, value: Value, code: str) -> None:
    with pytest.raises(InvalidPropertyError) as caught:
        through({"Age": value})

    assert caught.value.code == code
    assert caught.value.facts == {"property": "Age"}


class Grade(StrEnum):
    SENIOR = "s"


class Colour(str, Enum):  # noqa: UP042 - its str() is its name
    RED = "r"


@BOTH_WAYS
@pytest.mark.parametrize("value", [Grade.SENIOR, Colour.RED])
def test_a_subclass_of_text_is_stored_as_the_text(through: Any, value: str) -> None:
    back = through({"P": value}).properties["P"]

    assert (back, type(back)) == (value.value, str)  # type: ignore[attr-defined]


def test_a_selected_property_that_is_not_there_is_absent() -> None:
    entity = answered({"PartitionKey": "Sales", "RowKey": "00010", "Age": None})

    assert sdk_rows.row_of(entity) == Row(KEY, {})


def test_a_large_integer_without_a_type_is_read_as_one() -> None:
    entity = answered({"PartitionKey": "Sales", "RowKey": "00010", "Age": 2**40})

    assert sdk_rows.row_of(entity).properties == {"Age": 2**40}


def test_a_truth_with_its_type_spelled_out_is_read_as_one() -> None:
    entity = answered(
        {"PartitionKey": "Sales", "RowKey": "1", "Is": False, "Is@odata.type": "Edm.Boolean"}
    )

    assert sdk_rows.row_of(entity).properties == {"Is": False}


def test_an_unknown_type_is_left_as_it_came() -> None:
    came: Any = EntityProperty("Edm.Future", "42")
    entity = TableEntity(PartitionKey="Sales", RowKey="00010", P=came)

    row = sdk_rows.row_of(entity)

    assert row.properties["P"] is came
    assert sdk_rows.entity_of(row)["P"] is came


def test_etag_and_timestamp_are_no_properties() -> None:
    entity = answered(
        {
            "odata.etag": "W/\"datetime'2026-01-02T03%3A04%3A05.1234567Z'\"",
            "PartitionKey": "Sales",
            "RowKey": "00010",
            "Timestamp": "2026-01-02T03:04:05.1234567Z",
        }
    )

    row = sdk_rows.row_of(entity)

    assert row.properties == {}
    assert row.etag == "W/\"datetime'2026-01-02T03%3A04%3A05.1234567Z'\""
    assert isinstance(row.timestamp, Instant)
    assert row.timestamp.text == "2026-01-02T03:04:05.1234567Z"


def test_the_engine_refuses_what_is_no_property() -> None:
    with pytest.raises(InvalidPropertyError) as caught:
        direct_rows.members_of({"P": [1]})  # type: ignore[dict-item]

    assert caught.value.code == "PropertyTypeMismatch"
