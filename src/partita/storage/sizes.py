"""Values: how much a table, a queue, a container and an account take."""

import msgspec

COUNTED_MAX = 50_000
"""Items up to this number are counted; more are estimated, unless --exact is given."""


class PartSize(msgspec.Struct, frozen=True):
    """One table, queue or container."""

    kind: str
    """`table`, `queue` or `container`."""
    name: str
    items: int
    """Entities, messages, or blobs with their snapshots."""
    bytes: int
    """Of keys and values, of texts, or of the contents of blobs with staged blocks. Blobs,
    snapshots and copies that share content count it each."""
    is_exact: bool


class AccountSize(msgspec.Struct, frozen=True):
    """The tables, queues and containers of an account."""

    account: str
    parts: list[PartSize]


class FolderSize(AccountSize, frozen=True):
    """An account in a folder, and its files."""

    database_bytes: int
    """Of the main file."""
    free_bytes: int
    """Of it, in pages that no row uses."""
    log_bytes: int
    """Of the write-ahead log."""
    files: int
    """Content files that rows refer to."""
    file_bytes: int
    is_vacuumed: bool
    """Whether a server returns free pages to the disk; `partita compact` makes it so."""
