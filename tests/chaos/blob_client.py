"""A client of blobs with one connection, and the ledger of the blobs that it wrote."""

import base64
import http.client
import random
from email.utils import formatdate

from crash.blob_workload import BLOCK_BYTES, State, content_of
from crash.live import ACCOUNT, GoneError
from wire.raw_blob import BLOCK, RawBlobClient
from wire.raw_queue import VERSION

CONTAINER = "work"
NAMES = 5


class BlobWireClient:
    """One connection, requests signed with Shared Key Lite."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._signing = RawBlobClient(f"http://127.0.0.1:{port}/{ACCOUNT}")

    def close(self) -> None:
        self._connection.close()

    def send(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        whole = f"/{ACCOUNT}/{CONTAINER}{target}"
        fields = {"x-ms-version": VERSION, "x-ms-date": formatdate(usegmt=True)} | (headers or {})
        fields["Authorization"] = self._signing.authorization(method, whole, fields)
        try:
            self._connection.request(method, whole, body if method == "PUT" else None, fields)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise GoneError from error

    def create_container(self) -> None:
        status, answer = self.send("PUT", "?restype=container")
        assert status in (201, 409), answer

    def put(self, name: str, content: bytes) -> None:
        status, answer = self.send("PUT", f"/{name}", content, BLOCK)
        assert status == 201, answer

    def put_blocks(self, name: str, content: bytes) -> None:
        """Write a blob by blocks and a list of them."""
        ids = []
        for start in range(0, len(content), BLOCK_BYTES):
            ids.append(base64.b64encode(b"%06d" % start).decode())
            part = content[start : start + BLOCK_BYTES]
            status, answer = self.send("PUT", f"/{name}?comp=block&blockid={ids[-1]}", part)
            assert status == 201, answer
        chosen = "".join(f"<Latest>{each}</Latest>" for each in ids)
        listed = f"<BlockList>{chosen}</BlockList>".encode()
        status, answer = self.send("PUT", f"/{name}?comp=blocklist", listed)
        assert status == 201, answer

    def delete(self, name: str) -> None:
        status, answer = self.send("DELETE", f"/{name}")
        assert status in (202, 404), answer

    def get(self, name: str) -> bytes | None:
        status, answer = self.send("GET", f"/{name}")
        if status == 404:
            return None
        assert status == 200, answer
        return answer


class BlobLedger:
    """The versions that each blob of one client may show."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._count = 0
        self.allowed: dict[str, list[State]] = {}
        """The last version told, and those asked for later."""
        self.acknowledged = 0

    def step(self, client: BlobWireClient, owner: str) -> None:
        """Write or delete a blob; `owner` begins its name."""
        self._count += 1
        name = f"{owner}-{self._chance.randrange(NAMES)}"
        choice = self._chance.random()
        state = None if choice < 0.1 else self._count
        self.allowed.setdefault(name, [None]).append(state)
        if state is None:
            client.delete(name)
        elif choice < 0.6:
            client.put(name, content_of(name, state))
        else:
            client.put_blocks(name, content_of(name, state))
        self.allowed[name] = [state]
        self.acknowledged += 1

    def check(self, client: BlobWireClient) -> list[str]:
        """Compare the ledger with a server that has recovered; return what is wrong."""
        wrong = []
        for name, states in self.allowed.items():
            found = client.get(name)
            number = None if found is None else int.from_bytes(found[:4])
            if found is not None and found != content_of(name, number or 0):
                wrong.append(f"blob {name} shows bytes that are not those of a version")
            elif number not in states:
                wrong.append(f"blob {name} shows {number}, allowed are {states}")
            else:
                self.allowed[name] = [number]
        return wrong
