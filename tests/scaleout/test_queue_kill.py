"""Front ends that are killed in the middle: what their clients were told of messages holds."""

import asyncio
import itertools
import os
import random
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.queue_databases import OpenQueues, queue_url
from support.queue_ledger import HIDDEN_SECONDS, QUEUE
from support.repeats import repeat

PROGRAM = Path(__file__).with_name("queue_front_end.py")
KILLS = repeat(4, 10, 200)
HASTY_KILLS = 40
DRAIN_HIDDEN_SECONDS = 3600

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1800)]


class Events:
    """What all clients told, by event and message."""

    def __init__(self, lines: list[str]) -> None:
        self.texts: dict[str, set[str]] = defaultdict(set)
        self.claims: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for line in lines:
            event, text, *times = line.split()
            self.texts[event].add(text)
            if event == "claimed":
                self.claims[text].append((int(times[0]), int(times[1])))

    def judge(self, found: list[str]) -> list[str]:
        """Compare with the messages that were left in the queue."""
        left = set(found)
        wrong = [
            *(f"{text} is lost" for text in self.texts["put"] - self.texts["asks-delete"] - left),
            *(f"{text} came back after its delete" for text in self.texts["deleted"] & left),
            *(f"{text} was never put" for text in left - self.texts["asks-put"]),
        ]
        if len(found) != len(left):
            wrong.append("messages are doubled")
        for text, claims in self.claims.items():
            for (_, hidden_until), (claimed, _) in itertools.pairwise(sorted(claims)):
                if claimed < hidden_until:
                    wrong.append(f"{text} was claimed while it was hidden")
        return wrong


@pytest.fixture
async def queues() -> AsyncIterator[OpenQueues]:
    opened = OpenQueues()
    await opened.open()
    await opened.store.create_queue(QUEUE, {})
    yield opened
    await opened.close()


def run_and_kill(account_id: int, name: str, *words: str) -> list[str]:
    """Run a front end, kill it a moment after it works, and return what its clients told."""
    command = [sys.executable, str(PROGRAM), queue_url(), str(account_id), name, *words]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=paths) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        threading.Timer(random.Random(name).uniform(0.05, 0.8), process.kill).start()
        told = first + process.communicate()[0]
    return told[: told.rfind(b"\n") + 1].decode().splitlines()


async def drain(queues: OpenQueues) -> list[str]:
    await asyncio.sleep(HIDDEN_SECONDS + 0.1)
    found: list[str] = []
    while got := await queues.store.claim(QUEUE, 32, hidden_seconds=DRAIN_HIDDEN_SECONDS):
        found += [message.text for message in got]
    return found


async def test_killed_front_ends_lose_and_double_nothing(queues: OpenQueues) -> None:
    lines: list[str] = []

    async def keep_killing(name: str) -> None:
        nonlocal lines
        for number in range(KILLS // 2):
            lines += await asyncio.to_thread(run_and_kill, queues.account_id, f"{name}{number}")

    await asyncio.gather(keep_killing("a"), keep_killing("b"))
    events = Events(lines)
    print(f"{len(events.texts['put'])} put, {len(events.texts['deleted'])} deleted")

    assert events.judge(await drain(queues)) == []
    assert len(events.texts["deleted"]) > KILLS


async def test_the_events_show_what_a_hasty_front_end_loses(queues: OpenQueues) -> None:
    wrong: list[str] = []
    for number in range(HASTY_KILLS):
        lines = await asyncio.to_thread(run_and_kill, queues.account_id, f"h{number}", "hasty")
        wrong = Events(lines).judge(await drain(queues))
        await queues.store.clear(QUEUE)
        if wrong:
            break

    assert any(line.endswith("is lost") for line in wrong)
