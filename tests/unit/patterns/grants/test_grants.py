"""Which keys a grant is for: the ranges, without a service."""

import enum
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Annotated, Any
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.clock import ManualClock
from partita.errors import InvalidKeyError, LimitExceededError, UsageError
from partita.patterns.fields.markers import Series
from partita.patterns.grants.granted_ranges import GRANTS_MAX, GrantedRange, ranges
from partita.patterns.grants.grants import SKEW_SECONDS, Grant, GrantTerms, Issuer
from partita.patterns.keys.intervals import Interval, at_least, at_most, between, starting_with
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import entity, entity_type
from partita.patterns.types.indexes import index
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY

READ = GrantTerms("r", timedelta(hours=1))


class Grade(enum.Enum):
    JUNIOR = "j"
    SENIOR = "s"


@entity(table="staff", partition="{dept}", row="emp_{id:06d}")
class Employee:
    dept: str
    id: int


@entity(table="staff", partition="{dept}", row="{id:06d}_{year:04d}")
class Review:
    dept: str
    id: int
    year: int


@entity(table="files", partition="files", row="{owner:esc}_{name}")
class File:
    owner: str
    name: str


@entity(table="notes", partition="{user}", row="{title}")
class Note:
    user: str
    title: str


@entity(table="ranks", partition="{dept}", row="{grade}_{name}")
class Rank:
    dept: str
    grade: Grade
    name: str


@entity(table="readings", partition="{day:08d}_{device:hash4}", row="d_{device}", allow_hot=True)
class Reading:
    day: int
    device: str


@entity(table="counts", partition="{user}", row="{number:04d}")
class Count:
    user: str
    number: int
    messages: Annotated[dict[int, int], Series("m{:03d}", slots=365)]


@entity(table="diaries", partition="{user}", row="{title}")
class Diary:
    user: str
    title: str
    messages: Annotated[dict[int, int], Series("m{:03d}", slots=365)]


def of(cls: type[Any], **given_: Any) -> list[GrantedRange]:
    return ranges(entity_type(cls), given_)


def only(cls: type[Any], **given_: Any) -> tuple[str, str, str]:
    (found,) = of(cls, **given_)
    assert found.start_pk == found.end_pk
    return found.start_pk, found.start_rk, found.end_rk


def refusal(cls: type[Any], **given_: Any) -> UsageError:
    with pytest.raises(UsageError) as refused:
        of(cls, **given_)
    assert refused.value.code == "GrantNotExpressible"
    assert refused.value.hint
    return refused.value


# Ranges


def test_one_entity_is_exactly_its_key() -> None:
    assert only(Employee, dept="Sales", id=123) == ("Sales", "emp_000123", "emp_000123")


def test_a_partition_of_a_type_is_what_its_row_keys_can_be() -> None:
    assert only(Employee, dept="Sales") == ("Sales", "emp_000000", "emp_999999")


def test_an_interval_ends_exactly_with_its_last_key() -> None:
    found = only(Employee, dept="Sales", id=between(100, 199))

    assert found == ("Sales", "emp_000100", "emp_000199")


def test_the_first_fields_of_the_row_key_are_a_prefix_with_its_separator() -> None:
    assert only(File, owner="user1") == ("files", "user1_", "user1_\uffff")


@pytest.mark.parametrize("name", ["", "a", "日本", "\uffef", "\U0001f600", "\U0010ffff", "~"])
def test_user1_reaches_its_own_files_and_not_those_of_user10(name: str) -> None:
    (found,) = of(File, owner="user1")
    model = entity_type(File)

    def holds(owner: str) -> bool:
        return found.holds(model.key({"owner": owner, "name": name}))

    assert holds("user1")
    assert not any(
        map(holds, ["user10", "user", "user0", "user2", "user1_", "User1", "", "user1`"])
    )


def test_what_follows_a_given_field_ends_with_the_greatest_text() -> None:
    assert only(Review, dept="Sales", id=7) == ("Sales", "000007_0000", "000007_9999")
    assert only(Review, dept="Sales", id=between(7, 8)) == ("Sales", "000007", "000008\uffff")


def test_members_of_an_enum_are_a_range_as_well() -> None:
    assert only(Rank, dept="Sales", grade=Grade.SENIOR) == ("Sales", "s_", "s_\uffff")
    assert only(Rank, dept="Sales") == ("Sales", "j_", "s_\uffff")


def test_texts_without_a_prefix_are_two_ranges_around_the_hidden_rows() -> None:
    before, behind = of(Note, user="ann")

    assert (before.start_rk, before.end_rk) == ("", "}\uffff")
    assert (behind.start_rk, behind.end_rk) == ("\xa0", "")
    for row in ("~o_1", "~", "~\uffff", "~\U0010ffff", "~ix_by_email"):
        assert not before.holds(RowKey("ann", row))
        assert not behind.holds(RowKey("ann", row))
    for row in ("", "a", "{}", "}\U0001f600"):
        assert before.holds(RowKey("ann", row))
    for row in ("\xa0", "é", "日本", "\uffff", "\U0001f600"):
        assert behind.holds(RowKey("ann", row))


def test_a_text_up_to_a_value_ends_with_the_value() -> None:
    assert only(Note, user="ann", title=at_most("m")) == ("ann", "", "m")


def test_a_text_from_a_value_on_leaves_the_hidden_rows_out() -> None:
    before, behind = of(Note, user="ann", title=at_least("m"))

    assert (before.start_rk, before.end_rk) == ("m", "}\uffff")
    assert (behind.start_rk, behind.end_rk) == ("\xa0", "")


def test_a_prefix_with_a_separator_is_a_range() -> None:
    assert only(Note, user="ann", title=starting_with("a.")) == ("ann", "a.", "a.\uffff")


def test_a_spread_partition_is_a_range_for_each_of_its_places() -> None:
    found = of(Reading, day=20260102)

    assert [each.start_pk for each in found] == [f"20260102_{place}" for place in range(4)]
    assert {(each.start_rk, each.end_rk) for each in found} == {("d_", "d_\uffff")}


def test_the_field_of_a_spread_finds_its_place() -> None:
    key = entity_type(Reading).key({"day": 20260102, "device": "a7"})

    assert only(Reading, day=20260102, device="a7") == (key.partition, "d_a7", "d_a7")


def test_an_interval_of_the_spread_field_is_a_range_in_each_place() -> None:
    found = of(Reading, day=20260102, device=starting_with("a."))

    assert [(each.start_rk, each.end_rk) for each in found] == [("d_a.", "d_a.\uffff")] * 4


def test_a_wide_entity_is_its_key_and_its_further_rows_and_nothing_between() -> None:
    first, further = of(Diary, user="ann", title="x")

    assert (first.start_rk, first.end_rk) == ("x", "x")
    assert (further.start_rk, further.end_rk) == ("x~1", "x~99")
    for row in ("x1", "x_", "x~", "x~0", "xa", "x}"):
        assert not first.holds(RowKey("ann", row))
        assert not further.holds(RowKey("ann", row))
    assert all(further.holds(RowKey("ann", f"x~{place}")) for place in range(1, 100))


def test_further_rows_of_the_last_wide_entity_are_inside() -> None:
    (found,) = of(Count, user="ann", number=between(1, 7))

    assert found.holds(RowKey("ann", "0007~12"))
    assert not found.holds(RowKey("ann", "0008"))


# Refusals


def test_the_partition_must_be_given() -> None:
    assert "Give dept." in refusal(Employee, id=7).hint


def test_fields_of_neither_key_are_refused() -> None:
    @entity(table="staff", partition="{dept}", row="{id:06d}")
    class Clerk:
        dept: str
        id: int
        email: str = ""

    assert "dept, id" in refusal(Clerk, dept="Sales", email="a@b").hint


def test_a_later_field_of_the_row_key_alone_is_refused() -> None:
    assert "id, year" in refusal(Review, dept="Sales", year=2026).hint


def test_an_interval_in_the_partition_key_is_refused() -> None:
    refusal(Employee, dept=between("A", "B"), id=1)


def test_an_interval_of_an_escaped_text_is_refused() -> None:
    refusal(File, owner=starting_with("a_"))


def test_a_prefix_that_reaches_neighbours_is_refused() -> None:
    assert "user10" in str(refusal(Note, user="ann", title=starting_with("user1")))


def test_an_empty_prefix_is_not_a_prefix() -> None:
    assert len(of(Note, user="ann", title=starting_with(""))) == 2


@pytest.mark.parametrize(
    ("cls", "given_"),
    [(Employee, {"dept": "", "id": 1}), (Note, {"user": ""}), (Note, {"user": "a", "title": ""})],
)
def test_an_empty_key_would_open_the_whole_table_and_is_refused(
    cls: type[Any], given_: dict[str, Any]
) -> None:
    assert "empty" in str(refusal(cls, **given_))


def test_an_interval_that_holds_nothing_is_refused() -> None:
    refusal(Employee, dept="Sales", id=between(9, 1))


def test_ends_that_services_sort_differently_are_refused() -> None:
    refusal(Note, user="ann", title=between("a", "\uff21"))
    refusal(Note, user="ann", title=at_least("a\U0001f600"))


def test_a_value_that_no_key_can_have_is_refused_by_its_template() -> None:
    with pytest.raises(InvalidKeyError):
        of(Employee, dept="Sales", id=-1)
    with pytest.raises(InvalidKeyError):
        of(Note, user="ann", title="~o_1")


def test_too_many_places_are_refused() -> None:
    @entity(table="readings", partition="{device:hash256}", row="{device}")
    class Spread:
        device: str

    with pytest.raises(LimitExceededError) as refused:
        of(Spread)

    assert refused.value.code == "TooManyGrants"
    assert str(GRANTS_MAX) in refused.value.message


# What is inside is what was meant

TEXTS = st.text(
    st.characters(exclude_characters="/\\#?~", exclude_categories=["Cc", "Cs"]), max_size=4
)
SMALL = st.text("ab_1~é\uffef\U0001f600", max_size=3).filter(lambda text: not text.startswith("~"))


def is_meant(values: Mapping[str, Any], conditions: Mapping[str, Any]) -> bool:
    return all(
        condition.holds(values[name]) if isinstance(condition, Interval) else condition == value
        for name, condition in conditions.items()
        for value in [values[name]]
    )


@given(owner=TEXTS | SMALL, asked=TEXTS | SMALL, name=TEXTS | SMALL)
def test_files_are_inside_exactly_if_they_are_of_the_owner(
    owner: str, asked: str, name: str
) -> None:
    key = entity_type(File).key({"owner": owner, "name": name})

    assert any(each.holds(key) for each in of(File, owner=asked)) == (owner == asked)


@given(
    dept=st.sampled_from(["a", "b"]),
    number=st.integers(0, 999_999),
    year=st.integers(0, 9_999),
    lower=st.integers(0, 999_999),
    upper=st.integers(0, 999_999),
)
def test_reviews_are_inside_exactly_if_they_are_in_the_interval(
    dept: str, number: int, year: int, lower: int, upper: int
) -> None:
    key = entity_type(Review).key({"dept": dept, "id": number, "year": year})
    conditions = {"dept": "a", "id": between(min(lower, upper), max(lower, upper))}

    held = any(each.holds(key) for each in of(Review, **conditions))

    assert held == is_meant({"dept": dept, "id": number}, conditions)


@given(user=TEXTS, title=TEXTS, asked=TEXTS.filter(bool))
def test_notes_are_inside_exactly_if_they_are_of_the_user(
    user: str, title: str, asked: str
) -> None:
    key = entity_type(Note).key({"user": user, "title": title})

    assert [each.holds(key) for each in of(Note, user=asked)].count(True) == (user == asked)


# Terms


def an_issuer(clock: ManualClock | None = None, endpoint: str = "") -> Issuer:
    return Issuer(DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY, clock or ManualClock(), endpoint=endpoint)


def fields_of(grant: Grant) -> dict[str, str]:
    return {name: values[0] for name, values in parse_qs(grant.token).items()}


def test_a_grant_begins_earlier_than_now_and_ends_after_its_time() -> None:
    clock = ManualClock()
    now = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=clock.ticks() // 10)

    grant = an_issuer(clock).grant(entity_type(Employee), {"dept": "Sales"}, READ)

    assert grant.start == now - timedelta(seconds=SKEW_SECONDS)
    assert grant.expires == now + timedelta(hours=1)
    assert fields_of(grant)["se"] == grant.expires.strftime("%Y-%m-%dT%H:%M:%SZ")


def test_a_start_in_another_zone_is_the_same_moment() -> None:
    start = datetime(2030, 1, 2, 3, tzinfo=timezone(timedelta(hours=5)))
    terms = GrantTerms("r", timedelta(hours=1), start=start)

    grant = an_issuer().grant(entity_type(Employee), {"dept": "Sales"}, terms)

    assert fields_of(grant)["st"] == "2030-01-01T22:00:00Z"
    assert fields_of(grant)["se"] == "2030-01-01T23:00:00Z"


def test_permissions_come_in_the_order_of_the_service() -> None:
    terms = GrantTerms("dr", timedelta(hours=1))

    grant = an_issuer().grant(entity_type(Employee), {"dept": "Sales"}, terms)

    assert (grant.permissions, fields_of(grant)["sp"]) == ("rd", "rd")


def test_a_policy_may_say_what_and_when() -> None:
    terms = GrantTerms(policy_id="readers")

    grant = an_issuer().grant(entity_type(Employee), {"dept": "Sales"}, terms)

    fields = fields_of(grant)
    assert fields["si"] == "readers"
    assert fields.keys().isdisjoint({"sp", "st", "se"})
    assert grant.expires is None


def test_a_grant_for_an_https_endpoint_is_for_https_only() -> None:
    secure = an_issuer(endpoint="https://contoso.table.core.windows.net")
    local = an_issuer(endpoint="http://127.0.0.1:10002/devstoreaccount1")

    grant = secure.grant(entity_type(Employee), {"dept": "Sales"}, READ)

    assert fields_of(grant)["spr"] == "https"
    assert grant.url == f"https://contoso.table.core.windows.net/staff?{grant.token}"
    assert "spr" not in fields_of(local.grant(entity_type(Employee), {"dept": "Sales"}, READ))


def test_a_grant_and_its_issuer_do_not_print_their_secrets() -> None:
    issuer = an_issuer()

    grant = issuer.grant(entity_type(Employee), {"dept": "Sales"}, READ)

    assert "sig=" in grant.token
    assert "sig=" not in repr(grant)
    assert "sig=" not in str(grant)
    assert DEVELOPMENT_KEY not in repr(issuer)


@pytest.mark.parametrize(
    "terms",
    [
        GrantTerms(),
        GrantTerms("r"),
        GrantTerms(ttl=timedelta(hours=1)),
        GrantTerms("rw", timedelta(hours=1)),
        GrantTerms("rr", timedelta(hours=1)),
        GrantTerms("r", timedelta(0)),
        GrantTerms("r", timedelta(seconds=-1)),
        GrantTerms("r", timedelta(days=366)),
        GrantTerms(policy_id="x" * 65),
        GrantTerms("r", timedelta(hours=1), start=datetime(2030, 1, 1)),  # noqa: DTZ001 - the mistake
    ],
)
def test_terms_that_cannot_be_meant_are_refused(terms: GrantTerms) -> None:
    with pytest.raises(UsageError) as refused:
        an_issuer().grants(entity_type(Employee), {"dept": "Sales"}, terms)

    assert refused.value.code == "GrantTerms"


def test_where_several_tokens_are_needed_one_is_not_enough() -> None:
    with pytest.raises(UsageError) as refused:
        an_issuer().grant(entity_type(Note), {"user": "ann"}, READ)

    assert refused.value.code == "SeveralGrants"
    assert len(an_issuer().grants(entity_type(Note), {"user": "ann"}, READ)) == 2


def test_writing_past_an_index_is_refused_unless_it_is_forced() -> None:
    @entity(table="staff", partition="{dept}", row="emp_{id:06d}")
    class Indexed:
        dept: str
        id: int
        email: str

    index(Indexed, row="email_{email}", unique=True)
    model, sales = entity_type(Indexed), {"dept": "Sales"}

    for letter in "aud":
        with pytest.raises(UsageError) as refused:
            an_issuer().grant(model, sales, GrantTerms(f"r{letter}", timedelta(hours=1)))
        assert refused.value.code == "GrantBypassesIndexes"

    assert an_issuer().grant(model, sales, READ).permissions == "r"
    forced = an_issuer().grant(model, sales, GrantTerms("raud", timedelta(hours=1)), force=True)
    assert forced.permissions == "raud"
