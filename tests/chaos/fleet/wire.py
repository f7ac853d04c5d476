"""One connection to one service of a front end, and what an answer tells about a change."""

import base64
import enum
import hashlib
import hmac
import http.client
import time
from collections.abc import Mapping
from email.message import Message
from email.utils import formatdate
from typing import NamedTuple

from crash.live import ACCOUNT, KEY, GoneError

VERSION = "2026-10-06"
TABLE_VERSION = "2019-02-02"
ANSWER_SECONDS_MAX = 45.0
"""A request without an answer for longer hangs: a write waits at most 30 s for the database."""


class HungError(GoneError):
    """No answer in time."""


class Fate(enum.Enum):
    """What became of a change."""

    DONE = enum.auto()
    REFUSED = enum.auto()
    """By a rule: it did not happen."""
    NOT_DONE = enum.auto()
    """For lack of a database or of space: it did not happen, and may be tried again."""
    UNKNOWN = enum.auto()


NOT_DONE = (503, 507)


class Answer(NamedTuple):
    status: int
    headers: Message
    body: bytes

    @property
    def fate(self) -> Fate:
        if self.status < 300:
            return Fate.DONE
        if self.status < 500:
            return Fate.REFUSED
        return Fate.NOT_DONE if self.status in NOT_DONE else Fate.UNKNOWN

    @property
    def code(self) -> str:
        return f"{self.status} {self.headers.get('x-ms-error-code', '')}".strip()


class Wire:
    """Requests signed with Shared Key Lite; `ahead` is by how much the server's clock is wrong."""

    def __init__(self, service: str, port: int, ahead: float = 0.0) -> None:
        self._is_table = service == "table"
        self._ahead = ahead
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS_MAX)

    def close(self) -> None:
        self._connection.close()

    def send(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request for a target below the account, query included."""
        fields = {"x-ms-date": formatdate(time.time() + self._ahead, usegmt=True)}
        fields["x-ms-version"] = TABLE_VERSION if self._is_table else VERSION
        fields |= headers or {}
        fields["Authorization"] = (
            f"SharedKeyLite {ACCOUNT}:{self._signature(method, target, fields)}"
        )
        whole = f"/{ACCOUNT}/{target}"
        content = body if body or method in ("PUT", "POST") else None
        try:
            self._connection.request(method, whole, content, fields)
            answer = self._connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        except TimeoutError as error:
            self._connection.close()
            raise HungError from error
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise GoneError from error

    def _signature(self, method: str, target: str, fields: Mapping[str, str]) -> str:
        path, _, query = target.partition("?")
        comp = next((part for part in query.split("&") if part.startswith("comp=")), "")
        resource = f"/{ACCOUNT}/{ACCOUNT}/{path}{'?' + comp if comp else ''}"
        if self._is_table:
            text = f"{fields['x-ms-date']}\n{resource}"
        else:
            named = sorted((name.lower(), value) for name, value in fields.items())
            lines = "".join(f"{name}:{value}\n" for name, value in named if name[:5] == "x-ms-")
            text = f"{method}\n\n{fields.get('Content-Type', '')}\n\n{lines}{resource}"
        return base64.b64encode(hmac.digest(KEY, text.encode(), hashlib.sha256)).decode()
