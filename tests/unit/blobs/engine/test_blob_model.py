"""The engine against a plain model of dictionaries: blocks, appends, conditions, leases,
snapshots, copies, deletes. The model is written from the rules, not from the engine.
"""

import asyncio
import base64
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from partita.blobs.engine.engine import BlobEngine
from partita.blobs.rules import limits
from partita.blobs.rules.model import (
    Blob,
    BlobName,
    BlockChoice,
    Conditions,
    DeleteSnapshots,
    LeaseAction,
    LeaseRequest,
    Properties,
    Terms,
    Which,
)
from partita.blobs.store.sqlite_store import SqliteBlobStore
from partita.clock import ManualClock
from partita.errors import PartitaError
from partita.storage.database import Database
from partita.storage.store_clock import StoreClock
from partita.ticks import TICKS_PER_SECOND
from support.repeats import repeat
from support.sqlite_blobs import store_of

EXAMPLES = repeat(10, 50, 400)
HERE = "here"
NAMES = st.sampled_from(["a", "b", "log"])
BLOCK_NAMES = st.sampled_from(["a", "b", "a", "b", "a", "b", "log"])
LOG_NAMES = st.sampled_from(["log", "log", "log", "log", "log", "log", "a"])
"""Mostly names of the right kind, so that most requests are well."""
CONTENTS = st.sampled_from([b"", b"x", b"0123456789" * 3, b"long" * 40, b"longer" * 50])
BLOCKS = st.sampled_from([b"1", b"22" * 20, b"block" * 60])
FIRST_IDS = [base64.b64encode(bytes([65 + n])).decode() for n in range(3)]
IDS = st.sampled_from(FIRST_IDS)
LEASES = {
    "A": "11111111-1111-4111-8111-111111111111",
    "B": "22222222-2222-4222-8222-222222222222",
}
PROOFS = st.sampled_from(["right"] * 8 + [None, "A", "B"])
"""The lease that a request proves; `right` is the one that it must, if any."""
WISHES = st.sampled_from(
    [None] * 12 + ["none"] * 3 + ["match", "match any", "stale", "none but this", "not stale"]
)
STALE = "0x1"


@dataclass(frozen=True)
class Held:
    """A lease in the model. Times are ticks; None: never."""

    id: str
    seconds: int
    ends: int | None
    breaks: int | None = None

    def state(self, now: int) -> str:
        if self.breaks is not None:
            return "broken" if now >= self.breaks else "breaking"
        return "expired" if self.ends is not None and now >= self.ends else "leased"


@dataclass(frozen=True)
class Shown:
    """A committed blob in the model."""

    kind: str
    content: bytes
    etag: str
    metadata: dict[str, str] = field(default_factory=dict)
    blocks: tuple[tuple[str, bytes], ...] = ()
    count: int = 0
    is_sealed: bool = False


@dataclass
class Place:
    """A name in the model."""

    shown: Shown | None = None
    held: Held | None = None
    staged: dict[str, bytes] = field(default_factory=dict)
    snapshots: dict[str, Shown] = field(default_factory=dict)


class Refused(Exception):  # noqa: N818 - it is the model's answer, not an error
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def conditions_of(wish: str | None, shown: Shown | None) -> Conditions:
    etag = shown.etag if shown else "0x2"
    wishes = {
        None: Conditions(),
        "match": Conditions(if_match=(etag,)),
        "match any": Conditions(if_match=("*",)),
        "stale": Conditions(if_match=(STALE,)),
        "none": Conditions(if_none_match=("*",)),
        "none but this": Conditions(if_none_match=(etag,)),
        "not stale": Conditions(if_none_match=(STALE,)),
    }
    return wishes[wish]


def proof_of(place: Place, proof: str | None, now: int) -> str | None:
    if proof == "right":
        is_live = place.held and place.held.state(now) in ("leased", "breaking")
        return place.held.id if place.held and is_live else None
    return LEASES[proof] if proof else None


def check_lease(place: Place, proof: str | None, now: int, *, writes: bool) -> None:
    state = place.held.state(now) if place.held else "available"
    if proof is None:
        if writes and state in ("leased", "breaking"):
            raise Refused("LeaseIdMissing")
        return
    if place.held is None:
        raise Refused("LeaseNotPresentWithBlobOperation")
    if place.held.id != proof:
        raise Refused("LeaseIdMismatchWithBlobOperation")
    if state in ("expired", "broken"):
        raise Refused("LeaseLost")


def check_write(wish: str | None, shown: Shown | None, *, creates: bool, proved: bool) -> None:
    if shown is None:
        if wish in ("match", "match any", "stale"):
            raise Refused("ConditionNotMet")
        return
    if wish == "none" and creates:
        if not proved:
            raise Refused("BlobAlreadyExists")
    elif wish in ("none", "none but this", "stale"):
        raise Refused("ConditionNotMet")


def check_read(wish: str | None) -> None:
    if wish == "none":
        raise Refused("UnsatisfiableCondition")
    if wish in ("stale", "none but this"):
        raise Refused("ConditionNotMet")


def lease_after(
    place: Place,
    action: str,
    *,
    proof: str,
    proposed: str,
    seconds: int | None,
    now: int,
) -> Held | None:
    """The table of the rules, row by row."""
    held = place.held
    state = held.state(now) if held else "available"
    if action == "acquire":
        assert seconds is not None
        wanted = proposed
        if held and state == "breaking" and held.id == wanted:
            raise Refused("LeaseIsBreakingAndCannotBeAcquired")
        if held and state in ("leased", "breaking") and held.id != wanted:
            raise Refused("LeaseAlreadyPresent")
        ends = None if seconds < 0 else now + seconds * TICKS_PER_SECOND
        return Held(wanted, seconds, ends)
    if held is None:
        raise Refused("LeaseNotPresentWithLeaseOperation")
    if action == "break":
        if state in ("expired", "broken"):
            return replace(held, breaks=now)
        left = [at for at in (held.ends, held.breaks) if at is not None]
        if seconds is not None:
            left.append(now + seconds * TICKS_PER_SECOND)
        return replace(held, breaks=min(left) if left else now)
    if action == "change" and state in ("expired", "broken"):
        raise Refused("LeaseNotPresentWithLeaseOperation")
    if action == "change" and held.id not in (proof, proposed):
        raise Refused("LeaseIdMismatchWithLeaseOperation")
    if action == "change":
        if state == "breaking":
            raise Refused("LeaseIsBreakingAndCannotBeChanged")
        return replace(held, id=proposed)
    if held.id != proof:
        raise Refused("LeaseIdMismatchWithLeaseOperation")
    if action == "release":
        return None
    if state in ("breaking", "broken"):
        raise Refused("LeaseIsBrokenAndCannotBeRenewed")
    ends = None if held.ends is None else now + held.seconds * TICKS_PER_SECOND
    return replace(held, ends=ends)


class BlobModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.places = {"a": Place(), "b": Place(), "log": Place()}
        self.engine = self.loop.run_until_complete(self._open())
        self.put("a", b"at first", None, None)
        self.put("b", b"", None, None)
        self.create_append("log", None, None)

    async def _open(self) -> BlobEngine:
        database = await Database.open(None)
        engine = BlobEngine(await SqliteBlobStore.open(database, StoreClock(database, self.clock)))
        await engine.containers.create_container(HERE)
        return engine

    def teardown(self) -> None:
        async def close() -> None:
            await self.engine.close()
            await self._close()

        self.loop.run_until_complete(close())
        self.loop.close()

    async def _reclaim(self) -> None:
        await store_of(self.engine).collector.collect()
        await store_of(self.engine).collector.sweep()

    async def _close(self) -> None:
        await store_of(self.engine).database.close()

    # Running both

    @property
    def now(self) -> int:
        return self.engine.store.now()

    def run(self, expect: Callable[[], None], work: Coroutine[Any, Any, Any]) -> Any:
        """Do it; both refuse with the same code, or neither does. Return the outcome or None."""
        expected = None
        try:
            expect()
        except Refused as refused:
            expected = refused.code
        found, outcome = None, None
        try:
            outcome = self.loop.run_until_complete(work)
        except PartitaError as error:
            found = error.code
        assert found == expected
        return outcome

    def written(self, place: Place, shown: Shown) -> None:
        place.shown = shown
        if place.held and place.held.state(self.now) == "expired":
            place.held = None

    # Rules

    @rule(name=BLOCK_NAMES, content=CONTENTS, wish=WISHES, proof=PROOFS)
    def put(self, name: str, content: bytes, wish: str | None, proof: str | None) -> None:
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)

        def expect() -> None:
            check_lease(place, lease_id, now, writes=True)
            check_write(wish, place.shown, creates=True, proved=lease_id is not None)

        outcome = self.run(
            expect,
            self.engine.put_blob(
                blob(name),
                content,
                properties=Properties(metadata={"size": str(len(content))}),
                terms=Terms(lease_id, conditions_of(wish, place.shown)),
            ),
        )
        if outcome:
            shown = Shown("BlockBlob", content, outcome.etag, {"size": str(len(content))})
            self.written(place, shown)
            place.staged = {}

    @rule(name=LOG_NAMES, wish=WISHES, proof=PROOFS)
    def create_append(self, name: str, wish: str | None, proof: str | None) -> None:
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)

        def expect() -> None:
            check_lease(place, lease_id, now, writes=True)
            check_write(wish, place.shown, creates=True, proved=lease_id is not None)

        outcome = self.run(
            expect,
            self.engine.append_blobs.create_append_blob(
                blob(name),
                terms=Terms(lease_id, conditions_of(wish, place.shown)),
            ),
        )
        if outcome:
            self.written(place, Shown("AppendBlob", b"", outcome.etag))
            place.staged = {}

    @rule(
        name=LOG_NAMES,
        content=BLOCKS,
        wish=WISHES,
        proof=PROOFS,
        position=st.sampled_from([None, None, None, "right", "right", 7]),
        size_max=st.sampled_from([None, None, None, 2000, 300]),
    )
    def append(
        self,
        name: str,
        content: bytes,
        wish: str | None,
        proof: str | None,
        position: str | int | None,
        size_max: int | None,
    ) -> None:
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)
        shown = place.shown
        length = len(shown.content) if shown else 0
        wanted = length if position == "right" else position
        assert not isinstance(wanted, str)

        def expect() -> None:
            if shown is None:
                raise Refused("BlobNotFound")
            if shown.kind != "AppendBlob":
                raise Refused("InvalidBlobType")
            check_lease(place, lease_id, now, writes=True)
            check_write(wish, shown, creates=False, proved=False)
            if shown.is_sealed:
                raise Refused("BlobIsSealed")
            if wanted is not None and wanted != length:
                raise Refused("AppendPositionConditionNotMet")
            if size_max is not None and length + len(content) > size_max:
                raise Refused("MaxBlobSizeConditionNotMet")

        outcome = self.run(
            expect,
            self.engine.append_blobs.append_block(
                blob(name),
                content,
                position=wanted,
                size_max=size_max,
                terms=Terms(lease_id, conditions_of(wish, shown)),
            ),
        )
        if outcome:
            assert shown is not None
            assert (outcome.offset, outcome.block_count) == (length, shown.count + 1)
            self.written(
                place,
                replace(
                    shown,
                    content=shown.content + content,
                    etag=outcome.written.etag,
                    count=shown.count + 1,
                ),
            )

    @rule(name=LOG_NAMES, proof=PROOFS)
    def seal(self, name: str, proof: str | None) -> None:
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)
        shown = place.shown

        def expect() -> None:
            if shown is None:
                raise Refused("BlobNotFound")
            if shown.kind != "AppendBlob":
                raise Refused("InvalidBlobType")
            check_lease(place, lease_id, now, writes=True)

        outcome = self.run(expect, self.engine.append_blobs.seal(blob(name), terms=Terms(lease_id)))
        if outcome:
            assert shown is not None
            self.written(place, replace(shown, is_sealed=True, etag=outcome.etag))

    @rule(name=BLOCK_NAMES, identity=IDS, content=BLOCKS, proof=PROOFS)
    def stage(self, name: str, identity: str, content: bytes, proof: str | None) -> None:
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)

        def expect() -> None:
            if place.shown is not None and place.shown.kind != "BlockBlob":
                raise Refused("InvalidBlobType")
            check_lease(place, lease_id, now, writes=True)

        outcome = self.run(
            expect,
            self.engine.block_blobs.put_block(blob(name), identity, content, lease_id=lease_id),
        )
        if outcome:
            place.staged[identity] = content

    @rule(
        name=BLOCK_NAMES,
        chosen=st.lists(
            st.tuples(
                st.sampled_from(["Latest", "Latest", "Latest", "Committed", "Uncommitted"]),
                st.integers(0, 5),
            ),
            max_size=4,
        ),
        wish=WISHES,
        proof=PROOFS,
    )
    def commit(
        self, name: str, chosen: Sequence[tuple[Which, int]], wish: str | None, proof: str | None
    ) -> None:
        for number in range(2 if not self.places[name].staged else 0):
            self.stage(name, FIRST_IDS[number], b"block" * (number + 1), "right")
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)
        committed = dict(place.shown.blocks) if place.shown else {}
        blocks: list[tuple[str, bytes]] = []
        known = [*committed, *place.staged] or ["MQ=="]
        named = [(which, known[number % len(known)]) for which, number in chosen]

        def expect() -> None:
            if place.shown is not None and place.shown.kind != "BlockBlob":
                raise Refused("InvalidBlobType")
            check_lease(place, lease_id, now, writes=True)
            check_write(wish, place.shown, creates=True, proved=lease_id is not None)
            for which, identity in named:
                places = {
                    "Latest": {**committed, **place.staged},
                    "Committed": committed,
                    "Uncommitted": place.staged,
                }
                if identity not in places[which]:
                    raise Refused("InvalidBlockList")
                blocks.append((identity, places[which][identity]))

        outcome = self.run(
            expect,
            self.engine.block_blobs.put_block_list(
                blob(name),
                [BlockChoice(which, identity) for which, identity in named],
                terms=Terms(lease_id, conditions_of(wish, place.shown)),
            ),
        )
        if outcome:
            content = b"".join(each for _, each in blocks)
            self.written(place, Shown("BlockBlob", content, outcome.etag, {}, tuple(blocks)))
            place.staged = {}

    @rule(
        name=NAMES,
        option=st.sampled_from([None, "only", "include"]),
        wish=WISHES,
        proof=PROOFS,
    )
    def delete(
        self, name: str, option: DeleteSnapshots | None, wish: str | None, proof: str | None
    ) -> None:
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)

        def expect() -> None:
            if place.shown is None:
                raise Refused("BlobNotFound")
            check_lease(place, lease_id, now, writes=True)
            check_write(wish, place.shown, creates=False, proved=False)
            if place.snapshots and option is None:
                raise Refused("SnapshotsPresent")
            place.snapshots = {}
            if option != "only":
                self.places[name] = Place()

        conditions = conditions_of(wish, place.shown)
        self.run(
            expect,
            self.engine.delete_blob(
                blob(name),
                snapshots=option,
                terms=Terms(lease_id, conditions),
            ),
        )

    @rule(name=NAMES, wish=WISHES, proof=PROOFS)
    def take_snapshot(self, name: str, wish: str | None, proof: str | None) -> None:
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)

        def expect() -> None:
            if place.shown is None:
                raise Refused("BlobNotFound")
            check_lease(place, lease_id, now, writes=False)
            check_write(wish, place.shown, creates=False, proved=False)

        outcome = self.run(
            expect,
            self.engine.snapshot(
                blob(name),
                terms=Terms(lease_id, conditions_of(wish, place.shown)),
            ),
        )
        if outcome:
            assert place.shown is not None
            assert outcome.etag == place.shown.etag
            assert all(text < outcome.snapshot for text in place.snapshots)
            place.snapshots[outcome.snapshot] = place.shown

    @rule(name=NAMES, number=st.integers(0, 3))
    def delete_snapshot(self, name: str, number: int) -> None:
        place = self.places[name]
        if number < len(place.snapshots):
            text = list(place.snapshots)[number]
            del place.snapshots[text]
            self.loop.run_until_complete(self.engine.delete_blob(BlobName(HERE, name, text)))

    @rule(source=NAMES, number=st.integers(0, 2), goal=NAMES, wish=WISHES, proof=PROOFS)
    def copy(
        self, source: str, number: int, goal: str, wish: str | None, proof: str | None
    ) -> None:
        origin, place, now = self.places[source], self.places[goal], self.now
        lease_id = proof_of(place, proof, now)
        texts = list(origin.snapshots)
        text = texts[number - 1] if 0 < number <= len(texts) else None
        shown = origin.snapshots[text] if text else origin.shown

        def expect() -> None:
            if shown is None:
                raise Refused("BlobNotFound")
            check_lease(place, lease_id, now, writes=True)
            check_write(wish, place.shown, creates=True, proved=lease_id is not None)
            if place.shown is not None and place.shown.kind != shown.kind:
                raise Refused("InvalidBlobType")
            held = place.held
            if held and held.state(now) == "leased" and held.ends is not None:
                raise Refused("InfiniteLeaseDurationRequired")

        outcome = self.run(
            expect,
            self.engine.copies.copy_blob(
                BlobName(HERE, source, text),
                blob(goal),
                terms=Terms(lease_id, conditions_of(wish, place.shown)),
            ),
        )
        if outcome:
            assert shown is not None
            self.written(place, replace(shown, etag=outcome.written.etag))
            place.staged = {}

    @rule(name=NAMES, value=st.sampled_from(["1", "2"]), wish=WISHES, proof=PROOFS)
    def set_metadata(self, name: str, value: str, wish: str | None, proof: str | None) -> None:
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)
        shown = place.shown

        def expect() -> None:
            if shown is None:
                raise Refused("BlobNotFound")
            check_lease(place, lease_id, now, writes=True)
            check_write(wish, shown, creates=False, proved=False)

        outcome = self.run(
            expect,
            self.engine.set_metadata(
                blob(name),
                {"k": value},
                terms=Terms(lease_id, conditions_of(wish, shown)),
            ),
        )
        if outcome:
            assert shown is not None
            self.written(place, replace(shown, metadata={"k": value}, etag=outcome.etag))

    @rule(
        name=NAMES,
        action=st.sampled_from(["acquire", "acquire", "renew", "change", "release", "break"]),
        proof=st.sampled_from(["right", "right", "A", "B"]),
        proposed=st.sampled_from(["A", "B"]),
        seconds=st.sampled_from([15, 30, -1]),
        period=st.sampled_from([None, 0, 5, 60]),
    )
    def lease(
        self,
        name: str,
        action: LeaseAction,
        proof: str,
        proposed: str,
        seconds: int,
        period: int | None,
    ) -> None:
        place, now = self.places[name], self.now
        after: list[Held | None] = []
        held_id = place.held.id if place.held else LEASES["A"]
        given_id = held_id if proof == "right" else LEASES[proof]
        given = seconds if action == "acquire" else period

        def expect() -> None:
            if place.shown is None:
                raise Refused("BlobNotFound")
            after.append(
                lease_after(
                    place,
                    action,
                    proof=given_id,
                    proposed=LEASES[proposed],
                    seconds=given,
                    now=now,
                )
            )

        outcome = self.run(
            expect,
            self.engine.lease_blob(
                blob(name),
                LeaseRequest(
                    action,
                    lease_id=given_id if action in ("renew", "change", "release") else None,
                    proposed_id=LEASES[proposed] if action in ("acquire", "change") else None,
                    duration=seconds if action == "acquire" else None,
                    break_period=period if action == "break" else None,
                ),
            ),
        )
        if outcome:
            assert place.shown is not None
            assert outcome.etag == place.shown.etag
            place.held = after[0]
            if action == "break":
                assert place.held is not None
                assert place.held.breaks is not None
                left = max(place.held.breaks - now, 0)
                assert outcome.seconds_left == -(-left // TICKS_PER_SECOND)
            elif place.held is not None:
                assert outcome.lease_id == place.held.id

    @rule(name=NAMES)
    def a_lease_runs_out(self, name: str) -> None:
        held = self.places[name].held
        if held and held.ends is not None and held.state(self.now) == "leased":
            self.clock.advance((held.ends - self.now) / TICKS_PER_SECOND + 1)

    @rule(seconds=st.sampled_from([1, 7, 16]))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(name=NAMES, wish=WISHES, proof=PROOFS, first=st.sampled_from([None, None, 0, 3, 1000]))
    def read(self, name: str, wish: str | None, proof: str | None, first: int | None) -> None:
        place, now = self.places[name], self.now
        lease_id = proof_of(place, proof, now)
        shown = place.shown

        def expect() -> None:
            if shown is None:
                raise Refused("BlobNotFound")
            check_lease(place, lease_id, now, writes=False)
            check_read(wish)
            if first is not None and first >= len(shown.content):
                raise Refused("InvalidRange")

        async def read() -> bytes:
            opened = await self.engine.open_blob(
                blob(name),
                first=first,
                last=None if first is None else first + 4,
                terms=Terms(lease_id, conditions_of(wish, shown)),
            )
            content = b"".join([part async for part in opened.content])
            await opened.content.close()
            return content

        content = self.run(expect, read())
        if content is not None:
            assert shown is not None
            wanted = shown.content if first is None else shown.content[first : first + 5]
            assert content == wanted

    @rule()
    def collect(self) -> None:
        self.loop.run_until_complete(self._reclaim())

    # What must hold at every step

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        self.loop.run_until_complete(self._compare())

    async def _compare(self) -> None:
        now = self.now
        listing = await self.engine.containers.list_blobs(
            HERE, include={"snapshots", "uncommittedblobs"}
        )
        found = [item for item in listing.items if isinstance(item, Blob)]
        expected: list[tuple[str, str | None, bool]] = []
        for name, place in self.places.items():
            expected += [(name, text, True) for text in place.snapshots]
            if place.shown is not None or place.staged:
                expected.append((name, None, place.shown is not None))
        assert [(b.name, b.snapshot, b.is_committed) for b in found] == expected
        for item in found:
            place = self.places[item.name]
            shown = place.snapshots[item.snapshot] if item.snapshot else place.shown
            if shown is None:
                continue
            assert (item.kind, item.etag, item.length, dict(item.metadata)) == (
                shown.kind,
                shown.etag,
                len(shown.content),
                shown.metadata,
            )
            assert (item.block_count, item.is_sealed) == (shown.count, shown.is_sealed)
            opened = await self.engine.open_blob(BlobName(HERE, item.name, item.snapshot))
            assert b"".join([part async for part in opened.content]) == shown.content
            await opened.content.close()
            if item.snapshot is None:
                held = place.held
                assert item.lease.state == (held.state(now) if held else "available")
            if shown.kind == "BlockBlob":
                blocks = await self.engine.block_blobs.get_block_list(
                    BlobName(HERE, item.name, item.snapshot)
                )
                assert [(b.id, b.size) for b in blocks.committed] == [
                    (identity, len(content)) for identity, content in shown.blocks
                ]
                staged = {} if item.snapshot else place.staged
                assert [(b.id, b.size) for b in blocks.uncommitted] == sorted(
                    (identity, len(content)) for identity, content in staged.items()
                )


def blob(name: str) -> BlobName:
    return BlobName(HERE, name)


class SmallPieces(BlobModel):
    """The same when nearly every content is a file of many chunks."""

    def __init__(self) -> None:
        self._limits = {
            name: getattr(limits, name)
            for name in ("INLINE_BYTES_MAX", "CHUNK_BYTES", "SLAB_BYTES", "READ_BYTES")
        }
        for name, size in zip(self._limits, (16, 16, 64, 32), strict=True):
            setattr(limits, name, size)
        super().__init__()

    def teardown(self) -> None:
        super().teardown()
        for name, size in self._limits.items():
            setattr(limits, name, size)


_settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestBlobModel = pytest.mark.repeated(BlobModel.TestCase)
TestBlobModel.settings = _settings
TestSmallPieces = pytest.mark.repeated(SmallPieces.TestCase)
TestSmallPieces.settings = _settings
