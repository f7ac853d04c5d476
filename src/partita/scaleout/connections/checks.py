"""Whether a server keeps what it acknowledges: its facts in one statement, judged purely."""

import msgspec

from partita.errors import ConfigurationError, NotDurableError, PartitaError, UnavailableError
from partita.storage.durability import Durability

SERVER_VERSION_MIN = 170000
"""PostgreSQL 17: the first with MERGE … RETURNING."""

FACTS = """
SELECT pg_catalog.current_setting('server_version_num')::int AS version,
       pg_catalog.pg_backend_pid() AS pid,
       pg_catalog.pg_is_in_recovery() AS is_in_recovery,
       pg_catalog.current_setting('transaction_read_only') AS read_only,
       pg_catalog.current_setting('fsync') AS fsync,
       pg_catalog.current_setting('full_page_writes') AS full_page_writes,
       pg_catalog.current_setting('synchronous_commit') AS synchronous_commit,
       pg_catalog.current_setting('data_sync_retry') AS data_sync_retry,
       pg_catalog.current_setting('transaction_isolation') AS isolation,
       pg_catalog.pg_encoding_to_char(d.encoding) AS encoding,
       d.datlocprovider::text AS locale_provider,
       coalesce(d.datlocale, d.datcollate) AS locale,
       pg_catalog.pg_postmaster_start_time()::text AS started
  FROM pg_catalog.pg_database d WHERE d.datname = pg_catalog.current_database()
"""
LOCK_KEYS = (0x50617274, 0)
"""The advisory lock by which two connections show that such locks work."""

_DURABLE = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "data_sync_retry": ("off",),
    "synchronous_commit": ("on", "remote_apply"),
}
_JUDGED = ("version", "encoding", "isolation", "is_in_recovery", "read_only", *_DURABLE)


class Facts(msgspec.Struct, frozen=True):
    """What the server says of itself on a new connection."""

    version: int
    pid: int
    is_in_recovery: bool
    read_only: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str
    data_sync_retry: str
    isolation: str
    encoding: str
    locale_provider: str
    locale: str
    started: str

    @property
    def sorts_by_bytes(self) -> bool:
        """Whether the database's own collation compares text by code points.

        Only then can comparisons of strings in filters be left to the database.
        """
        return self.locale_provider == "b" or self.locale in ("C", "POSIX")


def check_version(version: int) -> None:
    """Raise if a server is too old: `FACTS` needs columns that it does not have."""
    if version < SERVER_VERSION_MIN:
        raise _too_old(version)


class Finding(msgspec.Struct, frozen=True):
    """One fact of a server, and the error that it causes, if any."""

    name: str
    found: str
    error: PartitaError | None


def check(facts: Facts, durability: Durability) -> None:
    """Raise if a server must not be used."""
    for finding in judge(facts, durability):
        if finding.error is not None:
            raise finding.error


def judge(facts: Facts, durability: Durability) -> list[Finding]:
    """Return all facts that count, with the refusals of a durability."""
    errors: dict[str, PartitaError] = {}
    if facts.version < SERVER_VERSION_MIN:
        errors["version"] = _too_old(facts.version)
    if facts.encoding != "UTF8":
        hint = "Create the database with ENCODING 'UTF8'."
        errors["encoding"] = _unfit("encoding", facts.encoding, hint)
    if facts.isolation != "read committed":
        hint = "Remove default_transaction_isolation from the role, the database and the server."
        errors["isolation"] = _unfit("transaction_isolation", facts.isolation, hint)
    if facts.is_in_recovery:
        errors["is_in_recovery"] = _read_only("pg_is_in_recovery")
    if facts.read_only == "on":
        errors["read_only"] = _read_only("transaction_read_only")
    if durability is Durability.FULL:
        for name, accepted in _DURABLE.items():
            if (found := getattr(facts, name)) not in accepted:
                errors[name] = _not_durable(name, found)
    return [Finding(name, str(getattr(facts, name)), errors.get(name)) for name in _JUDGED]


def locks_do_not_work() -> ConfigurationError:
    return _unfit(
        "pg_try_advisory_xact_lock_shared",
        "granted beside an exclusive lock",
        "Use PostgreSQL: this server accepts advisory locks and ignores them.",
    )


def _too_old(version: int) -> ConfigurationError:
    return _unfit("server_version", str(version), "Use PostgreSQL 17 or newer.")


def _unfit(name: str, found: str, hint: str) -> ConfigurationError:
    return ConfigurationError(
        "StoreUnfit",
        f"The database cannot be the store: {name} is {found}.",
        facts={"setting": name, "found": found},
        hint=hint,
    )


def _read_only(name: str) -> UnavailableError:
    # It may be the moment of a failover: a retry can help.
    return UnavailableError(
        "StoreUnfit",
        f"The database accepts no writes: {name} is on.",
        facts={"setting": name, "found": "on"},
        hint="Add target_session_attrs=read-write and all hosts to the URL.",
    )


def _not_durable(name: str, found: str) -> NotDurableError:
    return NotDurableError(
        "StoreNotDurable",
        f"The database would acknowledge writes that a crash can lose: {name} is {found}.",
        facts={"setting": name, "found": found},
        hint=f"Correct {name} on the server, or accept the loss with --durability fast.",
    )
