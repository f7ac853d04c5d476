"""Conditions of the command line mean what the same condition of a program means."""

import datetime as dt
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal
from uuid import UUID

import pytest

from partita.cli.patterns.conditions import (
    CONDITION_CHARACTERS_MAX,
    parse_condition,
    parse_given,
)
from partita.errors import PartitaError, UsageError
from partita.patterns import Int32, entity, entity_type
from partita.patterns.planning.columns import Columns, Condition


class Grade(StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="staff", partition="{dept}", row="{id:06d}")
class Person:
    dept: str
    id: int
    age: int = 0
    level: Int32 = Int32(0)
    size: float = 0.0
    is_here: bool = True
    email: str | None = None
    grade: Grade = Grade.JUNIOR
    shift: Literal["day", "night"] = "day"
    hired: dt.datetime = dt.datetime(2014, 7, 31, tzinfo=dt.UTC)
    born: dt.date = dt.date(1970, 1, 1)
    pay: Decimal = Decimal(0)
    badge: UUID = UUID(int=0)


MODEL = entity_type(Person)
C: Any = Columns(MODEL)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("age > 40", C.age > 40),
        ("  age >= 40 ", C.age >= 40),
        ("40 < age", C.age > 40),
        ("40 == age", C.age == 40),
        ("age == -4", C.age == -4),
        ("30 <= age < 40", (C.age >= 30) & (C.age < 40)),
        ("not age != 40", ~(C.age != 40)),
        ("age > 40 and size < 1.5", (C.age > 40) & (C.size < 1.5)),
        (
            "age > 40 or (size < 1 and is_here == True)",
            (C.age > 40) | ((C.size < 1.0) & (C.is_here == True)),  # noqa: E712
        ),
        ("age in (1, 2)", C.age.in_([1, 2])),
        ("age not in [1, 2]", ~C.age.in_([1, 2])),
        ("email is None", C.email.is_absent()),
        ("email is not None", C.email.is_present()),
        ("email.startswith('jun')", C.email.startswith("jun")),
        ("email == '40'", C.email == "40"),
        ("grade == 's'", C.grade == Grade.SENIOR),
        ("grade == 'SENIOR'", C.grade == Grade.SENIOR),
        ("shift == 'night'", C.shift == "night"),
        ("level == 3", C.level == Int32(3)),
        ("pay == 9.50", C.pay == Decimal("9.5")),
        ("pay == '0.10'", C.pay == Decimal("0.10")),
        ("born >= '2000-01-31'", C.born >= dt.date(2000, 1, 31)),
        (
            "hired < '2020-01-01T00:00:00Z'",
            C.hired < dt.datetime(2020, 1, 1, tzinfo=dt.UTC),
        ),
        ("badge == '00000000-0000-0000-0000-000000000007'", C.badge == UUID(int=7)),
    ],
)
def test_a_condition_is_read(text: str, expected: Condition) -> None:
    assert parse_condition(text, MODEL) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "age",
        "age >",
        "age = 40",
        "40 > 30",
        "age > size",
        "age > height",
        "age is 4",
        "age > 'old'",
        "email == 40",
        "is_here == 1",
        "grade == 'x'",
        "shift == 'noon'",
        "born == 'yesterday'",
        "age in 4",
        "age in (dept, 4)",
        "age == 1j",
        "age == ...",
        "age == f'{4}'",
        "email.upper() == 'A'",
        "email.startswith(id)",
        "email.startswith('a', 1)",
        "__import__('os').system('true') == 1",
        "(lambda: 1)() == age",
        "[1 for _ in (1,)] == age",
        "age == open('f')",
        "age.__class__ == 1",
        "(age := 40) > 1",
        "nobody > 4",
        "not " * 1020 + "age > 4",
        "age > 4" + " " * CONDITION_CHARACTERS_MAX,
        "(" * 300 + "age > 4",
        "age > \0",
    ],
)
def test_an_invalid_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_condition(text, MODEL)


def test_nothing_that_is_typed_is_run(tmp_path: Any) -> None:
    file = tmp_path / "made"

    with pytest.raises(UsageError):
        parse_condition(f"open({str(file)!r}, 'w') == age", MODEL)

    assert not file.exists()


def test_values_of_keys_are_read_as_their_fields_say() -> None:
    assert parse_given(["dept=a=b", "id=7"], MODEL) == {"dept": "a=b", "id": 7}


@pytest.mark.parametrize("text", ["dept", "age=4", "nobody=1", "id=x"])
def test_values_that_no_key_has_are_refused(text: str) -> None:
    with pytest.raises(PartitaError):
        parse_given([text], MODEL)
