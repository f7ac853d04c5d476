"""A live `partita serve`: the process that the wire tests talk to, and only by its endpoint."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60
"""Far beyond what anything here takes, also on a busy machine."""
ANY_PORTS = ("--blob-port", "0", "--queue-port", "0", "--table-port", "0")


class LiveServer:
    """One server process on free ports. Its folder outlives it, so it can be restarted."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self._folder = folder
        self._flags = flags
        self._process: subprocess.Popen[str] | None = None
        self.announced: dict[str, Any] = {}
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "partita.cli.main", "serve", "--json"]
        flags = [*ANY_PORTS, "--no-request-log", *self._flags]
        process = subprocess.Popen(
            [*command, *flags], cwd=self._folder, stdout=subprocess.PIPE, text=True
        )
        self._process = process
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            self.kill()
            raise AssertionError("the server said nothing and ended")
        self.announced = json.loads(line)

    def stop(self) -> None:
        """End it as an operator does; a server that does not end in time is killed."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            assert self._process.wait(PATIENCE_SECONDS) == 0
        finally:
            self.kill()

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait(PATIENCE_SECONDS)
        if process.stdout is not None:
            process.stdout.close()

    def restart(self) -> None:
        self.stop()
        self.start()

    def cpu_seconds(self) -> float:
        """Return for how long it has computed; a busy machine adds nothing to that.

        Known on Linux only; elsewhere it is always 0.
        """
        assert self._process is not None
        if sys.platform != "linux":
            return 0.0
        numbers = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")

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
