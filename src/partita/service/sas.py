"""Shared access signatures: one evaluation, and one string to sign, for every operation.

`parse_sas` reads what a request brought, `evaluate` turns it into a Grant, and the grant checks
each operation's Need. An empty value and a missing one are the same, because the signature
cannot tell them apart. The services differ only in their letter, name and last slots.
"""

import binascii
import ipaddress
import re
from collections.abc import Sequence
from urllib.parse import quote, urlencode

import msgspec

from partita.errors import NotAuthorizedError
from partita.service.policy import TABLE_LETTERS, Terms, merge, parse_time
from partita.service.request import Request
from partita.service.shared_key import SigningKey, authentication_failed, malformed
from partita.tables.entity import EntityKey
from partita.tables.paging import FIRST, KeyRange, after
from partita.tables.store import Policy

SERVICE, CONTAINER, OBJECT = "s", "c", "o"
"""Resource types: the service itself, a table, an entity."""

# What operations need: alternatives, and of an alternative all its letters.
READ = ("r",)
WRITE = ("w",)
LIST = ("l",)
CREATE = ("c", "w")
ADD = ("a",)
UPDATE = ("u",)
UPSERT = ("au",)
DELETE = ("d",)

EVERYWHERE = KeyRange()

_IP_VERSION = "2015-04-05"
"""The first version with sip, spr, account SAS and mismatch codes."""
_PREFIX_VERSION = "2015-02-21"
"""The first version that signs the name of the service."""
_SCOPE_VERSION = "2020-12-06"
"""The first version that signs the encryption scope of an account SAS."""
_FIRST_VERSION = "2012-02-12"

_SERVICE_NAMES = {"t": "table"}
_LAST_SLOTS = {"t": ("start_partition_key", "start_row_key", "end_partition_key", "end_row_key")}
_ACCOUNT_SLOTS = (
    *("permissions", "services", "resource_types", "start", "expiry"),
    *("ip_range", "protocols", "version"),
)
_FIELDS = {
    "sv": "version",
    "ss": "services",
    "srt": "resource_types",
    "sp": "permissions",
    "st": "start",
    "se": "expiry",
    "sip": "ip_range",
    "spr": "protocols",
    "ses": "encryption_scope",
    "si": "policy_id",
    "tn": "table",
    "spk": "start_partition_key",
    "srk": "start_row_key",
    "epk": "end_partition_key",
    "erk": "end_row_key",
    "sig": "signature",
}
_VERSION = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LETTERS = re.compile(r"[a-z]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Need(msgspec.Struct, frozen=True, gc=False):
    """What one operation requires of whoever asks for it."""

    resource: str
    permissions: tuple[str, ...]
    table: str | None = None
    key: EntityKey | None = None
    by_key_only: bool = False
    """No SAS will do, as for access policies."""

    @property
    def is_read(self) -> bool:
        return self.permissions == READ


class Grant(msgspec.Struct, frozen=True, gc=False):
    """What an authenticated request may do."""

    everything: bool = False
    permissions: str = ""
    service: str = "t"
    """The service that was asked."""
    services: str = ""
    resource_types: str = ""
    table: str | None = None
    """The one table of a table SAS, folded to lower case; None: an account SAS."""
    span: KeyRange = EVERYWHERE
    """Reads see only these keys: it is ANDed to the plan, never applied to its outcome."""
    hides_refusals: bool = False
    """Versions before 2015-04-05 say "not found" where they mean "not permitted"."""

    @property
    def is_account_sas(self) -> bool:
        return not self.everything and self.table is None

    def check(self, need: Need) -> None:
        """Raise NotAuthorizedError unless the operation is granted.

        A read outside the span passes: `span` hides what it may not see.
        """
        if self.everything:
            return
        if need.by_key_only:
            raise _forbidden("")
        if self.table is None:
            self._check_account_scope(need)
        else:
            self._check_table_scope(need, self.table)
        if not any(set(letters) <= set(self.permissions) for letters in need.permissions):
            raise self._lacks_permission()
        # A write that names no key cannot be shown to stay inside, so it is outside.
        if (
            not need.is_read
            and self.span != EVERYWHERE
            and (need.key is None or not self.span.contains(need.key))
        ):
            raise _forbidden("")

    def _check_account_scope(self, need: Need) -> None:
        if self.service not in self.services:
            raise _forbidden("Service")
        if need.resource not in self.resource_types:
            raise _forbidden("ResourceType")

    def _check_table_scope(self, need: Need, table: str) -> None:
        if need.resource != OBJECT or need.table is None or need.table.lower() != table:
            raise _forbidden("")

    def _lacks_permission(self) -> NotAuthorizedError:
        if self.hides_refusals:
            return NotAuthorizedError("ResourceNotFound", "The specified resource does not exist.")
        return _forbidden("Permission")


FULL = Grant(everything=True)


class Sas(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The fields of a token, decoded once and otherwise as given: they are signed as text."""

    version: str
    services: str = ""
    resource_types: str = ""
    permissions: str = ""
    start: str = ""
    expiry: str = ""
    ip_range: str = ""
    protocols: str = ""
    encryption_scope: str = ""
    policy_id: str = ""
    table: str = ""
    start_partition_key: str = ""
    start_row_key: str = ""
    end_partition_key: str = ""
    end_row_key: str = ""
    signature: str = ""

    @property
    def is_account_sas(self) -> bool:
        return not self.table

    @property
    def span(self) -> KeyRange:
        lower = FIRST
        if self.start_partition_key:
            lower = EntityKey(self.start_partition_key, self.start_row_key)
        upper = None
        if self.end_partition_key and self.end_row_key:
            upper = EntityKey(self.end_partition_key, after(self.end_row_key))
        elif self.end_partition_key:
            upper = EntityKey(after(self.end_partition_key), "")
        return KeyRange(lower, upper)

    def __repr__(self) -> str:
        return f"Sas(version={self.version!r}, table={self.table!r}, signature=***)"


def check_single_credential(request: Request, sas: Sas | None) -> None:
    """Raise if a request brings a SAS and an Authorization header: which should rule?"""
    if sas is not None and "authorization" in request.headers:
        raise malformed(hint="Send a SAS or an Authorization header, not both.")


def parse_sas(parameters: Sequence[tuple[str, str]]) -> Sas | None:
    """Find the SAS among decoded query parameters; None without `sig`.

    A token that could not have been meant is refused with 403: a field given twice, a row key
    without its partition key, a range or a time that is none.
    """
    if not any(name == "sig" for name, _ in parameters):
        return None
    fields: dict[str, str] = {}
    for name, value in parameters:
        field = _FIELDS.get(name)
        if field is None:
            continue
        if field in fields:
            raise authentication_failed(hint=f"{name} is given more than once.")
        # A line feed would let one signed text be read as other fields.
        if _CONTROL.search(value):
            raise authentication_failed(hint=f"{name} holds a control character.")
        fields[field] = value
    sas = Sas(**{"version": "", **fields})
    _check_version(sas)
    _check_kind(sas)
    _check_values(sas)
    return sas


def _check_version(sas: Sas) -> None:
    first = _IP_VERSION if sas.is_account_sas else _FIRST_VERSION
    known = _VERSION.fullmatch(sas.version) and parse_time(sas.version) is not None
    if not known or sas.version < first:
        raise authentication_failed(hint=f"sv must be a version from {first} on.")


def _check_kind(sas: Sas) -> None:
    of_account = bool(sas.services or sas.resource_types)
    of_table = bool(sas.table or sas.policy_id or sas.start_partition_key or sas.end_partition_key)
    if of_account == of_table:
        raise authentication_failed(hint="A SAS has either ss and srt, or tn.")
    if of_table and not (sas.table.isascii() and sas.table.isalnum()):
        raise authentication_failed(hint="tn is not the name of a table.")
    if of_account and not (sas.services and set(sas.services) <= set("bqtf")):
        raise authentication_failed(hint="ss holds letters of 'bqtf'.")
    if of_account and not (sas.resource_types and set(sas.resource_types) <= set("sco")):
        raise authentication_failed(hint="srt holds letters of 'sco'.")


def _check_values(sas: Sas) -> None:
    if sas.start_row_key and not sas.start_partition_key:
        raise authentication_failed(hint="srk needs spk.")
    if sas.end_row_key and not sas.end_partition_key:
        raise authentication_failed(hint="erk needs epk.")
    if sas.span.is_empty:
        raise authentication_failed(hint="The range of keys ends before it starts.")
    for name, time in (("st", sas.start), ("se", sas.expiry)):
        if time and parse_time(time) is None:
            raise authentication_failed(hint=f"{name} is not an ISO 8601 time.")
    if not _LETTERS.fullmatch(sas.permissions) or (
        not sas.is_account_sas and not set(sas.permissions) <= set(TABLE_LETTERS)
    ):
        raise authentication_failed(hint="sp holds a letter that is no permission.")
    if sas.protocols not in ("", "https", "https,http", "http,https"):
        raise authentication_failed(hint="spr is 'https' or 'https,http'.")
    if sas.ip_range and _parse_ip_range(sas.ip_range) is None:
        raise authentication_failed(hint="sip is an address or two joined by '-'.")


def evaluate(  # noqa: PLR0913 - the facts of a request, each by its name
    sas: Sas,
    *,
    service: str,
    account: str,
    keys: Sequence[SigningKey],
    policies: Sequence[Policy],
    now: int,
    peer: str,
    scheme: str,
) -> Grant:
    """Return what a token grants: window, protocol, address, signature, then stored policy.

    `policies` are those of `sas.table`; they are looked at only when `sas.policy_id` is set.
    """
    _check_window(sas.start, sas.expiry, now)
    if sas.protocols == "https" and scheme != "https":
        raise _forbidden("Protocol")
    if sas.ip_range and not _is_within(peer, sas.ip_range):
        raise _forbidden("SourceIP")
    text = string_to_sign(sas, service=service, account=account)
    if not any(key.verify(text, sas.signature) for key in keys):
        raise authentication_failed(hint="The signature of the SAS does not match its fields.")
    given = Terms(sas.start, sas.expiry, sas.permissions)
    terms = merge(given, _find_policy(sas.policy_id, policies))
    _check_window(terms.start, terms.expiry, now)
    return Grant(
        permissions=terms.permissions,
        service=service,
        services=sas.services,
        resource_types=sas.resource_types,
        table=sas.table.lower() or None,
        span=sas.span,
        hides_refusals=sas.version < _IP_VERSION,
    )


def string_to_sign(sas: Sas, *, service: str, account: str) -> str:
    """Return the text that the signature of a token is made over."""
    if sas.is_account_sas:
        slots = [account, *(getattr(sas, field) for field in _ACCOUNT_SLOTS)]
        if sas.version >= _SCOPE_VERSION:
            slots.append(sas.encryption_scope)
        return "".join(f"{slot}\n" for slot in slots)
    resource = canonical_resource(service, account, sas.table.lower(), sas.version)
    slots = [sas.permissions, sas.start, sas.expiry, resource, sas.policy_id]
    if sas.version >= _IP_VERSION:
        slots += [sas.ip_range, sas.protocols]
    slots += [sas.version, *(getattr(sas, field) for field in _LAST_SLOTS[service])]
    return "\n".join(slots)


def canonical_resource(service: str, account: str, name: str, version: str) -> str:
    """Return what a service SAS is for; the account stands once, also in path style."""
    if version < _PREFIX_VERSION:
        return f"/{account}/{name}"
    return f"/{_SERVICE_NAMES[service]}/{account}/{name}"


def sign(sas: Sas, *, service: str, account: str, key: SigningKey) -> str:
    """Return the query string of a token: the fields that are set, and their signature."""
    mac = key.signature(string_to_sign(sas, service=service, account=account))
    signed = msgspec.structs.replace(
        sas, signature=binascii.b2a_base64(mac, newline=False).decode()
    )
    pairs = [(name, str(getattr(signed, field))) for name, field in _FIELDS.items()]
    return urlencode([(name, value) for name, value in pairs if value], quote_via=quote)


_REFUSALS = {
    "": ("AuthorizationFailure", ""),
    "Permission": ("AuthorizationPermissionMismatch", " using this permission"),
    "Service": ("AuthorizationServiceMismatch", " using this service"),
    "ResourceType": ("AuthorizationResourceTypeMismatch", " using this resource type"),
    "SourceIP": ("AuthorizationSourceIPMismatch", " using this source IP"),
    "Protocol": ("AuthorizationProtocolMismatch", " using this protocol"),
}


def _forbidden(reason: str) -> NotAuthorizedError:
    code, using = _REFUSALS[reason]
    return NotAuthorizedError(
        code, f"This request is not authorized to perform this operation{using}."
    )


def _check_window(start: str, expiry: str, now: int) -> None:
    starts = parse_time(start) if start else None
    ends = parse_time(expiry) if expiry else None
    if (starts is not None and now < starts) or (ends is not None and now >= ends):
        raise authentication_failed(hint="Signature not valid in the specified time frame.")


def _find_policy(policy_id: str, policies: Sequence[Policy]) -> Policy | None:
    if not policy_id:
        return None
    for policy in policies:
        if policy.id == policy_id:
            return policy
    raise authentication_failed(hint="The stored access policy of the SAS does not exist.")


def _parse_ip_range(text: str) -> tuple[_Address, _Address] | None:
    first, dash, last = text.partition("-")
    lower = _parse_address(first)
    upper = _parse_address(last) if dash else lower
    if lower is None or upper is None or lower.version != upper.version:
        return None
    return (lower, upper) if int(lower) <= int(upper) else None


def _parse_address(text: str) -> _Address | None:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    # A socket that listens on IPv6 shows IPv4 peers as ::ffff:a.b.c.d.
    return getattr(address, "ipv4_mapped", None) or address


def _is_within(peer: str, ip_range: str) -> bool:
    address, bounds = _parse_address(peer), _parse_ip_range(ip_range)
    if address is None or bounds is None or address.version != bounds[0].version:
        return False
    return int(bounds[0]) <= int(address) <= int(bounds[1])
