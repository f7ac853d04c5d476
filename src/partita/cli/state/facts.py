"""What the verbs of `partita state` found: as values, one JSON line, or text for people."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TornTail(msgspec.Struct, frozen=True):
    """What a crash left of records that were never acknowledged."""

    file: str
    offset: int
    bytes: int


class Damage(msgspec.Struct, frozen=True):
    """One place that is not what was written."""

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
    """What the marks file says was synced."""

    readable: int
    unreadable_bytes: int
    newest: int | None


class Verified(msgspec.Struct, frozen=True):
    """What was found. It is sound when there is no damage: notes are none."""

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


DURABILITY_NOTE = (
    "Durability is chosen by the program that opens the state: full unless it says fast."
)


class IndexFacts(msgspec.Struct, frozen=True):
    """An index of a dictionary; find() waits until it is ready."""

    name: str
    is_ready: bool
    count: int
    bytes: int


class CollectionFacts(msgspec.Struct, frozen=True):
    """One collection; `bytes` are those of its encoded keys and values."""

    name: str
    kind: str
    key: str
    value: str
    written_version: int
    count: int
    bytes: int
    indexes: list[IndexFacts]


class Inspected(msgspec.Struct, frozen=True):
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


class BackedUp(msgspec.Struct, frozen=True):
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


class RestoredFacts(msgspec.Struct, frozen=True):
    """A state that was put in place."""

    path: str
    sequence: int
    epoch: int
    backups: list[int]
    restored_at: str | None


class Exported(msgspec.Struct, frozen=True):
    """What was written out, as of one sequence."""

    path: str
    file: str | None
    sequence: int
    rows: int
    collections: dict[str, int]


Facts = Inspected | Verified | BackedUp | RestoredFacts | Exported


def as_text(facts: Facts) -> str:
    """Write facts for people."""
    match facts:
        case Inspected():
            return "\n".join(_inspected_lines(facts))
        case Verified():
            return "\n".join(_verified_lines(facts))
        case BackedUp(is_new=False):
            return (
                f"Nothing was committed since backup {facts.number}: it reaches record "
                f"{facts.last_sequence}."
            )
        case BackedUp():
            return (
                f"Backup {facts.number} ({facts.kind}) reaches record {facts.last_sequence}: "
                f"{size_text(facts.bytes)} in {Path(facts.folder) / facts.file}"
            )
        case RestoredFacts():
            used = ", ".join(map(str, facts.backups))
            return (
                f"{facts.path} is restored to record {facts.sequence}, epoch {facts.epoch}, from "
                f"backup {used}."
            )
        case Exported():
            counts = ", ".join(f"{name} {count}" for name, count in facts.collections.items())
            return f"{facts.rows} rows as of record {facts.sequence}: {counts or 'no collections'}"


def _inspected_lines(facts: Inspected) -> Iterator[str]:
    yield f"{facts.path}"
    yield f"  sequence    {facts.sequence}, epoch {facts.epoch}"
    yield f"  last commit {facts.last_commit or '-'}"
    yield from _file_lines(facts.checkpoint, facts.log)
    yield f"  outcomes    {facts.outcomes} idempotency keys kept"
    yield f"  {facts.durability}"
    if facts.torn_tail is not None:
        yield f"  {_torn_text(facts.torn_tail)}"
    yield ""
    if not facts.collections:
        yield "No collections."
        return
    rows = [("collection", "kind", "key", "value", "version", "count", "bytes", "indexes")]
    rows += [
        (
            one.name,
            one.kind,
            one.key or "-",
            one.value,
            str(one.written_version),
            str(one.count),
            size_text(one.bytes),
            ", ".join(_index_text(index) for index in one.indexes) or "-",
        )
        for one in facts.collections
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _index_text(index: IndexFacts) -> str:
    return f"{index.name} ({index.count})" if index.is_ready else f"{index.name} (not ready)"


def _verified_lines(facts: Verified) -> Iterator[str]:
    yield f"{facts.path} is {'sound' if facts.is_sound else 'damaged'}."
    for one in facts.damage:
        place = [f"{one.file}"] if one.file else []
        place += [f"byte {one.offset}"] if one.offset is not None else []
        place += [f"record {one.sequence}"] if one.sequence is not None else []
        yield f"  damage      {', '.join(place) or 'the log'}: {one.message} {one.hint}"
    if facts.sequence is not None:
        yield f"  sequence    {facts.sequence}, epoch {facts.epoch}, digest {facts.digest}"
    yield from _file_lines(facts.checkpoint, facts.log)
    if facts.marks is not None:
        newest = (
            "-" if facts.marks.newest is None else f"the newest for record {facts.marks.newest}"
        )
        yield f"  marks       {facts.marks.readable}, {newest}"
    if facts.is_rebuilt_from_nothing:
        yield "  rebuilt     from record 1: the same state as from the checkpoint"
    for note in facts.notes:
        yield f"  note        {note}"


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


def size_text(count: int) -> str:
    """Write a number of bytes for people."""
    if count < 1000:
        return f"{count} B"
    size = float(count)
    for unit in ("kB", "MB", "GB"):
        size /= 1000
        if size < 1000:
            return f"{size:.1f} {unit}"
    return f"{size / 1000:.1f} TB"


def moment(ticks: int) -> str | None:
    """Write a time for people and programs; None for none."""
    if not ticks:
        return None
    try:
        when = _EPOCH + timedelta(microseconds=ticks // 10)
    except OverflowError:
        when = datetime.max.replace(tzinfo=UTC)
    return when.isoformat().replace("+00:00", "Z")
