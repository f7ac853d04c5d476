import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from partita.clock import ManualClock
from partita.service.http.observed import Queried
from partita.service.http.request import Request, Response
from partita.service.observing.meter import ServiceMeter
from partita.service.observing.traces import Traces
from partita.service.tables.calls import Level, QueryEntities
from partita.tables.filters import parse
from partita.tables.plan import plan

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE}-{PARENT}-01", f"00-{TRACE}-{PARENT}-00"


class Traced:
    def __init__(self, one_in: int = 0) -> None:
        self.exporter = InMemorySpanExporter()
        self.meter = ServiceMeter("tables")
        processor = SimpleSpanProcessor(self.exporter)
        self.traces = Traces(ManualClock(), processor, version="1", one_in=one_in)
        self.traces.follow(self.meter)

    def answer(self, request: Request, status: int = 200, seconds: float = 0.1) -> None:
        self.meter.answered(request, Response(status, [], b"x"), seconds)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()


def a_query(parent: str | None) -> Request:
    headers = {} if parent is None else {"traceparent": parent}
    wanted = parse("PartitionKey eq 'secret' and Age gt 40")
    request = Request("GET", "/acct/Staff()", "$filter=PartitionKey eq 'secret'", headers)
    request.observed.account, request.observed.operation = "acct", "QueryEntities"
    request.observed.call = QueryEntities("Staff", wanted, None, 1000, None, Level.MINIMAL)
    request.observed.query = Queried(plan(wanted), 50, 3)
    return request


def test_a_sampled_request_continues_the_trace_of_its_client() -> None:
    traced = Traced()

    traced.answer(a_query(SAMPLED))

    (span,) = traced.spans
    assert (span.name, span.kind) == ("table/QueryEntities", SpanKind.SERVER)
    assert span.parent is not None
    assert f"{span.parent.trace_id:032x}-{span.parent.span_id:016x}" == f"{TRACE}-{PARENT}"
    assert span.attributes == {
        "http.request.method": "GET",
        "http.response.status_code": 200,
        "url.path": "/acct/Staff",
        "db.system.name": "partita",
        "db.operation.name": "QueryEntities",
        "db.collection.name": "Staff",
        "partita.plan": "partition",
        "partita.range": "pk=?",
        "partita.entities.examined": 50,
        "partita.entities.returned": 3,
    }
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time == 100_000_000
    assert "secret" not in span.to_json()


@pytest.mark.parametrize("parent", [None, UNSAMPLED, "00-nonsense-01", "", "x" * 10_000])
def test_other_requests_have_no_span(parent: str | None) -> None:
    traced = Traced()

    traced.answer(a_query(parent))

    assert traced.spans == ()


def test_one_in_n_is_sampled_unless_the_client_decides() -> None:
    traced = Traced(one_in=3)

    for _ in range(9):
        traced.answer(a_query(None))
    for _ in range(9):
        traced.answer(a_query(UNSAMPLED))

    assert len(traced.spans) == 3
    assert all(span.parent is None for span in traced.spans)


def test_a_write_has_children_for_its_waits() -> None:
    traced = Traced()
    request = Request("PUT", "/acct/Staff(…)", headers={"traceparent": SAMPLED})
    request.observed.commit_seconds, request.observed.queue_seconds = 0.05, 0.02

    traced.answer(request, 204)

    queue, commit, span = traced.spans
    assert [each.name for each in (queue, commit)] == ["queue", "commit"]
    assert span.context is not None
    assert commit.parent is not None
    assert commit.parent.span_id == span.context.span_id
    assert commit.end_time == span.end_time
    assert queue.end_time == commit.start_time


def test_only_errors_of_the_server_fail_a_span() -> None:
    traced = Traced()
    for status, code in ((404, "ResourceNotFound"), (500, "InternalError")):
        request = a_query(SAMPLED)
        request.observed.code = code
        traced.answer(request, status)

    missing, failed = traced.spans
    assert missing.attributes is not None
    assert missing.attributes["error.type"] == "ResourceNotFound"
    assert missing.status.status_code is StatusCode.UNSET
    assert failed.status.status_code is StatusCode.ERROR
