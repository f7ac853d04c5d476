"""Runs steps in asyncio: sends their calls to a port, and runs parallel steps as tasks."""

import asyncio
import inspect
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from partita.patterns.protocol.calls import Beside, Call, Cost, Invoke, Parallel, Sleep, Steps
from partita.patterns.protocol.capabilities import Capabilities

T = TypeVar("T")


class AsyncPort(Protocol):
    """Performs calls; the errors that it raises on purpose are PartitaErrors."""

    capabilities: Capabilities

    async def perform(self, call: Call[T], cost: Cost) -> T:
        """Return the answer of a call, and add its cost to `cost`."""
        ...

    async def close(self) -> None: ...


async def run_steps(steps: Steps[T], port: AsyncPort, cost: Cost) -> T:
    """Run steps to their end and return their result; close them in any case."""
    answer: Any = None
    refusal: Exception | None = None
    try:
        while True:
            try:
                call = steps.send(answer) if refusal is None else steps.throw(refusal)
            except StopIteration as end:
                result: T = end.value
                return result
            answer, refusal = None, None
            try:
                answer = await _perform(call, port, cost)
            except Exception as error:  # noqa: BLE001 - handled by the steps
                refusal = error
    finally:
        steps.close()


async def _perform(call: Call[Any], port: AsyncPort, cost: Cost) -> Any:
    if isinstance(call, Sleep):
        return await asyncio.sleep(call.seconds)
    if isinstance(call, Invoke):
        result = call.function(*call.arguments)
        return await result if inspect.isawaitable(result) else result
    if isinstance(call, Parallel):
        return await _run_parallel(call.steps, call.limit, port, cost)
    if isinstance(call, Beside):
        return await _run_beside(call, port, cost)
    return await port.perform(call, cost)


async def _run_beside(call: Beside, port: AsyncPort, cost: Cost) -> Any:
    background = asyncio.ensure_future(run_steps(call.background, port, cost))
    try:
        return await run_steps(call.steps, port, cost)
    finally:
        background.cancel()
        await asyncio.gather(background, return_exceptions=True)


async def _run_parallel(
    steps: Sequence[Steps[Any]], limit: int, port: AsyncPort, cost: Cost
) -> tuple[Any, ...]:
    answers: list[Any] = [None] * len(steps)
    pending = iter(enumerate(steps))
    first: list[Exception] = []

    async def work() -> None:
        for place, one in pending:
            try:
                answers[place] = await run_steps(one, port, cost)
            except Exception as error:
                first.append(error)
                raise

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(max(limit, 1), len(steps))):
                group.create_task(work())
    except ExceptionGroup:
        # The first error is the cause; the others come from stopping the rest.
        raise first[0] from first[0].__cause__
    finally:
        for one in steps:
            one.close()
    return tuple(answers)
