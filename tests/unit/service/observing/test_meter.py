import pytest

from partita.metrics.text import print_families
from partita.service.http.observed import ANONYMOUSLY, BY_SAS, UNOBSERVED
from partita.service.http.request import Request, Response
from partita.service.observing.meter import ServiceMeter
from partita.service.observing.outcomes import OUTCOMES, kind_of
from partita.service.tables.calls import GetEntity, Level
from partita.tables.entity import EntityKey


def answered(
    meter: ServiceMeter,
    *,
    status: int = 200,
    code: str = "",
    seconds: float = 0.0002,
    credentials: int = 0,
    is_lost: bool = False,
) -> None:
    request = Request("GET", "/a/Staff()", body=b"12345")
    request.observed.account, request.observed.operation = "acct", "QueryEntity"
    request.observed.code, request.observed.credentials = code, credentials
    meter.answered(request, Response(status, [], b"x" * 10), seconds, is_lost)


def test_there_are_the_24_outcomes_of_azure() -> None:
    assert len(OUTCOMES) == len(set(OUTCOMES)) == 24
    assert OUTCOMES[:2] == ("Success", "ThrottlingError")
    assert OUTCOMES[8] == "AnonymousSuccess"
    assert OUTCOMES[23] == "SASNetworkError"


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (200, "", "Success"),
        (202, "EntityAlreadyExists", "ClientOtherError"),
        (304, "ConditionNotMet", "ClientOtherError"),
        (404, "ResourceNotFound", "ClientOtherError"),
        (401, "NoAuthenticationInformation", "AuthorizationError"),
        (403, "AuthenticationFailed", "AuthorizationError"),
        (408, "OperationTimedOut", "ClientTimeoutError"),
        (500, "OperationTimedOut", "ServerTimeoutError"),
        (500, "InternalError", "ServerOtherError"),
        (503, "ServerBusy", "ThrottlingError"),
        (503, "StoreStopped", "ServerOtherError"),
        (400, "ClientGone", "NetworkError"),
    ],
)
def test_status_and_code_decide_the_outcome(status: int, code: str, outcome: str) -> None:
    assert OUTCOMES[kind_of(status, code)] == outcome


def test_a_lost_answer_is_a_network_error() -> None:
    assert OUTCOMES[kind_of(200, "", is_lost=True)] == "NetworkError"


def test_counts_bytes_and_durations_are_exact() -> None:
    meter = ServiceMeter("tables")
    for _ in range(3):
        answered(meter)
    answered(meter, status=404, code="ResourceNotFound", seconds=0.3)
    answered(meter, credentials=BY_SAS)
    answered(meter, credentials=ANONYMOUSLY, status=403, code="AuthenticationFailed")
    answered(meter, is_lost=True, seconds=20.0)
    meter.fold()
    answered(meter)

    ((account, operation, row),) = meter.rows()

    assert (account, operation) == ("acct", "QueryEntity")
    assert {OUTCOMES[at]: count for at, count in enumerate(row.outcomes) if count} == {
        "Success": 4,
        "ClientOtherError": 1,
        "SASSuccess": 1,
        "AnonymousAuthorizationError": 1,
        "NetworkError": 1,
    }
    assert row.requests == sum(row.buckets) == 8
    assert row.bytes_out == 80
    assert row.seconds == pytest.approx(20.3 + 6 * 0.0002)
    assert (row.buckets[1], row.buckets[-1]) == (6, 1)
    assert meter.statuses == {404: 1, 403: 1}


def test_bytes_of_writes_are_counted() -> None:
    meter = ServiceMeter("tables")
    request = Request("POST", "/a/Staff", body=b"12345")

    meter.answered(request, Response(201, [], b"answer"), 0.001)
    meter.answered(request, Response(204), 0.001)

    assert (meter.totals().bytes_in, meter.totals().bytes_out) == (10, 6)


def test_refusals_by_the_protocol_are_counted() -> None:
    meter = ServiceMeter("tables")

    meter.refused(Response(431, [("x-ms-error-code", "InvalidHeaderValue")]))

    assert meter.facts()["requests_total"] == meter.refused_by_protocol == 1
    assert 'status="431"} 1' in print_families(meter.families())


def test_listeners_are_told_the_outcome_and_slow_requests_apart() -> None:
    meter = ServiceMeter("tables")
    told: list[tuple[str, float, str]] = []
    meter.listeners.append(
        lambda _a, _b, seconds, kind: told.append(("all", seconds, OUTCOMES[kind]))
    )
    meter.slow_above_seconds = 0.1
    meter.on_slow = lambda _a, _b, seconds, kind: told.append(("slow", seconds, OUTCOMES[kind]))

    answered(meter)
    answered(meter, seconds=0.2, status=404, code="ResourceNotFound")

    assert told == [
        ("all", 0.0002, "Success"),
        ("slow", 0.2, "ClientOtherError"),
        ("all", 0.2, "ClientOtherError"),
    ]


def read_at(meter: ServiceMeter, seconds: float) -> Request:
    """Count the answer of a point read as the protocol does; return its request."""
    request = Request("GET", "/a/Staff(PartitionKey='p',RowKey='r')", observed=UNOBSERVED)
    call = GetEntity("Staff", EntityKey("p", "r"), None, Level.MINIMAL)
    meter.answered(request, Response(200, [], b"x" * 10, None, ("acct", call)), seconds, False)
    return request


def test_point_reads_are_counted_and_nothing_is_noted_of_them() -> None:
    meter = ServiceMeter("tables")

    read_at(meter, 0.0002)
    request = read_at(meter, 0.0002)

    ((account, operation, row),) = meter.rows()
    assert (account, operation, row.requests, row.bytes_out) == ("acct", "QueryEntity", 2, 20)
    assert request.observed is UNOBSERVED


def test_a_listener_is_told_which_entity_was_read() -> None:
    meter = ServiceMeter("tables")
    read_at(meter, 0.0002)
    told: list[tuple[str, str, object]] = []
    meter.listeners.append(
        lambda request, _b, _c, _d: told.append(
            (request.observed.account, request.observed.operation, request.observed.call.key)
        )
    )

    read_at(meter, 0.0002)

    assert told == [("acct", "QueryEntity", EntityKey("p", "r"))]
    assert meter.totals().requests == 2


def test_a_slow_point_read_is_told_after_quick_ones() -> None:
    meter = ServiceMeter("tables")
    meter.slow_above_seconds = 0.1
    told: list[str] = []
    meter.on_slow = lambda request, _b, _c, _d: told.append(request.observed.operation)

    read_at(meter, 0.0002)
    read_at(meter, 0.2)

    assert told == ["QueryEntity"]
