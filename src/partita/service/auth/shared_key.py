"""Shared Key and Shared Key Lite: verification of the signature of a request.

The signature covers the path as it was sent, so nothing is decoded before it is checked. Every
request is verified; results are not cached. A request can be replayed within the permitted skew
of its date, because the scheme has no nonce: use TLS to prevent that.
"""

import binascii
import hashlib
import hmac
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache
from urllib.parse import unquote

from partita.errors import ConfigurationError, NotAuthorizedError
from partita.refusals import invalid_header, invalid_parameter
from partita.service.http.request import Request
from partita.ticks import TICKS_PER_DAY, TICKS_PER_SECOND

SKEW_SECONDS = 900
"""How far the date of a request may differ from the server's, in both directions."""

_SHA256_BLOCK_BYTES = 64
_INNER_PAD = bytes(byte ^ 0x36 for byte in range(256))
_OUTER_PAD = bytes(byte ^ 0x5C for byte in range(256))

_SLOTS = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type"),
    *("date", "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)
"""The headers that queues and blobs sign besides their own, in their order."""
_LITE_SLOTS = ("content-md5", "content-type", "date")
_LENGTH_SLOT = 3
_EMPTY_HEADERS_VERSION = "2016-05-31"
"""The first version that signs a header without a value."""
_SIGNED_HEADERS = frozenset({"authorization", "x-ms-date", *_SLOTS} - {"if-match", "if-none-match"})
"""They must occur only once: of two values it is unknown which one was signed."""
_WEIGHTS = {
    character: weight
    for weight, both in enumerate(
        (*"!#$%&*.^_`|~+", *"0123456789", *(a + a.upper() for a in "abcdefghijklmnopqrstuvwxyz"))
    )
    for character in both
}
_MINOR_WEIGHTS = {"'": 1, "-": 2}
"""Characters that are ignored when names are sorted, except between equal names."""
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
    """One key of an account, prepared for signing: HMAC-SHA256 with both inner states computed."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        if len(secret) > _SHA256_BLOCK_BYTES:
            secret = hashlib.sha256(secret).digest()
        block = secret.ljust(_SHA256_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha256(block.translate(_INNER_PAD))
        self._outer = hashlib.sha256(block.translate(_OUTER_PAD))

    @classmethod
    def from_base64(cls, text: str) -> "SigningKey":
        """Parse a key as connection strings contain it."""
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
        # surrogatepass: a text that cannot be signed must fail verification, not raise.
        message = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        inner = self._inner.copy()
        inner.update(message)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return outer.digest()

    def verify(self, text: str | bytes, given_base64: str) -> bool:
        """Return whether the signature matches, in constant time."""
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
    service: str = "t",
) -> None:
    """Raise unless the Authorization header was made with one of the keys.

    `account` is the addressed account, without `-secondary`. For an unknown account pass a
    random key: answer and time are then those of a wrong signature. `skew_seconds` None accepts
    any date.
    """
    headers = request.headers
    if request.repeated and not _SIGNED_HEADERS.isdisjoint(request.repeated):
        raise invalid_header(hint="Send each signed header only once.")
    authorization = headers.get("authorization")
    if authorization is None:
        raise authentication_failed(hint="Send an Authorization header or a SAS.")
    scheme, _, credentials = authorization.partition(" ")
    name, _, given = credentials.partition(":")
    if scheme not in ("SharedKey", "SharedKeyLite") or not name or not given:
        raise malformed(hint="Send 'SharedKey <account>:<signature>'.")
    _check_date(headers.get("x-ms-date") or headers.get("date") or "", now, skew_seconds)
    if name != account:
        raise authentication_failed(hint="The Authorization header names another account.")

    is_lite = scheme == "SharedKeyLite"
    text = string_to_sign(request, account, service, is_lite=is_lite)
    for key in keys:
        if key.verify(text, given):
            return
    for text in _other_texts(request, account, service, is_lite=is_lite):
        for key in keys:
            if key.verify(text, given):
                return
    raise authentication_failed(hint="The signature does not match the request.")


def string_to_sign(  # noqa: PLR0913 - the ways in which clients differ, each by its name
    request: Request,
    account: str,
    service: str = "t",
    *,
    is_lite: bool = False,
    path: str | None = None,
    is_ordinal: bool = False,
    zero: str = "",
) -> str:
    """Return the string to sign of a request.

    `is_ordinal` sorts headers by their bytes, `zero` is the length of an empty body as old
    clients write it.
    """
    headers = request.headers
    resource = f"/{account}{path or request.path or '/'}"
    if service == "t":
        if request.query:
            resource += _signed_comp(request.query)
        sent_at = headers.get("x-ms-date") or headers.get("date") or ""
        if is_lite:
            return f"{sent_at}\n{resource}"
        md5, media_type = headers.get("content-md5", ""), headers.get("content-type", "")
        return f"{request.method}\n{md5}\n{media_type}\n{sent_at}\n{resource}"
    names = _LITE_SLOTS if is_lite else _SLOTS
    slots = [request.method, *[headers.get(name, "") for name in names]]
    if "x-ms-date" in headers:
        slots[names.index("date") + 1] = ""
    if not is_lite and slots[_LENGTH_SLOT] == "0":
        slots[_LENGTH_SLOT] = zero
    query = _signed_comp(request.query) if is_lite else _signed_query(request.query)
    front = "\n".join(slots)
    return f"{front}\n{_signed_headers(headers, is_ordinal=is_ordinal)}{resource}{query}"


def _other_texts(request: Request, account: str, service: str, *, is_lite: bool) -> Iterator[str]:
    """List other strings that a client may have signed for this request; all are equivalent."""
    path = request.path or "/"
    paths = [path, *_other_spellings(path, account)]
    if service == "t":
        for spelling in paths[1:]:
            yield string_to_sign(request, account, service, is_lite=is_lite, path=spelling)
        return
    own = [name for name in request.headers if name.startswith("x-ms-")]
    orders = (False, True) if sorted(own) != sorted(own, key=_collation) else (False,)
    zeros = ("", "0") if request.headers.get("content-length") == "0" and not is_lite else ("",)
    for spelling, is_ordinal, zero in itertools.product(paths, orders, zeros):
        yield string_to_sign(
            request,
            account,
            service,
            is_lite=is_lite,
            path=spelling,
            is_ordinal=is_ordinal,
            zero=zero,
        )


def _signed_headers(headers: Mapping[str, str], *, is_ordinal: bool) -> str:
    names = [name for name in headers if name.startswith("x-ms-")]
    names.sort(key=None if is_ordinal else _collation)
    lines = [f"{name}:{headers[name]}\n" for name in names]
    # The parts of a batch have no version header: they use that of the batch.
    version = headers.get("x-ms-version", _EMPTY_HEADERS_VERSION)
    if "" in headers.values() and version < _EMPTY_HEADERS_VERSION:
        lines = [line for line in lines if not line.endswith(":\n")]
    return "".join(lines)


@lru_cache(maxsize=1024)
def _collation(name: str) -> tuple[list[int], list[int]]:
    """Return the sort key of a header name in the order of the service: words before hyphens."""
    letters = [_WEIGHTS[character] for character in name if character in _WEIGHTS]
    return letters, [_MINOR_WEIGHTS.get(character, 0) for character in name]


def _signed_query(query: str) -> str:
    if not query:
        return ""
    values: dict[str, list[str]] = {}
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if part:
            values.setdefault(unquote(name).lower(), []).append(unquote(value))
    if "%0A" in query.upper():
        raise invalid_parameter(hint="Send query parameters without line feeds.")
    return "".join(f"\n{name}:{','.join(sorted(values[name]))}" for name in sorted(values))


def authentication_failed(*, hint: str, setting: str = "") -> NotAuthorizedError:
    """Return the refusal of a wrong credential: one text for all reasons."""
    return NotAuthorizedError(
        "AuthenticationFailed",
        "Server failed to authenticate the request. Make sure the value of Authorization header"
        " is formed correctly including the signature.",
        hint=hint,
        setting=setting,
    )


def malformed(*, hint: str) -> NotAuthorizedError:
    """Return the refusal of credentials of an unknown form."""
    return NotAuthorizedError(
        "InvalidAuthenticationInfo",
        "The authentication information was not provided in the correct format. Verify the value"
        " of Authorization header.",
        hint=hint,
    )


def parse_http_date(text: str) -> int | None:
    """Parse an RFC 1123 date into ticks; None if it is invalid."""
    return _ticks_of_http_date(text) if len(text) == _HTTP_DATE_CHARACTERS else None


@lru_cache(maxsize=64)
def _ticks_of_http_date(text: str) -> int | None:
    # Clients send the same second many times, so recent results are cached.
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
    return days * TICKS_PER_DAY + (hours * 3600 + minutes * 60 + seconds) * TICKS_PER_SECOND


def _check_date(text: str, now: int, skew_seconds: int | None) -> None:
    ticks = parse_http_date(text)
    if ticks is None:
        raise authentication_failed(hint="Send x-ms-date or Date in RFC 1123 format.")
    if skew_seconds is not None and abs(now - ticks) > skew_seconds * TICKS_PER_SECOND:
        raise authentication_failed(
            hint=f"The date of the request is more than {skew_seconds} seconds from the server's."
        )


def _signed_comp(query: str) -> str:
    values = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        # The name is decoded as the service decodes it: %63omp and Comp are signed as comp.
        if name == "comp" or unquote(name).lower() == "comp":
            values.append(unquote(value))
    if len(values) > 1:
        raise invalid_parameter(hint="Send comp only once.")
    return f"?comp={values[0]}" if values else ""


def _other_spellings(path: str, account: str) -> Iterator[str]:
    """List the spellings of this path that a client may have signed.

    Some clients and proxies change the escaping after signing, and some sign the path of the
    primary for the secondary. Every spelling names the same resource.
    """
    paths = [path]
    secondary = f"/{account}-secondary"
    if path.startswith(secondary) and path[len(secondary) : len(secondary) + 1] in ("", "/"):
        below = path[len(secondary) :]
        paths.append(f"/{account}{below}")
        if below.startswith(f"/{account}/"):
            paths.append(below)  # the Python SDK signs before it changes the host to the secondary
    seen = {path}
    for one in paths:
        plain = one.replace("%27", "'")
        for spelling in (one, plain, plain.replace("'", "%27")):
            if spelling not in seen:
                seen.add(spelling)
                yield spelling
