"""Instructions of a request of each workload of tables, and of the other systems, by callgrind.

    python bench/service/instructions.py [--base REVISION] [--only W1,W2] [--save]
    python bench/service/instructions.py --systems [--base REVISION] [--only state-set] [--save]
    python bench/service/instructions.py --metering [--base REVISION]

Counts of instructions do not depend on the load of the machine: two runs differ by less than
0.1 %. They do depend on the interpreter, so that a comparison counts both revisions here. The exit
status is 1 if a workload takes over 3 % more than at the base. `--metering` counts a point read
without counters, with them, and with heat. The C library copies without `rep movsb` here, of which
callgrind counts one instruction per byte. `--systems` counts one operation of queues, blobs,
reliable states, routed sessions, typed entities and the PostgreSQL store; those with threads differ
by up to 2 % between two runs.
"""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.tables.report import print_table
from bench.tables.run import TITLES

HERE = Path(__file__).resolve()
REPOSITORY = HERE.parents[2]
TABLES, OTHERS = "counted_loop.py", "counted_systems.py"
REQUESTS = {
    "W1": 800, "W2": 400, "W3": 400, "W4": 16, "W5": 160, "W6": 32, "W7": 20, "W8": 800,
}  # fmt: skip
"""Counted requests: a multiple of the 16 clients, a few seconds under valgrind."""
SYSTEMS = {
    "queue-cycle": 100, "blob-get": 100, "blob-put": 60, "state-get": 500, "state-set": 300,
    "state-scan": 10, "state-queue": 150, "session": 100, "save": 100, "outbox": 100,
    "pg-get": 200, "pg-upsert": 200,
}  # fmt: skip
"""Counted operations of the other systems."""
MORE_MAX = 0.03
"""How many more instructions than at the base are accepted."""
METERING_MAX, HEAT_MAX = 0.02, 0.01
"""The parts of a point read that counters and heat may take."""
FIGURES = HERE.with_name("instructions.json")
TUNABLES = ":".join(f"glibc.cpu.x86_rep_{name}_threshold={1 << 30}" for name in ("movsb", "stosb"))
"""Let glibc copy long blocks by vectors; other C libraries ignore it."""


class CountError(Exception):
    """A revision whose instructions cannot be counted."""


class Checkout:
    """A folder with the source of one revision, and with a store that it has filled."""

    def __init__(self, folder: Path, *, is_filled: bool = True) -> None:
        self._folder = folder
        if is_filled:
            self._run([sys.executable], TABLES, "fill", str(folder / "filled"))

    def count(self, workload: str, mode: str = "served") -> float:
        """Return the instructions of one request, on a copy of the store."""
        requests = (REQUESTS | SYSTEMS)[workload]
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            store, out = Path(folder) / "store", Path(folder) / "callgrind.out"
            command = ["valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet"]
            command += [f"--callgrind-out-file={out}", sys.executable]
            if workload in SYSTEMS:
                store.mkdir()
                self._run(command, OTHERS, str(store), workload, str(requests))
            else:
                shutil.copytree(self._folder / "filled", store)
                self._run(command, TABLES, "count", str(store), workload, str(requests), mode)
            totals = [
                int(line.split(":")[1])
                for path in sorted(Path(folder).glob("callgrind.out*"))
                for line in path.read_text().splitlines()
                if line.startswith(("totals:", "summary:"))
            ]
        return max(totals) / requests

    def _run(self, command: Sequence[str], program: str, *arguments: str) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(self._folder / "src"),
            "PYTHONHASHSEED": "0",
            "PYTHONMALLOC": "pymalloc",
            "GLIBC_TUNABLES": TUNABLES,
        }
        words = [*command, str(HERE.with_name(program)), *arguments]
        ended = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
        if ended.returncode:
            message = f"{' '.join(arguments)} failed: {ended.stderr[-2000:]}"
            raise CountError(message)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--base", default="", help="a revision to compare with")
    parser.add_argument("--only", help="workloads or systems: W1,W5")
    parser.add_argument("--systems", action="store_true", help="the other systems, not tables")
    parser.add_argument("--metering", action="store_true", help="the cost of counters and heat")
    parser.add_argument("--save", action="store_true", help=f"write {FIGURES.name}")
    given = parser.parse_args()
    known = SYSTEMS if given.systems else REQUESTS
    workloads = given.only.split(",") if given.only else list(known)
    if not set(workloads) <= set(known):
        parser.error(f"--only takes some of {','.join(known)}")
    if shutil.which("valgrind") is None:
        print("note: valgrind is not installed: no instructions are counted")
        return 0
    with (
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads,
        _here(is_filled=not given.systems) as here,
    ):
        if given.metering:
            return _report_metering(here, threads)
        futures = {workload: threads.submit(here.count, workload) for workload in workloads}
        base = _count_base(given.base, workloads, threads) if given.base else {}
        found = {workload: future.result() for workload, future in futures.items()}
    if given.save:
        _save(found)
    return _report(found, base)


@contextmanager
def _here(*, is_filled: bool) -> Iterator[Checkout]:
    """Open a copy of the working tree, which may be edited meanwhile."""
    with tempfile.TemporaryDirectory(prefix="partita-instructions-") as folder:
        shutil.copytree(REPOSITORY / "src", Path(folder) / "src")
        yield Checkout(Path(folder), is_filled=is_filled)


def _count_base(
    revision: str, workloads: Sequence[str], threads: ThreadPoolExecutor
) -> dict[str, float]:
    """Return the figures of a revision; none, with a note, if it cannot be counted."""
    words = ["git", "-C", str(REPOSITORY), "archive", revision, "src"]
    with tempfile.TemporaryDirectory(prefix="partita-base-") as folder:
        try:
            archive = subprocess.run(words, capture_output=True, check=True).stdout
            with tarfile.open(fileobj=BytesIO(archive)) as files:
                files.extractall(folder, filter="data")
            base = Checkout(Path(folder), is_filled=not set(workloads) <= set(SYSTEMS))
            return dict(zip(workloads, threads.map(base.count, workloads), strict=True))
        except (OSError, subprocess.CalledProcessError, CountError) as error:
            print(f"note: nothing is compared, because {revision} cannot be counted: {error}")
            return {}


def _report(found: dict[str, float], base: dict[str, float]) -> int:
    """Print the figures; return 1 if one is too much above that of the base."""
    shares = {workload: found[workload] / base[workload] - 1 for workload in base}
    rows = [
        [
            f"{workload} {TITLES.get(workload, '')}".rstrip(),
            f"{base[workload] / 1000:,.1f}" if base else "-",
            f"{instructions / 1000:,.1f}",
            f"{shares[workload]:+.2%}" if base else "-",
        ]
        for workload, instructions in found.items()
    ]
    print_table(["thousands of instructions", "base", "now", "change"], rows)
    exceeded = [workload for workload, share in shares.items() if share > MORE_MAX]
    if exceeded:
        print(f"over {MORE_MAX:.0%} more instructions than at the base: {', '.join(exceeded)}")
    return 1 if exceeded else 0


def _report_metering(here: Checkout, threads: ThreadPoolExecutor) -> int:
    """Print the cost of counters and heat of a point read; return 1 if it is too high."""
    modes = ("off", "meter", "heat", "heat-exact")
    found = dict(zip(modes, threads.map(lambda mode: here.count("W1", mode), modes), strict=True))
    shares = {mode: found[mode] / found["off"] - 1 for mode in modes}
    rows = [[mode, f"{found[mode] / 1000:,.1f}", f"{shares[mode]:+.2%}"] for mode in modes]
    print_table(["thousands of instructions", "W1", "change"], rows)
    return 1 if shares["meter"] > METERING_MAX or shares["heat"] > HEAT_MAX else 0


def _save(found: dict[str, float]) -> None:
    """Write the figures, for information: those of two interpreters differ by 5 to 12 %."""
    kept = json.loads(FIGURES.read_text())["instructions"] if FIGURES.exists() else {}
    figures = kept | {workload: round(instructions) for workload, instructions in found.items()}
    import apsw  # noqa: PLC0415 - only for its version

    document = {
        "python": f"{platform.python_version()}, {platform.python_compiler()}",
        "sqlite": apsw.sqlite_lib_version(),
        "instructions": {
            workload: figures[workload] for workload in REQUESTS | SYSTEMS if workload in figures
        },
    }
    FIGURES.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
