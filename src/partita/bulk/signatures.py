"""Shared access signatures from their terms, and what they permit in words. Pure."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from partita.errors import ConfigurationError
from partita.service.auth.sas import WHOLE_CONTAINER, Sas, sign
from partita.service.auth.shared_key import SigningKey
from partita.tables.edm import text_of, ticks_of
from partita.ticks import TICKS_PER_SECOND

VERSION = "2019-02-02"
START_SECONDS_AGO = 300
"""A token without a start is refused by a server whose clock is behind."""
_UNITS = {"m": 60, "h": 3600, "d": 86400}
_AFTER = re.compile(r"(\d{1,6})([mhd])", re.ASCII)
_LETTERS = {
    "t": {"r": "read", "a": "add", "u": "update", "d": "delete"},
    "q": {"r": "peek", "a": "add", "u": "update", "p": "receive"},
    "b": {
        "r": "read",
        "a": "append",
        "c": "create",
        "w": "write",
        "d": "delete",
        "l": "list",
        "t": "use tags of",
    },
    "": {
        "r": "read",
        "w": "write",
        "d": "delete",
        "l": "list",
        "a": "add",
        "c": "create",
        "u": "update",
        "p": "process",
    },
}
_ORDERS = {"t": "raud", "q": "raup", "b": "racwdlt", "": "rwdlacup"}
_OBJECTS = {
    "t": "entities of the table",
    "q": "messages of the queue",
    "b": "blobs of the container",
}
_SERVICES = {"t": "tables", "q": "queues", "b": "blobs"}


class SasTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a signature is for. Without a table, queue or container it is for the account."""

    table: str = ""
    queue: str = ""
    container: str = ""
    permissions: str = "r"
    """Letters, such as raud."""
    expires: str = "1h"
    """After a time (90m, 12h, 7d) or at 2026-12-31T00:00:00Z."""
    starts: str = ""
    """Empty: five minutes ago."""
    from_partition: str = ""
    from_row: str = ""
    to_partition: str = ""
    to_row: str = ""
    ip: str = ""
    https_only: bool = False
    policy: str = ""
    """A stored access policy, which has the permissions and the times instead."""
    services: str = "t"
    """Of an account signature: t, q and b."""
    resource_types: str = "co"
    """Of an account signature: s, c and o."""


class SignedTerms(msgspec.Struct, frozen=True):
    """A signature, which gives its holder these permissions."""

    url: str
    connection_string: str
    token: str
    grants: str
    """What it permits, as a sentence."""
    expiry: str


class _Target(NamedTuple):
    service: str
    """t, q or b; empty for an account signature."""
    name: str


def sign_terms(
    terms: SasTerms, account: str, key: str, endpoints: Mapping[str, str], now: int
) -> SignedTerms:
    """Sign with a key of the account; ConfigurationError if the terms contradict each other."""
    if not key:
        raise ConfigurationError(
            "AccountKeyMissing",
            "Making a signature requires the key of the account.",
            hint="Connect with a connection string that has AccountName and AccountKey.",
        )
    target = _target(terms)
    made = _sas_of(terms, target, now)
    token = sign(
        made, service=target.service or "t", account=account, key=SigningKey.from_base64(key)
    )
    kind = _SERVICES[target.service or made.services[:1] or "t"]
    address = endpoints.get(kind) or next(iter(endpoints.values()))
    url = f"{address}/{target.name}?{token}" if target.name else f"{address}?{token}"
    shown = {"t": "Table", "q": "Queue", "b": "Blob"}
    wanted = [target.service] if target.service else [s for s in "tqb" if s in made.services]
    members = [
        f"{shown[s]}Endpoint={endpoints[_SERVICES[s]]}" for s in wanted if _SERVICES[s] in endpoints
    ]
    text = ";".join([*members, f"SharedAccessSignature={token}"])
    return SignedTerms(url, text, token, _in_words(made, target, account), made.expiry)


def _target(terms: SasTerms) -> _Target:
    named = [
        _Target(service, name)
        for service, name in (("t", terms.table), ("q", terms.queue), ("b", terms.container))
        if name
    ]
    if len(named) > 1:
        raise ConfigurationError(
            "Configuration",
            "A signature is for one table, queue or container.",
            hint="Name one of them, or none for the whole account.",
        )
    return named[0] if named else _Target("", "")


def _sas_of(terms: SasTerms, target: _Target, now: int) -> Sas:
    letters = _LETTERS[target.service]
    if not terms.permissions or set(terms.permissions) - set(letters):
        raise ConfigurationError(
            "Configuration",
            f"{terms.permissions!r} are not permissions here.",
            hint="Use: " + ", ".join(f"{letter} ({what})" for letter, what in letters.items()),
        )
    permissions = "".join(each for each in _ORDERS[target.service] if each in terms.permissions)
    keys = {
        "start_partition_key": terms.from_partition,
        "start_row_key": terms.from_row,
        "end_partition_key": terms.to_partition,
        "end_row_key": terms.to_row,
    }
    _check_range(keys, target)
    start = (
        _moment(terms.starts, now) if terms.starts else now - START_SECONDS_AGO * TICKS_PER_SECOND
    )
    expiry = _moment(terms.expires, now)
    if expiry <= now or expiry <= start:
        raise ConfigurationError(
            "Configuration",
            "The signature would never be valid.",
            hint="Give --expires a later time.",
        )
    if not (terms.ip + terms.policy).isprintable():
        raise ConfigurationError(
            "Configuration",
            "The address or the policy of the signature has a line break or a control character.",
            hint="Give --ip an address or a range, --policy the name of a policy.",
        )
    shared = {
        "version": VERSION,
        "start": _second(start),
        "expiry": _second(expiry),
        "ip_range": terms.ip,
        "protocols": "https" if terms.https_only else "",
    }
    if not target.service:
        return Sas(
            permissions=permissions,
            services=_chosen(terms.services, "bqt"),
            resource_types=_chosen(terms.resource_types, "sco"),
            **shared,
        )
    if terms.policy:
        # A signature must not repeat what its policy has: Azure refuses it.
        permissions = ""
        shared |= {"policy_id": terms.policy, "start": "", "expiry": ""}
    if target.service == "t":
        return Sas(permissions=permissions, table=target.name.lower(), **keys, **shared)
    if target.service == "q":
        return Sas(permissions=permissions, container=target.name, **shared)
    return Sas(permissions=permissions, container=target.name, resource=WHOLE_CONTAINER, **shared)


def _chosen(given: str, known: str) -> str:
    if not given or set(given) - set(known):
        raise ConfigurationError(
            "Configuration",
            f"{given!r} are not letters of an account signature.",
            hint=f"Use some of: {', '.join(known)}.",
        )
    return "".join(each for each in known if each in given)


def _check_range(keys: dict[str, str], target: _Target) -> None:
    if any(keys.values()) and target.service != "t":
        raise ConfigurationError(
            "Configuration",
            "Only the signature of a table has a range of keys.",
            hint="Name a table.",
        )
    for row, partition in (
        ("start_row_key", "start_partition_key"),
        ("end_row_key", "end_partition_key"),
    ):
        if keys[row] and not keys[partition]:
            raise ConfigurationError(
                "Configuration",
                "A row key limits its partition only.",
                hint="Give --from-partition with --from-row, and --to-partition with --to-row.",
            )


def _moment(text: str, now: int) -> int:
    found = _AFTER.fullmatch(text.strip())
    if found:
        return now + int(found[1]) * _UNITS[found[2]] * TICKS_PER_SECOND
    ticks = ticks_of(text.strip())
    if ticks is None:
        raise ConfigurationError(
            "Configuration",
            f"{text!r} is not a time.",
            hint="Write 90m, 12h or 7d, or a time such as 2026-12-31T00:00:00Z.",
        )
    return ticks


def _second(ticks: int) -> str:
    return text_of(ticks - ticks % TICKS_PER_SECOND)


# --- words


def _in_words(made: Sas, target: _Target, account: str) -> str:
    if made.policy_id:
        return _policy_in_words(made, target)
    letters = _LETTERS[target.service]
    verbs = [letters[letter] for letter in made.permissions]
    listed = ", ".join(verbs[:-1]) + (" and " if len(verbs) > 1 else "") + verbs[-1]
    if target.service:
        what = f"{listed} {_OBJECTS[target.service]} {target.name}{_range_in_words(made)}"
    else:
        names = " and ".join(_SERVICES[s] for s in "tqb" if s in made.services)
        kinds = {"s": "the service", "c": "tables, queues and containers", "o": "what is in them"}
        of = ", ".join(kinds[r] for r in made.resource_types)
        what = f"{listed} in the {names} of the account {account}: {of}"
    parts = [f"Permits to {what}", f"from {made.start} to {made.expiry}", *_limits_in_words(made)]
    return ", ".join(parts) + "."


def _policy_in_words(made: Sas, target: _Target) -> str:
    what = f"{_OBJECTS[target.service]} {target.name}{_range_in_words(made)}"
    parts = [
        f"Permits what the policy {made.policy_id} permits, while it is valid, on {what}",
        *_limits_in_words(made),
    ]
    return ", ".join(parts) + "."


def _limits_in_words(made: Sas) -> list[str]:
    parts = [f"from the address {made.ip_range}"] if made.ip_range else []
    return [*parts, "over https only"] if made.protocols else parts


def _range_in_words(made: Sas) -> str:
    def end(partition: str, row: str) -> str:
        return f"partition {partition!r}" + (f", row {row!r}," if row else "")

    first = end(made.start_partition_key, made.start_row_key) if made.start_partition_key else ""
    last = end(made.end_partition_key, made.end_row_key) if made.end_partition_key else ""
    if first and first == last:
        return f" in {first.rstrip(',')}"
    text = f" from {first}" if first else ""
    return text + (f" up to {last}" if last else "")
