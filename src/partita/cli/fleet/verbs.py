"""`partita fleet init` and `status`: the databases of a fleet, and its state."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator

import msgspec

from partita.cli.fleet.changes import job_table, shard_table
from partita.cli.fleet.opening import catalog_url, durability_of
from partita.cli.kit.commands import Given
from partita.cli.kit.facts import Facts, Line, Table
from partita.errors import ConfigurationError, PartitaError, ShardExistsError
from partita.scaleout.connections.checks import judge
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.control.control import Control
from partita.scaleout.control.states import JobState, ShardState
from partita.scaleout.schema import versions
from partita.scaleout.schema.install import find_version, install
from partita.storage.durability import Durability
from partita.ticks import TICKS_PER_SECOND

_COUNTS = """
SELECT (SELECT count(*) FROM partita.account) AS accounts,
       (SELECT count(*) FROM partita.tables) AS tables,
       (SELECT count(*) FROM partita.queue) AS queues,
       (SELECT count(*) FROM partita.range) AS ranges,
       (SELECT count(*) FROM partita.dropped_table WHERE purged_at IS NULL) AS dropped_tables
"""
_FRONT_ENDS = """
SELECT name, slot, (partita.ticks_1() - seen_at) AS unseen FROM partita.front_end
 ORDER BY seen_at DESC
"""


class Prepared(Facts, frozen=True):
    """A database whose schema was created, upgraded, or was up to date."""

    url: str
    version: str
    previous: str | None
    role: str | None
    is_role_new: bool
    shards: tuple[ShardState, ...] = ()
    """Those that were added."""

    def lines(self) -> Iterator[Line]:
        if self.previous is None:
            yield f"{self.url} has the schema of Partita now, version {self.version}."
        elif self.previous == self.version:
            yield f"{self.url} is up to date, version {self.version}."
        else:
            yield f"{self.url} was upgraded from version {self.previous} to {self.version}."
        if self.role is not None:
            yield f"The role {self.role} may do what front ends need, and nothing else."
        if self.is_role_new:
            yield f"It is new and cannot log in: ALTER ROLE {self.role} LOGIN PASSWORD '...'"
        for shard in self.shards:
            yield f"{shard.name} ({shard.url}) is a shard of the fleet now."


class ServerCheck(msgspec.Struct, frozen=True):
    """One fact of the server."""

    name: str
    found: str
    verdict: str
    """`accepted`, `refused`, or `fast only`: refused without `--durability fast`."""


class FrontEnd(msgspec.Struct, frozen=True):
    """One front end that was seen in the last hour."""

    name: str
    slot: int | None
    seen_seconds_ago: float


class Status(Facts, frozen=True):
    """What `partita fleet status` found."""

    url: str
    version: str | None
    needed_version: str
    is_usable: bool
    checks: list[ServerCheck]
    front_ends: list[FrontEnd]
    counts: dict[str, int]
    shards: list[ShardState]
    jobs: list[JobState]

    @property
    def exit_status(self) -> int:
        refused = any(each.verdict != "accepted" for each in self.checks)
        is_away = any(not each.is_reachable for each in self.shards)
        return 1 if refused or is_away or not self.is_usable else 0

    def lines(self) -> Iterator[Line]:
        yield f"{self.url}: schema {self.version or 'not installed'}, needed {self.needed_version}"
        if not self.is_usable:
            yield "Run `partita fleet init` before front ends of this version."
        yield Table(
            ("check", "found", "verdict"),
            [(each.name, each.found, each.verdict) for each in self.checks],
        )
        if self.version is None:
            return
        yield "  ".join(f"{name.replace('_', ' ')}: {count}" for name, count in self.counts.items())
        yield Table(
            ("front end", "slot", "seen (s ago)"),
            [(each.name, each.slot, f"{each.seen_seconds_ago:.0f}") for each in self.front_ends],
        )
        yield shard_table(self.shards)
        if self.jobs:
            yield job_table(self.jobs)


def init(given: Given) -> Prepared:
    url = catalog_url(given)
    say = None if given.json else lambda step: print(f"partita: {step}", file=sys.stderr)
    done = asyncio.run(install(url, role=given.role, progress=say))
    shards = asyncio.run(_add(given, url)) if given.shard else ()
    return Prepared(
        str(Location.parse(url)),
        _text(done.version),
        None if done.previous is None else _text(done.previous),
        done.role,
        done.is_role_new,
        shards,
    )


async def _add(given: Given, url: str) -> tuple[ShardState, ...]:
    """Add the shards that the fleet does not have; the ranges of the catalog's database move away.

    The role of front ends gets what it needs on all shards.
    """
    control = await Control.open(url, durability=durability_of(given))
    try:
        added = []
        for each in given.shard:
            with contextlib.suppress(ShardExistsError):
                added.append(await control.add_shard(each))
        await control.upgrade(role=given.role)
        home = (await control.shards())[0]
        await control.drain(home.name)
    finally:
        await control.close()
    return tuple(added)


def status(given: Given) -> Status:
    return asyncio.run(_status(Location.parse(catalog_url(given))))


async def _status(location: Location) -> Status:
    connector = Connector(location, Durability.FAST)
    link = await connector.connect_unchecked()
    try:
        checks = [*_judged(link), await _locks(connector, link)]
        version = await find_version(link)
        known = version is not None and version[0] == versions.MAJOR
        is_usable = version is not None and versions.is_usable(version)
        can_open = is_usable and all(each.verdict != "refused" for each in checks)
        shards, jobs = await _shards(location) if can_open else ([], [])
        return Status(
            str(location),
            None if version is None else _text(version),
            _text((versions.MAJOR, versions.MINOR)),
            is_usable,
            checks,
            await _front_ends(link) if known else [],
            dict((await link.read(_COUNTS))[0]) if known else {},
            shards,
            jobs,
        )
    finally:
        await link.close()


async def _shards(location: Location) -> tuple[list[ShardState], list[JobState]]:
    control = await Control.open(location.url, durability=Durability.FAST)
    try:
        return await control.shards(), await control.jobs()
    finally:
        await control.close()


def _judged(link: Link) -> Iterator[ServerCheck]:
    fast = {each.name: each for each in judge(link.facts, Durability.FAST)}
    for each in judge(link.facts, Durability.FULL):
        refused = "refused" if fast[each.name].error else "fast only"
        yield ServerCheck(each.name, each.found, refused if each.error else "accepted")


async def _locks(connector: Connector, link: Link) -> ServerCheck:
    try:
        await connector.check_locks(link)
    except ConfigurationError:
        return ServerCheck("advisory_locks", "ignored", "refused")
    except PartitaError as error:
        return ServerCheck("advisory_locks", error.code, "refused")
    return ServerCheck("advisory_locks", "work", "accepted")


async def _front_ends(link: Link) -> list[FrontEnd]:
    return [
        FrontEnd(row["name"], row["slot"], row["unseen"] / TICKS_PER_SECOND)
        for row in await link.read(_FRONT_ENDS)
    ]


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
