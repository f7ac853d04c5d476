# ruff: noqa: E731 - each rule names its work once, for whichever outcome the model expects
"""A shard map against a plain model: random changes by two managers, with crashes in between.

After every step each key has no shard or one, ranges are disjoint, lookups answer like the model,
and both catalogs agree, or the record of the one unfinished change explains why they do not.
"""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from partita.errors import (
    MappingExistsError,
    MappingLockedError,
    PartitaError,
    RangeError,
    ShardInUseError,
    StaleMappingError,
    UsageError,
)
from partita.shards.catalog import executor as execution
from partita.shards.keys.mapping import Mapping, MappingStatus
from partita.shards.keys.ranges import Range
from partita.shards.maps.manager import ShardMapManager
from partita.shards.maps.shard_map import RangeShardMap
from support.catalogs import OFFLINE, ONLINE, an_empty_database, assert_catalogs_agree, pending
from support.repeats import repeat

END = 24
LOW = st.one_of(st.none(), st.integers(0, END - 1))
HIGH = st.one_of(st.none(), st.integers(1, END))
PICK = st.integers(0, 10**6)
WHO = st.integers(0, 1)

Held = tuple[int, int, int, bool, str | None]
"""First key, first key that is not held, shard, is it online, who locked it."""


class CrashError(BaseException):
    pass


class CatalogMachine(RuleBasedStateMachine):
    """Keys 0 to 23; -1 and 24 stand for the unbounded ends."""

    urls: Callable[[str], str]

    def __init__(self) -> None:
        super().__init__()
        self.model: list[Held] = []
        self.folder = Path(tempfile.mkdtemp(prefix="partita-model-"))

    def new(self, name: str) -> str:
        return f"sqlite:///{self.folder}/{name}.db"

    @initialize()
    def create(self) -> None:
        url = self.new("catalog")
        self.managers = [ShardMapManager.create(url), ShardMapManager.open(url)]
        self.managers[0].create_range_map("tenants", key=int)
        self.maps = [self._map(manager) for manager in self.managers]
        self.shards = [
            self.maps[0].create_shard(self.new(name)) for name in ("one", "two", "three")
        ]

    @staticmethod
    def _map(manager: ShardMapManager) -> RangeShardMap:
        found = manager.get_map("tenants")
        assert isinstance(found, RangeShardMap)
        return found

    def teardown(self) -> None:
        for manager in getattr(self, "managers", []):
            manager.close()
        shutil.rmtree(self.folder)

    # --- changes: each says what the model expects, an error or the next state

    @rule(
        who=WHO,
        low=LOW,
        high=HIGH,
        shard=st.integers(0, 2),
        status=st.sampled_from([ONLINE, OFFLINE]),
    )
    def create_mapping(
        self, who: int, low: int | None, high: int | None, shard: int, status: MappingStatus
    ) -> None:
        first, end = -1 if low is None else low, END + 1 if high is None else high

        def work() -> object:
            return self.maps[who].create_mapping(
                Range(low, high), self.shards[shard], status=status
            )

        if first >= end:
            self._refused(RangeError, work)
        elif any(first < held[1] and held[0] < end for held in self.model):
            self._refused(MappingExistsError, work)
        else:
            self._done(work, [*self.model, (first, end, shard, status is ONLINE, None)])

    @precondition(lambda self: self.model)
    @rule(who=WHO, pick=PICK)
    def delete_mapping(self, who: int, pick: int) -> None:
        held, mapping = self._pick(who, pick)
        work = lambda: self.maps[who].delete_mapping(mapping)
        if held[4] is not None:
            self._refused(MappingLockedError, work)
        elif held[3]:
            self._refused(UsageError, work)
        else:
            self._done(work, self._without(held))

    @precondition(lambda self: self.model)
    @rule(who=WHO, pick=PICK)
    def change_status(self, who: int, pick: int) -> None:
        self._change_status(who, *self._pick(who, pick))

    def _change_status(self, who: int, held: Held, mapping: Mapping) -> None:
        status = OFFLINE if held[3] else ONLINE
        self._done(
            lambda: self.maps[who].update_mapping(mapping, status=status, token=held[4]),
            [*self._without(held), (*held[:3], not held[3], held[4])],
        )

    @precondition(lambda self: self.model)
    @rule(
        who=WHO, pick=PICK, shard=st.integers(0, 2), status=st.sampled_from([ONLINE, OFFLINE, None])
    )
    def change_shard(self, who: int, pick: int, shard: int, status: MappingStatus | None) -> None:
        held, mapping = self._pick(who, pick)
        is_online = held[3] if status is None else status is ONLINE
        work = lambda: self.maps[who].update_mapping(
            mapping, shard=self.shards[shard], status=status, token=held[4]
        )
        if held[3] and shard != held[2] and status is None:
            self._refused(UsageError, work)
        else:
            self._done(work, [*self._without(held), (*held[:2], shard, is_online, held[4])])

    @precondition(lambda self: self.model)
    @rule(who=WHO, pick=PICK, at=st.integers(0, END))
    def split(self, who: int, pick: int, at: int) -> None:
        held, mapping = self._pick(who, pick)
        work = lambda: self.maps[who].split(mapping, at=at, token=held[4])
        if held[0] < at < held[1]:
            halves = [(held[0], at, *held[2:]), (at, held[1], *held[2:])]
            self._done(work, [*self._without(held), *halves])
        else:
            self._refused(RangeError, work)

    @precondition(lambda self: len(self.model) > 1)
    @rule(who=WHO, pick=PICK)
    def merge(self, who: int, pick: int) -> None:
        index = pick % (len(self.model) - 1)
        left, right = self.model[index : index + 2]
        mappings = self.maps[who].mappings()
        token = left[4]
        work = lambda: self.maps[who].merge(*mappings[index : index + 2], token=token)
        if left[4] != right[4]:
            self._refused(MappingLockedError, work)
        elif left[1] != right[0]:
            self._refused(RangeError, work)
        elif left[2:4] != right[2:4]:
            self._refused(UsageError, work)
        else:
            rest = [held for held in self.model if held not in {left, right}]
            self._done(work, [*rest, (left[0], right[1], *left[2:])])

    @precondition(lambda self: self.model)
    @rule(who=WHO, pick=PICK, token=st.sampled_from(["mine", "yours"]))
    def lock(self, who: int, pick: int, token: str) -> None:
        held, mapping = self._pick(who, pick)
        work = lambda: self.maps[who].lock(mapping, token=token)
        if held[4] is not None:
            self._refused(MappingLockedError, work)
        else:
            self._done(work, [*self._without(held), (*held[:4], token)])

    @rule(who=WHO, token=st.sampled_from(["mine", "yours"]))
    def unlock(self, who: int, token: str) -> None:
        after = [(*held[:4], None if held[4] == token else held[4]) for held in self.model]
        self._done(lambda: self.maps[who].unlock(token), after)

    @rule(who=WHO, shard=st.integers(0, 2))
    def replace_shard(self, who: int, shard: int) -> None:

        def work() -> None:
            self.maps[who].delete_shard(self.shards[shard])

        if any(held[2] == shard for held in self.model):
            self._refused(ShardInUseError, work)
            return
        work()
        self.shards[shard] = self.maps[1 - who].create_shard(self.shards[shard].location)

    @precondition(lambda self: self.model)
    @rule(who=WHO, pick=PICK)
    def use_a_stale_mapping(self, who: int, pick: int) -> None:
        held, mapping = self._pick(who, pick)
        self._change_status(who, held, mapping)
        self._refused(
            StaleMappingError,
            lambda: self.maps[1 - who].update_mapping(mapping, status=ONLINE, token=held[4]),
        )

    @precondition(lambda self: self.model)
    @rule(
        who=WHO,
        pick=PICK,
        at=st.integers(0, END),
        steps=st.integers(0, 16),
        second=st.integers(0, 20),
    )
    def crash(self, who: int, pick: int, at: int, steps: int, second: int) -> None:
        held, mapping = self._pick(who, pick)
        if not held[3]:
            shard = (held[2] + 1) % 3
            after = [*self._without(held), (*held[:2], shard, True, held[4])]

            def work() -> object:
                return self.maps[who].update_mapping(
                    mapping, shard=self.shards[shard], status=ONLINE, token=held[4]
                )
        elif held[0] < at < held[1]:
            after = [*self._without(held), (held[0], at, *held[2:]), (at, held[1], *held[2:])]

            def work() -> object:
                return self.maps[who].split(mapping, at=at, token=held[4])
        else:
            after = [*self._without(held), (*held[:3], False, held[4])]

            def work() -> object:
                return self.maps[who].update_mapping(mapping, status=OFFLINE, token=held[4])

        for doer, step, left in (
            (who, work, steps),
            (1 - who, self.managers[1 - who].repair, second),
        ):
            self._crashed(doer, step, left)
            assert self._actual() in (self.model, sorted(after))
            if not pending(self.managers[0]):  # no record explains a difference: there is none
                assert_catalogs_agree(self.maps[0])
        self.managers[who].repair()
        self.model = self._actual()

    # --- what must hold ---------------------------------------------------------------------------

    @invariant()
    def map_is_as_the_model(self) -> None:
        if not hasattr(self, "maps"):
            return
        assert self._actual() == self.model
        assert pending(self.managers[0]) == []
        assert_catalogs_agree(self.maps[0])

    @precondition(lambda self: hasattr(self, "maps"))
    @rule(who=WHO)
    def look_up_every_key(self, who: int) -> None:
        for key in range(END):
            owners = [held for held in self.model if held[0] <= key < held[1]]
            assert len(owners) <= 1
            found = self.maps[who].find(key, lookup="store")
            assert (found is None) == (not owners)
            assert found is None or found.shard == self.shards[owners[0][2]]
            assert self.maps[who].find(key) == found

    # --- inside -----------------------------------------------------------------------------------

    def _pick(self, who: int, pick: int) -> tuple[Held, Mapping]:
        index = pick % len(self.model)
        return self.model[index], self.maps[who].mappings()[index]

    def _without(self, held: Held) -> list[Held]:
        return [one for one in self.model if one != held]

    def _done(self, work: Callable[[], object], after: list[Held]) -> None:
        work()
        self.model = sorted(after)

    def _refused(self, error: type[PartitaError], work: Callable[[], object]) -> None:
        with pytest.raises(error):
            work()

    def _crashed(self, who: int, work: Callable[[], object], steps: int) -> None:
        left = [steps]

        def fault(_point: str) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise CrashError

        self.managers[who].executor.fault = fault
        try:
            work()
        except CrashError:
            pass
        finally:
            self.managers[who].executor.fault = execution.no_fault

    def _actual(self) -> list[Held]:
        order = {shard.id: index for index, shard in enumerate(self.shards)}
        return [
            (
                -1 if mapping.range.low is None else mapping.range.low,
                END + 1 if mapping.range.high is None else mapping.range.high,
                order[mapping.shard.id],
                mapping.is_online,
                mapping.lock_owner,
            )
            for mapping in self.maps[0].mappings()
        ]


class PostgresCatalogMachine(CatalogMachine):
    def new(self, name: str) -> str:
        return an_empty_database(name)


@pytest.mark.repeated
def test_a_map_on_sqlite_is_like_its_model() -> None:
    run_state_machine_as_test(
        CatalogMachine,
        settings=settings(max_examples=repeat(3, 5, 400), stateful_step_count=30, deadline=None),
    )


@pytest.mark.repeated
@pytest.mark.timeout(600)
def test_a_map_on_postgresql_is_like_its_model() -> None:
    run_state_machine_as_test(
        PostgresCatalogMachine,
        settings=settings(max_examples=repeat(1, 2, 60), stateful_step_count=30, deadline=None),
    )
