"""Where a database is: the URL of a PostgreSQL server, shown without its secrets. Pure."""

from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from partita.errors import ConfigurationError

SCHEMES = ("postgresql", "postgres")
_SECRET_OPTIONS = {"password", "sslpassword"}


class Location(msgspec.Struct, frozen=True):
    """The URL of a database, as libpq and asyncpg read it; `str()` hides secrets."""

    url: str

    @classmethod
    def parse(cls, url: str) -> "Location":
        """Check a URL.

        >>> str(Location.parse("postgresql://ada:secret@one:5432,two/partita?password=x"))
        'postgresql://ada:***@one:5432,two/partita?password=%2A%2A%2A'
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

    def __str__(self) -> str:
        scheme, authority, path, query, _ = urlsplit(self.url)
        user, at, hosts = authority.rpartition("@")
        name, colon, _ = user.partition(":")
        options = [
            (option, "***" if option in _SECRET_OPTIONS else value)
            for option, value in parse_qsl(query)
        ]
        shown = name + (":***" if colon else "") + at + hosts
        return f"{scheme}://{shown}{path}" + ("?" + urlencode(options) if options else "")

    def __repr__(self) -> str:
        return f"Location({str(self)!r})"
