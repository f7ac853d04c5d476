"""Rows survive the wire, and the engine, to the bit and to the type; the SDK reads the same."""

import base64
import json
import math
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from azure.data.tables._deserialize import _convert_to_entity
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidPropertyError
from partita.patterns.ports import direct_rows
from partita.patterns.ports.group_body import print_group
from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.row_json import MISREAD, Foreign, print_row, read_row
from partita.patterns.protocol.values import Instant, Int32, Row, RowKey, Value
from partita.patterns.protocol.wire_size import ENVELOPE_BYTES, wire_bytes
from partita.tables.entity import build
from support import sdk_oracle

KEY = RowKey("Sales", "00010")


def through_wire(properties: dict[str, Value]) -> Row:
    return read_row(json.loads(print_row(Row(KEY, properties))))


def through_sdk(properties: dict[str, Value]) -> Row:
    """What we send, as the official client reads it."""
    return as_the_sdk_reads(json.loads(print_row(Row(KEY, properties))))


def as_the_sdk_reads(members: dict[str, Any]) -> Row:
    return sdk_oracle.row_of(_convert_to_entity(members))  # type: ignore[no-untyped-call]


def through_engine(properties: dict[str, Value]) -> Row:
    stored = build((KEY.partition, KEY.row), 1, direct_rows.members_of(properties))
    # Without the members at hand they are read from the document, as after a restart.
    return direct_rows.row_of(type(stored)(*KEY_PARTS, stored.ticks, stored.document))


KEY_PARTS = (KEY.partition, KEY.row)
EVERY_WAY = pytest.mark.parametrize("through", [through_wire, through_sdk, through_engine])

VALUES = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
    st.binary(max_size=30),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**31), 2**31 - 1).map(Int32),
    st.floats(allow_nan=False).map(lambda value: value or 0.0),
    st.uuids(),
)


@EVERY_WAY
@given(value=VALUES)
def test_every_value_comes_back_with_its_type(through: Any, value: Value) -> None:
    back = through({"P": value}).properties["P"]

    assert back == value
    assert type(back) is type(value)


@EVERY_WAY
@given(moment=st.datetimes(datetime(1601, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))  # noqa: DTZ001 - hypothesis puts the zone in
def test_every_moment_comes_back(through: Any, moment: datetime) -> None:
    back = through({"P": moment}).properties["P"]

    assert back == moment
    assert isinstance(back, Instant)


@EVERY_WAY
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


@EVERY_WAY
def test_not_a_number_comes_back(through: Any) -> None:
    back = through({"P": math.nan}).properties["P"]

    assert isinstance(back, float)
    assert math.isnan(back)


@EVERY_WAY
def test_a_moment_that_was_read_goes_back_with_its_seven_digits(through: Any) -> None:
    read = Instant.of(datetime(2026, 1, 2, 3, 4, 5, 123456, UTC), "2026-01-02T03:04:05.1234567Z")

    back = through({"P": read}).properties["P"]

    assert (back, back.text) == (read, "2026-01-02T03:04:05.1234567Z")


@EVERY_WAY
def test_a_moment_reckoned_from_one_that_was_read_is_stored_by_its_value(through: Any) -> None:
    read = Instant.of(datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00.0000001Z")

    back = through({"P": read + timedelta(seconds=1)}).properties["P"]

    assert back == datetime(2026, 1, 2, 0, 0, 1, tzinfo=UTC)


@EVERY_WAY
def test_a_moment_of_another_zone_is_stored_in_utc(through: Any) -> None:
    moment = datetime(2026, 1, 2, 3, tzinfo=timezone(timedelta(hours=5, minutes=30)))

    back = through({"P": moment}).properties["P"]

    assert back == moment
    assert back.utcoffset() == timedelta(0)


@EVERY_WAY
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


@EVERY_WAY
@pytest.mark.parametrize("value", [Grade.SENIOR, Colour.RED])
def test_a_subclass_of_text_is_stored_as_the_text(through: Any, value: str) -> None:
    back = through({"P": value}).properties["P"]

    assert (back, type(back)) == (value.value, str)  # type: ignore[attr-defined]


ANSWERS = st.fixed_dictionaries(
    {
        "PartitionKey": st.text(max_size=5),
        "RowKey": st.text(max_size=5),
        "Timestamp": st.sampled_from(["2026-01-02T03:04:05.1234567Z", "2026-01-02T03:04:05Z"]),
        "Number": st.integers(-(2**40), 2**40),
        "Share": st.floats(allow_nan=False, allow_infinity=False),
        "Name": st.none() | st.text(max_size=5),
        "Is": st.booleans(),
        "Large@odata.type": st.just("Edm.Int64"),
        "Large": st.integers(-(2**63), 2**63 - 1).map(str),
        "Raw@odata.type": st.just("Edm.Binary"),
        "Raw": st.binary(max_size=5).map(lambda raw: base64.b64encode(raw).decode()),
        "At@odata.type": st.just("Edm.DateTime"),
        "At": st.sampled_from(["1601-01-01T00:00:00Z", "2026-01-02T03:04:05.1234567Z"]),
        "Odd@odata.type": st.just("Edm.Double"),
        "Odd": st.sampled_from(["NaN", "Infinity", "-Infinity"]),
        "Who@odata.type": st.just("Edm.Guid"),
        "Who": st.uuids().map(str),
    },
    optional={"odata.etag": st.just("W/\"datetime'2026'\""), "odata.metadata": st.just("x")},
)


@given(members=ANSWERS)
def test_answers_mean_what_the_official_client_makes_of_them(members: dict[str, Any]) -> None:
    ours, theirs = read_row(members), as_the_sdk_reads(members)

    assert repr(ours) == repr(theirs)
    assert ours.timestamp == theirs.timestamp
    assert {name: type(value) for name, value in ours.properties.items()} == {
        name: type(value) for name, value in theirs.properties.items()
    }


def test_a_selected_property_that_is_not_there_is_absent() -> None:
    assert read_row({"PartitionKey": "Sales", "RowKey": "00010", "Age": None}) == Row(KEY, {})


def test_a_large_integer_without_a_type_is_read_as_one() -> None:
    row = read_row({"PartitionKey": "Sales", "RowKey": "00010", "Age": 2**40})

    assert row.properties == {"Age": 2**40}
    assert type(row.properties["Age"]) is int


@pytest.mark.parametrize("said", [False, "false", "False"])
def test_a_truth_with_its_type_spelled_out_is_read_as_one(said: object) -> None:
    members = {"PartitionKey": "Sales", "RowKey": "1", "Is": said, "Is@odata.type": "Edm.Boolean"}

    assert read_row(members).properties == {"Is": False}


def test_an_unknown_type_goes_back_as_it_came() -> None:
    members = {"PartitionKey": "Sales", "RowKey": "1", "P@odata.type": "Edm.Future", "P": "42"}

    row = read_row(members)

    assert row.properties["P"] == Foreign("Edm.Future", "42")
    assert json.loads(print_row(row)) == members


def test_an_unknown_type_is_measured_for_groups() -> None:
    row = read_row({"PartitionKey": "a", "RowKey": "1", "P@odata.type": "Edm.Future", "P": "42"})
    operation = RowOperation(Verb.INSERT, row)

    size = ENVELOPE_BYTES + wire_bytes(operation)

    assert len(print_group("http://x/staff", [operation], "7" * 36)) <= size


def test_etag_and_timestamp_are_no_properties() -> None:
    row = read_row(
        {
            "odata.etag": "W/\"datetime'2026-01-02T03%3A04%3A05.1234567Z'\"",
            "PartitionKey": "Sales",
            "RowKey": "00010",
            "Timestamp": "2026-01-02T03:04:05.1234567Z",
        }
    )

    assert row.properties == {}
    assert row.etag == "W/\"datetime'2026-01-02T03%3A04%3A05.1234567Z'\""
    assert isinstance(row.timestamp, Instant)
    assert row.timestamp.text == "2026-01-02T03:04:05.1234567Z"


@pytest.mark.parametrize(
    "wrong",
    [
        {"PartitionKey": "Sales"},
        {"RowKey": 7},
        {"Timestamp": 7},
        {"Timestamp": "yesterday"},
        {"odata.etag": 7},
        {"P": [1]},
        {"P": {"a": 1}},
        {"P@odata.type": "Edm.Int64", "P": "seven"},
        {"P@odata.type": "Edm.Int64", "P": [7]},
        {"P@odata.type": "Edm.Guid", "P": 7},
        {"P@odata.type": "Edm.Guid", "P": "7"},
        {"P@odata.type": "Edm.Binary", "P": "a"},
        {"P@odata.type": "Edm.Binary", "P": 7},
        {"P@odata.type": "Edm.DateTime", "P": "7"},
        {"P@odata.type": "Edm.Double", "P": {}},
        {"P@odata.type": "Edm.String", "P": 7},
        {"P@odata.type": ["Edm.Int64"], "P": "7"},
    ],
)
def test_what_no_table_service_answers_is_misread(wrong: dict[str, Any]) -> None:
    members = {"PartitionKey": "Sales", "RowKey": "00010"} | wrong
    if wrong == {"PartitionKey": "Sales"}:
        del members["RowKey"]

    with pytest.raises(MISREAD):
        read_row(members)


def test_the_engine_refuses_an_invalid_property() -> None:
    with pytest.raises(InvalidPropertyError) as caught:
        direct_rows.members_of({"P": [1]})  # type: ignore[dict-item]

    assert caught.value.code == "PropertyTypeMismatch"
