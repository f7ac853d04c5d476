"""The XML documents of all services: access policies, service properties, statistics. Pure.

An unknown or repeated element is refused; service properties that a document does not contain
stay unchanged.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from xml.etree.ElementTree import Element

import msgspec

from partita.blobs.rules.model import Retention
from partita.errors import DamageError, InvalidRequestError, LimitExceededError
from partita.policies import Policy
from partita.refusals import invalid_xml, invalid_xml_value
from partita.service.auth.cors import CorsRule
from partita.service.auth.policy import LETTERS, check_policies, parse_time
from partita.service.formats.xml_text import (
    document,
    element,
    escape,
    name_of,
    not_valid,
    parse_xml,
)
from partita.service.http.message_bytes import http_date
from partita.tables import edm
from partita.ticks import TICKS_PER_SECOND

CORS_RULES_MAX = 5
CORS_TEXT_BYTES_MAX = 2 * 1024
CORS_VALUE_CHARACTERS_MAX = 256
CORS_LITERAL_HEADERS_MAX = 64
CORS_PREFIXED_HEADERS_MAX = 2
CORS_AGE_SECONDS_MAX = 2**31 - 1
RETENTION_DAYS_MAX = 365
WEBSITE_PATH_CHARACTERS_MAX = 1024

HOUR_AND_MINUTE_VERSION = "2013-08-15"
"""Older versions have one `Metrics` element and no CORS."""

LOGGING_VERSIONS = ("1.0", "2.0")
"""2.0 is for blobs and queues only."""
METRICS_VERSIONS = ("1.0",)

_ROOT_NAMES = ("Logging", "HourMetrics", "MinuteMetrics", "Cors")
_KEPT_NAMES = ("IsVersioningEnabled", "ContainerDeleteRetentionPolicy")
"""Elements that the Azure service does not have in this document."""
_BLOB_NAMES = (
    *("DeleteRetentionPolicy", "StaticWebsite", "DefaultServiceVersion"),
    *_KEPT_NAMES,
)
_WEBSITE_NAMES = ("IndexDocument", "ErrorDocument404Path", "DefaultIndexDocumentPath")
_METHODS = frozenset({"DELETE", "GET", "HEAD", "MERGE", "POST", "OPTIONS", "PUT", "PATCH"})
_VERSION = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DIGITS = re.compile(r"\d{1,10}", re.ASCII)


class Logging(msgspec.Struct, frozen=True, gc=False):
    """Which requests to log in the container `$logs`."""

    read: bool = False
    write: bool = False
    delete: bool = False
    retention_days: int | None = None
    """None: no retention policy."""
    version: str = "1.0"
    """The format of the lines."""

    @property
    def is_on(self) -> bool:
        return self.read or self.write or self.delete


class Metrics(msgspec.Struct, frozen=True, gc=False):
    """Which metrics to collect in the tables `$Metrics…`."""

    enabled: bool = False
    include_apis: bool = False
    """Used only if metrics are enabled."""
    retention_days: int | None = None


class DeleteRetention(msgspec.Struct, frozen=True, gc=False):
    """How long to keep deleted blobs."""

    days: int | None = None
    """None: deleted blobs are not kept."""
    allows_permanent_delete: bool = False


class StaticWebsite(msgspec.Struct, frozen=True, gc=False):
    """The static web site; stored and returned, without effect."""

    enabled: bool = False
    index_document: str | None = None
    error_document: str | None = None
    default_index_path: str | None = None


class ServiceProperties(msgspec.Struct, frozen=True, gc=False):
    """The settings of one service of an account."""

    logging: Logging = Logging()
    hour_metrics: Metrics = Metrics()
    minute_metrics: Metrics = Metrics()
    cors: tuple[CorsRule, ...] = ()
    # Of the blob service only.
    delete_retention: DeleteRetention = DeleteRetention()
    static_website: StaticWebsite = StaticWebsite()
    default_version: str | None = None
    """The API version of requests that name none."""
    keeps_versions: bool = False
    """In the Azure service, this and the next one are set by its management API."""
    container_retention_days: int | None = None
    """How long to keep deleted containers; None: they are not kept."""

    @property
    def retention(self) -> Retention:
        """Return what the blob service keeps."""
        deleted = self.delete_retention
        return Retention(
            self.keeps_versions,
            deleted.days,
            self.container_retention_days,
            deleted.allows_permanent_delete,
        )


def encode(properties: ServiceProperties) -> bytes:
    """Return service properties as JSON, as they are stored."""
    return msgspec.json.encode(properties)


def decode(stored: bytes) -> ServiceProperties:
    """Parse the output of `encode`."""
    try:
        return msgspec.json.decode(stored, type=ServiceProperties)
    except msgspec.DecodeError as error:
        raise DamageError(
            "UnreadableServiceProperties",
            "The stored service properties cannot be read.",
            hint="Set the properties of the service again, or restore a backup.",
        ) from error


def parse_policies(body: bytes, service: str = "t") -> list[Policy]:
    """Parse the access policies of a table, queue or container; an empty body clears them."""
    if not body.strip():
        return []
    root = parse_xml(body, "SignedIdentifiers")
    policies = [_policy(child) for child in _children(root, "SignedIdentifier")]
    check_policies(policies, LETTERS[service])
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
    """Return access policies as a document; a policy without terms has no AccessPolicy."""
    return document("SignedIdentifiers", "".join(_print_policy(policy) for policy in policies))


def _print_policy(policy: Policy) -> str:
    terms = "".join(
        (
            _time_element("Start", policy.start),
            _time_element("Expiry", policy.expiry),
            element("Permission", escape(policy.permission)) if policy.permission else "",
        )
    )
    access = element("AccessPolicy", terms) if terms else ""
    return element("SignedIdentifier", element("Id", escape(policy.id)) + access)


def _time_element(name: str, text: str | None) -> str:
    ticks = parse_time(text) if text else None
    if ticks is None:
        return ""
    whole = edm.text_of(ticks)[:19]
    return element(name, f"{whole}.{ticks % TICKS_PER_SECOND:07}Z")


def parse_properties(
    body: bytes, current: ServiceProperties, version: str, service: str = "t"
) -> ServiceProperties:
    """Parse the body of Set Service Properties; elements that it lacks stay unchanged."""
    root = parse_xml(body, "StorageServiceProperties")
    of_blobs = _BLOB_NAMES if service == "b" else ()
    if version < HOUR_AND_MINUTE_VERSION:
        members = _members(root, ("Logging", "Metrics", *of_blobs[2:3]))
        _required(members, "Logging")
        members["HourMetrics"] = _required(members, "Metrics")
    else:
        members = _members(root, (*_ROOT_NAMES, *of_blobs))
    changes = {
        field: read(members[name]) for name, (field, read) in _READERS.items() if name in members
    }
    logging = changes.get("logging")
    if service == "t" and isinstance(logging, Logging) and logging.version != "1.0":
        raise invalid_xml_value(hint="The Version of the logging of tables is 1.0.")
    return msgspec.structs.replace(current, **changes)


def _logging(element: Element) -> Logging:
    members = _members(element, ("Version", "Read", "Write", "Delete", "RetentionPolicy"))
    return Logging(
        _boolean(_required(members, "Read")),
        _boolean(_required(members, "Write")),
        _boolean(_required(members, "Delete")),
        _retention_days(_required(members, "RetentionPolicy")),
        _version(members, LOGGING_VERSIONS),
    )


def _metrics(element: Element) -> Metrics:
    members = _members(element, ("Version", "Enabled", "IncludeAPIs", "RetentionPolicy"))
    _version(members, METRICS_VERSIONS)
    enabled = _boolean(_required(members, "Enabled"))
    return Metrics(
        enabled,
        enabled and _boolean(_required(members, "IncludeAPIs")),
        _retention_days(_required(members, "RetentionPolicy")),
    )


def _version(members: dict[str, Element], known: Sequence[str]) -> str:
    version = _text(_required(members, "Version")).strip()
    if version not in known:
        raise invalid_xml_value(hint=f"Version is {' or '.join(known)}.")
    return version


def _retention_days(element: Element) -> int | None:
    members = _members(element, ("Enabled", "Days"))
    if not _boolean(_required(members, "Enabled")):
        return None
    return _days(members)


def _days(members: dict[str, Element]) -> int:
    days = _number(_required(members, "Days"))
    if not 1 <= days <= RETENTION_DAYS_MAX:
        raise _too_much(hint=f"Use 1 to {RETENTION_DAYS_MAX} for Days.")
    return days


def _delete_retention(element: Element) -> DeleteRetention:
    members = _members(element, ("Enabled", "Days", "AllowPermanentDelete"))
    if not _boolean(_required(members, "Enabled")):
        return DeleteRetention()
    permanent = members.get("AllowPermanentDelete")
    return DeleteRetention(_days(members), permanent is not None and _boolean(permanent))


def _static_website(element: Element) -> StaticWebsite:
    members = _members(element, ("Enabled", *_WEBSITE_NAMES))
    if not _boolean(_required(members, "Enabled")):
        return StaticWebsite()
    texts = {name: _text(child).strip() or None for name, child in members.items()}
    if any(len(text) > WEBSITE_PATH_CHARACTERS_MAX for text in texts.values() if text):
        raise _too_much(hint=f"Use at most {WEBSITE_PATH_CHARACTERS_MAX} characters in a path.")
    return StaticWebsite(True, *(texts.get(name) for name in _WEBSITE_NAMES))  # noqa: FBT003


def _default_version(element: Element) -> str | None:
    version = _text(element).strip()
    if not version:
        return None
    if not _VERSION.fullmatch(version) or parse_time(version) is None:
        raise invalid_xml_value(hint="Use a date such as 2019-02-02 for DefaultServiceVersion.")
    return version


def _cors(element: Element) -> tuple[CorsRule, ...]:
    rules = tuple(_cors_rule(child) for child in _children(element, "CorsRule"))
    if len(rules) > CORS_RULES_MAX:
        raise _too_much(hint=f"Use at most {CORS_RULES_MAX} CORS rules.")
    texts = [text for child in element.iter() if (text := (child.text or "").strip())]
    if len("".join(texts).encode()) > CORS_TEXT_BYTES_MAX:
        raise _too_much(hint=f"Use at most {CORS_TEXT_BYTES_MAX} bytes of text in CORS rules.")
    return rules


def _cors_rule(element: Element) -> CorsRule:
    members = _members(element, _CORS_NAMES)
    methods, origins, allowed, exposed, age = (_required(members, name) for name in _CORS_NAMES)
    rule = CorsRule(
        _list(origins), _list(methods), _header_list(allowed), _header_list(exposed), _number(age)
    )
    if not rule.origins or not rule.methods:
        raise invalid_xml_value(hint="Give each CORS rule an origin and a method.")
    if not _METHODS.issuperset(rule.methods):
        raise invalid_xml_value(hint=f"Use these methods: {', '.join(sorted(_METHODS))}.")
    if rule.max_age_seconds > CORS_AGE_SECONDS_MAX:
        raise invalid_xml_value(hint="Use a smaller MaxAgeInSeconds.")
    return rule


_CORS_NAMES = (
    *("AllowedMethods", "AllowedOrigins", "AllowedHeaders", "ExposedHeaders"),
    "MaxAgeInSeconds",
)


def _list(element: Element) -> tuple[str, ...]:
    values = tuple(value.strip() for value in _text(element).split(",") if value.strip())
    if any(len(value) > CORS_VALUE_CHARACTERS_MAX for value in values):
        raise _too_much(
            hint=f"Use at most {CORS_VALUE_CHARACTERS_MAX} characters in an origin or header."
        )
    # They become part of header lines.
    if not all(value.isprintable() for value in values):
        raise invalid_xml_value(hint="Remove control characters from origins and headers.")
    return values


def _header_list(element: Element) -> tuple[str, ...]:
    values = _list(element)
    prefixed = [value for value in values if value.endswith("*")]
    literal = [value for value in values if not value.endswith("*")]
    if len(literal) > CORS_LITERAL_HEADERS_MAX or len(prefixed) > CORS_PREFIXED_HEADERS_MAX:
        raise _too_much(
            hint=f"Use at most {CORS_LITERAL_HEADERS_MAX} headers per rule and"
            f" {CORS_PREFIXED_HEADERS_MAX} prefixes."
        )
    return (*literal, *prefixed)


def print_properties(properties: ServiceProperties, version: str, service: str = "t") -> bytes:
    """Return the body of Get Service Properties, in the element order of the service."""
    logging = element("Logging", _print_logging(properties.logging))
    hour = _print_metrics(properties.hour_metrics)
    if version < HOUR_AND_MINUTE_VERSION:
        return document("StorageServiceProperties", logging + element("Metrics", hour))
    return document(
        "StorageServiceProperties",
        logging
        + element("HourMetrics", hour)
        + element("MinuteMetrics", _print_metrics(properties.minute_metrics))
        + element("Cors", "".join(_print_cors_rule(rule) for rule in properties.cors))
        + (_print_of_blobs(properties) if service == "b" else ""),
    )


def _print_of_blobs(properties: ServiceProperties) -> str:
    retention, website = properties.delete_retention, properties.static_website
    days = "" if retention.days is None else element("Days", str(retention.days))
    paths = zip(
        _WEBSITE_NAMES,
        (website.index_document, website.error_document, website.default_index_path),
        strict=True,
    )
    return (
        element(
            "DeleteRetentionPolicy",
            _print_boolean("Enabled", retention.days is not None)
            + days
            + _print_boolean("AllowPermanentDelete", retention.allows_permanent_delete),
        )
        + element(
            "StaticWebsite",
            _print_boolean("Enabled", website.enabled)
            + "".join(element(name, escape(path)) for name, path in paths if path),
        )
        + (
            element("DefaultServiceVersion", properties.default_version)
            if properties.default_version
            else ""
        )
        + _print_kept(properties)
    )


def _print_kept(properties: ServiceProperties) -> str:
    """Print what the Azure service does not have in this document, if it is set."""
    days = properties.container_retention_days
    text = _print_boolean("IsVersioningEnabled", True) if properties.keeps_versions else ""  # noqa: FBT003
    if days is not None:
        text += element(
            "ContainerDeleteRetentionPolicy",
            _print_boolean("Enabled", True) + element("Days", str(days)),  # noqa: FBT003
        )
    return text


def _print_logging(logging: Logging) -> str:
    return (
        element("Version", logging.version)
        + _print_boolean("Read", logging.read)
        + _print_boolean("Write", logging.write)
        + _print_boolean("Delete", logging.delete)
        + _print_retention(logging.retention_days)
    )


def _print_metrics(metrics: Metrics) -> str:
    return (
        element("Version", "1.0")
        + _print_boolean("Enabled", metrics.enabled)
        + (_print_boolean("IncludeAPIs", metrics.include_apis) if metrics.enabled else "")
        + _print_retention(metrics.retention_days)
    )


def _print_retention(days: int | None) -> str:
    enabled = _print_boolean("Enabled", days is not None)
    return element("RetentionPolicy", enabled + (element("Days", str(days)) if days else ""))


def _print_cors_rule(rule: CorsRule) -> str:
    texts = (
        ",".join(rule.methods),
        ",".join(rule.origins),
        ",".join(rule.allowed_headers),
        ",".join(rule.exposed_headers),
        str(rule.max_age_seconds),
    )
    members = zip(_CORS_NAMES, texts, strict=True)
    return element("CorsRule", "".join(element(name, escape(text)) for name, text in members))


def _print_boolean(name: str, value: bool) -> str:  # noqa: FBT001 - the value is the point
    return element(name, "true" if value else "false")


def print_stats(status: str, last_sync: int | None) -> bytes:
    """Return the body of Get Service Stats; only a live secondary has a last sync time."""
    synced = http_date(last_sync) if status == "live" and last_sync is not None else ""
    replication = element("Status", status) + element("LastSyncTime", synced)
    return document("StorageServiceStats", element("GeoReplication", replication))


def _children(element: Element, name: str) -> Iterator[Element]:
    for child in element:
        if name_of(child) != name:
            raise _unsupported(name_of(child))
        yield child


def _members(element: Element, names: Sequence[str]) -> dict[str, Element]:
    members: dict[str, Element] = {}
    for child in element:
        name = name_of(child)
        if name not in names:
            raise _unsupported(name)
        if name in members:
            raise not_valid(hint=f"Give {name} only once.")
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
        raise invalid_xml_value(hint=f"Use only text in {name_of(element)}.")
    return element.text or ""


def _boolean(element: Element) -> bool:
    text = _text(element).strip().lower()
    if text not in ("true", "false"):
        raise invalid_xml_value(hint=f"Use true or false for {name_of(element)}.")
    return text == "true"


def _number(element: Element) -> int:
    text = _text(element).strip()
    if not _DIGITS.fullmatch(text):
        raise invalid_xml_value(hint=f"Use a whole number for {name_of(element)}.")
    return int(text)


def _too_much(*, hint: str) -> LimitExceededError:
    return invalid_xml(LimitExceededError, hint)


def _unsupported(name: str) -> InvalidRequestError:
    return InvalidRequestError(
        "UnsupportedXmlNode",
        "One of the XML nodes specified in the request body is not supported.",
        facts={"node": name[:64]},
    )


_READERS: dict[str, tuple[str, Callable[[Element], object]]] = {
    "Logging": ("logging", _logging),
    "HourMetrics": ("hour_metrics", _metrics),
    "MinuteMetrics": ("minute_metrics", _metrics),
    "Cors": ("cors", _cors),
    "DeleteRetentionPolicy": ("delete_retention", _delete_retention),
    "StaticWebsite": ("static_website", _static_website),
    "DefaultServiceVersion": ("default_version", _default_version),
    "IsVersioningEnabled": ("keeps_versions", _boolean),
    "ContainerDeleteRetentionPolicy": ("container_retention_days", _retention_days),
}
"""The parser of each element, and the field that it sets."""
