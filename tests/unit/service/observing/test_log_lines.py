import json
import logging

import msgspec

from partita.service.http.observed import BY_SAS, Queried
from partita.service.http.request import Request, Response
from partita.service.observing.log_lines import (
    JsonFormatter,
    TextFormatter,
    access_entry,
    slow_entry,
)
from partita.service.tables.calls import Level, QueryEntities
from partita.tables.filters import parse
from partita.tables.plan import plan


def a_query(text: str) -> Request:
    request = Request("GET", "/acct/Staff()", "sv=1&sig=SECRET&sp=r", {"user-agent": "a\nb"})
    wanted = parse(text)
    observed = request.observed
    observed.account, observed.operation, observed.credentials = "acct", "QueryEntities", BY_SAS
    observed.call = QueryEntities("Staff", wanted, None, 1000, None, Level.MINIMAL)
    observed.query = Queried(plan(wanted), 5000, 1)
    return request


def test_access_entry_redacts_signatures_and_line_ends() -> None:
    response = Response(200, [("x-ms-request-id", "42")], b"x")

    entry = access_entry("tables", a_query("Age gt 40"), response, 0.0123, 0)

    assert entry.target == "/acct/Staff()?sv=1&sig=REDACTED&sp=r"
    assert entry.agent == "a b"
    assert (entry.auth, entry.filter, entry.object) == ("sas", "Age gt 40", "Staff")
    assert (entry.time, entry.ms, entry.request_id) == ("1970-01-01T00:00:00.000Z", 12.3, "42")
    assert "\n" not in entry.as_text()


def test_slow_entry_has_plan_and_advice() -> None:
    entry = slow_entry("tables", a_query("Age gt 40"), Response(200), 0.25, 0)

    assert (entry.plan, entry.examined, entry.returned) == ("table residual: Age gt 40", 5000, 1)
    assert entry.advice.startswith("It reads the whole table: give PartitionKey")
    assert entry.as_text().startswith("slow request: 250 ms tables/QueryEntities Staff; filter")


def test_a_slow_entry_tells_that_examined_is_a_lower_bound() -> None:
    request = a_query("Age gt 40")
    assert request.observed.query is not None
    request.observed.query = msgspec.structs.replace(request.observed.query, is_counted=False)

    entry = slow_entry("tables", request, Response(200), 0.25, 0)

    assert "examined at least 5000, returned 1" in entry.as_text()
    assert not entry.is_examined_exact


def test_a_slow_write_names_the_wait_for_the_commit() -> None:
    request = Request("PUT", "/acct/Staff")
    request.observed.commit_seconds, request.observed.queue_seconds = 0.2, 0.01

    entry = slow_entry("tables", request, Response(204), 0.25, 0)

    assert (entry.commit_ms, entry.queue_ms) == (200, 10)
    assert "commit" in entry.advice


def test_messages_have_time_and_level() -> None:
    record = logging.LogRecord("partita.x", logging.WARNING, "", 1, "two %d", (2,), None)
    record.created = 0.5

    assert TextFormatter().format(record) == "1970-01-01T00:00:00.500Z WARNING partita.x: two 2"
    assert json.loads(JsonFormatter().format(record)) == {
        "time": "1970-01-01T00:00:00.500Z",
        "level": "warning",
        "logger": "partita.x",
        "message": "two 2",
    }


def test_a_traceback_is_part_of_the_object() -> None:
    error = ValueError("no such thing")
    kind = (ValueError, error, None)
    record = logging.LogRecord("partita.x", logging.ERROR, "", 1, "failed", (), kind)

    line = JsonFormatter().format(record)

    assert "\n" not in line
    assert "ValueError: no such thing" in json.loads(line)["exception"]
