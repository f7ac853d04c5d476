"""Names of containers, blobs and blob snapshots. Pure.

A blob's name is any text of 1 to 1024 characters: it is a key in the database and never part of
a path on disk.
"""

import re
from datetime import UTC, datetime, timedelta

from partita.blobs.rules import limits
from partita.errors import InvalidRequestError, LimitExceededError
from partita.refusals import invalid_name, invalid_name_length, invalid_parameter
from partita.ticks import TICKS_PER_SECOND

LOGS = "$logs"
"""The container of Storage Analytics: clients read it and delete its blobs, and do not list it."""
SPECIAL_CONTAINERS = frozenset({"$root", "$web", LOGS})

DELETED_MARK = "!"
"""It separates the name of a deleted container from its version: no name of a client has it."""

LIVE = 2**63 - 1
"""The snapshot time of the blob itself: it sorts after all snapshots."""

_CONTAINER = re.compile(r"[a-z0-9](-?[a-z0-9])*")
_SNAPSHOT = re.compile(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d{1,7}))?Z")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def check_container_name(name: str) -> str:
    """Check a name and return it."""
    if name in SPECIAL_CONTAINERS:
        return name
    shortest, longest = limits.CONTAINER_NAME_CHARACTERS_MIN, limits.CONTAINER_NAME_CHARACTERS_MAX
    if not shortest <= len(name) <= longest:
        raise invalid_name_length(
            LimitExceededError, f"Use {shortest} to {longest} characters in a container name."
        )
    if not _CONTAINER.fullmatch(name):
        raise invalid_name(
            InvalidRequestError, "Use lower-case letters, digits and single dashes between them."
        )
    return name


def check_blob_name(name: str) -> str:
    """Check a name and return it."""
    longest, segments = limits.BLOB_NAME_CHARACTERS_MAX, limits.BLOB_NAME_SEGMENTS_MAX
    if not 1 <= len(name) <= longest or name.count("/") >= segments:
        raise invalid_name_length(
            LimitExceededError,
            f"Use 1 to {longest} characters in at most {segments} segments in a blob name.",
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError(
            "InvalidUri", "The blob name contains an unpaired surrogate."
        ) from None
    return name


def snapshot_text(ticks: int) -> str:
    """Print the time of a snapshot in the format of the service.

    >>> snapshot_text(17_000_000_000_000_001)
    '2023-11-14T22:13:20.0000001Z'
    """
    seconds, rest = divmod(ticks, TICKS_PER_SECOND)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:07}Z"


def deleted_name(name: str, version: str) -> str:
    """Return the name under which a deleted container is kept.

    >>> deleted_name("photos", "003C65535DE38001")
    'photos!003C65535DE38001'
    """
    return f"{name}{DELETED_MARK}{version}"


def container_version(ticks: int) -> str:
    """Return what identifies a deleted container, beside its name."""
    return f"{ticks:016X}"


def snapshot_ticks(text: str | None, parameter: str = "snapshot") -> int:
    """Parse the time of a snapshot or of a version; None is the blob itself."""
    if text is None:
        return LIVE
    found = _SNAPSHOT.fullmatch(text)
    if found is None or not text.isascii():
        raise _bad_time(text, parameter)
    *moment, fraction = found.groups()
    try:
        whole = datetime(*map(int, moment), tzinfo=UTC)  # type: ignore[arg-type, misc]
    except ValueError:
        raise _bad_time(text, parameter) from None
    seconds = (whole - _EPOCH) // timedelta(seconds=1)
    return seconds * TICKS_PER_SECOND + int((fraction or "").ljust(7, "0"))


def _bad_time(text: str, parameter: str) -> InvalidRequestError:
    return invalid_parameter(parameter, text, "Not the time of a snapshot or version.")
