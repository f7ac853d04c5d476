"""Tables on the terminal, JSON for later, plots for people."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.tables import servers
from bench.tables.load import LoadError
from bench.tables.measure import RunError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUT = servers.PROJECT / "bench" / "out"


def run_script(main: Callable[[], bool]) -> None:
    """Run a benchmark and exit: 1 if it says that something failed, or cannot be set up."""
    try:
        failed = main()
    except (servers.SetUpError, RunError, LoadError) as error:
        sys.exit(f"{type(error).__name__}: {error}")
    sys.exit(1 if failed else 0)


def read_options(
    parser: argparse.ArgumentParser, quick_help: str, **quick: object
) -> argparse.Namespace:
    """Parse the arguments, also --demand and --quick, which sets the options given here."""
    parser.add_argument("--quick", action="store_true", help=quick_help)
    parser.add_argument("--demand", action="store_true", help="a missed target is a failure")
    options = parser.parse_args()
    if options.quick:
        vars(options).update(quick)
    return options


def has_missed(verdicts: Iterable[tuple[str, str]]) -> bool:
    """Return whether a target was missed."""
    return any(word != "yes" for _, word in verdicts)


def machine() -> dict[str, object]:
    """Describe where figures were taken; figures of two machines do not compare."""
    models = [line for line in _read("/proc/cpuinfo").splitlines() if "model name" in line]
    wrk = shutil.which("wrk")
    return {
        "cpu": models[0].partition(":")[2].strip() if models else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "wrk": _first_line([wrk, "--version"]) if wrk else None,
        "azurite": servers.azurite_version(),
    }


def save(name: str, document: dict[str, Any]) -> Path:
    """Write the document under bench/out and return its path; a plot takes the same stem."""
    OUT.mkdir(parents=True, exist_ok=True)
    path = OUT / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}.json"
    path.write_text(json.dumps(document, indent=1, default=vars) + "\n")
    print(f"wrote {path.relative_to(servers.PROJECT)}")
    return path


def figure(columns: int, rows: int = 1) -> "tuple[Figure, list[Axes]] | None":
    """Return an empty figure and its axes, or None where matplotlib is missing."""
    try:
        import matplotlib as mpl  # noqa: PLC0415 - figures are a luxury, the numbers are not
        from matplotlib import pyplot as plt  # noqa: PLC0415
    except ImportError:
        print("no matplotlib: no plot")
        return None
    mpl.use("Agg")
    drawn, axes = plt.subplots(rows, columns, figsize=(6 * columns, 3.6 * rows), squeeze=False)
    return drawn, list(axes.flat)


def save_figure(drawn: "Figure", beside: Path) -> None:
    path = beside.with_suffix(".png")
    drawn.tight_layout()
    drawn.savefig(path, dpi=110)
    print(f"wrote {path.relative_to(servers.PROJECT)}")


def print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns, the first to the left, the others to the right."""
    widths = [max(len(row[at]) for row in [head, *rows]) for at in range(len(head))]
    for row in [head, ["-" * width for width in widths], *rows]:
        first, *others = [
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join([first, *others]))


def amount(value: float) -> str:
    """Print a rate with about three digits."""
    return f"{value / 1000:.1f}k" if value >= 10_000 else f"{value:.0f}"


def verdict(*, met: bool, busy: bool = False) -> str:
    """Say yes, NO, or busy: others used the machine, so the figures prove nothing."""
    if busy:
        return "busy"
    return "yes" if met else "NO"


def print_verdicts(verdicts: Sequence[tuple[str, str]]) -> None:
    for sentence, word in verdicts:
        print(f"{word:>4}  {sentence}")
    if any(word == "busy" for _, word in verdicts):
        print("busy: others used the machine during the run, so there is no verdict")


def _read(path: str) -> str:
    return Path(path).read_text() if Path(path).exists() else ""


def _first_line(words: list[str]) -> str:
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    return (ended.stdout or ended.stderr).splitlines()[0]
