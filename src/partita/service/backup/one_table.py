"""Restoring one table from a backup, into an account that no process has open.

The entities keep their etags and times. They are written under an id that is in the list of
dropped tables: until the last transaction gives the table its name it is invisible, and the next
server removes what a killed restore has written.
"""

import asyncio
import contextlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw
import msgspec

from partita.errors import (
    ChecksumError,
    StoreLockedError,
    TableExistsError,
    TableNotFoundError,
)
from partita.scaleout.copying.folder_rows import FolderRows
from partita.service.accounts.account import check_account_name
from partita.service.backup.chain import read_chain, read_contents
from partita.service.backup.files import Progress, check_database, silent, translating
from partita.service.backup.manifest import Manifest
from partita.service.backup.restoring import refuse_account_folder, take_database
from partita.service.backup.verifying import problem_of_entity
from partita.storage.database import DATABASE_FILE, Database
from partita.storage.schema import distrust
from partita.storage.store_clock import StoreClock
from partita.tables.entity import Entity, check_table_name, stored_entity
from partita.tables.sqlite_store import FORMAT_VERSION, SCHEMA, UPGRADES, put_entities
from partita.tables.store import Table
from partita.ticks import Clock

BATCH_ENTITIES, BATCH_BYTES = 2000, 2 * 1024 * 1024
"""What one transaction writes: it ends after so many entities, or bytes of documents."""
EXPANDED_FOLDER = "restoring-"
"""The database of the backup while a table is read from it, in the folder of the account."""


class TableWanted(msgspec.Struct, frozen=True):
    """A table of a backup, and the name that it gets."""

    name: str
    new_name: str
    account: str | None = None
    """The account that gets it; None: the one of the backup."""
    up_to: int | None = None
    """The number of the backup in its chain; None: the newest."""


class TableRestored(msgspec.Struct, frozen=True):
    manifest: Manifest
    folder: Path
    """Of the account that has the table now."""
    entities: int


def restore_table(
    backup: Path,
    root: Path,
    table: TableWanted,
    *,
    clock: Clock,
    progress: Progress = silent,
) -> TableRestored:
    """Add a table of a backup to an account below `root`, which is created if it is missing.

    StoreLockedError if a process has the account open, TableExistsError if it has a table of that
    name: nothing is overwritten.
    """
    refuse_account_folder(root)
    check_table_name(table.new_name)
    with translating(backup):
        chain = read_chain(backup, up_to=table.up_to)
        manifest = chain[-1].manifest
        name = manifest.account if table.account is None else table.account
        folder = root / check_account_name(name)
        is_new = not folder.exists()
        try:

            def expand(target: Path) -> None:
                take_database(chain, target)
                check_database(target / DATABASE_FILE, read_contents(chain[-1]), progress)

            entities = asyncio.run(_restore(folder, expand, table, clock, progress))
        except StoreLockedError:
            raise  # a process has created the folder meanwhile
        except BaseException:
            if is_new:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    return TableRestored(manifest, folder, entities)


async def _restore(
    folder: Path,
    expand: Callable[[Path], None],
    table: TableWanted,
    clock: Clock,
    progress: Progress,
) -> int:
    database = await Database.open(folder)
    expanded = folder / f"{EXPANDED_FOLDER}{clock.new_id()[:8]}"
    try:
        store_clock = StoreClock(database, clock)
        database.prepare("tables", FORMAT_VERSION, SCHEMA, UPGRADES)
        _remove_left(folder)
        target = await _new_table(database, table.new_name)
        expanded.mkdir(mode=0o700)
        expand(expanded)
        with contextlib.closing(_source(expanded)) as source:
            return await _copy(source, table, database, target, store_clock, progress)
    finally:
        shutil.rmtree(expanded, ignore_errors=True)
        await database.close()


def _remove_left(folder: Path) -> None:
    """Remove what killed restores left."""
    for left in folder.glob(f"{EXPANDED_FOLDER}*"):
        shutil.rmtree(left)


def _source(folder: Path) -> apsw.Connection:
    source = apsw.Connection(str(folder / DATABASE_FILE), flags=apsw.SQLITE_OPEN_READONLY)
    distrust(source)
    FolderRows(source).check_versions()
    return source


async def _new_table(database: Database, name: str) -> Table:
    """Take the id of a table; the table is listed as dropped, and is not in the catalog."""
    async with database.change() as connection:
        try:
            connection.execute(
                "INSERT INTO catalog (folded, name, policies) VALUES (?, ?, '[]')",
                (name.lower(), name),
            )
        except apsw.ConstraintError as error:
            raise TableExistsError(
                "TableAlreadyExists",
                "The account has a table of this name; a restore overwrites nothing.",
                facts={"table": name},
                hint="Give the table another name with --as, or delete the present one.",
            ) from error
        table = Table(connection.last_insert_rowid(), name)
        connection.execute("DELETE FROM catalog WHERE id = ?", (table.id,))
        connection.execute("INSERT INTO dropped VALUES (?)", (table.id,))
    return table


async def _copy(
    source: apsw.Connection,
    wanted: TableWanted,
    database: Database,
    target: Table,
    store_clock: StoreClock,
    progress: Progress,
) -> int:
    found: list[Any] = source.execute(
        "SELECT id, policies FROM catalog WHERE folded = ?", (wanted.name.lower(),)
    ).fetchall()
    if not found:
        raise TableNotFoundError(
            "TableNotFound",
            "The backup has no table of this name.",
            facts={"table": wanted.name},
            hint="Check the name; --up-to restores the table of an earlier backup.",
        )
    identity, policies = found[0]
    total: Any = source.execute("SELECT count(*) FROM entity WHERE tid = ?", (identity,)).get
    done = 0
    for batch in _batches(source, identity):
        async with database.change() as connection:
            put_entities(connection, target, batch)
        store_clock.not_before(max(entity.ticks for entity in batch))
        done += len(batch)
        progress("entities", done, total)
    async with database.change() as connection:
        connection.execute(
            "INSERT INTO catalog VALUES (?, ?, ?, ?)",
            (target.id, target.name.lower(), target.name, policies),
        )
        connection.execute("DELETE FROM dropped WHERE id = ?", (target.id,))
    return done


def _batches(source: apsw.Connection, identity: int) -> Iterator[Sequence[Entity]]:
    batch: list[Entity] = []
    size = 0
    rows: Any = source.execute(
        "SELECT pk, rk, ticks, document FROM entity WHERE tid = ? ORDER BY pk, rk", (identity,)
    )
    for row in rows:
        if (reason := problem_of_entity(*row)) is not None:
            raise ChecksumError(
                "EntityDamaged",
                f"An entity of the backup is damaged: {reason}.",
                facts={"partition_key": row[0], "row_key": row[1]},
                hint="Use another backup; nothing was changed.",
            )
        batch.append(stored_entity(*row))
        size += len(row[3])
        if len(batch) >= BATCH_ENTITIES or size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
