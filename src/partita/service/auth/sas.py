"""Shared access signatures: one evaluation, and one string to sign, for every operation.

`parse_sas` parses the token of a request, `evaluate` turns it into a Grant, and the grant checks
each operation's Need. An empty value and a missing one are equal, because the signature does not
distinguish them. The three services differ in the scope of a token and in the fields that follow
its version in the string to sign.
"""

import binascii
import ipaddress
import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from partita.errors import NotAuthorizedError
from partita.keys import prefix_range
from partita.policies import Policy
from partita.refusals import not_found
from partita.service.auth.bearer import Identity
from partita.service.auth.delegation import DelegationKey
from partita.service.auth.policy import LETTERS, Terms, merge, parse_time
from partita.service.auth.roles import Rights
from partita.service.auth.shared_key import SigningKey, authentication_failed, malformed
from partita.service.formats.address import split_container
from partita.service.http.request import Request
from partita.tables.entity import EntityKey
from partita.tables.paging import FIRST, KeyRange, after

SERVICE, CONTAINER, OBJECT = "s", "c", "o"
"""Resource types: the service itself; a table, queue or container; an entity, message or blob."""

# The permissions of operations: alternatives, each with all its letters.
READ = ("r",)
WRITE = ("w",)
LIST = ("l",)
CREATE = ("c", "w")
ADD = ("a",)
UPDATE = ("u",)
UPSERT = ("au",)
DELETE = ("d",)
PROCESS = ("p",)
APPEND = ("a", "w")
BREAK_LEASE = ("w", "d")
DELETE_VERSION = ("x",)
DELETE_FOR_GOOD = ("y",)
TAGS = ("t",)
FIND_BY_TAGS = ("f",)

EVERYWHERE = KeyRange()

BLOB, BLOB_SNAPSHOT, BLOB_VERSION, DIRECTORY, WHOLE_CONTAINER = "b", "bs", "bv", "d", "c"
"""The values of `sr` in a blob SAS."""

_IP_VERSION = "2015-04-05"
"""The first version with sip, spr, account SAS and mismatch codes."""
_PREFIX_VERSION = "2015-02-21"
"""The first version that signs the name of the service.

Before it, the string to sign of a queue is also that of a container with the same name. That of a
table differs: it has four slots more.
"""
OLD_SAS_SETTING = "--allow-old-sas"
"""The setting that accepts service SAS of queues and blobs before that version."""
_SCOPE_VERSION = "2020-12-06"
"""The first version that signs the encryption scope of an account SAS."""
_FIRST_VERSION = "2012-02-12"
_HEADERS_VERSION = "2013-08-15"
"""The first version whose blob SAS sets headers of the answer."""
_RESOURCE_VERSION = "2018-11-09"
"""The first version that signs `sr` and a snapshot: before it, `sr` may only be b or c."""
_DIRECTORY_VERSION = "2020-02-10"

_SERVICE_NAMES = {"t": "table", "q": "queue", "b": "blob"}
_KEY_SLOTS = ("start_partition_key", "start_row_key", "end_partition_key", "end_row_key")
_OVERRIDES = {
    "cache_control": "Cache-Control",
    "content_disposition": "Content-Disposition",
    "content_encoding": "Content-Encoding",
    "content_language": "Content-Language",
    "content_type": "Content-Type",
}
"""The fields rscc to rsct, in the order in which they are signed, and what they override."""
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
    "sr": "resource",
    "sdd": "directory_depth",
    "rscc": "cache_control",
    "rscd": "content_disposition",
    "rsce": "content_encoding",
    "rscl": "content_language",
    "rsct": "content_type",
    "skoid": "key_oid",
    "sktid": "key_tid",
    "skt": "key_start",
    "ske": "key_expiry",
    "sks": "key_service",
    "skv": "key_version",
    "skdutid": "user_tid",
    "sduoid": "user_oid",
    "scid": "correlation_id",
    "sig": "signature",
}
_TABLE_FIELDS = frozenset({"tn", "spk", "srk", "epk", "erk"})
_BLOB_FIELDS = frozenset({"sdd", "rscc", "rscd", "rsce", "rscl", "rsct"})
_FOREIGN = {
    "t": _BLOB_FIELDS | {"sr"},
    "q": _BLOB_FIELDS | _TABLE_FIELDS,
    "b": _TABLE_FIELDS,
}
"""Fields that a service does not sign, and therefore ignores."""
_KEY_FIELDS = ("key_oid", "key_tid", "key_start", "key_expiry", "key_service", "key_version")
"""Fields of a token that is signed with a user delegation key, in the order of its signature."""
_RESTRICTED = frozenset({"saoid", "suoid", "srh", "srq"})
"""Fields that name a user of the file system or headers: a token is refused with one of them."""
_CORRELATION_VERSION = "2020-02-10"
"""The first version that signs the fields saoid, suoid and scid."""
_USER_VERSION = "2025-07-05"
"""The first version that signs the fields skdutid and sduoid."""
_REQUEST_VERSION = "2026-04-06"
"""The first version that signs the fields srh and srq."""
_VERSION = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LETTERS = re.compile(r"[a-z]*")
_DEPTH = re.compile(r"[1-9]\d{0,2}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LAST_UNIT = "\uffff"

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class BlobScope(NamedTuple):
    """One blob, or a directory."""

    container: str
    blob: str
    snapshot: str | None = None
    version_id: str | None = None


Scope = str | BlobScope
"""The scope of a service SAS: a table, queue or container by its name, or a blob."""


class Need(msgspec.Struct, frozen=True, gc=False):
    """The permission that one operation needs."""

    resource: str
    permissions: tuple[str, ...]
    scope: Scope | None = None
    """The scope that a service SAS must cover; None: no service SAS permits it.

    Listing blobs needs `BlobScope(container, prefix)`.
    """
    key: EntityKey | None = None
    by_key_only: bool = False
    """No SAS permits it, as for access policies."""

    @property
    def is_read(self) -> bool:
        return self.permissions == READ


class Grant(msgspec.Struct, frozen=True, gc=False):
    """The permissions of an authenticated request."""

    everything: bool = False
    permissions: str = ""
    service: str = "t"
    """The service of the request."""
    services: str = ""
    resource_types: str = ""
    scope: Scope | None = None
    """The scope of a service SAS; a table name in lower case. None: an account SAS."""
    resource: str = ""
    """Of a blob SAS: the value of `sr`."""
    span: KeyRange = EVERYWHERE
    """Reads are limited to these keys: the range restricts the plan, not its result."""
    hides_refusals: bool = False
    """Versions before 2015-04-05 answer "not found" instead of "not permitted"."""
    overrides: tuple[tuple[str, str], ...] = ()
    """Headers that a blob SAS sets in the answer to a read of the blob."""
    is_anonymous: bool = False
    public_access: str | None = None
    """Of an anonymous request: the public access of its container, `blob` or `container`."""
    rights: Rights | None = None
    """Of a bearer token: what its roles permit."""
    identity: Identity | None = None
    """Of a bearer token: its owner."""

    @classmethod
    def of_token(cls, identity: Identity, rights: Rights, service: str) -> "Grant":
        """Return the grant of a bearer token in a service."""
        return cls(permissions=rights.object, service=service, rights=rights, identity=identity)

    @property
    def is_account_sas(self) -> bool:
        is_other = self.everything or self.is_anonymous or self.rights is not None
        return not is_other and self.scope is None

    def opened(self, public_access: str | None) -> "Grant":
        """Return the grant of an anonymous request whose container is known."""
        return Grant(is_anonymous=True, public_access=public_access)

    def check(self, need: Need) -> None:
        """Raise NotAuthorizedError unless the operation is granted.

        A read outside the span passes: `span` limits the entities that it returns.
        """
        if self.everything:
            return
        if self.is_anonymous:
            self._check_public(need)
            return
        if self.rights is not None:
            self._check_roles(need, self.rights)
            return
        if need.by_key_only:
            raise _forbidden("")
        if self.scope is None:
            self._check_account_scope(need)
        elif not self._covers(need):
            raise _forbidden("")
        if not any(set(letters) <= set(self.permissions) for letters in need.permissions):
            raise self._lacks_permission()
        # A write without a key may be outside of the range, so it is refused.
        if (
            not need.is_read
            and self.span != EVERYWHERE
            and (need.key is None or not self.span.contains(need.key))
        ):
            raise _forbidden("")

    def _check_public(self, need: Need) -> None:
        is_looking = not need.by_key_only and need.permissions in (READ, LIST)
        if not is_looking:
            raise no_credentials()
        if need.resource == OBJECT and need.is_read and self.public_access is not None:
            return
        if need.resource == CONTAINER and self.public_access == "container":
            return
        # The answer must not reveal whether the container exists.
        raise not_found(NotAuthorizedError)

    def _check_roles(self, need: Need, rights: Rights) -> None:
        if need.by_key_only:
            if rights.has_policies:
                return
            # As Azure: the access policies of tables are not found with a token.
            raise not_found(NotAuthorizedError) if self.service == "t" else _forbidden("Permission")
        own = rights.letters_for(need.resource)
        if not any(set(letters) <= set(own) for letters in need.permissions):
            raise _forbidden("Permission")

    def _check_account_scope(self, need: Need) -> None:
        if self.service not in self.services:
            raise _forbidden("Service")
        if need.resource not in self.resource_types:
            raise _forbidden("ResourceType")

    def _covers(self, need: Need) -> bool:
        mine, asked = self.scope, need.scope
        if isinstance(mine, BlobScope):
            return isinstance(asked, BlobScope) and self._covers_blob(mine, asked, need.resource)
        if isinstance(asked, BlobScope):
            return asked.container == mine
        if asked is None:
            return False
        if self.service == "t":
            return need.resource == OBJECT and asked.lower() == mine
        return asked == mine

    def _covers_blob(self, mine: BlobScope, asked: BlobScope, resource: str) -> bool:
        if mine.container != asked.container:
            return False
        if self.resource == DIRECTORY:
            # A listing with the bare name of the directory as prefix shows others: `a` shows `ab`.
            is_itself = resource == OBJECT and asked.blob == mine.blob
            return is_itself or asked.blob.startswith(f"{mine.blob}/")
        if resource != OBJECT or mine.blob != asked.blob:
            return False
        # The SAS of a blob covers its snapshots; that of a snapshot covers nothing else.
        return self.resource == BLOB or mine == asked

    def _lacks_permission(self) -> NotAuthorizedError:
        if self.hides_refusals:
            return not_found(NotAuthorizedError)
        return _forbidden("Permission")


FULL = Grant(everything=True)
ANONYMOUS = Grant(is_anonymous=True)


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
    resource: str = ""
    directory_depth: str = ""
    cache_control: str = ""
    content_disposition: str = ""
    content_encoding: str = ""
    content_language: str = ""
    content_type: str = ""
    signature: str = ""
    container: str = ""
    """Queue or container of a service SAS; from the address, as the two fields below."""
    blob: str = ""
    """The blob, or the directory when `resource` is d."""
    key_oid: str = ""
    key_tid: str = ""
    key_start: str = ""
    key_expiry: str = ""
    key_service: str = ""
    key_version: str = ""
    user_tid: str = ""
    """The tenant of the user, if the key was made for users of one."""
    user_oid: str = ""
    """The only user who may use it, with a bearer token."""
    correlation_id: str = ""
    snapshot: str = ""
    """The blob snapshot or version of the request, if `resource` says that it is signed."""

    @property
    def is_account_sas(self) -> bool:
        return bool(self.services or self.resource_types)

    @property
    def is_delegated(self) -> bool:
        """Whether it is signed with a user delegation key; then all fields of the key are set."""
        return bool(self.key_oid)

    @property
    def key(self) -> DelegationKey:
        """The user delegation key that it is signed with."""
        return DelegationKey(
            self.key_oid,
            self.key_tid,
            self.key_start,
            self.key_expiry,
            self.key_service,
            self.key_version,
            self.user_tid,
        )

    @property
    def user(self) -> Identity | None:
        """The only user who may use it; None: everyone who has it."""
        if not self.user_oid:
            return None
        return Identity(self.user_oid, self.user_tid or self.key_tid)

    @property
    def name(self) -> str:
        """The scope of a service SAS, as in its canonical resource."""
        if self.table:
            return self.table.lower()
        return f"{self.container}/{self.blob}" if self.blob else self.container

    @property
    def scope(self) -> Scope | None:
        if self.is_account_sas:
            return None
        if not self.blob:
            return self.name
        snapshot = self.snapshot if self.resource == BLOB_SNAPSHOT else None
        version_id = self.snapshot if self.resource == BLOB_VERSION else None
        return BlobScope(self.container, self.blob, snapshot, version_id)

    @property
    def overrides(self) -> tuple[tuple[str, str], ...]:
        """The headers that a blob SAS sets, if its signature covers them."""
        if not self.resource or self.version < _HEADERS_VERSION:
            return ()
        pairs = [(header, str(getattr(self, field))) for field, header in _OVERRIDES.items()]
        return tuple((header, value) for header, value in pairs if value)

    @property
    def span(self) -> KeyRange:
        lower = FIRST
        if self.start_partition_key:
            lower = EntityKey(self.start_partition_key, self.start_row_key)
        upper = None
        if self.end_partition_key and self.end_row_key:
            upper = _behind(self.end_partition_key, self.end_row_key)
        elif self.end_partition_key:
            upper = EntityKey(after(self.end_partition_key), "")
        return KeyRange(lower, upper)

    def __repr__(self) -> str:
        return f"Sas(version={self.version!r}, name={self.name!r}, signature=***)"


def _behind(partition_key: str, row_key: str) -> EntityKey:
    """Return the end of a range with these last keys.

    U+FFFF is the last character in the order of UTF-16 units: a row key that ends with it
    includes every key with the same prefix, also those with characters beyond U+FFFF.
    """
    stem = row_key.removesuffix(_LAST_UNIT)
    if stem == row_key:
        return EntityKey(partition_key, after(row_key))
    end = prefix_range(stem)[1]
    return EntityKey(after(partition_key), "") if end is None else EntityKey(partition_key, end)


def check_single_credential(request: Request, sas: Sas | None) -> None:
    """Raise if a request has both a SAS and an Authorization header, unless a user is named."""
    if sas is not None and sas.user is None and "authorization" in request.headers:
        raise malformed(hint="Send a SAS or an Authorization header, not both.")


def parse_sas(
    parameters: Sequence[tuple[str, str]],
    service: str = "t",
    path: str = "",
    *,
    allows_old: bool = False,
) -> Sas | None:
    """Find the SAS among decoded query parameters; None without `sig`.

    `path` is the path after the account: it is the scope of a queue or blob SAS. An invalid
    token is refused with 403: a repeated field, a row key without its partition key, an invalid
    range or time. `allows_old` accepts tokens whose signature does not cover the service.
    """
    if not any(name == "sig" for name, _ in parameters):
        return None
    fields: dict[str, str] = {}
    for name, value in parameters:
        if name in _RESTRICTED and value:
            raise _forbidden("")
        field = _FIELDS.get(name)
        if field is None or name in _FOREIGN[service]:
            continue
        if field in fields:
            raise authentication_failed(hint=f"Give {name} only once.")
        # With a line feed, one signed text could be read as other fields.
        if _CONTROL.search(value):
            raise authentication_failed(hint=f"Remove the control character from {name}.")
        fields[field] = value
    sas = Sas(**{"version": "", **fields})
    if not sas.is_account_sas and service != "t":
        sas = _with_address(sas, service, path, parameters)
    _check_version(sas, service)
    if not allows_old and service != "t" and not sas.is_account_sas:
        _check_service_is_signed(sas)
    _check_delegated(sas, service)
    _check_kind(sas, service)
    _check_values(sas, service)
    return sas


def _with_address(sas: Sas, service: str, path: str, parameters: Sequence[tuple[str, str]]) -> Sas:
    """Add the scope of a service SAS: for queues and blobs it is in the address."""
    if service == "q":
        return msgspec.structs.replace(sas, container=split_container(path)[0])
    options = {name.lower(): value for name, value in parameters}
    container, blob = split_container(path)
    # A request for account information at a container names the container.
    is_container = options.get("restype", "").lower() in ("container", "account")
    if not blob and not is_container:
        container, blob = "$root", container
    if sas.resource == WHOLE_CONTAINER:
        return msgspec.structs.replace(sas, container=container)
    if sas.resource == DIRECTORY:
        below = options.get("prefix", "") if is_container else blob
        depth = int(sas.directory_depth) if _DEPTH.fullmatch(sas.directory_depth) else 0
        blob = "/".join(below.split("/")[:depth])
    names = {BLOB_SNAPSHOT: "snapshot", BLOB_VERSION: "versionid"}
    snapshot = options.get(names.get(sas.resource, ""), "")
    return msgspec.structs.replace(sas, container=container, blob=blob, snapshot=snapshot)


def _check_version(sas: Sas, service: str) -> None:
    if service == "b" and not sas.version and not sas.is_account_sas:
        return  # the oldest tokens of blobs name no version
    first = _IP_VERSION if sas.is_account_sas else _FIRST_VERSION
    known = _VERSION.fullmatch(sas.version) and parse_time(sas.version) is not None
    if not known or sas.version < first:
        raise authentication_failed(hint=f"Use a version of at least {first} for sv.")


def _check_service_is_signed(sas: Sas) -> None:
    if sas.version < _PREFIX_VERSION:
        raise authentication_failed(
            hint=f"A SAS of a version before {_PREFIX_VERSION} is also valid for a queue or"
            " container with the same name: make it with a newer version, or start the server"
            f" with {OLD_SAS_SETTING}.",
            setting=OLD_SAS_SETTING,
        )


def _check_kind(sas: Sas, service: str) -> None:
    if service == "t":
        _check_table_kind(sas)
    elif sas.is_account_sas:
        if sas.policy_id or sas.resource:
            raise authentication_failed(hint="Give ss and srt, or the fields of a service SAS.")
    elif service == "q":
        if not sas.container or "/" in sas.container or sas.resource:
            raise authentication_failed(hint="Omit sr: it is not a field of a queue SAS.")
    else:
        _check_blob_kind(sas)
    if sas.is_account_sas:
        if not (sas.services and set(sas.services) <= set("bqtf")):
            raise authentication_failed(hint="Use letters of 'bqtf' for ss.")
        if not (sas.resource_types and set(sas.resource_types) <= set("sco")):
            raise authentication_failed(hint="Use letters of 'sco' for srt.")


def _check_delegated(sas: Sas, service: str) -> None:
    """Refuse a token with some fields of a user delegation key that is not signed with one."""
    given = [bool(getattr(sas, field)) for field in _KEY_FIELDS]
    names_user = bool(sas.user_oid or sas.user_tid)
    if names_user and (sas.version < _USER_VERSION or not sas.user_oid):
        raise _forbidden("")
    if not any(given) and not names_user:
        return
    if not all(given) or sas.is_account_sas or sas.policy_id or sas.key_service != service:
        raise _forbidden("")
    if sas.version < _RESOURCE_VERSION:
        raise authentication_failed(hint=f"Use a version of at least {_RESOURCE_VERSION} for sv.")


def _check_table_kind(sas: Sas) -> None:
    of_table = bool(sas.table or sas.policy_id or sas.start_partition_key or sas.end_partition_key)
    if sas.is_account_sas == of_table:
        raise authentication_failed(hint="Give ss and srt, or tn.")
    if of_table and not (sas.table.isascii() and sas.table.isalnum()):
        raise authentication_failed(hint="Give the name of a table in tn.")


def _check_blob_kind(sas: Sas) -> None:
    if sas.resource not in _RESOURCE_SINCE or sas.version < _RESOURCE_SINCE[sas.resource]:
        # If sr were not signed, the token of a blob could be changed into one of a directory.
        raise authentication_failed(
            hint="Use b, c, bs, bv or d for sr, if the version supports it."
        )
    is_named = bool(sas.container) and "/" not in sas.container
    if not is_named or (sas.resource != WHOLE_CONTAINER and not sas.blob):
        raise authentication_failed(hint="Use a SAS for the requested resource.")
    if sas.resource in (BLOB_SNAPSHOT, BLOB_VERSION) and not sas.snapshot:
        raise authentication_failed(hint="Request the snapshot or version that the SAS is for.")
    if not all(value.isprintable() and value.isascii() for _, value in sas.overrides):
        raise authentication_failed(hint="Use ASCII for the headers that the SAS sets.")


_RESOURCE_SINCE = {
    BLOB: "",
    WHOLE_CONTAINER: "",
    BLOB_SNAPSHOT: _RESOURCE_VERSION,
    BLOB_VERSION: _RESOURCE_VERSION,
    DIRECTORY: _DIRECTORY_VERSION,
}


def _check_values(sas: Sas, service: str) -> None:
    if sas.start_row_key and not sas.start_partition_key:
        raise authentication_failed(hint="srk needs spk.")
    if sas.end_row_key and not sas.end_partition_key:
        raise authentication_failed(hint="erk needs epk.")
    if sas.span.is_empty:
        raise authentication_failed(hint="Use a range of keys that ends after its start.")
    for name, time in (("st", sas.start), ("se", sas.expiry)):
        if time and parse_time(time) is None:
            raise authentication_failed(hint=f"Use an ISO 8601 time for {name}.")
    if not _LETTERS.fullmatch(sas.permissions) or (
        not sas.is_account_sas and not set(sas.permissions) <= set(LETTERS[service])
    ):
        raise authentication_failed(hint="Use only permission letters for sp.")
    if sas.protocols not in ("", "https", "https,http", "http,https"):
        raise authentication_failed(hint="Use 'https' or 'https,http' for spr.")
    if sas.ip_range and _parse_ip_range(sas.ip_range) is None:
        raise authentication_failed(hint="Use an address, or two joined by '-', for sip.")


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
    allows_delegation: bool = False,
    user: Identity | None = None,
) -> Grant:
    """Return the grant of a token: check time, protocol, address, signature, stored policy.

    `policies` are those of the scope of the token; they are used only with `sas.policy_id`.
    `allows_delegation` accepts the signature of a user delegation key, `user` is the owner of the
    bearer token that was sent beside it.
    """
    if sas.is_delegated and not allows_delegation:
        raise _forbidden("")
    if sas.user is not None and sas.user != user:
        raise authentication_failed(
            hint="The SAS is for one user: send a bearer token of that user beside it."
        )
    _check_window(sas.start, sas.expiry, now)
    if sas.protocols == "https" and scheme != "https":
        raise _forbidden(
            "Protocol",
            hint="The SAS is for https only: start the server with --tls-cert and --tls-key, or"
            " make the SAS for https and http.",
            setting="--tls-cert",
        )
    if sas.ip_range and not _is_within(peer, sas.ip_range):
        raise _forbidden("SourceIP")
    text = string_to_sign(sas, service=service, account=account)
    permissions = sas.permissions
    if sas.is_delegated:
        delegated = _verify_delegated(sas, text, account, keys, now)
        permissions = "".join(letter for letter in permissions if letter in delegated)
    elif not any(key.verify(text, sas.signature) for key in keys):
        raise _wrong_signature()
    given = Terms(sas.start, sas.expiry, sas.permissions)
    terms = merge(given, _find_policy(sas.policy_id, policies))
    _check_window(terms.start, terms.expiry, now)
    return Grant(
        permissions=permissions if sas.is_delegated else terms.permissions,
        service=service,
        services=sas.services,
        resource_types=sas.resource_types,
        scope=sas.scope,
        resource=sas.resource,
        span=sas.span,
        hides_refusals=sas.version < _IP_VERSION,
        overrides=sas.overrides,
    )


def _verify_delegated(
    sas: Sas, text: str, account: str, keys: Sequence[SigningKey], now: int
) -> str:
    """Return the letters that the owner of the user delegation key could delegate."""
    if not sas.key.is_valid_at(now):
        raise authentication_failed(
            hint="The user delegation key of the SAS is not valid at this time: get a new one."
        )
    for letters, key in sas.key.signing_keys(keys, account):
        if key.verify(text, sas.signature):
            return letters
    raise _wrong_signature()


def _wrong_signature() -> NotAuthorizedError:
    return authentication_failed(hint="The signature of the SAS does not match its fields.")


def string_to_sign(sas: Sas, *, service: str, account: str) -> str:
    """Return the string to sign of a token."""
    if sas.is_account_sas:
        slots = [account, *(getattr(sas, field) for field in _ACCOUNT_SLOTS)]
        if sas.version >= _SCOPE_VERSION:
            slots.append(sas.encryption_scope)
        return "".join(f"{slot}\n" for slot in slots)
    resource = canonical_resource(service, account, sas.name, sas.version)
    slots = [sas.permissions, sas.start, sas.expiry, resource]
    slots += _key_slots(sas, service) if sas.is_delegated else [sas.policy_id]
    if sas.version >= _IP_VERSION:
        slots += [sas.ip_range, sas.protocols]
    if sas.version:
        slots.append(sas.version)
    return "\n".join([*slots, *_last_slots(sas, service)])


def _key_slots(sas: Sas, service: str) -> list[str]:
    """Return what a SAS that is signed with a user delegation key has instead of a policy."""
    slots = [getattr(sas, field) for field in _KEY_FIELDS]
    if service == "b" and sas.version >= _CORRELATION_VERSION:
        slots += ["", "", sas.correlation_id]
    if sas.version >= _USER_VERSION:
        slots += [sas.user_tid, sas.user_oid]
    return slots


def _last_slots(sas: Sas, service: str) -> list[str]:
    if service == "t":
        return [getattr(sas, field) for field in _KEY_SLOTS]
    if service != "b" or sas.version < _HEADERS_VERSION:
        return []
    slots: list[str] = []
    if sas.version >= _RESOURCE_VERSION:
        slots += [sas.resource, sas.snapshot]
    if sas.version >= _SCOPE_VERSION:
        slots.append(sas.encryption_scope)
    if sas.is_delegated and sas.version >= _REQUEST_VERSION:
        slots += ["", ""]
    return slots + [getattr(sas, field) for field in _OVERRIDES]


def canonical_resource(service: str, account: str, name: str, version: str) -> str:
    """Return the canonical resource; it contains the account once, also in path style."""
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


def no_credentials(challenge: str = "") -> NotAuthorizedError:
    """Return the refusal of a request without a signature and without a SAS.

    `challenge` is the one of the token issuer, if the server has one.
    """
    return NotAuthorizedError(
        "NoAuthenticationInformation",
        "Server failed to authenticate the request. Please refer to the information"
        " in the www-authenticate header.",
        facts={"www_authenticate": challenge} if challenge else None,
        hint="Sign the request with an account key, or use a SAS.",
        setting="credential",
    )


def _forbidden(reason: str, *, hint: str = "", setting: str = "") -> NotAuthorizedError:
    code, using = _REFUSALS[reason]
    return NotAuthorizedError(
        code,
        f"This request is not authorized to perform this operation{using}.",
        hint=hint,
        setting=setting,
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
