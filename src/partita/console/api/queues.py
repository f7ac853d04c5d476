"""Queues: list, create, drop; peek, put, claim, update, delete, move and clear messages.

Texts are shown as stored: the clients encode and decode nothing. A claim makes messages invisible
to others until its end, which is why only a button claims.
"""

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from partita.console.api.sdk_errors import sdk_errors
from partita.console.calls import Answer, Call, Confirmation, NewName, sdk_route
from partita.console.errors import check_name, invalid
from partita.console.jobs import Job
from partita.ticks import TICKS_PER_SECOND, Clock

if TYPE_CHECKING:
    from azure.storage.queue import QueueMessage
    from azure.storage.queue.aio import QueueClient

QUEUES_MAX: Final = 500
"""The most queues that are listed; a prefix finds the others."""
MESSAGES_PEEKED_MAX: Final = 32
PROPERTIES_AT_ONCE: Final = 8
MOVE_SECONDS: Final = 120
"""How long a message that is being moved is invisible; after a crash it appears again."""
POISON: Final = "-poison"
LAST_YEAR: Final = 9999
"""The year of expiry of a message that never expires."""


class NewMessage(msgspec.Struct, forbid_unknown_fields=True):
    text: str
    delay_seconds: int = 0
    ttl_seconds: int | None = None
    """-1: it does not expire; None: the service's seven days."""


class Claim(msgspec.Struct, forbid_unknown_fields=True):
    count: int = 1
    seconds: int = 30


class Claimed(msgspec.Struct, forbid_unknown_fields=True):
    """A message that this tab has claimed."""

    id: str
    receipt: str
    text: str | None = None
    """None: the text stays."""
    seconds: int = 0


class Move(msgspec.Struct, forbid_unknown_fields=True):
    to: str
    count: int | None = None
    """None: all that are visible."""


class Metadata(msgspec.Struct, forbid_unknown_fields=True):
    metadata: dict[str, str]


async def list_queues(call: Call) -> Answer:
    """List the queues with their approximate counts."""
    from azure.core.exceptions import ResourceNotFoundError  # noqa: PLC0415 - an extra

    prefix = call.query.get("prefix") or None
    names: list[str] = []
    has_more = False
    with sdk_errors():
        async for queue in call.account.queues.list_queues(name_starts_with=prefix):
            if len(names) == QUEUES_MAX:
                has_more = True
                break
            names.append(queue.name)
        turn = asyncio.Semaphore(PROPERTIES_AT_ONCE)

        async def counted(name: str) -> dict[str, Any] | None:
            async with turn:
                try:
                    found = await call.account.queues.get_queue_client(name).get_queue_properties()
                except ResourceNotFoundError:  # deleted since it was listed
                    return None
            return {"name": name, "messages": found.approximate_message_count}

        queues = [each for each in await asyncio.gather(*map(counted, names)) if each]
    return {"queues": queues, "has_more": has_more}


async def create_queue(call: Call) -> Answer:
    name = call.decode(NewName).name
    with sdk_errors():
        await call.account.queues.create_queue(name)
    return {"name": name}


async def drop_queue(call: Call) -> Answer:
    call.confirmed("queue", Confirmation)
    queue = _queue(call)
    with sdk_errors():
        await queue.delete_queue()
    return {}


async def clear_queue(call: Call) -> Answer:
    """Delete all messages, also those that are claimed."""
    call.confirmed("queue", Confirmation)
    queue = _queue(call)
    with sdk_errors():
        await queue.clear_messages()
    return {}


async def show_queue(call: Call) -> Answer:
    """Return the properties and the first visible messages; nothing is claimed."""
    queue = _queue(call)
    with sdk_errors():
        properties = await queue.get_queue_properties()
        peeked = await queue.peek_messages(MESSAGES_PEEKED_MAX)
    total = properties.approximate_message_count or 0
    return {
        "name": queue.queue_name,
        "messages": total,
        "metadata": properties.metadata or {},
        "peeked": [_shown(message) for message in peeked],
        "peeked_max": MESSAGES_PEEKED_MAX,
        # With fewer visible messages than a peek returns, all others are claimed or delayed.
        "hidden": max(0, total - len(peeked)) if len(peeked) < MESSAGES_PEEKED_MAX else None,
        "poison_of": queue.queue_name.removesuffix(POISON)
        if queue.queue_name.endswith(POISON)
        else None,
    }


async def put_message(call: Call) -> Answer:
    new = call.decode(NewMessage)
    with sdk_errors():
        put = await _queue(call).send_message(
            new.text, visibility_timeout=new.delay_seconds, time_to_live=new.ttl_seconds
        )
    return {"id": put.id}


async def claim_messages(call: Call) -> Answer:
    """Claim the next messages, so that they can be changed or deleted."""
    claim = call.decode(Claim)
    if not 1 <= claim.count <= MESSAGES_PEEKED_MAX:
        message = f"count must be from 1 to {MESSAGES_PEEKED_MAX}."
        raise invalid(message)
    with sdk_errors():
        received = _queue(call).receive_messages(
            max_messages=claim.count, visibility_timeout=claim.seconds
        )
        return {"claimed": [_shown(message) async for message in received]}


async def update_message(call: Call) -> Answer:
    """Change the text of a claimed message, or the end of its claim."""
    claimed = call.decode(Claimed)
    with sdk_errors():
        changed = await _queue(call).update_message(
            claimed.id, claimed.receipt, claimed.text, visibility_timeout=claimed.seconds
        )
    return {"receipt": changed.pop_receipt, "visible_at": _time(changed.next_visible_on)}


async def delete_message(call: Call) -> Answer:
    claimed = call.decode(Claimed)
    with sdk_errors():
        await _queue(call).delete_message(claimed.id, claimed.receipt)
    return {}


async def move_messages(call: Call) -> Answer:
    """Start a job that moves visible messages to another queue."""
    move, source = call.decode(Move), _queue(call)
    if move.to == source.queue_name:
        raise invalid("The messages are in this queue already.")
    target = call.account.queues.get_queue_client(check_name("queue", move.to))

    async def work(job: Job) -> None:
        job.counts["messages"] = 0
        left = move.count
        with sdk_errors():
            await target.get_queue_properties()
            seen: set[str] = set()
            while left is None or left > 0:
                batch = min(MESSAGES_PEEKED_MAX, MESSAGES_PEEKED_MAX if left is None else left)
                moved = 0
                async for message in source.receive_messages(
                    max_messages=batch, visibility_timeout=MOVE_SECONDS
                ):
                    if message.id in seen:  # another client puts it back while it is moved
                        return
                    seen.add(message.id)
                    # First the copy, then the delete: a crash in between doubles, and never loses.
                    ttl = _seconds_left(message, call.services.clock)
                    await target.send_message(message.content, time_to_live=ttl)
                    await source.delete_message(message)
                    moved += 1
                    job.counts["messages"] = int(job.counts["messages"]) + 1
                    if left is not None:
                        left -= 1
                        if not left:
                            break
                if not moved:
                    return

    title = f"Move messages of {source.queue_name} to {move.to}"
    return call.start_job("move-messages", title, work)


async def set_metadata(call: Call) -> Answer:
    with sdk_errors():
        await _queue(call).set_queue_metadata(call.decode(Metadata).metadata)
    return {}


def _queue(call: Call) -> "QueueClient":
    return call.account.queues.get_queue_client(check_name("queue", call.arguments["queue"]))


def _seconds_left(message: "QueueMessage", clock: Clock) -> int:
    """Return the time to live that a message still has; -1 is for ever."""
    expires = message.expires_on
    if expires is None or expires.year >= LAST_YEAR:
        return -1
    return max(1, int(expires.timestamp() - clock.ticks() / TICKS_PER_SECOND))


def _shown(message: "QueueMessage") -> dict[str, Any]:
    return {
        "id": message.id,
        "text": message.content,
        "inserted": _time(message.inserted_on),
        "expires": _time(message.expires_on),
        "dequeued": message.dequeue_count,
        "receipt": message.pop_receipt,
        "visible_at": _time(message.next_visible_on),
    }


def _time(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat()


_QUEUE: Final = "/api/v1/a/{account}/queues/{queue}"
ROUTES = (
    sdk_route("GET", "/api/v1/a/{account}/queues", list_queues),
    sdk_route("POST", "/api/v1/a/{account}/queues", create_queue, writes=True),
    sdk_route("GET", _QUEUE, show_queue),
    sdk_route("POST", f"{_QUEUE}/drop", drop_queue, writes=True),
    sdk_route("POST", f"{_QUEUE}/clear", clear_queue, writes=True),
    sdk_route("POST", f"{_QUEUE}/messages", put_message, writes=True),
    sdk_route("POST", f"{_QUEUE}/claim", claim_messages, writes=True),
    sdk_route("POST", f"{_QUEUE}/update", update_message, writes=True),
    sdk_route("POST", f"{_QUEUE}/delete", delete_message, writes=True),
    sdk_route("POST", f"{_QUEUE}/move", move_messages, writes=True),
    sdk_route("POST", f"{_QUEUE}/metadata", set_metadata, writes=True),
)
