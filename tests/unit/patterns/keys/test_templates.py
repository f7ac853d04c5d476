from ast import literal_eval
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum
from functools import partial
from typing import Annotated, Any, Literal, NewType, Optional
from uuid import UUID

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from partita.errors import DefinitionError, InvalidKeyError
from partita.patterns.fields.markers import Named
from partita.patterns.keys.format_specs import Role
from partita.patterns.keys.intervals import (
    Interval,
    at_least,
    at_most,
    between,
    comparable,
    less_than,
    more_than,
    starting_with,
)
from partita.patterns.keys.key_text import Bounds, is_legal
from partita.patterns.keys.templates import KeyTemplate, Spread
from partita.patterns.protocol.values import Instant, Int32

Values = dict[str, Any]


class Grade(StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


class Country(Enum):
    CHILE = "c"
    CHINA = "ch"
    CUBA = "cu_"


class Size(IntEnum):
    SMALL = 1
    MIDDLE = 2
    LARGE = 10


def a_template(text: str, role: Role = "row", **annotations: object) -> KeyTemplate:
    return KeyTemplate.compile(text, annotations, role=role, owner="Thing")


def a_wide_template(text: str, **annotations: object) -> KeyTemplate:
    return KeyTemplate.compile(text, annotations, role="row", owner="Thing", no_tilde=True)


def refused(text: str, annotations: Mapping[str, object], role: Role) -> DefinitionError | None:
    try:
        KeyTemplate.compile(text, annotations, role=role, owner="Thing")
    except DefinitionError as error:
        return error
    return None


def refusal_of(call: Any, *arguments: Any) -> InvalidKeyError:
    with pytest.raises(InvalidKeyError) as caught:
        call(*arguments)
    return caught.value


NEIGHBOURS = ' !"#$./09>?@[\\]A_az}~\x00\x1f\x7f\x9f\xa0é\ud7ff\ue000\uffff\U00010000\U0010ffff'

legal_texts = st.text("".join(filter(is_legal, NEIGHBOURS)), max_size=4) | st.text(
    max_size=5
).filter(is_legal)
hostile_texts = st.text(NEIGHBOURS + "'%=-|+&\n", max_size=5) | st.text(max_size=5)


# ---------------------------------------------------------------------------------------------
# Random templates of all kinds

moments = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))])).filter(
    lambda moment: datetime(1, 1, 2, tzinfo=UTC) < moment < datetime(9999, 12, 30, tzinfo=UTC)
)
near_powers = st.integers(0, 5).flatmap(
    lambda power: st.integers(max(10**power - 2, 0), min(10**power + 2, 99_999))
)
amounts = st.decimals(-9999, 9999, places=2)

KINDS: list[tuple[object, str, st.SearchStrategy[Any]]] = [
    (int, "05d", near_powers),
    (int, "", st.integers(-2000, 2000)),
    (Int32, "010d", near_powers),
    (Decimal, "D6.2", amounts),
    (bool, "", st.booleans()),
    (datetime, "asc", moments),
    (datetime, "desc", moments),
    (date, "asc", st.dates()),
    (date, "desc", st.dates()),
    (UUID, "", st.uuids()),
    (Grade, "", st.sampled_from(Grade)),
    (Country, "", st.sampled_from(Country)),
    (Size, "", st.sampled_from(Size)),
    (Literal["a", "ab", ""], "", st.sampled_from(["a", "ab", ""])),
    (str, "esc", hostile_texts),
    (str, "", legal_texts.filter(lambda text: not text.startswith("~"))),
    (str, "", legal_texts.filter(lambda text: not text.startswith("~"))),
]
separators = st.sampled_from(["", "_", "_", "-", "|x", "=", "5", "{{", "'", "é"])


@st.composite
def raw_templates(draw: st.DrawFn) -> tuple[str, dict[str, object], dict[str, Any]]:
    """Draw a template that may be refused, annotations, and strategies for its fields."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    text = draw(st.sampled_from(["", "emp_", "é"]))
    annotations: dict[str, object] = {}
    values = {}
    for name, (annotation, spec, strategy) in zip("abc", kinds, strict=False):
        text += f"{{{name}:{spec}}}" if spec else f"{{{name}}}"
        text += draw(separators)
        annotations[name], values[name] = annotation, strategy
    return text, annotations, values


def rewritten(error: DefinitionError) -> str:
    """Return the template that a refusal tells: as good a one as those that are taken."""
    return str(literal_eval(error.hint.removeprefix("Write ")[:-1]))


@st.composite
def filled_templates(
    draw: st.DrawFn, *, count: int = 2, is_wide: bool = False
) -> tuple[KeyTemplate, list[Values]]:
    text, annotations, strategies = draw(raw_templates())
    compiled = partial(
        KeyTemplate.compile, annotations=annotations, role="partition", owner="Thing"
    )
    try:
        template = compiled(text, no_tilde=is_wide)
    except DefinitionError as error:
        template = compiled(rewritten(error), no_tilde=is_wide)
    rows = draw(st.lists(st.fixed_dictionaries(strategies), min_size=count, max_size=count))
    return template, rows


def key_of(template: KeyTemplate, values: Values) -> str:
    try:
        return template.format(values)
    except InvalidKeyError as error:
        # What a drawn text, or a number in a rewritten part, can break.
        assume(error.code not in ("KeyReserved", "InvalidKeyCharacter", "KeyOutOfRange"))
        raise


@given(filled_templates())
def test_parsing_a_formatted_key_gives_the_values_back(drawn: tuple[KeyTemplate, Any]) -> None:
    template, rows = drawn
    for values in rows:
        key = key_of(template, values)

        assert is_legal(key)
        assert template.parse(key) == values
        assert template.matches(key)


@given(filled_templates())
def test_two_entities_never_get_the_same_key(drawn: tuple[KeyTemplate, Any]) -> None:
    template, (one, other) = drawn
    assert (key_of(template, one) == key_of(template, other)) == (one == other)


@given(filled_templates())
def test_ordered_parts_sort_as_their_values(drawn: tuple[KeyTemplate, Any]) -> None:
    template, (one, other) = drawn
    for field in template.fields:
        if not template.is_ordered(field):
            break
        first, second = comparable(one[field]), comparable(other[field])
        if template.is_descending(field):
            first, second = second, first
        changed = one | {field: other[field]}

        assert (first < second) == (key_of(template, one) < key_of(template, changed))
        one = changed


conditions = st.sampled_from(["none", "equal", "between", "least", "more", "most", "less", "start"])


@st.composite
def given_conditions(draw: st.DrawFn, rows: list[Values], fields: tuple[str, ...]) -> Values:
    found: Values = {}
    for field in fields:
        one, other = draw(st.sampled_from(rows))[field], draw(st.sampled_from(rows))[field]
        condition: Any
        match draw(conditions):
            case "none":
                continue
            case "equal":
                condition = one
            case "between":
                condition = between(one, other)
            case "least":
                condition = at_least(one)
            case "more":
                condition = more_than(one)
            case "most":
                condition = at_most(one)
            case "less":
                condition = less_than(one)
            case _:
                condition = starting_with(one[:2]) if isinstance(one, str) else one
        found[field] = condition
    return found


def satisfies(values: Values, conditions: Mapping[str, Any]) -> bool:
    return all(
        condition.holds(values[field]) if isinstance(condition, Interval)
        else values[field] == condition
        for field, condition in conditions.items()
    )  # fmt: skip


@given(st.data(), filled_templates(count=6))
def test_bounds_hold_exactly_the_keys_that_satisfy_what_they_express(
    data: st.DataObject, drawn: tuple[KeyTemplate, list[Values]]
) -> None:
    template, rows = drawn
    conditions = data.draw(given_conditions(rows, template.fields))
    keys = [key_of(template, values) for values in rows]
    bounds = template.bounds(conditions)
    expressed = {field: conditions[field] for field in bounds.expressed}

    assert is_legal(bounds.lower)
    assert bounds.upper is None or is_legal(bounds.upper)
    for key, values in zip(keys, rows, strict=True):
        if satisfies(values, conditions):
            assert bounds.holds(key)
        if bounds.holds(key):
            assert satisfies(values, expressed)


@given(st.data(), filled_templates(count=6, is_wide=True))
def test_bounds_hold_the_further_rows_of_the_wide_entities_inside(
    data: st.DataObject, drawn: tuple[KeyTemplate, list[Values]]
) -> None:
    template, rows = drawn
    conditions = data.draw(given_conditions(rows, template.fields))
    keys = [key_of(template, values) for values in rows]
    bounds = template.bounds(conditions)
    expressed = {field: conditions[field] for field in bounds.expressed}

    for key, values in zip(keys, rows, strict=True):
        assert not template.matches(f"{key}~1")
        if satisfies(values, conditions):
            assert bounds.holds(key)
            assert bounds.holds(f"{key}~1")
            assert bounds.holds(f"{key}~99")
        if bounds.holds(key):
            assert satisfies(values, expressed)


ends = st.text("a/m~\x80\ud800é", max_size=3)


@given(st.sampled_from(["", "n_"]), st.booleans(), ends, ends, st.lists(ends, min_size=4))
def test_bounds_of_text_divide_names_that_begin_like_each_other(
    prefix: str, is_wide: bool, low: str, high: str, names: list[str]
) -> None:
    template = (a_wide_template if is_wide else a_template)(prefix + "{name}", name=str)
    keys = {name: prefix + name for name in names if template.matches(prefix + name)}
    for condition in (
        between(low, high),
        at_least(low),
        more_than(low),
        at_most(high),
        less_than(high),
        starting_with(low),
    ):
        bounds = template.bounds({"name": condition})
        for name, key in keys.items():
            if condition.holds(name):
                assert bounds.holds(key)
                assert not is_wide or bounds.holds(f"{key}~1")
            elif bounds.expressed:
                assert not bounds.holds(key)


@given(raw_templates(), st.sampled_from(["partition", "row"]))
def test_a_rewritten_template_in_a_hint_compiles(drawn: tuple[str, Any, Any], role: Role) -> None:
    text, annotations, _ = drawn
    error = refused(text, annotations, role)

    assert error is None or refused(rewritten(error), annotations, role) is None


# ---------------------------------------------------------------------------------------------
# Formatting and parsing


def test_braces_are_written_twice() -> None:
    template = a_template("{{{id:02d}}}", id=int)

    assert template.format({"id": 7}) == "{07}"
    assert template.parse("{07}") == {"id": 7}


def test_a_template_without_fields_has_one_key() -> None:
    template = a_template("dept")

    assert template.format({}) == "dept"
    assert template.parse("dept") == {}
    assert template.fields == ()
    assert not template.matches("depts")
    assert template.bounds({}) == Bounds("dept", "depu")


def test_the_empty_template_is_the_empty_key() -> None:
    template = a_template("")

    assert template.format({}) == ""
    assert template.matches("")
    assert template.bounds({}) == Bounds("", " ")


@pytest.mark.parametrize("power", range(1, 9))
def test_numbers_around_a_power_of_ten_sort_or_are_refused(power: int) -> None:
    template = a_template(f"{{id:0{power}d}}", id=int)
    edge = 10**power

    assert template.format({"id": edge - 2}) < template.format({"id": edge - 1})
    assert template.format({"id": edge // 10 - 1}) < template.format({"id": edge // 10})
    assert refusal_of(template.format, {"id": edge}).code == "KeyOutOfRange"
    assert refusal_of(template.format, {"id": -1}).code == "KeyOutOfRange"


def test_a_number_with_more_digits_than_python_prints_is_refused() -> None:
    assert refusal_of(a_template("{id:06d}", id=int).format, {"id": 10**5000}).code == (
        "KeyOutOfRange"
    )
    plain = a_template("{id}", role="partition", id=int)
    assert refusal_of(plain.format, {"id": -(10**5000)}).code == "KeyTooLong"
    assert not plain.matches("1" * 5000)


@pytest.mark.parametrize("text", ["00012", "0000123", "+00123", "00012a", "٠٠٠١٢٣", " 00123", ""])
def test_a_padded_number_is_exactly_its_digits(text: str) -> None:
    assert not a_template("{id:06d}", id=int).matches(text)


@pytest.mark.parametrize("text", ["-0", "01", "+1", "", "-", "1 ", "٣"])
def test_a_plain_number_is_written_in_one_way(text: str) -> None:
    assert not a_template("{id}", role="partition", id=int).matches(text)


@pytest.mark.parametrize(
    ("moment", "ascending", "descending"),
    [
        (datetime(2014, 7, 31, 18, tzinfo=UTC), "0635424264000000000", "2519954711999999999"),
        (datetime(1, 1, 1, tzinfo=UTC), "0000000000000000000", "3155378975999999999"),
        (datetime.max.replace(tzinfo=UTC), "3155378975999999990", "0000000000000000009"),
        (datetime(1970, 1, 1, tzinfo=UTC), "0621355968000000000", "2534023007999999999"),
    ],
)
def test_times_are_ticks_as_dotnet_writes_them(
    moment: datetime, ascending: str, descending: str
) -> None:
    asc, desc = a_template("{at:asc}", at=datetime), a_template("{at:desc}", at=datetime)

    assert asc.format({"at": moment}) == ascending
    assert desc.format({"at": moment}) == descending
    assert asc.parse(ascending) == desc.parse(descending) == {"at": moment}
    assert desc.parse(descending)["at"].tzinfo is UTC


@given(moments)
def test_times_come_back_to_the_microsecond_whatever_their_zone(moment: datetime) -> None:
    template = a_template("{at:desc}", at=datetime)
    found = template.parse(template.format({"at": moment}))["at"]

    assert found == moment
    assert found.utcoffset() == timedelta(0)


def test_moments_outside_the_years_of_utc_are_refused() -> None:
    template = a_template("{at:desc}", at=datetime)
    early = datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    late = datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))

    assert refusal_of(template.format, {"at": early}).code == "KeyOutOfRange"
    assert refusal_of(template.format, {"at": late}).code == "KeyOutOfRange"
    assert not template.matches("3155378976000000000")


def test_a_time_without_zone_is_refused() -> None:
    template = a_template("{at:desc}", at=datetime)
    naive = datetime(2014, 7, 31)  # noqa: DTZ001 - that is what is refused

    assert refusal_of(template.format, {"at": naive}).code == "NaiveDatetime"
    assert refusal_of(template.bounds, {"at": at_least(naive)}).code == "NaiveDatetime"


@given(st.integers(0, 3155378975999999999))
def test_keys_with_single_ticks_are_read_and_written_to_the_digit(ticks: int) -> None:
    template = a_template("{at:desc}", at=datetime)
    key = f"{3155378975999999999 - ticks:019d}"
    values = template.parse(key)

    assert template.format(values) == key
    assert values["at"] == datetime(1, 1, 1, tzinfo=UTC) + timedelta(microseconds=ticks // 10)


def test_bounds_of_times_hold_the_single_ticks_of_a_microsecond() -> None:
    template = a_template("{at:desc}", at=datetime)
    moment = datetime(2014, 7, 31, 18, tzinfo=UTC)
    finer = template.format({"at": Instant.of(moment, "2014-07-31T18:00:00.0000007Z")})

    assert finer == "2519954711999999992"
    assert template.bounds({"at": at_most(moment)}).holds(finer)
    assert template.bounds({"at": at_least(moment)}).holds(finer)
    assert not template.bounds({"at": more_than(moment)}).holds(finer)
    assert not template.bounds({"at": less_than(moment)}).holds(finer)


def test_dates_are_eight_digits() -> None:
    asc, desc = a_template("{day:asc}", day=date), a_template("{day:desc}", day=date)

    assert asc.format({"day": date(2014, 7, 31)}) == "20140731"
    assert desc.format({"day": date(2014, 7, 31)}) == "79850500"
    assert desc.format({"day": date(9999, 12, 31)}) == "00000000"
    assert desc.parse("79850500") == {"day": date(2014, 7, 31)}
    assert not asc.matches("20140231")
    assert not asc.matches("99999999")


@given(st.decimals(allow_nan=False, allow_infinity=False) | amounts)
def test_a_decimal_is_exact_or_refused(amount: Decimal) -> None:
    template = a_template("{amount:D6.2}", amount=Decimal)
    _, digits, exponent = amount.as_tuple()
    assert isinstance(exponent, int)
    fits = not amount or (
        amount.adjusted() < 4 and not any(digits[max(len(digits) + exponent + 2, 0) :])
    )

    if fits:
        assert template.parse(template.format({"amount": amount})) == {"amount": amount}
    else:
        assert refusal_of(template.format, {"amount": amount}).code == "KeyOutOfRange"


def test_decimals_below_zero_sort_first() -> None:
    template = a_template("{amount:D6.2}", amount=Decimal)
    amounts = ["-9999.99", "-10", "-9.5", "-0.01", "0", "0.01", "9.5", "9.51", "10", "9999.99"]
    keys = [template.format({"amount": Decimal(text)}) for text in amounts]

    assert keys == sorted(keys)
    assert keys[0] == "0000001"
    assert keys[-1] == "1999999"
    assert template.format({"amount": 10}) == template.format({"amount": Decimal("10.00")})
    assert str(template.parse("1000950")["amount"]) == "9.50"
    assert not template.matches("0000000")
    assert not template.matches("2000000")


@pytest.mark.parametrize("text", ["NaN", "sNaN", "Infinity", "-Infinity"])
def test_a_decimal_that_is_not_a_number_is_refused(text: str) -> None:
    template = a_template("{amount:D6.2}", amount=Decimal)
    assert refusal_of(template.format, {"amount": Decimal(text)}).code == "KeyValueType"


@pytest.mark.parametrize("text", ["1E+999999", "-1E+999999", "1E-999999", "-1E-999999"])
def test_a_decimal_of_a_huge_exponent_is_judged_at_once(text: str) -> None:
    template = a_template("{amount:D6.2}", amount=Decimal)

    assert refusal_of(template.format, {"amount": Decimal(text)}).code == "KeyOutOfRange"
    assert template.format({"amount": Decimal("0E+999999")}) == "1000000"
    assert template.bounds({"amount": between(Decimal(text), Decimal("1E+999999"))}).expressed


def test_a_uuid_is_its_lower_case_text() -> None:
    template = a_template("{id}", id=UUID)
    text = "0123abcd-4567-89ef-0123-456789abcdef"

    assert template.format({"id": UUID(text.upper())}) == text
    assert template.parse(text) == {"id": UUID(text)}
    assert not template.matches(text.upper())
    assert not template.matches(text.replace("-", ""))


def test_enums_are_written_by_value_and_come_back_as_members() -> None:
    template = a_template("{grade}{size}", grade=Grade, size=Literal[1, 2])

    assert template.format({"grade": Grade.SENIOR, "size": 2}) == "s2"
    assert template.format({"grade": "s", "size": 2}) == "s2"
    assert template.parse("s2")["grade"] is Grade.SENIOR
    assert refusal_of(template.format, {"grade": "x", "size": 2}).code == "KeyValueType"
    assert refusal_of(template.format, {"grade": [], "size": 2}).code == "KeyValueType"
    assert refusal_of(template.format, {"grade": "s", "size": True}).code == "KeyValueType"
    assert not template.matches("x2")


def test_an_enum_whose_numbers_do_not_sort_as_text_is_not_ordered() -> None:
    assert not a_template("{size}", size=Size).is_ordered("size")
    assert a_template("{size}", size=Literal[1, 2, 3]).is_ordered("size")
    assert a_template("{country}", country=Country).is_ordered("country")
    assert not a_template("{country}!{n:02d}", country=Literal["a", "a "], n=int).is_ordered(
        "country"
    )


def test_escaped_text_is_told_from_its_separators() -> None:
    template = a_template("{last:esc}|{first:esc}_{id:02d}", last=str, first=str, id=int)
    values = {"last": "Ca|o_", "first": "Ju|n=~/", "id": 7}

    assert template.format(values) == "Ca=7Co=5F|Ju|n=3D=7E=2F_07"
    assert template.parse(template.format(values)) == values


@pytest.mark.parametrize(
    "key", ["=41_07", "=e9_07", "=C3_07", "=FF_07", "=_07", "a=5_07", "=ED=A0=80_07"]
)
def test_escapes_that_are_never_written_are_not_read(key: str) -> None:
    assert not a_template("{name:esc}_{id:02d}", name=str, id=int).matches(key)


@pytest.mark.parametrize(
    "text", ["a/b", "a\\b", "#", "?", "\x00", "\x1f", "\x7f", "\x9f", "\ud800"]
)
def test_plain_text_refuses_what_keys_cannot_hold(text: str) -> None:
    template = a_template("{name}", name=str)
    error = refusal_of(template.format, {"name": text})

    assert error.code == "InvalidKeyCharacter"
    assert "{name:esc}" in error.hint
    assert not template.matches(text)


def test_escaped_text_refuses_half_a_pair_only() -> None:
    template = a_template("{name:esc}", name=str)

    assert refusal_of(template.format, {"name": "a\udc00"}).code == "InvalidKeyCharacter"
    assert template.parse(template.format({"name": "/\\#?\x00\x9f\U0001f600"})) == {
        "name": "/\\#?\x00\x9f\U0001f600"
    }


@pytest.mark.parametrize("role", ["partition", "row"])
def test_no_key_begins_with_a_tilde(role: Role) -> None:
    template = a_template("{name}", role=role, name=str)

    assert refusal_of(template.format, {"name": "~o_1"}).code == "KeyReserved"
    assert not template.matches("~o_1")
    assert template.format({"name": "o~1"}) == "o~1"
    assert a_template("{name:esc}", role=role, name=str).format({"name": "~o"}) == "=7Eo"


def test_keys_of_wide_entities_hold_no_tilde_and_leave_room() -> None:
    template = a_wide_template("{name}", name=str)

    assert refusal_of(template.format, {"name": "a~1"}).code == "InvalidKeyCharacter"
    assert refusal_of(template.format, {"name": ""}).code == "KeyReserved"
    assert len(template.format({"name": "x" * 508})) == 508
    assert refusal_of(template.format, {"name": "x" * 509}).code == "KeyTooLong"


def test_the_limit_counts_utf_16_code_units_and_is_named() -> None:
    template = a_template("{name}", name=str)

    assert template.matches(template.format({"name": "\U00010000" * 256}))
    error = refusal_of(template.format, {"name": "\U00010000" * 256 + "a"})
    assert error.code == "KeyTooLong"
    assert "512" in error.message
    assert not template.matches("x" * 513)


def test_a_missing_or_absent_value_is_told() -> None:
    template = KeyTemplate.compile(
        "email_{email}", {"email": str | None}, role="row", owner="Employee", optional=True
    )

    assert refusal_of(template.format, {}).code == "KeyFieldMissing"
    assert refusal_of(template.format, {"email": None}).code == "KeyValueAbsent"
    assert refusal_of(template.bounds, {"email": None}).code == "KeyValueAbsent"
    assert template.format({"email": "a"}) == "email_a"


@pytest.mark.parametrize(
    ("text", "annotation", "value"),
    [
        ("{x:03d}", int, "7"),
        ("{x:03d}", int, True),
        ("{x:03d}", int, 7.0),
        ("t{x}", int, "7"),
        ("{x}", str, 7),
        ("{x:esc}", str, b"a"),
        ("{x}", bool, 1),
        ("{x}", UUID, "0123abcd-4567-89ef-0123-456789abcdef"),
        ("{x:asc}", datetime, date(2014, 7, 31)),
        ("{x:asc}", date, datetime(2014, 7, 31, tzinfo=UTC)),
        ("{x:D6.2}", Decimal, 1.5),
        ("{x:D6.2}", Decimal, True),
        ("{x}", Country, "c"),
        ("{x}", Literal[1, 2], 1.0),
    ],
)
def test_a_value_of_another_type_is_refused(text: str, annotation: object, value: object) -> None:
    error = refusal_of(a_template(text, "partition", x=annotation).format, {"x": value})

    assert error.code == "KeyValueType"
    assert "'x'" in error.message


@pytest.mark.parametrize("annotation", [int, Int32, Decimal])
def test_a_number_in_descending_order_is_refused_without_the_opposite_order(
    annotation: object,
) -> None:
    with pytest.raises(DefinitionError) as caught:
        a_template("{x:desc}", x=annotation)

    assert caught.value.code == "TemplateSpec"
    assert "descending order" in caught.value.message
    assert "99999999 - x" in caught.value.hint
    assert "{x" not in caught.value.hint


def test_a_key_of_another_template_is_told() -> None:
    error = refusal_of(a_template("emp_{id:06d}", id=int).parse, "dept")

    assert error.code == "KeyNotOfTemplate"
    assert error.facts == {"owner": "Thing", "template": "emp_{id:06d}"}


# ---------------------------------------------------------------------------------------------
# Bounds


@pytest.mark.parametrize(
    ("text", "annotation", "known", "bounds"),
    [
        ("{x:05d}", int, {}, ("00000", "9999:")),
        ("emp_{x:02d}", int, {}, ("emp_00", "emp_9:")),
        ("{x:asc}", date, {}, ("00000000", "99991232")),
        ("{x}", Literal["car", "van"], {}, ("car", "vao")),
        ("{x}", str, {}, ("", None)),
        ("{x:esc}_{y:02d}", str, {}, ("", None)),
        ("{x:esc}_{y:02d}", str, {"x": "a"}, ("a_00", "a_9:")),
    ],
)
def test_tight_bounds_leave_out_what_no_value_is_written_as(
    text: str, annotation: object, known: dict[str, Any], bounds: tuple[str, str | None]
) -> None:
    template = a_template(text, "row", x=annotation, y=int)

    found = template.bounds(known, is_tight=True)

    assert (found.lower, found.upper) == bounds
    assert found.expressed == frozenset(known)


def test_bounds_of_a_range_hold_what_lies_behind_its_last_key() -> None:
    template = a_template("emp_{id:06d}", id=int)

    assert template.literal_prefix == "emp_"
    assert template.bounds({"id": between(100, 199)}) == Bounds(
        "emp_000100", "emp_00019:", frozenset({"id"})
    )
    assert template.bounds({"id": between(100, 199)}).holds("emp_000199~1")
    assert template.bounds({"id": 123}) == Bounds("emp_000123", "emp_000124", frozenset({"id"}))
    assert template.bounds({}) == Bounds("emp_", "emp`")


def test_ends_that_no_key_can_hold_are_taken_for_what_they_mean() -> None:
    template = a_template("emp_{id:03d}", id=int)

    assert template.bounds({"id": between(-5, 10**9)}) == Bounds(
        "emp_000", "emp_99:", frozenset({"id"})
    )
    assert template.bounds({"id": at_least(1000)}).is_empty
    assert template.bounds({"id": less_than(0)}).is_empty
    assert template.bounds({"id": between(7, 5)}).is_empty
    assert template.bounds({"id": less_than(0)}).expressed == {"id"}


@given(st.decimals(-2000, 2000, places=3), st.lists(st.decimals(-999, 999, places=1), max_size=4))
def test_ends_finer_than_a_decimal_part_divide_it_right(
    end: Decimal, amounts: list[Decimal]
) -> None:
    template = a_template("{amount:D4.1}", amount=Decimal)
    for condition in (at_least(end), more_than(end), at_most(end), less_than(end)):
        bounds = template.bounds({"amount": condition})
        for amount in amounts:
            assert bounds.holds(template.format({"amount": amount})) == condition.holds(amount)


def test_bounds_without_prefix_are_open() -> None:
    assert a_template("{name}", name=str).bounds({}) == Bounds("", None)
    assert a_template("{at:desc}_{n:02d}", at=datetime, n=int).bounds({"n": 7}) == Bounds("", None)


def test_bounds_of_descending_times_are_turned_around() -> None:
    template = a_template("t_{at:desc}", at=datetime)
    moment = datetime(2014, 7, 31, 18, tzinfo=UTC)

    assert template.bounds({"at": at_least(moment)}) == Bounds(
        "t_0000000000000000000", "t_251995471199999999:", frozenset({"at"})
    )
    assert template.bounds({"at": less_than(moment)}).lower == "t_2519954712000000000"
    assert template.is_descending("at")
    assert template.is_ordered("at")


def test_bounds_use_equal_fields_and_then_one_interval() -> None:
    template = a_template("{a:02d}_{b:02d}_{c:02d}", a=int, b=int, c=int)

    assert template.bounds({"a": 1, "b": at_least(5), "c": 7}) == Bounds(
        "01_05", "01_9:", frozenset({"a", "b"})
    )
    assert template.bounds({"a": 1, "c": 7, "z": 9}) == Bounds("01_", "01`", frozenset({"a"}))
    assert template.bounds({"b": 1}) == Bounds("", None)
    assert template.bounds({"a": 1, "b": 2, "c": 3}).expressed == {"a", "b", "c"}


def test_bounds_of_text_are_exact() -> None:
    template = a_template("last_{last}", last=str)
    said = frozenset({"last"})

    assert template.bounds({"last": "Cao"}) == Bounds("last_Cao", "last_Cao ", said)
    assert template.bounds({"last": between("A", "C")}) == Bounds("last_A", "last_C ", said)
    assert template.bounds({"last": less_than("C")}) == Bounds("last_", "last_C", said)
    assert template.bounds({"last": more_than("C")}) == Bounds("last_C ", "last`", said)
    assert template.bounds({"last": starting_with("Ca")}) == Bounds("last_Ca", "last_Cb", said)
    assert template.bounds({"last": at_least("a/b")}) == Bounds("last_a0", "last`", said)
    assert template.bounds({"last": starting_with("a/")}).is_empty
    assert refusal_of(template.bounds, {"last": "a/"}).code == "InvalidKeyCharacter"
    assert refusal_of(template.bounds, {"last": at_least(7)}).code == "KeyValueType"


def test_hidden_rows_begin_with_no_text_of_ours() -> None:
    assert a_template("{name}", name=str).bounds({"name": starting_with("~")}).is_empty


def test_bounds_of_wide_text_hold_what_lies_between_but_do_not_say_it_exactly() -> None:
    template = a_wide_template("{name}", name=str)

    assert template.bounds({"name": "Jo"}) == Bounds("Jo", "Jo\xa0")
    assert template.bounds({"name": starting_with("Jo")}).expressed == {"name"}
    assert not template.is_prefix_free
    assert a_wide_template("{name:esc}_", name=str).is_prefix_free


def test_an_interval_of_escaped_text_is_left_to_the_caller() -> None:
    template = a_template("x_{name:esc}_{id:02d}", name=str, id=int)

    assert not template.is_ordered("name")
    assert template.bounds({"name": at_least("b")}) == Bounds("x_", "x`")
    assert template.bounds({"name": starting_with("b_")}) == Bounds(
        "x_b=5F", "x_b=5G", frozenset({"name"})
    )
    assert template.bounds({"name": starting_with("\ud800")}).is_empty
    assert template.bounds({"name": "b_", "id": at_most(7)}).expressed == {"name", "id"}


def test_an_interval_of_a_number_without_padding_is_left_to_the_caller() -> None:
    template = a_template("t{n}_{m}", role="partition", n=int, m=int)

    assert not template.is_ordered("n")
    assert template.bounds({"n": at_least(5)}) == Bounds("t", "u")
    assert template.bounds({"n": 5}) == Bounds("t5_", "t5`", frozenset({"n"}))
    assert template.bounds({"n": 5, "m": 1}) == Bounds("t5_1", "t5_1 ", frozenset({"n", "m"}))


def test_an_interval_of_an_enum_is_what_its_members_say() -> None:
    country = a_template("{country}", country=Country)
    size = a_template("{size}", size=Size)

    assert country.bounds({"country": at_most(Country.CHINA)}) == Bounds(
        "c", "ch ", frozenset({"country"})
    )
    assert size.bounds({"size": between(Size.SMALL, Size.MIDDLE)}) == Bounds("1", "2 ")
    assert size.bounds({"size": at_least(Size.LARGE)}) == Bounds("10", "10 ", frozenset({"size"}))
    assert size.bounds({"size": more_than(10)}).is_empty
    assert refusal_of(size.bounds, {"size": at_least("x")}).code == "KeyValueType"


@pytest.mark.parametrize(
    ("text", "annotation"),
    [("{x:03d}", int), ("{x}", bool), ("{x}", UUID), ("{x:asc}", date), ("{x:asc}", datetime)],
)
def test_only_texts_begin_with_a_text(text: str, annotation: object) -> None:
    template = a_template(text, x=annotation)
    assert refusal_of(template.bounds, {"x": starting_with("1")}).code == "KeyValueType"


def test_bounds_beyond_all_keys_are_empty() -> None:
    text = a_template("{name}", name=str)
    escaped = a_template("{name:esc}", name=str)

    assert text.bounds({"name": at_least("\U0010ffff" * 257)}).is_empty
    assert text.bounds({"name": at_most("\U0010ffff" * 257)}) == Bounds(
        "", None, frozenset({"name"})
    )
    assert escaped.bounds({"name": starting_with("_" * 171)}).is_empty


def test_bounds_refuse_a_prefix_that_no_key_can_have() -> None:
    template = a_template("{name:esc}_{id:02d}", name=str, id=int)
    assert refusal_of(template.bounds, {"name": "x" * 512}).code == "KeyTooLong"


# ---------------------------------------------------------------------------------------------
# Spread


@pytest.mark.parametrize(
    ("annotation", "values"),
    [
        (str, [f"device/{n}" for n in range(4000)]),
        (int, range(4000)),
        (UUID, [UUID(int=n) for n in range(4000)]),
        (datetime, [datetime(2014, 7, 31, tzinfo=UTC) + timedelta(n) for n in range(4000)]),
        (date, [date(2014, 7, 31) + timedelta(n) for n in range(4000)]),
    ],
)
def test_a_hash_spreads_evenly(annotation: object, values: Any) -> None:
    template = a_template("{x:hash16}", role="partition", x=annotation)
    counts = dict.fromkeys(template.spread_values(), 0)
    for value in values:
        counts[template.format({"x": value})] += 1

    # The chi-square of 15 degrees of freedom is below 37.7 with a probability of 99.9 %.
    assert len(counts) == 16
    assert sum((count - 250) ** 2 / 250 for count in counts.values()) < 37.7


def test_a_hash_is_the_same_for_ever() -> None:
    template = a_template("{device:hash256}_{device}", role="partition", device=str)

    assert template.format({"device": "pump 1"}) == "237_pump 1"
    assert template.format({"device": ""}) == "180_"


def test_equal_values_have_equal_hashes() -> None:
    template = a_template("{at:hash16}", at=datetime)
    utc = datetime(2014, 7, 31, 18, tzinfo=UTC)

    assert template.format({"at": utc}) == template.format(
        {"at": utc.astimezone(timezone(timedelta(hours=5)))}
    )


def test_a_hash_beside_the_value_must_be_its_own() -> None:
    template = a_template("{id:hash4}_{id:03d}", role="partition", id=int)
    key = template.format({"id": 7})

    assert template.parse(key) == {"id": 7}
    assert [template.matches(f"{bucket}_007") for bucket in range(4)].count(True) == 1
    assert not a_template("{id:hash4}", id=int).matches("4")
    assert a_template("{id:hash4}", id=int).parse("3") == {}


def test_a_spread_names_its_places() -> None:
    template = a_template("{dept:esc}_{id:hash4}", role="partition", dept=str, id=int)

    assert template.spread == Spread("id", 4)
    assert template.fields == ("dept", "id")
    assert template.spread_values({"dept": "Sales"}) == ("Sales_0", "Sales_1", "Sales_2", "Sales_3")
    assert template.spread_values({"dept": "Sales", "id": 7}) == (
        template.format({"dept": "Sales", "id": 7}),
    )
    assert a_template("x_{id:hash2}_{dept}", id=int, dept=str).spread_values({"dept": "S"}) == (
        "x_0_S",
        "x_1_S",
    )
    assert template.spread_values() == ("",)
    assert a_template("{dept}", dept=str).spread is None
    assert a_template("{dept}", dept=str).spread_values({"dept": "S"}) == ("S",)


def test_bounds_go_on_behind_a_hash_whose_field_is_given() -> None:
    template = a_template("{id:hash4}_{n:02d}", id=int, n=int)
    bounds = template.bounds({"id": 7, "n": at_least(3)})

    assert bounds.lower == template.format({"id": 7, "n": 3})
    assert bounds.expressed == {"n"}
    assert template.bounds({"id": at_least(7)}) == Bounds("", None)


def test_a_pair_of_templates_must_hold_hashed_fields_in_full() -> None:
    spread = a_template("{id:hash16}", role="partition", id=int)

    KeyTemplate.check_pair(spread, a_template("{id:06d}", id=int))
    KeyTemplate.check_pair(
        a_template("{id:hash16}_{id:06d}", role="partition", id=int), a_template("x")
    )
    with pytest.raises(DefinitionError) as caught:
        KeyTemplate.check_pair(spread, a_template("{at:desc}", at=datetime))
    assert caught.value.code == "TemplateNotInjective"
    assert "'id'" in caught.value.hint


# ---------------------------------------------------------------------------------------------
# Compiling


@pytest.mark.parametrize(
    ("text", "role", "is_monotone"),
    [
        ("{at:desc}", "partition", True),
        ("{day:asc}_{name}", "partition", True),
        ("log_{at:asc}", "partition", True),
        ("{number:04d}", "partition", True),
        ("{orderNumber:04d}", "partition", True),
        ("{created_at:010d}", "partition", True),
        ("{seq:04d}", "row", True),
        ("{id:06d}", "partition", False),
        ("{number_of_rooms:02d}", "partition", False),
        ("{name:esc}_{at:desc}", "partition", False),
        ("{at:hash16}_{at:desc}", "partition", False),
        ("{grade}_{at:desc}", "partition", False),
        ("{format:04d}", "partition", False),
        ("constant", "partition", False),
    ],
)
def test_a_template_that_grows_is_seen(text: str, role: Role, is_monotone: bool) -> None:
    numbers = "number orderNumber created_at seq id number_of_rooms format"
    annotations = dict.fromkeys(numbers.split(), int) | {
        "at": datetime,
        "day": date,
        "name": str,
        "grade": Grade,
    }
    assert a_template(text, role, **annotations).is_monotone is is_monotone


REFUSED: list[tuple[str, dict[str, object], str, str]] = [
    ("{id", {"id": int}, "TemplateSyntax", "{{ and }}"),
    ("id}", {"id": int}, "TemplateSyntax", "{{ and }}"),
    ("{}", {}, "TemplateSyntax", "{{ and }}"),
    ("{0}", {}, "TemplateSyntax", "{{ and }}"),
    ("{id!r}", {"id": int}, "TemplateSyntax", "{{ and }}"),
    ("{id.real}", {"id": int}, "TemplateSyntax", "{{ and }}"),
    ("{id[0]}", {"id": int}, "TemplateSyntax", "{{ and }}"),
    ("{nobody}", {"id": int, "name": str}, "TemplateField", "id, name"),
    ("{id:02d}_{id:02d}", {"id": int}, "TemplateField", "once"),
    ("{id:hash2}_{id:hash4}", {"id": int}, "TemplateField", "once"),
    ("{id:{w}d}", {"id": int, "w": int}, "TemplateSpec", "{id:08d}"),
    ("{id}", {"id": int}, "TemplateSpec", "Write '{id:08d}'."),
    ("emp_{id:d}", {"id": int}, "TemplateSpec", "Write 'emp_{id:08d}'."),
    ("{id:6d}", {"id": int}, "TemplateSpec", "{id:08d}"),
    ("{id:00d}", {"id": int}, "TemplateSpec", "{id:08d}"),
    ("{id:desc}", {"id": int}, "TemplateSpec", "99999999 - id"),
    ("{at}", {"at": datetime}, "TemplateSpec", "{at:desc} or {at:asc}"),
    ("{day}", {"day": date}, "TemplateSpec", "{day:asc} or {day:desc}"),
    ("{name:desc}", {"name": str}, "TemplateSpec", "{name} or {name:esc}"),
    ("{flag:01d}", {"flag": bool}, "TemplateSpec", "{flag}"),
    ("{id:032x}", {"id": UUID}, "TemplateSpec", "{id}"),
    ("{grade:esc}", {"grade": Grade}, "TemplateSpec", "{grade}"),
    ("{amount}", {"amount": Decimal}, "TemplateSpec", "{amount:D12.2}"),
    ("{amount:D2.3}", {"amount": Decimal}, "TemplateSpec", "{amount:D12.2}"),
    ("{amount:hash4}", {"amount": Decimal}, "TemplateSpec", "another field"),
    ("{id:hash1}", {"id": int}, "TemplateSpec", "{id:hash16}"),
    ("{id:hash257}", {"id": int}, "TemplateSpec", "{id:hash16}"),
    ("{x}", {"x": float}, "KeyFieldType", "Decimal"),
    ("{x:hash4}", {"x": float}, "KeyFieldType", "Decimal"),
    ("{x}", {"x": bytes}, "KeyFieldType", "Decimal"),
    ("{x}", {"x": list[int]}, "KeyFieldType", "Decimal"),
    ("{x}", {"x": int | str}, "KeyFieldType", "Decimal"),
    ("{x}", {"x": "int"}, "KeyFieldType", "Decimal"),
    ("{x}", {"x": Flag("Set", "A B")}, "KeyFieldType", "Enum"),
    ("{x}", {"x": Enum("Nothing", "")}, "KeyFieldType", "Enum"),
    ("{x}", {"x": Enum("Mixed", {"A": 1, "B": "b"})}, "KeyFieldType", "Enum"),
    ("{x}", {"x": Enum("Real", {"A": 1.5})}, "KeyFieldType", "Enum"),
    ("{x}", {"x": Literal[True]}, "KeyFieldType", "Enum"),
    ("{x}", {"x": Literal["a/b"]}, "TemplateCharacter", "another value"),
    ("{x}", {"x": str | None}, "KeyFieldOptional", "without None"),
    ("{x}", {"x": Optional[str]}, "KeyFieldOptional", "without None"),  # noqa: UP045 - as written
    ("{x}", {"x": Annotated[str | None, Named("y")]}, "KeyFieldOptional", "without None"),
    ("{a}_{n:02d}", {"a": str, "n": int}, "TemplateNotInjective", "Write '{a:esc}_{n:02d}'."),
    ("{a}{n:02d}", {"a": str, "n": int}, "TemplateNotInjective", "Write '{a:esc}_{n:02d}'."),
    ("{a}_{b}", {"a": str, "b": str}, "TemplateNotInjective", "Write '{a:esc}_{b}'."),
    ("{a}_", {"a": str}, "TemplateNotInjective", "Write '{a:esc}_'."),
    ("{a:esc}{b}", {"a": str, "b": str}, "TemplateNotInjective", "Write '{a:esc}_{b}'."),
    ("{a:esc}={b}", {"a": str, "b": str}, "TemplateNotInjective", "Write '{a:esc}_={b}'."),
    ("{{{a}_{n}", {"a": str, "n": int}, "TemplateNotInjective", "Write '{{{a:esc}_{n:08d}'."),
    ("{c}{n:02d}", {"c": Country, "n": int}, "TemplateNotInjective", "Write '{c}_{n:02d}'."),
    ("a/{id:02d}", {"id": int}, "TemplateCharacter", "_"),
    ("a\x7f", {}, "TemplateCharacter", "_"),
    ("~{id:02d}", {"id": int}, "TemplateReserved", "another literal"),
    ("{x}_", {"x": Literal["~a"]}, "TemplateReserved", "another literal"),
    ("{id:0513d}", {"id": int}, "TemplateTooLong", "digits"),
    ("{id:0999999d}", {"id": int}, "TemplateTooLong", "digits"),
    ("{id:0500d}_{n:012d}", {"id": int, "n": int}, "TemplateTooLong", "digits"),
    ("{amount:D512.2}", {"amount": Decimal}, "TemplateTooLong", "digits"),
]


@pytest.mark.parametrize(("text", "annotations", "code", "hint"), REFUSED)
def test_a_template_that_proves_nothing_is_refused_with_a_way_out(
    text: str, annotations: dict[str, object], code: str, hint: str
) -> None:
    error = refused(text, annotations, "row")

    assert error is not None
    assert error.code == code
    assert hint in error.hint
    assert "Thing" in error.message
    assert error.facts == {"owner": "Thing", "template": text}


@pytest.mark.parametrize(
    ("text", "annotation"),
    [("a~{x:02d}", int), ("{x}", Literal["a~"]), ("", int)],
)
def test_keys_of_wide_entities_are_proven_to_hold_no_tilde(text: str, annotation: object) -> None:
    with pytest.raises(DefinitionError, match=r"TemplateReserved|TemplateCharacter"):
        a_wide_template(text, x=annotation)


def test_a_number_without_padding_is_for_partition_keys() -> None:
    template = a_template("{tenant}-x", role="partition", tenant=int)

    assert template.parse(template.format({"tenant": -7})) == {"tenant": -7}
    with pytest.raises(DefinitionError, match="TemplateNotInjective"):
        a_template("{tenant}7", role="partition", tenant=int)
    with pytest.raises(DefinitionError, match="TemplateNotInjective"):
        a_template("{tenant}{n:02d}", role="partition", tenant=int, n=int)


def test_what_stands_around_a_type_is_taken_off() -> None:
    employee = NewType("employee", int)
    template = a_template(
        "{id:06d}_{name}", id=Annotated[employee, Named("Id")], name=Annotated[str, "a note"]
    )

    assert template.parse("000123_Cao") == {"id": 123, "name": "Cao"}


def test_an_int_of_32_bits_comes_back_as_one() -> None:
    found = a_template("{id:06d}", id=Int32).parse("000123")["id"]
    assert type(found) is Int32


def test_templates_print_as_their_text() -> None:
    assert repr(a_template("emp_{id:06d}", id=int)) == "KeyTemplate('emp_{id:06d}')"
