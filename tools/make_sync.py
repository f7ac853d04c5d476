"""Generate the synchronous twins of asynchronous modules.

    python tools/make_sync.py [--check]

With `--check` nothing is written: the names of stale files are printed, and the exit status is 1.
The reasons are in docs/decisions/0026-async-by-hand-sync-generated.md.
"""

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from sync_translation import Renames, translate

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src/partita"
NOTICE = "Generated from {source} by tools/make_sync.py. Do not edit: change that file instead."
FIXES = (("check", "--select", "I,F401", "--fix-only"), ("format",))


@dataclass(frozen=True)
class Twin:
    """A synchronous module and the asynchronous one that it is translated from."""

    source: str
    target: str
    summary: str
    """The first line of its docstring."""
    renames: Renames = field(default_factory=Renames)

    def text(self) -> str:
        notice = NOTICE.format(source=Path(self.source).name)
        docstring = f"{self.summary}\n\n{notice}\n"
        return translate((PACKAGE / self.source).read_text("utf-8"), docstring, self.renames)


GENERATED = (
    Twin(
        "patterns/aio.py",
        "patterns/sync.py",
        "The synchronous API: the names of `partita.patterns`, without asyncio.",
        Renames(
            names={
                "AsyncPort": "SyncPort",
                "AsyncTurns": "Turns",
                "open_async": "open_sync",
            },
            modules={
                "partita.patterns.ports.aio_port": "partita.patterns.ports.sync_port",
                "partita.patterns.connect": "partita.patterns.sync",
            },
        ),
    ),
)


def generate(twin: Twin) -> str:
    """Return the text of a generated module, formatted as the rest of the project."""
    text = twin.text()
    for fix in FIXES:
        name = f"src/partita/{twin.target}"
        command = [sys.executable, "-m", "ruff", *fix, "--quiet", "--stdin-filename", name, "-"]
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, check=True, cwd=PROJECT
        )
        text = done.stdout
    return text


def main() -> int:
    is_check = "--check" in sys.argv[1:]
    stale = 0
    for twin in GENERATED:
        target = PACKAGE / twin.target
        text = generate(twin)
        if target.exists() and target.read_text("utf-8") == text:
            continue
        stale += 1
        print(f"{'stale' if is_check else 'generated'}: {target.relative_to(PROJECT)}")
        if not is_check:
            target.write_text(text, "utf-8")
    if is_check and stale:
        print("Run: python tools/make_sync.py")
    return int(is_check and stale > 0)


if __name__ == "__main__":
    sys.exit(main())
