"""The requests of the queue benchmark: put, get, delete, signed with Shared Key.

A delete needs the receipt that its get was answered with, so nothing can be signed before the
run; the string to sign is built by hand and costs the client a few microseconds.
"""

import base64
import hashlib
import hmac
import re
from email.utils import formatdate
from urllib.parse import quote

ACCOUNT = "devstoreaccount1"
_KEY = base64.b64decode(
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
VERSION = "2025-11-05"
"""The newest that both servers know."""
QUEUE = "work"
TEXT_BYTES = 512

_MESSAGE = re.compile(
    rb"<MessageId>([^<]+)</MessageId>.*<PopReceipt>([^<]+)</PopReceipt>"
    rb".*<MessageText>([^<]*)</MessageText>",
    re.DOTALL,
)


class Requests:
    """Signed requests to one server; made anew now and then, since a date grows old."""

    def __init__(self, port: int) -> None:
        self._date = formatdate(usegmt=True)
        self._front = f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        self._mac = hmac.new(_KEY, digestmod=hashlib.sha256)
        self._get = self._request("GET", f"{QUEUE}/messages")

    def create_queue(self) -> bytes:
        return self._request("PUT", QUEUE)

    def put(self, number: int) -> bytes:
        text = f"{number:010}".ljust(TEXT_BYTES, "x")
        body = f"<QueueMessage><MessageText>{text}</MessageText></QueueMessage>"
        return self._request("POST", f"{QUEUE}/messages", body=body)

    def get(self) -> bytes:
        return self._get

    def delete(self, message_id: str, receipt: str) -> bytes:
        return self._request("DELETE", f"{QUEUE}/messages/{message_id}", ("popreceipt", receipt))

    def count(self) -> bytes:
        return self._request("GET", QUEUE, ("comp", "metadata"))

    def _request(
        self, method: str, path: str, option: tuple[str, str] | None = None, body: str = ""
    ) -> bytes:
        resource, query = f"/{ACCOUNT}/{ACCOUNT}/{path}", ""
        if option is not None:
            name, value = option
            resource += f"\n{name}:{value}"
            query = f"?{name}={quote(value, safe='')}"
        kind = "application/xml" if body else ""
        length = str(len(body)) if body else ""
        signed = (
            f"{method}\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n"
            f"x-ms-date:{self._date}\nx-ms-version:{VERSION}\n{resource}"
        )
        mac = self._mac.copy()
        mac.update(signed.encode())
        signature = base64.b64encode(mac.digest()).decode()
        described = f"Content-Type: {kind}\r\n" if body else ""
        head = (
            f"{method} /{ACCOUNT}/{path}{query} {self._front}x-ms-date: {self._date}\r\n"
            f"x-ms-version: {VERSION}\r\nAuthorization: SharedKey {ACCOUNT}:{signature}\r\n"
            f"{described}Content-Length: {len(body)}\r\n\r\n"
        )
        return (head + body).encode()


def read_message(body: bytes) -> tuple[str, str, bytes]:
    """Return identifier, receipt and text of the only message of an answer."""
    found = _MESSAGE.search(body)
    assert found is not None, body[:300]
    return found[1].decode(), found[2].decode(), found[3]
