import pytest

from partita.service.accounts.service_properties_xml import Logging, Metrics, ServiceProperties
from partita.service.analytics import recording as recordings
from partita.service.analytics.log_blobs import (
    LOG_BYTES_MAX,
    LOG_SECONDS_MAX,
    folder_of,
    name_of,
    number_after,
)
from partita.service.analytics.recording import Recording, Rows
from partita.service.http.observed import Observed
from partita.service.http.request import Request, Response
from partita.service.observing.outcomes import SUCCESS

START = 14_007_564_000_000_000
"""2014-05-22T11:00:00Z"""
SECOND = 10_000_000
HOUR = 3600 * SECOND
LOGGED = Logging(read=True, write=True, delete=True)


def a_recording(
    logging: Logging = LOGGED, hours: Metrics | None = None, minutes: Metrics | None = None
) -> Recording:
    made = Recording("Table")
    properties = ServiceProperties(logging, hours or Metrics(), minutes or Metrics())
    assert made.follow(properties, START)
    return made


def note(recording: Recording, ticks: int = START, agent: str = "", now: float = 0.0) -> None:
    observed = Observed()
    observed.account, observed.operation = "acct", "QueryEntity"
    request = Request("GET", "/T", headers={"user-agent": agent}, observed=observed)
    recording.note(request, Response(200), 0.001, SUCCESS, ticks=ticks, now=now)


def test_a_log_waits_until_it_is_old() -> None:
    recording = a_recording()
    note(recording, now=5.0)

    assert recording.take_logs(START, 5.0 + LOG_SECONDS_MAX - 1) == []
    [log] = recording.take_logs(START, 5.0 + LOG_SECONDS_MAX)
    assert len(log.lines) == 1
    assert recording.take_logs(START, 1000.0) == []


def test_a_large_log_is_due_at_once() -> None:
    recording = a_recording()
    while not recording.has_full_log:
        note(recording, agent="x" * 60_000)
    note(recording)

    [log] = recording.take_logs(START, 0.0)
    assert LOG_BYTES_MAX <= log.size < LOG_BYTES_MAX + 100_000
    assert log.size == sum(map(len, log.lines))
    assert not recording.has_full_log


def test_a_log_has_the_requests_of_one_hour() -> None:
    recording = a_recording()
    note(recording, START + HOUR - 1)
    note(recording, START + HOUR)

    [log] = recording.take_logs(START + HOUR, 0.0)
    assert (log.hour, len(log.lines)) == (START, 1)
    [log] = recording.take_logs(START + 2 * HOUR, 0.0)
    assert (log.hour, len(log.lines)) == (START + HOUR, 1)


def test_a_log_has_lines_of_one_format() -> None:
    recording = a_recording()
    note(recording)
    recording.follow(ServiceProperties(Logging(read=True, version="2.0")), START)
    note(recording)

    versions = [log.metadata()["LogVersion"] for log in recording.take_logs(START, 0, is_last=True)]
    assert versions == ["1.0", "2.0"]


def test_lines_are_dropped_and_counted_while_the_store_does_not_take_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recordings, "WAITING_BYTES_MAX", 1000)
    recording = a_recording()
    for _ in range(50):
        note(recording)
    [log] = recording.take_logs(START, LOG_SECONDS_MAX)
    assert recording.dropped_lines == 50 - len(log.lines) > 0

    recording.keep_log(log)
    note(recording)
    assert recording.take_logs(START, 0.0) == [log]
    recording.wrote(log)
    dropped = recording.dropped_lines
    note(recording)
    assert recording.dropped_lines == dropped


def test_periods_end_by_the_clock_also_without_requests() -> None:
    recording = a_recording(Logging(), Metrics(enabled=True), Metrics(enabled=True))
    note(recording, START + 30 * SECOND)
    assert recording.take_rows(START + 59 * SECOND) == []

    [minute] = recording.take_rows(START + 60 * SECOND)
    assert minute.table == "$MetricsMinutePrimaryTransactionsTable"
    assert minute.partition_key == "20140522T1100"
    assert minute.counts["user;All"][SUCCESS] == 1
    rows = recording.take_rows(START + HOUR)
    assert [(row.table[8:12], row.partition_key) for row in rows] == [
        ("Hour", "20140522T1100"),
        ("Minu", "20140522T1101"),
    ]


def test_a_change_of_the_metrics_ends_the_period() -> None:
    recording = a_recording(Logging(), Metrics(enabled=True, include_apis=True))
    note(recording)
    assert recording.follow(ServiceProperties(), START)
    note(recording)

    [rows] = recording.take_rows(START)
    assert list(rows.counts) == ["user;All", "system;All", "user;QueryEntity"]
    assert rows.counts["user;All"][SUCCESS] == 1
    assert not recording.is_on
    assert not recording.follow(ServiceProperties(), START)


def test_the_last_rows_are_those_of_the_current_periods() -> None:
    recording = a_recording(Logging(), Metrics(enabled=True), Metrics(enabled=True))
    note(recording)
    assert len(recording.take_rows(START, is_last=True)) == 2


def test_rows_that_cannot_be_written_are_bounded() -> None:
    recording = a_recording()
    for number in range(recordings.PERIODS_WAITING_MAX + 5):
        recording.keep_rows(Rows("T", str(number), {}))
    assert len(recording.take_rows(START)) == recordings.PERIODS_WAITING_MAX


def test_the_types_and_times_of_a_log_are_its_metadata() -> None:
    recording = a_recording()
    note(recording, START + 70 * SECOND)
    note(recording, START + 65 * SECOND)
    [log] = recording.take_logs(START, 0.0, is_last=True)
    assert log.metadata() == {
        "LogType": "read",
        "StartTime": "2014-05-22T11:01:05Z",
        "EndTime": "2014-05-22T11:01:10Z",
        "LogVersion": "1.0",
    }


def test_names_of_logs() -> None:
    folder = folder_of("table", START + HOUR - 1)
    assert folder == "table/2014/05/22/1100/"
    assert name_of(folder, 7) == "table/2014/05/22/1100/000007.log"
    assert number_after(name_of(folder, 999_999)) == 1_000_000
    assert number_after("table/2014/05/22/1100/other") == 0
