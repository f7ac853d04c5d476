"""Where a database is: the URL of a PostgreSQL server, shown without its secrets. Pure."""

import msgspec

from partita.addresses import without_secrets
from partita.errors import ConfigurationError

SCHEMES = ("postgresql", "postgres")


class Location(msgspec.Struct, frozen=True):
    """The URL of a database, as libpq and asyncpg read it; `str()` hides secrets."""

    url: str

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Check a URL.

        >>> str(Location.parse("postgresql://ada:secret@one:5432,two/partita?password=x"))
        'postgresql://***@one:5432,two/partita'
        """
        scheme, separator, rest = url.partition("://")
        if scheme not in SCHEMES or not separator or not rest.partition("/")[2].partition("?")[0]:
            # The URL is not shown: any part of it may be a password.
            raise ConfigurationError(
                "InvalidLocation",
                "The location of the store is not the URL of a PostgreSQL database.",
                hint="Write postgresql://USER@HOST:PORT/DATABASE; give the password by PGPASSWORD "
                "or a password file.",
            )
        return cls(url)

    def with_user_of(self, other: "Location") -> "Location":
        """Return this URL with the user and password of another one, unless it names a user.

        >>> shard, catalog = Location("postgresql://two/p"), Location("postgresql://ada:x@one/p")
        >>> shard.with_user_of(catalog).url
        'postgresql://ada:x@two/p'
        """
        scheme, _, rest = self.url.partition("://")
        user, at, _ = other.url.partition("://")[2].partition("/")[0].rpartition("@")
        if "@" in rest.partition("/")[0] or not at:
            return self
        return Location(f"{scheme}://{user}@{rest}")

    def __str__(self) -> str:
        return without_secrets(self.url)

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"
