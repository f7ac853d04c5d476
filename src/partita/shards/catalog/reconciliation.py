"""Compare two catalogs by ranges of keys, and merge them: values and rules, without I/O.

Both catalogs are divided at all their bounds, so that each piece has at most one mapping in each.
Rule: a mapping keeps its id only if its whole range is kept.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec

from partita.shards.catalog.change_plans import MappingRow
from partita.shards.keys.ranges import KeyRange

CatalogName = Literal["global", "local"]
HeldIn = Literal["global", "local", "both"]


class Piece(msgspec.Struct, frozen=True):
    """Some keys, and the mapping that holds them in each catalog."""

    key_range: KeyRange
    in_global: MappingRow | None
    in_local: MappingRow | None


class PieceDifference(msgspec.Struct, frozen=True):
    """Keys for which the global catalog and the local catalog of a shard differ.

    `where` is the catalog that maps the keys to this shard; "both" do, with different mappings.
    """

    piece: Piece
    where: HeldIn


class Reconciled(msgspec.Struct, frozen=True):
    """The content of both catalogs after the merge: mappings of this shard and of others.

    For undecided keys the catalogs still differ: each keeps its mappings.
    """

    kept: tuple[MappingRow, ...]
    removed: tuple[str, ...]
    """Ids of mappings of other shards that lose keys."""
    left_over: tuple[MappingRow, ...]
    """The parts of these mappings that the other shards keep."""
    undecided_global: tuple[MappingRow, ...] = ()
    undecided_local: tuple[MappingRow, ...] = ()


def range_of(row: MappingRow) -> KeyRange:
    return KeyRange(row.low, row.high)


def pieces(
    global_rows: Iterable[MappingRow],
    local_rows: Iterable[MappingRow],
    cuts_at: Iterable[KeyRange] = (),
) -> list[Piece]:
    """Divide both catalogs at all bounds; unmapped pieces are omitted."""
    globals_, locals_ = _sorted(global_rows), _sorted(local_rows)
    ranges = [*map(range_of, globals_), *map(range_of, locals_), *cuts_at]
    cuts = [
        Piece(key_range, _owner(globals_, key_range), _owner(locals_, key_range))
        for key_range in _cut(ranges)
    ]
    return [piece for piece in cuts if piece.in_global or piece.in_local]


def differences(
    shard_id: str, global_rows: Iterable[MappingRow], local_rows: Iterable[MappingRow]
) -> list[PieceDifference]:
    """Compare the mappings of a shard in both catalogs."""
    found = []
    for piece in pieces(global_rows, local_rows):
        where = _difference(shard_id, piece)
        if where is not None:
            found.append(PieceDifference(piece, where))
    return found


def _difference(shard_id: str, piece: Piece) -> HeldIn | None:
    is_global = piece.in_global is not None and piece.in_global.shard_id == shard_id
    if not is_global:
        return None if piece.in_local is None else "local"
    if piece.in_local is None:
        return "global"
    return None if _same(piece.in_global, piece.in_local) else "both"


def _same(left: MappingRow | None, right: MappingRow) -> bool:
    return left is not None and msgspec.structs.replace(left, lock_owner=None) == right


def reconcile(
    shard_id: str,
    found: Sequence[Piece],
    side: Callable[[KeyRange], CatalogName | None],
    new_id: Callable[[], str],
) -> Reconciled:
    """Merge the catalogs; `side` chooses one for each piece (None: leave it undecided)."""
    decided, undecided = _parted(shard_id, found, side)
    chosen = [(piece.key_range, _choose(shard_id, piece, side)) for piece in decided]
    owned = [(key_range, row) for key_range, row in chosen if row is not None]
    kept = _joined(owned, shard_id, new_id)
    losers = {
        piece.in_global.id: piece.in_global
        for piece, (_, row) in zip(decided, chosen, strict=True)
        if row is not None and piece.in_global is not None and piece.in_global.shard_id != shard_id
    }
    left_over = [
        msgspec.structs.replace(row, id=new_id(), low=rest.low, high=rest.high)
        for row in losers.values()
        for rest in _rest(range_of(row), [range_of(one) for one in kept])
    ]
    mine = [(piece.key_range, _global_row(shard_id, piece)) for piece in undecided]
    claimed = [(piece.key_range, piece.in_local) for piece in undecided]
    return Reconciled(
        tuple(kept),
        tuple(losers),
        tuple(left_over),
        tuple(_joined([(keys, row) for keys, row in mine if row is not None], shard_id, new_id)),
        tuple(_joined([(keys, row) for keys, row in claimed if row is not None], shard_id, new_id)),
    )


def _parted(
    shard_id: str, found: Sequence[Piece], side: Callable[[KeyRange], CatalogName | None]
) -> tuple[list[Piece], list[Piece]]:
    """Separate the pieces that are decided or equal from those that stay undecided."""
    decided: list[Piece] = []
    undecided: list[Piece] = []
    for piece in found:
        is_left = side(piece.key_range) is None and _difference(shard_id, piece) is not None
        (undecided if is_left else decided).append(piece)
    return decided, undecided


def _choose(
    shard_id: str, piece: Piece, side: Callable[[KeyRange], CatalogName | None]
) -> MappingRow | None:
    return piece.in_local if side(piece.key_range) == "local" else _global_row(shard_id, piece)


def _global_row(shard_id: str, piece: Piece) -> MappingRow | None:
    is_mine = piece.in_global is not None and piece.in_global.shard_id == shard_id
    return piece.in_global if is_mine else None


def _joined(
    owned: Sequence[tuple[KeyRange, MappingRow]], shard_id: str, new_id: Callable[[], str]
) -> list[MappingRow]:
    joined: list[tuple[KeyRange, MappingRow]] = []
    for key_range, row in owned:
        if joined and joined[-1][1] == row and joined[-1][0].high == key_range.low:
            joined[-1] = (KeyRange(joined[-1][0].low, key_range.high), row)
        else:
            joined.append((key_range, row))
    return [
        row
        if key_range == range_of(row)
        else msgspec.structs.replace(
            row, id=new_id(), shard_id=shard_id, low=key_range.low, high=key_range.high
        )
        for key_range, row in joined
    ]


def _rest(key_range: KeyRange, taken: Iterable[KeyRange]) -> list[KeyRange]:
    rest = [key_range]
    for one in taken:
        rest = [part for each in rest for part in each.minus(one)]
    return rest


def _sorted(rows: Iterable[MappingRow]) -> list[MappingRow]:
    return sorted(rows, key=lambda row: row.low)


def _cut(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    bounds: set[bytes] = set()
    is_unbounded = False
    for key_range in ranges:
        bounds.add(key_range.low)
        if key_range.high is None:
            is_unbounded = True
        else:
            bounds.add(key_range.high)
    ordered = sorted(bounds)
    cuts = [KeyRange(low, high) for low, high in pairwise(ordered)]
    return [*cuts, KeyRange(ordered[-1], None)] if is_unbounded else cuts


def _owner(rows: Sequence[MappingRow], key_range: KeyRange) -> MappingRow | None:
    index = bisect_right(rows, key_range.low, key=lambda row: row.low) - 1
    if index < 0:
        return None
    row = rows[index]
    return row if row.high is None or row.high > key_range.low else None
