"""`partita state`: look at the folder of a reliable state, verify it, back it up, bring it back.

`inspect`, `verify` and `export` change nothing, whatever they find; `backup` opens the state as
a program would; `restore` writes one. Each verb returns facts, which are printed as text or, with
--json, as one line. Progress is drawn on standard error, and only for people.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, NoReturn, TypeVar

import msgspec
from tqdm import tqdm

from partita.cli.state import export as state_export
from partita.cli.state.facts import (
    DURABILITY_NOTE,
    BackedUp,
    CollectionFacts,
    Exported,
    Facts,
    IndexFacts,
    Inspected,
    RestoredFacts,
    Verified,
    as_text,
    moment,
)
from partita.cli.state.reading import (
    ReadingDisk,
    is_part_of_state,
    is_replica,
    names_in,
    read_state,
    reading,
    refuse_unless_state,
)
from partita.cli.state.verify import checkpoint_facts, log_facts, verify
from partita.clock import SystemClock
from partita.errors import BackupOrderError, ConfigurationError, StoreLockedError
from partita.reliable.opening import open_state
from partita.reliable.restoring import restore_state
from partita.reliable.state.state import Collection, State

T = TypeVar("T")

# The command line


def add_verbs(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add `state inspect`, `verify`, `backup`, `restore` and `export` to the command line."""
    state = verbs.add_parser("state", help="the folder of a reliable state", allow_abbrev=False)
    actions = state.add_subparsers(required=True, metavar="inspect|verify|backup|restore|export")
    _add(actions, "inspect", "say what a state holds", "partita state inspect ./state")
    _add(
        actions,
        "verify",
        "check every byte of a state; the status is 1 for damage",
        "partita state verify ./state --json",
    )
    backing_up = _add(
        actions,
        "backup",
        "back a state up that nobody has open",
        "partita state backup ./state --to /mnt/backups/orders --incremental",
    )
    backing_up.add_argument("--to", required=True, metavar="DIR", help="folder of the backups")
    backing_up.add_argument(
        "--incremental", action="store_true", help="only what is new since the newest one there"
    )
    restoring = _add(
        actions,
        "restore",
        "make a state from a folder of backups",
        "partita state restore /mnt/backups/orders --to ./state",
        path="folder of the backups",
    )
    restoring.add_argument(
        "--to", required=True, metavar="PATH|URL", help="folder of the state, or nats://host:4222"
    )
    restoring.add_argument(
        "--partition", metavar="NAME", help="the new partition's name, for a state on NATS"
    )
    restoring.add_argument(
        "--force", action="store_true", help="replace what is there, even if it is newer"
    )
    restoring.add_argument(
        "--up-to", metavar="SEQUENCE", help="stop at this record instead of the newest"
    )
    exporting = _add(
        actions,
        "export",
        "write the rows as lines of JSON",
        "partita state export ./state --collection users --out users.jsonl",
    )
    exporting.add_argument(
        "--collection", action="append", metavar="NAME", help="only this one, may be repeated (all)"
    )
    exporting.add_argument("--out", metavar="FILE", help="where to write (standard output)")


def _add(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
    action: str,
    text: str,
    example: str,
    path: str = "folder of the state",
) -> argparse.ArgumentParser:
    added = actions.add_parser(
        action,
        help=text,
        description=text[0].upper() + text[1:] + ".",
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    added.set_defaults(verb="state", action=action)
    added.add_argument("path", metavar="PATH", help=path)
    added.add_argument("--json", action="store_true", help="print the facts as one JSON line")
    added.add_argument("--quiet", action="store_true", help="draw no progress")
    return added


def run(given: Mapping[str, object]) -> int:
    """Run one of the verbs and return the exit status: 1 for a state that is damaged."""
    path, is_json = Path(str(given["path"])), bool(given["json"])
    # Rows on the same terminal would run through the bar.
    has_rows = given["action"] == "export" and given["out"] is None and sys.stdout.isatty()
    bar = Bar(str(given["action"]), is_hidden=is_json or bool(given["quiet"]) or has_rows)
    with contextlib.closing(bar), _saying_what_else():
        facts = _facts(path, given, bar)
    _print(facts, as_json=is_json, quiet=bool(given["quiet"]))
    return 1 if isinstance(facts, Verified) and not facts.is_sound else 0


def _facts(path: Path, given: Mapping[str, object], bar: "Bar") -> Facts:
    match given["action"]:
        case "inspect":
            return inspect(path, bar)
        case "verify":
            return verify_folder(path, bar)
        case "backup":
            to = Path(str(given["to"]))
            return back_up(path, to, bar, incremental=bool(given["incremental"]))
        case "restore":
            up_to, force = _sequence(given["up_to"]), bool(given["force"])
            partition = given["partition"]
            return restore_backups(
                path,
                str(given["to"]),
                bar,
                up_to=up_to,
                force=force,
                partition=None if partition is None else str(partition),
            )
        case _:
            return _export(path, given, bar)


@contextlib.contextmanager
def _saying_what_else() -> Iterator[None]:
    """Tell whoever finds the folder held what the command line can do all the same."""
    try:
        yield
    except StoreLockedError as error:
        error.hint = "Stop that process, or look at a backup: state.backup() takes one as it runs."
        raise


def _export(path: Path, given: Mapping[str, object], bar: "Bar") -> Exported:
    names, out = given["collection"], given["out"]
    assert names is None or isinstance(names, list)
    with _output(None if out is None else Path(str(out))) as file:
        exported = export(path, file, bar, names=names)
    return msgspec.structs.replace(exported, file=None if out is None else str(out))


def _print(facts: Facts, *, as_json: bool, quiet: bool) -> None:
    has_rows = isinstance(facts, Exported) and facts.file is None
    if has_rows and quiet and not as_json:
        return
    # Rows have standard output for themselves: what is said about them goes beside it.
    file = sys.stderr if has_rows else sys.stdout
    print(msgspec.json.encode(facts).decode() if as_json else as_text(facts), file=file)


def _sequence(raw: object) -> int | None:
    if raw is None:
        return None
    text = str(raw)
    if not (text.isascii() and text.isdigit()):
        raise ConfigurationError(
            "Configuration",
            f"{text!r} is not the sequence of a record.",
            hint="Give a whole number; `partita state inspect` says how far a state reaches.",
        )
    return int(text)


class Bar:
    """Progress for people: nothing unless standard error is a terminal."""

    def __init__(self, label: str, *, is_hidden: bool) -> None:
        self._label = label
        self._is_hidden = is_hidden or not sys.stderr.isatty()
        self._bar: tqdm[NoReturn] | None = None

    def begin(self, total: int, unit: str = "") -> None:
        """Start a step with a bar of its own."""
        self.close()
        if not self._is_hidden:
            self._bar = tqdm(
                desc=self._label,
                total=total,
                unit=unit,
                unit_scale=True,
                leave=False,
                file=sys.stderr,
            )

    def count(self, step: int) -> None:
        """Go on by so much; what is read twice does not go over the end."""
        if self._bar is not None:
            self._bar.update(min(step, (self._bar.total or 0) - self._bar.n))

    def progress(self, done: int, total: int) -> None:
        """Satisfy Progress: a new total is a new step."""
        if self._bar is None or self._bar.total != total:
            self.begin(total)
        if self._bar is not None:
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _reading(path: Path, bar: Bar, work: Callable[[ReadingDisk], Awaitable[T]]) -> T:
    """Do work on the files, with the bytes that are read as its progress."""
    with reading(path, bar.count) as disk:
        parts = [name for name in disk.names() if is_part_of_state(name)]
        # The log is read twice: verified from end to end, then applied.
        sizes = (disk.size(name) * (2 if name.startswith("log-") else 1) for name in parts)
        bar.begin(sum(sizes), "B")

        async def run_work() -> T:
            return await work(disk)

        return asyncio.run(run_work())


# The verbs


def inspect(path: Path, bar: Bar) -> Inspected:
    """Read the whole state and say what it holds."""

    async def work(disk: ReadingDisk) -> Inspected:
        found = await read_state(disk)
        state = found.state
        return Inspected(
            path=os.fspath(path),
            sequence=state.sequence,
            epoch=state.epoch,
            last_commit=moment(state.ticks),
            collections=[_collection_facts(state, one) for one in state_export.chosen(state, None)],
            outcomes=len(state.outcomes),
            checkpoint=checkpoint_facts(found.checkpoint),
            log=log_facts(disk, found.log),
            torn_tail=disk.torn_tail,
            durability=DURABILITY_NOTE,
        )

    return _reading(path, bar, work)


def _collection_facts(state: State, collection: Collection) -> CollectionFacts:
    description = collection.description
    return CollectionFacts(
        name=description.name,
        kind=description.kind,
        key=description.key,
        value=description.value,
        written_version=description.written_version,
        count=len(collection.rows.values),
        bytes=_bytes_of(collection),
        indexes=[
            IndexFacts(
                index.description.name.rpartition("\x00")[2],
                index.description.is_ready,
                len(index.rows.values),
                _bytes_of(index),
            )
            for index in state.indexes_of(collection)
        ],
    )


def _bytes_of(collection: Collection) -> int:
    return sum(len(key) + len(value) for key, value in collection.rows.values.items())


def verify_folder(path: Path, bar: Bar) -> Verified:
    """Check every byte of a state."""
    return _reading(path, bar, lambda disk: verify(disk, os.fspath(path)))


def back_up(path: Path, folder: Path, bar: Bar, *, incremental: bool) -> BackedUp:
    """Open a state and back it up: the same as state.backup() in a program."""
    refuse_unless_state(path)
    _refuse_same(path, folder)
    before = names_in(folder) if folder.exists() else []
    if is_replica(names_in(path)):
        raise ConfigurationError(
            "FolderUnusable",
            f"The folder {path} is a replica's: its log is on NATS.",
            hint="Call state.backup() in a program that has the partition open.",
        )

    async def work() -> BackedUp:
        # No checkpoint meanwhile: it would cut the log that the increment is made of.
        async with open_state(path, checkpoint_bytes=sys.maxsize) as state:
            backup = await state.backup(folder, incremental=incremental, progress=bar.progress)
        return BackedUp(
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


def restore_backups(
    folder: Path,
    where: str,
    bar: Bar,
    *,
    up_to: int | None,
    force: bool,
    partition: str | None = None,
) -> RestoredFacts:
    """Make a state what a folder of backups says."""
    if not any(name.startswith("backup-") for name in names_in(folder)):
        raise BackupOrderError(
            "BackupNotFound",
            f"The folder {folder} holds no backup.",
            hint="Choose the folder that the backups were written to.",
        )
    if "://" not in where:
        _refuse_same(Path(where), folder)
    done = asyncio.run(
        restore_state(
            folder, where, partition=partition, force=force, up_to=up_to, progress=bar.progress
        )
    )
    return RestoredFacts(
        where, done.sequence, done.epoch, list(done.backups), moment(done.restored_at)
    )


def _refuse_same(path: Path, folder: Path) -> None:
    if path.resolve() == folder.resolve():
        raise ConfigurationError(
            "Configuration",
            "A state and its backups cannot share a folder.",
            hint="Give another folder with --to, best on another disk.",
        )


def export(path: Path, file: BinaryIO, bar: Bar, *, names: list[str] | None) -> Exported:
    """Write the rows of a state, all as of one sequence."""

    async def work(disk: ReadingDisk) -> Exported:
        state = (await read_state(disk)).state
        collections = state_export.chosen(state, names)
        bar.begin(sum(len(collection.rows.values) for collection in collections), " rows")
        now = SystemClock().ticks()
        counts = {
            collection.description.name: _write_lines(
                file, state_export.lines(collection, state.sequence, now), bar
            )
            for collection in collections
        }
        return Exported(os.fspath(path), None, state.sequence, sum(counts.values()), counts)

    return _reading(path, bar, work)


def _write_lines(file: BinaryIO, lines: Iterable[str], bar: Bar) -> int:
    count = 0
    for line in lines:
        file.write(line.encode() + b"\n")
        count += 1
        bar.count(1)
    return count


@contextlib.contextmanager
def _output(out: Path | None) -> Iterator[BinaryIO]:
    """Open where to write; a file gets its name when all is written."""
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
