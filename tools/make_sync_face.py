"""Make src/partita/patterns/sync.py from aio.py: one face written once.

    python tools/make_sync_face.py [--check]

Every step is decided in the core, so that the faces differ in `await` alone.
"""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent / "src/partita/patterns"
RULES = (
    (
        r'^"""The asynchronous face.*?"""',
        (
            '"""The synchronous face: the same names as `partita.patterns`, without a loop.\n\n'
            "Made from aio.py by tools/make_sync_face.py: edit that file instead.\n"
            '"""'
        ),
    ),
    (r"\n    >>> import asyncio", ""),
    (
        r">>> from partita.patterns import connect, entity",
        (
            ">>> from partita.patterns import entity\n"
            "    >>> from partita.patterns.sync import connect"
        ),
    ),
    (r"asyncio\.run\((.*?)\)\n", r"\1\n"),
    (
        r"from partita\.patterns\.aio_port import AsyncPort, run\n",
        "from partita.patterns.ports.sync_port import SyncPort, run_sync\n",
    ),
    (r"await run\(", "run_sync("),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAsyncPort\b", "SyncPort"),
    (r"\bAsyncTurns\b", "Turns"),
    (r"\bopen_async\b", "open_sync"),
    (r"__a(enter|exit|iter)__", r"__\1__"),
)


def made() -> str:
    """Return the synchronous face."""
    text = (FOLDER / "aio.py").read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text, flags=re.DOTALL)
    for fix in (["check", "--select", "I", "--fix-only"], ["format"]):
        command = ["ruff", *fix, "--quiet", "--stdin-filename", "src/partita/patterns/sync.py", "-"]
        text = subprocess.run(
            [sys.executable, "-m", *command],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=FOLDER.parent.parent.parent,
        ).stdout
    return text


def main() -> int:
    target = FOLDER / "sync.py"
    text = made()
    if "--check" in sys.argv:
        return int(target.read_text() != text)
    target.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
