import copy
import datetime as dt
import enum
import math
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest

from partita.errors import InvalidPropertyError, UnknownFieldError, UsageError
from partita.patterns.fields.markers import Encrypted, InBlob, Series
from partita.patterns.planning.columns import (
    ALWAYS,
    NEVER,
    AllOf,
    AnyOf,
    Columns,
    Compare,
    Condition,
    IsIn,
    IsPresent,
    Negated,
    StartsWith,
    all_of,
    any_of,
    conjuncts,
    fields_in,
)
from partita.patterns.protocol.values import Int32
from partita.patterns.types.decorators import entity, entity_type


class Grade(enum.StrEnum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="staff", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int
    first: str
    age: int
    level: Int32
    joined: dt.datetime
    born: dt.date
    badge: UUID
    amount: Decimal
    rating: float
    is_manager: bool
    grade: Grade
    shift: Literal["day", "night"]
    tags: list[str]
    nickname: str | None = None
    salary: Annotated[int | None, Encrypted] = None
    photo: Annotated[bytes | None, InBlob] = None
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)]


c = Columns(entity_type(Employee))
FIELDS = entity_type(Employee).fields


class TestComparing:
    @pytest.mark.parametrize(
        ("condition", "operator"),
        [
            (c.age == 40, "eq"),
            (c.age != 40, "ne"),
            (c.age < 40, "lt"),
            (c.age <= 40, "le"),
            (c.age > 40, "gt"),
            (c.age >= 40, "ge"),
        ],
    )
    def test_a_comparison_is_a_value(self, condition: Condition, operator: str) -> None:
        assert condition == Compare(FIELDS["age"], operator, 40, 40)  # type: ignore[arg-type]

    def test_a_value_on_the_left_is_turned_around(self) -> None:
        assert (c.age > 40) == (c.age > 40)

    def test_values_are_checked_as_when_they_are_stored(self) -> None:
        with pytest.raises(InvalidPropertyError):
            assert c.age > "40"

    def test_values_are_kept_in_both_forms(self) -> None:
        condition = c.grade == Grade.SENIOR

        assert condition == Compare(FIELDS["grade"], "eq", Grade.SENIOR, "s")

    def test_between_has_both_ends_inside(self) -> None:
        assert c.age.between(30, 40) == all_of(c.age >= 30, c.age <= 40)

    def test_in_takes_any_iterable(self) -> None:
        assert c.age.in_(iter([1, 2])) == IsIn(FIELDS["age"], (1, 2), (1, 2))

    def test_no_entity_is_in_an_empty_choice(self) -> None:
        assert c.age.in_([]) == NEVER

    def test_a_text_can_begin_with_another(self) -> None:
        assert c.first.startswith("Ju") == StartsWith(FIELDS["first"], "Ju")

    def test_startswith_takes_a_text(self) -> None:
        with pytest.raises(InvalidPropertyError):
            c.first.startswith(7)  # type: ignore[arg-type]

    def test_only_texts_begin_with_something(self) -> None:
        with pytest.raises(UsageError) as caught:
            c.born.startswith("2014")

        assert caught.value.code == "NotFilterable"

    def test_absence_has_its_own_condition(self) -> None:
        assert c.nickname.is_absent() == Negated(IsPresent(FIELDS["nickname"]))
        assert c.nickname.is_present() == IsPresent(FIELDS["nickname"])

    def test_a_field_of_the_keys_is_always_present(self) -> None:
        assert c.dept.is_present() == ALWAYS
        assert c.dept.is_absent() == NEVER

    @pytest.mark.parametrize(
        "compared",
        [lambda: c.nickname == None, lambda: c.nickname.in_(["a", None])],  # noqa: E711
    )
    def test_none_never_matches_and_the_error_says_what_does(self, compared: Any) -> None:
        with pytest.raises(UsageError) as caught:
            compared()

        assert caught.value.code == "NeverMatches"
        assert "c.nickname.is_absent()" in caught.value.hint

    def test_nan_never_matches(self) -> None:
        with pytest.raises(UsageError) as caught:
            assert c.rating == math.nan  # noqa: PLW0177

        assert caught.value.code == "NeverMatches"


class TestWhatCannotBeCompared:
    @pytest.mark.parametrize(
        ("name", "reason"),
        [
            ("salary", "encrypted"),
            ("photo", "blob"),
            ("hours", "series"),
            ("tags", "JSON"),
        ],
    )
    def test_the_error_says_why(self, name: str, reason: str) -> None:
        with pytest.raises(UsageError) as caught:
            assert getattr(c, name) == None  # noqa: E711

        assert caught.value.code == "NotFilterable"
        assert reason in caught.value.message

    @pytest.mark.parametrize(
        "compared", [lambda: c.salary.in_([1]), c.photo.is_absent, lambda: c.tags > 1]
    )
    def test_in_no_way(self, compared: Any) -> None:
        with pytest.raises(UsageError) as caught:
            compared()

        assert caught.value.code == "NotFilterable"

    @pytest.mark.parametrize(
        "compared",
        [lambda: c.amount > Decimal(1), lambda: c.grade < Grade.SENIOR],
    )
    def test_what_does_not_sort_as_it_is_stored_has_no_order(self, compared: Any) -> None:
        with pytest.raises(UsageError) as caught:
            compared()

        assert caught.value.code == "NotFilterable"

    def test_what_does_not_sort_can_be_equal(self) -> None:
        assert (c.amount == Decimal("9.50")) == Compare(
            FIELDS["amount"], "eq", Decimal("9.50"), "9.5"
        )
        assert isinstance(c.shift == "day", Compare)
        assert c.grade.in_([Grade.SENIOR]) == IsIn(FIELDS["grade"], (Grade.SENIOR,), ("s",))


class TestJoining:
    def test_chains_are_flat(self) -> None:
        first, second, third = c.age > 1, c.age > 2, c.age > 3

        assert first & second & third == AllOf((first, second, third))
        assert first | (second | third) == AnyOf((first, second, third))

    def test_not_not_is_nothing(self) -> None:
        assert ~~(c.age > 1) == (c.age > 1)
        assert ~(c.age > 1) == Negated(c.age > 1)

    def test_the_impossible_and_the_empty_condition_disappear(self) -> None:
        some = c.age > 1

        assert some & ALWAYS == some
        assert some | NEVER == some
        assert some & NEVER == NEVER
        assert some | ALWAYS == ALWAYS
        assert ~NEVER == ALWAYS
        assert ~ALWAYS == NEVER
        assert all_of() == ALWAYS
        assert any_of() == NEVER

    @pytest.mark.parametrize(
        "joined",
        [
            lambda: (c.age > 40) and (c.age < 50),
            lambda: (c.age > 40) or (c.age < 50),
            lambda: not (c.age > 40),
            lambda: 40 < c.age < 50,
        ],
    )
    def test_the_words_of_python_are_refused_with_the_operators_to_use(self, joined: Any) -> None:
        with pytest.raises(TypeError, match=r"use & for and, \| for or, ~ for not"):
            joined()

    @pytest.mark.parametrize(
        "joined",
        [
            lambda: c.age > 40 & c.level,
            lambda: c.age & (c.level == 1),
            lambda: (c.age > 40) & 1,  # type: ignore[operator]
            lambda: (c.age > 40) | True,  # type: ignore[operator]
        ],
    )
    def test_forgotten_parentheses_are_told(self, joined: Any) -> None:
        with pytest.raises(TypeError, match="parentheses"):
            joined()

    def test_a_field_alone_is_not_a_condition(self) -> None:
        with pytest.raises(TypeError, match="compare it with a value"):
            bool(c.is_manager)

    def test_conjuncts_are_what_all_must_hold(self) -> None:
        first, second = c.age > 1, c.age > 2

        assert conjuncts(None) == ()
        assert conjuncts(first) == (first,)
        assert conjuncts(first & second) == (first, second)

    def test_a_condition_is_shown_in_the_same_words_in_every_process(self) -> None:
        condition = ~((c.age > 1) & (c.first.startswith("J") | c.id.in_([1, 2])))

        assert repr(condition) == (
            "<condition not ((age gt 1 and (first starts with 'J' or id in (1, 2))))>"
        )
        assert repr(c.nickname.is_present()) == "<condition nickname is present>"

    def test_all_fields_of_a_condition_are_found(self) -> None:
        condition = ~((c.age > 1) | c.first.startswith("J")) & c.nickname.is_present()

        assert [field.name for field in fields_in(condition)] == ["age", "first", "nickname"]


class TestNames:
    def test_an_unknown_field_is_told_with_those_there_are(self) -> None:
        with pytest.raises(UnknownFieldError) as caught:
            assert c.agee

        assert caught.value.code == "UnknownField"
        assert "dept, id, first, age" in caught.value.hint

    def test_an_unknown_field_is_an_unknown_attribute(self) -> None:
        assert not hasattr(c, "agee")

    def test_fields_are_listed(self) -> None:
        assert "badge" in dir(c)
        assert "Employee" in repr(c)
        assert repr(c.age) == "<field age>"

    def test_columns_can_be_copied(self) -> None:
        assert copy.copy(c).age is not None

    def test_a_column_has_no_hash(self) -> None:
        with pytest.raises(TypeError):
            hash(c.age)
