"""What a move consists of: its ten steps, its record, and what speaks against it. No I/O.

    plan       look at both shards and refuse early        (nothing is written)
    lock       lock the mapping with the token of the job
    capture    triggers on the source note every changed row of the range
    reference  copy reference tables where they are empty
    copy       copy the range in key-ordered batches
    catch_up   carry over what changed meanwhile, compare both sides
    fence      mapping offline, transactions ended: nobody writes
    verify     carry over the rest, compare again
    switch     one operation of the catalogs: the mapping belongs to the target, online
    clean_up   remove triggers, delete the rows behind, unlock

Rule: before `switch` everything can be taken back, after it there is only forward. Every step
may be run twice, because a crash may come before its end is recorded.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

Step = Literal[
    "plan",
    "lock",
    "capture",
    "reference",
    "copy",
    "catch_up",
    "fence",
    "verify",
    "switch",
    "clean_up",
]
STEPS: tuple[Step, ...] = (
    "plan",
    "lock",
    "capture",
    "reference",
    "copy",
    "catch_up",
    "fence",
    "verify",
    "switch",
    "clean_up",
)
FENCED: frozenset[Step] = frozenset(("fence", "verify", "switch"))
"""Steps during which the mapping may be offline."""

State = Literal["running", "paused", "cancelling", "done", "cancelled", "failed"]
UNFINISHED: tuple[State, ...] = ("running", "paused", "cancelling")
Position = tuple[str, ...]
"""The primary key of the last row of a batch, each part as text of its database."""


class MovePlan(msgspec.Struct, frozen=True):
    """What a job of kind `move` does; it never changes after it is recorded."""

    map_name: str
    source_id: str
    source: str
    """Location of the shard that the rows come from."""
    target_id: str
    target: str
    low: bytes
    high: bytes | None
    mapping_id: str
    """The mapping as the caller knew it, before the lock."""
    status: str
    """Online or offline: what the mapping was and will be again."""
    token: str
    batch_rows: int
    rate: float | None
    grace: float
    verify: bool


class Progress(msgspec.Struct, frozen=True):
    """How far a job is inside its step."""

    rows: int = 0
    rows_total: int = 0
    table: int = 0
    """Number of the table that is being copied; those before it are done."""
    position: Position | None = None
    """Rows up to here are on the target for certain."""
    online_id: str = ""
    """The id under which the mapping was online when the fence went up."""
    terminated: int = 0
    fence_seconds: float = 0.0
    is_cleaned: bool = False
    """Everything is done but the unlocking: the mapping may belong to others by now."""
    error: str = ""


class ColumnShape(msgspec.Struct, frozen=True):
    """A column as its database describes it."""

    name: str
    type: str
    is_generated: bool = False
    is_builtin: bool = True
    """False for types that a database defines itself: their numbers differ between databases."""
    collation: str = ""


class ForeignKey(msgspec.Struct, frozen=True):
    """A reference from the columns of one table to those of another."""

    columns: tuple[str, ...]
    schema: str | None
    table: str
    referred: tuple[str, ...]


class TableShape(msgspec.Struct, frozen=True):
    """A table as its database describes it, and the columns by which it is sharded."""

    schema: str | None
    table: str
    columns: tuple[ColumnShape, ...]
    primary_key: tuple[str, ...]
    sharding: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    referring: tuple[str, ...] = ()
    """Tables that have foreign keys to this one."""
    has_triggers: bool = False

    @property
    def name(self) -> str:
        return self.table if self.schema is None else f"{self.schema}.{self.table}"

    @property
    def identity(self) -> tuple[str, ...]:
        """The columns that capture notes: which row, and which shardlet it belongs to."""
        return self.primary_key + tuple(
            name for name in self.sharding if name not in self.primary_key
        )

    @property
    def copied(self) -> tuple[str, ...]:
        """The columns that are copied; generated ones are computed again by the target."""
        return tuple(column.name for column in self.columns if not column.is_generated)

    @property
    def is_portable(self) -> bool:
        """Tell whether its rows mean the same in another database byte by byte."""
        return all(column.is_builtin for column in self.columns)


class Sides(msgspec.Struct, frozen=True):
    """What a look at both shards found; None where a table is missing."""

    tables: tuple[str, ...]
    source: tuple[TableShape | None, ...]
    target: tuple[TableShape | None, ...]
    may_replicate: tuple[bool, bool] = (True, True)
    """Whether the role may switch off triggers and foreign keys, on the source and the target."""


def next_step(step: Step) -> Step | None:
    """Return the step after this one; None after the last."""
    number = STEPS.index(step) + 1
    return STEPS[number] if number < len(STEPS) else None


def is_past(step: Step, other: Step) -> bool:
    """Tell whether `step` comes after `other`."""
    return STEPS.index(step) > STEPS.index(other)


def resumed_step(step: Step, *, on_target: bool, is_online: bool) -> Step:
    """Return where a job goes on, by what the catalog says about its mapping."""
    if on_target and step in FENCED:
        return "clean_up"
    if step not in FENCED:
        return step
    # Offline: nobody has written since the fence, but how far the last replay came is unknown.
    return "catch_up" if is_online else "fence"


def obstacles(sharded: Sides, reference: Sides) -> list[str]:
    """Return every reason why the shapes of the tables forbid the move."""
    found = [*_differences(sharded), *_differences(reference)]
    present = [shape for shape in sharded.source if shape is not None]
    inside = {shape.name for shape in present}
    known = inside | set(reference.tables)
    for shape in present:
        found += _shape_obstacles(shape, inside, known)
    return [*found, *_right_obstacles(sharded)]


def _differences(sides: Sides) -> Iterable[str]:
    for name, source, target in zip(sides.tables, sides.source, sides.target, strict=True):
        if source is None:
            yield f"table {name} is missing on the source"
        elif target is None:
            yield f"table {name} is missing on the target"
        else:
            yield from _column_differences(source, target)


def _column_differences(source: TableShape, target: TableShape) -> Iterable[str]:
    here = {column.name: column for column in source.columns}
    there = {column.name: column for column in target.columns}
    for name in here.keys() | there.keys():
        if name not in here or name not in there:
            side = "target" if name in here else "source"
            yield f"column {source.name}.{name} is missing on the {side}"
        elif _kind(here[name]) != _kind(there[name]):
            yield f"column {source.name}.{name} differs between source and target"
    if source.primary_key != target.primary_key:
        yield f"table {source.name} has another primary key on the target"


def _kind(column: ColumnShape) -> tuple[str, bool, str]:
    # Another collation is another order of rows, and batches are intervals of that order.
    return column.type, column.is_generated, column.collation


def _shape_obstacles(shape: TableShape, inside: set[str], known: set[str]) -> Iterable[str]:
    if not shape.primary_key:
        yield f"table {shape.name} has no primary key"
    names = {column.name for column in shape.columns}
    for column in shape.sharding:
        if column not in names:
            yield f"table {shape.name} has no column {column}"
    for key in shape.foreign_keys:
        referred = key.table if key.schema is None else f"{key.schema}.{key.table}"
        if referred not in known:
            yield f"a foreign key of {shape.name} leaves the shardlet, to {referred}"
    for name in shape.referring:
        if name not in inside:
            yield f"table {name}, which is not sharded, has a foreign key to {shape.name}"


def _right_obstacles(sides: Sides) -> Iterable[str]:
    for side, shapes, may in (
        ("source", sides.source, sides.may_replicate[0]),
        ("target", sides.target, sides.may_replicate[1]),
    ):
        if may:
            continue
        for shape in shapes:
            if shape is not None and shape.has_triggers:
                yield f"table {shape.name} on the {side} has triggers that cannot be switched off"
            if shape is not None and (shape.foreign_keys or shape.referring):
                yield (
                    f"table {shape.name} on the {side} has foreign keys that this role may not "
                    "switch off (GRANT SET ON PARAMETER session_replication_role)"
                )


def open_foreign_keys(shape: TableShape, shapes: Sequence[TableShape]) -> list[ForeignKey]:
    """Return the foreign keys that could point outside of the shardlet: rows must be looked at.

    A key that carries the sharding columns to the sharding columns cannot.
    """
    by_name = {(one.schema, one.table): one for one in shapes}
    found = []
    for key in shape.foreign_keys:
        parent = by_name.get((key.schema, key.table))
        pairs = dict(zip(key.columns, key.referred, strict=True))
        carried = tuple(pairs.get(column) for column in shape.sharding)
        if parent is None or carried != parent.sharding:
            found.append(key)
    return found
