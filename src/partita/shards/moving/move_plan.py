"""The ten steps of a move, its plan and progress, and its obstacles. No I/O.

    plan       inspect both shards and refuse early        (nothing is written)
    lock       lock the mapping with the token of the job
    capture    create triggers on the source that record every changed row of the range
    reference  copy reference tables that are empty on the target
    copy       copy the range in batches by primary key
    catch_up   copy the changes made meanwhile, compare both sides
    fence      take the mapping offline and end its transactions: there are no more writers
    verify     copy the remaining changes, compare again
    switch     one change of the catalogs: the mapping belongs to the target, online
    clean_up   remove the triggers, delete the rows of the source, unlock

Rule: before `switch` a move can be cancelled, after it only completed. Each step may run twice,
because a crash may happen before its end is recorded.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, get_args

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
STEPS: tuple[Step, ...] = get_args(Step)
FENCED: frozenset[Step] = frozenset(("fence", "verify", "switch"))
"""Steps during which the mapping may be offline."""

State = Literal["running", "paused", "cancelling", "done", "cancelled", "failed"]
UNFINISHED: tuple[State, ...] = ("running", "paused", "cancelling")
Position = tuple[str, ...]
"""The primary key of the last row of a batch, each part as text of the database."""


class MovePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parameters of a move; they do not change after they are recorded."""

    map_name: str
    source_id: str
    source: str
    """The location of the source."""
    target_id: str
    target: str
    low: bytes
    high: bytes | None
    mapping_id: str
    """The id of the mapping as the caller passed it."""
    status: str
    """The status of the mapping before and after the move."""
    token: str
    batch_rows: int
    rate: float | None
    grace: float
    verify: bool


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The progress of a job within its step."""

    rows: int = 0
    rows_total: int = 0
    table: int = 0
    """The number of the table that is being copied; earlier ones are complete."""
    position: Position | None = None
    """Rows up to this position are on the target."""
    online_id: str = ""
    """The id of the mapping before it was taken offline."""
    terminated: int = 0
    fence_seconds: float = 0.0
    is_cleaned: bool = False
    """Only the unlocking is left; the mapping may have been changed by others."""
    error: str = ""


class ColumnShape(msgspec.Struct, frozen=True):
    """A column of a table in the database."""

    name: str
    type: str
    is_generated: bool = False
    is_builtin: bool = True
    """False for user-defined types, whose OIDs differ between databases."""
    collation: str = ""


class ForeignKey(msgspec.Struct, frozen=True):
    """A reference from the columns of one table to those of another."""

    columns: tuple[str, ...]
    schema: str | None
    table: str
    referred: tuple[str, ...]


class TableShape(msgspec.Struct, frozen=True):
    """A table in the database, with its sharding columns."""

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
        """The columns that capture records: primary key and sharding columns."""
        return self.primary_key + tuple(
            name for name in self.sharding if name not in self.primary_key
        )

    @property
    def copied(self) -> tuple[str, ...]:
        """The columns that are copied; the target computes generated columns itself."""
        return tuple(column.name for column in self.columns if not column.is_generated)

    @property
    def is_portable(self) -> bool:
        """Whether the binary format of its rows is the same in another database."""
        return all(column.is_builtin for column in self.columns)


class Sides(msgspec.Struct, frozen=True):
    """The tables on both shards; None if a table is missing."""

    tables: tuple[str, ...]
    source: tuple[TableShape | None, ...]
    target: tuple[TableShape | None, ...]
    may_replicate: tuple[bool, bool] = (True, True)
    """Whether the role can disable triggers and foreign keys, on the source and the target."""


def next_step(step: Step) -> Step | None:
    """Return the step after this one; None after the last."""
    number = STEPS.index(step) + 1
    return STEPS[number] if number < len(STEPS) else None


def is_past(step: Step, other: Step) -> bool:
    """Return whether `step` comes after `other`."""
    return STEPS.index(step) > STEPS.index(other)


def resumed_step(step: Step, *, on_target: bool, is_online: bool) -> Step:
    """Return the step with which a job continues, given its mapping in the catalog."""
    if on_target and step in FENCED:
        return "clean_up"
    if step not in FENCED:
        return step
    # Offline: there were no writes since the fence, but the progress of the last replay is unknown.
    return "catch_up" if is_online else "fence"


def obstacles(sharded: Sides, reference: Sides) -> list[str]:
    """Return every reason why the shapes of the tables forbid the move."""
    found = [*_differences(sharded), *_differences(reference)]
    present = [shape for shape in sharded.source if shape is not None]
    inside = {shape.name for shape in present}
    known = inside | set(reference.tables)
    for shape in present:
        found += _shape_obstacles(shape, inside, known)
    return [*found, *_permission_obstacles(sharded)]


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
    # The collation determines the order of rows, and batches are intervals of that order.
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


def _permission_obstacles(sides: Sides) -> Iterable[str]:
    for side, shapes, may in (
        ("source", sides.source, sides.may_replicate[0]),
        ("target", sides.target, sides.may_replicate[1]),
    ):
        if may:
            continue
        for shape in shapes:
            if shape is not None and shape.has_triggers:
                yield f"table {shape.name} on the {side} has triggers that cannot be disabled"
            if shape is not None and (shape.foreign_keys or shape.referring):
                yield (
                    f"table {shape.name} on the {side} has foreign keys that this role cannot "
                    "disable (GRANT SET ON PARAMETER session_replication_role)"
                )


def open_foreign_keys(shape: TableShape, shapes: Sequence[TableShape]) -> list[ForeignKey]:
    """Return the foreign keys that could refer to rows outside the shardlet.

    A key that includes the sharding columns of both tables cannot.
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
