"""Execute one statement on every shard: DDL outside of migrations, and maintenance.

With a name, each shard that has committed is recorded in `partita_jobs`, so that a later call with
the same name visits only the others. Rule: the record follows the commit, so that after a crash
between the two the statement is executed once more on that shard.
"""

from collections.abc import Callable

import msgspec
from sqlalchemy import Connection, Executable, text
from sqlalchemy.exc import DBAPIError

from partita.shards.catalog import jobs
from partita.shards.connections.engines import Engines
from partita.shards.fleet.rollout import ShardExecution, shard_error
from partita.shards.fleet.shard_upgrades import connect
from partita.shards.keys.mapping import Shard
from partita.shards.maps.manager import ShardMapManager
from partita.ticks import Clock

EXECUTE = "execute"
Execute = Callable[[Shard], ShardExecution]


def execution(
    manager: ShardMapManager,
    statement: Executable | str,
    *,
    name: str | None,
    autocommit: bool,
    clock: Clock,
) -> Execute:
    """Return the work on one shard for `roll_out`."""
    executable = text(statement) if isinstance(statement, str) else statement
    executor = manager.executor
    map_ids = {shard_map.name: shard_map.id for shard_map in manager.list_maps()}

    def run(shard: Shard) -> ShardExecution:
        began = clock.monotonic()
        try:
            map_id, subject = map_ids[shard.map_name], f"{name}\n{shard.location.identity}"
            if name is not None and jobs.is_done(executor, map_id, EXECUTE, subject):
                return ShardExecution(shard, "executed before")
            rows = _execute(manager.engines, shard, executable, autocommit=autocommit)
            if name is not None:
                jobs.finish(executor, jobs.start(executor, map_id, EXECUTE, subject))
            done = ShardExecution(shard, "executed", rows)
        except Exception as error:  # noqa: BLE001 - an error of one shard belongs to the report
            done = ShardExecution(shard, "failed", error=shard_error(shard, error))
        return msgspec.structs.replace(done, seconds=clock.monotonic() - began)

    return run


def _execute(
    engines: Engines, shard: Shard, statement: Executable, *, autocommit: bool
) -> int | None:
    with connect(engines, shard.location) as connection:
        if autocommit:
            _execute_alone(connection, statement)
            return None
        options = {"preserve_rowcount": True}
        rows = connection.execute(statement, execution_options=options).rowcount
        connection.commit()
    return None if rows < 0 else rows


def _execute_alone(connection: Connection, statement: Executable) -> None:
    """Execute a statement that no transaction may contain, such as VACUUM."""
    literal = {"literal_binds": True}
    compiled = str(statement.compile(connection.engine, compile_kwargs=literal))  # type: ignore[attr-defined]
    if connection.dialect.name != "sqlite":
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(statement)
        return
    # Every transaction of SQLAlchemy begins with a BEGIN here; the driver's own call does not.
    driver = connection.connection.dbapi_connection
    assert driver is not None
    cursor = driver.cursor()
    try:
        cursor.execute(compiled)
    except connection.dialect.loaded_dbapi.Error as error:
        raise DBAPIError(compiled, None, error) from error
    finally:
        cursor.close()
