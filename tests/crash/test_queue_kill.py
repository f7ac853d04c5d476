import random
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from crash.live import GoneError
from crash.queue_live import (
    KEPT_SECONDS,
    SERVE,
    QueueLedger,
    QueueServer,
    QueueWireClient,
    a_text,
    serving_queues,
)
from support.repeats import repeat

ROUNDS = repeat(3, 8, 200)
HASTY_ROUNDS = 40
CLIENTS = 3
HASTY = (str(Path(__file__).with_name("hasty_server.py")),)


def keep_working(server: QueueServer, number: int, ledger: QueueLedger) -> None:
    client = QueueWireClient(server.port, f"work-{number}")
    try:
        ledger.work(client)
    except GoneError:
        client.close()


def run_until_killed(
    folder: Path, ledgers: Sequence[QueueLedger], seconds: float, program: Sequence[str]
) -> None:
    with serving_queues(folder, program) as server:
        for number, ledger in enumerate(ledgers):
            client = QueueWireClient(server.port, f"work-{number}")
            client.create()
            ledger.settle(client)
            client.close()
        threads = [
            threading.Thread(target=keep_working, args=(server, number, ledger))
            for number, ledger in enumerate(ledgers)
        ]
        for thread in threads:
            thread.start()
        time.sleep(seconds)
        server.kill()
        for thread in threads:
            thread.join()


def drain(folder: Path, ledgers: Sequence[QueueLedger]) -> list[str]:
    wrong: list[str] = []
    with serving_queues(folder) as server:
        for number, ledger in enumerate(ledgers):
            client = QueueWireClient(server.port, f"work-{number}")
            ledger.settle(client)
            wrong += ledger.drain(client)
            client.close()
        assert server.stop() == 0
    return wrong


def has_done_enough(ledger: QueueLedger) -> bool:
    return bool(ledger.acknowledged > ROUNDS and ledger.delete_told and ledger.put_told)


def test_a_ledger_recognizes_a_message_that_was_kept_before_the_answer_was_lost(
    tmp_path: Path,
) -> None:
    ledger = QueueLedger(1)
    with serving_queues(tmp_path) as server:
        client = QueueWireClient(server.port, "work-0")
        client.create()
        client.put(a_text(0))
        (delivery,) = client.get(1, 1)
        client.hide(delivery, KEPT_SECONDS)
        ledger.keep_asked[0] = delivery

        ledger.settle(client)

        client.close()
    assert ledger.wrong == []


@pytest.mark.repeated
@pytest.mark.timeout(1800)
def test_a_killed_server_delivers_every_acknowledged_message_until_it_is_deleted(
    tmp_path: Path,
) -> None:
    chance = random.Random(1)
    ledgers = [QueueLedger(seed) for seed in range(CLIENTS)]
    rounds = 0
    # A busy machine may need more of them until every client was often told of success.
    while rounds < ROUNDS or not all(map(has_done_enough, ledgers)):
        rounds += 1
        run_until_killed(tmp_path, ledgers, chance.uniform(0.05, 0.6), SERVE)
        assert [line for ledger in ledgers for line in ledger.wrong] == []

    wrong = drain(tmp_path, ledgers)

    print(f"{rounds} kills, {sum(ledger.acknowledged for ledger in ledgers)} acknowledged")
    assert wrong == []


@pytest.mark.proof
@pytest.mark.timeout(1800)
def test_the_ledger_finds_what_a_hasty_server_loses(tmp_path: Path) -> None:
    """A server that acknowledges before it commits must be found out."""
    chance = random.Random(2)
    wrong: list[str] = []
    for attempt in range(HASTY_ROUNDS):
        folder = tmp_path / str(attempt)
        ledgers = [QueueLedger(seed) for seed in range(CLIENTS)]
        run_until_killed(folder, ledgers, chance.uniform(0.2, 0.5), HASTY)
        wrong = drain(folder, ledgers)
        if wrong:
            break

    assert wrong != []
