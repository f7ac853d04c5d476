"""The fleet: its shards, ranges and changes; split, merge, move and drain.

A fleet belongs to no account, so that no account must be unlocked; a console that is read-only
changes nothing. Clients notice none of these changes.
"""

import msgspec

from partita.console.calls import Answer, Call, Confirmation, Route
from partita.console.sources.fleets import ShardFleet
from partita.errors import ConfigurationError

NO_ACCOUNT = "-"
"""The account of a job that belongs to none."""


class SplitAsked(msgspec.Struct, forbid_unknown_fields=True):
    account: str
    table: str
    at: str
    """The first partition key of the second range."""


class MergeAsked(msgspec.Struct, forbid_unknown_fields=True):
    first: int
    second: int


class MoveAsked(msgspec.Struct, forbid_unknown_fields=True):
    range: int
    to: str
    """The name of the shard that gets it."""


def _fleet(call: Call) -> ShardFleet:
    if call.services.fleet is None:
        raise ConfigurationError(
            "ConsoleFleetMissing",
            "This console has no fleet to show.",
            hint="Start it with `partita console --fleet URL`, the URL of the catalog.",
        )
    return call.services.fleet


def _writable(call: Call) -> ShardFleet:
    fleet = _fleet(call)
    call.services.check_fleet_writable()
    return fleet


async def show(call: Call) -> Answer:
    """Return shards, ranges, changes that are under way, and what the balancer would do."""
    return await _fleet(call).read()


async def split(call: Call) -> Answer:
    """Divide a range in two; nothing is moved."""
    fleet, asked = _writable(call), call.decode(SplitAsked)
    return {"ranges": await fleet.split(asked.table, asked.account, asked.at)}


async def merge(call: Call) -> Answer:
    """Join two neighbours of one shard."""
    fleet, asked = _writable(call), call.decode(MergeAsked)
    return {"range": await fleet.merge(asked.first, asked.second)}


async def move(call: Call) -> Answer:
    """Start a job that carries a range to another shard."""
    fleet, asked = _writable(call), call.decode(MoveAsked)
    jobs, title = call.services.jobs, f"Move range {asked.range} to {asked.to}"
    job = jobs.start("move", NO_ACCOUNT, title, lambda job: fleet.move(job, asked.range, asked.to))
    return job.shown(jobs.now())


async def drain(call: Call) -> Answer:
    """Start a job that moves all ranges of a shard to the others."""
    fleet, name = _writable(call), call.arguments["shard"]
    call.confirmed("shard", Confirmation)
    jobs = call.services.jobs
    job = jobs.start("drain", NO_ACCOUNT, f"Drain {name}", lambda job: fleet.drain(job, name))
    return job.shown(jobs.now())


ROUTES = (
    Route("GET", "/api/v1/fleet", show),
    Route("POST", "/api/v1/fleet/split", split),
    Route("POST", "/api/v1/fleet/merge", merge),
    Route("POST", "/api/v1/fleet/move", move),
    Route("POST", "/api/v1/fleet/shards/{shard}/drain", drain),
)
