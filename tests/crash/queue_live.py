"""A queue server in a process of its own, plain clients, and a ledger that outlives its crashes.

The ledger is written before a request is sent (asked) and after its answer came (told). Each
client has a queue of its own, puts, gets and deletes in it, and keeps some messages hidden for
so long that nobody may see them again before it lets them go.
"""

import base64
import hashlib
import hmac
import http.client
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from email.message import Message
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote
from xml.etree.ElementTree import Element, fromstring

from crash.live import ACCOUNT, KEY, GoneError

SERVE = ("-m", "partita.cli.main")
VERSION = "2026-10-06"
HIDDEN_SECONDS = 1
HINT = "x-partita-hint"
OUTDATED = "receipt of the last receive or update"
"""Part of the hint for a message that exists and has a newer receipt."""
KEPT_SECONDS = 36_000
"""Far longer than a test: such a message comes back only when it is let go."""
PATIENCE_SECONDS = 60


class QueueServer:
    """`partita serve` on a folder, of which only the queues are used."""

    def __init__(self, folder: Path, program: Sequence[str] = SERVE) -> None:
        flags = ["--path", str(folder), "--queue-port", "0", "--no-blobs", "--no-tables"]
        self.process = subprocess.Popen(
            [sys.executable, *program, "serve", *flags, "--json", "--no-request-log"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read().decode()
        self.port: int = json.loads(line)["addresses"][0][1]

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_SECONDS)

    def stop(self) -> int:
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode


@contextmanager
def serving_queues(folder: Path, program: Sequence[str] = SERVE) -> Iterator[QueueServer]:
    server = QueueServer(folder, program)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


@dataclass(frozen=True)
class Delivery:
    id: str
    receipt: str
    dequeue_count: int
    text: str


class QueueWireClient:
    """One connection to one queue, requests signed with Shared Key Lite."""

    def __init__(self, port: int, queue: str) -> None:
        self._queue = queue
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def close(self) -> None:
        self._connection.close()

    def send(self, method: str, rest: str = "", body: str = "") -> tuple[int, Message, bytes]:
        """Return status, headers and body."""
        date = formatdate(usegmt=True)
        path = f"/{ACCOUNT}/{self._queue}"
        comp = "?comp=metadata" if "comp=metadata" in rest else ""
        kind = "application/xml" if body else ""
        signed = (
            f"{method}\n\n{kind}\n\nx-ms-date:{date}\nx-ms-version:{VERSION}\n"
            f"/{ACCOUNT}{path}{rest.partition('?')[0]}{comp}"
        )
        mac = base64.b64encode(hmac.digest(KEY, signed.encode(), hashlib.sha256)).decode()
        headers = {
            "x-ms-date": date,
            "x-ms-version": VERSION,
            "Authorization": f"SharedKeyLite {ACCOUNT}:{mac}",
        } | ({"Content-Type": kind} if kind else {})
        try:
            self._connection.request(method, path + rest, body.encode() or None, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.headers, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise GoneError from error

    def create(self) -> None:
        status, _, answer = self.send("PUT")
        assert status in (201, 204), answer

    def put(self, text: str) -> None:
        body = f"<QueueMessage><MessageText>{text}</MessageText></QueueMessage>"
        status, _, answer = self.send("POST", "/messages", body)
        assert status == 201, answer

    def get(self, limit: int, hidden_seconds: int) -> list[Delivery]:
        query = f"?numofmessages={limit}&visibilitytimeout={hidden_seconds}"
        status, _, answer = self.send("GET", f"/messages{query}")
        assert status == 200, answer
        return [_delivery(message) for message in fromstring(answer)]

    def delete(self, delivery: Delivery) -> int:
        return self.send("DELETE", _address(delivery))[0]

    def hide(self, delivery: Delivery, seconds: int) -> tuple[int, Delivery]:
        """Hide a message for so long from now on; return the status and its new receipt."""
        status, headers, _ = self.send("PUT", f"{_address(delivery)}&visibilitytimeout={seconds}")
        return status, replace(delivery, receipt=headers.get("x-ms-popreceipt", ""))

    def count(self) -> int:
        status, headers, answer = self.send("GET", "?comp=metadata")
        assert status == 200, answer
        return int(headers["x-ms-approximate-messages-count"])


def _address(delivery: Delivery) -> str:
    return f"/messages/{delivery.id}?popreceipt={quote(delivery.receipt, safe='')}"


def _delivery(message: Element) -> Delivery:
    def member(name: str) -> str:
        text = message.findtext(name)
        assert text is not None
        return text

    return Delivery(
        member("MessageId"),
        member("PopReceipt"),
        int(member("DequeueCount")),
        member("MessageText"),
    )


def a_text(number: int) -> str:
    """A text that tells when a part of it is missing."""
    filling = random.Random(number).randbytes(20 + number * 37 % 1500).hex()
    return f"{number}:{hashlib.sha256(filling.encode()).hexdigest()}:{filling}"


class QueueLedger:
    """What one client asked for and was told of the messages in its queue, by their numbers."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self.put_asked: set[int] = set()
        self.put_told: set[int] = set()
        self.delete_asked: set[int] = set()
        self.delete_told: set[int] = set()
        self.keep_asked: dict[int, Delivery] = {}
        """Hidden for so long, but nobody was told: with the receipt from before."""
        self.keep_told: dict[int, Delivery] = {}
        """Hidden for so long that nobody may see them; by the new receipt they can be let go."""
        self.dequeue_counts: dict[int, int] = {}
        self.acknowledged = 0
        self.wrong: list[str] = []

    def work(self, client: QueueWireClient) -> None:
        """Put, get, keep and delete until the server is gone."""
        while True:
            self.step(client)

    def step(self, client: QueueWireClient) -> None:
        """Put a message, and often get some."""
        self._put(client)
        if self._chance.random() < 0.8:
            self._get(client)

    def _put(self, client: QueueWireClient) -> None:
        number = len(self.put_asked)
        self.put_asked.add(number)
        client.put(a_text(number))
        self.put_told.add(number)
        self.acknowledged += 1

    def _get(self, client: QueueWireClient) -> None:
        for delivery in client.get(self._chance.randint(1, 3), HIDDEN_SECONDS):
            number = self._judge(delivery)
            self.acknowledged += 1
            choice = self._chance.random()
            if choice < 0.2:
                self._keep(client, number, delivery)
            elif choice < 0.7:
                self._delete(client, number, delivery)

    def _keep(self, client: QueueWireClient, number: int, delivery: Delivery) -> None:
        self.keep_asked[number] = delivery
        status, kept = client.hide(delivery, KEPT_SECONDS)
        assert status < 500, status
        if status != 204:
            self.wrong.append(f"{number} could not be kept: {status}")
        self.keep_told[number] = kept
        del self.keep_asked[number]
        self.acknowledged += 1

    def _delete(self, client: QueueWireClient, number: int, delivery: Delivery) -> None:
        self.delete_asked.add(number)
        status = client.delete(delivery)
        assert status < 500, status
        if status != 204:
            self.wrong.append(f"{number} could not be deleted: {status}")
        self.delete_told.add(number)
        self.acknowledged += 1

    def _judge(self, delivery: Delivery) -> int:
        """Check one delivery; return the number of its message."""
        number = int(delivery.text.partition(":")[0])
        if delivery.text != a_text(number):
            self.wrong.append(f"{number} is half there")
        if number not in self.put_asked:
            self.wrong.append(f"{number} was never put")
        if number in self.delete_told:
            self.wrong.append(f"{number} came back after its delete")
        if number in self.keep_told:
            self.wrong.append(f"{number} was seen though it is hidden")
        if delivery.dequeue_count <= self.dequeue_counts.get(number, 0):
            self.wrong.append(f"{number} was not counted")
        self.dequeue_counts[number] = delivery.dequeue_count
        return number

    def settle(self, client: QueueWireClient) -> None:
        """Find out what became of messages whose keeping was asked for and not told.

        Their receipt from before deletes them, or is worthless because they were kept; in
        neither case are they gone.
        """
        for number, delivery in self.keep_asked.items():
            status, headers, _ = client.send("DELETE", _address(delivery))
            # Both answers are MessageNotFound; only the hint says that the message is there.
            is_there = status == 204 or OUTDATED in headers.get(HINT, "")
            if not is_there:
                self.wrong.append(f"{number} is lost")
            # Kept with a receipt that nobody has, it is as good as deleted for this ledger.
            self.delete_asked.add(number)
        self.keep_asked.clear()

    def drain(self, client: QueueWireClient) -> list[str]:
        """Let go of what was kept, take out everything, and tell what is lost."""
        kept, self.keep_told = self.keep_told, {}
        for number, delivery in kept.items():
            status, _ = client.hide(delivery, 0)
            if status != 204:
                self.wrong.append(f"{number} was kept, and its receipt is worthless: {status}")
        expected = self.put_told - self.delete_asked
        found: set[int] = set()
        all_is_seen = time.monotonic() + 3 * HIDDEN_SECONDS + 2
        count = client.count()
        while not expected <= found:
            # Before the question: what was hidden may come back while it is under way.
            is_last = time.monotonic() > all_is_seen
            deliveries = client.get(32, KEPT_SECONDS)
            found |= {self._judge(delivery) for delivery in deliveries}
            if not deliveries:
                if is_last:
                    break
                time.sleep(0.05)
        if count < len(found):
            self.wrong.append(f"{len(found)} messages are there, {count} are counted")
        return self.wrong + [f"{number} is lost" for number in sorted(expected - found)]
