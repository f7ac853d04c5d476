"""`make release` and the workflows: what they write, run and name."""

import re
import runpy
import tomllib
from typing import Any

import pytest
import yaml

from docs.sources import PROJECT

WORKFLOWS = PROJECT / ".github" / "workflows"
release: Any = runpy.run_path(str(PROJECT / "tools" / "release.py"))


def test_a_release_turns_next_into_its_section() -> None:
    text = "# Changes\n\n## Next\n\n- New.\n\n## 0.1.0 (2026-01-01)\n"

    written = release["write_section"](text, "0.2.0", "2026-11-18")

    assert written == (
        "# Changes\n\n## Next\n\n## 0.2.0 (2026-11-18)\n\n- New.\n\n## 0.1.0 (2026-01-01)\n"
    )
    with pytest.raises(SystemExit, match=r"0\.2\.0"):
        release["write_section"](written, "0.2.0", "2026-11-18")


def test_a_release_writes_the_version_of_the_package() -> None:
    module = (PROJECT / "src" / "partita" / "__init__.py").read_text("utf-8")

    assert '__version__ = "7.8.9"\n' in release["write_version"](module, "7.8.9")


def test_the_changelog_can_be_released() -> None:
    text = (PROJECT / "CHANGELOG.md").read_text("utf-8")

    assert "\n## 99.0.0 (2026-11-18)\n" in release["write_section"](text, "99.0.0", "2026-11-18")


def targets() -> set[str]:
    makefile = (PROJECT / "Makefile").read_text("utf-8")
    return set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))


def test_workflows_run_targets_that_exist() -> None:
    found: set[str] = set()
    for workflow in sorted(WORKFLOWS.glob("*.yml")):
        for job in yaml.safe_load(workflow.read_text("utf-8"))["jobs"].values():
            for step in job["steps"]:
                command = re.match(r"make ((?:[a-z-]+ ?)+)", step.get("run", ""))
                found |= set(command[1].split()) if command else set()

    assert found == {"check", "docs", "release", "test"}
    assert found <= targets()


def test_the_matrix_has_the_pythons_of_the_classifiers() -> None:
    workflow = yaml.safe_load((WORKFLOWS / "test.yml").read_text("utf-8"))
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    prefix = "Programming Language :: Python :: 3."
    named = [name.rpartition(" ")[2] for name in project["classifiers"] if prefix in name]
    versions = (PROJECT / "docs" / "versions.md").read_text("utf-8")

    assert named[0] == "3.11"
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert f"CPython {', '.join(named)} on " in versions
