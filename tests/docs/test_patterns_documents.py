"""The example of patterns runs, and every public name says what it is and is in the reference."""

import inspect
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import partita.patterns
from azurite.gaps import GAPS
from docs.sources import PROJECT
from support.live import ANY_PORTS

DOCUMENTS = PROJECT / "docs" / "patterns"
EXAMPLE = PROJECT / "examples" / "patterns.py"


def run(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A server with a fresh account; its connection string."""
    command = [sys.executable, "-m", "partita.cli.main", "serve", *ANY_PORTS, "--json"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield json.loads(server.stdout.readline())["connection_string"]
        finally:
            server.kill()


def test_the_example_of_patterns_runs_in_one_process(tmp_path: Path) -> None:
    said = run(str(EXAMPLE), folder=tmp_path)

    assert "TABLE SCAN" in said
    assert "REFUSED" in said
    assert "index(Employee" in said


def test_the_example_of_patterns_runs_against_a_server(tmp_path: Path) -> None:
    with served(tmp_path) as connection_string:
        assert "TABLE SCAN" in run(str(EXAMPLE), connection_string, folder=tmp_path)


@pytest.mark.parametrize("name", partita.patterns.__all__)
def test_every_public_name_says_what_it_is(name: str) -> None:
    offered = getattr(partita.patterns, name)
    documented = offered if inspect.isclass(offered) or callable(offered) else type(offered)

    text = inspect.getdoc(documented) or ""

    # A Struct without a docstring of its own shows its signature, or that of its base.
    assert text, name
    assert not text.startswith(f"{name}("), name
    if inspect.isclass(documented):
        assert documented.__dict__.get("__doc__"), name


def test_every_public_name_and_method_is_in_the_reference() -> None:
    text = (DOCUMENTS / "reference.md").read_text("utf-8")
    offered = [getattr(partita.patterns, name) for name in partita.patterns.__all__]
    methods = {
        name
        for each in offered
        if inspect.isclass(each) and each.__module__ == "partita.patterns.aio"
        for name, method in vars(each).items()
        if not name.startswith("_") and (inspect.isfunction(method) or isinstance(method, property))
    }

    assert {"save", "explain", "atomic"} <= methods
    assert {
        name
        for name in {*partita.patterns.__all__, *methods}
        if not re.search(rf"`[^`]*\b{name}\b[^`]*`", text)
    } == set()


def test_every_gap_of_azurite_is_in_the_compatibility_document() -> None:
    text = (PROJECT / "docs" / "compatibility.md").read_text("utf-8")

    assert {reason for reason in GAPS.values() if f"| {reason} |" not in text} == set()
