"""Writes the heat of the last hours beside an account, as a server would have measured it."""

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from partita.heat.meter import READ, SCAN, WRITE, Sample
from partita.heat.minutes import close
from partita.heat.sqlite_heat import SqliteHeat

TENANTS, ORDERS = 48, 200
HOT = "tenant-023"


def seed(folder: Path, now: int, minutes: int) -> None:
    """Add the table Orders, with a hot tenant and scans, and Events, which only grows."""
    with ThreadPoolExecutor(1) as thread:  # the loop of Playwright runs in this one
        thread.submit(asyncio.run, _seed(folder, now, minutes)).result()


async def _seed(folder: Path, now: int, minutes: int) -> None:
    kept = await SqliteHeat.open(folder)
    chance = random.Random(16)
    first = now - now % 60 - minutes * 60
    for number in range(minutes):
        samples = [*_orders(number, minutes, chance), *_events(number)]
        await kept.add(first + number * 60, close(samples), now)
    await kept.close()


def _orders(number: int, minutes: int, chance: random.Random) -> Iterator[Sample]:
    for tenant in range(TENANTS):
        for _ in range(1 + chance.randrange(20) * (tenant % 7) // 8):
            key = (f"tenant-{tenant:03}", f"order-{chance.randrange(ORDERS):05}")
            yield "Orders", key, key, READ, chance.randrange(1, 9), 900
    if minutes // 3 <= number < minutes * 2 // 3:
        for order in range(ORDERS):
            key = (HOT, f"order-{order:05}")
            yield "Orders", key, key, WRITE, 40, 9000
    if number % 15 == 0:
        low, high = ("tenant-000", "order-00000"), (f"tenant-{TENANTS - 1:03}", "order-00199")
        yield "Orders", low, high, SCAN, TENANTS * ORDERS, 2_000_000


def _events(number: int) -> Iterator[Sample]:
    for second in range(0, 60, 2):
        key = (f"2026-11-{1 + number // 60:02}", f"{number:06}-{second:02}")
        yield "Events", key, key, WRITE, 5, 700
