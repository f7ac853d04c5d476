"""pgbench as the measure of a statement per request: 16 clients, prepared, one thread.

It reads and writes the same heap as the store, rows of its own, by the statements that the store
gathers, without a fence. Its keys are numbers in text, because pgbench cannot print others without
work of the server. To connect costs several milliseconds per client: a run of one statement per
client is measured too and subtracted.
"""

import importlib.util
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.scaleout import database
from bench.scaleout.figures import Slice
from bench.tables.measure import RunError

from partita.local_postgres import INSTALLATION, WHEEL, LocalPostgres

_DRAW = """
\\set number random(0, :entities - 1)
\\set pk :number / :partition_entities + :pk_first
\\set rk :number + :rk_first
"""
SCRIPTS = {
    "get": _DRAW
    + """
SELECT ticks, document FROM partita.entity WHERE tid = :tid AND pk = :pk AND rk = :rk;
""",
    # Stamps below all real ones: a front end that meets such a row is never behind it.
    "upsert": _DRAW
    + """
\\set ticks random(1, 1000000000)
INSERT INTO partita.entity AS e (tid, pk, rk, ticks, marks, short, document)
VALUES (:tid, :pk, :rk, :ticks, :marks, :short, :document)
ON CONFLICT (tid, pk, rk) DO UPDATE SET ticks = excluded.ticks, marks = excluded.marks,
  short = excluded.short, document = excluded.document;
""",
}
_PROCESSED = re.compile(r"transactions actually processed: (\d+)")
_FAILED = re.compile(r"failed transactions: [1-9]")


def find_pgbench() -> str | None:
    """Find pgbench: beside the server of the wheel, on the PATH, or where Debian puts it."""
    candidates: list[Path] = []
    wheel = importlib.util.find_spec(WHEEL)
    if wheel is not None and wheel.origin is not None:
        candidates.append(Path(wheel.origin).parent / INSTALLATION / "bin" / "pgbench")
    if on_path := shutil.which("pgbench"):
        candidates.append(Path(on_path))
    candidates += sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"), reverse=True)
    return next((str(path) for path in candidates if path.exists()), None)


@dataclass(frozen=True)
class PgBench:
    """pgbench on one database; `variables` are those of the scripts."""

    program: str
    folder: Path
    postgres: LocalPostgres
    variables: dict[str, str]
    clients: int

    def run(self, kind: str, seconds: float) -> Slice:
        """Run one kind of statement; without the cost of connecting."""
        connecting = self._run(kind, ["--transactions=1"])
        found = self._run(kind, [f"--time={max(1, round(seconds))}"])
        return Slice(
            found.requests - connecting.requests,
            found.seconds,
            found.client_cpu - connecting.client_cpu,
            found.store_cpu - connecting.store_cpu,
        )

    def _run(self, kind: str, words: Sequence[str]) -> Slice:
        script = self.folder / f"{kind}.sql"
        script.write_text(SCRIPTS[kind])
        defined = [f"--define={name}={value}" for name, value in self.variables.items()]
        command = [self.program, "--no-vacuum", "--protocol=prepared", f"--file={script}"]
        command += [f"--client={self.clients}", "--jobs=1", *words, *defined, self.postgres.url()]
        client, store, started = _children_cpu(), self._store_cpu(), time.perf_counter()
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - started
        processed = _PROCESSED.search(ended.stdout)
        if ended.returncode != 0 or processed is None or _FAILED.search(ended.stdout):
            message = f"pgbench failed: {ended.stdout[-500:]} {ended.stderr[-500:]}"
            raise RunError(message)
        client, store = _children_cpu() - client, self._store_cpu() - store
        return Slice(int(processed[1]), seconds, client, store)

    def _store_cpu(self) -> float:
        return database.cpu_seconds(self.postgres)


def _children_cpu() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime
