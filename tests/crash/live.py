"""A real server in a process of its own, plain clients, and the ledger that outlives its crashes.

The ledger is written before a request is sent (asked) and after its answer came (told). Each
client has its own keys, so that a key may show the last version told, or one asked for later.
"""

import base64
import hashlib
import hmac
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from support.live import ANY_PORTS

ACCOUNT = "devstoreaccount1"
KEY = base64.b64decode(
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
TABLE = "Work"
GROUP_ROWS = 7


class Server:
    """`partita serve` on a folder; `program` is a script that takes the place of `partita`."""

    def __init__(
        self, folder: Path, prefix: Sequence[str] = (), program: Path | None = None
    ) -> None:
        what = ["-m", "partita.cli.main"] if program is None else [str(program)]
        command = [*prefix, sys.executable, *what, "serve"]
        flags = ["--path", str(folder), *ANY_PORTS, "--json", "--no-request-log"]
        self.process = subprocess.Popen(
            [*command, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.errors()
        self.port: int = json.loads(line)["addresses"][-1][1]

    def errors(self) -> str:
        assert self.process.stderr is not None
        return self.process.stderr.read().decode()

    def kill(self) -> None:
        self.process.kill()
        self.wait()

    def stop(self) -> int:
        self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        self.process.communicate(timeout=60)
        return self.process.returncode


@contextmanager
def serving(
    folder: Path, prefix: Sequence[str] = (), program: Path | None = None
) -> Iterator[Server]:
    server = Server(folder, prefix, program)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.kill()


class GoneError(Exception):
    """The server went away before it answered: nobody knows what became of the request."""


class WireClient:
    """One connection, requests signed with Shared Key Lite."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def close(self) -> None:
        self._connection.close()

    def send(
        self, method: str, path: str, body: bytes = b"", kind: str = "application/json"
    ) -> tuple[int, bytes]:
        date = formatdate(usegmt=True)
        signed = f"{date}\n/{ACCOUNT}/{ACCOUNT}/{path}".encode()
        signature = base64.b64encode(hmac.digest(KEY, signed, hashlib.sha256)).decode()
        headers = {
            "x-ms-date": date,
            "x-ms-version": "2019-02-02",
            "Authorization": f"SharedKeyLite {ACCOUNT}:{signature}",
            "Content-Type": kind,
            "Accept": "application/json;odata=minimalmetadata",
        }
        try:
            self._connection.request(method, f"/{ACCOUNT}/{path}", body or None, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise GoneError from error

    def create_table(self) -> None:
        status, answer = self.send("POST", "Tables", json.dumps({"TableName": TABLE}).encode())
        assert status in (201, 204, 409), answer

    def put(self, pk: str, rk: str, number: int) -> int:
        """Insert or replace one entity; return the status."""
        body = json.dumps({"N": number, "Text": "x" * 300}).encode()
        return self.send("PUT", f"{TABLE}(PartitionKey='{pk}',RowKey='{rk}')", body)[0]

    def put_group(self, pk: str, rows: int, number: int) -> int:
        """Insert or replace several entities at once; return the status of the group."""
        parts = [_change(pk, f"r{n}", number) for n in range(rows)]
        body = (
            "--batch_1\r\nContent-Type: multipart/mixed; boundary=changeset_1\r\n\r\n"
            + "".join(parts)
            + "--changeset_1--\r\n--batch_1--\r\n"
        )
        status, answer = self.send(
            "POST", "$batch", body.encode(), "multipart/mixed; boundary=batch_1"
        )
        if status != 202:
            return status
        statuses = {
            int(line.split()[1]) for line in answer.splitlines() if line.startswith(b"HTTP/1.1")
        }
        return max(statuses)

    def get(self, pk: str, rk: str) -> int | None:
        """Return the number of an entity, if it is there."""
        status, answer = self.send("GET", f"{TABLE}(PartitionKey='{pk}',RowKey='{rk}')")
        if status == 404:
            return None
        assert status == 200, answer
        number: int = json.loads(answer)["N"]
        return number


def _change(pk: str, rk: str, number: int) -> str:
    body = json.dumps({"N": number})
    address = f"http://127.0.0.1/{ACCOUNT}/{TABLE}(PartitionKey='{pk}',RowKey='{rk}')"
    return (
        "--changeset_1\r\nContent-Type: application/http\r\nContent-Transfer-Encoding: binary\r\n"
        f"\r\nPUT {address} HTTP/1.1\r\nContent-Type: application/json\r\n"
        f"Accept: application/json;odata=minimalmetadata\r\nContent-Length: {len(body)}\r\n"
        f"\r\n{body}\r\n"
    )


class Ledger:
    """What was asked and told, by name of an entity or a group."""

    def __init__(self) -> None:
        self.asked: dict[str, int] = {}
        self.told: dict[str, int] = {}
        self.acknowledged = 0
        self.counter = 0

    def work(self, client: WireClient, number: int) -> bool:
        """Write once, alone or as a group; return whether it was acknowledged."""
        self.counter += 1
        value = self.counter
        is_group = value % 4 == 0
        partition, row = f"p{number}", f"r{value % 11}"
        name = f"g{number}-{value % 3}" if is_group else f"{partition}/{row}"
        self.asked[name] = value
        if is_group:
            status = client.put_group(name, GROUP_ROWS, value)
        else:
            status = client.put(partition, row, value)
        if status >= 300:
            return False
        self.told[name] = value
        self.acknowledged += 1
        return True

    def check(self, client: WireClient) -> list[str]:
        """Compare the ledger with a server that has recovered; return what is wrong."""
        wrong: list[str] = []
        for name in self.asked:
            if "/" in name:
                found = [client.get(*name.split("/"))]
            else:
                found = [client.get(name, f"r{n}") for n in range(GROUP_ROWS)]
            numbers = set(found)
            if len(numbers) > 1:
                wrong.append(f"{name} is half there: {numbers}")
                continue
            number = numbers.pop()
            if number not in (self.told.get(name), self.asked[name]):
                wrong.append(f"{name} shows {number}, told {self.told.get(name)}")
            # What the crash left is a fact now: a later check must find it or something newer.
            if number is not None:
                self.told[name] = self.asked[name] = number
        return wrong
