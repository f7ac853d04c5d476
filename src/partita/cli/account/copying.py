"""`partita account copy`: copy a whole account between a folder and PostgreSQL."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from partita.cli.kit.accounts import account_folder
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.local_database import used_store
from partita.cli.kit.progress import Bar
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.local_postgres import has_local_store
from partita.scaleout.connections.location import SCHEMES, Location
from partita.scaleout.copying.contract import Source, Target
from partita.scaleout.copying.copier import Copier, Inventory, PartCopied, Report, inventory_of
from partita.scaleout.copying.folder_source import FolderSource
from partita.scaleout.copying.folder_target import FolderTarget
from partita.scaleout.copying.postgres_source import PostgresSource, accounts_of
from partita.scaleout.copying.postgres_target import PostgresTarget
from partita.service.accounts.account import check_account_name
from partita.storage.durability import Durability

_IN_FOLDER = "partita:"
_LOCAL = "local:"
"""Before a data folder: the database that `serve --store postgres --local` has in it."""
_SHOWN = {
    "table": ("tables", "entities"),
    "queue": ("queues", "messages"),
    "container": ("containers", "blobs"),
}


class AccountContents(Facts, frozen=True):
    """What a copy would copy, or has copied."""

    account: str
    source: str
    target: str
    tables: int
    entities: int
    queues: int
    messages: int
    containers: int
    blobs: int
    """With their snapshots."""
    row_bytes: int
    """About the bytes of all rows."""
    contents: int
    content_bytes: int
    """Of large contents, which are not in rows."""

    def lines(self) -> Iterator[Line]:
        yield f"Would copy {self.account} of {self.source} to {self.target}:"
        yield from self.amounts()

    def amounts(self) -> Iterator[Line]:
        yield f"  tables      {self.tables:,} with {self.entities:,} entities"
        yield f"  queues      {self.queues:,} with {self.messages:,} messages"
        yield f"  containers  {self.containers:,} with {self.blobs:,} blobs and snapshots"
        yield f"  rows        about {self.row_bytes:,} bytes"
        yield f"  contents    {self.contents:,} files or objects, {self.content_bytes:,} bytes"


class AccountCopied(AccountContents, frozen=True):
    """The outcome of a copy."""

    is_complete: bool
    is_source_changed: bool
    """Whether the source was written during this run."""
    seconds: float
    differences: list[str]
    parts: list[PartCopied]
    """What is equal on both sides, with digests."""

    @property
    def exit_status(self) -> int:
        return 0 if self.is_complete else 1

    def lines(self) -> Iterator[Line]:
        if self.is_complete:
            yield f"Copied and verified: {self.account} of {self.source} to {self.target}"
            yield from self.amounts()
            yield f"  time        {self.seconds:,.1f} s"
            return
        yield f"Not complete: {self.account} of {self.source} to {self.target}"
        yield Table(("differs",), [(each,) for each in self.differences])
        yield (
            "  The source was written during the copy: stop its writers first."
            if self.is_source_changed
            else "  The source was not written during this run: check the disks of both sides."
        )
        yield "  Run the same command again: it copies only what differs."
        yield "  The target is not served until the copy is complete."


class CopyAbandoned(Facts, frozen=True):
    """An incomplete copy whose rows were removed."""

    account: str
    source: str
    target: str
    parts: int

    def lines(self) -> Iterator[Line]:
        yield f"Abandoned the copy of {self.account} to {self.target}: it is empty again."


def copy_account(given: Given) -> Facts:
    return asyncio.run(_copy(given))


class _Database(NamedTuple):
    """Where an account is in PostgreSQL."""

    location: Location
    blob_store: str | None
    place: str = ""


async def _copy(given: Given) -> Facts:
    clock = SystemClock()
    begun = clock.monotonic()
    async with contextlib.AsyncExitStack() as opened:
        source_at = await opened.enter_async_context(_database(given.source, given.blob_store))
        account, source = await _source(given, source_at)
        opened.push_async_callback(source.close)
        await source.open()
        if given.dry_run:
            async with source.moment():
                return _contents(account, source.identity, given.to, await inventory_of(source))
        target_at = await opened.enter_async_context(
            _database(given.to, given.blob_store, is_new=True)
        )
        target = _target(given, account, target_at)
        with Bar(given.verb, is_hidden=given.json or given.quiet, shows_rate=True) as bar:
            try:
                await target.open()
                copier = Copier(source, target, bar.step)
                if given.abandon:
                    parts = await copier.abandon()
                    return CopyAbandoned(account, source.identity, target.identity, parts)
                report = await copier.run()
            finally:
                await target.close()
    return _copied(account, (source, target), report, clock.monotonic() - begun)


@contextlib.asynccontextmanager
async def _database(
    where: str, blob_store: str | None, *, is_new: bool = False
) -> AsyncIterator[_Database | None]:
    """Yield the database that a text names, of --local also a started one; None for a folder."""
    if _is_database(where):
        yield _Database(Location.parse(where), blob_store)
        return
    if not where.startswith(_LOCAL):
        yield None
        return
    folder = _folder(where.removeprefix(_LOCAL))
    if not is_new and not has_local_store(folder):
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {folder} holds no database of serve --local.",
            hint="Give the folder that serve --path names.",
        )
    async with used_store(folder) as (url, blobs):
        place = f"{_LOCAL}{folder.absolute()}"
        yield _Database(Location.parse(url), blob_store or blobs, place)


async def _source(given: Given, database: _Database | None) -> tuple[str, Source]:
    if database is None:
        folder = account_folder(_folder(given.source), given.account)
        return folder.absolute().name, FolderSource(folder, SystemClock())
    durability, account = Durability(given.durability), given.account
    if account is None:
        found = await accounts_of(database.location, durability)
        account = _only(found, database.place or str(database.location))
    return account, PostgresSource(
        database.location,
        account,
        blob_store=database.blob_store,
        durability=durability,
        place=database.place,
    )


def _target(given: Given, account: str, database: _Database | None) -> Target:
    check_account_name(account)
    if database is None:
        return FolderTarget(_folder(given.to) / account, SystemClock())
    return PostgresTarget(
        database.location,
        account,
        blob_store=database.blob_store,
        durability=Durability(given.durability),
        clock=SystemClock(),
        place=database.place,
    )


def _is_database(where: str) -> bool:
    return where.partition("://")[0] in SCHEMES and "://" in where


def _folder(where: str) -> Path:
    text = where.removeprefix(_IN_FOLDER)
    if not text or "://" in text:
        raise ConfigurationError(
            "Configuration",
            "An account is in a folder or in a PostgreSQL database.",
            hint="Give the folder that serve --path names, postgresql://USER@HOST/DATABASE, or "
            "local:FOLDER for a folder of serve --store postgres --local.",
        )
    return Path(text).expanduser()


def _only(accounts: Sequence[str], database: str) -> str:
    if len(accounts) == 1:
        return accounts[0]
    found = f"several accounts: {', '.join(accounts)}" if accounts else "no account"
    raise ConfigurationError(
        "Configuration", f"{database} holds {found}.", hint="Name one with --account."
    )


def _contents(account: str, source: str, target: str, found: Inventory) -> AccountContents:
    return AccountContents(account=account, source=source, target=_shown(target), **_amounts(found))


def _copied(
    account: str, sides: tuple[Source, Target], report: Report, seconds: float
) -> AccountCopied:
    source, target = sides
    return AccountCopied(
        account=account,
        source=source.identity,
        target=target.identity,
        is_complete=not report.differences,
        is_source_changed=report.is_source_changed,
        seconds=round(seconds, 3),
        differences=list(report.differences),
        parts=list(report.parts),
        **_amounts(report.inventory),
    )


def _amounts(found: Inventory) -> dict[str, int]:
    amounts = dict.fromkeys((name for names in _SHOWN.values() for name in names), 0)
    for plan in found.plans:
        if plan.part.kind in _SHOWN:
            parts, rows = _SHOWN[plan.part.kind]
            amounts[parts] += 1
            amounts[rows] += plan.rows
    return {
        **amounts,
        "row_bytes": sum(plan.bytes for plan in found.plans),
        "contents": found.files,
        "content_bytes": found.file_bytes,
    }


def _shown(where: str) -> str:
    return str(Location.parse(where)) if _is_database(where) else where
