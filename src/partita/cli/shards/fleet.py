"""The verbs of `partita shards` that go to the shards: upgrade, status, drift, fan-out, recover.

Rule: one shard's trouble is a line of the answer and an exit status, not the end of the verb.
"""

import argparse
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, column, text
from sqlalchemy.exc import DBAPIError

from partita.cli.shards.facts import (
    DifferenceFacts,
    Drift,
    Recovered,
    Rows,
    Status,
    StatusFacts,
    Upgraded,
    UpgradeFacts,
)
from partita.cli.shards.keys import parse_keys, range_text
from partita.cli.shards.moves import count_unfinished
from partita.cli.shards.opening import (
    choose_map,
    choose_shard,
    chosen_maps,
    import_metadata,
    make_fleet,
)
from partita.errors import ConfigurationError, PartitaError, ShardOfflineError
from partita.shards.catalog import global_catalog
from partita.shards.fleet.deployment import Deployment
from partita.shards.fleet.fleet import Fleet, ShardReport
from partita.shards.fleet.migrations import revision_text
from partita.shards.fleet.rollout import ShardUpgrade
from partita.shards.keys.mapping import Location, Shard
from partita.shards.maps.manager import AnyShardMap, ShardMapManager
from partita.shards.maps.recovery import MappingDifference

# Schema


def upgrade(manager: ShardMapManager, given: argparse.Namespace) -> Upgraded:
    fleet, shards = make_fleet(manager, given), one_shard_a_database(manager)
    canary = [choose_shard(shards, name) for name in given.canary]
    if given.dry_run:
        return _would_upgrade(manager, given, [*canary, *(s for s in shards if s not in canary)])
    report = fleet.upgrade(
        given.revision,
        parallel=given.parallel,
        canary=canary,
        stop_after=given.stop_after or None,
        progress="none" if given.json or given.quiet else "auto",
        sql_folder=given.sql_folder,
    )
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


def _would_upgrade(
    manager: ShardMapManager, given: argparse.Namespace, shards: list[Shard]
) -> Upgraded:
    deployment = Deployment(import_metadata(given.metadata), given.alembic)
    found = []
    for shard in shards:
        try:
            with _connect(manager, shard.location) as connection:
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


def one_shard_a_database(manager: ShardMapManager) -> list[Shard]:
    """Return the shards of all maps, one for each database."""
    shards: dict[str, Shard] = {}
    for shard_map in manager.list_maps():
        for shard in shard_map.shards():
            shards.setdefault(shard.location.identity, shard)
    return [shards[identity] for identity in sorted(shards)]


def _connect(manager: ShardMapManager, location: Location) -> Connection:
    if location.backend == "sqlite":
        path = Path(location.identity.removeprefix("sqlite://"))
        if not path.exists():  # connecting would make it
            raise ShardOfflineError(
                "ShardUnreachable", "The file is not there.", facts={"shard": location.text}
            )
    return manager.engines.admin(location).connect()


def status(manager: ShardMapManager, given: argparse.Namespace) -> Status:
    has_schema = given.metadata is not None or given.alembic is not None
    shards = _look(make_fleet(manager, given, is_needed=False), given.map, has_schema=has_schema)
    unfinished = count_unfinished(manager)
    is_healthy = not any(one.error or one.drift or one.is_current is False for one in shards)
    return Status(is_healthy, shards, unfinished)


def drift(manager: ShardMapManager, given: argparse.Namespace) -> Drift:
    shards = _look(make_fleet(manager, given), given.map, has_schema=True)
    found = [one for one in shards if one.drift or one.error]
    return Drift(not found, found)


def _look(fleet: Fleet, map_name: str | None, *, has_schema: bool) -> list[StatusFacts]:
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


def fan_out(manager: ShardMapManager, given: argparse.Namespace) -> Rows:
    shard_map = choose_map(manager, given.map)
    shards = [choose_shard(shard_map.shards(), name) for name in given.shard] or shard_map.shards()
    # The text is a subquery of what is run, so that it can only be a SELECT; a colon is a colon.
    # The last line may be a comment.
    plain = given.sql.strip().rstrip(";").replace(":", "\\:") + "\n"
    names = _column_names(shards, plain, is_partial=given.partial)
    result = shard_map.fan_out(
        text(plain).columns(*(column(name) for name in names)),
        shards=shards,
        policy="partial" if given.partial else "complete",
        timeout=given.timeout,
        shard_timeout=given.timeout,
        shard_column="shard" if "shard" not in names else "partita_shard",
        limit=given.limit + 1,
    )
    with result:
        rows = [list(row) for row in result]
    errors = {shard.location.text: error_text(error) for shard, error in result.errors.items()}
    columns = [*names, "shard" if "shard" not in names else "partita_shard"]
    return Rows(columns, rows[: given.limit], len(rows) > given.limit, errors)


def _column_names(shards: list[Shard], plain: str, *, is_partial: bool) -> list[str]:
    """Ask a shard what the columns are called; with `is_partial` the first that answers."""
    error: DBAPIError | None = None
    for shard in shards:
        try:
            return _ask_names(shard, plain)
        except DBAPIError as caught:
            error = caught
            if not is_partial:
                break
    if error is not None:
        raise ConfigurationError(
            "StatementFailed",
            f"A shard refused the statement: {_first_line(error.orig or error)}",
            facts={"shard": shard.location.text},
            hint="Give one SELECT: a fan-out reads only.",
        ) from error
    raise ConfigurationError("NoShards", "There is no shard to ask.", hint="Add shards first.")


def _ask_names(shard: Shard, plain: str) -> list[str]:
    with shard.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection.execution_options(postgresql_readonly=True)
        # With a parameter a server takes one statement only: `…); COMMIT; DELETE …` is refused.
        query = text(f"SELECT * FROM ({plain}) AS asked LIMIT :rows")  # noqa: S608 - the caller's own
        return list(connection.execute(query, {"rows": 0}).keys())


# Recovery


def recover(manager: ShardMapManager, given: argparse.Namespace) -> Recovered:
    maps = chosen_maps(manager, given.map)
    if given.keep is not None and given.shard is None:
        raise ConfigurationError(
            "Configuration",
            "A side is kept for one shard at a time.",
            hint="Name the shard: partita shards recover SHARD --keep global.",
        )
    if given.only and given.keep is None:
        raise ConfigurationError(
            "Configuration",
            "--only says for which keys a side is kept.",
            hint="Add --keep global or --keep local.",
        )
    every = [(one, shard) for one in maps for shard in one.shards()]
    if given.shard is not None:
        location = _named(every, given.shard)
        every = [(one, shard) for one, shard in every if shard.location.identity == location]
    # Read before anything is changed: the maps may have keys of different types.
    only = {one.id: [parse_keys(text, one) for text in given.only] or None for one, _ in every}
    ended = _pending_changes(manager) if given.dry_run else _end_changes(manager)
    differences, errors = _differences(manager, every, is_dry=given.dry_run)
    if given.keep is not None and not given.dry_run:
        for shard_map, shard in every:
            manager.recovery.resolve(
                shard, keep=given.keep, only=only[shard_map.id], shard_map=shard_map
            )
    return Recovered(given.dry_run, given.keep, differences, ended, errors)


def _named(every: list[tuple[AnyShardMap, Shard]], name: str) -> str:
    """Return the database that is meant: it may be a shard of several maps."""
    databases = {shard.location.identity: shard for _, shard in every}
    by_id = {shard.id: shard for _, shard in every}
    if name in by_id:
        return by_id[name].location.identity
    return choose_shard(databases.values(), name).location.identity


def _pending_changes(manager: ShardMapManager) -> dict[str, str]:
    with manager.executor.engine.connect() as connection:
        return dict.fromkeys(global_catalog.list_pending(connection), "would be ended")


def _end_changes(manager: ShardMapManager) -> dict[str, str]:
    ended: dict[str, str] = {}
    for operation in _pending_changes(manager):
        try:
            ended[operation] = manager.executor.recover(operation)
        except (PartitaError, DBAPIError) as error:
            ended[operation] = error_text(error)
    return ended


def _differences(
    manager: ShardMapManager, every: list[tuple[AnyShardMap, Shard]], *, is_dry: bool
) -> tuple[list[DifferenceFacts], dict[str, str]]:
    found: list[DifferenceFacts] = []
    errors: dict[str, str] = {}
    for shard_map, shard in every:
        if is_dry and _has_pending(manager, shard):
            errors[shard.location.text] = "An unfinished change must be ended before comparing."
            continue
        try:
            differences = manager.recovery.differences(shard, shard_map=shard_map)
        except (PartitaError, DBAPIError) as error:
            errors[shard.location.text] = error_text(error)
        else:
            found += [_difference_facts(one) for one in differences]
    return found, errors


def _has_pending(manager: ShardMapManager, shard: Shard) -> bool:
    with manager.executor.engine.connect() as connection:
        return bool(global_catalog.list_pending(connection, shard.id))


def _difference_facts(one: MappingDifference) -> DifferenceFacts:
    def owner(mapping: Any) -> str | None:
        return None if mapping is None else mapping.shard.location.text

    return DifferenceFacts(
        map=one.map_name,
        shard=one.location.text,
        range=range_text(one.range),
        where=one.where,
        in_global=owner(one.in_global),
        in_local=owner(one.in_local),
    )


# Errors of single shards


def error_text(error: BaseException | None) -> str:
    """Say in one line what a shard's error was; the shard is named beside it."""
    if error is None:
        return ""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException) and not _says_more(error):
        return error_text(cause)
    if isinstance(error, PartitaError):
        return " ".join(part for part in (error.message, error.hint) if part).replace("\n", " ")
    if isinstance(error, DBAPIError) and error.orig is not None:
        return _first_line(error.orig)
    return _first_line(error)


def _says_more(error: BaseException) -> bool:
    """Tell whether a ShardError has a message of its own, besides that of its cause."""
    return getattr(error, "code", "") not in {"ShardFailed", ""}


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
