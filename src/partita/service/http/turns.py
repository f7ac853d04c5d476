"""Long work of a request in several turns of the event loop, or in a thread.

The one rule: no turn of the loop takes longer than 50 ms, whatever a client sends; other
requests would wait for it.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

ITEMS_PER_TURN = 1000
"""Items that are parsed or printed in one turn; each takes some microseconds."""

T = TypeVar("T")
P = ParamSpec("P")


async def collected(items: Iterable[T], per_turn: int = ITEMS_PER_TURN) -> list[T]:
    """Return the items as a list; other requests run after each `per_turn` of them."""
    found: list[T] = []
    for item in items:
        found.append(item)
        if len(found) % per_turn == 0:
            await asyncio.sleep(0)
    return found


async def computed(items: int, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """Return the result of a call that handles this many items; run a long one in a thread."""
    if items <= ITEMS_PER_TURN:
        return call(*arguments, **named)
    return await asyncio.to_thread(call, *arguments, **named)
