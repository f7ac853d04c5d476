"""Requests to the API of a console as its pages send them, over a real socket."""

import http.client
import json
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from support.live import LiveServer

ACCOUNT = "devstoreaccount1"


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        found: str = self.json["error"]["code"]
        return found


class Api:
    """One console; `send` sends exactly the given headers, `get` and `post` those of a page."""

    def __init__(self, address: str, account: str = ACCOUNT) -> None:
        origin, _, self.token = address.partition("/#token=")
        parts = urlsplit(origin)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        self.origin = origin
        self.account = account
        self.unlock = ""

    @classmethod
    def of(cls, server: LiveServer) -> "Api":
        return cls(server.announced["console"])

    def send(
        self, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b""
    ) -> Answer:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        try:
            connection.request(method, path, body or None, headers or {})
            return Answer(connection.getresponse())
        finally:
            connection.close()

    @property
    def own_headers(self) -> dict[str, str]:
        own = {"Authorization": f"Bearer {self.token}", "Sec-Fetch-Site": "same-origin"}
        return own | ({"X-Partita-Unlock": self.unlock} if self.unlock else {})

    def get(self, path: str, **query: str) -> Answer:
        text = f"?{urlencode(query)}" if query else ""
        return self.send("GET", f"/api/v1{self._scoped(path)}{text}", self.own_headers)

    def post(self, path: str, value: object) -> Answer:
        headers = self.own_headers | {"Content-Type": "application/json", "Origin": self.origin}
        return self.send(
            "POST", f"/api/v1{self._scoped(path)}", headers, json.dumps(value).encode()
        )

    def upload(self, path: str, body: bytes, **query: str) -> Answer:
        headers = self.own_headers | {"Content-Type": "application/octet-stream"}
        target = f"/api/v1{self._scoped(path)}?{urlencode(query)}"
        return self.send("POST", target, headers, body)

    def _scoped(self, path: str) -> str:
        return path.replace("~", f"/a/{quote(self.account, safe='')}", 1)

    def finish(self, started: Answer) -> dict[str, Any]:
        """Wait for the end of a job."""
        job: dict[str, Any] = started.json
        while job["state"] == "running":
            job = self.get(f"/jobs/{job['id']}").json
        return job
