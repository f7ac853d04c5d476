"""A live `partita console`: one that is not beside a server."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_SECONDS = 60


@contextmanager
def live_console(folder: Path, *flags: str) -> Iterator[str]:
    """Start a console on a free port; yield its address with the token."""
    command = [sys.executable, "-m", "partita.cli.main", "console", "--json", "--port", "0"]
    process = subprocess.Popen([*command, *flags], cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address: str = json.loads(process.stdout.readline())["console"]
        yield address
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        if process.stdout is not None:
            process.stdout.close()
