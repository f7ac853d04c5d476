"""Texts of addresses that the services share: names in paths, query strings, continuations. Pure.

A text is percent-decoded once. Everything takes linear time.
"""

import binascii
import re
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from partita.errors import InvalidRequestError
from partita.refusals import invalid_input
from partita.tables import limits

QUERY_PAIRS_MAX = 100
CONTINUATION_CHARACTERS_MAX = 3 * limits.KEY_CHARACTERS_MAX // 3 * 4 + 16
"""A key with three bytes per character in base64, and room for the prefix."""

_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_CONTINUATION = re.compile(r"1!([0-9]{1,4})!([A-Za-z0-9._-]*)")
SURROGATES = re.compile("[\ud800-\udfff]")


def split_container(path: str) -> tuple[str, str]:
    """Split a path after the account into queue or container, and the rest; both decoded.

    The rest is the complete name of a blob: it may contain slashes and start with one.
    """
    first, _, rest = path.removeprefix("/").partition("/")
    return decode_name(first), decode_name(rest)


def decode_name(text: str) -> str:
    """Percent-decode a name, or the rest of a path, once."""
    if "%" in text:
        return decode_path(text, invalid_uri)
    if not text.isascii() and SURROGATES.search(text):
        raise invalid_uri("The path is not UTF-8.")
    return text


def invalid_uri(hint: str) -> InvalidRequestError:
    """Return the refusal of a path that does not name a resource."""
    return InvalidRequestError(
        "InvalidUri",
        "The requested URI does not represent any resource on the server.",
        hint=hint,
    )


def decode_path(path: str, refusal: Callable[[str], InvalidRequestError]) -> str:
    """Percent-decode a path once, or raise the refusal of its service."""
    if _BAD_ESCAPE.search(path):
        raise refusal("Write a percent sign as %25.")
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeError:
        raise refusal("The path is not UTF-8.") from None


def parse_query(query: str) -> list[tuple[str, str]]:
    """Parse a query string as a form: `+` is a blank; order and repetition are kept."""
    if not query:
        return []
    if query.count("&") >= QUERY_PAIRS_MAX:
        raise invalid_input(InvalidRequestError, "Use fewer query options.")
    if not query.isascii() and SURROGATES.search(query):
        raise invalid_input(InvalidRequestError, "The query is not UTF-8.")
    is_plain = "%" not in query and "+" not in query
    pairs: list[tuple[str, str]] = []
    for piece in query.split("&"):
        name, _, value = piece.partition("=")
        if piece:
            pairs.append((name, value) if is_plain else (_decode_form(name), _decode_form(value)))
    return pairs


def _decode_form(text: str) -> str:
    text = text.replace("+", " ")
    if "%" in text:
        # Most of the escapes that clients send; all of an escaped percent sign remains.
        plain = text.replace("%20", " ").replace("%27", "'").replace("%24", "$")
        if "%" not in plain:
            return plain
    else:
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise invalid_input(InvalidRequestError, "The query is not UTF-8.") from None


def print_continuation(text: str) -> str:
    """Print a key as clients send it to get the next page: `1!<length>!<base64>`.

    The service writes `=` as `-`, so `-` cannot also be the `+` of base64 as in its URL-safe
    form: the end of `YWI-` would be ambiguous. `+` becomes `.` instead, and `/` becomes `_`.
    """
    encoded = binascii.b2a_base64(text.encode(), newline=False).decode()
    return f"1!{len(encoded)}!{encoded.translate(_TO_CONTINUATION)}"


def parse_continuation(text: str) -> str:
    """Parse a text of `print_continuation`; refuse any other."""
    if len(text) > CONTINUATION_CHARACTERS_MAX:
        raise _bad_continuation()
    match = _CONTINUATION.fullmatch(text)
    if match is None or len(match[2]) != int(match[1]):
        raise _bad_continuation()
    try:
        decoded = binascii.a2b_base64(match[2].translate(_FROM_CONTINUATION)).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _bad_continuation() from None
    # base64 decoders accept stray bits and letters after the padding; the printed form has none.
    if print_continuation(decoded) != text:
        raise _bad_continuation()
    return decoded


_TO_CONTINUATION = str.maketrans("+/=", "._-")
_FROM_CONTINUATION = str.maketrans("._-", "+/=")


def _bad_continuation() -> InvalidRequestError:
    return invalid_input(InvalidRequestError, "Send the continuation exactly as it was received.")
