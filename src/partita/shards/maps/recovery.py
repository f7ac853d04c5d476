"""Compare and rebuild catalogs after a restore, a failover or a loss.

Differences are listed first and resolved on request; the caller chooses which catalog is right.
Rule: each step writes the global catalog, then the shards, with a new mark in both. After a crash
in between, the marks differ, so the shard refuses changes until the step is repeated.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import msgspec
from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError

from partita.errors import (
    CatalogMismatchError,
    OperationPendingError,
    ShardExistsError,
    ShardNotFoundError,
    UsageError,
)
from partita.shards.catalog import global_catalog, local_catalog, reconciliation
from partita.shards.catalog.change_plans import MappingRow, MapRow, ShardRow
from partita.shards.catalog.executor import Executor, unreachable
from partita.shards.catalog.global_catalog import LockedMap
from partita.shards.catalog.local_catalog import LocalShard
from partita.shards.catalog.reconciliation import CatalogName, HeldIn, Piece, Reconciled
from partita.shards.keys.mapping import Location, Mapping, Shard
from partita.shards.keys.ranges import KeyRange, Range
from partita.shards.maps.open_map import place_of
from partita.shards.maps.shard_map import ShardMap

FULL = (KeyRange(),)
AnyPlace = Shard | Location | URL | str


class MappingDifference(msgspec.Struct, frozen=True):
    """Keys for which the global catalog and a local catalog differ."""

    map_name: str
    location: Location
    range: Range
    where: HeldIn
    """The catalog that maps the keys to this shard; "both" do, with different mappings."""
    in_global: Mapping | None
    """The mapping in the global catalog, possibly of another shard."""
    in_local: Mapping | None


class Recovery:
    """Repairs the catalogs. Each method works on `shard_map`, or on all maps of the shard."""

    def __init__(
        self,
        executor: Executor,
        find_map: Callable[[str], ShardMap | None],
        list_maps: Callable[[], Sequence[ShardMap]],
    ) -> None:
        self._executor = executor
        self._find_map = find_map
        self._list_maps = list_maps

    # --- comparing --------------------------------------------------------------------------------

    def differences(
        self, where: AnyPlace, *, shard_map: ShardMap | None = None
    ) -> list[MappingDifference]:
        """Return the keys for which the global catalog and the local catalog differ."""
        return [
            difference
            for one in self._maps_at(where, shard_map)
            for difference in self._differences_in(one, where)
        ]

    def _differences_in(self, shard_map: ShardMap, where: AnyPlace) -> list[MappingDifference]:
        shard = self._settled(shard_map, where)
        local_rows = self._local_rows(shard_map, shard)
        global_rows, shards = self._global_rows(shard_map, shard, local_rows)
        found = reconciliation.differences(shard.id, global_rows, local_rows)
        return [
            MappingDifference(
                shard_map.name,
                shard.location,
                shard_map.decode_range(one.piece.key_range),
                one.where,
                _mapping(shard_map, one.piece.in_global, shards),
                _mapping(shard_map, one.piece.in_local, shards),
            )
            for one in found
        ]

    # --- resolving --------------------------------------------------------------------------------

    def resolve(
        self,
        where: AnyPlace,
        *,
        keep: CatalogName,
        only: Iterable[object] | None = None,
        shard_map: ShardMap | None = None,
    ) -> None:
        """Make the global catalog and the local catalog of the shard equal.

        `keep="local"` maps the keys of the local catalog to the shard, and takes them from other
        shards; with `only` (mappings, ranges or keys) just these keys, and the global catalog is
        kept for the rest. `keep="global"` corrects the local catalog; with `only` just for these
        keys, and while other keys differ, the shard refuses changes.
        """
        check_choice("keep", keep, ("global", "local"))
        listed = None if only is None else list(only)
        maps = [
            (one, FULL if listed is None else [_encoded(one, keys) for keys in listed])
            for one in self._maps_at(where, shard_map)
        ]
        for one, wanted in maps:
            self._resolve_in(one, where, keep, wanted)

    def rebuild_local(
        self,
        *places: AnyPlace,
        only: Iterable[object] | None = None,
        shard_map: ShardMap | None = None,
    ) -> None:
        """Rewrite the local catalogs from the global catalog; with `only`, for these keys."""
        wanted = None if only is None else list(only)
        for where in places:
            self.resolve(where, keep="global", only=wanted, shard_map=shard_map)

    def _resolve_in(
        self, shard_map: ShardMap, where: AnyPlace, keep: CatalogName, wanted: Sequence[KeyRange]
    ) -> None:
        shard = self._settled(shard_map, where)
        local_rows = self._local_rows(shard_map, shard)
        global_rows, _ = self._global_rows(shard_map, shard, local_rows)
        found = reconciliation.pieces(global_rows, local_rows, wanted)
        outcome = reconciliation.reconcile(
            shard.id, found, lambda keys: _side(keep, wanted, keys), self._executor.new_id
        )
        self._write(shard_map, shard.id, found, outcome)

    def _write(
        self, shard_map: ShardMap, shard_id: str, found: Sequence[Piece], wanted: Reconciled
    ) -> None:
        mark = self._executor.new_id()

        def change(locked: LockedMap) -> list[tuple[ShardRow, list[MappingRow]]]:
            seen = {piece.in_global.id for piece in found if piece.in_global is not None}
            mine = {row.id for row in locked.mappings_of(shard_id)}
            losers = {locked.mapping(one).shard_id for one in wanted.removed}
            if not mine <= seen:
                raise _changed_meanwhile(shard_map)
            rows = (*wanted.kept, *wanted.left_over, *wanted.undecided_global)
            locked.replace_mappings(mine | set(wanted.removed), rows)
            return [
                (locked.mark_shard(one, mark), locked.mappings_of(one))
                for one in (
                    *sorted(losers - {shard_id}),
                    shard_id,
                )  # last, so that no key ever has two owners
            ]

        for row, rows in self._executor.decide(shard_map.id, shard_map.name, change):
            if row.id == shard_id:
                self._write_local(shard_map.row(), *_left_undecided(row, rows, wanted))
            else:
                self._write_local(shard_map.row(), row, rows)
        shard_map.cache.clear()

    def _write_local(self, shard_map: MapRow, shard: ShardRow, rows: list[MappingRow]) -> None:
        def write() -> None:
            with self._executor.on_shard(shard.location) as connection:
                local_catalog.replace(connection, shard_map, shard, tuple(rows))

        try:
            self._executor.step(write)
        except DBAPIError as error:
            raise unreachable(shard.location) from error

    # --- lost and restored shards -----------------------------------------------------------------

    def detach(self, where: AnyPlace, *, shard_map: ShardMap | None = None) -> None:
        """Remove a shard and its mappings from the global catalog without contacting the shard."""
        identity = place_of(where).identity
        for one in [shard_map] if shard_map is not None else self._list_maps():
            shard = one.find_shard(where)
            if shard is None:
                continue
            self._end_changes(shard.id, without=True)

            def change(locked: LockedMap) -> None:
                row = locked.find_shard_at(identity)
                if row is not None:
                    locked.replace_mappings({held.id for held in locked.mappings_of(row.id)}, ())
                    locked.delete_shard(row.id)

            self._executor.decide(one.id, one.name, change)
            one.cache.clear()

    def attach(self, url: AnyPlace, *, shard_map: ShardMap | None = None) -> list[Shard]:
        """Register a database that has a local catalog, at its present location.

        A shard that is registered at another location gets this one and keeps its mappings. The
        mappings of a new shard are not changed: call differences(), then resolve().
        """
        location = self._remember(url)
        attached = []
        for local in self._local_shards(location):
            one = self._map_of(local)
            if shard_map is None or shard_map.id == one.id:
                attached.append(self._attach_to(one, local, location))
        if not attached:
            raise _no_local_catalog(location)
        return attached

    def _attach_to(self, shard_map: ShardMap, local: LocalShard, location: Location) -> Shard:
        is_here = shard_map.find_shard(location) is not None
        self._end_changes(local.row.id, without=not is_here)
        mark = self._executor.new_id()
        row = msgspec.structs.replace(
            local.row, map_id=shard_map.id, location=location.text, last_operation=mark
        )

        def change(locked: LockedMap) -> None:
            taken = locked.find_shard_at(location.identity)
            if taken is not None and taken.id != row.id:
                raise ShardExistsError(
                    "ShardExists",
                    "Another shard of the map is registered at this location.",
                    facts={"map": shard_map.name, "location": location.text},
                    hint="Detach that one first.",
                )
            locked.write_shard(row)

        self._executor.decide(shard_map.id, shard_map.name, change)

        def write() -> None:
            with self._executor.on_shard(location.text) as connection:
                local_catalog.upgrade(connection)
                local_catalog.write_shard(connection, shard_map.row(), row, local.map.id)

        try:
            self._executor.step(write)
        except DBAPIError as error:
            raise unreachable(location.text) from error
        shard_map.cache.clear()
        return shard_map.get_shard(location)

    def rebuild_global(self, *places: AnyPlace) -> None:
        """Rewrite the mappings of the global catalog from the local catalogs of these shards.

        Lost maps are created again. If two of the shards have the same keys, nothing is written:
        call resolve() for one of them first.
        """
        locations = [self._remember(where) for where in places]
        claims = [
            (location, local) for location in locations for local in self._local_shards(location)
        ]
        if not claims:
            raise _no_local_catalog(*locations)
        self._check_disjoint(claims)
        for location, local in claims:
            self._create_lost_map(local)
            one = self._map_of(local)
            self._attach_to(one, local, location)
            self._resolve_in(one, location, "local", FULL)

    def _check_disjoint(self, claims: Sequence[tuple[Location, LocalShard]]) -> None:
        owners: dict[str, list[tuple[MappingRow, Location]]] = {}
        for location, local in claims:
            rows = owners.setdefault(local.map.id, [])
            rows += [(row, location) for row in local.mappings]
        for rows in owners.values():
            rows.sort(key=lambda held: (held[0].low, held[0].high is None, held[0].high or b""))
            for (left, one), (right, two) in pairwise(rows):
                if left.high is None or left.high > right.low:
                    raise CatalogMismatchError(
                        "ShardsDisagree",
                        "Two shards have mappings of the same keys.",
                        facts={"first": one.text, "second": two.text},
                        hint="Rebuild from the right one alone, then call "
                        'resolve(the other, keep="global").',
                    )

    def _create_lost_map(self, local: LocalShard) -> None:
        with self._executor.engine.begin() as connection:
            known = {row.id for row in global_catalog.list_maps(connection)}
            if local.map.id not in known and self._find_map(local.map.name) is None:
                global_catalog.insert_map(connection, local.map)

    # --- helpers ----------------------------------------------------------------------------------

    def _remember(self, where: AnyPlace) -> Location:
        if isinstance(where, Shard | Location):
            return place_of(where)
        return self._executor.engines.remember(where)

    def _maps_at(self, where: AnyPlace, shard_map: ShardMap | None) -> list[ShardMap]:
        if shard_map is not None:
            return [shard_map]
        found = [one for one in self._list_maps() if one.find_shard(where) is not None]
        if not found:
            raise ShardNotFoundError(
                "ShardNotFound",
                "The database is not a shard of any map.",
                facts={"location": place_of(where).text},
                hint="If it has a local catalog, call attach().",
            )
        return found

    def _map_of(self, local: LocalShard) -> ShardMap:
        found = self._find_map(local.map.name)
        if found is None:
            raise global_catalog.map_not_found(local.map.name)
        if (found.kind, found.key_type.name) != (local.map.kind, local.map.key_type):
            raise CatalogMismatchError(
                "ShardMapsDiffer",
                "The map in the local catalog has another kind or key type than the global one.",
                facts={"map": local.map.name},
                hint="Open the catalog to which the shard belongs.",
            )
        return found

    def _settled(self, shard_map: ShardMap, where: AnyPlace) -> Shard:
        shard = shard_map.get_shard(where)
        self._end_changes(shard.id, without=False)
        return shard

    def _end_changes(self, shard_id: str, *, without: bool) -> None:
        pending = self._executor.read(
            lambda connection: global_catalog.list_pending(connection, shard_id)
        )
        for operation in pending:
            given_up = {shard_id} if without else set[str]()
            if self._executor.recover(operation, without=given_up) == "alive":
                raise OperationPendingError(
                    "OperationPending",
                    "A change of this shard is in progress.",
                    hint="Try again when it has ended.",
                )

    def _local_shards(self, location: Location) -> list[LocalShard]:
        def read() -> list[LocalShard]:
            with self._executor.on_shard(location.text) as connection:
                return local_catalog.list_shards(connection)

        try:
            return self._executor.step(read)
        except DBAPIError as error:
            raise unreachable(location.text) from error

    def _local_rows(self, shard_map: ShardMap, shard: Shard) -> list[MappingRow]:
        """Return the mappings of the map in the local catalog, with the global ids."""
        for local in self._local_shards(shard.location):
            if local.map.name == shard_map.name:
                return [
                    msgspec.structs.replace(row, map_id=shard_map.id, shard_id=shard.id)
                    for row in local.mappings
                ]
        return []

    def _global_rows(
        self, shard_map: ShardMap, shard: Shard, local_rows: Sequence[MappingRow]
    ) -> tuple[list[MappingRow], dict[str, Shard]]:
        """Return the global mappings of the shard, and those that overlap its local mappings."""
        with self._executor.engine.connect() as connection:
            pairs = list(global_catalog.list_mappings(connection, shard_map.id))
            shards = global_catalog.list_shards(connection, shard_map.id)
        touched = _touching([row for row, _ in pairs], local_rows)
        rows = [row for row, _ in pairs if row.shard_id == shard.id or row.id in touched]
        return rows, {row.id: shard_map.shard_of(row) for row in shards}


def _encoded(shard_map: ShardMap, keys: object) -> KeyRange:
    return keys.key_range if isinstance(keys, Mapping) else shard_map.encode_range(keys)


def _touching(rows: Sequence[MappingRow], local_rows: Sequence[MappingRow]) -> set[str]:
    found = reconciliation.pieces(rows, local_rows)
    return {
        piece.in_global.id
        for piece in found
        if piece.in_global is not None and piece.in_local is not None
    }


def _mapping(
    shard_map: ShardMap, row: MappingRow | None, shards: dict[str, Shard]
) -> Mapping | None:
    return None if row is None else shard_map.mapping_of(row, shards[row.shard_id])


def _side(keep: CatalogName, wanted: Sequence[KeyRange], keys: KeyRange) -> CatalogName | None:
    if any(one.covers(keys) for one in wanted):
        return keep
    return "global" if keep == "local" else None


def _left_undecided(
    shard: ShardRow, rows: list[MappingRow], outcome: Reconciled
) -> tuple[ShardRow, list[MappingRow]]:
    """Return the rows of the local catalog, given those of the global catalog."""
    if not outcome.undecided_global and not outcome.undecided_local:
        return shard, rows
    # A mark that the global catalog does not have: the shard refuses changes.
    marked = msgspec.structs.replace(shard, last_operation=f"{shard.last_operation}:differs")
    others = {row.id for row in outcome.undecided_global}
    return marked, [*(row for row in rows if row.id not in others), *outcome.undecided_local]


def _changed_meanwhile(shard_map: ShardMap) -> OperationPendingError:
    return OperationPendingError(
        "OperationPending",
        "The map was changed while its catalogs were compared.",
        facts={"map": shard_map.name},
        hint="Compare the catalogs again.",
    )


def _no_local_catalog(*locations: Location) -> ShardNotFoundError:
    return ShardNotFoundError(
        "LocalCatalogNotFound",
        "The database has no local catalog of this map.",
        facts={"locations": [location.text for location in locations]},
        hint="Use create_shard() for a database that was never a shard.",
    )


def check_choice(name: str, given: str, choices: tuple[str, ...]) -> None:
    """Refuse an unknown value of an option."""
    if given not in choices:
        raise UsageError(
            "UnknownOption",
            f"{name}={given!r} is not an option.",
            facts={"choices": choices},
            hint="Use one of " + ", ".join(repr(one) for one in choices) + ".",
        )
