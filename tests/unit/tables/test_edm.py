import base64
import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.errors import InvalidPropertyError, LimitExceededError
from partita.tables import edm, limits


def stored(value: object, annotation: str | None = None) -> tuple[str | None, edm.Scalar]:
    return edm.canonical("X", value, annotation)


def refused(value: object, annotation: str | None = None) -> str:
    with pytest.raises((InvalidPropertyError, LimitExceededError)) as error:
        edm.canonical("X", value, annotation)
    assert error.value.facts == {"property": "X"}
    return error.value.code


# Types without annotation


@pytest.mark.parametrize("value", ["", " ", "a", "  lead and trail  ", "\x00", "\U0001f600"])
def test_a_plain_text_is_a_string_and_is_kept_exactly(value: str) -> None:
    assert stored(value) == (None, value)
    assert edm.type_of({"X": value}, "X") == edm.STRING


@pytest.mark.parametrize("value", [True, False])
def test_a_plain_truth_value_is_a_boolean(value: bool) -> None:
    assert stored(value) == (None, value)
    assert type(stored(value)[1]) is bool
    assert edm.type_of({"X": value}, "X") == edm.BOOLEAN


@pytest.mark.parametrize("value", [0, 1, -1, 2**31 - 1, -(2**31)])
def test_a_plain_whole_number_is_an_int32(value: int) -> None:
    assert stored(value) == (None, value)
    assert type(stored(value)[1]) is int
    assert edm.type_of({"X": value}, "X") == edm.INT32


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63, 10**30])
def test_a_plain_whole_number_beyond_int32_is_refused(value: int) -> None:
    assert refused(value) == "InvalidInput"


@pytest.mark.parametrize("value", [0.5, 5.0, -1e300, 5e-324, 1.7976931348623157e308])
def test_a_plain_number_with_a_fraction_is_a_double(value: float) -> None:
    assert stored(value) == (None, value)
    assert type(stored(value)[1]) is float
    assert edm.type_of({"X": value}, "X") == edm.DOUBLE


@pytest.mark.parametrize("value", [None, [], [1], {}, {"a": 1}, b"x"])
def test_an_invalid_scalar_is_refused(value: object) -> None:
    assert refused(value) == "InvalidInput"


@pytest.mark.parametrize("value", ["x", 1, 0.5, True])
@pytest.mark.parametrize("annotation", ["Edm.Decimal", "Edm.Single", "Edm.Byte", "", "edm.int32"])
def test_an_unknown_type_is_refused(value: object, annotation: str) -> None:
    assert refused(value, annotation) == "InvalidInput"


# String


@pytest.mark.parametrize("annotation", [None, edm.STRING])
@pytest.mark.parametrize(
    "value", ["x" * 32768, "\u00e9" * 32768, "\U0001f600" * 16384, "x" + "\U0001f600" * 16383 + "x"]
)
def test_a_string_may_have_64_kib_of_utf16(value: str, annotation: str | None) -> None:
    assert stored(value, annotation) == (None, value)


@pytest.mark.parametrize("annotation", [None, edm.STRING])
@pytest.mark.parametrize(
    "value", ["x" * 32769, "\u00e9" * 32769, "\U0001f600" * 16384 + "x", "\U0001f600" * 16385]
)
def test_a_string_over_64_kib_of_utf16_is_refused(value: str, annotation: str | None) -> None:
    assert refused(value, annotation) == "PropertyValueTooLarge"


@pytest.mark.parametrize("value", [1, 0.5, True, None, []])
def test_an_annotated_string_must_be_a_text(value: object) -> None:
    assert refused(value, edm.STRING) == "InvalidInput"


# Int32 and Int64


@pytest.mark.parametrize(
    ("value", "number"),
    [("5", 5), ("-5", -5), ("+5", 5), ("007", 7), (5, 5), ("2147483647", 2**31 - 1)],
)
def test_an_annotated_int32_may_be_a_number_or_a_text(value: object, number: int) -> None:
    assert stored(value, edm.INT32) == (None, number)


@pytest.mark.parametrize(
    "value",
    [
        "2147483648",
        "-2147483649",
        2**31,
        "",
        " 5",
        "5 ",
        "5.0",
        "x",
        "\N{ARABIC-INDIC DIGIT FIVE}",
        5.0,
        True,
        None,
    ],
)
def test_an_invalid_int32_is_refused(value: object) -> None:
    assert refused(value, edm.INT32) == "InvalidInput"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("64", "64"),
        (64, "64"),
        ("-0", "0"),
        ("+7", "7"),
        ("00012", "12"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        (2**63 - 1, "9223372036854775807"),
        (-(2**63), "-9223372036854775808"),
    ],
)
def test_an_int64_is_a_text_in_one_form(value: object, text: str) -> None:
    assert stored(value, edm.INT64) == (edm.INT64, text)


@pytest.mark.parametrize(
    "value",
    [
        "9223372036854775808",
        "-9223372036854775809",
        2**63,
        -(2**63) - 1,
        "",
        "1L",
        "1.0",
        1.0,
        "9" * 100,
        True,
        False,
        None,
    ],
)
def test_an_invalid_int64_is_refused(value: object) -> None:
    assert refused(value, edm.INT64) == "InvalidInput"


# Double


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("0", 0.0),
        (5, 5.0),
        ("5", 5.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-1e3", -1000.0),
        (0.1, 0.1),
        ("1.7976931348623157e308", 1.7976931348623157e308),
        ("1e-400", 0.0),
    ],
)
def test_an_annotated_double_may_be_any_number(value: object, number: float) -> None:
    kept, found = stored(value, edm.DOUBLE)

    assert kept is None
    assert type(found) is float
    assert found == number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("NaN", "NaN"),
        ("Infinity", "Infinity"),
        ("-Infinity", "-Infinity"),
        ("INF", "Infinity"),
        ("-INF", "-Infinity"),
    ],
)
def test_a_double_that_is_not_finite_is_an_annotated_text(value: str, text: str) -> None:
    assert stored(value, edm.DOUBLE) == (edm.DOUBLE, text)


@pytest.mark.parametrize("value", [-0.0, "-0.0", "-0"])
def test_minus_zero_is_zero(value: object) -> None:
    _, number = stored(value, edm.DOUBLE)

    assert math.copysign(1, float(number)) == 1


@pytest.mark.parametrize(
    "value",
    [
        "1e400",
        "-1e400",
        "nan",
        "inf",
        "-NaN",
        "",
        " 1",
        "0x1p3",
        "1_000",
        "1e",
        ".",
        True,
        None,
        10**400,
    ],
)
def test_an_invalid_double_is_refused(value: object) -> None:
    assert refused(value, edm.DOUBLE) == "InvalidInput"


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_plain_double_is_finite(value: float) -> None:
    assert refused(value) == "InvalidInput"


# Boolean


@pytest.mark.parametrize(
    ("value", "truth"),
    [(True, True), (False, False), ("true", True), ("false", False), ("True", True)],
)
def test_an_annotated_boolean_may_be_a_text(value: object, truth: bool) -> None:
    assert stored(value, edm.BOOLEAN) == (None, truth)


@pytest.mark.parametrize("value", ["not a bool", "", "1", "yes", 1, 0, 0.0, None])
def test_an_invalid_boolean_is_refused(value: object) -> None:
    assert refused(value, edm.BOOLEAN) == "InvalidInput"


# DateTime


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("2008-07-10T00:00:00", "2008-07-10T00:00:00Z"),
        ("2008-07-10T00:00:00Z", "2008-07-10T00:00:00Z"),
        ("2008-07-10", "2008-07-10T00:00:00Z"),
        ("2008-07-10T01:02Z", "2008-07-10T01:02:00Z"),
        ("2008-07-10T00:00:00.0000000Z", "2008-07-10T00:00:00Z"),
        ("2008-07-10T00:00:00.1000000Z", "2008-07-10T00:00:00.1Z"),
        ("2008-07-10T00:00:00.1234567Z", "2008-07-10T00:00:00.1234567Z"),
        ("2008-07-10T00:00:00.0000001Z", "2008-07-10T00:00:00.0000001Z"),
        ("2008-07-10T00:00:00.123456789Z", "2008-07-10T00:00:00.1234567Z"),
        ("2008-07-10T02:00:00+02:00", "2008-07-10T00:00:00Z"),
        ("2008-07-09T18:30:00-05:30", "2008-07-10T00:00:00Z"),
        ("2008-02-29T23:59:59.5Z", "2008-02-29T23:59:59.5Z"),
        ("1601-01-01T00:00:00Z", "1601-01-01T00:00:00Z"),
        ("9999-12-31T23:59:59.9999999Z", "9999-12-31T23:59:59.9999999Z"),
    ],
)
def test_a_datetime_is_utc_without_trailing_zeros(value: str, text: str) -> None:
    assert stored(value, edm.DATETIME) == (edm.DATETIME, text)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1600-12-31T23:59:59.9999999Z", "12/31/1600 23:59:59"),
        ("0001-01-01T00:00:00Z", "01/01/0001 00:00:00"),
        ("1600-06-05", "06/05/1600 00:00:00"),
    ],
)
def test_a_datetime_before_1601_is_out_of_range(value: str, shown: str) -> None:
    with pytest.raises(InvalidPropertyError) as error:
        edm.canonical("Born", value, edm.DATETIME)

    assert error.value.code == "OutOfRangeInput"
    assert error.value.message == f"The 'Born' parameter of value '{shown}' is out of range."


@pytest.mark.parametrize(
    "value", ["9999-12-31T23:59:59-00:01", "1601-01-01T00:00:00+00:01", "0001-01-01T00:00:00+14:00"]
)
def test_an_offset_cannot_carry_a_datetime_out_of_range(value: str) -> None:
    assert refused(value, edm.DATETIME) == "OutOfRangeInput"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "2008",
        "2008-7-1",
        "2008-13-01",
        "2008-02-30",
        "2007-02-29T00:00:00Z",
        "2008-07-10T24:00:00Z",
        "2008-07-10T00:60:00Z",
        "2008-07-10T00:00:60Z",
        "0000-01-01",
        "10000-01-01T00:00:00Z",
        "2008-07-10T00:00:00.Z",
        " 2008-07-10",
        "2008-07-10\n",
        "2008-07-10T00:00:00+24:00",
        "2008-07-10T00:00:00+01:60",
        5,
        None,
        True,
    ],
)
def test_an_invalid_datetime_is_refused(value: object) -> None:
    assert refused(value, edm.DATETIME) == "InvalidInput"


@given(st.integers(edm.TICKS_MIN, edm.TICKS_MAX))
def test_ticks_survive_being_printed(ticks: int) -> None:
    text = edm.text_of(ticks)

    assert edm.ticks_of(text) == ticks
    assert stored(text, edm.DATETIME) == (edm.DATETIME, text)


@given(st.datetimes(datetime(1601, 1, 1), datetime(9999, 12, 31, 23, 59, 59)))  # noqa: DTZ001 - UTC by rule
def test_ticks_agree_with_the_calendar(moment: datetime) -> None:
    elapsed = moment.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)

    assert edm.ticks_of(moment.isoformat()) == elapsed // timedelta(microseconds=1) * 10


@given(
    st.integers(edm.TICKS_MIN, edm.TICKS_MAX),
    st.one_of(st.integers(0, 10), st.integers(0, 10**12)),
)
def test_printed_ticks_order_as_times_do_without_their_zone(ticks: int, more: int) -> None:
    later = min(ticks + more, edm.TICKS_MAX)

    assert (edm.text_of(ticks)[:-1] < edm.text_of(later)[:-1]) == (ticks < later)


# Guid and Binary


@pytest.mark.parametrize(
    "value", ["c9da6455-213d-42c9-9a79-3e9149a57833", "C9DA6455-213D-42C9-9A79-3E9149A57833"]
)
def test_a_guid_is_lower_case(value: str) -> None:
    assert stored(value, edm.GUID) == (edm.GUID, "c9da6455-213d-42c9-9a79-3e9149a57833")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "x",
        "c9da6455213d42c99a793e9149a57833",
        "{c9da6455-213d-42c9-9a79-3e9149a57833}",
        "c9da6455-213d-42c9-9a79-3e9149a5783g",
        "c9da6455-213d-42c9-9a79-3e9149a57833\n",
        5,
        None,
    ],
)
def test_an_invalid_guid_is_refused(value: object) -> None:
    assert refused(value, edm.GUID) == "InvalidInput"


@given(st.binary(max_size=200))
def test_a_binary_is_base64_in_one_form(raw: bytes) -> None:
    text = base64.b64encode(raw).decode()

    assert stored(text, edm.BINARY) == (edm.BINARY, text)


@pytest.mark.parametrize("value", ["AQ", "A===", "AQ==AQ==", "A Q==", "AQ==\n", "*", "\u00e9", 5])
def test_an_invalid_base64_is_refused(value: object) -> None:
    assert refused(value, edm.BINARY) == "InvalidInput"


def test_a_binary_may_have_64_kib() -> None:
    text = base64.b64encode(b"x" * limits.PROPERTY_BYTES_MAX).decode()

    assert stored(text, edm.BINARY) == (edm.BINARY, text)


def test_a_binary_over_64_kib_is_refused() -> None:
    text = base64.b64encode(b"x" * (limits.PROPERTY_BYTES_MAX + 1)).decode()

    assert refused(text, edm.BINARY) == "PropertyValueTooLarge"


# Sizes


@given(st.text())
def test_utf16_length_is_that_of_the_encoding(text: str) -> None:
    units = sum(2 if character > "\uffff" else 1 for character in text)

    assert edm.utf16_length(text) == units


@pytest.mark.parametrize(
    ("value", "annotation", "size"),
    [
        ("", None, 4),
        ("abc", None, 10),
        ("\U0001f600", None, 8),
        (5, None, 4),
        (5, edm.INT64, 8),
        (0.5, None, 8),
        ("NaN", edm.DOUBLE, 8),
        (True, None, 1),
        ("2008-07-10", edm.DATETIME, 8),
        ("c9da6455-213d-42c9-9a79-3e9149a57833", edm.GUID, 16),
        ("", edm.BINARY, 4),
        ("AQID", edm.BINARY, 7),
        ("AQ==", edm.BINARY, 5),
    ],
)
def test_a_value_counts_as_the_service_counts_it(
    value: object, annotation: str | None, size: int
) -> None:
    kept, scalar = stored(value, annotation)
    members: edm.Members = {"X": scalar} if kept is None else {"X@odata.type": kept, "X": scalar}

    assert edm.size_of(members, "X") == size
