"""The root of all errors of Partita and its four families.

An error says what happened to whom (`message`, `facts`), whether trying again can help
(`retry`) and what to do (`hint`). `code` is stable: it is the anchor in docs/errors.md, the
code on the wire and the key in logs. Facts never hold property values, keys or signatures.
"""

import enum
from collections.abc import Mapping


class Retry(enum.Enum):
    """What trying again is worth."""

    NO = "no"
    """The same call can never work."""
    REREAD = "reread"
    """Read the state again and decide again."""
    LATER = "later"
    """The same call may work later."""


class PartitaError(Exception):
    """The root: catch this to catch everything that Partita raises on purpose."""

    retry = Retry.NO

    def __init__(
        self,
        code: str,
        message: str,
        *,
        facts: Mapping[str, object] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.facts: dict[str, object] = dict(facts or {})
        self.hint = hint

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.facts.items())
        parts = [f"{self.code}: {self.message}", f"({facts})" if facts else "", self.hint]
        return " ".join(part for part in parts if part)


class UsageError(PartitaError):
    """The caller asked for something that can never work."""


class InvalidKeyError(UsageError):
    """A partition key, row key or table name breaks the rules."""


class InvalidPropertyError(UsageError):
    """A property's name, type or value breaks the rules."""


class InvalidRequestError(UsageError):
    """A request cannot be understood: its address, headers, body or options."""


class GroupRuleError(UsageError):
    """A group breaks a rule of entity group transactions."""


class FilterSyntaxError(UsageError):
    """A filter cannot be parsed, or uses what filters do not have."""


class LimitExceededError(UsageError):
    """Something is larger, longer or more than its named limit."""


class NotAuthorizedError(UsageError):
    """The request is not who it says it is, or may not do what it asks."""


class NotSupportedError(UsageError):
    """The service has this operation, Partita has not."""


class ConfigurationError(UsageError):
    """A flag, variable or file asks for something that cannot be started."""


class ConflictError(PartitaError):
    """The state disagrees with the request: read again, decide again."""

    retry = Retry.REREAD


class EntityExistsError(ConflictError):
    """An insert met an entity with the same keys."""


class EntityNotFoundError(ConflictError):
    """No entity has these keys."""


class ETagMismatchError(ConflictError):
    """The entity changed since the etag was read."""


class TableExistsError(ConflictError):
    """A table of this name exists, in any case of its letters."""


class TableNotFoundError(ConflictError):
    """No table has this name."""


class UnavailableError(PartitaError):
    """Nothing is wrong with the request; later it may work."""

    retry = Retry.LATER


class StoreBusyError(UnavailableError):
    """The store is overloaded or stopping."""


class StoreLockedError(UnavailableError):
    """Another process holds the store."""


class StoreFullError(UnavailableError):
    """The disk is full: reads and deletes go on, other writes wait for space."""


class StoreStoppedError(UnavailableError):
    """A sync failed: nothing more is acknowledged until a restart has recovered from disk."""


class DamageError(PartitaError):
    """What is stored is not what was written: stop."""


class ChecksumError(DamageError):
    """Stored bytes do not match their checksum."""


class FormatVersionError(DamageError):
    """The files were written by another version of Partita."""
