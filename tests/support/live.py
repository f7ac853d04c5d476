"""A live `partita serve`: the process that the wire tests talk to, and only by its endpoint.

PARTITA_TEST_STORE=postgresql lets every server keep its accounts in a PostgreSQL database of its
own, and PARTITA_TEST_FRONT_ENDS=2 starts two processes on it, which answer in turn;
PARTITA_TEST_POOLER=pgbouncer puts PgBouncer before it. PARTITA_TEST_SHARDS=3 makes it a fleet of
that many shards, whose ranges are split, merged and moved all the time. `python -m support.live`
runs such servers until Ctrl-C or SIGTERM, for test suites of other projects.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.balancer import Balancer

PATIENCE_SECONDS = 60
"""Far beyond what anything here takes, also on a busy machine."""
ANY_PORTS = ("--blob-port", "0", "--queue-port", "0", "--table-port", "0")
IS_ON_POSTGRESQL = os.environ.get("PARTITA_TEST_STORE", "sqlite") == "postgresql"
FRONT_ENDS = int(os.environ.get("PARTITA_TEST_FRONT_ENDS", "1")) if IS_ON_POSTGRESQL else 1
SHARDS = int(os.environ.get("PARTITA_TEST_SHARDS", "1")) if IS_ON_POSTGRESQL else 1
CHANGES = os.environ.get("PARTITA_TEST_CHANGES", "")
"""A file that gets a line of the number of changes when a fleet ends."""
ENDPOINTS = ("blob_endpoint", "queue_endpoint", "table_endpoint")

needs_folder = pytest.mark.skipif(
    IS_ON_POSTGRESQL, reason="it works on the files of an account, and PostgreSQL has them"
)
"""Marks a test of what only a server with a folder has."""


def on_every_front_end(is_known: Callable[[], bool]) -> bool:
    """Wait until each front end knows a change of service properties; return whether they do.

    The front end that was asked knows it at once, others when the database tells them.
    """
    ends_at = time.monotonic() + PATIENCE_SECONDS
    in_a_row = 0
    while in_a_row < FRONT_ENDS and time.monotonic() < ends_at:
        in_a_row = in_a_row + 1 if is_known() else 0
        if FRONT_ENDS == 1:
            break
    return in_a_row == FRONT_ENDS


class LiveServer:
    """One server process on free ports. Its folder outlives it, so it can be restarted.

    On PostgreSQL it is one process or several, with the same accounts behind one address.
    """

    def __init__(self, folder: Path, *flags: str) -> None:
        self.folder = folder
        self._flags = _on_postgresql(folder, flags) if IS_ON_POSTGRESQL else flags
        self._processes: list[subprocess.Popen[str]] = []
        self._balancers: list[Balancer] = []
        self._mover: subprocess.Popen[str] | None = None
        self.changes: dict[str, int] = {}
        """How often ranges were split, merged and moved."""
        self.announced: dict[str, Any] = {}
        self.start()

    def start(self) -> None:
        announced = [self._start_one() for _ in range(FRONT_ENDS)]
        self.announced = announced[0]
        if FRONT_ENDS > 1:
            self._balance(announced)
        if SHARDS > 1:
            self._mover = subprocess.Popen(
                [sys.executable, "-m", "support.fleet_processes", "rebalance", self._flags[1]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
                text=True,
            )

    def _start_one(self) -> dict[str, Any]:
        command = [sys.executable, "-m", "partita.cli.main", "serve", "--json"]
        flags = [*ANY_PORTS, "--no-request-log", *self._flags]
        process = subprocess.Popen(
            [*command, *flags], cwd=self.folder, stdout=subprocess.PIPE, text=True
        )
        self._processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self.kill()
            raise AssertionError("the server said nothing and ended")
        announced: dict[str, Any] = json.loads(line)
        return announced

    def _balance(self, announced: list[dict[str, Any]]) -> None:
        """Replace the endpoints by those of balancers."""
        for name in ENDPOINTS:
            found = [each[name] for each in announced]
            if found[0] is None:
                continue
            balancer = Balancer([_port_of(endpoint) for endpoint in found])
            self._balancers.append(balancer)
            replaced = found[0].replace(f":{_port_of(found[0])}/", f":{balancer.port}/")
            text = self.announced["connection_string"]
            self.announced["connection_string"] = text.replace(found[0], replaced)
            self.announced[name] = replaced

    def stop(self) -> None:
        """End it as an operator does; a server that does not end in time is killed."""
        try:
            for process in self._processes:
                process.send_signal(signal.SIGTERM)
            assert [process.wait(PATIENCE_SECONDS) for process in self._processes] == [0] * len(
                self._processes
            )
        finally:
            self.kill()

    def kill(self) -> None:
        self._end_mover()
        processes, self._processes = self._processes, []
        balancers, self._balancers = self._balancers, []
        for process in processes:
            process.kill()
            process.wait(PATIENCE_SECONDS)
            if process.stdout is not None:
                process.stdout.close()
        for balancer in balancers:
            balancer.close()

    def _end_mover(self) -> None:
        mover, self._mover = self._mover, None
        if mover is None:
            return
        try:
            output, _ = mover.communicate("", timeout=PATIENCE_SECONDS)
        finally:
            mover.kill()
        for name, count in json.loads(output).items():
            self.changes[name] = self.changes.get(name, 0) + count
        if CHANGES:
            with Path(CHANGES).open("a") as file:
                print(output.strip(), file=file)

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def pid(self) -> int:
        """The process id of the first front end."""
        return self._processes[0].pid

    def cpu_seconds(self) -> float:
        """Return for how long it has computed; a busy machine adds nothing to that.

        Known on Linux only; elsewhere it is always 0.
        """
        assert self._processes
        if sys.platform != "linux":
            return 0.0
        return sum(_cpu_seconds(process.pid) for process in self._processes)

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return self.endpoint.rpartition("/")[0]

    @property
    def endpoint(self) -> str:
        """That of the tables."""
        text: str = self.announced["table_endpoint"]
        return text

    @property
    def queue_endpoint(self) -> str:
        text: str = self.announced["queue_endpoint"]
        return text

    @property
    def blob_endpoint(self) -> str:
        text: str = self.announced["blob_endpoint"]
        return text

    @property
    def connection_string(self) -> str:
        text: str = self.announced["connection_string"]
        return text


def _on_postgresql(folder: Path, flags: tuple[str, ...]) -> tuple[str, ...]:
    """Return the flags of a server on a new database; memory is as good as that."""
    from support.fleet_databases import create_fleet_database

    kept = [each for each in flags if each != "--in-memory"]
    for each in ("--path", "--scrub-days"):
        if each in kept:
            pytest.skip(f"{each} does not apply to PostgreSQL")
    urls = [create_fleet_database(folder.name) for _ in range(SHARDS)]
    if SHARDS > 1:
        from support.many_shards import join_fleet

        join_fleet(urls)
    store = ("--store", urls[0])
    blobs = folder.absolute() / "blobs"
    blobs.mkdir(exist_ok=True)
    return (*store, "--blob-store", blobs.as_uri(), *kept)


def _port_of(endpoint: str) -> int:
    return int(endpoint.rpartition("/")[0].rpartition(":")[2])


def _cpu_seconds(pid: int) -> float:
    numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        # Not Ctrl-C only: a process in the background has SIGINT ignored.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        live = LiveServer(Path(folder))
        print(json.dumps(live.announced), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        live.kill()
        if live.changes:
            print(json.dumps(live.changes), flush=True)


if __name__ == "__main__":
    main()
