"""What a stranger may send: the bytes of a request, signed or not, and tokens of any content.

Signatures are made here from the description of the protocol, never by the code under test.
"""

import base64
import hashlib
import hmac
import http.client
import json
import re
import socket
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import formatdate
from typing import NamedTuple
from urllib.parse import quote, urlencode

from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY

PATIENCE_SECONDS = 60
JSON = {"Content-Type": "application/json"}
VERSION = "2019-02-02"

Fields = Mapping[str, str]


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes
    is_closing: bool

    @property
    def told(self) -> str:
        """Status and error code; of a batch that was taken in, also those of its only part."""
        if self.headers.get("content-type", "").startswith("multipart/"):
            statuses = re.findall(rb"HTTP/1\.1 (\d{3})", self.body)
            codes = re.findall(rb'"code":"(\w+)"', self.body)
            return b" ".join([b"202", *statuses, *codes]).decode()
        return " ".join([str(self.status), *self._codes])

    @property
    def _codes(self) -> list[str]:
        if self.status < 400 or not self.body:
            return []
        if self.body.startswith(b"{"):
            return [json.loads(self.body)["odata.error"]["code"]]
        return re.findall(r"<m:code>(\w+)</m:code>", self.body.decode())


class Service(NamedTuple):
    """One account of a live server, as its owner knows it."""

    port: int
    account: str = DEVELOPMENT_ACCOUNT
    key: str = DEVELOPMENT_KEY

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def signed(
        self,
        method: str,
        target: str,
        headers: Fields | None = None,
        body: bytes | str = b"",
        *,
        date: str | None = None,
        key: str | None = None,
    ) -> bytes:
        """Return a request that is signed with Shared Key Lite, to a target below the account."""
        date = date or formatdate(usegmt=True)
        whole = f"/{self.account}{target}"
        mac = lite_signature(self.account, key or self.key, whole, date)
        credentials = {"x-ms-date": date, "Authorization": f"SharedKeyLite {self.account}:{mac}"}
        return self.unsigned(method, target, credentials | dict(headers or {}), body)

    def unsigned(
        self,
        method: str,
        target: str,
        headers: Fields | None = None,
        body: bytes | str = b"",
    ) -> bytes:
        content = body.encode() if isinstance(body, str) else body
        lengths = {"Content-Length": str(len(content))} if content else {}
        given = {"Host": self.host, "x-ms-version": VERSION} | lengths | dict(headers or {})
        head = f"{method} /{self.account}{target} HTTP/1.1\r\n"
        return (head + as_lines(given) + "\r\n").encode("latin-1") + content

    def exchange(self, data: bytes) -> Answer:
        """Send the bytes on a connection of their own and read one answer."""
        with socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS) as connection:
            connection.sendall(data)
            return read_answer(connection)

    def table_sas(self, table: str, **fields: str) -> str:
        """Return the query of a table SAS; it lives for an hour unless told otherwise."""
        return sign_table_sas(self.account, self.key, table, {"se": in_seconds(3600)} | fields)

    def account_sas(self, **fields: str) -> str:
        lasting = {"se": in_seconds(3600), "ss": "t", "srt": "sco", "sp": "rwdlacu"}
        return sign_account_sas(self.account, self.key, lasting | fields)


def as_lines(headers: Fields) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def read_answer(connection: socket.socket) -> Answer:
    response = http.client.HTTPResponse(connection)
    try:
        response.begin()
        body = response.read()
    finally:
        response.close()
    headers = {name.lower(): value for name, value in response.getheaders()}
    is_closing = headers.get("connection") == "close"
    return Answer(response.status, headers, body, is_closing)


def lite_signature(account: str, key: str, target: str, date: str) -> str:
    path, _, query = target.partition("?")
    comp = re.search(r"(?:^|&)comp=([^&]*)", query)
    return _mac(key, f"{date}\n/{account}{path}" + (f"?comp={comp[1]}" if comp else ""))


def sign_table_sas(account: str, key: str, table: str, fields: Fields) -> str:
    """Sign the fields that are given; `table` is named unless `tn` says otherwise."""
    given = {"sv": VERSION, "tn": table} | dict(fields)
    version = given["sv"]
    canonical = f"/{account}/{given['tn'].lower()}"
    if version >= "2015-02-21":
        canonical = f"/table{canonical}"
    front = [given.get(name, "") for name in ("sp", "st", "se")]
    since_2015 = [given.get(name, "") for name in ("sip", "spr")]
    keys = [given.get(name, "") for name in ("spk", "srk", "epk", "erk")]
    slots = [*front, canonical, given.get("si", "")]
    slots += [*(since_2015 if version >= "2015-04-05" else []), version, *keys]
    return urlencode({**given, "sig": _mac(key, "\n".join(slots))}, quote_via=quote)


def sign_account_sas(account: str, key: str, fields: Fields) -> str:
    given = {"sv": VERSION} | dict(fields)
    names = ["sp", "ss", "srt", "st", "se", "sip", "spr", "sv"]
    names += ["ses"] if given["sv"] >= "2020-12-06" else []
    text = "".join(f"{slot}\n" for slot in (account, *(given.get(name, "") for name in names)))
    return urlencode({**given, "sig": _mac(key, text)}, quote_via=quote)


def _mac(key: str, text: str) -> str:
    digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(digest).decode()


def in_seconds(seconds: float) -> str:
    """Return a time as tokens write it, counted from now."""
    return f"{datetime.fromtimestamp(time.time() + seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"


def a_batch(*parts: str, boundary: str = "batch_b") -> tuple[dict[str, str], bytes]:
    """Return headers and body of a batch of one change set with these requests."""
    lines = [f"--{boundary}", "Content-Type: multipart/mixed; boundary=changeset_c", ""]
    for part in parts:
        lines += ["--changeset_c", "Content-Type: application/http"]
        lines += ["Content-Transfer-Encoding: binary", "", part]
    lines += ["--changeset_c--", f"--{boundary}--", ""]
    media_type = {"Content-Type": f"multipart/mixed; boundary={boundary}"}
    return media_type, "\r\n".join(lines).encode()


def a_query_batch(part: str) -> tuple[dict[str, str], bytes]:
    """Return headers and body of a batch of one query, outside any change set."""
    lines = ["--batch_b", "Content-Type: application/http"]
    lines += ["Content-Transfer-Encoding: binary", "", part, "--batch_b--", ""]
    return {"Content-Type": "multipart/mixed; boundary=batch_b"}, "\r\n".join(lines).encode()


def a_part(method: str, target: str, body: object = None, headers: Fields | None = None) -> str:
    """Return one request inside a batch; its target is below the service root."""
    head = f"{method} {target} HTTP/1.1\r\n" + as_lines({**JSON, **(headers or {})})
    return f"{head}\r\n" + ("" if body is None else json.dumps(body))
