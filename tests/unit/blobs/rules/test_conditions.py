import pytest

from partita.blobs.rules.conditions import check_read, check_tier_time, check_write
from partita.blobs.rules.model import Conditions, etag_of
from partita.errors import PartitaError

SECOND = 10_000_000
CHANGED = 1000 * SECOND + 1234567
LAST_MODIFIED = 1000 * SECOND
"""What the header says: whole seconds."""
ETAG = etag_of(CHANGED)
BEFORE, AFTER = LAST_MODIFIED - SECOND, LAST_MODIFIED + SECOND


def read_code(conditions: Conditions) -> str:
    try:
        check_read(conditions, CHANGED, {})
    except PartitaError as error:
        return "304" if error.facts.get("unchanged") else error.code
    return "ok"


def write_code(conditions: Conditions, changed_at: int | None = CHANGED, **options: bool) -> str:
    try:
        check_write(conditions, changed_at, {}, **options)
    except PartitaError as error:
        return error.code
    return "ok"


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (Conditions(), "ok"),
        (Conditions(if_match=(ETAG,)), "ok"),
        (Conditions(if_match=("0x1", ETAG)), "ok"),
        (Conditions(if_match=("*",)), "ok"),
        (Conditions(if_match=("0x1",)), "ConditionNotMet"),
        (Conditions(if_unmodified_since=LAST_MODIFIED), "ok"),
        (Conditions(if_unmodified_since=BEFORE), "ConditionNotMet"),
        (Conditions(if_none_match=("0x1",)), "ok"),
        (Conditions(if_none_match=(ETAG,)), "304"),
        (Conditions(if_none_match=("*",)), "UnsatisfiableCondition"),
        (Conditions(if_modified_since=BEFORE), "ok"),
        (Conditions(if_modified_since=LAST_MODIFIED), "304"),
        (Conditions(if_modified_since=AFTER), "304"),
        (Conditions(if_none_match=(ETAG,), if_modified_since=BEFORE), "ok"),
        (Conditions(if_none_match=("0x1",), if_modified_since=AFTER), "ok"),
        (Conditions(if_none_match=(ETAG,), if_modified_since=AFTER), "304"),
        (Conditions(if_match=("0x1",), if_none_match=(ETAG,)), "ConditionNotMet"),
    ],
)
def test_a_read(conditions: Conditions, code: str) -> None:
    assert read_code(conditions) == code


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        (Conditions(), "ok"),
        (Conditions(if_match=(ETAG,)), "ok"),
        (Conditions(if_match=("*",)), "ok"),
        (Conditions(if_match=("0x1",)), "ConditionNotMet"),
        (Conditions(if_none_match=(ETAG,)), "ConditionNotMet"),
        (Conditions(if_none_match=("*",)), "ConditionNotMet"),
        (Conditions(if_none_match=("0x1",)), "ok"),
        (Conditions(if_modified_since=LAST_MODIFIED), "ConditionNotMet"),
        (Conditions(if_modified_since=BEFORE), "ok"),
        (Conditions(if_unmodified_since=BEFORE), "ConditionNotMet"),
        (Conditions(if_unmodified_since=LAST_MODIFIED), "ok"),
        (Conditions(if_match=(ETAG,), if_unmodified_since=BEFORE), "ConditionNotMet"),
        (Conditions(if_match=(ETAG,), if_unmodified_since=AFTER), "ok"),
        (
            Conditions(if_match=(ETAG,), if_none_match=("0x1",)),
            "MultipleConditionHeadersNotSupported",
        ),
        (
            Conditions(if_modified_since=BEFORE, if_unmodified_since=AFTER),
            "MultipleConditionHeadersNotSupported",
        ),
    ],
)
def test_a_write(conditions: Conditions, code: str) -> None:
    assert write_code(conditions) == code


def test_a_write_where_nothing_is() -> None:
    assert write_code(Conditions(if_match=("*",)), None) == "ConditionNotMet"
    assert write_code(Conditions(if_none_match=("*",)), None, creates=True) == "ok"
    assert write_code(Conditions(if_modified_since=AFTER), None) == "ok"


def test_only_if_there_is_none_has_a_code_of_its_own_and_an_exception() -> None:
    none = Conditions(if_none_match=("*",))

    assert write_code(none, creates=True) == "BlobAlreadyExists"
    assert write_code(none, creates=True, holds_lease=True) == "ok"


def test_tags_are_asked_of_what_is_there() -> None:
    conditions = Conditions(if_tags="\"k\" = 'v'")

    check_read(conditions, CHANGED, {"k": "v"})
    assert read_code(conditions) == "ConditionNotMet"
    assert write_code(conditions, None) == "ConditionNotMet"


def test_the_time_of_a_tier_that_was_never_set_lies_before_all_times() -> None:
    check_tier_time(Conditions(if_tier_unmodified_since=BEFORE), None)
    with pytest.raises(PartitaError):
        check_tier_time(Conditions(if_tier_modified_since=BEFORE), None)
    check_tier_time(Conditions(if_tier_modified_since=BEFORE), CHANGED)
