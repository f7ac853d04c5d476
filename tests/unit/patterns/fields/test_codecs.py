import dataclasses
import datetime as dt
import enum
import math
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import TypeAliasType

from partita.errors import DefinitionError, InvalidPropertyError
from partita.patterns.fields.codecs import Codec, codec_for
from partita.patterns.protocol.values import Instant, Int32


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Grade(enum.StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


class OldGrade(str, enum.Enum):  # noqa: UP042 - the kind whose text is the name of the member
    JUNIOR = "j"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2**40


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Mixed(enum.Enum):
    TEXT = "t"
    NUMBER = 1


@dataclasses.dataclass
class Address:
    street: str
    numbers: list[int]


class Point(msgspec.Struct, frozen=True):
    x: int
    y: float = 0.0


class Circle(msgspec.Struct, frozen=True, tag=True):
    radius: float


class Square(msgspec.Struct, frozen=True, tag=True):
    side: float


@attrs.define
class Box:
    width: int


class Model(pydantic.BaseModel):
    name: str
    parts: list[int] = []


class Row(TypedDict):
    name: str


class Pair(NamedTuple):
    left: int
    right: str


class Tree(msgspec.Struct):
    value: int
    children: list["Tree"] = []


UserId = NewType("UserId", int)
Unbound = TypeVar("Unbound")


def codec(annotation: object) -> Codec:
    return codec_for(annotation, where="Employee.value")


def round_trip(annotation: object, value: object) -> object:
    found = codec(annotation)
    return found.decode(found.encode(value))


# ---------------------------------------------------------------------------------------------
# Round trips

ZONES = st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30))])
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
FINITE = st.floats(allow_nan=False, allow_infinity=False)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False)
JSON = INT64 | TEXTS | st.none() | st.booleans()
FIRST = dt.datetime(1601, 1, 2)  # noqa: DTZ001 - hypothesis adds the zone
VALUES: list[tuple[object, st.SearchStrategy[Any], str]] = [
    (bool, st.booleans(), "Edm.Boolean"),
    (int, INT64, "Edm.Int64"),
    (Int32, st.integers(-(2**31), 2**31 - 1), "Edm.Int32"),
    (UserId, INT64, "Edm.Int64"),
    (Annotated[int, "a note"], INT64, "Edm.Int64"),
    (float, st.floats(allow_nan=False), "Edm.Double"),
    (str, TEXTS, "Edm.String"),
    (bytes, st.binary(), "Edm.Binary"),
    (UUID, st.uuids(), "Edm.Guid"),
    (dt.datetime, st.datetimes(FIRST, timezones=ZONES), "Edm.DateTime"),
    (dt.date, st.dates(), "Edm.String"),
    (dt.time, st.times(), "Edm.String"),
    (
        dt.timedelta,
        st.timedeltas(dt.timedelta(days=-(10**7)), dt.timedelta(days=10**7)),
        "Edm.Int64",
    ),
    (Decimal, DECIMALS, "Edm.String"),
    (Color, st.sampled_from(Color), "Edm.String"),
    (Grade, st.sampled_from(Grade), "Edm.String"),
    (OldGrade, st.sampled_from(OldGrade), "Edm.String"),
    (Level, st.sampled_from(Level), "Edm.Int64"),
    (Rights, st.sampled_from([*Rights, Rights.READ | Rights.WRITE]), "Edm.Int64"),
    (Literal["a", "b"], st.sampled_from(["a", "b"]), "Edm.String"),
    (Literal[1, 2], st.sampled_from([1, 2]), "Edm.Int64"),
    (list[int], st.lists(INT64), "Edm.String"),
    (tuple[int, ...], st.lists(INT64).map(tuple), "Edm.String"),
    (tuple[int, str], st.tuples(INT64, TEXTS), "Edm.String"),
    (set[int], st.sets(INT64), "Edm.String"),
    (frozenset[str], st.frozensets(TEXTS), "Edm.String"),
    (dict[str, float], st.dictionaries(TEXTS, FINITE), "Edm.String"),
    (dict[int, Decimal], st.dictionaries(INT64, DECIMALS), "Edm.String"),
    (list[Grade], st.lists(st.sampled_from(Grade)), "Edm.String"),
    (list[dt.datetime], st.lists(st.datetimes(timezones=st.just(dt.UTC))), "Edm.String"),
    (dict[str, Any], st.dictionaries(TEXTS, JSON), "Edm.String"),
    (Address, st.builds(Address, TEXTS, st.lists(INT64)), "Edm.String"),
    (Point, st.builds(Point, INT64, FINITE), "Edm.String"),
    (Circle | Square, st.sampled_from([Circle(1.5), Square(2.0)]), "Edm.String"),
    (list[Circle | Square], st.just([Circle(1.5), Square(2.0)]), "Edm.String"),
    (Box, st.builds(Box, INT64), "Edm.String"),
    (Model, st.builds(Model, name=TEXTS, parts=st.lists(INT64)), "Edm.String"),
    (list[Model], st.lists(st.builds(Model, name=TEXTS)), "Edm.String"),
    (Row, st.fixed_dictionaries({"name": TEXTS}), "Edm.String"),
    (Pair, st.builds(Pair, INT64, TEXTS), "Edm.String"),
]


@pytest.mark.parametrize(("annotation", "values", "edm"), VALUES, ids=[str(v[0]) for v in VALUES])
def test_every_type_is_read_back_as_it_was_written(
    annotation: object, values: st.SearchStrategy[Any], edm: str
) -> None:
    found = codec(annotation)
    optional = codec(annotation | None)  # type: ignore[operator]

    @given(values)
    def check(value: object) -> None:
        stored = found.encode(value)

        assert stored is not None
        assert found.decode(stored) == value
        assert type(found.decode(stored)) is type(value) or isinstance(value, int)
        assert optional.decode(optional.encode(value)) == value

    check()
    assert found.edm == edm
    assert not found.is_optional
    assert optional.is_optional


def test_none_is_an_absent_property_where_it_may_be() -> None:
    assert codec(int | None).encode(None) is None
    assert codec(int | None).decode(None) is None

    with pytest.raises(InvalidPropertyError, match="a value of type NoneType was given"):
        codec(int).encode(None)
    with pytest.raises(InvalidPropertyError, match="nothing is stored"):
        codec(int).decode(None)


def test_none_in_place_of_a_nested_value_is_refused() -> None:
    with pytest.raises(InvalidPropertyError):
        codec(list[int]).encode(None)
    with pytest.raises(InvalidPropertyError):
        codec(list[int]).decode("null")


def test_none_in_a_literal_makes_it_optional() -> None:
    found = codec(Literal["a", None])

    assert found.encode(None) is None
    assert found.encode("a") == "a"


def test_none_inside_a_container_does_not_make_it_optional() -> None:
    assert not codec(dict[str, None]).is_optional
    assert round_trip(list[int | None], [1, None]) == [1, None]


# ---------------------------------------------------------------------------------------------
# Numbers


def test_an_int_is_always_of_64_bits() -> None:
    assert codec(int).encode(2**40) == 2**40
    assert type(codec(int).encode(7)) is int
    assert codec(int).edm == "Edm.Int64"


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_an_int_beyond_64_bits_is_refused(value: int) -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        codec(int).encode(value)

    assert raised.value.code == "PropertyOutOfRange"


def test_int32_is_written_as_such_and_both_are_read_from_both() -> None:
    assert type(codec(Int32).encode(7)) is Int32
    assert codec(int).decode(Int32(7)) == 7
    assert type(codec(int).decode(Int32(7))) is int
    assert type(codec(Int32).decode(7)) is Int32
    with pytest.raises(InvalidPropertyError):
        codec(Int32).encode(2**31)
    with pytest.raises(InvalidPropertyError):
        codec(Int32).decode(2**31)


def test_a_bool_is_not_a_number_and_a_number_is_not_a_bool() -> None:
    for annotation, value in ((int, True), (float, True), (Int32, False), (bool, 1)):
        with pytest.raises(InvalidPropertyError):
            codec(annotation).encode(value)
        with pytest.raises(InvalidPropertyError):
            codec(annotation).decode(value)


def test_a_member_of_an_int_enum_in_an_int_field_is_stored_as_a_plain_int() -> None:
    assert type(codec(int).encode(Level.LOW)) is int


def test_nan_and_infinity_are_kept() -> None:
    nan = round_trip(float, math.nan)

    assert isinstance(nan, float)
    assert math.isnan(nan)
    assert round_trip(float, -math.inf) == -math.inf


def test_a_float_field_takes_and_reads_whole_numbers_that_are_floats() -> None:
    assert type(codec(float).encode(3)) is float
    assert codec(float).decode(3) == 3.0
    assert type(codec(float).decode(Int32(3))) is float
    for value in (2**53 + 1, 10**400):
        with pytest.raises(InvalidPropertyError) as raised:
            codec(float).encode(value)
        assert raised.value.code == "PropertyOutOfRange"


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("9.50", "9.5"),
        ("9.5", "9.5"),
        ("1E+2", "100"),
        ("100", "100"),
        ("-0.00", "0"),
        ("0.0001", "0.0001"),
        ("-12.340", "-12.34"),
        ("1E+1000", "1E+1000"),
        ("10E+999", "1E+1000"),
        ("1E-1000", "1E-1000"),
    ],
)
def test_equal_decimals_are_stored_as_equal_text(value: str, stored: str) -> None:
    assert codec(Decimal).encode(Decimal(value)) == stored


def test_a_decimal_keeps_all_its_digits() -> None:
    long = Decimal("1234567890123456789012345678901234567890.123456789")

    assert round_trip(Decimal, long) == long


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "sNaN"])
def test_a_decimal_that_is_not_finite_is_refused(value: str) -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        codec(Decimal).encode(Decimal(value))
    with pytest.raises(InvalidPropertyError):
        codec(Decimal).decode(value)

    assert raised.value.code == "PropertyOutOfRange"


def test_stored_text_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(InvalidPropertyError, match="the stored text is not a number"):
        codec(Decimal).decode("nine")


# ---------------------------------------------------------------------------------------------
# Times


def test_a_naive_datetime_is_refused() -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        codec(dt.datetime).encode(dt.datetime(2026, 1, 1))  # noqa: DTZ001 - that is the point

    assert raised.value.code == "NaiveDatetime"
    assert "UTC" in raised.value.hint


def test_a_datetime_is_stored_in_utc() -> None:
    there = dt.datetime(2026, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=3)))

    stored = codec(dt.datetime).encode(there)

    assert isinstance(stored, dt.datetime)
    assert stored.isoformat() == "2025-12-31T23:00:00+00:00"


def test_an_instant_goes_back_with_all_its_digits() -> None:
    instant = Instant.of(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "2026-01-01T00:00:00.0000001Z")

    stored = codec(dt.datetime).encode(codec(dt.datetime).decode(instant))

    assert stored is instant


def test_what_is_reckoned_from_an_instant_is_stored_by_its_value() -> None:
    instant = Instant.of(dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "2026-01-01T00:00:00.0000001Z")

    stored = codec(dt.datetime).encode(instant + dt.timedelta(seconds=1))

    assert type(stored) is dt.datetime
    assert stored.second == 1


@pytest.mark.parametrize(
    "value",
    [
        dt.datetime(1600, 12, 31, 23, 59, 59, tzinfo=dt.UTC),
        dt.datetime(1601, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-2))),
        dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1))),
    ],
)
def test_a_datetime_that_the_service_does_not_know_is_refused(value: dt.datetime) -> None:
    with pytest.raises(InvalidPropertyError, match="1601 to 9999"):
        codec(dt.datetime).encode(value)


def test_the_first_and_the_last_datetime_of_the_service_are_stored() -> None:
    first = dt.datetime(1601, 1, 1, tzinfo=dt.UTC)
    last = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC)

    assert round_trip(dt.datetime, first) == first
    assert round_trip(dt.datetime, last) == last


def test_a_date_is_not_a_datetime_and_a_datetime_is_not_a_date() -> None:
    with pytest.raises(InvalidPropertyError):
        codec(dt.date).encode(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))
    with pytest.raises(InvalidPropertyError):
        codec(dt.datetime).encode(dt.date(2026, 1, 1))
    with pytest.raises(InvalidPropertyError):
        codec(dt.date).decode(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


def test_another_way_to_write_a_date_or_time_is_refused_because_filters_would_miss_it() -> None:
    for annotation, text in ((dt.date, "20260101"), (dt.date, "2026-W01-1"), (dt.time, "1200")):
        with pytest.raises(InvalidPropertyError):
            codec(annotation).decode(text)


def test_a_time_with_a_zone_is_refused() -> None:
    with pytest.raises(InvalidPropertyError, match="has a time zone"):
        codec(dt.time).encode(dt.time(1, tzinfo=dt.UTC))
    with pytest.raises(InvalidPropertyError):
        codec(dt.time).decode("01:00:00+00:00")


def test_a_timedelta_is_ticks() -> None:
    assert codec(dt.timedelta).encode(dt.timedelta(seconds=1)) == 10_000_000
    assert codec(dt.timedelta).encode(dt.timedelta(microseconds=-1)) == -10


def test_a_timedelta_that_cannot_be_exact_is_refused() -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        codec(dt.timedelta).encode(dt.timedelta.max)
    with pytest.raises(InvalidPropertyError, match="fraction of a microsecond"):
        codec(dt.timedelta).decode(11)

    assert raised.value.code == "PropertyOutOfRange"


# ---------------------------------------------------------------------------------------------
# Text, bytes, choices


def test_the_limit_of_text_counts_utf16_units() -> None:
    assert codec(str).encode("a" * 32_768)
    assert codec(str).encode("\U0001f600" * 16_384)
    for text in ("a" * 32_769, "\U0001f600" * 16_384 + "a"):
        with pytest.raises(InvalidPropertyError) as raised:
            codec(str).encode(text)
        assert raised.value.code == "PropertyTooLarge"
        assert "InBlob" in raised.value.hint


def test_the_limit_of_bytes_and_of_json_is_that_of_the_service() -> None:
    assert codec(bytes).encode(bytes(65_536))
    with pytest.raises(InvalidPropertyError, match="more than 65536 bytes"):
        codec(bytes).encode(bytes(65_537))
    with pytest.raises(InvalidPropertyError, match="more than 65536 bytes"):
        codec(list[str]).encode(["a" * 32_768])


def test_a_value_for_a_blob_has_no_limit() -> None:
    found = codec_for(bytes, where="Employee.photo", bytes_max=None)

    assert found.encode(bytes(70_000)) == bytes(70_000)


def test_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(InvalidPropertyError, match="surrogate"):
        codec(str).encode("\ud800")


def test_an_enum_is_stored_by_its_value_not_by_its_name() -> None:
    assert codec(Color).encode(Color.RED) == "r"
    assert codec(OldGrade).encode(OldGrade.JUNIOR) == "j"
    assert type(codec(Grade).encode(Grade.JUNIOR)) is str
    assert codec(str).encode(OldGrade.JUNIOR) == "j"
    assert type(codec(str).encode(OldGrade.JUNIOR)) is str


def test_a_value_in_place_of_a_member_is_refused() -> None:
    with pytest.raises(InvalidPropertyError, match="member of Grade") as raised:
        codec(Grade).encode("j")

    assert "not its value" in raised.value.hint


def test_a_stored_value_that_no_member_has_is_refused() -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        codec(Color).decode("green")
    with pytest.raises(InvalidPropertyError) as other:
        codec(Literal["a"]).decode("b")

    assert raised.value.code == other.value.code == "PropertyValueUnknown"


# ---------------------------------------------------------------------------------------------
# Nested values


def test_json_of_equal_values_is_equal() -> None:
    found = codec(dict[str, int])

    assert found.encode({"b": 1, "a": 2}) == found.encode({"a": 2, "b": 1}) == '{"a":2,"b":1}'
    assert codec(set[str]).encode({"c", "b", "a"}) == '["a","b","c"]'


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[float], [math.nan]),
        (list[float | None], [math.inf]),
        (list[int], ["1"]),
        (list[int], (1, 2)),
        (tuple[int, ...], [1, 2]),
        (dict[str, Any], {"when": (1, 2)}),
        (list[Any], [Decimal(1)]),
        (Address, Address("x", ["1"])),  # type: ignore[list-item]
        (Point, {"x": 1}),
        (Model, {"name": "x"}),
        (list[int], object()),
    ],
)
def test_a_nested_value_that_would_be_read_back_as_another_is_refused(
    annotation: object, value: object
) -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        codec(annotation).encode(value)

    assert raised.value.code in {"PropertyNotKept", "PropertyTypeMismatch"}


@pytest.mark.parametrize("stored", ["[1", '["1"]', "null", "{}", 7, b"[]"])
def test_json_of_another_shape_is_refused(stored: Any) -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        codec(list[int]).decode(stored)

    assert raised.value.code == "PropertyTypeMismatch"


def test_a_type_may_hold_itself() -> None:
    tree = Tree(1, [Tree(2, [Tree(3)]), Tree(4)])

    assert round_trip(Tree, tree) == tree


def test_a_nested_model_is_validated() -> None:
    with pytest.raises(InvalidPropertyError):
        codec(Model).decode('{"parts":[]}')


# ---------------------------------------------------------------------------------------------
# Errors


@pytest.mark.parametrize(
    ("annotation", "stored", "found"),
    [
        (int, "7", "Edm.String"),
        (str, 7, "Edm.Int64"),
        (str, Int32(7), "Edm.Int32"),
        (bytes, "x", "Edm.String"),
        (UUID, "x", "Edm.String"),
        (bool, 1.0, "Edm.Double"),
        (float, "1.0", "Edm.String"),
        (dt.datetime, "2026-01-01", "Edm.String"),
        (dt.date, True, "Edm.Boolean"),
        (dt.time, 7, "Edm.Int64"),
        (dt.timedelta, b"", "Edm.Binary"),
        (Decimal, 1.0, "Edm.Double"),
        (Grade, UUID(int=7), "Edm.Guid"),
        (list[int], dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "Edm.DateTime"),
    ],
)
def test_a_stored_value_of_another_type_is_refused_and_named(
    annotation: object, stored: Any, found: str
) -> None:
    expected = codec(annotation)

    with pytest.raises(InvalidPropertyError) as raised:
        expected.decode(stored)

    error = raised.value
    assert error.code == "PropertyTypeMismatch"
    assert error.message == f"Employee.value holds {expected.expected}; {found} is stored."
    assert error.facts == {"field": "Employee.value", "expected": expected.edm}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "7"),
        (int, 7.0),
        (Int32, "7"),
        (str, 7),
        (str, b"x"),
        (bytes, "x"),
        (bytes, bytearray(b"x")),
        (UUID, "x"),
        (float, "1.0"),
        (dt.datetime, "2026-01-01"),
        (dt.date, "2026-01-01"),
        (dt.time, "12:00:00"),
        (dt.timedelta, 7),
        (Decimal, 1.0),
        (Literal["a"], 7),
    ],
)
def test_a_given_value_of_another_type_is_refused_without_telling_it(
    annotation: object, value: object
) -> None:
    with pytest.raises(InvalidPropertyError) as raised:
        codec(annotation).encode(value)

    assert raised.value.code == "PropertyTypeMismatch"
    assert f"a value of type {type(value).__name__} was given" in raised.value.message
    assert repr(value) not in str(raised.value)


@pytest.mark.parametrize(
    "annotation",
    [
        Any,
        object,
        None,
        Any | None,
        complex,
        bytearray,
        int | str,
        int | str | None,
        Point | Circle,
        Point | int,
        Mixed,
        Literal["a", 1],
        Literal[True],
        Unbound,
        list[complex],
        msgspec.Raw,
        type("Own", (), {}),
        type("Text", (str,), {}),
    ],
)
def test_a_type_that_cannot_be_stored_is_refused_at_definition(annotation: object) -> None:
    with pytest.raises(DefinitionError) as raised:
        codec(annotation)

    assert raised.value.code == "FieldTypeRefused"
    assert "Employee.value" in raised.value.message
    assert raised.value.hint


def test_only_what_the_service_compares_as_python_does_is_ordered() -> None:
    ordered = [bool, int, Int32, float, str, bytes, UUID, dt.datetime, dt.date, dt.time]

    assert all(codec(annotation).is_ordered for annotation in [*ordered, dt.timedelta])
    assert codec(int | None).is_ordered
    for annotation in (Decimal, Color, Level, list[int], Point):
        assert not codec(annotation).is_ordered


@given(st.dates(), st.dates(), st.times(), st.times())
def test_dates_and_times_are_ordered_as_their_text(
    one: dt.date, other: dt.date, early: dt.time, late: dt.time
) -> None:
    assert (codec(dt.date).to_stored(one) < codec(dt.date).to_stored(other)) is (one < other)  # type: ignore[operator]
    assert (codec(dt.time).to_stored(early) < codec(dt.time).to_stored(late)) is (early < late)  # type: ignore[operator]


def test_an_alias_is_stored_as_what_it_stands_for() -> None:
    age = TypeAliasType("age", int)

    assert codec(age).edm == "Edm.Int64"
