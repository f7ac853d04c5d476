"""What the verbs of `partita state` found and did."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from partita.cli.kit.facts import Facts, Line, Table
from partita.cli.kit.text import size_text
from partita.reliable.observing.facts import CollectionFacts, IndexFacts
from partita.reliable.observing.folder_reading import TornTail


class Damage(msgspec.Struct, frozen=True):
    """One place whose content is not what was written."""

    code: str
    message: str
    file: str | None
    offset: int | None
    sequence: int | None
    hint: str


class CheckpointFacts(msgspec.Struct, frozen=True):
    """The checkpoint that the state is recovered from."""

    file: str
    sequence: int
    bytes: int
    written: str | None
    """When its newest record was committed."""


class LogFacts(msgspec.Struct, frozen=True):
    """The log of a folder: records from `first` to `last`, none if `last` is below `first`."""

    first: int
    last: int
    bytes: int
    segments: int


class MarkFacts(msgspec.Struct, frozen=True):
    """The marks of what was synced."""

    readable: int
    unreadable_bytes: int
    newest: int | None


class StateVerified(Facts, frozen=True):
    """What was found; a state is sound if there is no damage, whatever the notes say."""

    path: str
    is_sound: bool
    sequence: int | None
    epoch: int | None
    digest: str | None
    """Equal on all replicas at equal sequence; None when the state could not be rebuilt."""
    checkpoint: CheckpointFacts | None
    log: LogFacts | None
    marks: MarkFacts | None
    torn_tail: TornTail | None
    is_rebuilt_from_nothing: bool
    """Whether the log reaches back to record 1 and gave the same state as the checkpoint."""
    damage: list[Damage]
    notes: list[str]

    @property
    def exit_status(self) -> int:
        return int(not self.is_sound)

    def lines(self) -> Iterator[Line]:
        yield f"{self.path} is {'sound' if self.is_sound else 'damaged'}."
        for one in self.damage:
            place = [f"{one.file}"] if one.file else []
            place += [f"byte {one.offset}"] if one.offset is not None else []
            place += [f"record {one.sequence}"] if one.sequence is not None else []
            yield f"  damage      {', '.join(place) or 'the log'}: {one.message} {one.hint}"
        if self.sequence is not None:
            yield f"  sequence    {self.sequence}, epoch {self.epoch}, digest {self.digest}"
        yield from _file_lines(self.checkpoint, self.log)
        if self.marks is not None:
            newest = (
                "-" if self.marks.newest is None else f"the newest for record {self.marks.newest}"
            )
            yield f"  marks       {self.marks.readable}, {newest}"
        if self.is_rebuilt_from_nothing:
            yield "  rebuilt     from record 1: the same state as from the checkpoint"
        for note in self.notes:
            yield f"  note        {note}"


DURABILITY_NOTE = "Durability is chosen by the program that opens the state; the default is full."


class Inspected(Facts, frozen=True):
    """What a folder holds."""

    path: str
    sequence: int
    epoch: int
    last_commit: str | None
    collections: list[CollectionFacts]
    outcomes: int
    checkpoint: CheckpointFacts | None
    log: LogFacts | None
    torn_tail: TornTail | None
    durability: str

    def lines(self) -> Iterator[Line]:
        yield f"{self.path}"
        yield f"  sequence    {self.sequence}, epoch {self.epoch}"
        yield f"  last commit {self.last_commit or '-'}"
        yield from _file_lines(self.checkpoint, self.log)
        yield f"  outcomes    {self.outcomes} idempotency keys kept"
        yield f"  {self.durability}"
        if self.torn_tail is not None:
            yield f"  {_torn_text(self.torn_tail)}"
        yield ""
        if not self.collections:
            yield "No collections."
            return
        yield Table(
            ("collection", "kind", "key", "value", "version", "count", "bytes", "indexes"),
            (
                (
                    one.name,
                    one.kind,
                    one.key,
                    one.value,
                    one.written_version,
                    one.count,
                    size_text(one.bytes or 0),
                    ", ".join(_index_text(index) for index in one.indexes),
                )
                for one in self.collections
            ),
        )


class StateBackedUp(Facts, frozen=True):
    """One backup, or the newest one if nothing has been committed since."""

    folder: str
    is_new: bool
    kind: str
    number: int
    file: str
    first_sequence: int
    last_sequence: int
    epoch: int
    bytes: int
    sha256: str
    made_at: str | None

    def lines(self) -> Iterator[Line]:
        if not self.is_new:
            yield (
                f"Nothing was committed since backup {self.number}, which ends at record "
                f"{self.last_sequence}."
            )
            return
        yield (
            f"Backup {self.number} ({self.kind}) ends at record {self.last_sequence}: "
            f"{size_text(self.bytes)} in {Path(self.folder) / self.file}"
        )


class RestoredFacts(Facts, frozen=True):
    """A state that was put in place."""

    path: str
    sequence: int
    epoch: int
    backups: list[int]
    restored_at: str | None

    def lines(self) -> Iterator[Line]:
        used = ", ".join(map(str, self.backups))
        yield (
            f"{self.path} is restored to record {self.sequence}, epoch {self.epoch}, from "
            f"backup {used}."
        )


class Exported(Facts, frozen=True):
    """Rows that were written, as of one sequence."""

    path: str
    file: str | None
    sequence: int
    rows: int
    collections: dict[str, int]

    def lines(self) -> Iterator[Line]:
        counts = ", ".join(f"{name} {count}" for name, count in self.collections.items())
        yield f"{self.rows} rows as of record {self.sequence}: {counts or 'no collections'}"


def _index_text(index: IndexFacts) -> str:
    return f"{index.name} ({index.count})" if index.is_ready else f"{index.name} (not ready)"


def _file_lines(checkpoint: CheckpointFacts | None, log: LogFacts | None) -> Iterator[str]:
    if checkpoint is None:
        yield "  checkpoint  none"
    else:
        yield (
            f"  checkpoint  record {checkpoint.sequence}, {size_text(checkpoint.bytes)} "
            f"({checkpoint.file})"
        )
    if log is None:
        yield "  log         none that can be read here"
        return
    records = f"records {log.first} to {log.last}" if log.last >= log.first else "no records"
    segments = "1 segment" if log.segments == 1 else f"{log.segments} segments"
    yield f"  log         {records}, {size_text(log.bytes)} in {segments}"


def _torn_text(tail: TornTail) -> str:
    return (
        f"{tail.file} has a torn tail of {tail.bytes} bytes that was never acknowledged; opening "
        "the state cuts it."
    )
