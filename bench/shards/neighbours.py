"""How busy others kept the machine while something was measured: it spoils figures most."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.tables import servers

OTHER_CORES_MAX = 0.25
"""Beyond this a figure gets no verdict."""
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def noted(other_cores: dict[str, float], what: str) -> Iterator[None]:
    """Note how many cores others took, on average, while the block ran."""
    before, machine, started = _own_seconds(), servers.machine_cpu_seconds(), time.perf_counter()
    yield
    elapsed = time.perf_counter() - started
    others = servers.machine_cpu_seconds() - machine - (_own_seconds() - before)
    other_cores[what] = max(0.0, others) / elapsed


def _own_seconds() -> float:
    """Return processor seconds of this process and of all below it, servers too."""
    found: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # because it has just ended
            continue
        found[int(entry.name)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICKS
    return sum(spent for process, (_, spent) in found.items() if _is_below(process, found))


def _is_below(process: int, found: dict[int, tuple[int, float]]) -> bool:
    while process in found:
        if process == os.getpid():
            return True
        process = found[process][0]
    return False
