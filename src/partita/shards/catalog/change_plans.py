"""Plan the changes of the catalogs: values and rules, without I/O.

A plan lists the rows that are removed and added in the global catalog and in the local catalog of
each shard, so that the same code applies, undoes and finishes every kind of change. Rule: the plan
contains everything that undo needs, because the process that made it may be dead.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeVar

import msgspec

from partita.errors import (
    CatalogMismatchError,
    DamageError,
    FormatVersionError,
    MappingExistsError,
    MappingLockedError,
    PartitaError,
    RangeError,
    ShardExistsError,
    ShardInUseError,
    ShardOfflineError,
    StaleMappingError,
    UsageError,
)

T = TypeVar("T")

Status = Literal["online", "offline"]
ChangeState = Literal["before", "after", "undone", "foreign"]
"""Whether a shard has a change; "foreign": its local catalog is not as the plan expects."""


class MapRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard map in the global catalog."""

    id: str
    name: str
    kind: str
    key_type: str
    buckets: int | None = None
    schema: str | None = None
    epoch: int = 0


class ShardRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard in the global catalog.

    `last_operation` is the newest change that the local catalog should have. Its values are never
    reused, so a slow process cannot write over later changes.
    """

    id: str
    map_id: str
    location: str
    version: str
    status: str
    last_operation: str


class MappingRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One mapping in the global catalog; a local catalog has no lock owner."""

    id: str
    map_id: str
    shard_id: str
    low: bytes
    high: bytes | None
    status: str
    lock_owner: str | None = None


class LocalChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The change of one shard: `before` and `after` are its own row, None if it has none."""

    location: str
    before: ShardRow | None
    after: ShardRow | None
    removed: tuple[MappingRow, ...] = ()
    added: tuple[MappingRow, ...] = ()

    @property
    def shard_id(self) -> str:
        row = self.before or self.after
        assert row is not None
        return row.id


class ChangePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One change: rows removed and added in the global catalog, then on the shards, in order."""

    id: str
    kind: str
    map: MapRow
    shards_before: tuple[ShardRow, ...]
    shards_after: tuple[ShardRow, ...]
    removed: tuple[MappingRow, ...] = ()
    added: tuple[MappingRow, ...] = ()
    changes: tuple[LocalChange, ...] = ()

    @property
    def undone_mark(self) -> str:
        """Return the `last_operation` of a shard after the change was undone."""
        return f"{self.id}:undone"


def encode_plan(plan: ChangePlan) -> str:
    return msgspec.json.encode(plan).decode()


def decode_plan(text: str) -> ChangePlan:
    """Parse a plan; refuse one with fields of a newer program, which would not be carried out."""
    return decode_known(text, ChangePlan)


def decode_known(text: str, kind: type[T]) -> T:
    """Parse a stored text, all of whose fields this program must know."""
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except msgspec.DecodeError as error:
        if "unknown field" not in str(error):
            message = f"A stored {kind.__name__} is damaged: {error}."
            raise DamageError("StoreDamaged", message) from error
        raise FormatVersionError(
            "CatalogVersion",
            f"A stored {kind.__name__} was written by a newer program: {error}.",
            hint="Finish or cancel it with the version of Partita that began it.",
        ) from error


def state_of(plan: ChangePlan, change: LocalChange, mark: str | None) -> ChangeState:
    """Return the state of a shard by the `last_operation` of its row (None: it has no row)."""
    if mark == _mark(change.after):
        return "after"
    if mark == _mark(change.before):
        return "before"
    return "undone" if mark == plan.undone_mark else "foreign"


def undone_row(plan: ChangePlan, row: ShardRow) -> ShardRow:
    return msgspec.structs.replace(row, last_operation=plan.undone_mark)


def _mark(row: ShardRow | None) -> str | None:
    return None if row is None else row.last_operation


# --- one function per kind of change --------------------------------------------------------------


def create_shard(
    operation: str, shard_map: MapRow, shard: ShardRow, existing: ShardRow | None
) -> ChangePlan:
    if existing is not None:
        raise ShardExistsError(
            "ShardExists",
            f"The database is already a shard of {shard_map.name!r}.",
            facts={"map": shard_map.name, "location": shard.location},
            hint="Get the shard with get_shard().",
        )
    after = msgspec.structs.replace(shard, last_operation=operation)
    change = LocalChange(shard.location, before=None, after=after)
    return ChangePlan(operation, "create_shard", shard_map, (), (after,), changes=(change,))


def delete_shard(operation: str, shard_map: MapRow, shard: ShardRow, mappings: int) -> ChangePlan:
    if mappings:
        raise shard_has_mappings(
            {"map": shard_map.name, "location": shard.location, "mappings": mappings},
            hint="Move or delete its mappings first.",
        )
    change = LocalChange(shard.location, before=shard, after=None)
    return ChangePlan(operation, "delete_shard", shard_map, (shard,), (), changes=(change,))


def update_shard(
    operation: str, shard_map: MapRow, shard: ShardRow, *, version: str, status: Status
) -> ChangePlan:
    after = msgspec.structs.replace(shard, version=version, status=status, last_operation=operation)
    change = LocalChange(shard.location, before=shard, after=after)
    return ChangePlan(operation, "update_shard", shard_map, (shard,), (after,), changes=(change,))


def create_mappings(
    operation: str,
    shard_map: MapRow,
    shard: ShardRow,
    added: Sequence[MappingRow],
    taken: Iterable[str],
) -> ChangePlan:
    """Plan new mappings; `taken` describes existing mappings that hold some of their keys."""
    for description in taken:
        raise mapping_exists(shard_map.name, description)
    check_online(shard_map, shard)
    return _on_one_shard("create_mapping", operation, shard_map, shard, (), added)


def delete_mapping(
    operation: str, shard_map: MapRow, shard: ShardRow, mapping: MappingRow, token: str | None
) -> ChangePlan:
    check_lock(shard_map, mapping, token)
    if mapping.status != "offline":
        raise UsageError(
            "MappingOnline",
            "An online mapping cannot be deleted.",
            facts={"map": shard_map.name, "mapping": mapping.id},
            hint="Take it offline first with set_offline().",
        )
    return _on_one_shard("delete_mapping", operation, shard_map, shard, (mapping,), ())


def update_mapping(
    operation: str,
    shard_map: MapRow,
    shards: tuple[ShardRow, ShardRow],
    mappings: tuple[MappingRow, MappingRow],
    token: str | None,
) -> ChangePlan:
    """Plan a change of a mapping; both pairs are (before, after)."""
    (source, target), (mapping, changed) = shards, mappings
    check_lock(shard_map, mapping, token)
    if source.id == target.id:
        return _on_one_shard("update_mapping", operation, shard_map, source, (mapping,), (changed,))
    if mapping.status != "offline":
        raise UsageError(
            "MappingOnline",
            "The shard of an online mapping cannot be changed.",
            facts={"map": shard_map.name, "mapping": mapping.id},
            hint="Take it offline with set_offline() first, or move it with fleet.move().",
        )
    check_online(shard_map, target)
    source_after = msgspec.structs.replace(source, last_operation=operation)
    target_after = msgspec.structs.replace(target, last_operation=operation)
    changes = (
        LocalChange(source.location, source, source_after, removed=(mapping,)),
        LocalChange(target.location, target, target_after, added=(changed,)),
    )
    return ChangePlan(
        operation,
        "move_mapping",
        shard_map,
        (source, target),
        (source_after, target_after),
        (mapping,),
        (changed,),
        changes,
    )


def split_mapping(
    operation: str,
    shard_map: MapRow,
    shard: ShardRow,
    mapping: MappingRow,
    halves: tuple[MappingRow, MappingRow],
    token: str | None,
) -> ChangePlan:
    check_lock(shard_map, mapping, token)
    at = halves[1].low
    if at <= mapping.low or (mapping.high is not None and at >= mapping.high):
        raise RangeError(
            "SplitOutside",
            "The split point must be strictly inside the mapping.",
            facts={"map": shard_map.name, "mapping": mapping.id},
            hint="Choose a key greater than the low end and less than the high end.",
        )
    return _on_one_shard("split_mapping", operation, shard_map, shard, (mapping,), halves)


def merge_mappings(
    operation: str,
    shard_map: MapRow,
    shard: ShardRow,
    halves: tuple[MappingRow, MappingRow],
    merged: MappingRow,
    tokens: tuple[str | None, str | None],
) -> ChangePlan:
    """Plan the merge of two mappings; `tokens` are of their locks, in the same order."""
    left, right = halves
    for mapping, token in zip(halves, tokens, strict=True):
        check_lock(shard_map, mapping, token)
    facts = {"map": shard_map.name, "left": left.id, "right": right.id}
    if left.high is None or left.high != right.low:
        raise RangeError(
            "NotAdjacent",
            "Only adjacent mappings can be merged, the lower one first.",
            facts=facts,
            hint="Merge adjacent mappings one after the other.",
        )
    if left.shard_id != right.shard_id or left.status != right.status:
        raise UsageError(
            "MergeMismatch",
            "Only mappings of one shard and with the same status can be merged.",
            facts=facts,
            hint="Move one to the shard of the other first, or change its status.",
        )
    return _on_one_shard("merge_mappings", operation, shard_map, shard, halves, (merged,))


def check_lock(shard_map: MapRow, mapping: MappingRow, token: str | None) -> None:
    """Refuse a change of a mapping that is locked with another token."""
    if mapping.lock_owner == token:
        return
    raise MappingLockedError(
        "MappingLocked" if mapping.lock_owner else "MappingNotLocked",
        "Another token holds the lock of the mapping."
        if mapping.lock_owner
        else "The mapping is not locked with this token.",
        facts={"map": shard_map.name, "mapping": mapping.id},
        hint="Pass the token of lock(), or wait until the lock is released.",
    )


def check_online(shard_map: MapRow, shard: ShardRow) -> None:
    """Raise ShardOfflineError if the shard accepts no new mappings."""
    if shard.status != "online":
        raise shard_offline(shard_map.name, shard.location)


def shard_has_mappings(facts: dict[str, object], *, hint: str) -> ShardInUseError:
    return ShardInUseError(
        "ShardHasMappings", "The shard still has mappings.", facts=facts, hint=hint
    )


def mapping_exists(map_name: str, mapped: str) -> MappingExistsError:
    return MappingExistsError(
        "MappingExists",
        f"Some of these keys are already mapped, by {mapped}.",
        facts={"map": map_name, "mapped": mapped},
        hint="Choose unmapped keys, or split, merge or move the existing mapping.",
    )


def shard_offline(map_name: str, location: str) -> ShardOfflineError:
    return ShardOfflineError(
        "ShardOffline",
        "The shard is offline and accepts no new mappings.",
        facts={"map": map_name, "location": location},
        hint="Choose another shard, or set it online with update_shard().",
    )


def local_catalog_differs(map_name: str, location: str) -> CatalogMismatchError:
    return CatalogMismatchError(
        "LocalCatalogDiffers",
        "The local catalog of the shard does not match the global catalog.",
        facts={"map": map_name, "location": location},
        hint="It was restored or changed manually: check recovery.differences(shard), then call "
        "recovery.resolve(shard, keep=…).",
    )


def stale_mapping(map_name: str, mapping_id: str) -> PartitaError:
    return StaleMappingError(
        "StaleMapping",
        "The mapping was changed or deleted after it was read.",
        facts={"map": map_name, "mapping": mapping_id},
        hint="Read the mapping again and repeat the change.",
    )


def _on_one_shard(
    kind: str,
    operation: str,
    shard_map: MapRow,
    shard: ShardRow,
    removed: Sequence[MappingRow],
    added: Sequence[MappingRow],
) -> ChangePlan:
    after = msgspec.structs.replace(shard, last_operation=operation)
    old, new = tuple(removed), tuple(added)
    change = LocalChange(shard.location, shard, after, old, new)
    return ChangePlan(operation, kind, shard_map, (shard,), (after,), old, new, (change,))
