"""Commands that run on a terminal, which is read while they run: what they draw may be long."""

import contextlib
import os
import pty
import subprocess
import termios
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple


class Drawn(NamedTuple):
    """The end of a command, its output in a pipe, and what it drew on the terminal."""

    status: int
    out: str
    drawn: str


def run_on_terminal(
    command: Sequence[str],
    *,
    cwd: Path | None = None,
    size: tuple[int, int] = (24, 80),
    answer: str | None = None,
    is_output_drawn: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Drawn:
    """Run a command with its errors on a terminal; with an `answer` its input is one too."""
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, size)
    if answer is not None:
        os.write(terminal, answer.encode())
    drawn: list[bytes] = []
    reader = threading.Thread(target=_read, args=(terminal, drawn))
    reader.start()
    done = subprocess.run(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL if answer is None else end,
        stdout=end if is_output_drawn else subprocess.PIPE,
        stderr=end,
        env={**os.environ, "TERM": "xterm", **(variables or {})},
        timeout=120,
        check=False,
    )
    os.close(end)
    reader.join()
    os.close(terminal)
    return Drawn(done.returncode, (done.stdout or b"").decode(), b"".join(drawn).decode())


def _read(terminal: int, drawn: list[bytes]) -> None:
    with contextlib.suppress(OSError):  # Linux reports a closed other end as an error
        while chunk := os.read(terminal, 65536):
            drawn.append(chunk)
