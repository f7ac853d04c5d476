"""Shared Key and Shared Key Lite: was this request signed with a key of the account?

The signature is made over the path as it was sent, so nothing is decoded before it is checked.
Every request is verified and no verdict is kept. A request may be replayed inside the window of
its date: the scheme has no nonce, and TLS is the cure.
"""

import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator, Sequence
from datetime import date
from functools import lru_cache
from urllib.parse import unquote

from partita.errors import ConfigurationError, InvalidRequestError, NotAuthorizedError
from partita.service.request import Request
from partita.tables.edm import TICKS_A_DAY, TICKS_A_SECOND

SKEW_SECONDS = 900
"""How far the date of a request may be from ours, both ways."""

_SHA256_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))

_SIGNED_HEADERS = frozenset({"authorization", "content-md5", "content-type", "date", "x-ms-date"})
_HTTP_DATE = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (\d\d) ([A-Z][a-z]{2}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT",
    re.ASCII,
)
_HTTP_DATE_CHARACTERS = 29
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_EPOCH_DAY = date(1970, 1, 1).toordinal()


class SigningKey:
    """One key of an account, ready to sign: HMAC-SHA256 with both of its halves already keyed."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        if len(secret) > _SHA256_BLOCK_BYTES:
            secret = hashlib.sha256(secret).digest()
        block = secret.ljust(_SHA256_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER_PAD))
        self._outer = hashlib.sha256(block.translate(_OUTER_PAD))

    @classmethod
    def from_base64(cls, text: str) -> "SigningKey":
        """Read a key as accounts and connection strings write it."""
        try:
            secret = binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            secret = b""
        if not secret:
            raise ConfigurationError(
                "InvalidAccountKey",
                "The account key is not valid base64.",
                hint="Copy the whole key, with the '=' signs at its end.",
            )
        return cls(secret)

    def signature(self, text: str | bytes) -> bytes:
        # surrogatepass: a text that no client could have signed must fail, not raise.
        message = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def verify(self, text: str | bytes, given_base64: str) -> bool:
        """Tell whether the signature is ours, in a time that does not depend on where it fails."""
        expected = self.signature(text)
        try:
            given = binascii.a2b_base64(given_base64, strict_mode=True)
        except ValueError:
            given = b""
        return hmac.compare_digest(expected, given)

    def __repr__(self) -> str:
        return "SigningKey(***)"


def authenticate(
    request: Request,
    account: str,
    keys: Sequence[SigningKey],
    now: int,
    skew_seconds: int | None = SKEW_SECONDS,
) -> None:
    """Raise unless the Authorization header was made with one of the keys.

    `account` is the account addressed, without `-secondary`. For an account that does not exist
    pass keys nobody has: answer and time are then those of a wrong signature. `skew_seconds`
    None accepts any date.
    """
    headers = request.headers
    if request.repeated and not _SIGNED_HEADERS.isdisjoint(request.repeated):
        raise InvalidRequestError(
            "InvalidHeaderValue",
            "The value for one of the HTTP headers is not in the correct format.",
            hint="A header that is signed was sent more than once.",
        )
    authorization = headers.get("authorization")
    if authorization is None:
        raise authentication_failed(hint="The request carries no Authorization header and no SAS.")
    scheme, _, credentials = authorization.partition(" ")
    name, _, given = credentials.partition(":")
    if scheme not in ("SharedKey", "SharedKeyLite") or not name or not given:
        raise malformed(hint="Expected 'SharedKey <account>:<signature>'.")
    sent_at = headers.get("x-ms-date") or headers.get("date") or ""
    _check_date(sent_at, now, skew_seconds)
    if name != account:
        raise authentication_failed(hint="The Authorization header names another account.")

    front = f"{sent_at}\n/{account}"
    if scheme == "SharedKey":
        md5, media_type = headers.get("content-md5", ""), headers.get("content-type", "")
        front = f"{request.method}\n{md5}\n{media_type}\n{front}"
    tail = _signed_query(request.query) if request.query else ""
    path = request.path or "/"
    for key in keys:
        if key.verify(front + path + tail, given):
            return
    for spelling in _other_spellings(path, account):
        for key in keys:
            if key.verify(front + spelling + tail, given):
                return
    raise authentication_failed(hint="The signature does not match the request.")


def authentication_failed(*, hint: str) -> NotAuthorizedError:
    """Return the refusal of whoever did not prove to be the account: one text for all reasons."""
    return NotAuthorizedError(
        "AuthenticationFailed",
        "Server failed to authenticate the request. Make sure the value of Authorization header"
        " is formed correctly including the signature.",
        hint=hint,
    )


def malformed(*, hint: str) -> NotAuthorizedError:
    """Return the refusal of credentials that are not in any form we know."""
    return NotAuthorizedError(
        "InvalidAuthenticationInfo",
        "The authentication information was not provided in the correct format. Verify the value"
        " of Authorization header.",
        hint=hint,
    )


def parse_http_date(text: str) -> int | None:
    """Find the ticks that an RFC 1123 date names. None if it names none."""
    return _ticks_of_http_date(text) if len(text) == _HTTP_DATE_CHARACTERS else None


@lru_cache(maxsize=64)
def _ticks_of_http_date(text: str) -> int | None:
    # Clients send the same second many times over, so the last few answers are kept.
    match = _HTTP_DATE.fullmatch(text)
    if match is None:
        return None
    day, month, year, hour, minute, second = match.groups()
    try:
        days = date(int(year), _MONTHS.get(month, 0), int(day)).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    hours, minutes, seconds = int(hour), int(minute), int(second)
    if hours > 23 or minutes > 59 or seconds > 59:
        return None
    return days * TICKS_A_DAY + (hours * 3600 + minutes * 60 + seconds) * TICKS_A_SECOND


def _check_date(text: str, now: int, skew_seconds: int | None) -> None:
    ticks = parse_http_date(text)
    if ticks is None:
        raise authentication_failed(hint="The request needs x-ms-date or Date in RFC 1123 form.")
    if skew_seconds is not None and abs(now - ticks) > skew_seconds * TICKS_A_SECOND:
        raise authentication_failed(
            hint=f"The date of the request is more than {skew_seconds} seconds from the server's."
        )


def _signed_query(query: str) -> str:
    values = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        # The name is decoded as the router will decode it: %63omp must not escape signing.
        if name == "comp" or ("%" in name and unquote(name) == "comp"):
            values.append(unquote(value))
    if len(values) > 1:
        raise InvalidRequestError(
            "InvalidQueryParameterValue",
            "Value for one of the query parameters specified in the request URI is invalid.",
            hint="comp is given more than once.",
        )
    return f"?comp={values[0]}" if values else ""


def _other_spellings(path: str, account: str) -> Iterator[str]:
    """List what a client may have signed for this path.

    Some clients and proxies re-quote after signing, and some sign a secondary's path as the
    primary's. Every spelling names the same resource.
    """
    paths = [path]
    secondary = f"/{account}-secondary"
    if path.startswith(secondary) and path[len(secondary) : len(secondary) + 1] in ("", "/"):
        below = path[len(secondary) :]
        paths.append(f"/{account}{below}")
        if below.startswith(f"/{account}/"):
            paths.append(below)  # the Python SDK signs before it turns to the secondary
    seen = {path}
    for one in paths:
        plain = one.replace("%27", "'")
        for spelling in (one, plain, plain.replace("'", "%27")):
            if spelling not in seen:
                seen.add(spelling)
                yield spelling
