"""`partita fleet` against real databases."""

import json
import uuid

import msgspec
import pytest

from partita.addresses import without_secrets
from partita.cli.main import main
from partita.scaleout.schema import versions
from support.catalog_databases import empty_url
from support.weak_server import run_sql

VERSION = f"{versions.MAJOR}.{versions.MINOR}"


def test_init_creates_the_schema_and_a_role_once(capsys: pytest.CaptureFixture[str]) -> None:
    url, role = empty_url(), f"role_{uuid.uuid4().hex[:8]}"

    assert main(["fleet", "init", url, "--role", role]) == 0
    printed = capsys.readouterr()
    assert f"has the schema of Partita now, version {VERSION}." in printed.out
    assert f"ALTER ROLE {role} LOGIN" in printed.out
    assert "creating the schema" in printed.err

    assert main(["fleet", "init", url, "--role", role, "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {
        "url": without_secrets(url),
        "version": VERSION,
        "previous": VERSION,
        "role": role,
        "is_role_new": False,
    }
    assert printed.err == ""


def test_status_tells_what_would_be_refused(capsys: pytest.CaptureFixture[str]) -> None:
    url = empty_url()
    name = url.rpartition("/")[2]
    assert main(["fleet", "status", url]) == 1
    assert "not installed" in capsys.readouterr().out

    main(["fleet", "init", url])
    capsys.readouterr()
    assert main(["fleet", "status", url, "--json"]) == 0
    status = msgspec.json.decode(capsys.readouterr().out)
    assert status["version"] == status["needed_version"] == VERSION
    assert {each["verdict"] for each in status["checks"]} == {"accepted"}
    assert status["counts"] == {"accounts": 0, "tables": 0, "ranges": 0, "dropped_tables": 0}

    run_sql(url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    run_sql(url, f"ALTER DATABASE {name} SET default_transaction_isolation = serializable")
    run_sql(
        url,
        "INSERT INTO partita.front_end"
        " VALUES (gen_random_uuid(), 'host:1', 7, partita.ticks_1() - 30000000)",
    )
    assert main(["fleet", "status", url]) == 1
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["synchronous_commit", "off", "fast", "only"] in lines
    assert ["isolation", "serializable", "refused"] in lines
    assert ["advisory_locks", "work", "accepted"] in lines
    assert ["host:1", "7", "3"] in lines


def test_the_url_may_be_in_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARTITA_CONNECT", raising=False)
    assert main(["fleet", "status"]) == 2
    assert "PARTITA_CONNECT" in capsys.readouterr().err

    monkeypatch.setenv("PARTITA_CONNECT", empty_url())
    assert main(["fleet", "status"]) == 1


def test_a_password_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("postgresql://a:secret@127.0.0.1:1/x", "mysql://a:secret@db/x"):
        assert main(["fleet", "init", url]) == 2
        printed = capsys.readouterr()
        assert printed.err.startswith("partita: ")
        assert "secret" not in printed.err + printed.out
