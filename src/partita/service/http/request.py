"""Request and Response: the only HTTP values. No I/O here.

A body is bytes or, if it may be large, a stream of pieces: `Upload` in a request, `Download` in
an answer.
"""

from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import msgspec

from partita.service.http.observed import UNOBSERVED, Observed

PIECE_BYTES_MAX = 256 * 1024
"""The maximal piece of an Upload, and the recommended one of a Download."""

NOTHING_SPELLED: Mapping[str, str] = MappingProxyType({})


class Upload(Protocol):
    """A request body that is still arriving.

    It can be read once. The connection discards the part that is not read.
    """

    @property
    def length(self) -> int | None:
        """The declared length in bytes; None when the body is chunked."""

    @property
    def received_bytes(self) -> int:
        """How much of the body has arrived."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces as they arrive, none empty, none above PIECE_BYTES_MAX.

        Raises UnavailableError("ClientGone") if the connection ends or stalls before the body is
        complete, and LimitExceededError("RequestBodyTooLarge") if a body of undeclared length
        exceeds the limit.
        """


class Download(Protocol):
    """A response body that is produced in pieces, `length` bytes in total."""

    @property
    def length(self) -> int: ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces; iterated at most once, and not for HEAD.

        An error while yielding closes the connection: a body is never silently short.
        """

    async def close(self) -> None:
        """Release the source of the body.

        The sender of the answer calls it exactly once, also if the client has disconnected.
        """


class Stranger(Protocol):
    """A connection on which no request has been authenticated yet."""

    def authenticated(self) -> None:
        """Handle that a request of this connection is authenticated."""


class Request(msgspec.Struct, frozen=True, gc=False):
    """One HTTP request as it was received, not decoded."""

    method: str
    path: str
    """The path as sent, percent-encoded: signatures cover this form."""
    query: str = ""
    """The query string after the question mark, as sent."""
    headers: dict[str, str] = {}
    """Names in lower case. A header sent twice has its values joined by a comma."""
    body: bytes = b""
    peer: str = ""
    """The address of the client."""
    scheme: str = "http"
    repeated: frozenset[str] = frozenset()
    """Names of the headers that were sent more than once."""
    upload: Upload | None = None
    """The body if it is streamed; `body` is then empty."""
    spelled: Mapping[str, str] = NOTHING_SPELLED
    """Lower-case name → name as sent, of each x-ms-meta-* header: metadata keep their case."""

    stranger: Stranger | None = None
    """Told when the request is authenticated; None if it needs not to be."""
    observed: Observed = msgspec.field(default_factory=Observed)
    """What is noted while the request is answered; `UNOBSERVED` if it may be a point read."""

    def observe(self) -> Observed:
        """Return where to note something of this request."""
        if self.observed is UNOBSERVED:
            msgspec.structs.force_setattr(self, "observed", Observed())
        return self.observed

    def given(self, name: str) -> str | None:
        """Find the value of a header; an empty header counts as absent."""
        return self.headers.get(name) or None


class Response(msgspec.Struct, frozen=True, gc=False):
    """One HTTP answer; the sender adds Content-Length, Connection and framing.

    Header names are sent as they are spelled here.
    """

    status: int
    headers: list[tuple[str, str]] = []
    body: bytes = b""
    download: Download | None = None
    """The body if it is streamed; `body` is then empty."""
    read: tuple[str, Any] | None = None
    """Of the successful read of one entity: the account and the call, which nothing else notes."""

    @property
    def length(self) -> int:
        """The bytes of the body."""
        return len(self.body) if self.download is None else self.download.length

    def header(self, name: str) -> str | None:
        """Find the first header with this name."""
        wanted = name.lower()
        return next((value for key, value in self.headers if key.lower() == wanted), None)


class Observer(Protocol):
    """What is told about the answers of a server; it must not raise."""

    def answered(
        self,
        request: Request,
        response: Response,
        seconds: float,
        is_lost: bool,  # noqa: FBT001 - a keyword costs more on the request path
        /,
    ) -> None:
        """Handle the answer of a request; `is_lost` if its client has disconnected."""

    def refused(self, response: Response) -> None:
        """Handle a refusal by the protocol, which has no request."""

    def fold(self) -> None:
        """Sum up what was noted; called about once a second."""
