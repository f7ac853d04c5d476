"""Runs verbs of the command line as a user does, in a folder of the test."""

import contextlib
import io
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from partita.cli.main import main
from support.live import PATIENCE_SECONDS


class Shell:
    """Runs verbs in a folder, with PARTITA_CONNECT."""

    def __init__(self, folder: Path, where: str) -> None:
        self.folder = folder
        self.environment = os.environ | {"PARTITA_CONNECT": where}

    def start(self, *words: str) -> subprocess.Popen[str]:
        # A background job of a shell ignores SIGINT, and so would what it starts.
        start = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); "
        start += "import sys; from partita.cli.main import main; sys.exit(main())"
        return subprocess.Popen(
            [sys.executable, "-c", start, *words],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, status: int = 0) -> str:
        out, err = self._run(words, status)
        return out + err

    def facts(self, *words: str, status: int = 0) -> Any:
        return json.loads(self._run((*words, "--json"), status)[0])

    def _run(self, words: tuple[str, ...], status: int) -> tuple[str, str]:
        """Run a verb in this process, in a thread: the test has an event loop of its own."""
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in "12")
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            with ThreadPoolExecutor(1) as thread:
                found = thread.submit(main, words).result(PATIENCE_SECONDS)
            out.flush()
            err.flush()
        said, told = (each.buffer.getvalue().decode() for each in (out, err))
        assert found == status, said + told
        return said, told

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text, encoding="utf-8")
        return name
