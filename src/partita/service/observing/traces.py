"""Spans of sampled requests by OpenTelemetry (extra `otel`), made after the answer.

A request is sampled if its `traceparent` says so, or if it is one of N; for no other request is the
SDK called. The one rule: a span has no key and no value of an entity.
"""

import re
import threading
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from partita.service.http.observed import Observed
from partita.service.http.request import Request, Response
from partita.service.observing.log_lines import object_of
from partita.service.observing.meter import ServiceMeter
from partita.tables.plan import describe_bounds
from partita.ticks import Clock

FLUSH_SECONDS_MAX: Final = 2.0
"""How long the stop waits for the last spans."""
NANOSECONDS_PER_TICK: Final = 100
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]([0-9a-f])")
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class Traces:
    """Makes spans; `one_in` 0 samples only what the client samples."""

    def __init__(
        self, clock: Clock, processor: SpanProcessor, *, version: str, one_in: int = 0
    ) -> None:
        resource = Resource.create({"service.name": "partita", "service.version": version})
        # What is not sampled never gets here, so that the SDK must not decide again.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("partita", version)
        self._clock = clock
        self._one_in = one_in
        self._until_next = one_in

    def follow(self, meter: ServiceMeter) -> None:
        """Make spans of the requests of a service."""
        service = meter.service.removesuffix("s")

        def note(request: Request, response: Response, seconds: float, _outcome: int) -> None:
            if self._is_sampled(request.headers.get("traceparent")):
                self._make(service, request, response, seconds)

        meter.listeners.append(note)

    def _is_sampled(self, parent: str | None) -> bool:
        if parent is not None and (found := _TRACEPARENT.match(parent)) is not None:
            return bool(int(found[1], 16) & 1)
        if not self._one_in:
            return False
        self._until_next -= 1
        if self._until_next:
            return False
        self._until_next = self._one_in
        return True

    def _make(self, service: str, request: Request, response: Response, seconds: float) -> None:
        observed = request.observed
        ended = self._clock.ticks() * NANOSECONDS_PER_TICK
        started = ended - int(seconds * 1e9)
        span = self._tracer.start_span(
            f"{service}/{observed.operation}",
            context=_PROPAGATOR.extract(request.headers),
            kind=SpanKind.SERVER,
            attributes=attributes_of(request, response),
            start_time=started,
        )
        if response.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        inside = trace.set_span_in_context(span)
        # A commit is the last part of a write, and the wait for the turn comes before it.
        commit_started = max(started, ended - int(observed.commit_seconds * 1e9))
        queue_started = max(started, commit_started - int(observed.queue_seconds * 1e9))
        for name, start, end in (
            ("queue", queue_started, commit_started),
            ("commit", commit_started, ended),
        ):
            if start < end:
                self._tracer.start_span(name, context=inside, start_time=start).end(end)
        span.end(ended)

    def close(self) -> None:
        """Export what waits, for a short time.

        In a thread that is not waited for any longer: the exporter ignores its own time limit.
        """
        flush = threading.Thread(target=self._provider.force_flush, daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS_MAX)


def attributes_of(request: Request, response: Response) -> dict[str, Any]:
    """Return the attributes of a span: names of tables and containers, but no keys."""
    observed = request.observed
    collection = object_of(observed).partition("/")[0]
    attributes: dict[str, Any] = {
        "http.request.method": request.method,
        "http.response.status_code": response.status,
        "url.path": f"/{observed.account}/{collection}" if collection else f"/{observed.account}",
        "db.system.name": "partita",
        "db.operation.name": observed.operation,
        "db.collection.name": collection,
        **_query_attributes(observed),
    }
    if observed.code:
        attributes["error.type"] = observed.code
    return attributes


def _query_attributes(observed: Observed) -> dict[str, Any]:
    query = observed.query
    if query is None:
        return {}
    attributes: dict[str, Any] = {
        "partita.plan": query.plan.kind.value,
        "partita.range": describe_bounds(query.plan),
        "partita.entities.examined": query.examined,
        "partita.entities.returned": query.returned,
    }
    if not query.is_counted:
        attributes["partita.entities.examined_is_exact"] = False
    return attributes


def otlp_processor() -> SpanProcessor:
    """Return a processor that exports in its own thread, as OTEL_EXPORTER_OTLP_* configure it."""
    return BatchSpanProcessor(OTLPSpanExporter())
