"""HTTP without an SDK: requests signed here, answers as they came."""

import base64
import hashlib
import hmac
import http.client
import json
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Any
from urllib.parse import urlsplit

from partita.service.accounts.account import DEVELOPMENT_KEY

PATIENCE_SECONDS = 60
GUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{7}Z"
MINIMAL = "application/json;odata=minimalmetadata;streaming=true;charset=utf-8"
KEYS = "(PartitionKey='p',RowKey='r')"
"""The entity that most tests are about."""
JSON = {"Content-Type": "application/json", "Accept": "application/json;odata=minimalmetadata"}


@dataclass(frozen=True)
class Answer:
    status: int
    reason: str
    fields: list[tuple[str, str]]
    """The headers in their order and spelling."""
    body: bytes

    def __getitem__(self, name: str) -> str:
        """Return the only header of this name."""
        (value,) = [value for key, value in self.fields if key.lower() == name.lower()]
        return value

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.fields]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["odata.error"]["code"]
        return code

    @property
    def first_line(self) -> str:
        """What an error says, without the request and the time."""
        text: str = self.json["odata.error"]["message"]["value"]
        return text.partition("\n")[0]


class RawClient:
    """Signs with Shared Key Lite and sends what it is told, one connection a request."""

    def __init__(
        self, endpoint: str, *, key: str = DEVELOPMENT_KEY, context: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(endpoint)
        self.root = endpoint
        self.host = parts.netloc
        self.account = parts.path.strip("/")
        self._key = base64.b64decode(key)
        self._context = context

    def send(
        self,
        method: str,
        target: str,
        body: bytes | str = b"",
        headers: Mapping[str, str] | None = None,
        *,
        is_signed: bool = True,
    ) -> Answer:
        """Send to a target below the account, query included."""
        return self.send_to(method, f"/{self.account}{target}", body, headers, is_signed=is_signed)

    def send_to(
        self,
        method: str,
        target: str,
        body: bytes | str = b"",
        headers: Mapping[str, str] | None = None,
        *,
        is_signed: bool = True,
    ) -> Answer:
        """Send to a target as it is. A body in chunks is given with its chunks."""
        content = body.encode() if isinstance(body, str) else body
        fields = {"Host": self.host, "x-ms-version": "2019-02-02"} | dict(headers or {})
        if is_signed:
            fields["x-ms-date"] = formatdate(usegmt=True)
            fields["Authorization"] = self.authorization(target, fields["x-ms-date"])
        has_body = bool(content) or method in ("POST", "PUT", "PATCH", "MERGE")
        if has_body and "Transfer-Encoding" not in fields:
            fields["Content-Length"] = str(len(content))
        connection = self._connect()
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in fields.items():
                connection.putheader(name, value)
            connection.endheaders(content or None)
            response = connection.getresponse()
            return Answer(response.status, response.reason, response.getheaders(), response.read())
        finally:
            connection.close()

    def authorization(self, target: str, date: str) -> str:
        path, _, query = target.partition("?")
        comp = re.search(r"(?:^|&)comp=([^&]*)", query)
        resource = f"/{self.account}{path}" + (f"?comp={comp[1]}" if comp else "")
        digest = hmac.new(self._key, f"{date}\n{resource}".encode(), hashlib.sha256).digest()
        return f"SharedKeyLite {self.account}:{base64.b64encode(digest).decode()}"

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is None:
            return http.client.HTTPConnection(self.host, timeout=PATIENCE_SECONDS)
        return http.client.HTTPSConnection(
            self.host, timeout=PATIENCE_SECONDS, context=self._context
        )


def accepting(level: str) -> dict[str, str]:
    return {"Accept": f"application/json;odata={level}", "Content-Type": "application/json"}


def insert(raw: RawClient, table: str, **properties: Any) -> Answer:
    """Insert an entity with these members, under KEYS unless they say otherwise."""
    body = {"PartitionKey": "p", "RowKey": "r"} | properties
    answer = raw.send("POST", f"/{table}", json.dumps(body), JSON)
    assert answer.status == 201
    return answer
