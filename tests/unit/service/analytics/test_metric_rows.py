import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.service.analytics.metric_rows import (
    BYTES_IN,
    COUNTS_LENGTH,
    SECONDS,
    TICKS_PER_HOUR,
    TICKS_PER_MINUTE,
    Counts,
    Period,
    adding,
    capacity_members,
    counts_of,
    day_key,
    members_of,
    no_counts,
    period_key,
    sum_of,
)
from partita.service.http.observed import ANONYMOUSLY, BY_SAS
from partita.service.observing.outcomes import (
    AUTHORIZATION,
    CLIENT_OTHER,
    CLIENT_TIMEOUT,
    OUTCOMES,
    SERVER_OTHER,
    SERVER_TIMEOUT,
    SUCCESS,
    THROTTLING,
)
from partita.tables import edm

START = 14_007_564_000_000_000
"""2014-05-22T11:00:00Z"""

counts = st.lists(
    st.integers(min_value=0, max_value=10**9), min_size=COUNTS_LENGTH, max_size=COUNTS_LENGTH
)


def counted(**outcomes: int) -> Counts:
    row = no_counts()
    for name, count in outcomes.items():
        row[OUTCOMES.index(name)] = count
    return row


def test_a_row_has_the_properties_and_types_of_azure() -> None:
    members = members_of(counted(Success=7))
    names = [name for name in members if not name.endswith("@odata.type")]
    integers = ["TotalIngress", "TotalEgress", "TotalRequests", "TotalBillableRequests"]
    assert names == [
        *integers,
        *("Availability", "AverageE2ELatency", "AverageServerLatency", "PercentSuccess"),
        *("PercentThrottlingError", "PercentTimeoutError", "PercentServerOtherError"),
        *("PercentClientOtherError", "PercentAuthorizationError", "PercentNetworkError"),
        *OUTCOMES,
    ]
    for name in names:
        expected = edm.INT64 if name in integers or name in OUTCOMES else edm.DOUBLE
        assert edm.type_of(members, name) == expected
    assert len(OUTCOMES) == 24


def test_unbilled_requests_lower_the_availability_unless_they_are_throttled() -> None:
    members = members_of(
        counted(
            Success=6,
            SASSuccess=1,
            ThrottlingError=5,
            AnonymousAuthorizationError=5,
            ServerTimeoutError=1,
            ServerOtherError=1,
            AuthorizationError=1,
        )
    )
    assert members["TotalRequests"] == "20"
    assert members["TotalBillableRequests"] == "8"
    assert members["Availability"] == 80.0
    assert members["PercentSuccess"] == 35.0
    assert members["PercentThrottlingError"] == 25.0
    assert members["PercentTimeoutError"] == 5.0
    assert members["PercentAuthorizationError"] == 30.0


def test_a_row_without_requests_is_available() -> None:
    members = members_of(no_counts())
    assert members["Availability"] == 100.0
    assert members["PercentSuccess"] == members["AverageE2ELatency"] == 0.0


@given(counts)
def test_counts_are_read_back_from_a_row(row: Counts) -> None:
    expected = row[:SECONDS]
    found = counts_of(members_of(row))
    assert found[:SECONDS] == expected
    successes = row[SUCCESS] + row[ANONYMOUSLY + SUCCESS] + row[BY_SAS + SUCCESS]
    assert found[SECONDS] == pytest.approx(row[SECONDS] if successes else 0)


@given(st.lists(counts, min_size=1, max_size=4))
def test_rows_that_are_added_one_by_one_are_the_sum(rows: list[Counts]) -> None:
    key = "20140522T1100"
    [entity] = adding(key, {"user;All": rows[0]})({}, START)
    for row in rows[1:]:
        assert entity is not None
        [entity] = adding(key, {"user;All": row})({"user;All": entity}, START)
    assert entity is not None
    members = entity.properties()
    expected = members_of(sum_of(rows))
    for name, value in expected.items():
        assert members[name] == (pytest.approx(value) if isinstance(value, float) else value)


def test_a_period_counts_by_operation_and_only_successes_have_a_latency() -> None:
    period = Period.of(START + 5, TICKS_PER_HOUR)
    assert period.start == START
    period.add("QueryEntity", SUCCESS, seconds=0.25, bytes_in=0, bytes_out=10)
    period.add("QueryEntity", CLIENT_OTHER, seconds=9.0, bytes_in=0, bytes_out=5)
    period.add("InsertEntity", BY_SAS + SUCCESS, seconds=0.75, bytes_in=100, bytes_out=0)

    rows = period.rows(include_apis=True)
    assert list(rows) == ["user;All", "system;All", "user;InsertEntity", "user;QueryEntity"]
    members = members_of(rows["user;All"])
    assert (members["TotalIngress"], members["TotalEgress"]) == ("100", "15")
    assert members["AverageE2ELatency"] == 500.0
    assert rows["user;QueryEntity"][CLIENT_OTHER] == 1
    assert rows["user;InsertEntity"][BYTES_IN] == 100
    assert list(period.rows(include_apis=False)) == ["user;All", "system;All"]


def test_a_period_covers_its_length() -> None:
    period = Period.of(START + 90 * 10_000_000, TICKS_PER_MINUTE)
    assert period.start == START + TICKS_PER_MINUTE
    assert period.covers(START + TICKS_PER_MINUTE)
    assert not period.covers(START + 2 * TICKS_PER_MINUTE)
    assert not period.covers(START)


def test_keys_of_periods() -> None:
    assert period_key(START + 59 * TICKS_PER_MINUTE) == "20140522T1159"
    assert day_key(START) == "20140522T0000"


def test_the_capacity_is_made_of_integers() -> None:
    assert capacity_members(1, 2, 3) == {
        "Capacity@odata.type": "Edm.Int64",
        "Capacity": "1",
        "ContainerCount@odata.type": "Edm.Int64",
        "ContainerCount": "2",
        "ObjectCount@odata.type": "Edm.Int64",
        "ObjectCount": "3",
    }


@pytest.mark.parametrize("kind", [THROTTLING, SERVER_TIMEOUT, SERVER_OTHER])
@pytest.mark.parametrize("credentials", [0, ANONYMOUSLY, BY_SAS])
def test_errors_of_the_server_are_not_billed(kind: int, credentials: int) -> None:
    row = no_counts()
    row[credentials + kind] = 1
    assert members_of(row)["TotalBillableRequests"] == "0"


@pytest.mark.parametrize("kind", [SUCCESS, CLIENT_TIMEOUT, CLIENT_OTHER, AUTHORIZATION])
@pytest.mark.parametrize("credentials", [0, BY_SAS])
def test_requests_of_clients_with_credentials_are_billed(kind: int, credentials: int) -> None:
    row = no_counts()
    row[credentials + kind] = 1
    assert members_of(row)["TotalBillableRequests"] == "1"
