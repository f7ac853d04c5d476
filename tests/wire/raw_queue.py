"""HTTP to the queue service without an SDK: requests signed here, answers as they came."""

import base64
import hashlib
import hmac
import http.client
import re
from collections.abc import Mapping
from email.utils import formatdate
from urllib.parse import urlsplit
from xml.etree.ElementTree import Element, fromstring

from partita.service.accounts.account import DEVELOPMENT_KEY
from wire.raw import PATIENCE_SECONDS, Answer

VERSION = "2026-10-06"
MESSAGE = "<QueueMessage><MessageText>{}</MessageText></QueueMessage>"


class QueueAnswer(Answer):
    @property
    def xml(self) -> Element:
        return fromstring(self.body)

    @property
    def told(self) -> str:
        """Status, and the code of an error in the header and, if there is one, in the body."""
        code = {name.lower(): value for name, value in self.fields}.get("x-ms-error-code")
        if code is None:
            return str(self.status)
        if self.body:
            assert self.xml.findtext("Code") == code
        return f"{self.status} {code}"

    def elements(self) -> dict[str, str]:
        """Return what an error tells beside code and message."""
        return {
            child.tag: child.text or ""
            for child in self.xml
            if child.tag not in ("Code", "Message")
        }


class RawQueueClient:
    """Signs with Shared Key Lite of queues and sends what it is told, one connection a request."""

    def __init__(self, endpoint: str, *, key: str = DEVELOPMENT_KEY) -> None:
        parts = urlsplit(endpoint)
        self.root = endpoint
        self.host = parts.netloc
        self.account = parts.path.strip("/")
        self._key = base64.b64decode(key)

    def send(
        self,
        method: str,
        target: str,
        body: bytes | str = b"",
        headers: Mapping[str, str | None] | None = None,
        *,
        is_signed: bool = True,
        account: str | None = None,
    ) -> QueueAnswer:
        """Send to a target below the account, query included; a header of None is left out."""
        content = body.encode() if isinstance(body, str) else body
        whole = f"/{account or self.account}{target}"
        given = {"Host": self.host, "x-ms-version": VERSION, "x-ms-date": formatdate(usegmt=True)}
        merged = {**given, **(headers or {})}
        fields = {name: value for name, value in merged.items() if value is not None}
        if is_signed:
            fields["Authorization"] = self.authorization(method, whole, fields)
        if content or method in ("POST", "PUT"):
            fields["Content-Length"] = str(len(content))
        connection = http.client.HTTPConnection(self.host, timeout=PATIENCE_SECONDS)
        try:
            connection.putrequest(method, whole, skip_host=True, skip_accept_encoding=True)
            for name, value in fields.items():
                connection.putheader(name, value)
            connection.endheaders(content or None)
            response = connection.getresponse()
            return QueueAnswer(
                response.status, response.reason, response.getheaders(), response.read()
            )
        finally:
            connection.close()

    def put(self, queue: str, text: str = "x", query: str = "") -> QueueAnswer:
        return self.send("POST", f"/{queue}/messages{query}", MESSAGE.format(text))

    def authorization(self, method: str, whole: str, fields: Mapping[str, str]) -> str:
        """Return the Authorization header of a request with these headers."""
        named = {name.lower(): value.strip() for name, value in fields.items()}
        path, _, query = whole.partition("?")
        comp = re.search(r"(?:^|&)comp=([^&]*)", query)
        lines = [
            method,
            named.get("content-md5", ""),
            named.get("content-type", ""),
            "" if "x-ms-date" in named else named.get("date", ""),
            *(f"{name}:{named[name]}" for name in sorted(named) if name.startswith("x-ms-")),
            f"/{self.account}{path}" + (f"?comp={comp[1]}" if comp else ""),
        ]
        digest = hmac.digest(self._key, "\n".join(lines).encode(), hashlib.sha256)
        return f"SharedKeyLite {self.account}:{base64.b64encode(digest).decode()}"
