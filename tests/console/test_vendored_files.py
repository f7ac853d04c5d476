"""The vendored files of the console are those of their packages."""

import hashlib
import json
import os
import runpy
from pathlib import Path

import pytest

import partita.console
from support.browser import PACKAGES
from support.node_packages import install, require

VENDOR = Path(partita.console.__file__).parent / "static" / "vendor"
TOOL = PACKAGES.parent.parent.parent / "tools" / "vendor_console.py"


def test_vendored_files_have_the_hashes_that_are_written_down() -> None:
    versions = json.loads((VENDOR / "versions.json").read_text("utf-8"))

    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.suffix in {".js", ".css"}
    }

    assert found == versions["sha256"]
    assert set(versions["packages"]) == {"lit", "uplot"}


def test_versions_and_licences_are_those_of_the_packages() -> None:
    wanted = json.loads((PACKAGES / "package.json").read_text("utf-8"))["dependencies"]
    versions = json.loads((VENDOR / "versions.json").read_text("utf-8"))["packages"]
    licences = (VENDOR / "LICENSES.txt").read_text("utf-8")

    for name, package in versions.items():
        assert package["version"] == wanted[name]
        assert f"{name} {package['version']} ({package['license']})" in licences


def test_the_lock_names_no_registry() -> None:
    assert "resolved" not in (PACKAGES / "package-lock.json").read_text("utf-8")


@pytest.mark.proof
def test_vendored_files_are_built_from_the_packages(tmp_path: Path) -> None:
    fault = install(PACKAGES)
    require(fault and f"the packages could not be installed: {fault}", os.environ)

    runpy.run_path(str(TOOL))["build"](tmp_path)

    for path in tmp_path.iterdir():
        assert path.read_bytes() == (VENDOR / path.name).read_bytes(), path.name


def test_pages_load_nothing_from_other_hosts() -> None:
    static = VENDOR.parent
    texts = {
        path.name: path.read_text("utf-8")
        for path in static.rglob("*")
        if path.suffix in {".js", ".css", ".html"} and path.parent != VENDOR
    }

    assert [name for name, text in texts.items() if "https://" in text] == []
    assert [name for name, text in texts.items() if "innerHTML" in text] == []
