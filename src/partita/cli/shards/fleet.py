"""The verbs of `partita shards` that connect to the shards: upgrade, status, drift, fan-out.

Rule: the error of one shard is a line of the result and an exit status, not the end of the verb.
"""

from sqlalchemy import Connection, column, text
from sqlalchemy.exc import DBAPIError

from partita.cli.kit.commands import Given
from partita.cli.kit.progress import Bar
from partita.cli.kit.text import first_line
from partita.cli.shards.facts import (
    Drift,
    Executed,
    ExecutedFacts,
    FleetStatus,
    Rows,
    StatusFacts,
    Upgraded,
    UpgradeFacts,
)
from partita.cli.shards.moves import count_unfinished
from partita.cli.shards.opening import (
    choose_map,
    choose_shard,
    connect_shard,
    import_metadata,
    make_fleet,
)
from partita.errors import ConfigurationError, PartitaError
from partita.shards.fleet.deployment import Deployment
from partita.shards.fleet.fleet import Fleet, ShardReport
from partita.shards.fleet.migrations import revision_text
from partita.shards.fleet.rollout import ShardUpgrade, UpgradeReport
from partita.shards.keys.mapping import Shard
from partita.shards.maps.manager import ShardMapManager

# Schema


def upgrade(manager: ShardMapManager, given: Given) -> Upgraded:
    fleet, shards = make_fleet(manager, given), one_shard_per_database(manager)
    canary = [choose_shard(shards, name) for name in given.canary]
    if given.dry_run:
        return _would_upgrade(manager, given, [*canary, *(s for s in shards if s not in canary)])
    with Bar("upgrade", is_hidden=given.json or given.quiet) as bar:
        bar.begin(len(shards), "shards")
        report = fleet.upgrade(
            given.revision,
            parallel=given.parallel,
            canary=canary,
            stop_after=given.stop_after or None,
            progress=lambda _done: bar.advance(1),
            sql_folder=given.sql_folder,
        )
    return _upgraded(report)


def downgrade(manager: ShardMapManager, given: Given) -> Upgraded:
    shards = one_shard_per_database(manager)
    fleet = Fleet(manager, alembic=given.alembic)
    with Bar("downgrade", is_hidden=given.json or given.quiet) as bar:
        bar.begin(len(shards), "shards")
        report = fleet.downgrade(
            given.revision,
            canary=[choose_shard(shards, name) for name in given.canary],
            stop_after=given.stop_after or None,
            progress=lambda _done: bar.advance(1),
        )
    return _upgraded(report)


def execute(manager: ShardMapManager, given: Given) -> Executed:
    shards = one_shard_per_database(manager)
    with Bar("execute", is_hidden=given.json or given.quiet) as bar:
        bar.begin(len(shards), "shards")
        report = Fleet(manager).execute_on_all(
            given.sql.replace(":", r"\:"),  # the text has no parameters
            name=given.name,
            parallel=given.parallel,
            canary=[choose_shard(shards, name) for name in given.canary],
            stop_after=given.stop_after or None,
            autocommit=given.autocommit,
            progress=lambda _done: bar.advance(1),
        )
    shown = [
        ExecutedFacts(
            location=one.shard.location.text,
            state=one.state,
            rows=one.rows,
            seconds=round(one.seconds, 3),
            error=error_text(one.error),
        )
        for one in report.shards
    ]
    return Executed(report.is_complete, shown)


def _upgraded(report: UpgradeReport) -> Upgraded:
    shown = [_upgrade_facts(one) for one in report.shards]
    return Upgraded(report.target, dry_run=False, is_complete=report.is_complete, shards=shown)


def _upgrade_facts(one: ShardUpgrade) -> UpgradeFacts:
    return UpgradeFacts(
        location=one.shard.location.text,
        state=one.state,
        before=one.before,
        after=one.after,
        seconds=round(one.seconds, 3),
        script=None if one.script is None else str(one.script),
        error=error_text(one.error),
    )


def _would_upgrade(manager: ShardMapManager, given: Given, shards: list[Shard]) -> Upgraded:
    deployment = Deployment(import_metadata(given.metadata), given.alembic)
    found = []
    for shard in shards:
        try:
            with connect_shard(manager, shard.location) as connection:
                found.append(_pending(deployment, connection, shard, given.revision))
        except (PartitaError, DBAPIError) as error:
            failed = UpgradeFacts(
                shard.location.text, "unknown", None, None, error=error_text(error)
            )
            found.append(failed)
    is_complete = all(one.state == "current" for one in found)
    return Upgraded(given.revision, dry_run=True, is_complete=is_complete, shards=found)


def _pending(
    deployment: Deployment, connection: Connection, shard: Shard, target: str
) -> UpgradeFacts:
    where = shard.location.text
    if deployment.migrations is None:
        drift = deployment.inspect(connection).drift
        missing = [f"create table {one.table}" for one in drift if one.kind == "missing table"]
        return UpgradeFacts(where, "pending" if missing else "current", None, None, pending=missing)
    heads = deployment.migrations.read(connection).heads
    before = revision_text(heads)
    steps = [one.revision for one in deployment.migrations.pending(heads, target)]
    if not steps:
        return UpgradeFacts(where, "current", before, before)
    pending = [f"revision {one.revision} {one.doc or ''}".strip() for one in steps]
    return UpgradeFacts(where, "pending", before, steps[-1].revision, pending=pending)


def one_shard_per_database(manager: ShardMapManager) -> list[Shard]:
    """Return the shards of all maps, one for each database."""
    shards: dict[str, Shard] = {}
    for shard_map in manager.list_maps():
        for shard in shard_map.shards():
            shards.setdefault(shard.location.identity, shard)
    return [shards[identity] for identity in sorted(shards)]


def status(manager: ShardMapManager, given: Given) -> FleetStatus:
    has_schema = given.metadata is not None or given.alembic is not None
    shards = _read_status(
        make_fleet(manager, given, is_needed=False), given.map, has_schema=has_schema
    )
    unfinished = count_unfinished(manager)
    is_healthy = not any(one.error or one.drift or one.is_current is False for one in shards)
    return FleetStatus(is_healthy, shards, unfinished)


def drift(manager: ShardMapManager, given: Given) -> Drift:
    shards = _read_status(make_fleet(manager, given), given.map, has_schema=True)
    found = [one for one in shards if one.drift or one.error]
    return Drift(not found, found)


def _read_status(fleet: Fleet, map_name: str | None, *, has_schema: bool) -> list[StatusFacts]:
    if map_name is not None:
        fleet.manager.get_map(map_name)
    return [
        _status_facts(one, has_schema=has_schema)
        for one in fleet.status().shards
        if map_name in {None, one.shard.map_name}
    ]


def _status_facts(one: ShardReport, *, has_schema: bool) -> StatusFacts:
    return StatusFacts(
        map=one.shard.map_name,
        location=one.shard.location.text,
        revision=one.revision,
        is_current=one.is_current if has_schema and one.error is None else None,
        drift=[str(difference) for difference in one.drift],
        mappings=one.mappings,
        size_bytes=one.size_bytes,
        error=error_text(one.error),
    )


# Fan-out


def fan_out(manager: ShardMapManager, given: Given) -> Rows:
    shard_map = choose_map(manager, given.map)
    shards = [choose_shard(shard_map.shards(), name) for name in given.shard] or shard_map.shards()
    # The text becomes a subquery, so that it can only be a SELECT; a colon is not a parameter.
    # The last line may be a comment.
    plain = given.sql.strip().rstrip(";").replace(":", "\\:") + "\n"
    names = _column_names(shards, plain, is_partial=given.partial)
    shard_column = "shard" if "shard" not in names else "partita_shard"
    result = shard_map.fan_out(
        text(plain).columns(*(column(name) for name in names)),
        shards=shards,
        policy="partial" if given.partial else "complete",
        timeout=given.timeout,
        shard_timeout=given.timeout,
        shard_column=shard_column,
        limit=given.limit + 1,
    )
    with result:
        rows = [list(row) for row in result]
    errors = {shard.location.text: error_text(error) for shard, error in result.errors.items()}
    columns = [*names, shard_column]
    return Rows(columns, rows[: given.limit], len(rows) > given.limit, errors)


def _column_names(shards: list[Shard], plain: str, *, is_partial: bool) -> list[str]:
    """Return the names of the columns, from one shard; with `is_partial` the first to answer."""
    error: DBAPIError | None = None
    for shard in shards:
        try:
            return _read_names(shard, plain)
        except DBAPIError as caught:
            error = caught
            if not is_partial:
                break
    if error is not None:
        raise ConfigurationError(
            "StatementFailed",
            f"A shard refused the statement: {first_line(error.orig or error)}",
            facts={"shard": shard.location.text},
            hint="Give one SELECT: a fan-out only reads.",
        ) from error
    raise ConfigurationError(
        "NoShards", "The map has no shards.", hint="Add one with `partita shards add-shard`."
    )


def _read_names(shard: Shard, plain: str) -> list[str]:
    with shard.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(postgresql_readonly=True)
        # With a parameter a server accepts one statement only: `…); COMMIT; DELETE …` is refused.
        query = text(f"SELECT * FROM ({plain}) AS asked LIMIT :rows")  # noqa: S608 - the caller's own
        return list(connection.execute(query, {"rows": 0}).keys())


# Errors of single shards


def error_text(error: BaseException | None) -> str:
    """Return the error of a shard in one line, without the name of the shard."""
    if error is None:
        return ""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException) and not _says_more(error):
        return error_text(cause)
    if isinstance(error, PartitaError):
        return " ".join(part for part in (error.message, error.hint) if part).replace("\n", " ")
    if isinstance(error, DBAPIError) and error.orig is not None:
        return first_line(error.orig)
    return first_line(error)


def _says_more(error: BaseException) -> bool:
    """Return whether a ShardError has a message of its own, besides that of its cause."""
    return getattr(error, "code", "") not in {"ShardFailed", ""}
