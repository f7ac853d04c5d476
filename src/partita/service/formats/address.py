"""Addresses: which account and resource a request names, and the addresses we print.

A path is percent-decoded once, then its OData literals are lexed: a key may hold any of
`,'()=` and so nothing is ever split on them. Everything here is pure and takes linear time.
Query strings and continuations, the other texts of an address, live here too.
"""

import binascii
import re
from collections.abc import Callable, Container
from functools import lru_cache
from urllib.parse import quote, unquote_to_bytes

import msgspec

from partita.errors import InvalidRequestError
from partita.tables import limits
from partita.tables.entity import EntityKey, check_key_in_address, check_table_name

QUERY_PAIRS_MAX = 100
CONTINUATION_CHARACTERS_MAX = 3 * limits.KEY_CHARACTERS_MAX // 3 * 4 + 16
"""A key of three bytes a character in base64, and room for the front."""
KEYS_IN_ADDRESS_MAX = 16
"""More named keys than this are not even counted: no resource has more than two."""

_SECONDARY = "-secondary"


class ServiceRoot(msgspec.Struct, frozen=True):
    """The account itself: service properties and statistics."""


class TableCollection(msgspec.Struct, frozen=True):
    """`Tables`: all tables of the account."""


class OneTable(msgspec.Struct, frozen=True):
    """`Tables('T')`. The name is unchecked: what no table can be called is only not found."""

    name: str


class EntitySet(msgspec.Struct, frozen=True):
    """`T` or `T()`: all entities of a table."""

    table: str


class OneEntity(msgspec.Struct, frozen=True):
    """`T(PartitionKey='..',RowKey='..')`."""

    table: str
    key: EntityKey


class Batch(msgspec.Struct, frozen=True):
    """`$batch`."""


class MetadataDocument(msgspec.Struct, frozen=True):
    """`$metadata`."""


Resource = (
    ServiceRoot | TableCollection | OneTable | EntitySet | OneEntity | Batch | MetadataDocument
)


class Target(msgspec.Struct, frozen=True):
    """Whom a request is addressed to."""

    account: str
    """Without `-secondary`; not yet known to exist."""
    is_secondary: bool
    root: str
    """What printed addresses start with: `http://127.0.0.1:10002/acct`, no slash at the end."""
    path: str
    """What follows the account, as sent; `parse_resource` reads it once it is known who asks."""


_HOST = re.compile(r"\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?|[A-Za-z0-9._-]{1,253}(?::[0-9]{1,5})?")
_IPV4 = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]{1,3}")
_KEY = r"([^'/\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff]*)"
_USUAL = re.compile(
    rf"/*([A-Za-z][A-Za-z0-9]{{2,62}})(?:\((?:PartitionKey='{_KEY}',RowKey='{_KEY}')?\))?/*"
)
_NAME = re.compile(r"[^(/]*")
_KEY_NAME = re.compile(r"\s*([A-Za-z]+)\s*=")
_BLANKS = re.compile(r"\s*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*")
_CONTINUATION = re.compile(r"1!([0-9]{1,4})!([A-Za-z0-9._-]*)")
_SURROGATES = re.compile("[\ud800-\udfff]")

_FIXED: dict[str, Resource] = {
    "": ServiceRoot(),
    "Tables": TableCollection(),
    "Tables()": TableCollection(),
    "$batch": Batch(),
    "$metadata": MetadataDocument(),
}


def locate(
    scheme: str, host: str, path: str, account_names: Container[str], service: str = "table"
) -> Target:
    """Find the account that a request is addressed to, in host style or in path style.

    Host style is `acct.table.…`, or any dotted name whose first label is a known account; in
    path style the first segment of the path names the account. `service` is the second label.
    """
    label, is_service_host = _host_form(host, service)
    if label and (is_service_host or label.removesuffix(_SECONDARY) in account_names):
        account, is_secondary = _without_suffix(label)
        return Target(account, is_secondary, f"{scheme}://{host}", path)
    named, _, rest = path.lstrip("/").partition("/")
    account, is_secondary, root = _account_in_path(scheme, host, named)
    if is_secondary:
        # In path style the Python SDK puts the secondary before the whole path of the primary.
        rest = rest.removeprefix(f"{account}/")
    return Target(account, is_secondary, root, rest)


def _without_suffix(named: str) -> tuple[str, bool]:
    account = named.removesuffix(_SECONDARY)
    return account, len(account) < len(named)


@lru_cache(maxsize=256)
def _account_in_path(scheme: str, host: str, named: str) -> tuple[str, bool, str]:
    _check_account_segment(named)
    return *_without_suffix(named), f"{scheme}://{host}/{named}"


@lru_cache(maxsize=256)
def _host_form(host: str, service: str) -> tuple[str, bool]:
    """Return the label that may be an account, and whether the service follows it."""
    if not _HOST.fullmatch(host):
        raise InvalidRequestError(
            "InvalidHeaderValue",
            "The value for one of the HTTP headers is not in the correct format.",
            hint="The Host header is missing or is no host name.",
        )
    name = host.partition(":")[0].lower()
    if name.startswith("[") or "." not in name or _IPV4.fullmatch(name):
        return "", False
    labels = name.split(".")
    return labels[0], labels[1] == service


def _check_account_segment(segment: str) -> None:
    # The segment goes into every address that we print, so it may hold nothing to escape.
    if not segment.replace("-", "").isalnum() or not segment.isascii():
        raise _syntax_error("The first segment of the path names the account.")


def parse_resource(path: str, account: str = "") -> Resource:
    """Read the path after the account; the account's name is only used in a message."""
    text = _decode_path(path, _syntax_error) if "%" in path else path
    if match := _USUAL.fullmatch(text):
        table, partition_key, row_key = match.groups()
        if len(table) != 6 or table.lower() != "tables":
            if partition_key is None:
                return EntitySet(table)
            if len(text) > limits.KEY_CHARACTERS_MAX:
                check_key_in_address(partition_key)
                check_key_in_address(row_key)
            return OneEntity(table, EntityKey(partition_key, row_key))
    return _parse_unusual(text.strip("/"), account)


def split_container(path: str) -> tuple[str, str]:
    """Split a path after the account into queue or container, and what follows; both decoded.

    What follows may hold slashes and begin with one: it is the whole name of a blob.
    """
    first, _, rest = path.removeprefix("/").partition("/")
    return decode_name(first), decode_name(rest)


def decode_name(text: str) -> str:
    """Decode the name of a queue, container or blob, or what follows it, once."""
    if "%" in text:
        return _decode_path(text, invalid_uri)
    if not text.isascii() and _SURROGATES.search(text):
        raise invalid_uri("The path is not UTF-8.")
    return text


def invalid_uri(hint: str) -> InvalidRequestError:
    """Return the refusal of a path that names nothing."""
    return InvalidRequestError(
        "InvalidUri",
        "The requested URI does not represent any resource on the server.",
        hint=hint,
    )


def _decode_path(path: str, refusal: Callable[[str], InvalidRequestError]) -> str:
    if _BAD_ESCAPE.search(path):
        raise refusal("A percent sign stands for itself only as %25.")
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeError:
        raise refusal("The path is not UTF-8.") from None


def _parse_unusual(text: str, account: str) -> Resource:
    if fixed := _FIXED.get(text):
        return fixed
    if _SURROGATES.search(text):
        raise _syntax_error("The path is not UTF-8.")
    name, rest = _split_name(text)
    if rest.startswith("/"):
        return _parse_below(name, rest, account)
    if name == "Tables":
        return _one_table(rest, account)
    check_table_name(name)
    keys = _lex_keys(rest)
    if not keys:
        return EntitySet(name)
    return OneEntity(name, _entity_key(keys, account, name))


def _split_name(text: str) -> tuple[str, str]:
    match = _NAME.match(text)
    assert match is not None  # it may be empty, never absent
    return match[0], text[match.end() :]


def _parse_below(table: str, rest: str, account: str) -> Resource:
    """Read `T/more`: the service takes `T/Tables` for T, and `T/Tables('x')` for wrong keys."""
    check_table_name(table)
    _, keys_text = _split_name(rest.lstrip("/"))
    if not keys_text.startswith("("):
        return EntitySet(table)
    keys = _lex_keys(keys_text)
    if keys and len(keys) != 2:
        raise _wrong_key_count(account, table)
    raise _syntax_error("An entity has no addresses below it.")


def _one_table(keys_text: str, account: str) -> Resource:
    keys = _lex_keys(keys_text)
    if not keys:
        return TableCollection()
    if len(keys) > 1:
        raise _wrong_key_count(account, "Tables")
    key_name, value = keys[0]
    if key_name not in {"", "TableName"}:
        raise _syntax_error("A table is addressed as Tables('name').")
    return OneTable(value)


def _entity_key(keys: list[tuple[str, str]], account: str, table: str) -> EntityKey:
    if len(keys) != 2:
        raise _wrong_key_count(account, table)
    values = dict(keys)
    if values.keys() != {"PartitionKey", "RowKey"}:
        raise _syntax_error("The keys of an entity are PartitionKey and RowKey, each once.")
    return EntityKey(
        check_key_in_address(values["PartitionKey"]), check_key_in_address(values["RowKey"])
    )


def _lex_keys(text: str) -> list[tuple[str, str]]:
    """Read `(name='literal',…)` to its end; an unnamed key has the name ''."""
    if not text:
        return []
    end = _skip_blanks(text, 1)
    if text.startswith(")", end):
        _check_end(text, end)
        return []
    keys: list[tuple[str, str]] = []
    position = 1
    while len(keys) < KEYS_IN_ADDRESS_MAX:
        name = ""
        if match := _KEY_NAME.match(text, position):
            name, position = match[1], match.end()
        value, position = _lex_literal(text, _skip_blanks(text, position))
        keys.append((name, value))
        position = _skip_blanks(text, position)
        if not text.startswith(",", position):
            break
        position += 1
    _check_end(text, position)
    return keys


def _lex_literal(text: str, start: int) -> tuple[str, int]:
    """Read a quoted text in which two quotes stand for one; return it and where it ends."""
    if not text.startswith("'", start):
        raise _syntax_error("A key is a text in single quotes.")
    position = start + 1
    while True:
        position = text.find("'", position)
        if position < 0:
            raise _syntax_error("A quote is not closed; inside a key it is written twice.")
        if not text.startswith("''", position):
            return text[start + 1 : position].replace("''", "'"), position + 1
        position += 2


def _skip_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return position if match is None else match.end()


def _check_end(text: str, position: int) -> None:
    if text[position:] != ")":
        raise _syntax_error("The keys end in one closing parenthesis.")


def _syntax_error(hint: str) -> InvalidRequestError:
    return InvalidRequestError("InvalidInput", "Bad Request - Error in query syntax.", hint=hint)


def _wrong_key_count(account: str, table: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidInput",
        "The number of keys specified in the URI does not match number of key properties for the"
        f" resource '{account}.{table}'.",
        facts={"table": table},
    )


def _invalid_input(hint: str) -> InvalidRequestError:
    return InvalidRequestError("InvalidInput", "One of the request inputs is not valid.", hint=hint)


def parse_query(query: str) -> list[tuple[str, str]]:
    """Read a query string as forms do: `+` is a blank; order and repetition are kept."""
    if not query:
        return []
    if query.count("&") >= QUERY_PAIRS_MAX:
        raise _invalid_input("The query has too many options.")
    if not query.isascii() and _SURROGATES.search(query):
        raise _invalid_input("The query is not UTF-8.")
    is_plain = "%" not in query and "+" not in query
    pairs: list[tuple[str, str]] = []
    for piece in query.split("&"):
        name, _, value = piece.partition("=")
        if piece:
            pairs.append((name, value) if is_plain else (_decode_form(name), _decode_form(value)))
    return pairs


def _decode_form(text: str) -> str:
    text = text.replace("+", " ")
    if "%" not in text:
        return text
    try:
        return unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        raise _invalid_input("The query is not UTF-8.") from None


def table_url(root: str, table: str) -> str:
    """Print the address of a table."""
    return f"{root}/Tables('{_print_literal(table)}')"


def entity_url(root: str, table: str, key: tuple[str, str]) -> str:
    """Print the address of an entity, as Location and DataServiceId carry it."""
    return f"{root}/{edit_link(table, key)}"


def edit_link(table: str, key: tuple[str, str]) -> str:
    """Print the address of an entity relative to the root."""
    partition_key, row_key = key
    return (
        f"{table}(PartitionKey='{_print_literal(partition_key)}'"
        f",RowKey='{_print_literal(row_key)}')"
    )


def _print_literal(text: str) -> str:
    if _PLAIN.fullmatch(text):
        return text
    return quote(text.replace("'", "''"), safe="'")


def print_continuation(text: str) -> str:
    """Print a key as clients carry it to the next page: `1!<length>!<base64>`.

    The service writes `=` as `-`, so `-` cannot also be the `+` of base64 as in its URL-safe
    form: the end of `YWI-` would be ambiguous. `+` becomes `.` instead, and `/` becomes `_`.
    """
    encoded = binascii.b2a_base64(text.encode(), newline=False).decode()
    return f"1!{len(encoded)}!{encoded.translate(_TO_CONTINUATION)}"


def parse_continuation(text: str) -> str:
    """Read what `print_continuation` wrote, and nothing else."""
    if len(text) > CONTINUATION_CHARACTERS_MAX:
        raise _bad_continuation()
    match = _CONTINUATION.fullmatch(text)
    if match is None or len(match[2]) != int(match[1]):
        raise _bad_continuation()
    try:
        decoded = binascii.a2b_base64(match[2].translate(_FROM_CONTINUATION)).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise _bad_continuation() from None
    # base64 readers forgive stray bits and letters after the padding; what we print has none.
    if print_continuation(decoded) != text:
        raise _bad_continuation()
    return decoded


_TO_CONTINUATION = str.maketrans("+/=", "._-")
_FROM_CONTINUATION = str.maketrans("._-", "+/=")


def _bad_continuation() -> InvalidRequestError:
    return _invalid_input("A continuation is sent back exactly as it was received.")
