"""The verbs of `partita tables`, and `partita compact`."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from partita.addresses import is_postgresql, without_secrets
from partita.cli.kit.accounts import account_folders
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.progress import Bar
from partita.cli.kit.target import refuse_database
from partita.clock import SystemClock
from partita.errors import ConfigurationError
from partita.service.space.compacting import Compacted, compact
from partita.service.space.measuring import measure
from partita.storage.sizes import AccountSize, FolderSize, PartSize

DEFAULT_FOLDER = "./partita-data"
BAR_CELLS = 20

_ITEMS = {"table": "entities", "queue": "messages", "container": "blobs"}
_COMPACT_DATABASE = (
    "Autovacuum makes the space of deleted rows usable again; to return it to the disk, run"
    " VACUUM (FULL) in psql while no front end runs, or pg_repack while they do."
)


class Sizes(Facts, frozen=True):
    """What accounts have; `files` is of a folder, `relations` of a database."""

    source: str
    accounts: list[AccountSize]
    relations: dict[str, int]

    def lines(self) -> Iterator[Line]:
        for account in self.accounts:
            total = sum(part.bytes for part in account.parts)
            yield f"{account.account} in {self.source}: {total:,} bytes"
            parts = sorted(account.parts, key=lambda part: -part.bytes)
            yield Table(
                ("kind", "name", "items", "bytes", "%", "share"),
                [(*_cells(part), *_share(part.bytes, total)) for part in parts],
            )
            if isinstance(account, FolderSize):
                yield from _files(account)
        if self.relations:
            whole = sum(self.relations.values())
            yield f"relations with their indexes: {whole:,} bytes"
            yield Table(
                ("relation", "bytes", "%", "share"),
                [(name, f"{n:,}", *_share(n, whole)) for name, n in self.relations.items() if n],
            )
        if any(not part.is_exact for account in self.accounts for part in account.parts):
            yield "~ is an estimate; --exact counts."


class Tables(Sizes, frozen=True):
    """The tables of accounts."""

    def lines(self) -> Iterator[Line]:
        rows = [
            (account.account, part.name, _number(part.items, part), _number(part.bytes, part))
            for account in self.accounts
            for part in account.parts
        ]
        yield Table(("account", "table", "entities", "bytes"), rows)


class AccountsCompacted(Facts, frozen=True):
    """Databases that were written again."""

    path: str
    accounts: list[Compacted]

    def lines(self) -> Iterator[Line]:
        for each in self.accounts:
            freed = each.before_bytes - each.after_bytes
            yield (
                f"Compacted {each.account}: {each.before_bytes:,} to {each.after_bytes:,} bytes,"
                f" {max(freed, 0):,} freed"
            )
            if each.is_converted:
                yield "  A server now returns free space of this file to the disk by itself."
            if each.folders:
                yield f"  {each.folders:,} empty folders of content files removed"


def show_sizes(given: Given) -> Sizes:
    return _measured(given)


def list_tables(given: Given) -> Tables:
    found = _measured(given)
    accounts = [
        msgspec.structs.replace(each, parts=[part for part in each.parts if part.kind == "table"])
        for each in found.accounts
    ]
    return Tables(found.source, accounts, found.relations)


def compact_accounts(given: Given) -> AccountsCompacted:
    refuse_database(given.folder, "What is compacted", _COMPACT_DATABASE)
    root = Path(given.folder.removeprefix("partita:")).expanduser()
    with Bar(given.verb, is_hidden=given.json or given.quiet) as bar:
        done = [
            compact(folder, SystemClock(), bar.step)
            for folder in account_folders(root, given.account)
        ]
    return AccountsCompacted(str(root.absolute()), done)


def _measured(given: Given) -> Sizes:
    if given.path is not None and given.store is not None:
        raise ConfigurationError(
            "Configuration",
            "The accounts are in a folder or in a database.",
            hint="Give --path or --store, not both.",
        )
    with Bar(given.verb, is_hidden=given.json or given.quiet) as bar:

        def begins(name: str) -> None:
            bar.begin(None, label=name)

        if given.store is not None:
            return _of_database(given, begins)
        refuse_database(given.path, "--path", "Give --store postgresql://...")
        root = Path(given.path or DEFAULT_FOLDER).expanduser()
        accounts: list[AccountSize] = [
            measure(folder, is_exact=given.exact, begins=begins)
            for folder in account_folders(root, given.account)
        ]
    return Sizes(str(root.absolute()), accounts, {})


def _of_database(given: Given, begins: Callable[[str], None]) -> Sizes:
    if not is_postgresql(given.store):
        raise ConfigurationError(
            "Configuration",
            "--store needs the URL of a PostgreSQL database.",
            hint="Give --store postgresql://USER@HOST/DATABASE, or --path FOLDER.",
        )
    from partita.scaleout.catalog import sizes  # noqa: PLC0415 - needs an extra

    found = asyncio.run(
        sizes.measure(given.store, given.account, is_exact=given.exact, begins=begins)
    )
    if given.account is not None and not found.accounts:
        raise ConfigurationError(
            "AccountUnknown",
            f"The database has no account {given.account!r}.",
            hint="Name one of its accounts with --account.",
        )
    return Sizes(without_secrets(given.store), found.accounts, found.relations)


def _files(account: FolderSize) -> Iterator[Line]:
    free = account.free_bytes
    yield f"  database  {account.database_bytes:,} bytes, of which {free:,} are free for new rows"
    yield f"  log       {account.log_bytes:,} bytes"
    yield f"  contents  {account.files:,} files, {account.file_bytes:,} bytes"
    if not account.is_vacuumed:
        yield "  An earlier version created the database: run `partita compact` once, so that free"
        yield "  space is returned to the disk."


def _cells(part: PartSize) -> Sequence[str]:
    items = f"{_number(part.items, part)} {_ITEMS[part.kind]}"
    return part.kind, part.name, items, _number(part.bytes, part)


def _number(value: int, part: PartSize) -> str:
    return f"{'' if part.is_exact else '~'}{value:,}"


def _share(size: int, total: int) -> tuple[str, str]:
    share = size / total if total else 0.0
    return f"{share:.1%}", "█" * round(share * BAR_CELLS)
