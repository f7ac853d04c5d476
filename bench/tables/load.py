"""Fill a table with the benchmark's entities, by batches of 100 over several connections.

Run as `python bench/tables/load.py --port N --entities 100000` against any server that
knows the development account.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.tables.connection import Answer, Connection
from bench.tables.workload import GROUP_OPERATIONS, Requests

CONNECTIONS = 4
_SIGNED_SECONDS_MAX = 600  # the service takes a date for 15 minutes


class LoadError(Exception):
    """A server refused something that every server of this kind must take."""


async def fill(port: int, entities: int, *, first: int = 0) -> float:
    """Create the table if needed, insert the entities, return the seconds it took."""
    assert entities % GROUP_OPERATIONS == 0
    started = time.perf_counter()
    await _create_table(port)
    firsts = iter(range(first, first + entities, GROUP_OPERATIONS))
    await asyncio.gather(*(_insert_groups(port, firsts) for _ in range(CONNECTIONS)))
    return time.perf_counter() - started


async def _create_table(port: int) -> None:
    connection = await Connection.open(port)
    answer = await connection.exchange(Requests(port).create_table())
    connection.close()
    if answer.status not in (201, 204, 409):
        message = f"create table: {answer.status} {answer.body[:300]!r}"
        raise LoadError(message)


async def _insert_groups(port: int, firsts: Iterator[int]) -> None:
    """Take groups from the shared iterator until none is left."""
    connection = await Connection.open(port)
    requests, signed_at = Requests(port), time.perf_counter()
    for first in firsts:
        if time.perf_counter() - signed_at > _SIGNED_SECONDS_MAX:
            requests, signed_at = Requests(port), time.perf_counter()
        check_batch(await connection.exchange(requests.batch(first)), first)
    connection.close()


def check_batch(answer: Answer, first: int) -> None:
    """Demand that all 100 inserts were taken; the outer 202 alone proves nothing."""
    taken = answer.body.count(b"HTTP/1.1 204")
    if answer.status != 202 or taken != GROUP_OPERATIONS:
        message = f"batch at {first}: {answer.status}, {taken} taken, {answer.body[:300]!r}"
        raise LoadError(message)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--entities", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    seconds = asyncio.run(fill(options.port, options.entities, first=options.first))
    print(f"{options.entities} entities in {seconds:.1f} s: {options.entities / seconds:.0f}/s")


if __name__ == "__main__":
    main()
