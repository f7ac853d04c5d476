"""A draft: all operations of one group, before it is sent.

A row has one operation, even if there are several reasons to write it (a department that is saved
and counted in the same group). Each operation records its reason and the caller's change, so that a
refusal can be reported for the caller's object or retried.
"""

import enum
from collections.abc import Sequence

import msgspec

from partita.errors import GroupRuleError, LimitExceededError
from partita.patterns.protocol.calls import RowOperation, Verb
from partita.patterns.protocol.values import Row, RowKey, Value
from partita.patterns.protocol.wire_size import ENVELOPE_BYTES, wire_bytes
from partita.patterns.types.indexes import AnyIndex
from partita.tables import limits


class Reason(enum.Enum):
    """Why a row is written."""

    ENTITY = "entity"
    COPY = "copy"
    MEMBER = "member"
    DERIVED = "derived"
    OUTBOX = "outbox"


class PlannedOperation(msgspec.Struct):
    """The operation on one row, its reason, and the number of the caller's change."""

    operation: RowOperation
    reason: Reason
    change: int
    index: AnyIndex | None = None

    @property
    def is_ours(self) -> bool:
        """Return whether a conflict here does not concern the caller's entity."""
        return self.reason is not Reason.ENTITY


class Draft:
    """The operations of one group on one partition."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.places: dict[RowKey, PlannedOperation] = {}
        self.found: dict[RowKey, Row | None] = {}
        """Rows of the partition as read for this draft."""
        self.ranges: dict[tuple[str, tuple[str, str, str | None]], list[Row] | None] = {}
        """Rows of a type in a range of the partition; None: too many to read."""

    def put(
        self,
        operation: RowOperation,
        reason: Reason,
        change: int,
        index: AnyIndex | None = None,
    ) -> None:
        """Add an operation. Deleting and inserting the same index row becomes one replacement."""
        key = operation.row.key
        planned = self.places.get(key)
        if planned is None:
            self._check_partition(key)
            self.places[key] = PlannedOperation(operation, reason, change, index)
            return
        verbs = {planned.operation.verb, operation.verb}
        if planned.index is not index or Verb.DELETE not in verbs or len(verbs) == 1:
            raise written_twice(key)
        written = operation if planned.operation.verb is Verb.DELETE else planned.operation
        replaced = msgspec.structs.replace(written, verb=Verb.UPSERT_REPLACE, etag="*")
        self.places[key] = PlannedOperation(replaced, reason, change, index)

    def adjust(self, key: RowKey, name: str, value: Value | None) -> bool:
        """Change one property of a row in the draft. Return False if the row is not in it."""
        place = self.places.get(key)
        if place is None or place.operation.verb is Verb.DELETE:
            return False
        operation = place.operation
        properties = {**operation.row.properties}
        if value is not None:
            properties[name] = value
        elif operation.verb is Verb.MERGE:
            # A merge cannot remove a property: replace the row as read, with the changes of the
            # merge.
            there = self.found.get(key)
            properties = {**({} if there is None else there.properties), **properties}
            properties.pop(name, None)
            operation = msgspec.structs.replace(operation, verb=Verb.REPLACE)
        else:
            properties.pop(name, None)
        row = msgspec.structs.replace(operation.row, properties=properties)
        place.operation = msgspec.structs.replace(operation, row=row)
        return True

    def replace_row(self, key: RowKey, row: Row, *, is_empty: bool) -> None:
        """Replace an index row in the draft; an empty row is deleted or not created."""
        place = self.places[key]
        etag = place.operation.etag
        if is_empty and not row.etag:
            del self.places[key]
            return
        verb = Verb.DELETE if is_empty else Verb.REPLACE if row.etag else Verb.INSERT
        place.operation = RowOperation(verb, row, etag)

    def find(self, key: RowKey) -> Row | None:
        """Return the row that the draft writes under a key; None if it writes none."""
        place = self.places.get(key)
        return None if place is None else place.operation.row

    def deletes(self, key: RowKey) -> bool:
        place = self.places.get(key)
        return place is not None and place.operation.verb is Verb.DELETE

    def fits(self, more_operations: int, more_bytes: int) -> bool:
        """Return whether the operations and some more fit into one group."""
        operations = [place.operation for place in self.places.values()]
        return (
            len(operations) + more_operations <= limits.GROUP_OPERATIONS_MAX
            and _bytes_of(operations) + more_bytes <= limits.GROUP_BYTES_MAX
        )

    def operations(self) -> tuple[RowOperation, ...]:
        """Return the operations, checked against the limits of a group."""
        operations = tuple(place.operation for place in self.places.values())
        if len(operations) > limits.GROUP_OPERATIONS_MAX:
            raise LimitExceededError(
                "GroupTooLarge",
                f"The group has {len(operations)} operations, including indexes and counters; "
                f"the service accepts {limits.GROUP_OPERATIONS_MAX}.",
                facts={"operations": len(operations)},
                hint="Use smaller groups, or save_all() if the changes need not be atomic.",
            )
        if len(operations) > 1 and (size := _bytes_of(operations)) > limits.GROUP_BYTES_MAX:
            raise LimitExceededError(
                "GroupTooLarge",
                f"The group has about {size} bytes; the service accepts {limits.GROUP_BYTES_MAX}.",
                facts={"bytes": size},
                hint="Use smaller groups, or declare large fields InBlob.",
            )
        return operations

    def _check_partition(self, key: RowKey) -> None:
        first = next(iter(self.places), key)
        if first.partition != key.partition:
            raise GroupRuleError(
                "PartitionMismatch",
                "All entities of a group must have one partition key.",
                facts={"partition_key": first.partition, "other": key.partition},
                hint="Use two groups, or an eventually consistent transaction.",
            )


def _bytes_of(operations: Sequence[RowOperation]) -> int:
    return ENVELOPE_BYTES + sum(map(wire_bytes, operations))


def written_twice(key: RowKey) -> GroupRuleError:
    return GroupRuleError(
        "InvalidDuplicateRow",
        "A group can change an entity only once.",
        facts=key.facts,
        hint="Combine the changes into one, or use two groups.",
    )
