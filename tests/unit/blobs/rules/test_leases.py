"""The tables of lease outcomes, row by row."""

import pytest

from partita.blobs.rules.leases import Lease, after_write, apply, check_use, facts_at, state_at
from partita.blobs.rules.model import LeaseAction, LeaseRequest
from partita.errors import PartitaError

A = "aaaaaaaa-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
B = "bbbbbbbb-bbbb-4bbb-8bbb-bbbbbbbbbbbb"
C = "cccccccc-cccc-4ccc-8ccc-cccccccccccc"
NEW = "dddddddd-dddd-4ddd-8ddd-dddddddddddd"
SECOND = 10_000_000
NOW = 1000 * SECOND

AVAILABLE = None
LEASED = Lease(A, 15, NOW + 10 * SECOND)
INFINITE = Lease(A, -1, None)
BREAKING = Lease(A, 15, NOW + 10 * SECOND, breaks_at=NOW + 5 * SECOND)
BROKEN = Lease(A, 15, NOW + 10 * SECOND, breaks_at=NOW)
EXPIRED = Lease(A, 15, NOW)

STATES = {
    "available": AVAILABLE,
    "leased": LEASED,
    "breaking": BREAKING,
    "broken": BROKEN,
    "expired": EXPIRED,
}
PRESENT = "LeaseAlreadyPresent"
ABSENT = "LeaseNotPresentWithLeaseOperation"
MISMATCH = "LeaseIdMismatchWithLeaseOperation"

TABLE = [
    # action, id, proposed, period: available, leased, breaking, broken, expired
    ("acquire", None, None, None, NEW, PRESENT, PRESENT, NEW, NEW),
    ("acquire", None, A, None, A, A, "LeaseIsBreakingAndCannotBeAcquired", A, A),
    ("acquire", None, B, None, B, PRESENT, PRESENT, B, B),
    ("break", None, None, 0, ABSENT, "0", "0", "0", "0"),
    ("break", None, None, 3, ABSENT, "3", "3", "0", "0"),
    ("break", None, None, 60, ABSENT, "10", "5", "0", "0"),
    ("break", None, None, None, ABSENT, "10", "5", "0", "0"),
    ("change", A, B, None, ABSENT, B, "LeaseIsBreakingAndCannotBeChanged", ABSENT, ABSENT),
    ("change", B, A, None, ABSENT, A, "LeaseIsBreakingAndCannotBeChanged", ABSENT, ABSENT),
    ("change", B, C, None, ABSENT, MISMATCH, MISMATCH, ABSENT, ABSENT),
    (
        "renew",
        A,
        None,
        None,
        ABSENT,
        A,
        "LeaseIsBrokenAndCannotBeRenewed",
        "LeaseIsBrokenAndCannotBeRenewed",
        A,
    ),
    ("renew", B, None, None, ABSENT, MISMATCH, MISMATCH, MISMATCH, MISMATCH),
    ("release", A, None, None, ABSENT, "free", "free", "free", "free"),
    ("release", B, None, None, ABSENT, MISMATCH, MISMATCH, MISMATCH, MISMATCH),
]
CASES = [
    (action, lease_id, proposed, period, state, outcome)
    for action, lease_id, proposed, period, *outcomes in TABLE
    for state, outcome in zip(STATES, outcomes, strict=True)
]


def request(
    action: LeaseAction, lease_id: str | None, proposed: str | None, period: int | None
) -> LeaseRequest:
    duration = 30 if action == "acquire" else None
    return LeaseRequest(action, lease_id, proposed, duration, period)


@pytest.mark.parametrize(("action", "lease_id", "proposed", "period", "state", "outcome"), CASES)
def test_an_action_has_the_outcome_of_the_table(
    action: LeaseAction,
    lease_id: str | None,
    proposed: str | None,
    period: int | None,
    state: str,
    outcome: str,
) -> None:
    asked = request(action, lease_id, proposed, period)
    if "Lease" in outcome:
        with pytest.raises(PartitaError) as refused:
            apply(STATES[state], asked, now=NOW, new_id=NEW)
        assert refused.value.code == outcome
        return

    lease, seconds = apply(STATES[state], asked, now=NOW, new_id=NEW)

    if outcome == "free":
        assert lease is None
    elif action == "break":
        assert seconds == int(outcome)
        assert state_at(lease, NOW) == ("breaking" if seconds else "broken")
    else:
        assert lease is not None
        assert lease.id == outcome
        assert state_at(lease, NOW) == "leased"


def test_time_moves_a_lease_on() -> None:
    assert state_at(LEASED, NOW + 10 * SECOND - 1) == "leased"
    assert state_at(LEASED, NOW + 10 * SECOND) == "expired"
    assert state_at(BREAKING, NOW + 5 * SECOND - 1) == "breaking"
    assert state_at(BREAKING, NOW + 5 * SECOND) == "broken"
    assert state_at(INFINITE, NOW * NOW) == "leased"


def test_a_lease_without_an_end_breaks_at_once_or_after_the_period() -> None:
    assert apply(INFINITE, request("break", None, None, None), now=NOW, new_id=NEW)[1] == 0
    assert apply(INFINITE, request("break", None, None, 20), now=NOW, new_id=NEW)[1] == 20


def test_a_renewed_lease_runs_its_time_again() -> None:
    lease, _ = apply(EXPIRED, request("renew", A, None, None), now=NOW, new_id=NEW)

    assert lease == Lease(A, 15, NOW + 15 * SECOND)


@pytest.mark.parametrize("duration", [None, 0, 14, 61, -2])
def test_a_lease_lasts_15_to_60_seconds_or_for_ever(duration: int | None) -> None:
    with pytest.raises(PartitaError) as refused:
        apply(None, LeaseRequest("acquire", duration=duration), now=NOW, new_id=NEW)

    assert refused.value.code in ("InvalidHeaderValue", "MissingRequiredHeader")


@pytest.mark.parametrize("period", [-1, 61])
def test_a_break_takes_up_to_60_seconds(period: int) -> None:
    with pytest.raises(PartitaError) as refused:
        apply(LEASED, request("break", None, None, period), now=NOW, new_id=NEW)

    assert refused.value.code == "InvalidHeaderValue"


def test_ids_are_guids_in_any_spelling() -> None:
    lease, _ = apply(
        None, LeaseRequest("acquire", proposed_id=A.upper(), duration=15), now=NOW, new_id=NEW
    )
    assert lease is not None
    assert lease.id == A
    check_use(lease, "{" + A.upper() + "}", now=NOW, writes=True)
    with pytest.raises(PartitaError) as refused:
        check_use(lease, "not a guid", now=NOW, writes=True)
    assert refused.value.code == "InvalidHeaderValue"


@pytest.mark.parametrize(
    ("state", "lease_id", "writes", "code"),
    [
        ("available", A, True, "LeaseNotPresentWithBlobOperation"),
        ("available", None, True, None),
        ("available", A, False, "LeaseNotPresentWithBlobOperation"),
        ("leased", A, True, None),
        ("leased", B, True, "LeaseIdMismatchWithBlobOperation"),
        ("leased", None, True, "LeaseIdMissing"),
        ("leased", A, False, None),
        ("leased", B, False, "LeaseIdMismatchWithBlobOperation"),
        ("leased", None, False, None),
        ("breaking", A, True, None),
        ("breaking", B, True, "LeaseIdMismatchWithBlobOperation"),
        ("breaking", None, True, "LeaseIdMissing"),
        ("broken", A, True, "LeaseLost"),
        ("broken", B, True, "LeaseIdMismatchWithBlobOperation"),
        ("broken", None, True, None),
        ("expired", A, True, "LeaseLost"),
        ("expired", A, False, "LeaseLost"),
        ("expired", None, True, None),
    ],
)
def test_a_use_has_the_outcome_of_the_table(
    state: str, lease_id: str | None, writes: bool, code: str | None
) -> None:
    if code is None:
        check_use(STATES[state], lease_id, now=NOW, writes=writes)
        return
    with pytest.raises(PartitaError) as refused:
        check_use(STATES[state], lease_id, now=NOW, writes=writes)
    assert refused.value.code == code


def test_a_container_has_codes_of_its_own() -> None:
    with pytest.raises(PartitaError) as refused:
        check_use(LEASED, B, now=NOW, writes=True, thing="Container")
    assert refused.value.code == "LeaseIdMismatchWithContainerOperation"
    with pytest.raises(PartitaError) as refused:
        check_use(None, A, now=NOW, writes=True, thing="Container")
    assert refused.value.code == "LeaseNotPresentWithContainerOperation"


def test_a_write_makes_an_expired_lease_available() -> None:
    assert after_write(EXPIRED, NOW) is None
    assert after_write(LEASED, NOW) == LEASED
    assert after_write(BROKEN, NOW) == BROKEN
    assert after_write(None, NOW) is None


def test_what_is_shown_of_a_lease() -> None:
    shown = [facts_at(lease, NOW) for lease in (LEASED, INFINITE, BREAKING, BROKEN, AVAILABLE)]

    assert [(each.status, each.state, each.duration) for each in shown] == [
        ("locked", "leased", "fixed"),
        ("locked", "leased", "infinite"),
        ("locked", "breaking", None),
        ("unlocked", "broken", None),
        ("unlocked", "available", None),
    ]
