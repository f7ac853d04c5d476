"""Writers that compete for one simulated stream under faults; the stream's truth is the judge."""

import asyncio
import contextlib
import random

import msgspec
import pytest

from partita.clock import ManualClock
from partita.errors import (
    ChainBrokenError,
    InDoubtError,
    LimitExceededError,
    NotPrimaryError,
    NotReadableError,
    QuorumLostError,
    StateClosedError,
    StoreFullError,
)
from partita.reliable.replication.quorum_log import Flight, QuorumLog
from partita.reliable.replication.stream import NoAnswer, Register
from partita.reliable.state.records import (
    FORMAT,
    NO_HASH,
    Entry,
    Record,
    decode_record,
    encode_record,
    record_hash,
)
from partita.simulation.loop import Ran, SimClock, SimLoop, run, running_loop
from partita.simulation.stream import NO_FAULTS, Cut, Faults, SimCluster, SimStream
from support.repeats import repeat

SEEDS = repeat(12, 30, 1_000)
OPERATIONS = 300
WORK_SECONDS_MAX = 3_600.0
HEALED_SECONDS_MAX = 60.0
VARIANT_SEEDS = 40
"""A broken variant must be caught by at least one of so many."""


class BrokenPromiseError(AssertionError):
    """The history breaks a promise; the message names the seed."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """What one world is made of; the broken variants change one thing each."""

    operations: int = OPERATIONS
    writers: int = 3
    log_class: type[QuorumLog] = QuorumLog
    cluster_class: type[SimCluster] = SimCluster
    filters_epochs: bool = True
    pipelined: int = 1


class Writer:
    """A replica in small: it follows, takes over, appends, and remembers what it was told."""

    def __init__(self, world: "World", name: str) -> None:
        self.world = world
        self.name = name
        self.random = random.Random(f"{world.seed}/{name}")
        self.log = world.setting.log_class(
            world.cluster.connect(name),
            SimClock(running_loop(), name),
            one_in_flight=world.setting.pipelined == 1,
        )
        self.accepted: list[tuple[int, str]] = []
        self.committed: dict[str, int] = {}
        self.refused: list[str] = []
        self.highest_epoch = 0
        self.tried_epoch = 0
        self.read = 0
        self.is_primary = False
        self.end = 0
        self.count = 0

    async def follow(self) -> None:
        async for sequence, raw in self.log.follow(1):
            record = decode_record(raw)
            self.read = sequence
            if record.epoch < self.highest_epoch and self.world.setting.filters_epochs:
                continue
            self.accepted.append((sequence, name_of(record)))
            self.highest_epoch = max(self.highest_epoch, record.epoch)
            if self.highest_epoch > self.log.epoch:
                self.is_primary = False

    async def work(self) -> None:
        while self.world.has_work():
            await asyncio.sleep(self.random.expovariate(20.0))
            if self.is_primary:
                await self.commit()
            elif self.random.random() < 0.03:
                await self.take_over()

    async def take_over(self) -> None:
        with contextlib.suppress(QuorumLostError, NotPrimaryError):
            await self.log.refresh()
            while self.read < self.log.last:  # noqa: ASYNC110 - as a replica polls
                await asyncio.sleep(0.05)
            # A dead candidate may have sealed an epoch that it never opened.
            self.tried_epoch = epoch = max(self.highest_epoch, self.tried_epoch) + 1
            self.log.epoch = epoch
            sequence = self.read + 1
            if self.world.seals:
                await self.log.seal(epoch)
            await self.log.append(sequence, an_epoch_record(epoch, sequence, self.name))
            self.world.trace(f"{self.name} opened {epoch} at {sequence}")
            self.committed[f"epoch {epoch} {self.name}"] = sequence
            self.end = sequence
            self.is_primary = self.highest_epoch <= epoch

    async def commit(self) -> None:
        wide = self.world.setting.pipelined
        places = [self.end + 1 + ahead for ahead in range(wide)]
        self.end += wide
        await asyncio.gather(*(self.append(sequence) for sequence in places))

    async def append(self, sequence: int) -> None:
        self.count += 1
        self.world.operations += 1
        label = f"{self.name} {self.count}"
        raw = a_record(self.log.epoch, sequence, label)
        try:
            await self.log.append(sequence, raw)
        except NotPrimaryError:
            self.refused.append(label)
            self.is_primary = False
        else:
            self.committed[label] = sequence
            self.world.trace(f"{label} at {sequence}")


class World:
    """One run: a cluster, its clients, trouble, healing, and the judgement."""

    def __init__(self, seed: int, setting: Setting, faults: Faults) -> None:
        self.seed = seed
        self.setting = setting
        self.operations = 0
        self.is_healed = False
        self.seals = seed % 4 < 2
        self.loop: SimLoop = running_loop()
        self.cluster = setting.cluster_class(seed=seed, faults=faults)
        self.writers = [Writer(self, f"writer{number}") for number in range(setting.writers)]

    def has_work(self) -> bool:
        return not self.is_healed and self.operations < self.setting.operations

    def trace(self, text: str) -> None:
        self.loop.trace(text)

    async def live(self) -> None:
        following = [self.loop.spawn(one.name, one.follow()) for one in self.writers]
        working = [self.loop.spawn(one.name, one.work()) for one in self.writers]
        trouble = asyncio.create_task(self.cluster.trouble())
        await asyncio.wait(working, timeout=WORK_SECONDS_MAX)
        self.is_healed = True
        self.cluster.heal()
        following.append(self.join("successor"))
        try:
            async with asyncio.timeout(HEALED_SECONDS_MAX):
                await asyncio.gather(*working, self.go_on(self.writers[-1]))
                await self.everybody_has_read()
        except TimeoutError:
            self.demand(False, "an append had no end after healing")
        finally:
            trouble.cancel()
            for writer in self.writers:
                await writer.log.close()
            await asyncio.gather(trouble, *working, *following, return_exceptions=True)

    def join(self, name: str) -> asyncio.Task[None]:
        self.writers.append(Writer(self, name))
        return self.loop.spawn(name, self.writers[-1].follow())

    async def go_on(self, writer: Writer) -> None:
        """Demand that a healed world takes new work.

        An append of an older epoch may wait for just this: when a candidate sealed it out and
        then gave up, its place stays empty until somebody takes over.
        """
        while not writer.is_primary:
            await writer.take_over()
            await asyncio.sleep(0.1)
        await writer.commit()

    async def everybody_has_read(self) -> None:
        while any(one.read < self.cluster.last for one in self.writers):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    def judge(self) -> None:
        """Compare what everybody was told with what is there.

        A record of a writer whose epoch was over is not in the accepted truth: had it been
        acknowledged, it would be missed here.
        """
        stored = [decode_record(message.raw) for message in self.cluster.messages]
        truth = accepted_of(stored)
        places = {name: sequence for sequence, name in truth}
        names = {name_of(record) for record in stored}
        self.demand(len(places) == len(truth), "a record is there twice")
        for writer in self.writers:
            is_same = writer.accepted == truth
            self.demand(is_same, f"{writer.name} accepted other records than the truth has")
            for label, sequence in writer.committed.items():
                is_there = places.get(label) == sequence
                self.demand(is_there, f"{label} was acknowledged at {sequence} and is not there")
            for label in writer.refused:
                self.demand(label not in names, f"{label} was refused for ever and is there")

    def demand(self, is_kept: bool, what: str) -> None:
        if not is_kept:
            told = f"seed {self.seed}: {what}"
            raise BrokenPromiseError(told)


def accepted_of(stored: list[Record]) -> list[tuple[int, str]]:
    """What every reader must accept: no record of an epoch that was over."""
    highest = 0
    accepted = []
    for sequence, record in enumerate(stored, start=1):
        if record.epoch >= highest:
            highest = record.epoch
            accepted.append((sequence, name_of(record)))
    return accepted


def name_of(record: Record) -> str:
    if record.primary:
        return f"epoch {record.epoch} {record.primary}"
    return record.entries[0].transaction_id


def a_record(epoch: int, sequence: int, label: str) -> bytes:
    return encode_record(Record(FORMAT, epoch, sequence, NO_HASH, 0, "", [Entry(label, [])]))


def an_epoch_record(epoch: int, sequence: int, writer: str) -> bytes:
    return encode_record(Record(FORMAT, epoch, sequence, NO_HASH, 0, writer, []))


def simulate(seed: int, setting: Setting, faults: Faults | None = None) -> Ran[World]:
    async def scenario() -> World:
        world = World(seed, setting, Faults() if faults is None else faults)
        await world.live()
        world.judge()
        return world

    return run(scenario(), seed=seed)


def is_caught(setting: Setting) -> bool:
    """Try seeds until the judge objects."""
    for seed in range(VARIANT_SEEDS):
        try:
            simulate(seed, setting)
        except BrokenPromiseError:
            return True
    return False


@pytest.mark.repeated
@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_doubled_or_taken_back(seed: int) -> None:
    ran = simulate(seed, Setting(writers=2 + seed % 2))

    committed = sum(len(writer.committed) for writer in ran.value.writers)
    assert committed > OPERATIONS // 2, f"seed {seed}: a run in which little happens proves little"


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_is_the_same_history(seed: int) -> None:
    setting = Setting(operations=100)

    assert simulate(seed, setting).trace_hash == simulate(seed, setting).trace_hash


def test_another_seed_is_another_history() -> None:
    setting = Setting(operations=50)

    assert len({simulate(seed, setting).trace_hash for seed in range(5)}) == 5


def test_the_faults_really_happen() -> None:
    worlds = [simulate(seed, Setting(operations=200)).value for seed in range(10)]

    assert sum(len(writer.refused) for world in worlds for writer in world.writers) > 0
    epochs = [
        sum(decode_record(message.raw).primary != "" for message in world.cluster.messages)
        for world in worlds
    ]
    assert sum(epochs) > 3 * len(epochs)


class NoFence(SimCluster):
    def check_fence(self, expected: int) -> None:
        pass


class TrustsEveryAnswer(QuorumLog):
    def _accept(self, flight: Flight, stored: int) -> None:
        self._settle(flight, is_stored=True)


class TakesSilenceForYes(QuorumLog):
    async def _after_silence(self, flight: Flight, attempt: int) -> None:
        self._settle(flight, is_stored=True)


class TakesSilenceForNo(QuorumLog):
    async def _after_silence(self, flight: Flight, attempt: int) -> None:
        self._settle(flight, is_stored=False)


class TakesAbsenceForNo(QuorumLog):
    async def _look(self, flight: Flight) -> None:
        await super()._look(flight)
        self._settle(flight, is_stored=False)


class TakesRefusalForNo(QuorumLog):
    async def _after_refusal(self, flight: Flight) -> None:
        self._settle(flight, is_stored=False)


class NamesOnlyThePlace(QuorumLog):
    def _start(self, flight: Flight) -> None:
        flight.message_id = f"{flight.epoch}.{flight.sequence}"
        super()._start(flight)


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(
            Setting(cluster_class=NoFence, log_class=TrustsEveryAnswer), id="no fence at all"
        ),
        pytest.param(Setting(log_class=TakesSilenceForYes), id="silence taken for yes"),
        pytest.param(Setting(log_class=TakesSilenceForNo), id="silence taken for no"),
        pytest.param(Setting(log_class=TakesAbsenceForNo), id="absence taken for no"),
        pytest.param(Setting(log_class=NamesOnlyThePlace), id="message id without content"),
        pytest.param(Setting(pipelined=4), id="four in flight"),
    ],
)
def test_a_broken_variant_is_caught(setting: Setting) -> None:
    assert is_caught(setting)


def test_a_stream_without_a_fence_is_noticed_by_the_log_itself() -> None:
    with pytest.raises((ChainBrokenError, BrokenPromiseError)):
        simulate(0, Setting(cluster_class=NoFence))


async def open_log(cluster: SimCluster, name: str = "a", *, epoch: int = 1) -> QuorumLog:
    log = QuorumLog(cluster.connect(name), ManualClock(seed=1))
    log.epoch = epoch
    await log.refresh()
    return log


def raws_of(cluster: SimCluster) -> list[bytes]:
    return [message.raw for message in cluster.messages]


def test_pipelining_without_the_guard_opens_the_hole() -> None:
    async def scenario() -> tuple[list[object], list[Record]]:
        cluster = SimCluster(seed=0)
        stale = QuorumLog(cluster.connect("stale"), ManualClock(), one_in_flight=False)
        stale.epoch = 1
        await stale.append(1, an_epoch_record(1, 1, "stale"))
        newer = await open_log(cluster, "newer", epoch=2)
        await newer.append(2, an_epoch_record(2, 2, "newer"))

        ends = await asyncio.gather(
            *(stale.append(place, a_record(1, place, f"late {place}")) for place in (2, 3, 4)),
            return_exceptions=True,
        )
        await stale.close()
        await newer.close()
        return list(ends), [decode_record(message.raw) for message in cluster.messages]

    ends, stored = run(scenario(), seed=0).value

    assert isinstance(ends[0], NotPrimaryError)
    told = [record_hash(a_record(1, place, f"late {place}")) for place in (3, 4)]
    assert ends[1:] == told, "the stale writer was told yes"
    assert [record.epoch for record in stored] == [1, 2, 1, 1]
    assert [name for _, name in accepted_of(stored)] == ["epoch 1 stale", "epoch 2 newer"]


def test_the_guard_allows_one_record_in_flight() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        cluster.leaderless_until = 1.0
        first = asyncio.create_task(log.append(1, b"first"))
        await asyncio.sleep(0.5)

        with pytest.raises(AssertionError, match="one record in flight"):
            await log.append(2, b"second")

        await first
        await log.close()

    run(scenario(), seed=0)


def test_readers_without_the_epoch_filter_are_caught() -> None:
    setting = Setting(cluster_class=NoFence, log_class=TrustsEveryAnswer, filters_epochs=False)

    def told_by(seed: int) -> str:
        with pytest.raises(BrokenPromiseError) as raised:
            simulate(seed, setting)
        return str(raised.value)

    assert any("accepted other records" in told_by(seed) for seed in range(5))


def test_a_lost_answer_is_asked_for_again_and_stored_once() -> None:
    async def scenario() -> list[bytes]:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        cluster.clients[0].cut_off(Cut.ANSWERS, 30.0)

        await log.append(1, b"once")
        await log.close()
        return raws_of(cluster)

    assert run(scenario(), seed=0).value == [b"once"]


async def _outlive_the_dedup_window(log: QuorumLog, cluster: SimCluster) -> None:
    cluster.clients[0].cut_off(Cut.ANSWERS, 1.0)
    appending = asyncio.create_task(log.append(1, b"once"))
    await asyncio.sleep(0.5)
    cluster.clients[0].cut_off(Cut.BOTH, 700.0)
    try:
        await appending
    finally:
        await log.close()


def test_after_the_dedup_window_the_record_itself_tells() -> None:
    async def scenario() -> list[bytes]:
        cluster = SimCluster(seed=0)
        await _outlive_the_dedup_window(await open_log(cluster), cluster)
        return raws_of(cluster)

    ran = run(scenario(), seed=0)

    assert ran.value == [b"once"]
    assert ran.seconds > 600.0


def test_a_refusal_taken_for_no_is_wrong_after_the_dedup_window() -> None:
    async def scenario() -> list[bytes]:
        cluster = SimCluster(seed=0)
        log = TakesRefusalForNo(cluster.connect("a"), ManualClock())
        with pytest.raises(NotPrimaryError):
            await _outlive_the_dedup_window(log, cluster)
        return raws_of(cluster)

    assert run(scenario(), seed=0).value == [b"once"], "it was said never to be there"


def test_a_record_that_lands_late_meets_the_fence() -> None:
    async def scenario() -> list[bytes]:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        other = await open_log(cluster, "other")
        cluster.faults = Faults(slow_chance=1.0, slow_seconds_max=60.0, trouble_seconds=0.0)
        appending = asyncio.create_task(log.append(1, b"late"))
        await asyncio.sleep(0.001)
        cluster.faults = NO_FAULTS

        await other.append(1, b"early")
        with pytest.raises(NotPrimaryError) as raised:
            await appending
        await asyncio.sleep(100.0)

        assert raised.value.code == "NotPrimary"
        await log.close()
        await other.close()
        return raws_of(cluster)

    assert run(scenario(), seed=3).value == [b"early"]


def test_a_lost_quorum_is_told_and_never_guessed() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        told: list[float] = []
        loop = running_loop()
        log = QuorumLog(
            cluster.connect("a"),
            SimClock(loop),
            on_quorum_lost=lambda: told.append(loop.time()),
            quorum_seconds=10.0,
        )
        cluster.leaderless_until = 100.0
        appending = asyncio.create_task(log.append(1, b"one"))
        await asyncio.sleep(50.0)

        assert told == [10.0]
        assert (log.has_quorum, appending.done()) == (False, False)
        with pytest.raises(QuorumLostError):
            await log.append(2, b"two")
        with pytest.raises(QuorumLostError):
            await log.refresh()

        await appending
        assert (log.has_quorum, cluster.last, log.last) == (True, 1, 1)
        await log.append(2, b"two")
        await log.close()

    run(scenario(), seed=0)


def test_closing_leaves_an_open_append_in_doubt() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        cluster.leaderless_until = 100.0
        appending = asyncio.create_task(log.append(1, b"one"))
        await asyncio.sleep(1.0)

        await log.close()

        with pytest.raises(InDoubtError):
            await appending
        with pytest.raises(StateClosedError):
            await log.append(1, b"one")

    run(scenario(), seed=0)


@pytest.mark.parametrize("has_landed", [True, False])
def test_an_abandoned_record_may_be_there_once_and_never_behind_another(has_landed: bool) -> None:
    async def scenario() -> list[bytes]:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        if has_landed:
            cluster.clients[0].cut_off(Cut.ANSWERS, 1.0)
        else:
            cluster.leaderless_until = 1.0
        appending = asyncio.create_task(log.append(1, b"old"))
        await asyncio.sleep(0.5)
        log.abandon()
        with pytest.raises(InDoubtError):
            await appending

        with contextlib.suppress(NotPrimaryError):
            await log.append(1, b"new")
        await log.append(2, b"next")
        await asyncio.sleep(100.0)
        await log.close()
        return raws_of(cluster)

    assert run(scenario(), seed=0).value == [b"old" if has_landed else b"new", b"next"]


def test_a_cancelled_caller_does_not_recall_the_record() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        cluster.leaderless_until = 5.0
        appending = asyncio.create_task(log.append(1, b"one"))
        await asyncio.sleep(1.0)
        appending.cancel()
        await asyncio.sleep(30.0)

        assert appending.cancelled()
        assert log.last == cluster.last == 1
        await log.append(1, b"one")  # the same record again is the same record
        assert cluster.last == 1
        await log.close()

    run(scenario(), seed=0)


def test_a_place_truncated_unread_stays_in_doubt() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        cluster.clients[0].cut_off(Cut.ANSWERS, 1.0)
        appending = asyncio.create_task(log.append(1, b"one"))
        await asyncio.sleep(0.5)
        cluster.clients[0].cut_off(Cut.BOTH, 700.0)
        cluster.purge(2)

        with pytest.raises(InDoubtError):
            await appending
        await log.close()

    run(scenario(), seed=0)


def test_a_sealed_out_writer_learns_that_it_is_not_primary() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        stale = await open_log(cluster, "stale", epoch=1)
        newer = await open_log(cluster, "newer", epoch=2)
        await newer.seal(2)
        await newer.append(1, b"newer")

        with pytest.raises(NotPrimaryError):
            await stale.append(1, b"stale")
        await stale.close()
        await newer.close()

    run(scenario(), seed=0)


def test_a_seal_that_came_late_is_put_right() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster, epoch=2)
        await log.seal(2)
        cluster.seal(1)

        await log.append(1, b"one")
        assert cluster.sealed_epoch == 2
        await log.close()

    run(scenario(), seed=0)


def test_a_higher_seal_turns_a_lower_one_away() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        cluster.seal(7)

        with pytest.raises(NotPrimaryError, match="EpochSealed"):
            await log.seal(6)
        await log.seal(8)
        await log.close()

    run(scenario(), seed=0)


@pytest.mark.parametrize("has_landed", [True, False])
def test_taking_over_anew_settles_what_is_open(has_landed: bool) -> None:
    async def scenario() -> tuple[object, object]:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster, epoch=5)
        if has_landed:
            cluster.clients[0].cut_off(Cut.ANSWERS, 0.5)
        else:
            cluster.leaderless_until = 0.5
        old = asyncio.create_task(log.append(1, b"old"))
        await asyncio.sleep(0.2)
        cluster.seal(6)  # by a candidate that died before it opened its epoch
        await log.seal(7)
        log.epoch = 7

        new = log.append(1, b"epoch 7")
        ends = await asyncio.gather(old, new, return_exceptions=True)
        assert cluster.last == 1
        await log.close()
        return ends[0], ends[1]

    old, new = run(scenario(), seed=0).value

    assert (old == record_hash(b"old")) is has_landed
    assert (new == record_hash(b"epoch 7")) is not has_landed
    assert isinstance(new if has_landed else old, NotPrimaryError)


def test_a_record_that_is_too_large_is_refused_before_it_is_sent() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0, message_bytes_max=10)
        log = await open_log(cluster)
        assert log.record_bytes_max == 10

        with pytest.raises(LimitExceededError, match="RecordTooLarge"):
            await log.append(1, bytes(11))
        assert cluster.last == 0
        await log.append(1, bytes(10))
        await log.close()

    run(scenario(), seed=0)


def test_a_full_stream_refuses_one_append_and_the_log_goes_on_when_there_is_room() -> None:
    async def scenario() -> list[bytes]:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        cluster.is_full = True
        with pytest.raises(StoreFullError):
            await log.append(1, b"one")

        cluster.is_full = False
        await log.append(1, b"two")
        await log.close()
        return raws_of(cluster)

    assert run(scenario(), seed=0).value == [b"two"]


def test_a_full_stream_does_not_tell_what_became_of_an_earlier_attempt() -> None:
    async def scenario() -> float:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        cluster.leaderless_until = 1.0
        appending = asyncio.create_task(log.append(1, b"one"))
        await asyncio.sleep(0.5)
        cluster.is_full = True
        await asyncio.sleep(60.0)
        cluster.is_full = False

        await appending
        await log.close()
        return running_loop().time()

    assert run(scenario(), seed=0).value > 60.0


def test_reading_ends_at_the_end_and_following_at_the_close() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        for sequence in (1, 2, 3):
            await log.append(sequence, bytes([sequence]))
        followed: list[int] = []

        async def follow() -> None:
            followed.extend([sequence async for sequence, _ in log.follow(2)])

        following = asyncio.create_task(follow())
        assert [found async for found in log.read_from(2)] == [(2, b"\x02"), (3, b"\x03")]
        assert [found async for found in log.read_from(4)] == []
        await log.truncate(3)
        assert (log.first, log.last) == (3, 3)
        with pytest.raises(NotReadableError):
            await anext(log.read_from(2))
        await asyncio.sleep(1.0)
        await log.close()
        await following
        assert followed == [2, 3]

    run(scenario(), seed=0)


@pytest.mark.parametrize("how", [Cut.BOTH, Cut.REQUESTS, Cut.NODE])
def test_a_cut_ends_by_itself(how: Cut) -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        log = await open_log(cluster)
        cluster.clients[0].cut_off(how, 20.0)

        await log.append(1, b"one")
        await log.close()

    assert 20.0 <= run(scenario(), seed=0).seconds < 30.0


def test_a_node_that_is_cut_off_shows_the_past_for_a_while() -> None:
    async def scenario() -> None:
        cluster = SimCluster(seed=0)
        cut_off: SimStream = cluster.connect("cut off")
        other = await open_log(cluster, "other")
        cut_off.cut_off(Cut.NODE, 60.0)
        await asyncio.sleep(0.1)
        await other.append(1, b"one")

        assert await cut_off.bounds(timeout=1.0) == (1, 0)
        assert await cut_off.get(1, timeout=1.0) is None
        await asyncio.sleep(7.0)
        with pytest.raises(NoAnswer):
            await cut_off.bounds(timeout=1.0)
        await asyncio.sleep(60.0)
        assert await cut_off.bounds(timeout=1.0) == (1, 1)
        await other.close()

    run(scenario(), seed=0)


def test_a_register_expires_and_compares() -> None:
    async def scenario() -> None:
        stream = SimCluster(seed=0, register_seconds=3.0).connect("a")
        revision = await stream.write_register("lease/0", b"a", revision=0, timeout=1.0)
        assert revision is not None
        assert await stream.write_register("lease/0", b"b", revision=0, timeout=1.0) is None
        await asyncio.sleep(2.0)
        renewed = await stream.write_register("lease/0", b"a", revision=revision, timeout=1.0)
        assert renewed is not None
        await asyncio.sleep(2.0)
        assert await stream.list_registers("lease/", timeout=1.0) == {
            "lease/0": Register(b"a", renewed)
        }
        await asyncio.sleep(1.5)
        assert await stream.read_register("lease/0", timeout=1.0) is None
        assert await stream.write_register("lease/0", b"b", revision=0, timeout=1.0) is not None

    run(scenario(), seed=0)
