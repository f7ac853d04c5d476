import re

import pytest

from partita.errors import FormatVersionError
from partita.scaleout.schema import versions

FUNCTION = re.compile(r"CREATE OR REPLACE FUNCTION (\S+?)\s*\((.*?)AS \$", re.DOTALL)


def test_a_newer_database_is_refused() -> None:
    for found in ((versions.MAJOR, versions.MINOR + 1), (versions.MAJOR + 1, 0)):
        with pytest.raises(FormatVersionError):
            versions.steps(found)


def test_upgrades_are_taken_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "MINOR", 3)
    monkeypatch.setattr(versions, "UPGRADES", {0: "a", 1: "b", 2: "c"})

    assert versions.steps((versions.MAJOR, 1)) == ["b", "c"]
    assert versions.steps((versions.MAJOR, 3)) == []


def test_every_minor_version_has_its_step() -> None:
    assert set(versions.UPGRADES) == set(range(versions.MINOR))


def test_a_front_end_uses_its_own_version_and_later_minor_ones() -> None:
    assert versions.is_usable((versions.MAJOR, versions.MINOR))
    assert versions.is_usable((versions.MAJOR, versions.MINOR + 1))
    assert not versions.is_usable((versions.MAJOR + 1, versions.MINOR))
    assert not versions.is_usable((versions.MAJOR, versions.MINOR - 1))


def test_every_function_has_a_version_and_a_fixed_search_path() -> None:
    functions = FUNCTION.findall(versions.FUNCTIONS)

    assert len(functions) == versions.FUNCTIONS.count("CREATE OR REPLACE FUNCTION")
    for name, head in functions:
        assert re.fullmatch(r"partita\.[a-z_]+_\d+", name), name
        assert "SET search_path = pg_catalog, pg_temp" in head, name


def test_every_table_has_its_privileges() -> None:
    tables = re.findall(r"CREATE TABLE partita\.(\w+)", versions.TABLES)

    assert set(tables) >= set(versions.PRIVILEGES)
    # Copies are run by the owner of the schema.
    assert set(tables) - set(versions.PRIVILEGES) == {"copy_id", "copy_part"}
