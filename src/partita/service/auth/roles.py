"""Data roles: what the roles of a token permit, as permission letters by type of resource. Pure.

The roles are those of Azure, by their names; blanks, dots and case of a name do not count, because
application roles of Entra ID contain no blanks. A role of one service permits nothing in another.
"""

from collections.abc import Iterable
from itertools import combinations

import msgspec

from partita.errors import ConfigurationError

DELEGATE = ("k",)
"""The permission to get a user delegation key: roles have it, and no SAS."""


class Rights(msgspec.Struct, frozen=True, gc=False):
    """What the roles of a token permit in one service: permission letters by resource type."""

    service: str = ""
    container: str = ""
    object: str = ""
    has_policies: bool = False
    """Whether access policies may be read and set."""

    def letters_for(self, resource: str) -> str:
        """Return the letters for a resource type: s, c or o.

        >>> rights_of(["Storage Queue Data Reader"], "q").letters_for("o")
        'r'
        """
        return {"s": self.service, "c": self.container}.get(resource, self.object)

    @property
    def delegated(self) -> str:
        """The letters that a service SAS can have which these rights sign.

        >>> rights_of(["Storage Blob Data Reader"], "b").delegated
        'lr'
        """
        return "".join(sorted({*self.object, *(set(self.container) & {"l", "f"})}))


EVERYTHING = Rights("rwlfk", "rlcwdft", "raupdcwxtlfymeoi", has_policies=True)
"""Of the owner of a service, and of every token of `--oauth development`."""
NOTHING = Rights()

_PROPERTIES = Rights(service="rw")
_BY_ROLE: dict[str, dict[str, Rights]] = {
    "Storage Account Contributor": dict.fromkeys("tqb", _PROPERTIES),
    "Storage Table Data Reader": {"t": Rights("", "l", "r")},
    "Storage Table Data Contributor": {"t": Rights("", "lcwd", "raud")},
    "Storage Table Data Owner": {"t": EVERYTHING},
    "Storage Queue Data Reader": {"q": Rights("lk", "r", "r")},
    "Storage Queue Data Contributor": {"q": Rights("lk", "rcwd", "raupd")},
    "Storage Queue Data Message Processor": {"q": Rights("k", "", "rp")},
    "Storage Queue Data Message Sender": {"q": Rights("k", "", "a")},
    "Storage Queue Delegator": {"q": Rights("k")},
    "Storage Queue Data Owner": {"q": EVERYTHING},
    "Storage Blob Data Reader": {"b": Rights("lk", "rl", "r")},
    "Storage Blob Data Contributor": {"b": Rights("lk", "rlcwd", "racwd")},
    "Storage Blob Data Owner": {"b": Rights("lfk", "rlcwdft", "racwdxtfy", has_policies=True)},
    "Storage Blob Delegator": {"b": Rights("k")},
}
ROLES = tuple(_BY_ROLE)
"""The names of all roles. Azure has no owner of tables and of queues: here they may do everything
in their service."""


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


_PLAIN = {_plain(name): name for name in ROLES}


def find_role(name: str) -> str | None:
    """Find a role by its name.

    >>> find_role("StorageTableDataReader")
    'Storage Table Data Reader'
    """
    return _PLAIN.get(_plain(name))


class RoleRule(msgspec.Struct, frozen=True):
    """A value of the roles claim, and the role that it stands for."""

    value: str
    role: str
    account: str = ""
    """The account that the role applies to; empty for all."""

    @property
    def text(self) -> str:
        """The rule as it is written in the settings."""
        return f"{self.value}={self.role}" + (f"@{self.account}" if self.account else "")


def parse_role_rule(text: str) -> RoleRule:
    """Parse `VALUE=ROLE` or `VALUE=ROLE@ACCOUNT`.

    >>> parse_role_rule("readers=Storage Table Data Reader@orders").account
    'orders'
    """
    value, equals, named = text.partition("=")
    name, _, account = named.partition("@")
    role = find_role(name)
    if not equals or not value.strip() or role is None:
        raise ConfigurationError(
            "Configuration",
            f"{text!r} is not a rule for roles.",
            hint=f"Write VALUE=ROLE or VALUE=ROLE@ACCOUNT with one of: {', '.join(ROLES)}.",
        )
    return RoleRule(value.strip(), role, account.strip())


def roles_in(values: Iterable[str], rules: Iterable[RoleRule], account: str) -> list[str]:
    """Return the roles in an account that the values of a claim stand for.

    >>> roles_in(["readers"], [parse_role_rule("readers=Storage Blob Data Reader@a1")], "a2")
    []
    """
    given = set(values)
    found = {role for value in given if (role := find_role(value)) is not None}
    found |= {rule.role for rule in rules if rule.value in given and rule.account in ("", account)}
    return sorted(found)


def rights_of(roles: Iterable[str], service: str) -> Rights:
    """Return what some roles permit together in a service.

    >>> rights_of(["Storage Blob Delegator", "Storage Blob Data Reader"], "b").service
    'kl'
    """
    rights = [_BY_ROLE[role][service] for role in roles if service in _BY_ROLE[role]]
    return Rights(
        _together(each.service for each in rights),
        _together(each.container for each in rights),
        _together(each.object for each in rights),
        any(each.has_policies for each in rights),
    )


def _together(letters: Iterable[str]) -> str:
    return "".join(sorted(set().union(*letters)))


def _delegated_in(service: str) -> tuple[str, ...]:
    own = [role for role, rights in _BY_ROLE.items() if service in rights]
    subsets = (some for size in range(len(own) + 1) for some in combinations(own, size))
    found = {rights_of(some, service).delegated for some in subsets}
    return tuple(sorted(found | {EVERYTHING.delegated}))


DELEGATED = {"b": _delegated_in("b"), "q": _delegated_in("q")}
"""What the SAS of a user delegation key can permit, by service: one text per set of roles."""
