"""The XML documents of the service: access policies, service properties, stats. No I/O.

Input is small and plain or it is refused: no document type, bounded bytes and elements, no
element twice where one is meant. Output goes through one escaping writer.
"""

import html
import re
from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element, ParseError

import msgspec
from defusedxml.ElementTree import fromstring

from partita.errors import FormatVersionError, InvalidRequestError, LimitExceededError
from partita.service.cors import CorsRule
from partita.service.http_wire import http_date
from partita.service.policy import check_policies, parse_time
from partita.tables import edm
from partita.tables.store import Policy

XML_BYTES_MAX = 256 * 1024
XML_ELEMENTS_MAX = 1000
CORS_RULES_MAX = 5
CORS_TEXT_BYTES_MAX = 2 * 1024
CORS_VALUE_CHARACTERS_MAX = 256
CORS_LITERAL_HEADERS_MAX = 64
CORS_PREFIXED_HEADERS_MAX = 2
CORS_AGE_SECONDS_MAX = 2**31 - 1
RETENTION_DAYS_MAX = 365

HOUR_AND_MINUTE_VERSION = "2013-08-15"
"""Older versions know one `Metrics` and no CORS."""

_ROOT_NAMES = ("Logging", "HourMetrics", "MinuteMetrics", "Cors")
_METHODS = frozenset({"DELETE", "GET", "HEAD", "MERGE", "POST", "OPTIONS", "PUT", "PATCH"})
_DECLARATION = '<?xml version="1.0" encoding="utf-8"?>'
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_DIGITS = re.compile(r"\d{1,10}", re.ASCII)


class Logging(msgspec.Struct, frozen=True, gc=False):
    """Which requests would be logged; kept and given back, not acted on."""

    read: bool = False
    write: bool = False
    delete: bool = False
    retention_days: int | None = None
    """None: no retention policy."""


class Metrics(msgspec.Struct, frozen=True, gc=False):
    """Which metrics would be gathered; kept and given back, not acted on."""

    enabled: bool = False
    include_apis: bool = False
    """Means something only where metrics are enabled."""
    retention_days: int | None = None


class ServiceProperties(msgspec.Struct, frozen=True, gc=False):
    """The settings of one service of an account."""

    logging: Logging = Logging()
    hour_metrics: Metrics = Metrics()
    minute_metrics: Metrics = Metrics()
    cors: tuple[CorsRule, ...] = ()


def encode(properties: ServiceProperties) -> bytes:
    """Return the form in which a store keeps service properties: JSON."""
    return msgspec.json.encode(properties)


def decode(stored: bytes) -> ServiceProperties:
    """Read what `encode` wrote."""
    try:
        return msgspec.json.decode(stored, type=ServiceProperties)
    except msgspec.DecodeError as error:
        raise FormatVersionError(
            "UnreadableServiceProperties", "The stored service properties cannot be read."
        ) from error


def parse_policies(body: bytes) -> list[Policy]:
    """Read the body of Set Table ACL; an empty one clears all policies."""
    if not body.strip():
        return []
    root = _parse(body, "SignedIdentifiers")
    policies = [_policy(child) for child in _children(root, "SignedIdentifier")]
    check_policies(policies)
    return policies


def _policy(element: Element) -> Policy:
    members = _members(element, ("Id", "AccessPolicy"))
    policy_id = _text(_required(members, "Id"))
    terms = members.get("AccessPolicy")
    if terms is None:
        return Policy(policy_id)
    texts = {
        name: _text(child).strip() or None
        for name, child in _members(terms, ("Start", "Expiry", "Permission")).items()
    }
    return Policy(policy_id, texts.get("Start"), texts.get("Expiry"), texts.get("Permission"))


def print_policies(policies: Sequence[Policy]) -> bytes:
    """Return the body of Get Table ACL. A policy without terms has no AccessPolicy."""
    return _document("SignedIdentifiers", "".join(_print_policy(policy) for policy in policies))


def _print_policy(policy: Policy) -> str:
    terms = "".join(
        (
            _time_element("Start", policy.start),
            _time_element("Expiry", policy.expiry),
            _element("Permission", _escape(policy.permission)) if policy.permission else "",
        )
    )
    access = _element("AccessPolicy", terms) if terms else ""
    return _element("SignedIdentifier", _element("Id", _escape(policy.id)) + access)


def _time_element(name: str, text: str | None) -> str:
    ticks = parse_time(text) if text else None
    if ticks is None:
        return ""
    whole = edm.text_of(ticks)[:19]
    return _element(name, f"{whole}.{ticks % edm.TICKS_A_SECOND:07}Z")


def parse_properties(body: bytes, current: ServiceProperties, version: str) -> ServiceProperties:
    """Read the body of Set Service Properties: what it does not name stays as it is."""
    root = _parse(body, "StorageServiceProperties")
    if version < HOUR_AND_MINUTE_VERSION:
        members = _members(root, ("Logging", "Metrics"))
        return ServiceProperties(
            _logging(_required(members, "Logging")),
            _metrics(_required(members, "Metrics")),
            current.minute_metrics,
            current.cors,
        )
    members = _members(root, _ROOT_NAMES)
    logging, hour, minute, cors = (members.get(name) for name in _ROOT_NAMES)
    return ServiceProperties(
        current.logging if logging is None else _logging(logging),
        current.hour_metrics if hour is None else _metrics(hour),
        current.minute_metrics if minute is None else _metrics(minute),
        current.cors if cors is None else _cors(cors),
    )


def _logging(element: Element) -> Logging:
    members = _members(element, ("Version", "Read", "Write", "Delete", "RetentionPolicy"))
    _check_version(members)
    return Logging(
        _boolean(_required(members, "Read")),
        _boolean(_required(members, "Write")),
        _boolean(_required(members, "Delete")),
        _retention_days(_required(members, "RetentionPolicy")),
    )


def _metrics(element: Element) -> Metrics:
    members = _members(element, ("Version", "Enabled", "IncludeAPIs", "RetentionPolicy"))
    _check_version(members)
    enabled = _boolean(_required(members, "Enabled"))
    return Metrics(
        enabled,
        enabled and _boolean(_required(members, "IncludeAPIs")),
        _retention_days(_required(members, "RetentionPolicy")),
    )


def _check_version(members: dict[str, Element]) -> None:
    if _text(_required(members, "Version")).strip() != "1.0":
        raise _bad_value(hint="Version is 1.0.")


def _retention_days(element: Element) -> int | None:
    members = _members(element, ("Enabled", "Days"))
    if not _boolean(_required(members, "Enabled")):
        return None
    days = _number(_required(members, "Days"))
    if not 1 <= days <= RETENTION_DAYS_MAX:
        raise _too_much(hint=f"Days is 1 to {RETENTION_DAYS_MAX}.")
    return days


def _cors(element: Element) -> tuple[CorsRule, ...]:
    rules = tuple(_cors_rule(child) for child in _children(element, "CorsRule"))
    if len(rules) > CORS_RULES_MAX:
        raise _too_much(hint=f"A service has at most {CORS_RULES_MAX} CORS rules.")
    texts = [text for child in element.iter() if (text := (child.text or "").strip())]
    if len("".join(texts).encode()) > CORS_TEXT_BYTES_MAX:
        raise _too_much(hint=f"CORS rules hold at most {CORS_TEXT_BYTES_MAX} bytes of text.")
    return rules


def _cors_rule(element: Element) -> CorsRule:
    members = _members(element, _CORS_NAMES)
    methods, origins, allowed, exposed, age = (_required(members, name) for name in _CORS_NAMES)
    rule = CorsRule(
        _list(origins), _list(methods), _header_list(allowed), _header_list(exposed), _number(age)
    )
    if not rule.origins or not rule.methods:
        raise _bad_value(hint="A CORS rule needs an origin and a method.")
    if not _METHODS.issuperset(rule.methods):
        raise _bad_value(hint=f"Methods are {', '.join(sorted(_METHODS))}.")
    if rule.max_age_seconds > CORS_AGE_SECONDS_MAX:
        raise _bad_value(hint="MaxAgeInSeconds is too large.")
    return rule


_CORS_NAMES = (
    *("AllowedMethods", "AllowedOrigins", "AllowedHeaders", "ExposedHeaders"),
    "MaxAgeInSeconds",
)


def _list(element: Element) -> tuple[str, ...]:
    values = tuple(value.strip() for value in _text(element).split(",") if value.strip())
    if any(len(value) > CORS_VALUE_CHARACTERS_MAX for value in values):
        raise _too_much(
            hint=f"An origin or header has at most {CORS_VALUE_CHARACTERS_MAX} characters."
        )
    # They are printed into header lines.
    if not all(value.isprintable() for value in values):
        raise _bad_value(hint="An origin or header holds a control character.")
    return values


def _header_list(element: Element) -> tuple[str, ...]:
    values = _list(element)
    prefixed = [value for value in values if value.endswith("*")]
    literal = [value for value in values if not value.endswith("*")]
    if len(literal) > CORS_LITERAL_HEADERS_MAX or len(prefixed) > CORS_PREFIXED_HEADERS_MAX:
        raise _too_much(
            hint=f"A rule lists at most {CORS_LITERAL_HEADERS_MAX} headers and"
            f" {CORS_PREFIXED_HEADERS_MAX} prefixes."
        )
    return (*literal, *prefixed)


def print_properties(properties: ServiceProperties, version: str) -> bytes:
    """Return the body of Get Service Properties, in the element order of the service."""
    logging = _element("Logging", _print_logging(properties.logging))
    hour = _print_metrics(properties.hour_metrics)
    if version < HOUR_AND_MINUTE_VERSION:
        return _document("StorageServiceProperties", logging + _element("Metrics", hour))
    return _document(
        "StorageServiceProperties",
        logging
        + _element("HourMetrics", hour)
        + _element("MinuteMetrics", _print_metrics(properties.minute_metrics))
        + _element("Cors", "".join(_print_cors_rule(rule) for rule in properties.cors)),
    )


def _print_logging(logging: Logging) -> str:
    return (
        _element("Version", "1.0")
        + _print_boolean("Read", logging.read)
        + _print_boolean("Write", logging.write)
        + _print_boolean("Delete", logging.delete)
        + _print_retention(logging.retention_days)
    )


def _print_metrics(metrics: Metrics) -> str:
    return (
        _element("Version", "1.0")
        + _print_boolean("Enabled", metrics.enabled)
        + (_print_boolean("IncludeAPIs", metrics.include_apis) if metrics.enabled else "")
        + _print_retention(metrics.retention_days)
    )


def _print_retention(days: int | None) -> str:
    enabled = _print_boolean("Enabled", days is not None)
    return _element("RetentionPolicy", enabled + (_element("Days", str(days)) if days else ""))


def _print_cors_rule(rule: CorsRule) -> str:
    texts = (
        ",".join(rule.methods),
        ",".join(rule.origins),
        ",".join(rule.allowed_headers),
        ",".join(rule.exposed_headers),
        str(rule.max_age_seconds),
    )
    members = zip(_CORS_NAMES, texts, strict=True)
    return _element("CorsRule", "".join(_element(name, _escape(text)) for name, text in members))


def _print_boolean(name: str, value: bool) -> str:  # noqa: FBT001 - the value is the point
    return _element(name, "true" if value else "false")


def print_stats(status: str, last_sync: int | None) -> bytes:
    """Return the body of Get Service Stats; only a live secondary has a time of last sync."""
    synced = http_date(last_sync) if status == "live" and last_sync is not None else ""
    replication = _element("Status", status) + _element("LastSyncTime", synced)
    return _document("StorageServiceStats", _element("GeoReplication", replication))


def _parse(body: bytes, root_name: str) -> Element:
    # Every element costs a '<', in every encoding that the parser reads: a cheap first bound.
    if len(body) > XML_BYTES_MAX or body.count(b"<") > 2 * XML_ELEMENTS_MAX:
        raise _too_much(hint=f"At most {XML_BYTES_MAX} bytes and {XML_ELEMENTS_MAX} elements.")
    try:
        root: Element = fromstring(body, forbid_dtd=True)
    except (ParseError, ValueError, LookupError) as error:
        raise _not_valid(hint="The body is not plain XML.") from error
    if _name(root) != root_name:
        raise _not_valid(hint=f"The root element is {root_name}.")
    return root


def _name(element: Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _children(element: Element, name: str) -> Iterator[Element]:
    for child in element:
        if _name(child) != name:
            raise _unsupported(_name(child))
        yield child


def _members(element: Element, names: Sequence[str]) -> dict[str, Element]:
    members: dict[str, Element] = {}
    for child in element:
        name = _name(child)
        if name not in names:
            raise _unsupported(name)
        if name in members:
            raise _not_valid(hint=f"{name} is given twice.")
        members[name] = child
    return members


def _required(members: dict[str, Element], name: str) -> Element:
    element = members.get(name)
    if element is None:
        raise InvalidRequestError(
            "MissingRequiredXmlNode",
            "A required XML node was not specified in the request body.",
            facts={"node": name},
        )
    return element


def _text(element: Element) -> str:
    if len(element):
        raise _bad_value(hint=f"{_name(element)} holds text only.")
    return element.text or ""


def _boolean(element: Element) -> bool:
    text = _text(element).strip().lower()
    if text not in ("true", "false"):
        raise _bad_value(hint=f"{_name(element)} is true or false.")
    return text == "true"


def _number(element: Element) -> int:
    text = _text(element).strip()
    if not _DIGITS.fullmatch(text):
        raise _bad_value(hint=f"{_name(element)} is a whole number.")
    return int(text)


def _not_valid(*, hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidXmlDocument", "XML specified is not syntactically valid.", hint=hint
    )


def _too_much(*, hint: str) -> LimitExceededError:
    return LimitExceededError(
        "InvalidXmlDocument", "XML specified is not syntactically valid.", hint=hint
    )


def _bad_value(*, hint: str) -> InvalidRequestError:
    return InvalidRequestError(
        "InvalidXmlNodeValue",
        "The value provided for one of the XML nodes in the request body was not in the correct"
        " format.",
        hint=hint,
    )


def _unsupported(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        "UnsupportedXmlNode",
        "One of the XML nodes specified in the request body is not supported.",
        facts={"node": name[:64]},
    )


def _document(name: str, content: str) -> bytes:
    return (_DECLARATION + _element(name, content)).encode()


def _element(name: str, content: str) -> str:
    return f"<{name}>{content}</{name}>" if content else f"<{name} />"


def _escape(text: str) -> str:
    return html.escape(_ILLEGAL.sub("", text), quote=False)
