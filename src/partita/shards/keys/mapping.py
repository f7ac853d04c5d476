"""The values of a shard map: locations, shards and mappings.

A Location contains no secrets: users, passwords and tokens are removed when it is created from a
URL, so that catalogs, errors and logs can show it. All values are frozen; a changed mapping is a
new value with a new id.
"""

import enum
import re
from collections.abc import Callable
from collections.abc import Mapping as Dictionary
from pathlib import PurePosixPath
from typing import Any, Protocol
from urllib.parse import parse_qsl, quote, unquote, urlencode

import msgspec

from partita.errors import ConfigurationError, DamageError, TransactionUseError
from partita.shards.keys.ranges import KeyRange, Range

LOCATION_TEXT_MAX = 2048
"""The maximum length of the text of a location."""
PORT_MAX = 65_535

_SECRET_NAMES = frozenset(("user", "username", "uid", "passfile", "key", "hexkey"))
_SECRET_PARTS = re.compile(
    r"passw(or)?d|pwd|passphrase|secret|token|credential|authorization|api_?key|access_?key"
    r"|private_?key|scram_(client|server)_key"
)
_OPAQUE_NAMES = frozenset(("odbc_connect", "dsn", "conninfo"))
"""Options that are connection strings, which may contain a password."""
_DEFAULT_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "mssql": 1433, "oracle": 1521}
_DIALECT = re.compile(r"\w+(\+\w+)?")
_HOST = re.compile(r"[^\s/?#@\[\]]*")
_TEXT = re.compile(
    r"(?P<dialect>[^:/]+)://(?:\[(?P<ipv6>[^\]]+)\]|(?P<host>[^/:?]*))(?::(?P<port>\d+))?"
    r"/(?P<database>[^?]*)(?:\?(?P<options>.*))?"
)


class UrlParts(Protocol):
    """The parts of a URL from which a Location is created; sqlalchemy.engine.URL has them."""

    @property
    def drivername(self) -> str: ...
    @property
    def host(self) -> str | None: ...
    @property
    def port(self) -> int | None: ...
    @property
    def database(self) -> str | None: ...
    @property
    def query(self) -> Dictionary[str, str | tuple[str, ...]]: ...


class Location(msgspec.Struct, frozen=True):
    """Where a database is, without credentials. Hosts are compared case-insensitively."""

    dialect: str
    """With the driver, if the URL named one: `postgresql+psycopg`."""
    host: str = ""
    port: int | None = None
    database: str = ""
    options: tuple[tuple[str, str], ...] = ()
    """The other parts of the URL that are not secret, sorted by name."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "host", self.host.lower())
        # Only the order of values with the same name matters (a list of hosts).
        options = tuple(sorted(self.options, key=lambda option: option[0]))
        msgspec.structs.force_setattr(self, "options", options)

    @classmethod
    def from_url(cls, url: UrlParts, *, relative_to: str = "") -> "Location":
        """Return the location of a URL, without user, password and tokens.

        The relative path of a SQLite file is resolved against the folder `relative_to`. Without
        that folder it is refused, because its meaning depends on the process.
        """
        if url.drivername.partition("+")[0] == "sqlite":
            return _sqlite_location(url, relative_to)
        host, options = url.host or "", _options(url.query)
        if host.startswith("/"):
            # In a URL, the path of a socket must be an option.
            host, options = "", [*options, ("host", host)]
        location = cls(url.drivername, host, url.port, url.database or "", tuple(options))
        return _checked(location)

    @classmethod
    def from_text(cls, text: str) -> "Location":
        """Return the location with this text."""
        match = _TEXT.fullmatch(text)
        if match is None:
            raise DamageError(
                "StoreDamaged",
                "A stored location is damaged.",
                facts={"characters": len(text)},
                hint="Compare the catalogs with `partita shards recover` before any change.",
            )
        return cls(
            match["dialect"],
            match["ipv6"] or match["host"] or "",
            int(match["port"]) if match["port"] else None,
            unquote(match["database"]),
            tuple(parse_qsl(match["options"] or "")),
        )

    @property
    def backend(self) -> str:
        """The dialect without its driver: `postgresql`."""
        return self.dialect.partition("+")[0]

    @property
    def text(self) -> str:
        """The canonical form of this location: a URL for SQLAlchemy, without secrets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port is None else f":{self.port}"
        options = urlencode(self.options)
        database = quote(self.database, safe="/")
        return f"{self.dialect}://{host}{port}/{database}" + (f"?{options}" if options else "")

    def url(self) -> str:
        """Return the URL for sqlalchemy.create_engine; the caller must add credentials."""
        return self.text

    @property
    def identity(self) -> str:
        """Equal for all locations of one database: without driver and options, with the port."""
        named = dict(self.options)
        hosts = [_folded(value) for name, value in self.options if name == "host"] or [self.host]
        port = self.port or named.get("port") or _DEFAULT_PORTS.get(self.backend, "")
        database = self.database or named.get("dbname", "")
        if self.backend == "sqlite":
            return f"sqlite://{_path_of(database)}"
        return f"{self.backend}://{','.join(hosts)}:{port}/{database}" + _service(named)

    def __str__(self) -> str:
        return self.text


class ShardStatus(enum.Enum):
    """Whether the shard accepts new mappings; existing ones have a status of their own."""

    ONLINE = "online"
    OFFLINE = "offline"


class MappingStatus(enum.Enum):
    """Whether the keys of the mapping can be routed."""

    ONLINE = "online"
    OFFLINE = "offline"


class Shard(msgspec.Struct, frozen=True, eq=False):
    """One database of a shard map; the same id is the same shard."""

    id: str
    map_name: str
    location: Location
    version: str = ""
    status: ShardStatus = ShardStatus.ONLINE
    opens: Callable[[Location], Any] | None = None
    """Opens a connection; set when the shard is read from a catalog."""

    def connect(self) -> Any:
        """Return an unrouted connection, which is not validated."""
        if self.opens is None:
            raise TransactionUseError(
                "ShardNotAttached",
                "The shard was not read from a catalog, so it cannot be connected to.",
                facts={"shard": self.location.text},
                hint="Get the shard from its map: shards(), get_shard(), get(key).shard.",
            )
        return self.opens(self.location)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Shard) and self.id == other.id

    def __ne__(self, other: object) -> bool:
        # The inherited one would compare by identity.
        return not self == other

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self) -> tuple[Any, ...]:
        # `opens` is not pickled.
        return Shard, (self.id, self.map_name, self.location, self.version, self.status)

    def __repr__(self) -> str:
        return f"Shard({self.location.text!r}, id={self.id!r}, status={self.status.value!r})"


class Mapping(msgspec.Struct, frozen=True):
    """A range of keys (or one key) and the shard that owns it."""

    id: str
    """Changes with every change of the mapping, so an old id is stale."""
    map_name: str
    shard: Shard
    key_range: KeyRange
    range: Range
    status: MappingStatus = MappingStatus.ONLINE
    lock_owner: str | None = None

    @property
    def is_online(self) -> bool:
        return self.status is MappingStatus.ONLINE

    @property
    def key(self) -> Any:
        """The key of a list map's mapping; None for a range."""
        return self.range.low if self.range.is_point else None


def _sqlite_location(url: UrlParts, relative_to: str) -> Location:
    database, options = url.database or "", _options(url.query)
    if url.host:
        raise _refused("A SQLite URL has no host.", "Write three slashes: sqlite:///file.db.")
    is_in_memory = ("mode", "memory") in options or ":memory:" in database
    if not _path_of(database) or is_in_memory:
        raise _refused(
            "An in-memory database cannot be a shard or a catalog.",
            "Name a file: sqlite:////folder/file.db.",
        )
    path = _absolute(_path_of(database), relative_to)
    if database.startswith("file:"):
        path = "file:" + quote(path)
    return _checked(Location(url.drivername, "", None, path, tuple(options)))


def _path_of(database: str) -> str:
    if not database.startswith("file:"):
        return database
    path = database.removeprefix("file:").removeprefix("//localhost").removeprefix("//")
    return unquote(path)


def _absolute(path: str, relative_to: str) -> str:
    if path.startswith("/"):
        return "/" + str(PurePosixPath(path)).lstrip("/")
    if not relative_to:
        raise _refused(
            "The path of the SQLite file is relative.",
            "Write the absolute path, with four slashes: sqlite:////folder/file.db.",
        )
    return str(PurePosixPath(relative_to) / path)


def _options(query: Dictionary[str, str | tuple[str, ...]]) -> list[tuple[str, str]]:
    kept: list[tuple[str, str]] = []
    for name, given in query.items():
        if name.lower() in _OPAQUE_NAMES:
            message = f"The option {name} is a connection string, which may contain a password."
            raise _refused(
                message,
                "Write host, port, database and options as parts of the URL.",
            )
        if not _is_secret(name):
            values = (given,) if isinstance(given, str) else given
            kept += [(name, value) for value in values if value]
    return kept


def _is_secret(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return plain in _SECRET_NAMES or _SECRET_PARTS.search(plain) is not None


def _checked(location: Location) -> Location:
    named = dict(location.options)
    if not _DIALECT.fullmatch(location.dialect):
        raise _refused("The URL has no valid dialect.", "Begin the URL with postgresql://.")
    if not _HOST.fullmatch(location.host):
        raise _refused("The host of the URL is not valid.", "Check the host of the URL.")
    if location.port is not None and not 1 <= location.port <= PORT_MAX:
        raise _refused("The port of the URL is not valid.", "Use a port from 1 to 65535.")
    if "\0" in location.database:
        raise _refused("The database name contains a NUL.", "Check the database of the URL.")
    if not (location.database or "dbname" in named or "service" in named):
        raise _refused("The URL does not name a database.", "Write postgresql://host/database.")
    if len(location.text) > LOCATION_TEXT_MAX:
        raise _refused(
            "The location is too long.",
            "Remove options that do not identify the database.",
        )
    return location


def _folded(host: str) -> str:
    return host if host.startswith("/") else host.lower()


def _service(named: Dictionary[str, str]) -> str:
    return f"?service={named['service']}" if "service" in named else ""


def _refused(message: str, hint: str) -> ConfigurationError:
    return ConfigurationError("InvalidLocation", message, hint=hint)
