"""The import rules of pyproject.toml know every module of patterns."""

import tomllib

from docs.sources import PACKAGE, PROJECT

FOLDER = PACKAGE / "patterns"
EDGE = {
    *("aio", "sync", "turns", "scan_warnings", "testing", "faults"),
    *("aio_port", "sync_port", "direct_port", "connecting"),
    *("sdk_calls", "sdk_clients", "sdk_errors", "metering", "grants"),
    *("ciphers", "dotnet_v1", "keyring"),
}
"""Faces and ports, and what knows the official SDK or the package of ciphers."""


def listed(contract_name: str) -> set[str]:
    """The modules of patterns that a contract is about."""
    rules = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    (contract,) = (each for each in rules["contracts"] if each["name"] == contract_name)
    start = "partita.patterns."
    return {
        name.removeprefix(start) for name in contract["source_modules"] if name.startswith(start)
    }


def test_every_module_of_patterns_has_its_place() -> None:
    pure = listed("pure modules touch nothing")
    core = listed("the core of patterns asks and does not act")
    modules = {path.stem for path in FOLDER.glob("*.py")} - {"__init__"}

    assert {"templates", "filter_text"} <= pure
    assert {"changes", "reading", "worker"} <= core
    assert modules - pure - core - EDGE == set(), "say where it belongs"
    assert (pure | core | EDGE) - modules == set(), "it is gone"
    assert pure & core == (pure | core) & EDGE == set()
