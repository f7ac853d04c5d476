"""The counters of one service, by account and operation.

A usual request (a point read that succeeds, signed with a key) appends its duration and its bytes
to a list, which is the least that it can cost; `fold` adds them to the counters: the sweep of the
server does once a second, and so does every reader. Anything else is counted at once. The one rule:
no label comes from a request except the account, which must exist, and the operation, which is one
of a fixed set.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Final

from partita.metrics.families import SECONDS_BOUNDS, Family, Sample, histogram_samples
from partita.service.http.observed import UNKNOWN_OPERATION, UNOBSERVED
from partita.service.http.request import Request, Response
from partita.service.observing.outcomes import (
    AUTHORIZATION,
    KINDS,
    OUTCOMES,
    SUCCESS,
    THROTTLING,
    kind_of,
)
from partita.tables.plan import PlanKind

Listener = Callable[[Request, Response, float, int], None]
"""Called after a request is counted, with its duration in seconds and the number of its outcome."""

_SUCCESSES: Final = "2xx"
"""The status of answers below 300 in the metrics: they are not counted one by one."""


class Row:
    """The counters of one operation of one account, up to the last `fold`."""

    __slots__ = (
        "buckets",
        "bytes_in",
        "bytes_out",
        "new",
        "outcomes",
        "seconds",
    )

    def __init__(self) -> None:
        self.outcomes = [0] * len(OUTCOMES)
        self.bytes_in = 0
        self.bytes_out = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(SECONDS_BOUNDS) + 1)
        """Requests by duration: up to each bound, and longer."""
        self.new: list[tuple[float, int]] = []
        """Seconds and bytes of the answers since the last `fold`."""

    def fold(self) -> "Row":
        """Add what was noted since the last time; return the row."""
        new = self.new
        if new:
            seconds = sorted(map(itemgetter(0), new))
            ends = [0, *(bisect_right(seconds, bound) for bound in SECONDS_BOUNDS), len(new)]
            for index, (start, end) in enumerate(pairwise(ends)):
                self.buckets[index] += end - start
            self.seconds += sum(seconds)
            self.bytes_out += sum(map(itemgetter(1), new))
            # What is not counted as another outcome was a success that was signed with a key.
            self.outcomes[SUCCESS] = sum(self.buckets) - sum(self.outcomes[SUCCESS + 1 :])
            new.clear()
        return self

    def __add__(self, other: "Row") -> "Row":
        """Return the sums of two folded rows."""
        added = Row()
        added.outcomes = _sums(self.outcomes, other.outcomes)
        added.buckets = _sums(self.buckets, other.buckets)
        added.bytes_in = self.bytes_in + other.bytes_in
        added.bytes_out = self.bytes_out + other.bytes_out
        added.seconds = self.seconds + other.seconds
        return added

    @property
    def requests(self) -> int:
        return sum(self.outcomes)

    def count(self, kind: int) -> int:
        """Return how many requests had a kind of outcome, with any credentials."""
        return sum(self.outcomes[kind :: len(KINDS)])

    def facts(self) -> dict[str, object]:
        """Return the counters as JSON values."""
        return {
            "requests_total": self.requests,
            "errors_total": self.requests - self.count(SUCCESS),
            "outcomes": {OUTCOMES[at]: count for at, count in enumerate(self.outcomes) if count},
            "bytes_in_total": self.bytes_in,
            "bytes_out_total": self.bytes_out,
            "latency": {
                "bounds": list(SECONDS_BOUNDS),
                "counts": list(self.buckets),
                "sum": self.seconds,
            },
        }


def _sums(first: Sequence[int], second: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(first, second, strict=True)]


class _Listeners(list[Listener]):
    """The listeners of a meter, which is told when there is another one."""

    def __init__(self, on_append: Callable[[], None]) -> None:
        super().__init__()
        self._on_append = on_append

    def append(self, listener: Listener) -> None:
        super().append(listener)
        self._on_append()


class PlanCounts:
    """The queries of one kind of plan."""

    __slots__ = ("examined", "queries", "returned")

    def __init__(self) -> None:
        self.queries = 0
        self.examined = 0
        self.returned = 0


class ServiceMeter:
    """Counts the answers of one service; the `Observer` of its server."""

    def __init__(self, service: str) -> None:
        self.service = service
        """The name of the service: blobs, queues or tables."""
        self._rows: dict[str, dict[str, Row]] = {}
        """By account and operation; the account is empty for requests to unknown accounts."""
        self._reads: dict[str, Callable[[tuple[float, int]], None]] = {}
        """By account: appends to the new ones of its point reads; empty if there are listeners."""
        self.statuses: dict[int, int] = {}
        """Answers by HTTP status from 300 on, with those of the protocol itself."""
        self.plans = {kind: PlanCounts() for kind in PlanKind}
        self.refused_by_protocol = 0
        """Requests that were refused before they could be read: malformed, too large, too slow."""
        self.listeners: list[Listener] = _Listeners(self._reads.clear)
        """Told about each request, such as the logs and Storage Analytics."""
        self.slow_above_seconds = math.inf
        self.on_slow: Listener | None = None
        """Told about each request that took longer than that."""

    def answered(
        self,
        request: Request,
        response: Response,
        seconds: float,
        is_lost: bool = False,  # noqa: FBT001, FBT002 - a keyword costs more
        /,
    ) -> None:
        """Count the answer of a request."""
        if request.observed is UNOBSERVED and not is_lost and seconds <= self.slow_above_seconds:
            try:
                append = self._reads[response.read[0]]  # type: ignore[index]  # None is caught
            except (KeyError, TypeError):
                pass  # not a point read, or one that is told to listeners
            else:
                append((seconds, len(response.body)))
                return
        observed, read = request.observe(), response.read
        if read is not None:
            observed.account, observed.call = read
            observed.operation = observed.call.logged_as
        row = self._row(observed.account, observed.operation)
        if read is not None and not self.listeners:
            self._reads[observed.account] = row.new.append
        row.new.append((seconds, len(response.body)))
        outcome = self._count_unusual(row, request, response, is_lost=is_lost)
        if self.listeners or seconds > self.slow_above_seconds:
            self._tell(request, response, seconds, outcome)

    def _tell(self, request: Request, response: Response, seconds: float, outcome: int) -> None:
        if seconds > self.slow_above_seconds and self.on_slow is not None:
            self.on_slow(request, response, seconds, outcome)
        for listener in self.listeners:
            listener(request, response, seconds, outcome)

    def _row(self, account: str, operation: str) -> Row:
        try:
            return self._rows[account][operation]
        except KeyError:
            return self._rows.setdefault(account, {}).setdefault(operation, Row())

    def _count_unusual(
        self, row: Row, request: Request, response: Response, *, is_lost: bool
    ) -> int:
        """Count what a point read does not have; return the number of the outcome."""
        observed, status, upload = request.observed, response.status, request.upload
        outcome = observed.credentials + kind_of(status, observed.code, is_lost=is_lost)
        if outcome:
            row.outcomes[outcome] += 1
        if status >= 300:
            self.statuses[status] = self.statuses.get(status, 0) + 1
        row.bytes_in += len(request.body) if upload is None else upload.received_bytes
        if response.download is not None:
            row.bytes_out += response.length
        if observed.query is not None:
            counts = self.plans[observed.query.plan.kind]
            counts.queries += 1
            counts.examined += observed.query.examined
            counts.returned += observed.query.returned
        return outcome

    def refused(self, response: Response) -> None:
        """Count a refusal by the protocol, which has no request."""
        self.refused_by_protocol += 1
        self.statuses[response.status] = self.statuses.get(response.status, 0) + 1
        row = self._row("", UNKNOWN_OPERATION)
        row.new.append((0.0, 0))
        code = response.header("x-ms-error-code") or ""
        row.outcomes[kind_of(response.status, code)] += 1

    def fold(self) -> None:
        """Add what was noted since the last time to the counters."""
        for _, _, _ in self.rows():
            pass

    # Sums

    def rows(self) -> Iterator[tuple[str, str, Row]]:
        """Yield account, operation and its counters, as they are now."""
        for account, rows in list(self._rows.items()):
            for operation, row in list(rows.items()):
                yield account, operation, row.fold()

    def totals(self) -> Row:
        """Return the sums of all accounts and operations."""
        return sum((row for _, _, row in self.rows()), start=Row())

    def count(self, kind: int) -> int:
        return self.totals().count(kind)

    def facts(self) -> dict[str, object]:
        """Return the totals as JSON values."""
        operations: dict[str, Row] = {}
        for _, operation, row in self.rows():
            operations[operation] = operations.get(operation, Row()) + row
        return {
            **self.totals().facts(),
            "operations": {name: operations[name].facts() for name in sorted(operations)},
            "throttled_total": self.count(THROTTLING),
            "refused_signatures_total": self.count(AUTHORIZATION),
            "refused_by_protocol_total": self.refused_by_protocol,
            "plans": {
                kind.value: {
                    "queries_total": counts.queries,
                    "examined_total": counts.examined,
                    "returned_total": counts.returned,
                }
                for kind, counts in self.plans.items()
                if counts.queries
            },
        }

    def families(self) -> Iterator[Family]:
        """Yield the counters as families."""
        yield Family(
            "partita_requests_total",
            "counter",
            "Answered requests by service, account, operation and outcome.",
            [
                Sample(
                    count,
                    {
                        "service": self.service,
                        "account": account,
                        "operation": operation,
                        "outcome": OUTCOMES[number],
                    },
                )
                for account, operation, row in self.rows()
                for number, count in enumerate(row.outcomes)
                if count
            ],
        )
        labels, totals = {"service": self.service}, self.totals()
        statuses = {str(status): count for status, count in sorted(self.statuses.items())}
        statuses = {_SUCCESSES: totals.requests - sum(statuses.values()), **statuses}
        yield Family(
            "partita_responses_total",
            "counter",
            "Answers by HTTP status; those below 300 are one.",
            [Sample(count, {**labels, "status": status}) for status, count in statuses.items()],
        )
        yield Family(
            "partita_request_bytes_total",
            "counter",
            "Bytes of the bodies of requests.",
            [Sample(totals.bytes_in, labels)],
        )
        yield Family(
            "partita_response_bytes_total",
            "counter",
            "Bytes of the bodies of answers.",
            [Sample(totals.bytes_out, labels)],
        )
        yield Family(
            "partita_request_duration_seconds",
            "histogram",
            "Time from the start of a request to its answer.",
            histogram_samples(SECONDS_BOUNDS, totals.buckets, totals.seconds, labels),
        )
        if self.service == "tables":
            yield from self._plan_families()

    def _plan_families(self) -> Iterator[Family]:
        for name, text, field in (
            ("partita_queries_total", "Queries of entities by kind of plan.", "queries"),
            (
                "partita_entities_examined_total",
                "Entities that queries have read: at least so many.",
                "examined",
            ),
            ("partita_entities_returned_total", "Entities that queries returned.", "returned"),
        ):
            samples = [
                Sample(getattr(counts, field), {"plan": kind.value})
                for kind, counts in self.plans.items()
            ]
            yield Family(name, "counter", text, samples)
