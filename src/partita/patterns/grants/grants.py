"""Shared access signatures for what one user may see, and nobody's neighbour.

`granted_ranges.py` decides which keys that is. Here a grant has terms, which are checked, and an
`Issuer` signs it with the key of the account, by the official SDK.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableSasPermissions, generate_table_sas

from partita.errors import UsageError
from partita.patterns.grants.granted_ranges import GrantedRange, ranges
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType
from partita.tables.limits import POLICY_ID_CHARACTERS_MAX
from partita.ticks import Clock

PERMISSIONS = "raud"
"""Read, add, update, delete, in the order in which a token names them."""
SKEW_SECONDS = 300
"""How long before now a grant begins, because the clock of the service may be behind ours."""
TTL_DAYS_MAX = 365
"""Only a new account key ends a token before its time: what lasts needs a stored policy."""

TTL_DEFAULT = timedelta(hours=1)
"""How long a grant lasts that does not say so."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Terms(msgspec.Struct, frozen=True):
    """What a grant allows, and for how long.

    A stored policy may say either instead; what it says must not be said here again.
    """

    permissions: str = ""
    """Letters of `raud`. Upserts need both `a` and `u`."""
    ttl: timedelta | None = None
    policy_id: str = ""
    start: datetime | None = None
    """SKEW_SECONDS ago by default, and with a policy whatever that says."""
    ip_range: str = ""


def terms_of(permissions: str | None, ttl: timedelta | None, policy_id: str) -> Terms:
    """Return the terms of a grant: for reading and for an hour, if nobody says otherwise."""
    if policy_id:
        return Terms(permissions or "", ttl, policy_id)
    return Terms("r" if permissions is None else permissions, TTL_DEFAULT if ttl is None else ttl)


class Grant(msgspec.Struct, frozen=True):
    """A token, and what it is good for. It is a secret: nothing prints it by accident."""

    token: str
    table: str
    span: GrantedRange
    permissions: str
    """Empty if the stored policy names them."""
    start: datetime | None
    expires: datetime | None
    """None if the stored policy says when."""
    policy_id: str = ""
    endpoint: str = ""

    @property
    def url(self) -> str:
        """The table with the token, for whoever takes an address; a secret as well."""
        return f"{self.endpoint.rstrip('/')}/{self.table}?{self.token}"

    def holds(self, key: RowKey) -> bool:
        return self.span.holds(key)

    def __repr__(self) -> str:
        until = "as its policy says" if self.expires is None else f"until {self.expires}"
        return f"<grant of {self.permissions!r} on {self.table!r} {until}>"


class Issuer:
    """Signs grants with the key of an account."""

    def __init__(
        self, account_name: str, account_key: str, clock: Clock, *, endpoint: str = ""
    ) -> None:
        self._credential = AzureNamedKeyCredential(account_name, account_key)
        self._clock = clock
        self._endpoint = endpoint

    def grant(
        self, model: EntityType[Any], given: Mapping[str, Any], terms: Terms, *, force: bool = False
    ) -> Grant:
        """Sign one token; refuse where several are needed."""
        signed = self.grants(model, given, terms, force=force)
        if len(signed) > 1:
            raise UsageError(
                "SeveralGrants",
                f"These keys of {model.name} are not one range: {len(signed)} tokens are needed.",
                facts={"type": model.name, "grants": len(signed)},
                hint="Ask for grants(), and use for each key the one that holds it.",
            )
        return signed[0]

    def grants(
        self, model: EntityType[Any], given: Mapping[str, Any], terms: Terms, *, force: bool = False
    ) -> list[Grant]:
        """Sign a token for each range of keys that `given` stands for.

        A type that indexes, views or derived fields follow may be granted for reading only:
        whoever writes with a token of this type leaves them as they were. `force=True` says
        that the holder sees to them.
        """
        check_terms(terms)
        if not force:
            _check_followers(model, terms)
        return [self._sign(model.table, each, terms) for each in ranges(model, given)]

    def _sign(self, table: str, span: GrantedRange, terms: Terms) -> Grant:
        now = _EPOCH + timedelta(microseconds=self._clock.ticks() // 10)
        start = terms.start
        if start is None and not terms.policy_id:
            start = now - timedelta(seconds=SKEW_SECONDS)
        # The SDK prints the clock of a moment as if it were UTC, whatever its zone.
        start = None if start is None else start.astimezone(UTC).replace(microsecond=0)
        expires = None
        if terms.ttl is not None:
            expires = (max(now, start or now) + terms.ttl).replace(microsecond=0)
        permissions = _ordered(terms.permissions)
        token = generate_table_sas(
            self._credential,
            table,
            permission=TableSasPermissions.from_string(permissions) if permissions else None,
            start=start,
            expiry=expires,
            policy_id=terms.policy_id or None,
            ip_address_or_range=terms.ip_range or None,
            protocol="https" if self._endpoint.startswith("https:") else None,
            start_pk=span.start_pk,
            start_rk=span.start_rk,
            end_pk=span.end_pk,
            end_rk=span.end_rk,
        )
        return Grant(
            token, table, span, permissions, start, expires, terms.policy_id, self._endpoint
        )


def check_terms(terms: Terms) -> None:
    """Refuse terms that no service would honour, or that would never end."""
    message = ""
    letters = terms.permissions
    if not terms.policy_id and (not letters or terms.ttl is None):
        message = "A grant without a stored policy says what it permits, and for how long."
    elif not set(letters) <= set(PERMISSIONS) or len(set(letters)) != len(letters):
        message = f"Permissions are letters of {PERMISSIONS!r}, each once."
    elif terms.ttl is not None and not _is_lifetime(terms.ttl):
        message = f"A grant lasts for a timedelta above zero, of {TTL_DAYS_MAX} days at most."
    elif len(terms.policy_id) > POLICY_ID_CHARACTERS_MAX:
        message = f"The name of a policy has at most {POLICY_ID_CHARACTERS_MAX} characters."
    elif terms.start is not None and terms.start.utcoffset() is None:
        message = "The start of a grant is a moment with a zone."
    if message:
        raise UsageError(
            "GrantTerms",
            message,
            hint='Say permissions="r" and ttl=timedelta(hours=1), or name a stored policy.',
        )


def _is_lifetime(ttl: object) -> bool:
    return isinstance(ttl, timedelta) and timedelta(0) < ttl <= timedelta(days=TTL_DAYS_MAX)


def _check_followers(model: EntityType[Any], terms: Terms) -> None:
    if not set(terms.permissions) & set("aud"):
        return
    followers = model.followers
    has_derived = any(field.derived for field in model.fields.values())
    if followers.indexes or followers.views or followers.dependents or has_derived:
        raise UsageError(
            "GrantBypassesIndexes",
            f"Indexes, views or derived fields follow {model.name}: whoever writes with a token of "
            "their own leaves them as they were.",
            facts={"type": model.name},
            hint='Grant reading ("r") and write through a service of yours, or say force=True.',
        )


def _ordered(letters: str) -> str:
    return "".join(letter for letter in PERMISSIONS if letter in letters)
