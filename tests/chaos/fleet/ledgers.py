"""What the clients of all front ends were told, and whether it is so.

A ledger is asked for the next operation by several clients at once, each with a connection to its
own front end; it writes down what is asked for before it is sent, and what was told. An operation
of unknown outcome may happen later: its names are then left alone until the end, or it has a
condition.
"""

import base64
import itertools
import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime
from urllib.parse import quote
from xml.etree.ElementTree import Element, fromstring

from chaos.fleet.history import Doubt, unexplained
from chaos.fleet.wire import Answer, Fate, Wire
from crash.live import ACCOUNT, GoneError
from crash.queue_live import a_text
from crash.version_order import Event
from partita.ticks import TICKS_PER_SECOND

TABLE, CONTAINER, QUEUES = "Work", "work", ("work-0", "work-1", "work-2")
JSON = {"Content-Type": "application/json", "Accept": "application/json;odata=minimalmetadata"}
COUNTERS = 6
ROWS = ("a", "b", "c", "d")
KINDS = ("read",) * 4 + ("scan", "put") + ("insert", "update", "delete") * 2
"""Operations of `Versions`, as often as they are chosen."""
GROUP_SIZES = (7, 30)
"""Rows of a group: one that shares a round trip with others, and one that has its own."""
HIDDEN_SECONDS = 4
LONG_SECONDS = 36_000
SMALL_BYTES, LARGE_BYTES = 900, 100_000
"""Of blobs: in the database, and in the object store."""
BLOCK_BYTES = 70_000


class Ledger(ABC):
    """One kind of operations."""

    service: str

    def __init__(self) -> None:
        self.acknowledged = 0
        self.wrong: list[str] = []
        self.answers: Counter[str] = Counter()
        """Failures by status and code."""
        self.changed_at = 0.0
        """When the change was sent that was sent last of those acknowledged; monotonic time."""
        self._lock = threading.Lock()

    def send(
        self,
        wire: Wire,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Return the answer; raise GoneError if the connection broke."""
        try:
            answer = wire.send(method, target, body, headers)
        except GoneError:
            self.answers["gone"] += 1
            raise
        if answer.status >= 500:
            self.answers[answer.code] += 1
            if answer.status == 503 and "Retry-After" not in answer.headers:
                self.wrong.append(f"{answer.code} without Retry-After for {method} {target}")
        return answer

    def change(
        self,
        wire: Wire,
        method: str,
        target: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[Fate, Answer | None]:
        """Send a change; return what became of it."""
        began = time.monotonic()
        try:
            answer = self.send(wire, method, target, body, headers)
        except GoneError:
            return Fate.UNKNOWN, None
        if answer.fate is Fate.DONE:
            with self._lock:
                self.acknowledged += 1
                self.changed_at = max(self.changed_at, began)
        return answer.fate, answer

    @abstractmethod
    def prepare(self, wire: Wire) -> bool:
        """Create what the operations need; return whether it is there."""

    @abstractmethod
    def step(self, wire: Wire, client: int, chance: random.Random) -> Fate:
        """Do one operation."""

    @abstractmethod
    def check(self, wire: Wire) -> list[str]:
        """Compare with what is stored, when no operation is under way; return what is wrong."""


# --- tables -----------------------------------------------------------------------------------


class TableLedger(Ledger):
    service = "table"

    def prepare(self, wire: Wire) -> bool:
        body = json.dumps({"TableName": TABLE}).encode()
        _, answer = self.change(wire, "POST", "Tables", body, JSON)
        return answer is not None and answer.status in (201, 204, 409)


def entity_of(pk: str, rk: str) -> str:
    return f"{TABLE}(PartitionKey='{pk}',RowKey='{rk}')"


def version_of(text: str) -> int:
    """Return the ticks of an etag or a timestamp."""
    digits = "".join(each for each in text.replace("%3A", ":") if each.isdigit()).ljust(21, "0")
    moment = datetime.strptime(f"{digits[:14]}+0000", "%Y%m%d%H%M%S%z")
    return int(moment.timestamp()) * TICKS_PER_SECOND + int(digits[14:])


class Counts(TableLedger):
    """Conditional increments of few entities by everybody: each is counted once."""

    def __init__(self) -> None:
        super().__init__()
        self.told: Counter[int] = Counter()
        self.unknown: Counter[int] = Counter()

    def step(self, wire: Wire, client: int, chance: random.Random) -> Fate:
        number = chance.randrange(COUNTERS)
        target = entity_of(f"count-{number}", "r")
        found = self.send(wire, "GET", target, headers=JSON)
        if found.status == 404:
            body = json.dumps({"PartitionKey": f"count-{number}", "RowKey": "r", "N": 0}).encode()
            return self.change(wire, "POST", TABLE, body, JSON)[0]
        if found.status != 200:
            return found.fate
        body = json.dumps({"N": json.loads(found.body)["N"] + 1}).encode()
        condition = {"If-Match": found.headers["ETag"]}
        fate, _ = self.change(wire, "PUT", target, body, JSON | condition)
        with self._lock:
            self.told[number] += fate is Fate.DONE
            self.unknown[number] += fate is Fate.UNKNOWN
        return fate

    def check(self, wire: Wire) -> list[str]:
        wrong = []
        for number in range(COUNTERS):
            answer = wire.send("GET", entity_of(f"count-{number}", "r"), headers=JSON)
            value = json.loads(answer.body)["N"] if answer.status == 200 else 0
            told, unknown = self.told[number], self.unknown[number]
            if not told <= value <= told + unknown:
                wrong.append(f"count {number} is {value}, told {told}, unknown {unknown}")
        return wrong


class Versions(TableLedger):
    """All kinds of changes of few entities by everybody: linearizable, by their etags."""

    def __init__(self, names: str = "v") -> None:
        super().__init__()
        self._names = names
        self._order = itertools.count()
        self._values = itertools.count(1)
        self.events: list[Event] = []
        self.doubts: list[Doubt] = []
        self.seen: dict[tuple[str, int], int] = {}
        self._known: dict[str, str] = {}
        """The etag seen last of each entity."""

    def step(self, wire: Wire, client: int, chance: random.Random) -> Fate:
        row = chance.choice(ROWS)
        kind = chance.choice(KINDS)
        if kind == "read":
            return self._read(wire, row)
        if kind == "scan":
            return self._scan(wire)
        return self._change(wire, kind, row)

    def _read(self, wire: Wire, row: str) -> Fate:
        invoked = next(self._order)
        answer = self.send(wire, "GET", entity_of(self._names, row), headers=JSON)
        if answer.status == 200:
            etag = answer.headers["ETag"]
            self._saw(row, invoked, version_of(etag), json.loads(answer.body)["N"])
            self._known[row] = etag
            return Fate.DONE
        if answer.status == 404:
            self._note("absent", row, invoked)
        return answer.fate

    def _scan(self, wire: Wire) -> Fate:
        invoked = next(self._order)
        condition = quote(f"PartitionKey eq '{self._names}' and N ge 0")
        answer = self.send(wire, "GET", f"{TABLE}()?$filter={condition}", headers=JSON)
        if answer.status != 200:
            return answer.fate
        found = {each["RowKey"]: each for each in json.loads(answer.body)["value"]}
        for row in ROWS:
            if row in found:
                each = found[row]
                self._saw(row, invoked, version_of(each["Timestamp"]), each["N"])
            else:
                self._note("absent", row, invoked)
        return Fate.DONE

    def _change(self, wire: Wire, kind: str, row: str) -> Fate:
        etag = self._known.get(row)
        if etag is None and kind in ("update", "delete"):
            return self._read(wire, row)
        expected = version_of(etag) if etag is not None and kind in ("update", "delete") else 0
        value, invoked = next(self._values), next(self._order)
        method, target = "PUT", entity_of(self._names, row)
        body = json.dumps({"N": value}).encode()
        headers = dict(JSON)
        if expected:
            assert etag is not None
            headers["If-Match"] = etag
        if kind == "insert":
            method, target = "POST", TABLE
            body = json.dumps({"PartitionKey": self._names, "RowKey": row, "N": value}).encode()
            headers["Prefer"] = "return-no-content"
        if kind == "delete":
            method, body = "DELETE", b""
        fate, answer = self.change(wire, method, target, body, headers)
        if answer is None or fate is Fate.UNKNOWN:
            self.doubts.append(Doubt(kind, row, invoked, value, expected))
        elif fate is Fate.REFUSED:
            self._refused(answer, row, invoked, expected)
        elif fate is Fate.DONE and kind == "delete":
            self._note(kind, row, invoked, expected)
        elif fate is Fate.DONE:
            self._known[row] = answer.headers["ETag"]
            self._note(kind, row, invoked, version_of(answer.headers["ETag"]), expected)
        return fate

    def _refused(self, answer: Answer, row: str, invoked: int, expected: int) -> None:
        refusals = {404: "absent", 409: "exists", 412: "unequal"}
        if answer.status not in refusals:
            self.wrong.append(f"{row} was refused with {answer.code}: {answer.body!r}")
            return
        self._note(refusals[answer.status], row, invoked, 0, expected)
        self._known.pop(row, None)

    def _saw(self, row: str, invoked: int, version: int, value: int) -> None:
        with self._lock:
            before = self.seen.setdefault((row, value), version)
        if before != version:
            self.wrong.append(f"{row} has {value} twice, as {before} and {version}")
        self._note("read", row, invoked, version)

    def _note(self, kind: str, row: str, invoked: int, version: int = 0, expected: int = 0) -> None:
        self.events.append(Event(kind, row, invoked, next(self._order), version, expected))

    def check(self, wire: Wire) -> list[str]:
        for row in ROWS:
            self._read(wire, row)
        return self.wrong + unexplained(self.events, self.doubts, self.seen)


class Groups(TableLedger):
    """Groups of several entities, written and read at once: never a part of one."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._generations: Counter[int] = Counter()
        self.told: dict[str, int] = {}
        self.asked: dict[str, int] = {}

    def step(self, wire: Wire, client: int, chance: random.Random) -> Fate:
        if chance.random() < 0.3 and self.told:
            self._look(wire, chance.choice(list(self.told)))
            return Fate.DONE
        size = chance.choice(GROUP_SIZES)
        name = f"group-{client}-{self._generations[client]}-{size}"
        number = self.asked[name] = next(self._numbers)
        fate, answer = self.change(wire, "POST", "$batch", *_batch(name, size, number))
        if fate is Fate.DONE and answer is not None:
            fate = _fate_inside(answer)
            if fate is Fate.REFUSED:
                self.wrong.append(f"{name} was refused: {answer.body[:300]!r}")
        if fate is Fate.DONE:
            self.told[name] = number
        elif fate is Fate.NOT_DONE:
            self.asked[name] = self.told.get(name, 0)
        else:
            self._generations[client] += 1
        return fate

    def _look(self, wire: Wire, name: str) -> None:
        """Read a group in one page: all of its entities have the same number."""
        told = self.told[name]
        condition = quote(f"PartitionKey eq '{name}'")
        answer = self.send(wire, "GET", f"{TABLE}()?$filter={condition}", headers=JSON)
        if answer.status != 200:
            return
        numbers = [each["N"] for each in json.loads(answer.body)["value"]]
        size = int(name.rpartition("-")[2])
        if len(set(numbers)) > 1 or len(numbers) != size:
            self.wrong.append(f"{name} is torn: {Counter(numbers)}")
        elif numbers[0] < told:
            self.wrong.append(f"{name} shows {numbers[0]}, told {told}")

    def check(self, wire: Wire) -> list[str]:
        wrong = []
        for name, asked in self.asked.items():
            condition = quote(f"PartitionKey eq '{name}'")
            answer = wire.send("GET", f"{TABLE}()?$filter={condition}", headers=JSON)
            numbers = {each["N"] for each in json.loads(answer.body)["value"]} or {0}
            told = self.told.get(name, 0)
            if len(numbers) > 1 or not numbers <= {told, asked}:
                wrong.append(f"{name} shows {numbers}, told {told}, asked {asked}")
        return self.wrong + wrong


def _batch(pk: str, rows: int, number: int) -> tuple[bytes, Mapping[str, str]]:
    parts = []
    for row in range(rows):
        body = json.dumps({"N": number})
        parts.append(
            "--changeset_1\r\nContent-Type: application/http\r\n"
            "Content-Transfer-Encoding: binary\r\n\r\n"
            f"PUT http://127.0.0.1/{ACCOUNT}/{entity_of(pk, f'r{row}')} HTTP/1.1\r\n"
            "Content-Type: application/json\r\n"
            "Accept: application/json;odata=minimalmetadata\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}\r\n"
        )
    text = (
        "--batch_1\r\nContent-Type: multipart/mixed; boundary=changeset_1\r\n\r\n"
        f"{''.join(parts)}--changeset_1--\r\n--batch_1--\r\n"
    )
    return text.encode(), {"Content-Type": "multipart/mixed; boundary=batch_1"}


def _fate_inside(answer: Answer) -> Fate:
    lines = [line for line in answer.body.splitlines() if line.startswith(b"HTTP/1.1")]
    status = max(int(line.split()[1]) for line in lines)
    return Answer(status, answer.headers, b"").fate


# --- queues -----------------------------------------------------------------------------------


class Messages(Ledger):
    """Few queues that everybody puts to and gets from."""

    service = "queue"

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self.put_asked: set[int] = set()
        self.put_told: set[int] = set()
        self.delete_asked: Counter[int] = Counter()
        """How many deletes of each may have happened."""
        self.delete_told: dict[int, float] = {}
        """When each was told."""
        self.claims: dict[int, dict[int, tuple[float, float]]] = defaultdict(dict)
        """When each claim of a message was asked for and told, by the number of the claim."""

    def prepare(self, wire: Wire) -> bool:
        made = [self.change(wire, "PUT", name)[1] for name in QUEUES]
        return all(answer is not None and answer.status in (201, 204) for answer in made)

    def step(self, wire: Wire, client: int, chance: random.Random) -> Fate:
        queue = chance.choice(QUEUES)
        if chance.random() < 0.45:
            return self._put(wire, queue)
        return self._get(wire, queue, chance)

    def _put(self, wire: Wire, queue: str) -> Fate:
        number = next(self._numbers)
        self.put_asked.add(number)
        text = f"<QueueMessage><MessageText>{a_text(number)}</MessageText></QueueMessage>"
        kind = {"Content-Type": "application/xml"}
        fate, answer = self.change(wire, "POST", f"{queue}/messages", text.encode(), kind)
        if fate is Fate.DONE:
            self.put_told.add(number)
        elif fate is Fate.NOT_DONE:
            self.put_asked.discard(number)
        elif answer is not None and fate is Fate.REFUSED:
            self.wrong.append(f"a message was refused with {answer.code}")
        return fate

    def _get(self, wire: Wire, queue: str, chance: random.Random) -> Fate:
        invoked = time.monotonic()
        count = chance.randint(1, 4)
        query = f"numofmessages={count}&visibilitytimeout={HIDDEN_SECONDS}"
        answer = self.send(wire, "GET", f"{queue}/messages?{query}")
        if answer.status != 200:
            return answer.fate
        for message in fromstring(answer.body):
            number = self._judge(message, invoked)
            if chance.random() < 0.7:
                place = f"{queue}/messages/{message.findtext('MessageId')}"
                receipt = quote(str(message.findtext("PopReceipt")), safe="")
                self._delete(wire, number, f"{place}?popreceipt={receipt}", invoked)
        return Fate.DONE

    def _judge(self, message: Element, invoked: float) -> int:
        """Check one message that was claimed; return its number."""
        text = str(message.findtext("MessageText"))
        number, returned = int(text.partition(":")[0]), time.monotonic()
        if text != a_text(number):
            self.wrong.append(f"message {number} is torn")
        if number not in self.put_asked:
            self.wrong.append(f"message {number} was never put")
        if self.delete_told.get(number, invoked) < invoked:
            self.wrong.append(f"message {number} came back after its delete")
        with self._lock:
            self._count(number, int(str(message.findtext("DequeueCount"))), invoked, returned)
        return number

    def _count(self, number: int, claim: int, invoked: float, returned: float) -> None:
        """Check that a message was hidden between its claims: a late answer is of an old one."""
        claims = self.claims[number]
        if claim in claims:
            self.wrong.append(f"message {number} was given away twice as number {claim}")
        claims[claim] = invoked, returned
        for before, after in itertools.pairwise(sorted(claims)):
            early = claims[before][0] + HIDDEN_SECONDS - claims[after][1]
            if claim in (before, after) and early > 0:
                self.wrong.append(f"message {number} came {early:.2f} s before its time")

    def _delete(self, wire: Wire, number: int, target: str, claimed: float) -> None:
        with self._lock:
            self.delete_asked[number] += 1
        fate, answer = self.change(wire, "DELETE", target)
        if fate is Fate.DONE:
            self.delete_told[number] = time.monotonic()
        elif answer is not None and fate is not Fate.UNKNOWN:
            with self._lock:
                self.delete_asked[number] -= 1
            # Later, somebody else may have it.
            if fate is Fate.REFUSED and time.monotonic() < claimed + HIDDEN_SECONDS:
                self.wrong.append(f"message {number} could not be deleted: {answer.code}")

    def check(self, wire: Wire) -> list[str]:
        expected = {each for each in self.put_told if not self.delete_asked[each]}
        found: set[int] = set()
        end = time.monotonic() + HIDDEN_SECONDS + 3
        while not expected <= found:
            is_last = time.monotonic() > end
            news = [self._drain(wire, queue) for queue in QUEUES]
            found |= set().union(*news)
            if is_last and not any(news):
                break
            if not any(news):
                time.sleep(0.1)
        return self.wrong + [f"message {number} is lost" for number in sorted(expected - found)]

    def _drain(self, wire: Wire, queue: str) -> set[int]:
        invoked = time.monotonic()
        query = f"numofmessages=32&visibilitytimeout={LONG_SECONDS}"
        answer = wire.send("GET", f"{queue}/messages?{query}")
        assert answer.status == 200, answer
        return {self._judge(message, invoked) for message in fromstring(answer.body)}


# --- blobs ------------------------------------------------------------------------------------


class Blobs(Ledger):
    """Small and large blobs, each of one client; everybody reads all of them."""

    service = "blob"

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._generations: Counter[int] = Counter()
        self.allowed: dict[str, list[int]] = defaultdict(lambda: [0])
        """The versions that a blob may show: what was told last, and asked for later."""

    def prepare(self, wire: Wire) -> bool:
        _, answer = self.change(wire, "PUT", f"{CONTAINER}?restype=container")
        return answer is not None and answer.status in (201, 409)

    def step(self, wire: Wire, client: int, chance: random.Random) -> Fate:
        if chance.random() < 0.3 and self.allowed:
            return self._look(wire, chance.choice(list(self.allowed)))
        name = f"b{client}-{self._generations[client]}-{chance.randrange(3)}"
        choice, number = chance.random(), next(self._numbers)
        before = self.allowed[name][-1]
        number = 0 if choice < 0.15 else number
        self.allowed[name] = [before, number]
        if number == 0:
            fate = self._fate(wire, "DELETE", name)
        elif choice < 0.5:
            fate = self._fate(wire, "PUT", name, content_of(name, number, SMALL_BYTES))
        elif choice < 0.8:
            fate = self._fate(wire, "PUT", name, content_of(name, number, LARGE_BYTES))
        else:
            fate = self._put_blocks(wire, name, content_of(name, number, LARGE_BYTES))
        if fate is Fate.DONE or (fate is Fate.REFUSED and number == 0 and before == 0):
            self.allowed[name] = [number]
        elif fate is Fate.NOT_DONE:
            self.allowed[name] = [before]
        elif fate is Fate.REFUSED:
            self.wrong.append(f"blob {name} was refused")
        else:
            self._generations[client] += 1
        return fate

    def _fate(self, wire: Wire, method: str, name: str, content: bytes = b"") -> Fate:
        headers = {"x-ms-blob-type": "BlockBlob"} if method == "PUT" else {}
        return self.change(wire, method, f"{CONTAINER}/{name}", content, headers)[0]

    def _put_blocks(self, wire: Wire, name: str, content: bytes) -> Fate:
        target, names = f"{CONTAINER}/{name}", []
        for start in range(0, len(content), BLOCK_BYTES):
            names.append(base64.b64encode(b"%06d" % start).decode())
            part = content[start : start + BLOCK_BYTES]
            query = f"comp=block&blockid={quote(names[-1], safe='')}"
            fate, _ = self.change(wire, "PUT", f"{target}?{query}", part)
            if fate is not Fate.DONE:
                return fate  # a block that is not committed changes nothing, but may arrive later
        chosen = "".join(f"<Latest>{each}</Latest>" for each in names)
        listed = f"<BlockList>{chosen}</BlockList>".encode()
        return self.change(wire, "PUT", f"{target}?comp=blocklist", listed)[0]

    def _look(self, wire: Wire, name: str) -> Fate:
        answer = self.send(wire, "GET", f"{CONTAINER}/{name}")
        if answer.status in (200, 404):
            self._number_in(name, answer)
        return answer.fate

    def _number_in(self, name: str, answer: Answer) -> int:
        if answer.status == 404:
            return 0
        number = int.from_bytes(answer.body[:4])
        if answer.body != content_of(name, number, len(answer.body)):
            self.wrong.append(f"blob {name} shows bytes that are not those of a version")
        return number

    def check(self, wire: Wire) -> list[str]:
        wrong = []
        for name, numbers in self.allowed.items():
            answer = wire.send("GET", f"{CONTAINER}/{name}")
            if answer.status not in (200, 404):
                wrong.append(f"blob {name} cannot be read: {answer.code}")
            elif (number := self._number_in(name, answer)) not in numbers:
                wrong.append(f"blob {name} shows {number}, allowed are {numbers}")
        return self.wrong + wrong


def content_of(name: str, number: int, size: int) -> bytes:
    """Return bytes that tell their version, and whether a part of them is missing."""
    return number.to_bytes(4) + random.Random(f"{name}/{number}/{size}").randbytes(size - 4)
