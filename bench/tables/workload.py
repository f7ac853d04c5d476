"""The entities and the signed requests that every table benchmark sends.

Requests are whole HTTP/1.1 messages as bytes, signed with Shared Key Lite for the
development account, so that the load generator has nothing left to compute. The rule of
the file: a write never repeats bytes that were sent before, because stores may skip
writes that change nothing and would look faster than they are.
"""

import base64
import hashlib
import hmac
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import quote

ACCOUNT = "devstoreaccount1"
ACCOUNT_KEY = (  # public: every emulator of the service knows it
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
TABLE = "bench"
PARTITION_ENTITIES = 10_000
BUCKETS = 100
RANGE_ENTITIES = 100
GROUP_OPERATIONS = 100

READS = ("W1", "W5", "W6")

_TEXT_CHARS = 354
_WORDS = (
    "river stone harbour window market silver garden northern letter quiet engine paper"
    " morning copper bridge station yellow forest winter ladder signal marble canvas"
)


def _prose(chars: int) -> str:
    words, source = _WORDS.split(), random.Random(7)
    text = ""
    while len(text) < chars:
        text += source.choice(words) + " "
    return text[:chars]


# Each entity takes its own window of this text, so that no two neighbours share it.
_PROSE = _prose(64 * 1024)
_CITIES = ("Lisbon", "Odense", "Ghent", "Tartu", "Graz", "Turin", "Bergen", "Split")


def partition_key(number: int) -> str:
    return f"p{number // PARTITION_ENTITIES:03d}"


def row_key(number: int) -> str:
    return f"r{number:09d}"


def entity(number: int, version: int = 0) -> bytes:
    """Return the JSON of one entity; another version changes Total, Updated, Payload and Text."""
    start = (number * 37 + version * 101) % (len(_PROSE) - _TEXT_CHARS)
    payload = base64.b64encode(b"%012d%012d" % (number, version)).decode()
    second, minute = version % 60, version // 60 % 60
    return (
        f'{{"PartitionKey":"{partition_key(number)}","RowKey":"{row_key(number)}",'
        f'"Number":{number},"Bucket":{number % BUCKETS},'
        f'"Total@odata.type":"Edm.Int64","Total":"{version * 1_000_000_007 + number}",'
        f'"Price":{number % 9973}.25,"Ratio":0.{number % 99991 + 100000},'
        f'"IsOpen":{"true" if number % 3 else "false"},'
        f'"Created@odata.type":"Edm.DateTime","Created":"2024-03-01T10:{number % 60:02d}:00Z",'
        f'"Updated@odata.type":"Edm.DateTime","Updated":"2024-03-02T11:{minute:02d}:{second:02d}Z",'
        f'"Reference@odata.type":"Edm.Guid",'
        f'"Reference":"00000000-0000-4000-8000-{number:012x}",'
        f'"Payload@odata.type":"Edm.Binary","Payload":"{payload}",'
        f'"Name":"Customer {number % 5000:04d}","City":"{_CITIES[number % 8]}",'
        f'"Text":"{_PROSE[start : start + _TEXT_CHARS]}"}}'
    ).encode()


def total_of(number: int, version: int) -> str:
    """Return the Total that `entity(number, version)` carries: proof of which version is stored."""
    return str(version * 1_000_000_007 + number)


@dataclass
class Versions:
    """Hand out versions for upserts and numbers for inserts; neither ever repeats on one server."""

    next_new: int
    next_version: int = 1

    def version(self) -> int:
        self.next_version += 1
        return self.next_version - 1

    def new_number(self) -> int:
        self.next_new += 1
        return self.next_new - 1

    def new_group(self) -> int:
        """Return the first of 100 new numbers that lie in one partition."""
        first = -(-self.next_new // GROUP_OPERATIONS) * GROUP_OPERATIONS
        self.next_new = first + GROUP_OPERATIONS
        return first


class Requests:
    """Build signed requests for one server; all carry the date of construction.

    The service takes a date for 15 minutes, so build one right before each run.
    """

    def __init__(self, port: int) -> None:
        self._date = formatdate(usegmt=True)
        self._host = f"127.0.0.1:{port}"
        self._mac = hmac.new(base64.b64decode(ACCOUNT_KEY), digestmod=hashlib.sha256)
        self._ids = 0
        self._head_tail = (
            f"Host: {self._host}\r\n"
            "User-Agent: azsdk-js-data-tables/13.3.2 core-rest-pipeline/1.24.0 Node/v22\r\n"
            "Accept-Encoding: gzip,deflate\r\n"
            "DataServiceVersion: 3.0\r\n"
            "x-ms-version: 2019-02-02\r\n"
            f"x-ms-date: {self._date}\r\n"
            "Connection: keep-alive\r\n"
        )

    def create_table(self) -> bytes:
        body = b'{"TableName":"%s"}' % TABLE.encode()
        return self._message("POST", "Tables", body=body, extra=_JSON_BODY)

    def get(self, number: int) -> bytes:
        return self._message("GET", _entity_path(number), extra=_JSON_ANSWER)

    def get_with_bad_signature(self, number: int) -> bytes:
        good = self.get(number)
        at = good.index(b"SharedKeyLite ") + len(f"SharedKeyLite {ACCOUNT}:")
        other = b"A" if good[at : at + 1] != b"A" else b"B"
        return good[:at] + other + good[at + 1 :]

    def upsert(self, number: int, version: int) -> bytes:
        body = entity(number, version)
        return self._message("PUT", _entity_path(number), body=body, extra=_JSON_BODY)

    def insert(self, number: int) -> bytes:
        extra = _JSON_BODY + "Prefer: return-no-content\r\n"
        return self._message("POST", TABLE, body=entity(number), extra=extra)

    def batch(self, first: int, count: int = GROUP_OPERATIONS) -> bytes:
        """Build a `$batch` that inserts `count` entities of one partition."""
        name = f"{first:012d}"
        parts = b"".join(self._part(name, number) for number in range(first, first + count))
        body = (
            f"--batch_{name}\r\nContent-Type: multipart/mixed; boundary=changeset_{name}\r\n\r\n"
        ).encode()
        body += parts + f"--changeset_{name}--\r\n--batch_{name}--\r\n".encode()
        extra = (
            f"Content-Type: multipart/mixed; boundary=batch_{name}\r\n"
            "Accept: application/json;odata=minimalmetadata\r\n"
        )
        return self._message("POST", "$batch", body=body, extra=extra)

    def range_of(self, first: int) -> bytes:
        last = first + RANGE_ENTITIES
        return self.query(
            f"PartitionKey eq '{partition_key(first)}'"
            f" and RowKey ge '{row_key(first)}' and RowKey lt '{row_key(last)}'"
        )

    def bucket_of(self, number: int) -> bytes:
        return self.query(
            f"PartitionKey eq '{partition_key(number)}' and Bucket eq {number % BUCKETS}"
        )

    def query(self, filter_text: str = "", continuation: str = "") -> bytes:
        """Build a query; `continuation` is a ready query string or empty."""
        options = [f"$filter={quote(filter_text)}"] if filter_text else []
        options += [continuation] if continuation else []
        question = "?" + "&".join(options) if options else ""
        return self._message("GET", f"{TABLE}()", query=question, extra=_JSON_ANSWER)

    def _part(self, name: str, number: int) -> bytes:
        body = entity(number)
        head = (
            f"--changeset_{name}\r\n"
            "Content-Type: application/http\r\n"
            "Content-Transfer-Encoding: binary\r\n\r\n"
            f"POST http://{self._host}/{ACCOUNT}/{TABLE} HTTP/1.1\r\n"
            "Content-Type: application/json;odata=nometadata\r\n"
            "Accept: application/json;odata=minimalmetadata\r\n"
            "Prefer: return-no-content\r\n"
            "DataServiceVersion: 3.0\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body + b"\r\n"

    def _message(
        self, method: str, resource: str, *, extra: str, query: str = "", body: bytes | None = None
    ) -> bytes:
        path = f"/{ACCOUNT}/{resource}"
        self._ids += 1
        length = "" if body is None else f"Content-Length: {len(body)}\r\n"
        head = (
            f"{method} {path}{query} HTTP/1.1\r\n{self._head_tail}{extra}{length}"
            f"x-ms-client-request-id: 5f1c7a52-90b4-4d0e-a0c3-{self._ids:012x}\r\n"
            f"Authorization: SharedKeyLite {ACCOUNT}:{self._sign(path)}\r\n\r\n"
        )
        return head.encode() + (body or b"")

    def _sign(self, path: str) -> str:
        mac = self._mac.copy()
        mac.update(f"{self._date}\n/{ACCOUNT}{path}".encode())
        return base64.b64encode(mac.digest()).decode()


_JSON_ANSWER = "Accept: application/json;odata=minimalmetadata\r\n"
_JSON_BODY = _JSON_ANSWER + "Content-Type: application/json;odata=nometadata\r\n"


def _entity_path(number: int) -> str:
    return f"{TABLE}(PartitionKey='{partition_key(number)}',RowKey='{row_key(number)}')"


@dataclass(frozen=True)
class Load:
    """What a server holds and what was already sent to it."""

    entities: int
    versions: Versions


def generate(
    workload: str, requests: Requests, load: Load, count: int, source: random.Random
) -> Iterator[bytes]:
    """Yield `count` requests of one workload; W7 has none, since each page names the next."""
    if workload == "W8":
        yield from _mixed(requests, load, count, source)
        return
    for _ in range(count):
        yield _one(workload, requests, load, source)


def _mixed(requests: Requests, load: Load, count: int, source: random.Random) -> Iterator[bytes]:
    """Nine reads to one upsert, the upsert at a random place among each ten."""
    for first in range(0, count, 10):
        write_at = source.randrange(10)
        for place in range(min(10, count - first)):
            yield _one("W3" if place == write_at else "W1", requests, load, source)


def _one(workload: str, requests: Requests, load: Load, source: random.Random) -> bytes:
    number = source.randrange(load.entities)
    match workload:
        case "W1":
            return requests.get(number)
        case "W2":
            return requests.insert(load.versions.new_number())
        case "W3":
            return requests.upsert(number, load.versions.version())
        case "W4":
            return requests.batch(load.versions.new_group())
        case "W5":
            return requests.range_of(range_start(number))
        case "W6":
            return requests.bucket_of(number)
        case _:
            message = f"{workload} is not a workload of single requests"
            raise ValueError(message)


def range_start(number: int) -> int:
    """Move a number back so that a range of 100 from there stays inside its partition."""
    offset = number % PARTITION_ENTITIES
    return number - offset + min(offset, PARTITION_ENTITIES - RANGE_ENTITIES)


def write_presigned(path: Path, requests: Iterable[bytes]) -> int:
    """Write requests as presigned.lua reads them: eight digits of length, then the bytes."""
    count = 0
    with path.open("wb", buffering=1 << 20) as file:
        for request in requests:
            file.write(b"%08d" % len(request))
            file.write(request)
            count += 1
    return count
