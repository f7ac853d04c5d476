"""Run the scenarios of chaos: `python -m chaos.run`, in the folder of the tests.

Each scenario runs in a process of its own, first as it is and then as its broken sibling, which
its ledger must catch. A line of JSON is printed per scenario, and a table at the end. The run
fails if a ledger finds a violation, if a sibling is not caught, or if a scenario does not end.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from chaos.report import Outcome, Row, decoded, encoded, failed_row, merged, row_of, table
from chaos.scenario import Run, Scenario

SECONDS = 30.0
"""For how long a scenario injects faults."""
SIBLING_ATTEMPTS = 3
TIMEOUT_FACTOR = 4
TIMEOUT_SECONDS = 240.0
"""A scenario may take this much longer than its faults, for starting, settling and checking."""


def scenarios() -> list[Scenario]:
    from chaos import clocks, disks, outbox, power_cuts, services, shards, states
    from chaos.fleet import scenarios as fleet
    from chaos.fleet import standby

    modules = (services, disks, power_cuts, clocks, states, outbox, shards, fleet, standby)
    return [scenario for module in modules for scenario in module.SCENARIOS]


def skipped() -> dict[str, str]:
    """Return the scenarios that this machine cannot run, and why."""
    from chaos.fleet import scenarios as fleet

    return fleet.SKIPPED


def run_one(scenario: Scenario, seed: int, seconds: float) -> Row:
    """Run a scenario and its broken sibling in this process."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="partita-chaos-") as folder:
        chance = random.Random(f"{scenario.name}/{seed}")
        place = Path(folder)
        run = scenario.run(Run(place / "run", chance, seconds * scenario.share))
        broken = Outcome()
        for attempt in range(SIBLING_ATTEMPTS):
            sibling = Run(place / f"broken{attempt}", chance, seconds * scenario.share, True)
            broken = scenario.run(sibling)
            if broken.violations:
                break
    return row_of(
        scenario.name,
        seed=seed,
        seconds=time.monotonic() - began,
        run=run,
        sibling=scenario.sibling,
        broken=broken,
    )


def run_apart(scenario: Scenario, seed: int, seconds: float) -> Row:
    """Run a scenario in a process of its own; end it with all its processes if it hangs."""
    began = time.monotonic()
    command = [sys.executable, "-m", "chaos.run", "--only", scenario.name, "--here"]
    process = subprocess.Popen(
        [*command, "--seed", str(seed), "--seconds", str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    error = ""
    try:
        lines = process.communicate(timeout=TIMEOUT_SECONDS + TIMEOUT_FACTOR * seconds)[0]
        if process.returncode == 0:
            return decoded(lines.splitlines()[-1])
        error = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        error = "did not end in time"
    finally:
        _end_all(process)
    passed = time.monotonic() - began
    return failed_row(
        scenario.name, seed=seed, seconds=passed, sibling=scenario.sibling, error=error
    )


def _end_all(process: "subprocess.Popen[str]") -> None:
    """End what a scenario has started and not ended: its session has only that."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def run_all(chosen: list[Scenario], seed: int, seconds: float, duration: float) -> list[Row]:
    """Run each scenario once, and all of them again with further seeds until the time is over."""
    rows: list[Row] = []
    end = time.monotonic() + duration
    while True:
        for scenario in chosen:
            rows.append(run_apart(scenario, seed, seconds))
            print(encoded(rows[-1]), flush=True)
        if time.monotonic() >= end:
            return rows
        seed += 1


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="faults of one scenario")
    parser.add_argument("--for", type=float, default=0, dest="duration", help="repeat for seconds")
    parser.add_argument("--only", action="append", help="the name of a scenario, or its beginning")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    wanted = tuple(options.only or [""])
    chosen = [each for each in scenarios() if each.name.startswith(wanted)]
    if options.list:
        for each in chosen:
            print(f"{each.name} (sibling: {each.sibling})")
        return 0
    if options.here:
        print(encoded(run_one(chosen[0], options.seed, options.seconds)))
        return 0
    print(f"seed {options.seed}, {len(chosen)} scenarios", flush=True)
    for name, reason in skipped().items():
        print(f"{name} is skipped: {reason}", flush=True)
    rows = run_all(chosen, options.seed, options.seconds, options.duration)
    print(table(merged(rows)))
    failures = [
        f"{row.scenario} (seed {row.seed}): {text}" for row in rows for text in row.failures
    ]
    print("\n".join(failures or ["no violation; every broken sibling was caught"]))
    return 1 if failures or not rows else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
