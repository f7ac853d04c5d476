"""The settings of each session, and the only place where errors of the driver become ours."""

import asyncpg

from partita.errors import (
    ConfigurationError,
    DamageError,
    InDoubtError,
    PartitaError,
    StoreBusyError,
    UnavailableError,
)
from partita.refusals import store_full

SETTINGS = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "lock_timeout": "1s",
    "idle_in_transaction_session_timeout": "5s",
    "default_transaction_isolation": "read committed",
    "client_connection_check_interval": "5s",
    "search_path": "pg_catalog, pg_temp",
    "bytea_output": "hex",
}
"""All statements are point reads and short ranges by key: right after many changes statistics are
wrong, and the planner would choose a scan. `fleet init` also sets these for the role of front ends,
because a pooler in transaction mode keeps no settings of a session."""

RETRY_SECONDS = 1
"""When a client should try again that was refused for lack of a connection."""

_MISSING = ("3F000", "42P01", "42703", "42883")
"""The schema, a table, a column or a function does not exist."""
_NOT_PERMITTED = ("28000", "28P01", "3D000", "42501")
_DAMAGED = ("XX001", "XX002")
_FULL = ("53100",)
_REFUSED = ("0A", "21", "22", "23", "42", "P0", "XX")
"""Classes of errors that the same statement gets again: a retry does not help."""
_READ_ONLY = "25006"
_AGAIN = ("23505", "40001", "40P01")
"""A unique violation between two inserts, a serialization failure, a deadlock: nothing changed."""

DriverError = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Everything that a call of the driver raises."""


def translated(error: BaseException) -> PartitaError:
    """Return the error for a statement that did not change anything."""
    state = sqlstate_of(error)
    if (refusal := _configuration(error, state)) is not None:
        return refusal
    if state in _FULL:
        return store_full()
    if state in _DAMAGED:
        return DamageError(
            "StoreDamaged",
            f"PostgreSQL reports damaged data: {_first_line(error)}",
            hint="Check the server's log, and restore a backup.",
        )
    if _is_unencodable(error) or (state or "")[:2] in _REFUSED:
        # Without the driver's own text: it may show values.
        return UnavailableError(
            "StoreFailed",
            "PostgreSQL or its driver refuses a statement.",
            facts={"reason": state or type(error).__name__},
            hint="See the log of PostgreSQL.",
        )
    return StoreBusyError(
        "ServerBusy",
        "The server is busy.",
        facts={"retry_after": RETRY_SECONDS, "reason": state or type(error).__name__},
        hint="The database is not reachable, overloaded, or changing over. Try again.",
    )


def _configuration(error: BaseException, state: str | None) -> ConfigurationError | None:
    """Return the error that only an operator can resolve, if it is one."""
    if state in _MISSING:
        return ConfigurationError(
            "StoreNotInstalled",
            "The database does not have the schema of this version of Partita.",
            hint="Run `partita fleet init postgresql://…` with a role that may create it.",
        )
    if state in _NOT_PERMITTED:
        return ConfigurationError(
            "StoreNotPermitted",
            f"PostgreSQL refuses the connection or the statement: {_first_line(error)}",
            hint="Check the role, its password and the database; `partita fleet init` grants the "
            "permissions of front ends.",
        )
    if isinstance(error, asyncpg.ClientConfigurationError) or type(error) is ValueError:
        return ConfigurationError(
            "InvalidLocation",
            f"The location of the store cannot be used: {_first_line(error)}",
            hint="Check the options of the URL.",
        )
    return None


def outcome_unknown(reason: str) -> InDoubtError:
    """Return the error for a write that may or may not be committed."""
    return InDoubtError(
        "OperationTimedOut",
        "The operation could not be completed within the permitted time.",
        facts={"reason": reason, "status": 500},
        hint="The write may or may not be stored: read it, then decide.",
    )


def is_outcome_known(error: BaseException) -> bool:
    """Return whether a failed write certainly changed nothing.

    The server reported an error of the statement, and the session goes on. The class 57P is the
    end of the session, which may come after the commit.
    """
    return _is_unencodable(error) or (
        isinstance(error, asyncpg.PostgresError)
        and not (
            isinstance(error, asyncpg.PostgresConnectionError)
            or (sqlstate_of(error) or "").startswith(("08", "57P"))
        )
    )


def ends_session(error: BaseException) -> bool:
    """Return whether later statements of the session would fail too: the server is a standby."""
    return sqlstate_of(error) == _READ_ONLY


def may_repeat(error: BaseException) -> bool:
    """Return whether the same statement may succeed at once, and changed nothing."""
    return sqlstate_of(error) in _AGAIN


def sqlstate_of(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def _is_unencodable(error: BaseException) -> bool:
    """Return whether the driver refused a value, so that nothing was sent."""
    return isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
