"""Shared access signatures that are restricted to the keys of given entities.

`granted_ranges.py` decides which keys those are. Here the terms of a grant are checked, and an
`Issuer` signs it with the account key, using the official SDK.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import TableSasPermissions, generate_table_sas

from partita.errors import LimitExceededError, UsageError
from partita.patterns.grants.granted_ranges import GrantedRange, ranges
from partita.patterns.protocol.calls import TablePolicy
from partita.patterns.protocol.values import RowKey
from partita.patterns.types.decorators import EntityType
from partita.tables.limits import POLICIES_MAX, POLICY_ID_CHARACTERS_MAX
from partita.ticks import Clock

PERMISSIONS = "raud"
"""Read, add, update, delete, in the order of a token."""
SKEW_SECONDS = 300
"""A grant begins this long before now, because the clock of the service may be slow."""
TTL_DAYS_MAX = 365
"""Only a new account key revokes a token early: longer grants need a stored policy."""

TTL_DEFAULT = timedelta(hours=1)
"""The default duration of a grant."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class GrantTerms(msgspec.Struct, frozen=True):
    """What a grant permits, and for how long.

    A stored policy can define either instead; a term must not be defined in both.
    """

    permissions: str = ""
    """Letters of `raud`. Upserts need `a` and `u`."""
    ttl: timedelta | None = None
    policy_id: str = ""
    start: datetime | None = None
    """Defaults to SKEW_SECONDS ago, or to the start of the stored policy."""
    ip_range: str = ""


def terms_of(permissions: str | None, ttl: timedelta | None, policy_id: str) -> GrantTerms:
    """Return the terms of a grant; the default is reading for one hour."""
    if policy_id:
        return GrantTerms(permissions or "", ttl, policy_id)
    return GrantTerms(
        "r" if permissions is None else permissions, TTL_DEFAULT if ttl is None else ttl
    )


class Grant(msgspec.Struct, frozen=True):
    """A token and its terms. The token is a secret, which `repr` does not include."""

    token: str
    table: str
    span: GrantedRange
    permissions: str
    """Empty if the stored policy defines them."""
    start: datetime | None
    expires: datetime | None
    """None if the stored policy defines it."""
    policy_id: str = ""
    endpoint: str = ""

    @property
    def url(self) -> str:
        """The address of the table with the token; a secret too."""
        return f"{self.endpoint.rstrip('/')}/{self.table}?{self.token}"

    def holds(self, key: RowKey) -> bool:
        return self.span.holds(key)

    def __repr__(self) -> str:
        until = "by its stored policy" if self.expires is None else f"until {self.expires}"
        return f"<grant of {self.permissions!r} on {self.table!r} {until}>"


class Issuer:
    """Signs grants with an account key."""

    def __init__(
        self, account_name: str, account_key: str, clock: Clock, *, endpoint: str = ""
    ) -> None:
        self._credential = AzureNamedKeyCredential(account_name, account_key)
        self._clock = clock
        self._endpoint = endpoint

    def grant(
        self,
        model: EntityType[Any],
        given: Mapping[str, Any],
        terms: GrantTerms,
        *,
        force: bool = False,
    ) -> Grant:
        """Sign one token; raise if several are needed."""
        signed = self.grants(model, given, terms, force=force)
        if len(signed) > 1:
            raise UsageError(
                "SeveralGrants",
                f"These keys of {model.name} are {len(signed)} ranges, each with its own token.",
                facts={"type": model.name, "grants": len(signed)},
                hint="Use grants(), and for each key the grant whose holds(key) is true.",
            )
        return signed[0]

    def grants(
        self,
        model: EntityType[Any],
        given: Mapping[str, Any],
        terms: GrantTerms,
        *,
        force: bool = False,
    ) -> list[Grant]:
        """Sign a token for each range of keys that `given` selects.

        A type with indexes, views or dependent derived fields can be granted for reading only,
        because writes with a token do not update them. `force=True` overrides this.
        """
        check_terms(terms)
        if not force:
            _check_followers(model, terms)
        return [self._sign(model.table, each, terms) for each in ranges(model, given)]

    def grant_partitions(
        self,
        models: Sequence[EntityType[Any]],
        span: GrantedRange,
        terms: GrantTerms,
        *,
        force: bool = False,
    ) -> Grant:
        """Sign a token for whole partitions of a table; `models` are the types stored there."""
        check_terms(terms)
        if not force:
            for model in models:
                _check_followers(model, terms)
        return self._sign(models[0].table, span, terms)

    def _sign(self, table: str, span: GrantedRange, terms: GrantTerms) -> Grant:
        now = _EPOCH + timedelta(microseconds=self._clock.ticks() // 10)
        start = terms.start
        if start is None and not terms.policy_id:
            start = now - timedelta(seconds=SKEW_SECONDS)
        # The SDK formats the local time as if it were UTC, whatever its time zone.
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


def check_terms(terms: GrantTerms) -> None:
    """Raise for terms that no service would accept, or that never expire."""
    message = ""
    letters = terms.permissions
    if not terms.policy_id and (not letters or terms.ttl is None):
        message = "A grant without a stored policy requires permissions and a ttl."
    elif not set(letters) <= set(PERMISSIONS) or len(set(letters)) != len(letters):
        message = f"Permissions are letters of {PERMISSIONS!r}, each once."
    elif terms.ttl is not None and not _is_lifetime(terms.ttl):
        message = f"The ttl is a positive timedelta of at most {TTL_DAYS_MAX} days."
    elif len(terms.policy_id) > POLICY_ID_CHARACTERS_MAX:
        message = f"The name of a policy has at most {POLICY_ID_CHARACTERS_MAX} characters."
    elif terms.start is not None and terms.start.utcoffset() is None:
        message = "The start of a grant is a datetime with a time zone."
    if message:
        raise UsageError(
            "GrantTerms",
            message,
            hint='Use permissions="r" and ttl=timedelta(hours=1), or the id of a stored policy.',
        )


def check_policies(policies: Mapping[str, TablePolicy]) -> None:
    """Raise for policies that no service would accept."""
    if len(policies) > POLICIES_MAX:
        raise LimitExceededError(
            "TooManyPolicies",
            f"A table has at most {POLICIES_MAX} stored policies, not {len(policies)}.",
            hint="Use a policy for each kind of user, and the keys of a grant for each user.",
        )
    for name, policy in policies.items():
        check_terms(GrantTerms(policy.permissions, policy_id=name, start=policy.start))


def _is_lifetime(ttl: object) -> bool:
    return isinstance(ttl, timedelta) and timedelta(0) < ttl <= timedelta(days=TTL_DAYS_MAX)


def _check_followers(model: EntityType[Any], terms: GrantTerms) -> None:
    if not set(terms.permissions) & set("aud"):
        return
    followers = model.followers
    has_derived = any(field.derived for field in model.fields.values())
    if followers.indexes or followers.views or followers.dependents or has_derived:
        raise UsageError(
            "GrantBypassesIndexes",
            f"{model.name} has indexes, views or derived fields, which writes with a token would "
            "not update.",
            facts={"type": model.name},
            hint='Grant permissions="r" and write through a service, or use force=True.',
        )


def _ordered(letters: str) -> str:
    return "".join(letter for letter in PERMISSIONS if letter in letters)
