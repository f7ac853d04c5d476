"""The verbs of `partita state`: inspect, verify, back up, restore and export."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

from partita.addresses import without_password
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, show
from partita.cli.kit.progress import Bar
from partita.cli.kit.target import get_folder
from partita.cli.state.export import lines
from partita.cli.state.facts import (
    DURABILITY_NOTE,
    Exported,
    Inspected,
    RestoredFacts,
    StateBackedUp,
    StateVerified,
)
from partita.cli.state.verify import checkpoint_facts, log_facts
from partita.cli.state.verify import verify as verify_files
from partita.clock import SystemClock
from partita.errors import BackupOrderError, ConfigurationError, StoreLockedError
from partita.reliable.observing.folder_reading import (
    ReadingDisk,
    is_part_of_state,
    is_replica,
    names_in,
    read_state,
    reading,
    refuse_unless_state,
)
from partita.reliable.observing.views import chosen, collection_facts
from partita.reliable.opening import open_state
from partita.reliable.restoring import restore_state
from partita.ticks import moment

T = TypeVar("T")


def run(given: Given) -> int:
    """Run one of the verbs and return the exit status: 1 for a state that is damaged."""
    verbs: dict[str, Callable[[Given, Bar], Facts]] = {
        "inspect": inspect,
        "verify": verify,
        "backup": back_up,
        "restore": restore_backups,
        "export": export,
    }
    # Rows on the same terminal would run through the bar.
    has_rows = given.verb == "export" and given.out is None
    is_hidden = given.json or given.quiet or (has_rows and sys.stdout.isatty())
    with Bar(given.verb, is_hidden=is_hidden) as bar, _naming_other_ways():
        facts = verbs[given.verb](given, bar)
    if not has_rows:
        show(facts, is_json=given.json)
    elif given.json or not given.quiet:
        show(facts, is_json=given.json, file=sys.stderr)  # standard output has the rows
    return facts.exit_status


@contextlib.contextmanager
def _naming_other_ways() -> Iterator[None]:
    """Replace the hint for a folder that another process holds."""
    try:
        yield
    except StoreLockedError as error:
        error.hint = "Stop that process, or use a backup: state.backup() takes one while it runs."
        raise


def _sequence(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(
            "Configuration",
            f"{text!r} is not the sequence of a record.",
            hint="Give --up-to a whole number; `partita state inspect` prints the newest.",
        )
    return int(text)


def _folder(given: Given) -> Path:
    return get_folder(given.connect, "The folder of the state")


def _reading(given: Given, bar: Bar, work: Callable[[ReadingDisk, str], Awaitable[T]]) -> T:
    """Do work on the files of a folder, with the bytes that are read as its progress."""
    path = _folder(given)
    with reading(path, bar.advance) as disk:
        parts = [name for name in disk.names() if is_part_of_state(name)]
        # The log is read twice: verified from end to end, then applied.
        sizes = (disk.size(name) * (2 if name.startswith("log-") else 1) for name in parts)
        bar.begin(sum(sizes), "B")

        async def run_work() -> T:
            return await work(disk, os.fspath(path))

        return asyncio.run(run_work())


def inspect(given: Given, bar: Bar) -> Inspected:
    """Read the whole state."""

    async def work(disk: ReadingDisk, path: str) -> Inspected:
        found = await read_state(disk)
        state = found.state
        return Inspected(
            path=path,
            sequence=state.sequence,
            epoch=state.epoch,
            last_commit=moment(state.ticks),
            collections=[collection_facts(state, one, counts_bytes=True) for one in chosen(state)],
            outcomes=len(state.outcomes),
            checkpoint=checkpoint_facts(found.checkpoint),
            log=log_facts(disk, found.log),
            torn_tail=disk.torn_tail,
            durability=DURABILITY_NOTE,
        )

    return _reading(given, bar, work)


def verify(given: Given, bar: Bar) -> StateVerified:
    """Check every byte of a state."""
    return _reading(given, bar, verify_files)


def back_up(given: Given, bar: Bar) -> StateBackedUp:
    """Open a state and back it up, as state.backup() does in a program."""
    path, folder = _folder(given), Path(given.to)
    refuse_unless_state(path)
    _refuse_same(path, folder)
    before = names_in(folder) if folder.exists() else []
    if is_replica(names_in(path)):
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {path} belongs to a replica: its log is on NATS.",
            hint="Call state.backup() in a program that has the partition open.",
        )

    async def work() -> StateBackedUp:
        # No checkpoint meanwhile: it would cut the log that the increment is made from.
        async with open_state(path, checkpoint_bytes=sys.maxsize) as state:
            backup = await state.backup(
                folder, incremental=given.incremental, progress=bar.progress
            )
        return StateBackedUp(
            folder=os.fspath(folder),
            is_new=backup.path not in before,
            kind=backup.kind,
            number=backup.number,
            file=backup.path,
            first_sequence=backup.first_sequence,
            last_sequence=backup.last_sequence,
            epoch=backup.epoch,
            bytes=backup.bytes,
            sha256=backup.sha256,
            made_at=moment(backup.made_at),
        )

    return asyncio.run(work())


def restore_backups(given: Given, bar: Bar) -> RestoredFacts:
    """Make a state from a folder of backups."""
    folder, where, up_to = Path(given.backups), given.to, _sequence(given.up_to)
    if not any(name.startswith("backup-") for name in names_in(folder)):
        raise BackupOrderError(
            "BackupNotFound",
            f"The folder {folder} holds no backup.",
            hint="Give the folder that the backups were written to.",
        )
    if "://" not in where:
        _refuse_same(Path(where), folder)
    done = asyncio.run(
        restore_state(
            folder,
            where,
            partition=given.partition,
            force=given.force,
            up_to=up_to,
            progress=bar.progress,
        )
    )
    shown = without_password(where) if "://" in where else where
    return RestoredFacts(
        shown, done.sequence, done.epoch, list(done.backups), moment(done.restored_at)
    )


def _refuse_same(path: Path, folder: Path) -> None:
    if path.resolve() == folder.resolve():
        raise ConfigurationError(
            "Configuration",
            "A state and its backups cannot share a folder.",
            hint="Give another folder with --to, preferably on another disk.",
        )


def export(given: Given, bar: Bar) -> Exported:
    """Write the rows of a state, all as of one sequence."""
    with _output(None if given.out is None else Path(given.out)) as file:

        async def work(disk: ReadingDisk, path: str) -> Exported:
            state = (await read_state(disk)).state
            collections = chosen(state, given.collection)
            bar.begin(sum(len(collection.rows.values) for collection in collections), "rows")
            now = SystemClock().ticks()
            counts = {
                collection.description.name: _write_lines(
                    file, lines(collection, state.sequence, now), bar
                )
                for collection in collections
            }
            return Exported(path, given.out, state.sequence, sum(counts.values()), counts)

        return _reading(given, bar, work)


def _write_lines(file: BinaryIO, rows: Iterable[str], bar: Bar) -> int:
    count = 0
    for line in rows:
        file.write(line.encode() + b"\n")
        count += 1
        bar.advance(1)
    return count


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[BinaryIO]:
    """Open the output; a file gets its name when it is complete."""
    if out is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    unfinished = out.with_name(f"{out.name}.new")
    try:
        with unfinished.open("wb") as file:
            yield file
        unfinished.replace(out)
    except OSError as error:
        raise ConfigurationError(
            "Configuration",
            f"{out} cannot be written: {error.strerror}.",
            hint="Give another file with --out.",
        ) from error
    finally:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
