"""What the two sides of a copy offer, and why a copy is refused."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from partita.errors import ConfigurationError, ConflictError, LimitExceededError
from partita.scaleout.copying.parts import CopyPart, Key, Moment, Plan, Row, State

Pieces = Callable[[], Awaitable[AsyncIterator[bytes] | None]]
"""Opens a content for reading; None if it is not in use any more."""


class Source(Protocol):
    """An account that is read, and may be served meanwhile."""

    identity: str
    """Names the account in the record of the target; without secrets."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    def moment(self) -> AbstractAsyncContextManager[None]:
        """Read one state of the account in the block."""
        ...

    async def clocks(self) -> Moment: ...

    async def version(self) -> object:
        """Return a value that changes when the source is written."""
        ...

    async def plans(self) -> Sequence[Plan]:
        """Return all parts, in the order in which to copy them."""
        ...

    async def large_contents(self) -> tuple[int, int]:
        """Return how many contents are not in rows, and their bytes."""
        ...

    def rows(self, part: CopyPart, after: Key | None, alive_at: int) -> AsyncGenerator[list[Row]]:
        """Yield the rows after a key, in batches; without messages that expired."""
        ...

    async def content(self, digest: bytes) -> AsyncIterator[bytes] | None:
        """Return the pieces of a large content; None if it is not in use any more."""
        ...

    async def blob_of(self, extent: int) -> str | None:
        """Return the name of some blob that has bytes of an extent."""
        ...


class Target(Protocol):
    """An account that is written, and closed to others until `finish`."""

    identity: str

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def clocks(self) -> Moment: ...

    async def begin(self, source: str, shift: int) -> int:
        """Begin a copy or continue one; return the shift of its times. Refuse other data."""
        ...

    async def states(self) -> dict[CopyPart, State]: ...

    async def start(self, part: CopyPart, head: Row, state: State | None) -> State:
        """Begin a part with nothing in it; `state` if it was begun before."""
        ...

    async def drop(self, part: CopyPart, state: State) -> None:
        """Remove a part that the source has no more."""
        ...

    async def write(self, part: CopyPart, state: State, rows: Sequence[Row]) -> None:
        """Write a batch and record its last key, in one transaction."""
        ...

    async def complete(self, part: CopyPart) -> None: ...

    async def repeat(self, parts: Sequence[CopyPart]) -> None:
        """Record that parts differ: the next run copies them again."""
        ...

    def rows(self, part: CopyPart, state: State, alive_at: int) -> AsyncGenerator[list[Row]]:
        """Yield the rows of a part as the source has them, in batches."""
        ...

    async def put_content(self, digest: bytes, size: int, pieces: Pieces) -> None:
        """Store a large content durably, unless it is there; `write` its extents next."""
        ...

    async def digest_of(self, digest: bytes) -> bytes | None:
        """Read a large content; return its SHA-256, None if it is missing."""
        ...

    async def forget(self) -> None:
        """Remove the record of a copy whose parts were all dropped."""
        ...

    async def finish(self, stamp: int) -> None:
        """Give everything its name and open the account; new stamps come after `stamp`."""
        ...


def not_empty(target: str) -> ConfigurationError:
    return ConfigurationError(
        "CopyTargetNotEmpty",
        f"The account in {target} has data that did not come from this copy.",
        facts={"target": target},
        hint="Copy to another account or folder, or delete its tables, queues and containers.",
    )


def served(target: str) -> ConfigurationError:
    return ConfigurationError(
        "CopyTargetServed",
        f"The account in {target} exists, and front ends are running that may serve it.",
        facts={"target": target},
        hint="Stop the front ends, or copy to an account that they do not have; start them when"
        " the copy is complete.",
    )


def taken_over(target: str) -> ConflictError:
    return ConflictError(
        "CopyTakenOver",
        f"Another process continues the copy to {target}.",
        facts={"target": target},
        hint="Let that process complete the copy.",
    )


def unstorable(part: CopyPart, key: Key, reason: str) -> LimitExceededError:
    return LimitExceededError(
        "CopyNotPossible",
        f"PostgreSQL cannot store a key of {part}: it {reason}.",
        facts={"part": str(part), "key": key},
        hint="Store it with a shorter key in the source, delete the old one, and copy again.",
    )


def other_source(target: str, source: str) -> ConfigurationError:
    return ConfigurationError(
        "CopyTargetNotEmpty",
        f"The account in {target} is the target of a copy of {source}, which is not complete.",
        facts={"target": target, "source": source},
        hint="Complete that copy first, or choose another target.",
    )
