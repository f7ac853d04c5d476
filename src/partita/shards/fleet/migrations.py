"""Alembic on one database: read its revision, upgrade it, or write the script of an upgrade.

Every revision is a transaction of its own, whatever env.py configures, so a database is always at
one revision. env.py must use the connection in `config.attributes["connection"]`; an env.py that
opens another one is detected before anything is changed. The context of Alembic is global to a
process, so one environment runs at a time.
"""

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.runtime.migration import MigrationContext, RevisionStep
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, MetaData, event, text
from sqlalchemy.exc import OperationalError

from partita.errors import (
    ConfigurationError,
    OperationPendingError,
    PartitaError,
    SchemaMismatchError,
    ShardError,
)
from partita.shards.connections.revocable import RevocableConnection
from partita.shards.connections.session_probe import POOLER_HINT, keeps_session

LOCK_TIMEOUT_SECONDS = 60.0
LOCK_NUMBER = int.from_bytes(b"partitaM")
"""The PostgreSQL advisory lock that an upgrade holds."""

ENVIRONMENT_TEMPLATE = '''\
"""Alembic's environment: run on the connection that is given, else on sqlalchemy.url."""

from typing import Any

from alembic import context
from sqlalchemy import create_engine, pool

from my_application.models import Base  # your models


def run(**where: Any) -> None:
    context.configure(target_metadata=Base.metadata, **where)
    with context.begin_transaction():
        context.run_migrations()


url = context.config.get_main_option("sqlalchemy.url", "")
connection = context.config.attributes.get("connection")
if context.is_offline_mode():
    run(url=url, literal_binds=True, dialect_opts={"paramstyle": "named"})
elif connection is not None:
    run(connection=connection)
else:
    with create_engine(url, poolclass=pool.NullPool).connect() as connection:
        run(connection=connection)
'''
"""An env.py that works with a fleet and with the `alembic` command."""

Heads = tuple[str, ...]
ChooseSteps = Callable[[Heads, MigrationContext], list[RevisionStep]]
StepsFrom = Callable[[Heads], list[RevisionStep]]
"""Returns the steps that are left from the present revisions."""

# Guards alembic.context, a module with the state of the running environment.
_environment_lock = threading.Lock()


class Revisions(msgspec.Struct, frozen=True):
    """The revisions of one database, and the metadata of its environment."""

    heads: Heads
    metadata: MetaData | Sequence[MetaData] | None = None
    options: dict[str, Any] = {}

    def __str__(self) -> str:
        return revision_text(self.heads)


class Migrations:
    """The revisions of one Alembic project: a folder with env.py, an ini file, or a Config."""

    def __init__(self, project: str | Path | Config) -> None:
        self.config = _read_config(project)
        try:
            self._scripts = ScriptDirectory.from_config(self.config)
        except CommandError as error:
            raise _no_project(project) from error
        if not Path(self._scripts.env_py_location).is_file():
            raise _no_project(project)

    @property
    def heads(self) -> Heads:
        """The newest revisions; more than one if the project has branches."""
        return tuple(sorted(self._scripts.get_heads()))

    def pending(self, heads: Heads, target: str = "head") -> list[RevisionStep]:
        """List the steps from these revisions to the target, oldest first.

        SchemaMismatchError if the database is newer than the target.
        """
        try:
            # The only public access to this list is a command that executes it.
            steps: list[RevisionStep] = self._scripts._upgrade_revs(target, heads)  # type: ignore[arg-type]  # noqa: SLF001
        except CommandError as error:
            raise _revision_unknown(heads, target, error) from error
        if not steps and self._is_past(heads, target):
            raise SchemaMismatchError(
                "RevisionNewer",
                f"The database is at revision {revision_text(heads)}, which is newer than the "
                f"target {target}.",
                facts={"revision": revision_text(heads), "target": target},
                hint="Pass this revision or a newer one, or call fleet.downgrade().",
            )
        return steps

    def undoing(self, heads: Heads, target: str) -> list[RevisionStep]:
        """List the steps back from these revisions to the target, newest first."""
        if list(heads) == [target] or (target == "base" and not heads):
            return []
        try:
            # The only public access to this list is a command that executes it.
            steps: list[RevisionStep] = self._scripts._downgrade_revs(target, heads)  # type: ignore[arg-type]  # noqa: SLF001
        except CommandError as error:
            raise _revision_unknown(heads, target, error) from error
        return steps

    def _is_past(self, heads: Heads, target: str) -> bool:
        """Return whether one of these revisions comes after the target on its branch."""
        try:
            later = list(self._scripts.get_revisions(target))
        except CommandError:
            return False  # a relative revision
        if not later:
            return bool(heads)  # the target is the base
        newer: set[str] = set()
        while later:
            following = later.pop().nextrev - newer
            newer |= following
            later += [self._scripts.get_revision(name) for name in following]
        return not newer.isdisjoint(heads)

    def read(self, connection: Connection) -> Revisions:
        """Read the revision of the database, without writing."""
        found: list[Revisions] = []

        def look(heads: Heads, context: MigrationContext) -> list[RevisionStep]:
            metadata = context.opts.get("target_metadata")
            found.append(Revisions(tuple(sorted(heads)), metadata, dict(context.opts)))
            return []

        try:
            self._run(connection, look, dont_mutate=True)
        except PartitaError:
            raise
        except Exception as error:
            raise ConfigurationError(
                "MigrationEnvironmentFailed",
                f"env.py failed before any migration: {type(error).__name__}: {error}",
                facts={"file": self._scripts.env_py_location},
                hint="Run `alembic current` to reproduce the error; "
                "partita.shards.fleet.migrations.ENVIRONMENT_TEMPLATE is a working env.py.",
            ) from error
        finally:
            connection.rollback()
        return found[-1]

    def upgrade(
        self,
        connection: Connection,
        target: str = "head",
        *,
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> Heads:
        """Upgrade the database to the target, one transaction per revision; return its heads.

        A second upgrade of the same database waits for this one for up to `lock_timeout` seconds.
        """
        return self._change(connection, lambda heads: self.pending(heads, target), lock_timeout)

    def downgrade(
        self,
        connection: Connection,
        target: str,
        *,
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> Heads:
        """Undo the revisions after the target, one transaction each; return the heads."""
        return self._change(connection, lambda heads: self.undoing(heads, target), lock_timeout)

    def _change(self, connection: Connection, steps_from: StepsFrom, lock_timeout: float) -> Heads:
        heads = self.read(connection).heads
        if not steps_from(heads):
            return heads
        with upgrade_lock(connection, lock_timeout):
            while self._step(connection, steps_from):
                pass
            return self.read(connection).heads

    def script(self, heads: Heads, target: str, *, url: str) -> str:
        """Return the SQL from these revisions to the target, as one transaction.

        `url` only determines the dialect; it needs no password.
        """
        steps = self.pending(heads, target)
        if not steps:
            return ""
        config, output = self.config, io.StringIO()
        before = config.get_main_option("sqlalchemy.url"), config.output_buffer
        config.set_main_option("sqlalchemy.url", url.replace("%", "%%"))
        config.output_buffer = output
        try:
            self._run(
                None,
                lambda _heads, _context: steps,
                as_sql=True,
                starting_rev=list(heads) or None,
                transactional_ddl=True,
            )
        finally:
            config.output_buffer = before[1]
            config.set_main_option("sqlalchemy.url", (before[0] or "").replace("%", "%%"))
        return output.getvalue()

    def _step(self, connection: Connection, steps_from: StepsFrom) -> bool:
        """Run the first of the steps, if any; return whether more are left."""
        steps: list[RevisionStep] = []

        def first(heads: Heads, _context: MigrationContext) -> list[RevisionStep]:
            steps[:] = steps_from(heads)
            return steps[:1]

        try:
            self._run(connection, first, transactional_ddl=True)
            # env.py without begin_transaction() leaves the commit to this function.
            connection.commit()
        except PartitaError:
            connection.rollback()
            raise
        except Exception as error:
            connection.rollback()
            raise _migration_failed(steps, error) from error
        return len(steps) > 1

    def _run(self, connection: Connection | None, plan: ChooseSteps, **options: Any) -> None:
        """Run env.py once; `plan` returns the steps, after env.py was checked."""
        was_asked = False

        def steps(heads: Heads, context: MigrationContext) -> list[RevisionStep]:
            nonlocal was_asked
            was_asked = True
            self._check_environment(context, connection)
            return plan(tuple(heads), context)

        with _environment_lock:
            self.config.attributes["connection"] = connection
            try:
                with EnvironmentContext(self.config, self._scripts, fn=steps, **options):
                    self._scripts.run_env()
            finally:
                self.config.attributes.pop("connection", None)
        if not was_asked:
            raise self._bad_environment("MigrationsNotRun", "env.py ran no migrations.")

    def _check_environment(self, context: MigrationContext, connection: Connection | None) -> None:
        if connection is None:
            if not context.as_sql:
                raise self._bad_environment(
                    "MigrationConnectionIgnored",
                    "env.py connected to a database to write a script.",
                )
            return
        used = context.connection
        # Alembic may have added execution options, so the driver connections are compared.
        if used is None or used.connection.dbapi_connection is not (
            connection.connection.dbapi_connection
        ):
            raise self._bad_environment(
                "MigrationConnectionIgnored",
                "env.py opened another connection instead of using that of the shard.",
            )

    def _bad_environment(self, code: str, message: str) -> ConfigurationError:
        return ConfigurationError(
            code,
            message,
            facts={"file": self._scripts.env_py_location},
            hint='Use context.config.attributes["connection"] in env.py if it is set: see '
            "partita.shards.fleet.migrations.ENVIRONMENT_TEMPLATE.",
        )


def revision_text(heads: Heads) -> str:
    """Return the revisions as text: `base` if there are none."""
    return ", ".join(heads) or "base"


def _read_config(project: str | Path | Config) -> Config:
    if isinstance(project, Config):
        return project
    path = Path(project)
    if path.is_file():
        return Config(str(path))
    # Without an ini file, because fileConfig() in env.py would disable existing loggers.
    config = Config()
    config.set_main_option("path_separator", "os")
    config.set_main_option("script_location", str(path.absolute()).replace("%", "%%"))
    return config


def _no_project(project: object) -> ConfigurationError:
    return ConfigurationError(
        "MigrationsNotFound",
        "Not an Alembic project: pass a folder with env.py, or an ini file that names one.",
        facts={"project": str(project)},
        hint="Create one with `alembic init`, then pass its folder, its ini file or a Config.",
    )


def _revision_unknown(heads: Heads, target: str, cause: CommandError) -> SchemaMismatchError:
    return SchemaMismatchError(
        "RevisionUnknown",
        f"There are no migrations from revision {revision_text(heads)} to {target}.",
        facts={"revision": revision_text(heads), "target": target, "cause": str(cause)},
        hint="The database was upgraded by other scripts, or the project has several "
        "heads: pass the revision, or 'heads'.",
    )


def _migration_failed(steps: list[RevisionStep], cause: Exception) -> ShardError:
    revision = steps[0].revision.revision if steps else "?"
    error = ShardError(
        "MigrationFailed",
        f"Revision {revision} failed and was rolled back: {type(cause).__name__}: {cause}",
        facts={"revision": revision},
        hint="The shard was not changed by it. Correct the migration and upgrade again: shards at "
        "the target are skipped.",
    )
    error.cause = cause
    return error


@contextmanager
def upgrade_lock(connection: Connection, timeout: float) -> Iterator[None]:
    """Lock out other upgrades of this database, until the end or until the connection breaks."""
    if connection.dialect.name == "postgresql":
        with _postgres_lock(connection, timeout):
            yield
    elif connection.dialect.name == "sqlite":
        with _sqlite_lock(connection, timeout):
            yield
    else:
        yield


@contextmanager
def _postgres_lock(connection: Connection, timeout: float) -> Iterator[None]:
    # A lock of the session, because each revision commits and CREATE INDEX CONCURRENTLY runs
    # outside a transaction. On the same connection, so that migration and lock end together.
    key = {"key": LOCK_NUMBER}
    if not keeps_session(connection.connection, connection.engine.raw_connection):
        raise _behind_pooler()
    try:
        with connection.begin():
            limit = f"{max(1, int(timeout * 1000))}ms"
            connection.execute(
                text("select pg_catalog.set_config('lock_timeout', :limit, true)"), {"limit": limit}
            )
            connection.execute(text("select pg_catalog.pg_advisory_lock(:key)"), key)
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", "") == "55P03":
            raise _upgrade_under_way(timeout) from error
        raise
    try:
        yield
    finally:
        if not connection.invalidated:
            with connection.begin():
                connection.execute(text("select pg_catalog.pg_advisory_unlock(:key)"), key)


@contextmanager
def _sqlite_lock(connection: Connection, timeout: float) -> Iterator[None]:
    """Begin each revision with the write lock, and disable foreign keys during table rebuilds.

    A table is changed by copying it and dropping the old one: with foreign keys enabled, the drop
    would delete rows that refer to it. All foreign keys are checked before each commit instead.
    """
    keys = connection.exec_driver_sql("PRAGMA foreign_keys").scalar_one()
    connection.rollback()
    lock = _SqliteLock(connection, timeout)
    wait = lock.wait_for(timeout)
    lock.run("PRAGMA foreign_keys = OFF")
    listeners: list[tuple[str, Callable[..., None]]] = [
        ("before_cursor_execute", lock.take),
        *([("commit", lock.check_foreign_keys)] if keys else []),
        ("commit", lock.forget),
        ("rollback", lock.forget),
    ]
    for name, listener in listeners:
        event.listen(connection, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners:
            event.remove(connection, name, listener)
        lock.run(f"PRAGMA foreign_keys = {int(keys)}")
        lock.wait_for(wait)


class _SqliteLock:
    """The write lock of an SQLite file, taken for each transaction of one connection."""

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._driver: Any = connection.connection.dbapi_connection
        self._error = connection.dialect.loaded_dbapi.OperationalError
        self._timeout = timeout
        self._is_taken = False

    def run(self, statement: str) -> Any:
        cursor = self._driver.cursor()
        try:
            return cursor.execute(statement).fetchone()
        finally:
            cursor.close()

    def wait_for(self, seconds: float) -> float:
        """Set how long a transaction waits for the lock; return the previous value."""
        if isinstance(self._driver, RevocableConnection):
            before, self._driver.busy_seconds = self._driver.busy_seconds, seconds
            return before
        milliseconds: int = self.run("PRAGMA busy_timeout")[0]
        self.run(f"PRAGMA busy_timeout = {int(seconds * 1000)}")
        return milliseconds / 1000

    def take(self, *_statement: object) -> None:
        # Before the first statement, because a snapshot taken by a read may be too old.
        if self._is_taken:
            return
        if self._driver.in_transaction:
            self.run("ROLLBACK")
        try:
            if isinstance(self._driver, RevocableConnection):
                self._driver.begin_to_write()
            else:
                self.run("BEGIN IMMEDIATE")
        except self._error as error:
            raise _upgrade_under_way(self._timeout) from error
        self._is_taken = True

    def forget(self, _ended: Connection) -> None:
        self._is_taken = False

    def check_foreign_keys(self, _committed: Connection) -> None:
        try:
            broken = self.run("PRAGMA foreign_key_check")
        except self._error as error:
            message = f"Foreign keys would not match: {error}."
            raise _foreign_keys_broken(message) from error
        if broken is not None:
            message = f"Rows of {broken[0]!r} would refer to missing rows."
            raise _foreign_keys_broken(message)


def _foreign_keys_broken(message: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        "ForeignKeysBroken",
        message,
        hint="The migration was rolled back. Let it update or delete the referring rows as well.",
    )


def _behind_pooler() -> ConfigurationError:
    return ConfigurationError(
        "TransactionPooler",
        "An upgrade needs a session of its own, and a pooler in transaction mode is between it and "
        "the shard.",
        hint=POOLER_HINT,
    )


def _upgrade_under_way(timeout: float) -> OperationPendingError:
    return OperationPendingError(
        "UpgradeUnderWay",
        f"Another upgrade has locked the shard; gave up after {timeout:.3g} s.",
        facts={"waited": timeout},
        hint="Try again when it has ended: shards at the target are skipped.",
    )
