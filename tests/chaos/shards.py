"""Writers on two shards of PostgreSQL while a range moves to and fro, direct and pooled.

Writers and the mover are processes that are killed and stopped; the ledger of what the writers
were told is here. All reach PostgreSQL through a proxy; in the pooled scenario the writers go
through a pooler in transaction mode as well, and the mover past it.
"""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sqlalchemy import make_url

from chaos import shard_mover
from chaos.report import Outcome
from chaos.scenario import RECOVERY_SECONDS_MAX, Run, Scenario
from chaos.shard_map import TENANTS, create_map, differences
from partita.shards import ShardMapManager
from partita.shards.moving import move
from shards import writer_process
from shards.test_writers import Ledger
from shards.writer_process import POOLED
from support import postgres
from support.pooler import TransactionPooler
from support.proxy import Direction, Proxies, Proxy
from support.routed import Routed

WRITERS = 4
MOVES_MIN = 3
"""Completed moves without which a run proves little."""
SETTLE_SECONDS = 60.0


class Notes:
    """The processes, their ledger and the proxy before the databases."""

    def __init__(self, run: Run, urls: list[str], proxy: Proxy, *, is_pooled: bool) -> None:
        self.urls = urls
        self.proxy = proxy
        self.chance = run.chance
        self.ledger = Ledger()
        self.moves = 0
        self.last_move = ""
        self.unheard = 0
        self._modes = ("pooled",) if is_pooled else ()
        # Past the pooler a mover has sessions of its own; without one it shares the proxy.
        self._mover_port = postgres.server().port if is_pooled else proxy.port
        self._mover_modes = ("naive",) if run.is_broken else ()
        self._told = threading.Condition()
        self._numbers = 0
        self.writers: dict[int, subprocess.Popen[str]] = {}
        self.mover = self._start_mover()
        for _ in range(WRITERS):
            self._start_writer()

    def _start(self, *command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def _start_mover(self) -> "subprocess.Popen[str]":
        path = str(Path(shard_mover.__file__))
        process = self._start(path, self.urls[0], str(self._mover_port), *self._mover_modes)
        threading.Thread(target=self._count_moves, args=(process,), daemon=True).start()
        return process

    def _count_moves(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.moves += line == "moved\n"
            self.last_move = line.strip()

    def _start_writer(self) -> None:
        self._numbers += 1
        path, tenants = str(Path(writer_process.__file__)), ",".join(map(str, TENANTS))
        process = self._start(
            path, self.urls[0], str(self._numbers), "always", tenants, *self._modes
        )
        self.writers[self._numbers] = process
        thread = threading.Thread(target=self._listen, args=(process,), daemon=True)
        thread.start()

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                with self._told:
                    self.ledger.read(line)
                    self._told.notify_all()

    def recovered(self, since: float) -> float | None:
        """Wait until every writer has committed since then; return for how long."""
        with self._told:
            waiting = {*self.writers}
            before = set(self.ledger.done)

            def all_wrote() -> bool:
                new = self.ledger.done - before
                return waiting <= {number // writer_process.IDS_PER_WRITER for _, number in new}

            is_back = self._told.wait_for(all_wrote, RECOVERY_SECONDS_MAX)
        return time.monotonic() - since if is_back else None

    # --- faults -----------------------------------------------------------------------------

    def kill_mover(self) -> float:
        self.mover.kill()
        self.mover.wait()
        self.mover = self._start_mover()
        return time.monotonic()

    def freeze_mover(self) -> float:
        self.mover.send_signal(signal.SIGSTOP)
        time.sleep(self.chance.uniform(0.5, 3.0))
        self.mover.send_signal(signal.SIGCONT)
        return time.monotonic()

    def kill_writer(self) -> float:
        number = self.chance.choice(list(self.writers))
        process = self.writers.pop(number)
        process.kill()
        process.wait()
        self.unheard += 1
        self._start_writer()
        return time.monotonic()

    def reset(self) -> float:
        self.proxy.drop()
        time.sleep(self.chance.uniform(0.1, 0.5))
        self.proxy.heal()
        return time.monotonic()

    def lose_answers(self) -> float:
        self.proxy.blackhole(Direction.ANSWERS)
        time.sleep(self.chance.uniform(0.5, 2.0))
        self.proxy.heal()
        return time.monotonic()

    # --- the end ----------------------------------------------------------------------------

    def stop_writers(self) -> None:
        for process in self.writers.values():
            assert process.stdin is not None
            process.stdin.close()
        for process in self.writers.values():
            process.wait(SETTLE_SECONDS)

    def wait_for_moves(self) -> list[str]:
        """Let the mover complete what it began; then end it between two moves or in one."""
        deadline = time.monotonic() + SETTLE_SECONDS
        wanted = max(self.moves + 1, MOVES_MIN)
        while self.moves < wanted and time.monotonic() < deadline:
            time.sleep(0.05)
        self.mover.kill()
        self.mover.wait()
        if self.moves >= wanted:
            return []
        return [f"only {self.moves} of {wanted} moves were completed, then: {self.last_move}"]

    def close(self) -> None:
        for process in (self.mover, *self.writers.values()):
            process.kill()
            process.wait()


FAULTS: dict[str, Callable[[Notes], float]] = {
    "kill of the mover": Notes.kill_mover,
    "SIGSTOP of the mover": Notes.freeze_mover,
    "kill of a writer": Notes.kill_writer,
    "reset": Notes.reset,
    "blackhole of answers": Notes.lose_answers,
}


@contextlib.contextmanager
def databases(is_pooled: bool) -> Iterator[tuple[list[str], Proxy]]:
    """Yield the URLs of a catalog and two shards, at the port of a proxy."""
    with contextlib.ExitStack() as stack:
        stack.callback(postgres.stop_server)
        direct = [postgres.postgres_url(name) for name in ("catalog", "one", "two")]
        port = postgres.server().port
        if is_pooled:
            port = stack.enter_context(TransactionPooler(port, rotates=True)).port
        proxy = stack.enter_context(Proxies()).to(port)
        changed = [make_url(url).set(port=proxy.port) for url in direct]
        urls = [url.render_as_string(hide_password=False) for url in changed]
        yield [direct[0], *urls[1:]], proxy


def settle(notes: Notes, *, is_broken: bool) -> list[str]:
    """Stop the writers, complete the moves, and compare the shards with the ledger."""
    notes.stop_writers()
    wrong = [] if is_broken else notes.wait_for_moves()
    port = postgres.server().port
    with ShardMapManager.open(
        notes.urls[0],
        credentials=lambda location: make_url(location.text).set(port=port),
        engine_options=POOLED,
    ) as manager:
        move.resume(manager)
        ledger = notes.ledger
        failed = {_failed(line) for line in ledger.failed}
        routed = Routed(manager, notes.urls)
        return wrong + differences(routed, ledger.done, ledger.doubt | failed, notes.unheard)


def _failed(line: str) -> tuple[int, int]:
    tenant, number, _ = line.split()
    return int(tenant), int(number)


def run_shards(run: Run, *, is_pooled: bool) -> Outcome:
    outcome = Outcome()
    with databases(is_pooled) as (urls, proxy):
        create_map(*urls)
        with contextlib.closing(Notes(run, urls, proxy, is_pooled=is_pooled)) as notes:
            notes.recovered(time.monotonic())
            names = ["kill of a writer"] if run.is_broken else list(FAULTS)
            for name in run.faults(names):
                time.sleep(run.chance.uniform(0.5, 2.0))
                seconds = notes.recovered(FAULTS[name](notes))
                outcome.faults[name] += 1
                if seconds is None:
                    late = f"no answer {RECOVERY_SECONDS_MAX:.0f} s after {name}"
                    outcome.violations.append(late)
                    break
                outcome.recoveries.append(seconds)
            outcome.violations += settle(notes, is_broken=run.is_broken)
            outcome.acknowledged = len(notes.ledger.done)
    return outcome


def direct(run: Run) -> Outcome:
    return run_shards(run, is_pooled=False)


def pooled(run: Run) -> Outcome:
    return run_shards(run, is_pooled=True)


SIBLING = "a mover without capture"
SCENARIOS = [
    Scenario("shards, direct", SIBLING, direct),
    Scenario("shards, pooled", SIBLING, pooled),
]
