"""How requests travel: what a service asks of the network that carries them.

NATS request/reply gives it. Nothing is kept: a question finds whoever listens now, or nobody.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol

Answering = Callable[[bytes], Awaitable[bytes]]


class Listening(Protocol):
    async def close(self, seconds: float) -> None:
        """Take nothing more; let what is under way be answered for so long, then end it."""
        ...


class Post(Protocol):
    async def ask(self, subject: str, raw: bytes, *, timeout: float) -> bytes:
        """Return the answer of one listener. Raises NoAnswer; it may have been heard then."""
        ...

    async def listen(self, subject: str, answering: Answering) -> Listening:
        """Answer what is asked on a subject until closed, through lost connections too."""
        ...

    async def close(self) -> None: ...
