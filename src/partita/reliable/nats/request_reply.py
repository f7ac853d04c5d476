"""The transport of requests that a service needs; NATS request/reply implements it.

Requests are not stored: a request reaches a listener that exists now, or none.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

Answering = Callable[[bytes], Awaitable[bytes]]


class RequestSubscription(Protocol):
    async def close(self, seconds: float) -> None:
        """Stop accepting requests; let running ones end within this time, then cancel them."""
        ...


class RequestTransport(Protocol):
    async def ask(self, subject: str, raw: bytes, *, timeout: float) -> bytes:
        """Return the answer of one listener. Raises NoAnswer, also if the request was received."""
        ...

    async def listen(self, subject: str, answering: Answering) -> RequestSubscription:
        """Answer the requests on a subject until closed, also after lost connections."""
        ...
