"""The versions of SQLite that may damage a database; pure.

The WAL-reset bug (https://sqlite.org/wal.html#walresetbug): two connections that write and
checkpoint one database in WAL mode at the same moment can lose pages that were committed.
"""

FIRST_WITH_WAL_RESET_BUG = (3, 7, 0)
FIRST_WITHOUT_WAL_RESET_BUG = (3, 51, 3)
WAL_RESET_BACKPORTS = ((3, 44, 6), (3, 50, 7))
"""The first version with the fix on each older branch that received it."""


def has_wal_reset_bug(version: tuple[int, int, int]) -> bool:
    """Return whether SQLite of this version may damage a database in WAL mode."""
    if not FIRST_WITH_WAL_RESET_BUG <= version < FIRST_WITHOUT_WAL_RESET_BUG:
        return False
    return not any(version[:2] == fixed[:2] and version >= fixed for fixed in WAL_RESET_BACKPORTS)


def version_of(text: str) -> tuple[int, int, int]:
    """Return the version that SQLite reports as text, such as `3.51.3`."""
    major, minor, patch = [int(part) for part in text.split(".")][:3]
    return major, minor, patch
