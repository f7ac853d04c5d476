"""A server that is killed while it purges a dropped table and vacuums the file."""

import contextlib
import itertools
import json
import random
import threading
import time
from pathlib import Path

import apsw
import pytest

from crash.live import ACCOUNT, GoneError, Ledger, Server, WireClient, serving
from partita.storage.database import DATABASE_FILE
from support.repeats import repeat

ROUNDS = repeat(3, 6, 100)
CLIENTS = 2
FILLERS, FILLER_ENTITIES = 3, 60
PROGRAM = Path(__file__).with_name("vacuuming_server.py")


def drop_filler(client: WireClient, number: int) -> None:
    """Create a table of some MiB and delete it: its pages become free."""
    name = f"Filler{number}"
    status, answer = client.send("POST", "Tables", json.dumps({"TableName": name}).encode())
    assert status in (201, 409), answer
    text = "x" * 30_000
    for row in range(FILLER_ENTITIES):
        body = json.dumps({"A": text, "B": text}).encode()
        client.send("PUT", f"{name}(PartitionKey='p',RowKey='{row}')", body)
    client.send("DELETE", f"Tables('{name}')")


def keep_dropping(server: Server, wrong: list[str]) -> None:
    client = WireClient(server.port)
    try:
        for number in itertools.cycle(range(FILLERS)):
            drop_filler(client, number)
    except GoneError:
        client.close()
    except AssertionError as error:
        wrong.append(str(error))


def keep_writing(server: Server, number: int, ledger: Ledger, wrong: list[str]) -> None:
    client = WireClient(server.port)
    try:
        while True:
            if not ledger.work(client, number):
                wrong.append(f"client {number} was refused")
    except GoneError:
        client.close()


def problems_of(database: Path) -> list[str]:
    with contextlib.closing(apsw.Connection(str(database))) as opened:
        found = opened.execute("PRAGMA integrity_check").fetchall()
    return [str(line) for (line,) in found if line != "ok"]


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_a_server_killed_in_a_vacuum_has_kept_every_acknowledged_write(tmp_path: Path) -> None:
    chance = random.Random(5)
    ledgers = [Ledger() for _ in range(CLIENTS)]
    wrong: list[str] = []
    database = tmp_path / ACCOUNT / DATABASE_FILE
    for _ in range(ROUNDS):
        with serving(tmp_path, program=PROGRAM) as server:
            client = WireClient(server.port)
            client.create_table()
            for ledger in ledgers:
                wrong += ledger.check(client)
            client.close()
            threads = [
                threading.Thread(target=keep_writing, args=(server, number, ledger, wrong))
                for number, ledger in enumerate(ledgers)
            ]
            threads.append(threading.Thread(target=keep_dropping, args=(server, wrong)))
            for thread in threads:
                thread.start()
            time.sleep(chance.uniform(0.3, 1.5))
            server.kill()
            for thread in threads:
                thread.join()
        wrong += problems_of(database)
        assert wrong == []
    with serving(tmp_path, program=PROGRAM) as server:
        client = WireClient(server.port)
        for ledger in ledgers:
            wrong += ledger.check(client)
        for number in range(FILLERS):
            drop_filler(client, number)
        free = 1
        with contextlib.closing(apsw.Connection(str(database))) as beside:
            beside.set_busy_timeout(10_000)
            while free or beside.execute("SELECT EXISTS (SELECT 1 FROM dropped)").get:
                time.sleep(0.05)
                free = beside.pragma("freelist_count")
        client.close()
        assert server.stop() == 0

    print(f"{sum(ledger.acknowledged for ledger in ledgers)} acknowledged writes")
    assert wrong == []
    assert problems_of(database) == []
    assert database.stat().st_size < FILLER_ENTITIES * 60_000
