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
        "shards": [],
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
    names = ("accounts", "tables", "queues", "ranges", "dropped_tables")
    assert status["counts"] == dict.fromkeys(names, 0)

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


def test_init_adds_shards_once_and_tables_go_to_them(capsys: pytest.CaptureFixture[str]) -> None:
    catalog, one, two = (empty_url() for _ in range(3))
    role = f"role_{uuid.uuid4().hex[:8]}"
    words = ["fleet", "init", catalog, "--durability", "fast", "--role", role, "--json"]

    assert main([*words, "--shard", one]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["shards"]] == ["shard-1"]
    assert main([*words, "--shard", one, "--shard", two]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["shards"]] == ["shard-2"]

    assert main(["fleet", "status", catalog, "--json"]) == 0
    shards = json.loads(capsys.readouterr().out)["shards"]
    assert [(each["name"], each["state"]) for each in shards] == [
        ("catalog", "draining"),
        ("shard-1", "open"),
        ("shard-2", "open"),
    ]
    for url in (one, two):
        allowed = "SELECT has_table_privilege(%s, 'partita.entity', 'INSERT')"
        assert run_sql(url, allowed.replace("%s", f"'{role}'")) == [(True,)]


def test_a_shard_is_drained_removed_and_the_fleet_verified(
    capsys: pytest.CaptureFixture[str],
) -> None:
    catalog, shard = empty_url(), empty_url()
    flags = ["--connect", catalog, "--durability", "fast"]
    assert main(["fleet", "init", *flags]) == 0
    assert main(["fleet", "add", shard, "--name", "east", *flags]) == 0
    capsys.readouterr()

    assert main(["fleet", "verify", *flags]) == 0
    assert capsys.readouterr().out == (
        "0 ranges with 0 entities and 0 messages: all keys have one owner.\n"
    )
    assert main(["fleet", "reconcile", "east", *flags]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert main(["fleet", "mark", "before", "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["places"].keys() == {"catalog", "east"}
    assert main(["fleet", "upgrade", *flags]) == 0
    assert main(["fleet", "drain", "east", *flags]) == 0
    assert main(["fleet", "remove", "east", *flags]) == 0
    assert main(["fleet", "resume", "--json", *flags]) == 0
    capsys.readouterr()

    assert main(["fleet", "drain", "east", *flags]) == 2
    assert main(["fleet", "split", "Staff", "--at", "m", *flags]) == 2
    assert main(["fleet", "move", "7", "--to", "east", *flags]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in errors] == ["partita"] * 3
    assert "`partita fleet ranges` lists them" in errors[2]
