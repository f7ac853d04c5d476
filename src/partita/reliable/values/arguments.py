"""Checks of what callers hand in: each returns its argument, or says what it must be."""

from partita.errors import UsageError
from partita.reliable.values import limits

TIMEOUT_SECONDS_MAX = 1e9
COUNT_MAX = 2**62
"""More than there can be of anything here."""


def checked_timeout(timeout: object) -> float:
    """Refuse what is no time to wait; 0 means try once."""
    if type(timeout) is float and timeout >= 0:
        return timeout
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and timeout >= 0:
        return min(timeout, TIMEOUT_SECONDS_MAX)  # some whole numbers fit into no float
    raise UsageError(
        "InvalidTimeout",
        f"A time-out is a number of seconds from 0 up, not {timeout!r}.",
        hint="0 tries once; leave it out for the default.",
    )


def checked_ttl(ttl: object) -> float | None:
    """Refuse what is no time to live; None means for ever."""
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
        f"A time to live is a number of seconds above 0, not {ttl!r}.",
        hint="Leave it out for values that never expire.",
    )


def checked_count(count: object) -> int:
    """Refuse what is no number of things."""
    if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
        return min(count, COUNT_MAX)
    raise UsageError(
        "InvalidLimit",
        f"A limit or count is a whole number from 0 up, not {count!r}.",
        hint="Leave a limit out for all.",
    )


def checked_limit(limit: object) -> int:
    """Return the limit, -1 for none."""
    return -1 if limit is None else checked_count(limit)


def checked_sequence(sequence: object) -> int:
    """Refuse what is no place in the log."""
    if isinstance(sequence, int) and not isinstance(sequence, bool) and sequence >= 0:
        return sequence
    raise UsageError(
        "InvalidSequence",
        f"A sequence is a whole number from 0 up, not {sequence!r}.",
        hint="commit_sequence is None where nothing was written; a feed begins with since=0.",
    )


def checked_name(name: object) -> str:
    """Refuse what cannot name a collection."""
    longest = limits.COLLECTION_NAME_CHARACTERS_MAX
    if isinstance(name, str) and 0 < len(name) <= longest and name.isprintable():
        return name
    raise UsageError(
        "InvalidName",
        f"A collection's name is printable text of 1 to {longest} characters, not {name!r}.",
    )


def checked_index_name(name: object) -> str:
    """Refuse what find() could not take as a keyword."""
    taken = ("tx", "reverse", "limit", "timeout")
    if isinstance(name, str) and name.isidentifier() and name not in taken:
        return name
    raise UsageError(
        "InvalidName",
        f"An index is named like a keyword argument of find(), not {name!r}.",
        hint='indexes={"item": function} is found by find(snapshot, item=...).',
    )


def checked_idempotency_key(key: object) -> str:
    """Refuse what cannot be remembered as a key."""
    longest = limits.IDEMPOTENCY_KEY_CHARACTERS_MAX
    if isinstance(key, str) and 0 < len(key) <= longest and key.isprintable():
        return key
    raise UsageError(
        "InvalidIdempotencyKey",
        f"An idempotency key is printable text of 1 to {longest} characters.",
        hint="Use the request's own identifier.",
    )


def checked_mutation_check(mode: object) -> str:
    """Refuse what says nothing about how often values are checked."""
    if mode in ("on", "sample", "off"):
        return str(mode)
    raise UsageError(
        "InvalidMutationCheck",
        f"The mutation check is on, sample or off, not {mode!r}.",
        hint="Set PARTITA_CHECK_MUTATION to one of them, or leave it out.",
    )
