"""Request and Response: the only HTTP values. No I/O here."""

import msgspec


class Request(msgspec.Struct, frozen=True, gc=False):
    """One HTTP request as it came, nothing decoded."""

    method: str
    path: str
    """The path as sent, still percent-encoded: signatures are made over it."""
    query: str = ""
    """What follows the question mark, as sent."""
    headers: dict[str, str] = {}
    """Names in lower case. A header sent twice has its values joined by a comma."""
    body: bytes = b""
    peer: str = ""
    """The address that the connection came from."""
    scheme: str = "http"
    repeated: frozenset[str] = frozenset()
    """Names of the headers that were sent more than once."""


class Response(msgspec.Struct, frozen=True, gc=False):
    """One HTTP answer. Content-Length, Connection and framing are added by whoever sends it."""

    status: int
    headers: list[tuple[str, str]] = []
    body: bytes = b""

    def header(self, name: str) -> str | None:
        """Find the first header of this name."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)
