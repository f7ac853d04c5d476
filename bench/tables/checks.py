"""Spot checks of contents: a status alone proves little.

Each check returns sentences about what is wrong; none means all is well.
"""

import json
import random
from collections.abc import Iterator
from typing import Any

from bench.tables.connection import Answer, BlockingConnection
from bench.tables.measure import Run, Side
from bench.tables.workload import (
    BUCKETS,
    GROUP_OPERATIONS,
    PARTITION_ENTITIES,
    RANGE_ENTITIES,
    Requests,
    entity,
    partition_key,
    range_start,
    row_key,
    total_of,
)


def check_reads(side: Side) -> list[str]:
    """Before any write: point read, range, filter and a refused signature."""
    with BlockingConnection(side.server.port) as connection:
        troubles = [
            *_check_point(side, connection),
            *_check_range(side, connection),
            *_check_filter(side, connection),
            *_check_signature(side, connection),
        ]
    return [f"{side.server.name}: {trouble}" for trouble in troubles]


def check_writes(side: Side) -> list[str]:
    """An upsert is read back, a second insert of the same entity is refused."""
    requests = Requests(side.server.port)
    number, version = _some(side), side.load.versions.version()
    new = side.load.versions.new_number()
    with BlockingConnection(side.server.port) as connection:
        upserted = connection.exchange(requests.upsert(number, version)).status
        total = _json(connection.exchange(requests.get(number))).get("Total")
        inserts = [connection.exchange(requests.insert(new)).status for _ in range(2)]
    troubles = []
    if upserted != 204 or total != total_of(number, version):
        troubles.append(f"{side.server.name}: upsert gave {upserted}, then Total {total}")
    if inserts != [204, 409]:
        troubles.append(f"{side.server.name}: two equal inserts gave {inserts}")
    return troubles


def check_inserted(side: Side, workload: str, run: Run, clients: int) -> list[str]:
    """What the latest W2 or W4 run acknowledged must be there; look at some of it."""
    step = GROUP_OPERATIONS if workload == "W4" else 1
    # wrk draws the first request as a probe and never sends it; the last ones were cut off.
    first = -(-side.drawn_from // step) * step + step
    count = (run.answered - clients) * step
    if count <= 0:
        return []
    requests = Requests(side.server.port)
    numbers = [first + random.randrange(count) for _ in range(20)]
    with BlockingConnection(side.server.port) as connection:
        lost = [n for n in numbers if connection.exchange(requests.get(n)).status != 200]
    return [f"{side.server.name}: {workload} acknowledged, not found: {row_key(n)}" for n in lost]


def _check_point(side: Side, connection: BlockingConnection) -> Iterator[str]:
    number = _some(side)
    answer = connection.exchange(Requests(side.server.port).get(number))
    if answer.status != 200:
        yield f"W1: {answer.status}"
        return
    found, sent = _json(answer), json.loads(entity(number))
    missing = {"odata.metadata", "odata.etag", "Timestamp"} - found.keys()
    different = [name for name, value in sent.items() if found.get(name) != value]
    if missing or different:
        yield f"W1: missing {sorted(missing)}, different {different}"


def _check_range(side: Side, connection: BlockingConnection) -> Iterator[str]:
    first = range_start(_some(side))
    answer = connection.exchange(Requests(side.server.port).range_of(first))
    wanted = [row_key(number) for number in range(first, first + RANGE_ENTITIES)]
    if answer.status != 200 or _row_keys(answer) != wanted:
        yield f"W5: {answer.status}, not the 100 entities in order"


def _check_filter(side: Side, connection: BlockingConnection) -> Iterator[str]:
    number = _some(side)
    answer = connection.exchange(Requests(side.server.port).bucket_of(number))
    start = number // PARTITION_ENTITIES * PARTITION_ENTITIES + number % BUCKETS
    wanted = [row_key(n) for n in range(start, start + PARTITION_ENTITIES, BUCKETS)]
    if answer.status != 200 or _row_keys(answer) != wanted:
        yield f"W6: {answer.status}, not the 100 entities of {partition_key(number)} in order"


def _check_signature(side: Side, connection: BlockingConnection) -> Iterator[str]:
    request = Requests(side.server.port).get_with_bad_signature(_some(side))
    status = connection.exchange(request).status
    if status != 403:
        yield f"a bad signature gave {status}"


def _some(side: Side) -> int:
    return random.randrange(side.load.entities)


def _row_keys(answer: Answer) -> list[str]:
    return [one["RowKey"] for one in _json(answer)["value"]]


def _json(answer: Answer) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.body or b"{}")
    return found
