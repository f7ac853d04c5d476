"""The page of clients: a row for every program that `make clients` runs, and no other."""

import re

from docs.sources import PROJECT

PAGE = PROJECT / "docs" / "clients.md"


def test_every_program_has_a_row() -> None:
    programs = {path.name for path in (PROJECT / "tests/clients/programs").glob("*.py")}
    rows = re.findall(r"\(\.\./tests/clients/programs/(\w+\.py)\)", PAGE.read_text("utf-8"))

    assert len(programs) > 15
    assert set(rows) == programs


def test_versions_are_those_of_the_lock() -> None:
    lock = (PROJECT / "requirements" / "clients.txt").read_text("utf-8")
    locked = dict(re.findall(r"^([a-z0-9-]+)==([\w.]+) ", lock, re.MULTILINE))
    rows = re.findall(r"^\| ([a-z][\w-]*) \| ([\d.]+) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    named = {name: version for name, version in rows if name in locked}

    assert len(named) > 10
    assert named == {name: locked[name] for name in named}
