"""Checks of arguments: each returns the argument, or raises UsageError."""

from partita.errors import UsageError
from partita.reliable.values import limits

TIMEOUT_SECONDS_MAX = 1e9
COUNT_MAX = 2**62
"""A number that no count can reach."""


def checked_timeout(timeout: object) -> float:
    """Return a time-out in seconds; 0 means try once."""
    if type(timeout) is float and timeout >= 0:
        return timeout
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0:
        return min(timeout, TIMEOUT_SECONDS_MAX)  # some integers do not fit into a float
    raise UsageError(
        "InvalidTimeout",
        f"A time-out must be a number of seconds of at least 0, not {timeout!r}.",
        hint="Pass 0 to try once, or omit it for the default.",
    )


def checked_ttl(ttl: object) -> float | None:
    """Return a time to live in seconds; None means without expiry."""
    if ttl is None:
        return None
    if (
        isinstance(ttl, int | float)
        and not isinstance(ttl, bool)
        and 0 < ttl <= limits.TTL_SECONDS_MAX
    ):
        return ttl
    raise UsageError(
        "InvalidTimeout",
        f"A time to live must be a number of seconds above 0, not {ttl!r}.",
        hint="Omit ttl= for values that never expire.",
    )


def checked_count(count: object) -> int:
    """Return a count or limit."""
    if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
        return min(count, COUNT_MAX)
    raise UsageError(
        "InvalidLimit",
        f"A limit or count must be an integer of at least 0, not {count!r}.",
        hint="Omit limit= for no limit.",
    )


def checked_limit(limit: object) -> int:
    """Return the limit, -1 for none."""
    return -1 if limit is None else checked_count(limit)


def checked_sequence(sequence: object) -> int:
    """Return a sequence of the log."""
    if isinstance(sequence, int) and not isinstance(sequence, bool) and sequence >= 0:
        return sequence
    raise UsageError(
        "InvalidSequence",
        f"A sequence must be an integer of at least 0, not {sequence!r}.",
        hint="Pass a commit_sequence that is not None; since=0 starts a feed at the beginning.",
    )


def checked_name(name: object) -> str:
    """Return the name of a collection."""
    longest = limits.COLLECTION_NAME_CHARACTERS_MAX
    if isinstance(name, str) and 0 < len(name) <= longest and name.isprintable():
        return name
    raise UsageError(
        "InvalidName",
        f"A collection name must be printable text of 1 to {longest} characters, not {name!r}.",
    )


def checked_index_name(name: object) -> str:
    """Return the name of an index, which find() accepts as a keyword."""
    taken = ("tx", "reverse", "limit", "timeout")
    if isinstance(name, str) and name.isidentifier() and name not in taken:
        return name
    raise UsageError(
        "InvalidName",
        f"An index name must be a keyword argument that find() does not have, not {name!r}.",
        hint='Choose an identifier: indexes={"item": function} is used as find(tx, item=...).',
    )


def checked_idempotency_key(key: object) -> str:
    """Return an idempotency key."""
    longest = limits.IDEMPOTENCY_KEY_CHARACTERS_MAX
    if isinstance(key, str) and 0 < len(key) <= longest and key.isprintable():
        return key
    raise UsageError(
        "InvalidIdempotencyKey",
        f"An idempotency key must be printable text of 1 to {longest} characters.",
        hint="Use the identifier of the request.",
    )


def checked_mutation_check(mode: object) -> str:
    """Return a mode of the mutation check."""
    if mode in ("on", "sample", "off"):
        return str(mode)
    raise UsageError(
        "InvalidMutationCheck",
        f"The mutation check must be on, sample or off, not {mode!r}.",
        hint="Set PARTITA_CHECK_MUTATION to one of these, or unset it.",
    )
