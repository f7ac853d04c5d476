"""The contract of a queue store: messages in order of visibility, durable on return.

Every store runs the same suite, tests/conformance/queue_store.py. A store keeps a clock that
does not go back, and uses it for visibility and expiry. Claims are atomic: no message is returned
twice while it is hidden. The engine checks names and texts.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from partita.policies import Policy
from partita.queues.message import Message, MessagePlace


class Queue(msgspec.Struct, frozen=True, gc=False):
    """A stored queue."""

    name: str
    metadata: Mapping[str, str]
    """Names keep their case and match without it."""
    message_count: int | None
    """Includes hidden messages, and expired ones that are not removed yet: never too low.

    None in lists of a store that keeps no counts.
    """


def is_same_metadata(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return whether metadata are equal; names match without case."""
    return _folded(one) == _folded(other)


def _folded(metadata: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in metadata.items()}


class QueueStore(Protocol):
    """Where queues and their messages are kept.

    Calls with a queue name raise QueueNotFoundError if it does not exist; calls with a message
    raise MessageNotFoundError if it is deleted or expired, and its subclass
    ReceiptMismatchError if the receipt is not that of its last claim or update.
    """

    async def create_queue(self, name: str, metadata: Mapping[str, str]) -> bool:
        """Create a queue; return False if it existed with the same metadata.

        Raise QueueExistsError if it existed with other metadata.
        """
        ...

    async def delete_queue(self, name: str) -> None:
        """Drop a queue; the space of its messages is reclaimed afterwards."""
        ...

    async def get_queue(self, name: str) -> Queue: ...

    async def list_queues(self, prefix: str, start: str, limit: int) -> list[Queue]:
        """List queues with a prefix by name, from `start` on (inclusive)."""
        ...

    async def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None: ...

    async def get_policies(self, name: str) -> list[Policy]: ...

    async def set_policies(self, name: str, policies: Sequence[Policy]) -> None: ...

    async def put(
        self, name: str, text: str, *, hidden_seconds: int, lifetime_seconds: int | None
    ) -> Message:
        """Add a message after all visible ones; a lifetime of None is unlimited."""
        ...

    async def claim(self, name: str, limit: int, *, hidden_seconds: int) -> list[Message]:
        """Hide the first visible messages, increment their dequeue count, return new receipts."""
        ...

    async def peek(self, name: str, limit: int) -> list[Message]:
        """Return the first visible messages without changing them."""
        ...

    async def update(
        self,
        name: str,
        place: MessagePlace,
        receipt: bytes,
        *,
        hidden_seconds: int,
        text: str | None,
    ) -> Message:
        """Hide a message for `hidden_seconds` from now on; a text of None keeps its text.

        Raise LimitExceededError if it would be hidden beyond its expiry.
        """
        ...

    async def delete(self, name: str, place: MessagePlace, receipt: bytes) -> None: ...

    async def clear(self, name: str) -> None:
        """Remove all messages, also hidden ones; their space is reclaimed afterwards."""
        ...

    async def sweep(self) -> None:
        """Reclaim the space of dropped and expired messages now; it also runs periodically."""
        ...

    async def close(self) -> None:
        """Stop sweeping. The database belongs to the account."""
        ...
