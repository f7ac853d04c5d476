"""Request and Response: the only HTTP values. No I/O here.

A body is bytes, or, where it may be large, a stream of pieces that nobody holds whole: `Upload` on
the way in, `Download` on the way out.
"""

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Protocol

import msgspec

PIECE_BYTES_MAX = 256 * 1024
"""No piece of an Upload is longer; a Download does well to keep to it."""

NOTHING_SPELLED: Mapping[str, str] = MappingProxyType({})


class Upload(Protocol):
    """A request body that is still arriving.

    It can be read once. Whoever reads no further leaves the rest to the connection, which throws
    it away.
    """

    @property
    def length(self) -> int | None:
        """The declared length in bytes; None when the body is chunked."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces as they arrive, none empty, none above PIECE_BYTES_MAX.

        Raises UnavailableError("ClientGone") when the connection ends or falls silent before the
        body is whole, and LimitExceededError("RequestBodyTooLarge") when a body of undeclared
        length grows too long.
        """


class Download(Protocol):
    """A response body that is made piece by piece, `length` bytes in all."""

    @property
    def length(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces; asked for once at most, and not at all for HEAD.

        An error while yielding ends the connection: a body is never silently short.
        """

    async def close(self) -> None:
        """Let go of what the body is read from.

        Called exactly once by whoever sends the answer, read or not, also when the client is gone.
        """


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
    upload: Upload | None = None
    """The body, when it streams; `body` is then empty."""
    spelled: Mapping[str, str] = NOTHING_SPELLED
    """Lower-case name → name as sent, of each x-ms-meta-* header: metadata keep their case."""

    def given(self, name: str) -> str | None:
        """Find the value of a header; a header that is sent empty counts as absent."""
        return self.headers.get(name) or None


class Response(msgspec.Struct, frozen=True, gc=False):
    """One HTTP answer. Content-Length, Connection and framing are added by whoever sends it.

    The names of the headers go out as they are spelled here.
    """

    status: int
    headers: list[tuple[str, str]] = []
    body: bytes = b""
    download: Download | None = None
    """The body, when it streams; `body` is then empty."""

    @property
    def length(self) -> int:
        """The bytes of the body."""
        return len(self.body) if self.download is None else self.download.length

    def header(self, name: str) -> str | None:
        """Find the first header of this name."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)
