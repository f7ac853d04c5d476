"""Create or upgrade the schema of a database, and the role of its front ends.

Everything is one transaction under an advisory lock: two installations run one after the other,
and an interrupted one leaves the database as it was.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from partita.errors import ConfigurationError
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.session import SETTINGS, DriverError, translated
from partita.scaleout.schema import versions
from partita.scaleout.schema.locks import INSTALL_JOB, JOB_LOCKS
from partita.storage.durability import Durability

ROLE_BYTES_MAX = 63
"""PostgreSQL cuts longer names."""

_FIND_VERSION = "SELECT major, minor FROM partita.schema_version"
_SET_VERSION = """
INSERT INTO partita.schema_version VALUES (1, $1, $2)
ON CONFLICT (id) DO UPDATE SET major = excluded.major, minor = excluded.minor
"""
_HAS_OBJECTS = """
SELECT pg_catalog.to_regclass('partita.schema_version') IS NOT NULL AS is_ours,
       EXISTS (SELECT FROM pg_catalog.pg_class WHERE relnamespace = n.oid) AS has_objects
  FROM pg_catalog.pg_namespace n WHERE n.nspname = 'partita'
"""
_REVOKE = """
REVOKE ALL ON SCHEMA partita FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA partita FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA partita FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA partita FROM PUBLIC;
"""

Progress = Callable[[str], None]


class Installed(msgspec.Struct, frozen=True):
    """What an installation found and did."""

    version: tuple[int, int]
    previous: tuple[int, int] | None
    """The version before; None if the schema did not exist."""
    role: str | None
    is_role_new: bool = False


async def install(
    url: str, *, role: str | None = None, progress: Progress | None = None
) -> Installed:
    """Create the schema, or upgrade it; do nothing if it is up to date.

    `role` is the role of front ends: it is created without LOGIN if it does not exist, and gets
    the least privileges and the session settings that front ends need.
    """
    report = progress or (lambda _step: None)
    _check_role(role)
    link = await Connector(Location.parse(url), Durability.FAST).connect()
    connection = link.connection
    try:
        async with connection.transaction():
            # Wait for another installation, and for transactions of front ends, as long as needed.
            await connection.execute("SET LOCAL lock_timeout = 0")
            await connection.execute(
                f"SELECT pg_catalog.pg_advisory_xact_lock({JOB_LOCKS}, {INSTALL_JOB})"
            )
            previous = await _install_schema(link, report)
            is_role_new = role is not None and await _install_role(connection, role, report)
    except DriverError as error:
        raise translated(error) from error
    finally:
        await link.close()
    return Installed((versions.MAJOR, versions.MINOR), previous, role, is_role_new)


async def find_version(link: Link) -> tuple[int, int] | None:
    """Return the version of the installed schema; None if there is none.

    Raise if the database has a schema `partita` that is not ours.
    """
    rows = await link.read(_HAS_OBJECTS)
    if not rows or not (rows[0]["is_ours"] or rows[0]["has_objects"]):
        return None
    if not rows[0]["is_ours"]:
        raise ConfigurationError(
            "StoreUnfit",
            "The database has a schema named partita that Partita did not create.",
            facts={"setting": "schema", "found": "partita"},
            hint="Use another database, or rename that schema. Nothing was changed.",
        )
    ((major, minor),) = await link.read(_FIND_VERSION)
    return major, minor


async def _install_schema(link: Link, report: Progress) -> tuple[int, int] | None:
    connection = link.connection
    found = await find_version(link)
    if found is None:
        report("creating the schema")
        await connection.execute("CREATE SCHEMA IF NOT EXISTS partita")
        await connection.execute(versions.TABLES)
    else:
        for number, step in enumerate(versions.steps(found), found[1]):
            report(f"upgrading the schema from {found[0]}.{number} to {found[0]}.{number + 1}")
            await connection.execute(step)
            if number in versions.PASSES:
                await versions.PASSES[number](connection)
    report("defining the functions")
    await connection.execute(versions.FUNCTIONS)
    await connection.execute(_REVOKE)
    await connection.fetch(_SET_VERSION, versions.MAJOR, versions.MINOR)
    return found


async def _install_role(connection: Any, role: str, report: Progress) -> bool:
    """Create the role if it does not exist, grant its privileges; return whether it is new."""
    quoted = await connection.fetchval("SELECT pg_catalog.quote_ident($1)", role)
    is_new = not await connection.fetchval(
        "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = $1)", role
    )
    if is_new:
        report(f"creating the role {role}")
        await connection.execute(f"CREATE ROLE {quoted} NOLOGIN")
    report(f"granting the privileges of {role}")
    await connection.execute(_grants(quoted))
    database = await connection.fetchval(
        "SELECT pg_catalog.quote_ident(pg_catalog.current_database())"
    )
    for name, value in SETTINGS.items():
        items = ", ".join(f"'{item}'" for item in value.split(", "))
        await connection.execute(f"ALTER ROLE {quoted} IN DATABASE {database} SET {name} = {items}")
    return is_new


def _grants(role: str) -> str:
    tables = "".join(
        f"GRANT {privileges} ON partita.{table} TO {role};"
        for table, privileges in versions.PRIVILEGES.items()
    )
    return (
        f"REVOKE ALL ON ALL TABLES IN SCHEMA partita FROM {role};{tables}"
        f"GRANT USAGE ON SCHEMA partita TO {role};"
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA partita TO {role};"
        f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA partita TO {role};"
    )


def _check_role(role: str | None) -> None:
    if role is not None and not 0 < len(role.encode()) <= ROLE_BYTES_MAX:
        raise ConfigurationError(
            "Configuration",
            f"The name of a role has 1 to {ROLE_BYTES_MAX} bytes.",
            hint="Choose a shorter name with --role.",
        )
