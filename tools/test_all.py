"""Run the core of the tests on every Python that this machine has.

`make test-all` finds interpreters from 3.11 on in the search path and among those of pyenv, gives
each an environment of its own (`make test PYTHON=…`), and prints which passed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

OLDEST, NEWEST = 11, 20
"""Minor versions that are looked for; those that do not exist yet are not found."""
CORE = "tests/unit tests/conformance tests/wire tests/guide tests/patterns"
"""What is run: rules, stores, the wire with the official clients."""


def interpreters() -> Iterator[tuple[str, str]]:
    """Yield the version and the path of each interpreter, oldest first."""
    for minor in range(OLDEST, NEWEST):
        name = f"python3.{minor}"
        folders = sorted(Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin"))
        for path in (shutil.which(name), *(str(folder / name) for folder in reversed(folders))):
            version = None if path is None else version_of(path)
            if path is not None and version is not None:
                yield version, path
                break


def version_of(path: str) -> str | None:
    """Return the version of an interpreter; None if it does not run."""
    code = "import platform, venv; print(platform.python_version())"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def main() -> int:
    """Run the tests on each interpreter; return how many failed."""
    without = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    environment = {name: text for name, text in os.environ.items() if name not in without}
    outcomes = []
    for version, path in interpreters():
        print(f"== Python {version}: {path}", flush=True)
        command = ["make", "test", f"PYTHON={path}", f"ARGS={CORE}"]
        done = subprocess.run(command, check=False, env=environment)
        outcomes.append((version, done.returncode))
    for version, status in outcomes:
        print(f"Python {version}: {'passed' if status == 0 else 'failed'}")
    return sum(status != 0 for _, status in outcomes)


if __name__ == "__main__":
    sys.exit(main())
