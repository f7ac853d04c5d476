"""The shards of the fleet: add one, drain and remove one, upgrade all, make restore points.

To add a shard is a job, too: its number and identity are recorded before the database gets them,
so that a database which has them belongs to this fleet, and the catalog lists it as the last step.
"""

import asyncio
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import parse_qsl, urlencode

import msgspec

from partita.errors import (
    ConfigurationError,
    ShardExistsError,
    ShardInUseError,
    UnavailableError,
)
from partita.scaleout.catalog.shards import HOME, Shard, connector_of
from partita.scaleout.connections.link import Connector, Link
from partita.scaleout.connections.location import Location
from partita.scaleout.connections.pool import Pool
from partita.scaleout.connections.session import DriverError, translated
from partita.scaleout.control.jobs import HeldJob, open_session, opened_together
from partita.scaleout.control.looking import Looking
from partita.scaleout.control.range_copy import written
from partita.scaleout.schema.install import Installed, install
from partita.scaleout.schema.locks import JOB_LOCKS, MARK_JOB
from partita.ticks import Clock

NAME_CHARACTERS_MAX = 63
MARK_SECONDS_MAX = 30.0
"""How long restore points wait for moves that close a range."""

_SECRET_PARAMETERS = ("password", "passfile", "sslpassword", "user")
_NAME = re.compile(rf"[a-z0-9][a-z0-9._-]{{0,{NAME_CHARACTERS_MAX - 1}}}", re.ASCII)

_NEW_ID = """
SELECT setval('partita.shard_id', greatest(
  nextval('partita.shard_id'), (SELECT max(s.id) + 1 FROM partita.shard s)))::int AS id
"""
_IDENTITY = "SELECT identity FROM partita.shard_own"
_BECOME = "SELECT partita.become_shard_1($1, $2) AS is_done"
_LIST = "SELECT partita.list_shard_1($1, $2, $3, $4)"
_DRAIN = "SELECT partita.drain_shard_1($1)"
_REMOVE = "SELECT ranges, jobs FROM partita.remove_shard_1($1)"
_LOCK_MARK = f"SELECT pg_try_advisory_lock({JOB_LOCKS}, {MARK_JOB}) AS is_taken"
_LOCK_TABLES = "LOCK TABLE partita.tables, partita.queue IN SHARE MODE"
_POINT = "SELECT pg_create_restore_point($1)::text AS place"


class AddedShard(msgspec.Struct, frozen=True):
    """The record of a shard that is added."""

    id: int
    name: str
    url: str
    identity: str
    ranges: list[int] = []
    shards: list[int] = []


class Membership:
    """Adds and removes shards for one session of `Control`."""

    def __init__(self, home: Connector, catalog: Pool, looking: Looking, clock: Clock) -> None:
        self._home = home
        self._catalog = catalog
        self._looking = looking
        self._clock = clock

    async def prepare(self, url: str, name: str | None) -> AddedShard:
        """Install the schema on a database, check it, and choose what it becomes."""
        known = await self._looking.shards()
        if name is not None:
            _check_name(name, known)
        await install(url)
        location = without_password(url)
        shard = Shard(-1, name or "", location, is_open=True, identity=uuid.UUID(int=0))
        connector = connector_of(shard, self._home)
        connector.identity = None
        link = await connector.connect()
        try:
            ((identity,),) = await link.read(_IDENTITY)
        finally:
            await link.close()
        for each in known:
            if each.identity == identity:
                raise ShardExistsError(
                    "ShardExists",
                    "The database is a shard of this fleet.",
                    facts={"shard": each.name},
                    hint="Give the URL of another database.",
                )
        ((number,),) = await self._catalog.write(_NEW_ID)
        facts = AddedShard(number, name or f"shard-{number}", location, self._clock.new_id())
        _check_name(facts.name, known)
        return facts

    async def add(self, held: HeldJob) -> bool:
        """Make a database a shard, as recorded."""
        facts = msgspec.convert(held.job.facts, AddedShard)
        identity = uuid.UUID(facts.identity)
        connector = connector_of(
            Shard(facts.id, facts.name, facts.url, is_open=True, identity=identity), self._home
        )
        connector.identity = None  # it does not have it yet
        link = await open_session(connector)
        try:
            rows = await written(link, _BECOME, facts.id, identity)
        finally:
            await link.close()
        if not rows[0]["is_done"]:
            await held.finish()
            raise ShardInUseError(
                "DatabaseNotEmpty",
                "The database has accounts, tables or ranges, or belongs to another fleet.",
                facts={"database": str(connector.location)},
                hint="Give an empty database.",
            )
        await held.write(_LIST, facts.id, facts.name, facts.url, identity)
        await held.finish()
        return True

    async def start_draining(self, shard: Shard) -> None:
        await self._catalog.write(_DRAIN, shard.id)

    async def remove(self, shard: Shard) -> None:
        """Forget a shard that has nothing any more."""
        if shard.id == HOME or shard.is_open:
            raise ShardInUseError(
                "ShardInUse",
                "The database of the catalog cannot be removed."
                if shard.id == HOME
                else "Only a shard that is draining can be removed.",
                facts={"shard": shard.name},
                hint="It can be drained: then it has no ranges."
                if shard.id == HOME
                else f"Run `partita fleet drain {shard.name}` first.",
            )
        ((ranges, jobs),) = await self._catalog.write(_REMOVE, shard.id)
        if ranges or jobs:
            raise ShardInUseError(
                "ShardInUse",
                "The shard still has ranges, or jobs that change them.",
                facts={"shard": shard.name, "ranges": ranges, "jobs": jobs},
                hint=f"Run `partita fleet drain {shard.name}` again. Ranges of dropped tables go"
                " when a front end has closed them there.",
            )

    async def upgrade(
        self, role: str | None, progress: Callable[[str, str], None] | None
    ) -> Mapping[str, Installed]:
        """Bring the schema of the catalog and of all shards up to date, one after the other."""
        done: dict[str, Installed] = {}
        for shard in [None, *await self._looking.shards()]:
            if shard is not None and shard.id == HOME:
                continue
            name = "catalog" if shard is None else shard.name
            connector = self._home if shard is None else connector_of(shard, self._home)

            def report(step: str, name: str = name) -> None:
                if progress is not None:
                    progress(name, step)

            done[name] = await install(connector.location.url, role=role, progress=report)
        return done

    async def mark(self, name: str) -> Mapping[str, str]:
        """Make a restore point of this name on the catalog and all shards.

        Return the place in the log of each. Meanwhile no range changes its owner, and no table or
        queue is created or dropped, so that restoring all of them to the point gives one state of
        the fleet.
        """
        _check_point(name)
        shards = await self._looking.shards()
        connectors = (self._home, *(connector_of(each, self._home) for each in shards))
        opened = await opened_together(open_session(each) for each in connectors)
        links = [each for each in opened if isinstance(each, Link)]
        try:
            for each in opened:
                if isinstance(each, BaseException):
                    raise each
            guard, *others = links
            loop = asyncio.get_running_loop()
            until = loop.time() + MARK_SECONDS_MAX
            while not (await guard.read(_LOCK_MARK))[0]["is_taken"]:
                if loop.time() >= until:
                    raise _marks_busy()
                await asyncio.sleep(0.05)
            async with guard.transaction():
                await guard.read(_LOCK_TABLES)
                points = await asyncio.gather(*(link.read(_POINT, name) for link in others))
        except DriverError as error:
            raise translated(error) from error
        finally:
            for link in links:
                await link.close()
        return {shard.name: rows[0]["place"] for shard, rows in zip(shards, points, strict=True)}


def without_password(url: str) -> str:
    """Return a URL as the catalog keeps it: with a password, its user is left out, too.

    >>> without_password("postgresql://ada:secret@db/partita?password=x&sslmode=require")
    'postgresql://db/partita?sslmode=require'
    >>> without_password("postgresql://ada@db/partita")
    'postgresql://ada@db/partita'
    """
    url, _, parameters = Location.parse(url).url.partition("?")
    scheme, _, rest = url.partition("://")
    hosts, slash, database = rest.partition("/")
    user, _, hosts = hosts.rpartition("@")
    kept = [pair for pair in parse_qsl(parameters) if pair[0] not in _SECRET_PARAMETERS]
    parts = [scheme, "://", user + "@" if user and ":" not in user else "", hosts, slash, database]
    return "".join(parts) + ("?" + urlencode(kept) if kept else "")


def _check_name(name: str, known: Sequence[Shard]) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "Configuration",
            f"The name of a shard has 1 to {NAME_CHARACTERS_MAX} small letters, digits, '.', '_' or"
            " '-', and begins with a letter or digit.",
            facts={"name": name},
            hint="Choose another name.",
        )
    if any(shard.name == name for shard in known):
        raise ShardExistsError(
            "ShardExists",
            "The fleet has a shard of this name.",
            facts={"shard": name},
            hint="Choose another name.",
        )


def _check_point(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            "Configuration",
            f"The name of a restore point has 1 to {NAME_CHARACTERS_MAX} small letters, digits,"
            " '.', '_' or '-', and begins with a letter or digit.",
            facts={"name": name},
            hint="Choose another name.",
        )


def _marks_busy() -> UnavailableError:
    return UnavailableError(
        "MoveRunning",
        "A move closes a range at present.",
        hint="Try again; this takes some seconds at most.",
    )
