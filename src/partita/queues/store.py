"""The contract of a queue store: messages in the order they become visible, durable when told.

Every store runs the same suite, tests/conformance/queue_store.py. A store keeps a clock that
does not go back, and judges visibility and expiry by it. Claims are atomic: no message is handed
out twice within its hidden time. Names and texts were checked before.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from partita.policies import Policy
from partita.queues.message import Message, MessagePlace


class Queue(msgspec.Struct, frozen=True, gc=False):
    """A queue as the store knows it."""

    name: str
    metadata: Mapping[str, str]
    """Names in their case; they match without it."""
    message_count: int
    """Hidden ones too, and those that expired and are not swept yet: never too few."""


class QueueStore(Protocol):
    """Where queues and their messages are kept.

    What names a queue raises QueueNotFoundError if there is none; what names a message raises
    MessageNotFoundError if it is deleted or expired, and ReceiptMismatchError, which is one of
    those, if the receipt is not that of its last claim or change.
    """

    async def create_queue(self, name: str, metadata: Mapping[str, str]) -> bool:
        """Create a queue; return False if it was there with the same metadata.

        Raise QueueExistsError if it was there with others.
        """
        ...

    async def delete_queue(self, name: str) -> None:
        """Drop a queue at once; the space of its messages is reclaimed behind it."""
        ...

    async def get_queue(self, name: str) -> Queue: ...

    async def list_queues(self, prefix: str, start: str, limit: int) -> list[Queue]:
        """List queues by name from `start` on (inclusive), of those with a prefix."""
        ...

    async def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None: ...

    async def get_policies(self, name: str) -> list[Policy]: ...

    async def set_policies(self, name: str, policies: Sequence[Policy]) -> None: ...

    async def put(
        self, name: str, text: str, *, hidden_seconds: int, lifetime_seconds: int | None
    ) -> Message:
        """Add a message behind all that are visible; None for a lifetime that does not end."""
        ...

    async def claim(self, name: str, limit: int, *, hidden_seconds: int) -> list[Message]:
        """Hide the first visible messages, count it, and hand them out with new receipts."""
        ...

    async def peek(self, name: str, limit: int) -> list[Message]:
        """Return the first visible messages and change nothing."""
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
        """Hide a message for so long from now on; a text of None leaves its text.

        Raise LimitExceededError if it would be hidden beyond its expiry.
        """
        ...

    async def delete(self, name: str, place: MessagePlace, receipt: bytes) -> None: ...

    async def clear(self, name: str) -> None:
        """Remove all messages, hidden ones too, at once; their space is reclaimed behind it."""
        ...

    async def sweep(self) -> None:
        """Reclaim the space of dropped and expired messages now; it also happens by itself."""
        ...

    async def close(self) -> None:
        """Stop sweeping. The database belongs to the account."""
        ...
