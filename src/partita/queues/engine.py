"""QueueEngine: applies the rules of the queue service on a store. No HTTP here."""

from collections.abc import Mapping, Sequence

import msgspec

from partita.errors import MessageNotFoundError
from partita.policies import Policy
from partita.queues import limits
from partita.queues.message import Message, MessagePlace, check_text, find_place, find_receipt
from partita.queues.names import check_queue_name
from partita.queues.store import Queue, QueueStore
from partita.refusals import invalid_parameter


class QueuePage(msgspec.Struct, frozen=True):
    """Queues in order, and the name where the next page starts."""

    queues: list[Queue]
    continuation: str | None = None


class QueueEngine:
    """Queues, messages, policies of one account.

    >>> import asyncio
    >>> from partita.clock import SystemClock
    >>> from partita.storage.database import Database
    >>> from partita.queues.sqlite_store import SqliteQueueStore
    >>> from partita.storage.store_clock import StoreClock
    >>> async def example() -> list[str]:
    ...     database = await Database.open(None)
    ...     clock = StoreClock(database, SystemClock())
    ...     engine = QueueEngine(await SqliteQueueStore.open(database, clock))
    ...     await engine.create_queue("work", {})
    ...     await engine.put("work", "archive 00010")
    ...     got = await engine.get("work")
    ...     await engine.close()
    ...     await database.close()
    ...     return [message.text for message in got]
    >>> asyncio.run(example())
    ['archive 00010']
    """

    def __init__(self, store: QueueStore) -> None:
        self.store = store

    # Queues

    async def create_queue(self, name: str, metadata: Mapping[str, str]) -> bool:
        """Create a queue; return False if it existed with the same metadata."""
        return await self.store.create_queue(check_queue_name(name), metadata)

    async def delete_queue(self, name: str) -> None:
        await self.store.delete_queue(check_queue_name(name))

    async def get_queue(self, name: str) -> Queue:
        return await self.store.get_queue(check_queue_name(name))

    async def list_queues(
        self, *, prefix: str = "", start: str = "", limit: int = limits.PAGE_QUEUES_MAX
    ) -> QueuePage:
        """List the queues with a prefix, from `start` on (inclusive)."""
        limit = min(limit, limits.PAGE_QUEUES_MAX)
        found = await self.store.list_queues(prefix, start, limit + 1)
        return QueuePage(found[:limit], found[limit].name if len(found) > limit else None)

    async def set_metadata(self, name: str, metadata: Mapping[str, str]) -> None:
        await self.store.set_metadata(check_queue_name(name), metadata)

    async def get_policies(self, name: str) -> list[Policy]:
        return await self.store.get_policies(check_queue_name(name))

    async def set_policies(self, name: str, policies: Sequence[Policy]) -> None:
        await self.store.set_policies(check_queue_name(name), policies)

    # Messages

    async def put(
        self,
        name: str,
        text: str,
        *,
        hidden_seconds: int = 0,
        lifetime_seconds: int | None = limits.LIFETIME_SECONDS_DEFAULT,
    ) -> Message:
        """Add a message; its receipt can update or delete it at once."""
        return await self.store.put(
            check_queue_name(name),
            check_text(text),
            hidden_seconds=hidden_seconds,
            lifetime_seconds=lifetime_seconds,
        )

    async def get(
        self,
        name: str,
        *,
        limit: int = 1,
        hidden_seconds: int = limits.VISIBILITY_SECONDS_DEFAULT,
    ) -> list[Message]:
        """Receive the first visible messages and hide them for `hidden_seconds`."""
        assert 1 <= limit <= limits.GET_MESSAGES_MAX
        return await self.store.claim(check_queue_name(name), limit, hidden_seconds=hidden_seconds)

    async def peek(self, name: str, *, limit: int = 1) -> list[Message]:
        """Return the first visible messages without hiding them."""
        assert 1 <= limit <= limits.GET_MESSAGES_MAX
        return await self.store.peek(check_queue_name(name), limit)

    async def update(
        self,
        name: str,
        message_id: str,
        receipt: str,
        *,
        hidden_seconds: int,
        text: str | None = None,
    ) -> Message:
        """Hide a message for `hidden_seconds` from now on, optionally with another text."""
        place, proof = await self._addressed(check_queue_name(name), message_id, receipt)
        if text is not None:
            check_text(text)
        return await self.store.update(name, place, proof, hidden_seconds=hidden_seconds, text=text)

    async def delete(self, name: str, message_id: str, receipt: str) -> None:
        place, proof = await self._addressed(check_queue_name(name), message_id, receipt)
        await self.store.delete(name, place, proof)

    async def clear(self, name: str) -> None:
        await self.store.clear(check_queue_name(name))

    async def close(self) -> None:
        await self.store.close()

    async def _addressed(
        self, name: str, message_id: str, receipt: str
    ) -> tuple[MessagePlace, bytes]:
        """Parse a message identifier and a receipt."""
        place, proof = find_place(message_id), find_receipt(receipt)
        if place is not None and proof is not None:
            return place, proof
        await self.store.get_queue(name)  # a missing queue is reported first
        if place is None:
            raise MessageNotFoundError(
                "MessageNotFound",
                "The specified message does not exist.",
                facts={"queue": name},
                hint="Use the identifier of a message.",
            )
        raise invalid_parameter(
            "popreceipt",
            receipt[:64],
            "Invalid pop receipt format",
            hint="Send the receipt of the last put, get or update, percent-encoded.",
        )
