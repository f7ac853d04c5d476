"""`partita fleet balance`, `control` and `hot`: what the balancer would do, does, and cannot do."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence

import msgspec

from partita.cli.fleet.opening import catalog_url, durability_of
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, Table, show
from partita.clock import SystemClock
from partita.scaleout.balancing.deciding import Action, Decision, Notice
from partita.scaleout.balancing.limits import HOT_KEY_LOAD
from partita.scaleout.balancing.picture import Picture, RangeLoad
from partita.scaleout.balancing.running import Balancer, Done, balance_forever
from partita.scaleout.control.states import ThrottleState


class ShardShare(msgspec.Struct, frozen=True):
    """The load of one shard."""

    name: str
    ranges: int
    load: float
    """In point reads per second."""
    part: float
    """Of its capacity."""


class Balance(Facts, frozen=True):
    """One round of the balancer."""

    is_applied: bool
    shards: list[ShardShare]
    actions: list[Action]
    notices: list[Notice]
    failed: list[str]

    @property
    def exit_status(self) -> int:
        return 1 if self.failed else 0

    def lines(self) -> Iterator[Line]:
        yield Table(
            ("shard", "ranges", "load (reads/s)", "of its capacity"),
            [
                (each.name, each.ranges, f"{each.load:,.0f}", f"{each.part:.0%}")
                for each in self.shards
            ],
        )
        would = "" if self.is_applied else "would "
        for action in self.actions:
            yield f"{would}{action.title}: {action.reason}"
        if not self.actions:
            yield "Nothing is to be done."
        for notice in self.notices:
            yield notice.text
        yield from self.failed
        if self.actions and not self.is_applied:
            yield "This was a dry run: --apply does it."


class HotPartition(msgspec.Struct, frozen=True):
    """A partition with much of the load of a shard: it cannot be divided."""

    account: str
    table: str
    partition_key: str
    shard: str
    range: int
    load: float
    part: float
    """Of the capacity of a shard."""
    share: float
    """Of the load of its range."""
    limit: float | None = None
    """Entities per second, if it is throttled."""


class HotPartitions(Facts, frozen=True):
    """The partitions that a split does not help."""

    partitions: list[HotPartition]

    @property
    def as_value(self) -> object:
        return self.partitions

    def lines(self) -> Iterator[Line]:
        if not self.partitions:
            yield "No partition has much of the load of a shard."
            return
        yield Table(
            (
                *("table", "partition key", "shard", "range", "reads/s", "of a shard"),
                *("of its range", "limit"),
            ),
            [
                (
                    *(each.table, each.partition_key, each.shard, each.range),
                    *(f"{each.load:,.0f}", f"{each.part:.0%}", f"{each.share:.0%}", each.limit),
                )
                for each in self.partitions
            ],
        )
        yield (
            "One partition is on one shard: divide its entities over several partition keys."
            " `partita fleet throttle` limits its rate meanwhile."
        )


def balance(given: Given) -> Balance:
    async def work() -> Balance:
        balancer = await _opened(given)
        try:
            if given.apply:
                await balancer.resume()
            picture, found = await balancer.decide_once()
            done = await balancer.perform(found) if given.apply else []
        finally:
            await balancer.close()
        failed = [_failure(each) for each in done if each.error]
        return Balance(given.apply, _shares(picture), found.actions, found.notices, failed)

    return asyncio.run(work())


def hot(given: Given) -> HotPartitions:
    async def work() -> HotPartitions:
        balancer = await _opened(given)
        try:
            picture, _round = await balancer.decide_once()
            return hot_partitions(picture, await balancer.throttles())
        finally:
            await balancer.close()

    return asyncio.run(work())


def hot_partitions(picture: Picture, limited: Sequence[ThrottleState] = ()) -> HotPartitions:
    """Return the partitions with much load, the hottest first."""
    rates = {(each.account, each.table, each.partition_key): each.rate for each in limited}
    hottest = sorted(picture.ranges, key=_key_load, reverse=True)
    return HotPartitions(
        [
            HotPartition(
                *(each.account, each.table, each.hot_key, each.shard, each.id),
                round(_key_load(each), 1),
                round(_key_load(each) / picture.capacity, 4),
                round(each.hot_share, 4),
                rates.get((each.account, each.table, each.hot_key)),
            )
            for each in hottest
            if each.hot_key is not None and _key_load(each) > HOT_KEY_LOAD * picture.capacity
        ]
    )


def control(given: Given) -> int:
    """Balance until a signal comes."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        clock = SystemClock()
        running = asyncio.ensure_future(
            balance_forever(
                catalog_url(given),
                clock,
                _tell,
                lambda done, found: _report(done, found, is_json=given.json),
                durability=durability_of(given),
                capacity=given.capacity,
            )
        )
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running

    asyncio.run(work())
    return 0


class Performed(Facts, frozen=True):
    """What one round of the balancer did."""

    done: list[Done]
    notices: list[Notice]

    def lines(self) -> Iterator[Line]:
        for each in self.done:
            yield f"{each.action.title}: {each.error or each.action.reason}"
        for notice in self.notices:
            yield notice.text


def _report(done: list[Done], found: Decision, *, is_json: bool) -> None:
    notices = [each for each in found.notices if each.kind != "waiting"]
    if done or notices:
        show(Performed(done, notices), is_json=is_json)


def _tell(text: str) -> None:
    print(f"partita: {text}", file=sys.stderr, flush=True)


async def _opened(given: Given) -> Balancer:
    return await Balancer.open(
        catalog_url(given),
        SystemClock(),
        durability=durability_of(given),
        capacity=given.capacity,
    )


def _shares(picture: Picture) -> list[ShardShare]:
    shares = []
    for shard in picture.shards:
        found = [each for each in picture.ranges if each.shard == shard.name]
        load = sum(each.load for each in found)
        part = round(load / picture.capacity, 4)
        shares.append(ShardShare(shard.name, len(found), round(load, 1), part))
    return shares


def _failure(done: Done) -> str:
    return f"could not {done.action.title}: {done.error}"


def _key_load(each: RangeLoad) -> float:
    return each.load * each.hot_share
