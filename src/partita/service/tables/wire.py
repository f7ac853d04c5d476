"""Request → Call for the table protocol: the resource that a path names, options, headers. Pure.

A path is percent-decoded once, then its OData literals are lexed: a key may contain any of
`,'()=`, so nothing is ever split on them. Codes and messages are those of the service.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from partita.errors import InvalidKeyError, InvalidRequestError
from partita.refusals import (
    invalid_input,
    invalid_parameter,
    invalid_syntax,
    missing_header,
    not_implemented,
    unsupported_media_type,
    written_by_analytics,
)
from partita.service.formats.address import SURROGATES, decode_path, parse_continuation
from partita.service.http.request import Request
from partita.service.tables.calls import (
    CONTENT,
    NO_CONTENT,
    Call,
    Change,
    CreateTable,
    DeleteTable,
    GetEntity,
    GetTable,
    GetTablePolicies,
    GetTableProperties,
    GetTableStatistics,
    Level,
    QueryEntities,
    QueryTables,
    SetTablePolicies,
    SetTableProperties,
)
from partita.tables import limits
from partita.tables.body_readers import READERS, count_body
from partita.tables.entity import (
    QUOTES_MAX,
    EntityBody,
    EntityKey,
    body_of,
    check_key_in_address,
    check_table_name,
    decode_flat,
    is_system_table,
    key_of_pair,
    parse_body,
    parse_object,
    refuse_repeated_members,
)
from partita.tables.filters import parse_table_filter
from partita.tables.operations import (
    ANY_ETAG,
    Delete,
    Insert,
    InsertOrMerge,
    InsertOrReplace,
    Merge,
    Operation,
    Replace,
)
from partita.tables.reading.usual_filters import read_filter
from partita.tables.system_tables import find_system_table

KEYS_IN_ADDRESS_MAX = 16
"""More named keys than this are refused without counting: no resource has more than two."""

_UNSUPPORTED_OPTIONS = frozenset(
    {"$orderby", "$skip", "$expand", "$inlinecount", "$count", "$skiptoken"}
)
_SINGLE_OPTIONS = frozenset(
    {"$filter", "$select", "$top", "$format", "comp", "restype"}
    | {"NextPartitionKey", "NextRowKey", "NextTableName"}
)
_TOP = re.compile(r"\d{1,9}", re.ASCII)
_ETAG = re.compile(r'W/"[^"]*"|"[^"]*"')
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "MERGE", "DELETE", "OPTIONS"})
_TUNNELLED = frozenset({"MERGE", "PATCH", "PUT", "DELETE"})
_KEY = r"([^'/\\#?\x00-\x1f\x7f-\x9f\ud800-\udfff]*)"
_USUAL = re.compile(
    rf"/*([A-Za-z][A-Za-z0-9]{{2,62}})(?:\((?:PartitionKey='{_KEY}',RowKey='{_KEY}')?\))?/*"
)
_NAME = re.compile(r"[^(/]*")
_KEY_NAME = re.compile(r"\s*([A-Za-z]+)\s*=")
_BLANKS = re.compile(r"\s*")


# Resources


class ServiceRoot(msgspec.Struct, frozen=True):
    """The account itself: service properties and statistics."""


class TableCollection(msgspec.Struct, frozen=True):
    """`Tables`: all tables of the account."""


class OneTable(msgspec.Struct, frozen=True):
    """`Tables('T')`. The name is not checked: an invalid name is not found."""

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

_FIXED: dict[str, Resource] = {
    "": ServiceRoot(),
    "Tables": TableCollection(),
    "Tables()": TableCollection(),
    "$batch": Batch(),
    "$metadata": MetadataDocument(),
}


def parse_resource(path: str, account: str = "") -> Resource:
    """Parse the path after the account; the account is only used in messages."""
    text = decode_path(path, _syntax_error) if "%" in path else path
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


def _parse_unusual(text: str, account: str) -> Resource:
    if fixed := _FIXED.get(text):
        return fixed
    if SURROGATES.search(text):
        raise _syntax_error("The path is not UTF-8.")
    name, rest = _split_name(text)
    if rest.startswith("/"):
        return _parse_below(name, rest, account)
    if name == "Tables":
        return _one_table(rest, account)
    name = _addressed(name)
    keys = _lex_keys(rest)
    if not keys:
        return EntitySet(name)
    return OneEntity(name, _entity_key(keys, account, name))


def _split_name(text: str) -> tuple[str, str]:
    match = _NAME.match(text)
    assert match is not None  # it may be empty, never absent
    return match[0], text[match.end() :]


def _addressed(name: str) -> str:
    """Return the table that a name in an address means."""
    return find_system_table(name) or check_table_name(name)


def _parse_below(table: str, rest: str, account: str) -> Resource:
    """Parse `T/more`: the service reads `T/Tables` as T, and `T/Tables('x')` as wrong keys."""
    table = _addressed(table)
    _, keys_text = _split_name(rest.lstrip("/"))
    if not keys_text.startswith("("):
        return EntitySet(table)
    keys = _lex_keys(keys_text)
    if keys and len(keys) != 2:
        raise _wrong_key_count(account, table)
    raise _syntax_error("Remove the path after the entity.")


def _one_table(keys_text: str, account: str) -> Resource:
    keys = _lex_keys(keys_text)
    if not keys:
        return TableCollection()
    if len(keys) > 1:
        raise _wrong_key_count(account, "Tables")
    key_name, value = keys[0]
    if key_name not in {"", "TableName"}:
        raise _syntax_error("Address a table as Tables('name').")
    return OneTable(value)


def _entity_key(keys: list[tuple[str, str]], account: str, table: str) -> EntityKey:
    if len(keys) != 2:
        raise _wrong_key_count(account, table)
    values = dict(keys)
    if values.keys() != {"PartitionKey", "RowKey"}:
        raise _syntax_error("Give PartitionKey and RowKey, each once.")
    return EntityKey(
        check_key_in_address(values["PartitionKey"]), check_key_in_address(values["RowKey"])
    )


def _lex_keys(text: str) -> list[tuple[str, str]]:
    """Parse `(name='literal',…)`; an unnamed key has the name ''."""
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
    """Parse a quoted text in which two quotes are one; return it and its end."""
    if not text.startswith("'", start):
        raise _syntax_error("Put the key into single quotes.")
    position = start + 1
    while True:
        position = text.find("'", position)
        if position < 0:
            raise _syntax_error("Close the quote; write a quote inside a key twice.")
        if not text.startswith("''", position):
            return text[start + 1 : position].replace("''", "'"), position + 1
        position += 2


def _skip_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return position if match is None else match.end()


def _check_end(text: str, position: int) -> None:
    if text[position:] != ")":
        raise _syntax_error("End the keys with one closing parenthesis.")


def _syntax_error(hint: str) -> InvalidRequestError:
    return invalid_syntax(InvalidRequestError, hint)


def _wrong_key_count(account: str, table: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidInput",
        "The number of keys specified in the URI does not match number of key properties for the"
        f" resource '{account}.{table}'.",
        facts={"table": table},
    )


def is_xml(parameters: Mapping[str, str]) -> bool:
    """Return whether a request is for one of the XML endpoints."""
    return "comp" in parameters


def options_of(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the query options by name; refuse a known option that is given twice."""
    options: dict[str, str] = {}
    for name, value in pairs:
        if name in options and name in _SINGLE_OPTIONS:
            raise invalid_parameter()
        options[name] = value
    return options


# Decoding


def decode(request: Request, resource: Resource, options: Mapping[str, str]) -> Call:
    """Decode a request. `$batch` is not a call: its parts are."""
    method = _method_of(request) if "x-http-method" in request.headers else request.method
    if method not in _METHODS:
        raise _method_not_allowed()
    match resource:
        case OneEntity(table, key):
            return _decode_entity(request, method, table, key, options)
        case EntitySet(table):
            return _decode_entity_set(request, method, table, options)
        case TableCollection():
            return _decode_tables(request, method, options)
        case OneTable(name):
            _refuse_comp(options)
            if method == "GET":
                return GetTable(name, level_of(request, options))
            if method == "DELETE":
                _refuse_system_table(find_system_table(name) or name)
                return DeleteTable(name)
        case ServiceRoot():
            return _decode_service(request, method, options)
        case MetadataDocument():
            raise not_implemented()
        case Batch():
            _refuse_comp(options)
    raise _method_not_allowed()


def _decode_entity(
    request: Request, method: str, table: str, key: EntityKey, options: Mapping[str, str]
) -> Call:
    if method == "GET" and not options:
        return GetEntity(table, key, None, media_level(request.headers.get("accept", "")))
    _refuse_comp(options)
    if method == "GET":
        _refuse_unsupported(options)
        return GetEntity(table, key, select_of(options), level_of(request, options))
    if method not in ("PUT", "PATCH", "MERGE", "DELETE"):
        raise _method_not_allowed()
    etag = condition_of(request)
    level = level_of(request, options)
    if method == "DELETE":
        if etag is None:
            raise missing_header("If-Match", "Send If-Match with an etag, or * for any version.")
        return Change(table, Delete(key, etag), level, content_id=content_id_of(request))
    _refuse_system_table(table)
    check_media_type(request)
    properties = read_body(request.body, is_insert=False).properties
    operation: Operation
    if method == "PUT":
        operation = (
            InsertOrReplace(key, properties) if etag is None else Replace(key, properties, etag)
        )
    else:
        operation = InsertOrMerge(key, properties) if etag is None else Merge(key, properties, etag)
    return Change(table, operation, level, preference_of(request), content_id_of(request))


def _decode_entity_set(
    request: Request, method: str, table: str, options: Mapping[str, str]
) -> Call:
    if not is_system_table(table):
        check_table_name(table)
    if "comp" in options:
        return _decode_policies(request, method, table, options)
    _refuse_comp(options)
    if method == "GET":
        _refuse_unsupported(options)
        return QueryEntities(
            table,
            read_filter(options["$filter"]) if "$filter" in options else None,
            select_of(options),
            top_of(options),
            start_of(options),
            level_of(request, options),
        )
    if method != "POST":
        raise _method_not_allowed()
    _refuse_system_table(table)
    check_media_type(request)
    return Change(
        table,
        _decode_insert(table, request.body),
        level_of(request, options),
        preference_of(request),
        content_id_of(request),
    )


def decode_like(other: Change, body: bytes) -> Change:
    """Decode an insert whose request has the same head as that of another insert."""
    return Change(
        other.table,
        _decode_insert(other.table, body),
        other.level,
        other.preference,
        other.content_id,
    )


def _decode_insert(table: str, content: bytes) -> Insert:
    body = read_body(content)
    if body.partition_key is None or body.row_key is None:
        raise InvalidKeyError(
            "PropertiesNeedValue",
            "The values are not specified for all properties in the entity.",
            facts={"table": table},
            hint="Give PartitionKey and RowKey in an insert.",
        )
    return Insert(key_of_pair((body.partition_key, body.row_key)), body.properties)


def read_body(body: bytes, *, is_insert: bool = True) -> EntityBody:
    """Return what `parse_body` returns, or raise what it raises; usually by a generated reader."""
    quotes = body.count(b'"')
    if quotes > QUOTES_MAX:
        return parse_body(body, is_insert=is_insert)
    try:
        members = decode_flat(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return parse_body(body, is_insert=is_insert)
    names = tuple(members)
    reader = READERS.get(names)
    if reader is not None:
        found = reader(members, quotes, is_insert)
        if found is not None:
            return found
    refuse_repeated_members(body, members, quotes)
    read = body_of(members, is_insert=is_insert)
    if reader is None:
        count_body(names, members)
    return read


def _refuse_system_table(table: str) -> None:
    if is_system_table(table):
        raise written_by_analytics("Read this table, or delete entities of it.")


def _decode_policies(request: Request, method: str, table: str, options: Mapping[str, str]) -> Call:
    if options["comp"] != "acl" or "restype" in options:
        raise invalid_parameter()
    if method == "GET":
        return GetTablePolicies(table)
    if method == "PUT":
        _refuse_system_table(table)
        return SetTablePolicies(table, request.body)
    raise _method_not_allowed()


def _decode_tables(request: Request, method: str, options: Mapping[str, str]) -> Call:
    _refuse_comp(options)
    if method == "GET":
        _refuse_unsupported(options)
        token = options.get("NextTableName")
        return QueryTables(
            parse_table_filter(options.get("$filter", "")),
            top_of(options),
            parse_continuation(token) if token else "",
            level_of(request, options),
        )
    if method != "POST":
        raise _method_not_allowed()
    check_media_type(request)
    name = parse_object(request.body).get("TableName")
    if not isinstance(name, str):
        raise InvalidRequestError(
            "PropertiesNeedValue", "The values are not specified for all properties in the entity."
        )
    return CreateTable(check_table_name(name), level_of(request, options), preference_of(request))


def _decode_service(request: Request, method: str, options: Mapping[str, str]) -> Call:
    asked = options.get("restype"), options.get("comp")
    if asked == ("service", "properties") and method == "GET":
        return GetTableProperties()
    if asked == ("service", "properties") and method == "PUT":
        return SetTableProperties(request.body)
    if asked == ("service", "stats") and method == "GET":
        return GetTableStatistics()
    if asked in {("service", "properties"), ("service", "stats")}:
        raise _method_not_allowed()
    raise invalid_parameter()


# Headers and options


def _method_of(request: Request) -> str:
    """Return the method that a POST tunnels."""
    tunnelled = request.headers["x-http-method"]
    if request.method != "POST":
        raise InvalidRequestError(
            "XMethodNotUsingPost", "The request uses X-HTTP-Method with a verb other than POST."
        )
    if "x-http-method" in request.repeated:
        raise InvalidRequestError(
            "XMethodIncorrectCount", "More than one X-HTTP-Method is specified."
        )
    if tunnelled not in _TUNNELLED:
        raise InvalidRequestError(
            "XMethodIncorrectValue", "The specified X-HTTP-Method is invalid."
        )
    return tunnelled


def condition_of(request: Request) -> str | None:
    """Return the etag in the condition of a write; None: no condition."""
    if request.headers.get("if-none-match"):  # an empty header counts as absent
        raise invalid_input(InvalidRequestError)
    given = request.headers.get("if-match") or None
    if given is None or given == ANY_ETAG:
        return given
    etag = given.strip()
    if not _ETAG.fullmatch(etag) or "if-match" in request.repeated:
        raise InvalidRequestError(
            "InvalidInput",
            f"The etag value '{etag[:200]}' specified in one of the request headers is not valid."
            " Please make sure only one etag value is specified and is valid.",
        )
    return etag.replace("%3a", "%3A")


def content_id_of(request: Request) -> str | None:
    """Return the Content-ID of a part of a batch, which the answer repeats."""
    return request.headers.get("content-id")


def preference_of(request: Request) -> str | None:
    asked = request.headers.get("prefer")
    return asked if asked in (NO_CONTENT, CONTENT) else None


def level_of(request: Request, options: Mapping[str, str]) -> Level:
    """Return the metadata level of the answer; `$format` takes precedence over Accept."""
    return media_level(options.get("$format") or request.headers.get("accept", ""))


@lru_cache(maxsize=256)
def media_level(media_types: str) -> Level:
    """Return the metadata level that an Accept header or `$format` asks for."""
    wanted = media_types.lower().replace(" ", "")
    if "atom" in wanted and "json" not in wanted:
        raise InvalidRequestError(
            "AtomFormatNotSupported",
            "Atom format is not supported.",
            hint="Ask for application/json.",
        )
    for level in (Level.NONE, Level.FULL):
        if f"odata={level.value}" in wanted:
            return level
    return Level.MINIMAL


def check_encoding(request: Request) -> None:
    """Refuse compressed bodies: a small one could expand to any size."""
    if "content-encoding" in request.headers:
        raise unsupported_media_type("Send the body without Content-Encoding.")


def check_media_type(request: Request) -> None:
    """Refuse bodies that are not JSON; a body without a type is treated as JSON."""
    check_encoding(request)
    media_type = request.headers.get("content-type", "application/json").lower()
    if media_type.startswith("application/json"):
        return
    if "atom" in media_type:
        raise InvalidRequestError("AtomFormatNotSupported", "Atom format is not supported.")
    raise unsupported_media_type("Send application/json.")


def top_of(options: Mapping[str, str]) -> int:
    text = options.get("$top")
    if text is None or text == "":
        return limits.PAGE_ENTITIES_MAX
    if not _TOP.fullmatch(text) or int(text) > limits.PAGE_ENTITIES_MAX:
        raise invalid_input(
            InvalidRequestError, f"Use a number from 0 to {limits.PAGE_ENTITIES_MAX} for $top."
        )
    return int(text)


def select_of(options: Mapping[str, str]) -> tuple[str, ...] | None:
    text = options.get("$select")
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(names) > limits.SELECT_NAMES_MAX:
        raise invalid_input(InvalidRequestError)
    if "*" in names or names == ("",):
        return None
    if not all(name.replace("_", "a").isalnum() for name in names):
        raise invalid_input(InvalidRequestError, "Use a list of property names for $select.")
    return names


def start_of(options: Mapping[str, str]) -> EntityKey | None:
    partition_key = options.get("NextPartitionKey")
    if not partition_key:
        return None
    row_key = options.get("NextRowKey")
    return EntityKey(
        parse_continuation(partition_key), parse_continuation(row_key) if row_key else ""
    )


def _refuse_unsupported(options: Mapping[str, str]) -> None:
    if not _UNSUPPORTED_OPTIONS.isdisjoint(options):
        raise not_implemented("Use only $filter, $select and $top.")


def _refuse_comp(options: Mapping[str, str]) -> None:
    if "comp" in options or "restype" in options:
        raise invalid_parameter()


def _method_not_allowed() -> InvalidRequestError:
    return InvalidRequestError(
        "MethodNotAllowed", "The requested method is not allowed on the specified resource."
    )
