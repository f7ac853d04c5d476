import pytest

from partita.errors import NotAuthorizedError, PartitaError
from partita.policies import Policy
from partita.service.auth.policy import Terms, check_policies, merge, parse_time

TERMS = Terms("2020-01-01", "2030-01-01", "ra")
POLICY = Policy("p", "2020-01-01", "2030-01-01", "ra")


def refusal(*policies: Policy) -> str:
    with pytest.raises(PartitaError) as caught:
        check_policies(policies)
    return caught.value.code


def test_five_policies_may_be_stored() -> None:
    check_policies([Policy(str(number)) for number in range(5)])


def test_six_policies_may_not() -> None:
    assert refusal(*(Policy(str(number)) for number in range(6))) == "InvalidXmlDocument"


def test_two_policies_of_one_id_are_refused() -> None:
    assert refusal(Policy("a"), Policy("b"), Policy("a")) == "InvalidXmlDocument"


def test_ids_differ_by_case() -> None:
    check_policies([Policy("a"), Policy("A")])


@pytest.mark.parametrize(
    "policy",
    [
        Policy("x" * 64),
        Policy("é" * 64),
        Policy("a", start="2024-01-01"),
        Policy("a", start="2024-01-01T10:00Z", expiry="2024-01-01T10:00:00.1234567Z"),
        Policy("a", expiry="2024-01-01T10:00:00+01:00"),
        Policy("a", permission="raud"),
        Policy("a", permission="dr"),
    ],
)
def test_policy_within_the_rules_is_accepted(policy: Policy) -> None:
    check_policies([policy])


@pytest.mark.parametrize(
    "policy",
    [
        Policy(""),
        Policy("x" * 65),
        Policy("a", start="soon"),
        Policy("a", expiry="2024-02-30"),
        Policy("a", expiry="0001-01-01T00:00:00+01:00"),
        Policy("a", expiry="9999-12-31T23:59:59-01:00"),
        Policy("a", permission="rw"),
        Policy("a", permission="R"),
    ],
)
def test_policy_with_a_bad_value_is_refused(policy: Policy) -> None:
    assert refusal(Policy("good"), policy) == "InvalidXmlNodeValue"


def test_letters_are_those_of_the_service() -> None:
    check_policies([Policy("a", permission="rp")], letters="raup")


@pytest.mark.parametrize(
    ("given", "policy", "terms"),
    [
        (TERMS, None, TERMS),
        (TERMS, Policy("p"), TERMS),
        (Terms(), POLICY, TERMS),
        (Terms(permissions="d"), Policy("p", expiry="2030-01-01"), Terms("", "2030-01-01", "d")),
        (Terms(expiry="2030-01-01"), Policy("p", permission="u"), Terms("", "2030-01-01", "u")),
    ],
)
def test_policy_completes_the_terms(given: Terms, policy: Policy | None, terms: Terms) -> None:
    assert merge(given, policy) == terms


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        (Terms(start="2020-01-01"), POLICY),
        (Terms(expiry="2030-01-01"), POLICY),
        (Terms(permissions="ra"), POLICY),
        (Terms(), None),
        (Terms(), Policy("p")),
        (Terms(expiry="2030-01-01"), None),
        (Terms(permissions="r"), None),
        (Terms(permissions="r"), Policy("p", start="2020-01-01")),
    ],
)
def test_term_given_twice_or_never_is_refused(given: Terms, policy: Policy | None) -> None:
    with pytest.raises(NotAuthorizedError) as caught:
        merge(given, policy)

    assert caught.value.code == "AuthenticationFailed"


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("1970-01-01", 0),
        ("1970-01-01T00:00Z", 0),
        ("1970-01-01T00:00:01Z", 10_000_000),
        ("1970-01-01T00:00:00.0000001Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1600-12-31", None),
        ("", None),
    ],
)
def test_times(text: str, ticks: int | None) -> None:
    assert parse_time(text) == ticks
