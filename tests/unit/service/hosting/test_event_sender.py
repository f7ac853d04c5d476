"""Notices of changed blobs: bounded, repeated after a failure, counted when they are dropped."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import nats
import pytest

from partita.blobs.rules.model import BlobName
from partita.clock import ManualClock
from partita.errors import ConfigurationError
from partita.reliable.nats.cluster import find_server
from partita.service.accounts.blob_events import CREATED, DELETED, BlobEvent
from partita.service.hosting import event_sender
from partita.service.hosting.event_sender import (
    ATTEMPTS_MAX,
    EVENTS_PER_SEND_MAX,
    EVENTS_QUEUED_MAX,
    EventSender,
    ReceiverError,
    receiver_of,
)
from support.fronts import Fronts, opened_fronts


class Recorder:
    """A receiver that fails as told, and waits while `is_open` is not set."""

    def __init__(self) -> None:
        self.got: list[list[dict[str, Any]]] = []
        self.failures: list[ReceiverError] = []
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.has_got = asyncio.Event()
        self.is_closed = False

    async def send(self, documents: Sequence[dict[str, Any]]) -> None:
        await self.is_open.wait()
        if self.failures:
            raise self.failures.pop(0)
        self.got.append(list(documents))
        self.has_got.set()

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
async def served() -> AsyncIterator[Fronts]:
    async with opened_fronts() as fronts:
        yield fronts


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_sender, "BACK_OFF_SECONDS", 0.001)
    monkeypatch.setattr(event_sender, "BACK_OFF_SECONDS_MAX", 0.001)
    monkeypatch.setattr(event_sender, "STOP_SECONDS_MAX", 0.01)


def an_event(number: int = 0, kind: str = DELETED) -> BlobEvent:
    name = BlobName("photos", str(number))
    return BlobEvent(kind, "DeleteBlob", "devstoreaccount1", name, "http://x/", 0, f"r{number}")


def metrics(sender: EventSender) -> dict[str, float]:
    return {
        f"{family.name}{sample.labels.get('outcome', '')}": sample.value
        for family in sender.families()
        for sample in family.samples
    }


async def test_notices_are_sent_in_order_and_in_bounded_groups(served: Fronts) -> None:
    recorder = Recorder()
    sender = EventSender(recorder, served.served, ManualClock())

    for number in range(EVENTS_PER_SEND_MAX + 1):
        sender.changed(an_event(number))
    await sender.close()

    assert [len(group) for group in recorder.got] == [EVENTS_PER_SEND_MAX, 1]
    ids = [each["id"] for group in recorder.got for each in group]
    assert ids == [f"r{number}" for number in range(EVENTS_PER_SEND_MAX + 1)]
    assert recorder.is_closed


async def test_a_failed_group_is_sent_again(served: Fronts) -> None:
    recorder = Recorder()
    recorder.failures = [ReceiverError("status 503"), ReceiverError("TimeoutError")]
    sender = EventSender(recorder, served.served, ManualClock())

    sender.changed(an_event())
    await asyncio.wait_for(recorder.has_got.wait(), 60)
    await sender.close()

    assert metrics(sender) == {
        "partita_blob_events_totalsent": 1,
        "partita_blob_events_totaldropped": 0,
        "partita_blob_event_failures_total": 2,
        "partita_blob_events_queued": 0,
    }


@pytest.mark.parametrize(
    ("failures", "attempts"),
    [([ReceiverError("status 400", is_final=True)], 1), ([ReceiverError("x")] * 30, ATTEMPTS_MAX)],
)
async def test_a_group_that_is_not_taken_is_dropped_and_the_next_one_is_sent(
    served: Fronts, failures: list[ReceiverError], attempts: int
) -> None:
    recorder = Recorder()
    recorder.is_open.clear()
    recorder.failures = list(failures)
    sender = EventSender(recorder, served.served, ManualClock())

    for number in range(EVENTS_PER_SEND_MAX + 1):
        sender.changed(an_event(number))
    recorder.is_open.set()
    await asyncio.wait_for(recorder.has_got.wait(), 60)
    await sender.close()

    assert (sender.sent, sender.dropped, sender.failures) == (1, EVENTS_PER_SEND_MAX, attempts)


async def test_notices_above_the_limit_are_dropped_without_waiting(served: Fronts) -> None:
    recorder = Recorder()
    recorder.is_open.clear()
    sender = EventSender(recorder, served.served, ManualClock())

    for number in range(EVENTS_QUEUED_MAX + 7):
        sender.changed(an_event(number))

    assert metrics(sender)["partita_blob_events_queued"] == EVENTS_QUEUED_MAX
    assert sender.dropped == 7
    await sender.close()
    assert (sender.sent, sender.dropped) == (0, EVENTS_QUEUED_MAX + 7)


async def test_a_receiver_that_hangs_delays_no_request(served: Fronts) -> None:
    recorder = Recorder()
    recorder.is_open.clear()
    sender = EventSender(recorder, served.served, ManualClock())
    served.served.blob_events = sender
    await served.account.blobs.containers.create_container("photos")

    for number in range(3):
        headers = {"x-ms-blob-type": "BlockBlob", "x-ms-client-request-id": "mine"}
        answer = await served.ask("blobs", "PUT", f"/photos/{number}", b"content", headers)
        assert answer.status == 201
    recorder.is_open.set()
    await asyncio.wait_for(recorder.has_got.wait(), 60)
    await sender.close()

    data = [each["data"] for group in recorder.got for each in group]
    assert [each["contentLength"] for each in data] == [7, 7, 7]
    assert {each["blobType"] for each in data} == {"BlockBlob"}
    assert {each["clientRequestId"] for each in data} == {"mine"}


async def test_refused_requests_give_no_notice(served: Fronts) -> None:
    recorder = Recorder()
    sender = EventSender(recorder, served.served, ManualClock())
    served.served.blob_events = sender
    headers = {"x-ms-blob-type": "BlockBlob"}

    await served.ask("blobs", "PUT", "/missing/a", b"content", headers)
    await served.ask("blobs", "PUT", "/missing/a", b"content", headers, is_signed=False)
    await served.ask("blobs", "DELETE", "/missing/a")
    await sender.close()

    assert recorder.got == []


async def test_a_version_that_is_gone_is_told_without_its_length(served: Fronts) -> None:
    recorder = Recorder()
    sender = EventSender(recorder, served.served, ManualClock())

    sender.changed(an_event(kind=CREATED))
    await sender.close()

    [[document]] = recorder.got
    assert "contentLength" not in document["data"]


@pytest.mark.parametrize(
    "url", ["", "file:///x", "https://", "nats://host:4222", "nats://host/a/b", "kafka://h/t"]
)
def test_an_address_that_names_no_receiver_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"webhook"):
        receiver_of(url)


@pytest.mark.proof
async def test_a_subject_of_nats_gets_one_message_per_notice(
    served: Fronts, tmp_path: Path
) -> None:
    program = await asyncio.to_thread(find_server)
    ports = tmp_path / "ports"
    ports.mkdir()
    server = await asyncio.create_subprocess_exec(
        program, "-a", "127.0.0.1", "-p", "-1", "--ports_file_dir", str(ports),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        address = await _address_in(ports)
        reader = await nats.connect(address)
        subscription = await reader.subscribe("blobs.changed")
        await reader.flush()
        sender = EventSender(receiver_of(f"{address}/blobs.changed"), served.served, served.clock)

        for number in range(3):
            sender.changed(an_event(number))
        told = [msgspec.json.decode((await subscription.next_msg(60)).data) for _ in range(3)]
        await sender.close()
        await reader.close()
    finally:
        server.kill()
        await server.wait()

    assert [each["id"] for each in told] == ["r0", "r1", "r2"]
    assert (sender.sent, sender.failures) == (3, 0)


@pytest.mark.proof
async def test_a_nats_server_that_is_away_is_tried_again(
    served: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_sender, "ATTEMPTS_MAX", 3)
    monkeypatch.setattr(event_sender, "SEND_TIMEOUT_SECONDS", 0.1)
    sender = EventSender(receiver_of("nats://127.0.0.1:1/blobs"), served.served, ManualClock())

    sender.changed(an_event())
    while not sender.dropped:  # noqa: ASYNC110 - nothing else tells it
        await asyncio.sleep(0.01)
    await sender.close()

    assert (sender.sent, sender.failures) == (0, 3)


async def _address_in(folder: Path) -> str:
    """Wait for the file of a server's ports, and return the address for clients."""
    while True:
        for file in await asyncio.to_thread(lambda: list(folder.iterdir())):
            with contextlib.suppress(msgspec.DecodeError):  # it is being written
                return str(msgspec.json.decode(file.read_bytes())["nats"][0])
        await asyncio.sleep(0.01)


async def test_an_unforeseen_failure_does_not_end_the_sender(
    served: Fronts, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder()
    sender = EventSender(recorder, served.served, ManualClock())
    found = sender._find

    async def fails_once(event: BlobEvent) -> None:
        monkeypatch.setattr(sender, "_find", found)
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(sender, "_find", fails_once)
    sender.changed(an_event(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sender.changed(an_event(2))
    await sender.close()

    assert [each["id"] for group in recorder.got for each in group] == ["r2"]
    assert (sender.sent, sender.dropped) == (1, 1)
