"""The table protocol as values: Request → Call, and what an outcome looks like. No I/O.

A call says what it needs (`needs`), so that authorisation asks one question for every
operation. Codes and texts are those of the service.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

from partita.errors import InvalidKeyError, InvalidRequestError, NotSupportedError
from partita.service.auth.sas import (
    ADD,
    CONTAINER,
    CREATE,
    DELETE,
    LIST,
    OBJECT,
    READ,
    SERVICE,
    UPDATE,
    UPSERT,
    WRITE,
    Need,
)
from partita.service.formats.address import (
    Batch,
    EntitySet,
    MetadataDocument,
    OneEntity,
    OneTable,
    Resource,
    ServiceRoot,
    TableCollection,
    parse_continuation,
)
from partita.service.http.request import Request
from partita.service.tables.render import Level
from partita.tables import limits
from partita.tables.entity import EntityKey, check_table_name, parse_body, parse_object
from partita.tables.filters import Filter, parse, parse_table_filter
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

NO_CONTENT = "return-no-content"
CONTENT = "return-content"


class QueryTables(msgspec.Struct, frozen=True, gc=False):
    filter: Filter | None
    top: int
    start: str
    level: Level

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, LIST),)


class GetTable(msgspec.Struct, frozen=True, gc=False):
    name: str
    level: Level

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, LIST),)


class CreateTable(msgspec.Struct, frozen=True, gc=False):
    name: str
    level: Level
    preference: str | None

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, CREATE),)


class DeleteTable(msgspec.Struct, frozen=True, gc=False):
    name: str

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, DELETE),)


class GetPolicies(msgspec.Struct, frozen=True, gc=False):
    table: str

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, READ, by_key_only=True),)


class SetPolicies(msgspec.Struct, frozen=True, gc=False):
    table: str
    body: bytes

    def needs(self) -> Sequence[Need]:
        return (Need(CONTAINER, WRITE, by_key_only=True),)


class GetProperties(msgspec.Struct, frozen=True, gc=False):
    def needs(self) -> Sequence[Need]:
        return (Need(SERVICE, READ),)


class SetProperties(msgspec.Struct, frozen=True, gc=False):
    body: bytes

    def needs(self) -> Sequence[Need]:
        return (Need(SERVICE, WRITE),)


class GetStatistics(msgspec.Struct, frozen=True, gc=False):
    def needs(self) -> Sequence[Need]:
        return (Need(SERVICE, READ),)


class QueryEntities(msgspec.Struct, frozen=True, gc=False):
    table: str
    filter: Filter | None
    select: tuple[str, ...] | None
    top: int
    start: EntityKey | None
    level: Level

    def needs(self) -> Sequence[Need]:
        return (Need(OBJECT, READ, self.table),)


class GetEntity(msgspec.Struct, frozen=True, gc=False):
    table: str
    key: EntityKey
    select: tuple[str, ...] | None
    level: Level

    def needs(self) -> Sequence[Need]:
        return (Need(OBJECT, READ, self.table, self.key),)


class Change(msgspec.Struct, frozen=True, gc=False):
    """One write of one entity, alone or in a batch."""

    table: str
    operation: Operation
    level: Level
    preference: str | None = None
    content_id: str | None = None

    def needs(self) -> Sequence[Need]:
        permissions = _PERMISSIONS[type(self.operation)]
        return (Need(OBJECT, permissions, self.table, self.operation.key),)


_PERMISSIONS: dict[type, tuple[str, ...]] = {
    Insert: ADD,
    Replace: UPDATE,
    Merge: UPDATE,
    InsertOrReplace: UPSERT,
    InsertOrMerge: UPSERT,
    Delete: DELETE,
}

Call = (
    QueryTables
    | GetTable
    | CreateTable
    | DeleteTable
    | GetPolicies
    | SetPolicies
    | GetProperties
    | SetProperties
    | GetStatistics
    | QueryEntities
    | GetEntity
    | Change
)

WRITES = (CreateTable, DeleteTable, SetPolicies, SetProperties, Change)

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


def is_xml(parameters: Mapping[str, str]) -> bool:
    """Tell whether a request is for one of the XML endpoints, before it is understood."""
    return "comp" in parameters


def options_of(pairs: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the query options by name; an option of ours given twice is refused."""
    options: dict[str, str] = {}
    for name, value in pairs:
        if name in options and name in _SINGLE_OPTIONS:
            raise _invalid_parameter()
        options[name] = value
    return options


def decode(request: Request, resource: Resource, options: Mapping[str, str]) -> Call:
    """Return what a request asks for. `$batch` is not a call: its parts are."""
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
                return DeleteTable(name)
        case ServiceRoot():
            return _decode_service(request, method, options)
        case MetadataDocument():
            raise NotSupportedError(
                "NotImplemented",
                "The requested operation is not implemented on the specified resource.",
            )
        case Batch():
            _refuse_comp(options)
    raise _method_not_allowed()


def _decode_entity(
    request: Request, method: str, table: str, key: EntityKey, options: Mapping[str, str]
) -> Call:
    if method == "GET" and not options:
        return GetEntity(table, key, None, _level_of(request.headers.get("accept", "")))
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
            raise InvalidRequestError(
                "MissingRequiredHeader",
                "An HTTP header that's mandatory for this request is not specified.",
                hint="A delete needs If-Match: an etag, or * for any version.",
            )
        return Change(table, Delete(key, etag), level, content_id=content_id_of(request))
    check_media_type(request)
    properties = parse_body(request.body, is_insert=False).properties
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
    check_table_name(table)
    if "comp" in options:
        return _decode_policies(request, method, table, options)
    _refuse_comp(options)
    if method == "GET":
        _refuse_unsupported(options)
        return QueryEntities(
            table,
            parse(options.get("$filter", "")),
            select_of(options),
            top_of(options),
            start_of(options),
            level_of(request, options),
        )
    if method != "POST":
        raise _method_not_allowed()
    check_media_type(request)
    body = parse_body(request.body)
    if body.partition_key is None or body.row_key is None:
        raise InvalidKeyError(
            "PropertiesNeedValue",
            "The values are not specified for all properties in the entity.",
            facts={"table": table},
            hint="An insert needs PartitionKey and RowKey.",
        )
    key = EntityKey(body.partition_key, body.row_key)
    return Change(
        table,
        Insert(key, body.properties),
        level_of(request, options),
        preference_of(request),
        content_id_of(request),
    )


def _decode_policies(request: Request, method: str, table: str, options: Mapping[str, str]) -> Call:
    if options["comp"] != "acl" or "restype" in options:
        raise _invalid_parameter()
    if method == "GET":
        return GetPolicies(table)
    if method == "PUT":
        return SetPolicies(table, request.body)
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
        return GetProperties()
    if asked == ("service", "properties") and method == "PUT":
        return SetProperties(request.body)
    if asked == ("service", "stats") and method == "GET":
        return GetStatistics()
    if asked in {("service", "properties"), ("service", "stats")}:
        raise _method_not_allowed()
    raise _invalid_parameter()


# Headers and options


def _method_of(request: Request) -> str:
    """Return the method that a POST stands for."""
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
    """Return the etag that a write is conditional on; None: no condition at all."""
    if request.given("if-none-match") is not None:
        raise InvalidRequestError("InvalidInput", "One of the request inputs is not valid.")
    given = request.given("if-match")
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
    """Return what a part of a batch is called by its client, which wants to find it again."""
    return request.headers.get("content-id")


def preference_of(request: Request) -> str | None:
    asked = request.headers.get("prefer")
    return asked if asked in (NO_CONTENT, CONTENT) else None


def level_of(request: Request, options: Mapping[str, str]) -> Level:
    """Return the metadata level of the answer; `$format` rules over Accept."""
    return _level_of(options.get("$format") or request.headers.get("accept", ""))


@lru_cache(maxsize=256)
def _level_of(media_types: str) -> Level:
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
    """Refuse compressed bodies, whatever they hold: a small one could become any size."""
    if "content-encoding" in request.headers:
        raise InvalidRequestError(
            "MediaTypeNotSupported",
            "None of the provided media types are supported",
            hint="Send the body without Content-Encoding.",
        )


def check_media_type(request: Request) -> None:
    """Refuse bodies that are no JSON; a body without a type is taken for JSON."""
    check_encoding(request)
    media_type = request.headers.get("content-type", "application/json").lower()
    if media_type.startswith("application/json"):
        return
    if "atom" in media_type:
        raise InvalidRequestError("AtomFormatNotSupported", "Atom format is not supported.")
    raise InvalidRequestError(
        "MediaTypeNotSupported",
        "None of the provided media types are supported",
        hint="Send application/json.",
    )


def top_of(options: Mapping[str, str]) -> int:
    text = options.get("$top")
    if text is None or text == "":
        return limits.PAGE_ENTITIES_MAX
    if not _TOP.fullmatch(text) or int(text) > limits.PAGE_ENTITIES_MAX:
        raise InvalidRequestError(
            "InvalidInput",
            "One of the request inputs is not valid.",
            hint=f"$top is a number from 0 to {limits.PAGE_ENTITIES_MAX}.",
        )
    return int(text)


def select_of(options: Mapping[str, str]) -> tuple[str, ...] | None:
    text = options.get("$select")
    if text is None:
        return None
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if len(names) > limits.SELECT_NAMES_MAX:
        raise InvalidRequestError("InvalidInput", "One of the request inputs is not valid.")
    if "*" in names or names == ("",):
        return None
    if not all(name.replace("_", "a").isalnum() for name in names):
        raise InvalidRequestError(
            "InvalidInput",
            "One of the request inputs is not valid.",
            hint="$select is a list of property names.",
        )
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
        raise NotSupportedError(
            "NotImplemented",
            "The requested operation is not implemented on the specified resource.",
            hint="The table service has $filter, $select and $top.",
        )


def _refuse_comp(options: Mapping[str, str]) -> None:
    if "comp" in options or "restype" in options:
        raise _invalid_parameter()


def _invalid_parameter() -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidQueryParameterValue",
        "Value for one of the query parameters specified in the request URI is invalid.",
    )


def _method_not_allowed() -> InvalidRequestError:
    return InvalidRequestError(
        "MethodNotAllowed", "The requested method is not allowed on the specified resource."
    )
