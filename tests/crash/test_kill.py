import random
import threading
import time
from pathlib import Path

import pytest

from crash.live import GoneError, Ledger, Server, WireClient, serving
from support.repeats import repeat

ROUNDS = repeat(3, 8, 200)
CLIENTS = 3


def keep_writing(server: Server, number: int, ledger: Ledger, wrong: list[str]) -> None:
    client = WireClient(server.port)
    try:
        while True:
            if not ledger.work(client, number):
                wrong.append(f"client {number} was refused")
    except GoneError:
        client.close()


@pytest.mark.repeated
@pytest.mark.timeout(1800)
def test_a_killed_server_has_kept_every_acknowledged_write(tmp_path: Path) -> None:
    chance = random.Random(1)
    ledgers = [Ledger() for _ in range(CLIENTS)]
    wrong: list[str] = []
    rounds = 0
    # A busy machine may need more of them until every client was often told of success.
    while rounds < ROUNDS or not all(ledger.acknowledged > ROUNDS for ledger in ledgers):
        rounds += 1
        with serving(tmp_path) as server:
            client = WireClient(server.port)
            client.create_table()
            for ledger in ledgers:
                wrong += ledger.check(client)
            client.close()
            threads = [
                threading.Thread(target=keep_writing, args=(server, number, ledger, wrong))
                for number, ledger in enumerate(ledgers)
            ]
            for thread in threads:
                thread.start()
            time.sleep(chance.uniform(0.05, 0.6))
            server.kill()
            for thread in threads:
                thread.join()
        assert wrong == []
    with serving(tmp_path) as server:
        client = WireClient(server.port)
        for ledger in ledgers:
            wrong += ledger.check(client)
        client.close()
        assert server.stop() == 0

    print(f"{rounds} kills, {sum(ledger.acknowledged for ledger in ledgers)} acknowledged writes")
    assert wrong == []


def test_the_ledger_finds_a_lost_write(tmp_path: Path) -> None:
    ledger = Ledger()
    with serving(tmp_path) as server:
        client = WireClient(server.port)
        client.create_table()
        for _ in range(20):
            assert ledger.work(client, 0)
        client.put("p0", "r1", -1)
        client.put("g0-0", "r3", -2)

        wrong = ledger.check(client)
        client.close()

    assert [line.split()[0] for line in wrong] == ["p0/r1", "g0-0"]
