"""Network addresses; pure."""

import ipaddress
import re

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+")
_PORT = re.compile(r"\d{1,5}(/.*)?")
_POSTGRESQL = ("postgresql://", "postgres://")


def without_password(address: str) -> str:
    """Return an address of servers for messages: users, passwords and wrong ports are hidden.

    What stands for the port may be a password whose `@host` was forgotten.

    >>> without_password("nats://ada:secret@one:4222,two")
    'nats://***@one:4222,two'
    >>> without_password("nats://ada:secret")
    'nats://ada:***'
    """
    found = _SCHEME.match(address)
    scheme = found[0] if found else ""
    users, at, hosts = address[len(scheme) :].rpartition("@")
    return scheme + ("***@" if users else at) + ",".join(map(_shown_host, hosts.split(",")))


def _shown_host(part: str) -> str:
    host, colon, port = part.rpartition(":")
    if not colon or part.endswith("]") or _PORT.fullmatch(port):
        return part
    return f"{host}:***"


def without_secrets(url: str) -> str:
    """Return a URL for messages: its user, password and parameters are hidden.

    >>> without_secrets("postgresql://ada:secret@db.internal:5432/orders?passfile=/etc/x")
    'postgresql://***@db.internal:5432/orders'
    """
    address, _, parameters = url.partition("?")
    # An @ after the question mark: of a parameter, or of a password that has a question mark.
    return without_password(address if "@" not in parameters else f"{address}@...")


def is_postgresql(text: str) -> bool:
    """Return whether a text is the URL of a PostgreSQL database."""
    return text.startswith(_POSTGRESQL)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach the address; unknown names are not trusted."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
