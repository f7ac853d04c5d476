"""The requests of the blob benchmark, signed with Shared Key before or while they are sent."""

import base64
import hashlib
import hmac
from email.utils import formatdate

ACCOUNT = "devstoreaccount1"
_KEY = base64.b64decode(
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
VERSION = "2025-11-05"
"""The newest that both servers know."""
CONTAINER = "bench"


class Requests:
    """Signed requests to one server; made anew now and then, since a date grows old."""

    def __init__(self, port: int) -> None:
        self._date = formatdate(usegmt=True)
        self._front = f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        self._mac = hmac.new(_KEY, digestmod=hashlib.sha256)

    def create_container(self) -> bytes:
        return self._request("PUT", CONTAINER, {"restype": "container"})

    def put(self, name: str, content: bytes) -> bytes:
        kind = "application/octet-stream"
        return self._request("PUT", f"{CONTAINER}/{name}", {}, content, kind)

    def get(self, name: str) -> bytes:
        return self._request("GET", f"{CONTAINER}/{name}", {})

    def list(self, prefix: str, limit: int) -> bytes:
        options = {"restype": "container", "comp": "list", "prefix": prefix}
        return self._request("GET", CONTAINER, {**options, "maxresults": str(limit)})

    def _request(
        self, method: str, path: str, options: dict[str, str], body: bytes = b"", kind: str = ""
    ) -> bytes:
        length = str(len(body)) if body else ""
        blob_type = "x-ms-blob-type:BlockBlob\n" if body else ""
        resource = f"/{ACCOUNT}/{ACCOUNT}/{path}" + "".join(
            f"\n{name}:{options[name]}" for name in sorted(options)
        )
        signed = (
            f"{method}\n\n\n{length}\n\n{kind}\n\n\n\n\n\n\n"
            f"{blob_type}x-ms-date:{self._date}\nx-ms-version:{VERSION}\n{resource}"
        )
        mac = self._mac.copy()
        mac.update(signed.encode())
        signature = base64.b64encode(mac.digest()).decode()
        query = "&".join(f"{name}={value}" for name, value in options.items())
        described = f"Content-Type: {kind}\r\nx-ms-blob-type: BlockBlob\r\n" if body else ""
        head = (
            f"{method} /{ACCOUNT}/{path}{'?' if query else ''}{query} {self._front}"
            f"x-ms-date: {self._date}\r\nx-ms-version: {VERSION}\r\n"
            f"Authorization: SharedKey {ACCOUNT}:{signature}\r\n"
            f"{described}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body
