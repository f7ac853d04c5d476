"""`partita shards` on real SQLite files: every verb as text and as JSON, refusals, dry runs."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine

from partita.cli.main import main
from partita.cli.shards import fleet as shards_fleet
from partita.shards import (
    Fleet,
    HashShardMap,
    ListShardMap,
    Range,
    RangeShardMap,
    ShardMapManager,
)
from partita.shards.maps.recovery import Recovery
from partita.shards.maps.shard_map import ShardMap
from partita.shards.moving.move import StopMove
from support.alembic_projects import a_project, add_revision, run_sql
from support.terminal import run_on_terminal

Capture = pytest.CaptureFixture[str]

MODELS = """
from sqlalchemy import Column, Integer, MetaData, String, Table

metadata = MetaData()
blog = Table(
    "blog",
    metadata,
    Column("tenant_id", Integer, primary_key=True, autoincrement=False),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(80), nullable=False),
)
Table("region", metadata, Column("id", Integer, primary_key=True))


class Base:
    metadata = metadata


def credentials(location):
    return None
"""
MORE = "op.create_table('more', sa.Column('id', sa.Integer))"
SCHEMA = ("--metadata", "command_models:metadata")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder with an application in it, and a variable that names the catalog."""
    return an_application(tmp_path, monkeypatch)


@pytest.fixture
def fleet(folder: Path, capsys: Capture) -> Path:
    """Make a catalog, a map of tenants and two shards, by the command line alone."""
    make_fleet()
    capsys.readouterr()
    return folder


@pytest.fixture(scope="module")
def shared_fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make one fleet for the tests that change nothing."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        path = an_application(tmp_path_factory.mktemp("shared"), monkeypatch)
        make_fleet()
    return path


def an_application(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "command_models", raising=False)
    monkeypatch.setenv("PARTITA_CONNECT", "sqlite:///catalog.db")
    (path / "command_models.py").write_text(MODELS)
    return path


def make_fleet() -> None:
    tables = ("--sharded", "blog=tenant_id", "--reference", "region")
    for arguments in (
        ("init",),
        ("create-map", "tenants", "--key-type", "int", *tables, *SCHEMA),
        ("add-shard", "sqlite:///one.db", "--range", "0:100", *SCHEMA),
        ("add-shard", "sqlite:///two.db", "--range", "100:200", *SCHEMA),
    ):
        assert main(["shards", *arguments]) == 0


def run(capsys: Capture, *arguments: str, status: int = 0) -> str:
    capsys.readouterr()
    found = main(["shards", *arguments])
    captured = capsys.readouterr()
    assert (found, captured.err) == (status, "")
    return captured.out


def run_json(capsys: Capture, *arguments: str, status: int = 0) -> dict[str, Any]:
    out = run(capsys, *arguments, "--json", status=status)
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def refusal(capsys: Capture, *arguments: str) -> str:
    capsys.readouterr()
    assert main(["shards", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("partita: ")
    assert captured.err.count("\n") == 1
    return captured.err


def ranges(capsys: Capture) -> dict[str, str]:
    """Which range is on which file."""
    found = run_json(capsys, "mappings")["mappings"]
    return {one["range"]: Path(one["shard"]).stem for one in found}


def content_of(folder: Path) -> dict[str, list[str]]:
    """Everything that the databases hold."""
    found = {}
    for path in sorted(folder.glob("*.db")):
        engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
        with engine.connect() as connection:
            assert connection.connection.driver_connection is not None
            found[path.name] = list(connection.connection.driver_connection.iterdump())
    return found


def catalog() -> ShardMapManager:
    return ShardMapManager.open("sqlite:///catalog.db")


def a_project_and_shards(folder: Path, count: int) -> Path:
    """Make shards at the newest revision of an Alembic project."""
    project = a_project(folder / "migrations")
    with ShardMapManager.create("sqlite:///catalog.db") as manager:
        tenants = manager.create_range_map("tenants", key=int)
        fleet = Fleet(manager, alembic=project)
        for number in range(count):
            fleet.add_shard(
                tenants, f"sqlite:///shard{number}.db", [Range(number * 10, number * 10 + 10)]
            )
    return project


# init, create-map, maps


def test_init_makes_a_catalog_and_keeps_one_that_is_there(capsys: Capture) -> None:
    assert run(capsys, "init", "--connect", "sqlite:///mine.db").endswith(
        "mine.db is a catalog now.\n"
    )
    assert run(capsys, "init", "--connect", "sqlite:///mine.db").endswith(
        "mine.db was a catalog already.\n"
    )

    facts = run_json(capsys, "init")

    assert facts["is_new"]
    assert facts["catalog"].endswith("/catalog.db")


def test_maps_are_listed_with_their_kind_and_key(capsys: Capture) -> None:
    run(capsys, "init")
    assert "has no shard maps" in run(capsys, "maps")
    run(capsys, "create-map", "places", "--key-type", "str,int")
    run(capsys, "create-map", "events", "--key-type", "uuid", "--kind", "hash", "--buckets", "64")
    made = run_json(capsys, "create-map", "users", "--key-type", "str", "--kind", "list")

    assert made["maps"][0]["kind"] == "list"
    assert run(capsys, "maps").splitlines() == [
        "map     kind        key             shards  mappings  sharded tables",
        "events  hash of 64  uuid            0       0         -",
        "places  range       tuple[str,int]  0       0         -",
        "users   list        str             0       0         -",
    ]


def test_a_map_keeps_its_sharded_and_reference_tables(fleet: Path, capsys: Capture) -> None:
    (found,) = run_json(capsys, "maps")["maps"]

    assert found["sharded"] == {"blog": ["tenant_id"]}
    assert found["reference"] == ["region"]
    assert (found["shards"], found["mappings"]) == (2, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--key-type", "float"), "cannot be of type 'float'"),
        (("--key-type", "int", "--buckets", "8"), "Only a hash map has buckets."),
        (("--key-type", "int", "--kind", "hash", "--buckets", "0"), "out of range"),
        (("--key-type", "int", "--kind", "tree"), "--kind"),
        (("--key-type", "int", "--sharded", "blog=tenant_id"), "--metadata"),
        (("--key-type", "int", "--sharded", "blog", *SCHEMA), "is not a table and its column"),
        (("--key-type", "int", "--sharded", "nothing=id", *SCHEMA), "no table 'nothing'"),
        (("--key-type", "str", "--sharded", "blog=tenant_id", *SCHEMA), "of type str"),
    ],
)
def test_a_map_that_cannot_be_is_refused(
    capsys: Capture, arguments: tuple[str, ...], said: str
) -> None:
    run(capsys, "init")

    assert said in refusal(capsys, "create-map", "tenants", *arguments)
    assert run_json(capsys, "maps")["maps"] == []


# shards, mappings, lookup


def test_shards_are_listed_with_their_mappings(fleet: Path, capsys: Capture) -> None:
    lines = run(capsys, "list").splitlines()
    facts = run_json(capsys, "list", "--map", "tenants")["shards"]

    assert lines[0].split() == ["map", "shard", "status", "mappings", "location", "id"]
    assert lines[1].split()[1:5] == ["one", "online", "1", f"sqlite:///{fleet / 'one.db'}"]
    assert [one["location"] for one in facts] == [
        f"sqlite:///{fleet / name}" for name in ("one.db", "two.db")
    ]
    assert [one["name"] for one in facts] == ["one", "two"]


def test_mappings_are_listed_in_order_and_can_be_chosen(fleet: Path, capsys: Capture) -> None:
    assert run(capsys, "mappings").splitlines() == [
        "range    shard  status  locked by",
        "0:100    one    online  -",
        "100:200  two    online  -",
    ]
    by_shard = run_json(capsys, "mappings", "--shard", "two")["mappings"]
    by_range = run_json(capsys, "mappings", "--range=-5:100")["mappings"]
    assert run_json(capsys, "mappings", "--range", "-5:100")["mappings"] == by_range

    assert [one["range"] for one in by_shard] == ["100:200"]
    assert [(one["low"], one["high"]) for one in by_range] == [(0, 100)]


def test_a_lookup_says_which_shard_holds_a_key(fleet: Path, capsys: Capture) -> None:
    shown = run(capsys, "lookup", "150").splitlines()
    facts = run_json(capsys, "lookup", "42")

    assert shown[:3] == [
        "shard    two",
        "range    100:200",
        "status   online",
    ]
    assert facts["key"] == 42
    assert facts["mapping"]["range"] == "0:100"


def test_a_lookup_in_a_hash_map_says_the_bucket(capsys: Capture) -> None:
    run(capsys, "init")
    run(capsys, "create-map", "events", "--key-type", "str", "--kind", "hash", "--buckets", "8")
    run(capsys, "add-shard", "sqlite:///one.db", "--range", ":", *SCHEMA)

    facts = run_json(capsys, "lookup", "eu")

    assert 0 <= facts["bucket"] < 8
    assert facts["mapping"]["range"] == "0:8"
    assert run(capsys, "lookup", "eu").startswith(f"bucket   {facts['bucket']}\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lookup", "forty"), "'forty' is not a key of type int. Write a whole number."),
        (("lookup", "-7"), "No mapping holds this key."),
        (("move", "-9:-7", "--to", "two"), "No mapping holds keys of -9:-7."),
        (("mappings", "--range", "7"), "'7' is not a range"),
        (("mappings", "--range", "9:7"), "contains no key of type int"),
        (("mappings", "--shard", "three"), "No shard is called 'three'."),
        (("mappings", "--map", "nothing"), "`partita shards maps` lists"),
        (("split", "--at", "0"), "strictly inside"),
        (("split", "--at", "500"), "No mapping holds the split point."),
        (("split",), "--at"),
        (("merge", "--at", "50"), "No two mappings meet at 50."),
        (("merge", "--at", "100"), "of one shard"),
        (("move", "7", "--to", "three"), "No shard is called 'three'."),
        (("move", "30:100", "--to", "two"), "partita shards split --at 30."),
        (("move", "0:30", "--to", "two"), "partita shards split --at 30."),
        (("move", "500:600", "--to", "two"), "No mapping holds keys of 500:600."),
        (("move", "7", "--to", "two", "--rate", "0"), "--rate"),
        (("cancel", "nothing"), "`partita shards jobs`"),
        (("offline", "42", "--grace", "soon"), "--grace"),
        (("drift",), "Give --metadata"),
        (("upgrade",), "Give --metadata"),
        (("upgrade", *SCHEMA, "--parallel", "0"), "--parallel"),
        (("upgrade", *SCHEMA, "--stop-after", "-1"), "--stop-after"),
        (("upgrade", *SCHEMA, "--canary", "three"), "No shard is called 'three'."),
        (("upgrade", *SCHEMA, "--sql-folder", "sql"), "Give --alembic"),
        (("upgrade", "--alembic", "missing"), "Not an Alembic project"),
        (("status", "--metadata", "command_models"), "is not module:attribute"),
        (("status", "--metadata", "command_models:nothing"), "cannot be imported"),
        (("status", "--metadata", "no_such_models:metadata"), "cannot be imported"),
        (("status", "--metadata", "command_models:MetaData"), "is not a MetaData"),
        (("status", "--credentials", "command_models:metadata"), "cannot be called"),
        (("status", "--map", "nothing"), "shard map does not exist"),
        (("fan-out", "delete from blog"), "A shard refused the statement"),
        (("fan-out", "select nothing from blog"), "nothing"),
        (("fan-out", "select 1", "--limit", "0"), "--limit"),
        (("recover", "--keep", "global"), "Name the shard"),
        (("recover", "one", "--keep", "mine"), "--keep"),
        (("recover", "three"), "No shard is called 'three'."),
        (("sing",), "sing"),
    ],
)
def test_a_refusal_is_one_line_and_changes_nothing(
    shared_fleet: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(shared_fleet)
    before = content_of(shared_fleet)

    assert said in refusal(capsys, *arguments)
    assert content_of(shared_fleet) == before


def test_without_a_catalog_the_verbs_say_how_to_name_one(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    assert "partita shards init" in refusal(capsys, "maps")
    assert not list(folder.glob("*.db"))

    monkeypatch.delenv("PARTITA_CONNECT")

    assert "--connect URL, or set PARTITA_CONNECT" in refusal(capsys, "maps")


def test_the_flag_wins_over_the_variable(capsys: Capture) -> None:
    run(capsys, "init", "--connect", "sqlite:///mine.db")

    assert "mine.db" in run(capsys, "maps", "--connect", "sqlite:///mine.db")


def test_with_several_maps_one_must_be_named(fleet: Path, capsys: Capture) -> None:
    run(capsys, "create-map", "users", "--key-type", "str", "--kind", "list")

    assert "Name one with --map." in refusal(capsys, "mappings")
    assert run(capsys, "mappings", "--map", "users") == "There are no mappings.\n"
    assert "No shard" not in run(capsys, "list")


# add-shard


def test_a_shard_of_a_list_map_gets_keys(capsys: Capture) -> None:
    run(capsys, "init")
    run(capsys, "create-map", "users", "--key-type", "str", "--kind", "list")

    shown = run(capsys, "add-shard", "sqlite:///one.db", "--key", "eve", "--key", "a:b", *SCHEMA)

    assert [line.split()[1] for line in shown.splitlines()[1:]] == ['"a:b"', "eve"]
    assert run_json(capsys, "lookup", "a:b")["mapping"]["range"] == '"a:b"'


def test_add_shard_deploys_the_schema_and_can_be_repeated(fleet: Path, capsys: Capture) -> None:
    again = run_json(capsys, "add-shard", "sqlite:///one.db", "--range", "0:100", *SCHEMA)

    assert not again["dry_run"]
    assert [one["range"] for one in again["added"]] == ["0:100"]
    assert run(capsys, "drift", *SCHEMA) == "All shards have the schema.\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("sqlite:///new.db", "--range", "150:300", *SCHEMA), "already mapped, by"),
        (("sqlite:///new.db", "--range", "300:200", *SCHEMA), "contains no key of type int"),
        (("sqlite:///new.db", "--key", "7", *SCHEMA), "--range LOW:HIGH"),
        (("sqlite:///one.db", "--range", "300:400", *SCHEMA), "already"),
        (("sqlite:///full.db", "--range", "300:400", *SCHEMA), "--adopt"),
        (("sqlite:///full.db", "--range", "300:400", "--adopt", *SCHEMA), "differs"),
        (("sqlite:///new.db", "--range", "300:400"), "--alembic FOLDER"),
        (("sqlite://", *SCHEMA), "in-memory"),
        (("nonsense", *SCHEMA), "cannot be read"),
    ],
)
@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)], ids=["real", "dry"])
def test_a_shard_that_cannot_be_added_is_refused_in_earnest_and_in_a_dry_run(
    shared_fleet: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
    dry_run: tuple[str, ...],
) -> None:
    monkeypatch.chdir(shared_fleet)
    run_sql("sqlite:///full.db", "create table if not exists other (id integer)")

    assert said in refusal(capsys, "add-shard", *arguments, *dry_run)
    assert len(run_json(capsys, "list")["shards"]) == 2


def test_adopt_takes_a_database_as_it_is(fleet: Path, capsys: Capture) -> None:
    run_sql(
        "sqlite:///full.db",
        "create table blog (tenant_id integer not null, id integer not null,"
        " name varchar(80) not null, primary key (tenant_id, id))",
        "create table region (id integer not null primary key)",
        "insert into blog values (300, 1, 'kept')",
    )
    before = content_of(fleet)
    asked = ("add-shard", "sqlite:///full.db", "--range", "300:400", "--adopt", *SCHEMA)

    assert "this would be done" in run(capsys, *asked, "--dry-run")
    assert content_of(fleet) == before
    assert "Adopt" in run(capsys, *asked)

    facts = run_json(capsys, "fan-out", "select name from blog")
    assert [row[0] for row in facts["rows"]] == ["kept"]


# split, merge, offline, online


def test_split_and_merge_change_mappings_and_no_rows(fleet: Path, capsys: Capture) -> None:
    shown = run(capsys, "split", "--at", "40")

    assert shown.splitlines() == [
        "Split 0:100 of tenants at 40: done.",
        "  - 0:100  one  online",
        "  + 0:40  one  online",
        "  + 40:100  one  online",
    ]
    assert ranges(capsys) == {"0:40": "one", "40:100": "one", "100:200": "two"}

    facts = run_json(capsys, "merge", "--at", "40")

    assert [one["range"] for one in facts["removed"]] == ["0:40", "40:100"]
    assert [one["range"] for one in facts["added"]] == ["0:100"]
    assert ranges(capsys) == {"0:100": "one", "100:200": "two"}


def test_offline_and_online_change_the_mapping_of_a_key(fleet: Path, capsys: Capture) -> None:
    closed = run_json(capsys, "offline", "42", "--grace", "0.1", "--no-terminate")

    assert [one["status"] for one in closed["added"]] == ["offline"]
    assert run(capsys, "offline", "42") == "Set 0:100 of tenants offline: done.\n"
    assert "status   offline" in run(capsys, "lookup", "42")
    assert "status   online" in run(capsys, "lookup", "142")

    run(capsys, "online", "42")

    assert run_json(capsys, "lookup", "42")["mapping"]["status"] == "online"


def test_list_maps_have_nothing_to_split(capsys: Capture) -> None:
    run(capsys, "init")
    run(capsys, "create-map", "users", "--key-type", "str", "--kind", "list")

    assert "single keys" in refusal(capsys, "split", "--at", "eve")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("split", "--at", "40"), "  + 40:100"),
        (("merge", "--at", "150"), "  + 100:200"),
        (("move", "42", "--to", "two"), "would be moved"),
        (("move", "100:200", "--to", "one"), "would be moved"),
        (("add-shard", "sqlite:///new.db", "--range", "200:", *SCHEMA), "  + 200:"),
        (("upgrade", *SCHEMA), "Nothing was run."),
        (("recover",), "The catalogs agree."),
        (("recover", "one", "--keep", "local"), "The catalogs agree."),
    ],
)
def test_a_dry_run_says_what_would_be_done_and_changes_nothing(
    fleet: Path, capsys: Capture, arguments: tuple[str, ...], said: str
) -> None:
    run(capsys, "split", "--at", "150")
    before = content_of(fleet)

    shown = run(capsys, *arguments, "--dry-run")
    facts = run_json(capsys, *arguments, "--dry-run")

    assert said in shown
    assert facts["dry_run"]
    assert content_of(fleet) == before
    assert sorted(path.name for path in fleet.glob("*.db")) == ["catalog.db", "one.db", "two.db"]


def test_a_dry_run_refuses_what_is_locked(fleet: Path, capsys: Capture) -> None:
    with catalog() as manager:
        tenants = manager.get_map("tenants")
        tenants.lock(tenants.get(42), token="mine")

    for arguments in (("split", "--at", "40"), ("move", "42", "--to", "two")):
        assert "lock" in refusal(capsys, *arguments, "--dry-run")
        assert "lock" in refusal(capsys, *arguments)


# maps, shards, mappings and locks by hand


def test_a_map_is_deleted_when_its_shards_are_gone(fleet: Path, capsys: Capture) -> None:
    assert "remove-shard" in refusal(capsys, "delete-map", "tenants")
    assert "tenant" in refusal(capsys, "delete-map", "tenant")
    for key, shard in (("42", "one"), ("142", "two")):
        run(capsys, "offline", key)
        run(capsys, "delete-mapping", key)
        run(capsys, "remove-shard", shard)

    assert run(capsys, "delete-map", "tenants") == "Delete the map tenants: done.\n"
    assert run_json(capsys, "maps")["maps"] == []


def test_the_schema_of_a_map_can_be_set_and_taken_away(fleet: Path, capsys: Capture) -> None:
    (bare,) = run_json(capsys, "set-schema", "--none")["maps"]
    (full,) = run_json(capsys, "set-schema", "--sharded", "blog=tenant_id", *SCHEMA)["maps"]

    assert (bare["sharded"], bare["reference"]) == ({}, [])
    assert (full["sharded"], full["reference"]) == ({"blog": ["tenant_id"]}, [])
    assert run_json(capsys, "maps")["maps"] == [full]
    assert "--none" in refusal(capsys, "set-schema")
    assert "--none" in refusal(
        capsys, "set-schema", "--none", "--sharded", "blog=tenant_id", *SCHEMA
    )


def test_a_shard_is_removed_after_its_mappings_were_moved(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///one.db", "insert into blog values (42, 1, 'a')")
    before = content_of(fleet)
    for more in ((), ("--dry-run",)):
        assert "--moving-to" in refusal(capsys, "remove-shard", "one", *more)

    planned = run(capsys, "remove-shard", "one", "--moving-to", "two", "--dry-run")
    assert planned.splitlines() == [
        "Remove one from tenants: this would be done.",
        "  move its mappings to two",
        "  - 0:100  one  online",
        "  + 0:100  two  online",
    ]
    assert content_of(fleet) == before
    facts = run_json(capsys, "remove-shard", "one", "--moving-to", "two")

    assert [one["range"] for one in facts["removed"]] == ["0:100"]
    assert ranges(capsys) == {"0:100": "two", "100:200": "two"}
    (shard,) = run_json(capsys, "list")["shards"]
    assert Path(shard["location"]).stem == "two"
    assert run_json(capsys, "fan-out", "select name from blog")["rows"][0][0] == "a"


def test_a_shard_that_is_marked_offline_gets_no_more_mappings(fleet: Path, capsys: Capture) -> None:
    (marked,) = run_json(capsys, "mark-shard", "two", "offline")["shards"]

    assert (marked["status"], marked["mappings"]) == ("offline", 1)
    assert "offline" in refusal(capsys, "create-mapping", "200:", "--shard", "two")
    assert "  online  " in run(capsys, "mark-shard", "two", "online")
    run(capsys, "create-mapping", "200:", "--shard", "two")


def test_catalogs_are_upgraded_everywhere(fleet: Path, capsys: Capture) -> None:
    for name in ("one", "two"):
        run_sql(f"sqlite:///{name}.db", "update partita_local_store set minor = -1")

    shown = run(capsys, "upgrade-catalogs")

    assert shown.splitlines() == [
        "Upgrade the catalogs: done.",
        f"  sqlite:///{fleet}/catalog.db",
        "  one",
        "  two",
    ]
    for name in ("one", "two"):
        engine = create_engine(f"sqlite:///{name}.db", poolclass=NullPool)
        with engine.connect() as connection:
            query = "select min(minor) from partita_local_store"
            assert connection.exec_driver_sql(query).scalar_one() >= 0


def test_keys_are_mapped_to_a_shard_and_unmapped_again(fleet: Path, capsys: Capture) -> None:
    keys = ("create-mapping", "300:400", "200:300", "--shard", "one")
    before = content_of(fleet)
    assert "  + 200:300" in run(capsys, *keys, "--dry-run")
    assert content_of(fleet) == before

    facts = run_json(capsys, *keys, "--offline")

    assert [one["status"] for one in facts["added"]] == ["offline", "offline"]
    assert ranges(capsys)["200:300"] == "one"
    for more in ((), ("--dry-run",)):
        assert "already mapped" in refusal(capsys, *keys, *more)
        assert "offline" in refusal(capsys, "delete-mapping", "42", *more)
    assert "LOW:HIGH" in refusal(capsys, "create-mapping", "500", "--shard", "one")
    assert "this would be done" in run(capsys, "delete-mapping", "250", "--dry-run")
    assert run(capsys, "delete-mapping", "250").splitlines() == [
        "Delete the mapping 200:300 of tenants: done.",
        "  - 200:300  one  offline",
    ]
    assert "200:300" not in ranges(capsys)


def test_keys_of_a_list_map_are_mapped_one_by_one(capsys: Capture) -> None:
    run(capsys, "init")
    run(capsys, "create-map", "users", "--key-type", "str", "--kind", "list")
    run(capsys, "add-shard", "sqlite:///one.db", *SCHEMA)

    facts = run_json(capsys, "create-mapping", "eve", "adam", "--shard", "one")

    assert [one["range"] for one in facts["added"]] == ["eve", "adam"]
    run(capsys, "offline", "eve")
    run(capsys, "delete-mapping", "eve")
    assert ranges(capsys) == {"adam": "one"}


def test_an_offline_mapping_is_assigned_to_another_shard(fleet: Path, capsys: Capture) -> None:
    assert "offline" in refusal(capsys, "assign", "42", "--to", "two")
    run(capsys, "offline", "42")

    facts = run_json(capsys, "assign", "42", "--to", "two")

    assert [Path(one["shard"]).stem for one in facts["removed"]] == ["one"]
    assert [Path(one["shard"]).stem for one in facts["added"]] == ["two"]
    assert ranges(capsys) == {"0:100": "two", "100:200": "two"}


def test_a_locked_mapping_is_changed_with_its_token_only(fleet: Path, capsys: Capture) -> None:
    locked = run(capsys, "lock", "42", "--token", "mine")

    assert "status   online, locked by mine" in locked
    assert "lock" in refusal(capsys, "lock", "42")
    for change in (
        ("split", "--at", "40"),
        ("merge", "--at", "40"),
        ("offline", "42"),
        ("online", "42"),
        ("offline", "42"),
        ("assign", "42", "--to", "two"),
        ("delete-mapping", "42"),
    ):
        assert "--token" in refusal(capsys, *change)
        assert "--token" in refusal(capsys, *change, "--token", "another")
        run(capsys, *change, "--token", "mine")
    assert "--token" in refusal(capsys, "offline", "142", "--token", "mine")


def test_locks_are_released_by_their_token_or_by_force(fleet: Path, capsys: Capture) -> None:
    token = run_json(capsys, "lock", "42")["mapping"]["locked_by"]
    run(capsys, "lock", "142", "--token", token)

    facts = run_json(capsys, "unlock", "--token", token)

    assert facts["what"] == "Unlock 2 mappings of tenants"
    assert [one["locked_by"] for one in facts["removed"]] == [token, token]
    assert [one["locked_by"] for one in facts["added"]] == [None, None]
    assert "Unlock 0 mappings" in run(capsys, "unlock", "--token", token)
    run(capsys, "lock", "42")
    assert "--force" in refusal(capsys, "unlock", "42")
    assert "Unlock 1 mapping of tenants: done." in run(capsys, "unlock", "42", "--force")
    assert run_json(capsys, "lookup", "42")["mapping"]["locked_by"] is None
    assert "--token" in refusal(capsys, "unlock")
    assert "--token" in refusal(capsys, "unlock", "42", "--token", "mine")


def test_a_lost_shard_is_detached_and_attached_again(fleet: Path, capsys: Capture) -> None:
    (fleet / "two.db").rename(fleet / "elsewhere.db")

    facts = run_json(capsys, "detach", "two")

    assert [one["range"] for one in facts["removed"]] == ["100:200"]
    assert ranges(capsys) == {"0:100": "one"}
    (shard,) = run_json(capsys, "attach", "sqlite:///elsewhere.db")["shards"]
    assert Path(shard["location"]).stem == "elsewhere"
    run(capsys, "recover", "elsewhere", "--keep", "local")
    assert ranges(capsys) == {"0:100": "one", "100:200": "elsewhere"}


def test_a_lost_catalog_is_rebuilt_from_the_shards(
    fleet: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_CONNECT", "sqlite:///new-catalog.db")
    run(capsys, "init")

    (rebuilt,) = run_json(capsys, "rebuild-catalog", "sqlite:///one.db", "sqlite:///two.db")["maps"]

    assert (rebuilt["name"], rebuilt["shards"], rebuilt["mappings"]) == ("tenants", 2, 2)
    assert ranges(capsys) == {"0:100": "one", "100:200": "two"}


def test_recover_can_be_limited_to_some_keys(fleet: Path, capsys: Capture) -> None:
    run(capsys, "split", "--at", "40")
    run_sql("sqlite:///one.db", "delete from partita_local_mappings")

    run(capsys, "recover", "one", "--keep", "global", "--only", "0:40")

    found = run_json(capsys, "recover", "one", status=1)["differences"]
    assert [one["range"] for one in found] == ["40:100"]
    assert "--keep" in refusal(capsys, "recover", "one", "--only", "0:40")


# what a program can do


VERBS = {
    ShardMapManager: {
        **dict.fromkeys(("create", "open", "try_open"), "init"),
        **dict.fromkeys(("create_range_map", "create_list_map", "create_hash_map"), "create-map"),
        **dict.fromkeys(("get_map", "find_map", "list_maps"), "maps"),
        "delete_map": "delete-map",
        "list_locations": "list",
        "repair": "recover",
        "upgrade_store": "upgrade-catalogs",
    },
    ShardMap: {
        **dict.fromkeys(("get", "find", "resolve"), "lookup"),
        **dict.fromkeys(("mappings", "keys"), "mappings"),
        **dict.fromkeys(("shards", "get_shard", "find_shard"), "list"),
        "create_shard": "add-shard",
        "delete_shard": "remove-shard",
        "update_shard": "mark-shard",
        **dict.fromkeys(("create_mapping", "create_mappings"), "create-mapping"),
        "delete_mapping": "delete-mapping",
        "update_mapping": "assign",
        "split": "split",
        "merge": "merge",
        "set_offline": "offline",
        "set_online": "online",
        "lock": "lock",
        **dict.fromkeys(("unlock", "force_unlock"), "unlock"),
        "lock_owner": "lookup",
        "set_schema": "set-schema",
        **dict.fromkeys(("fan_out", "afan_out"), "fan-out"),
    },
    Fleet: {
        **dict.fromkeys(("add_shard", "adopt"), "add-shard"),
        "remove_shard": "remove-shard",
        "upgrade": "upgrade",
        "downgrade": "downgrade",
        "execute_on_all": "execute",
        "create_database": "create-database",
        "drop_database": "drop-database",
        "status": "status",
        "check_drift": "drift",
        "move": "move",
        "resume": "resume",
        "cancel": "cancel",
        "list_moves": "jobs",
    },
    Recovery: {
        **dict.fromkeys(("differences", "resolve", "rebuild_local"), "recover"),
        "attach": "attach",
        "detach": "detach",
        "rebuild_global": "rebuild-catalog",
    },
}
"""The verb that does what a method does; several methods may be one verb."""
FOR_PROGRAMS = {
    *("connect", "aconnect", "sessionmaker", "async_sessionmaker", "scoped_session"),
    *("run", "arun", "routed", "close", "aclose", "begin", "connect_shard"),
    *("find_cached", "forget", "load", "epoch", "row", "adopt_schema", "mapping_of", "shard_of"),
    *("current_shards", "forget_shards", "refresh", "read_schema"),
}
"""Methods that use the maps, or work on the cache of a process: they administer nothing."""


@pytest.mark.parametrize("offered", VERBS, ids=lambda offered: offered.__name__)
def test_what_a_program_can_administer_the_command_line_can_too(
    offered: type, capsys: Capture
) -> None:
    assert main(["shards", "--help"]) == 0
    verbs = set(re.findall(r"^  ([a-z][a-z-]*)", capsys.readouterr().out, re.MULTILINE))
    kinds = (ListShardMap, RangeShardMap, HashShardMap) if offered is ShardMap else (offered,)

    methods = {
        name
        for kind in kinds
        for name, member in inspect.getmembers(kind, callable)
        if not name.startswith(("_", "encode_", "decode_", "find_encoded"))
    }

    assert methods - FOR_PROGRAMS == set(VERBS[offered])
    assert set(VERBS[offered].values()) <= verbs


# move, jobs, resume, cancel


def test_move_of_a_key_splits_it_off_and_moves_it_alone(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///one.db", "insert into blog values (41, 1, 'a'), (42, 1, 'b'), (42, 2, 'c')")

    planned = run_json(capsys, "move", "42", "--to", "two", "--dry-run")["moves"]
    assert [(one["range"], one["keys"], one["rows"]) for one in planned] == [("42:43", 1, 2)]
    assert ranges(capsys) == {"0:100": "one", "100:200": "two"}
    (moved,) = run_json(capsys, "move", "42", "--to", "two")["moves"]

    assert (moved["range"], moved["state"], moved["rows"]) == ("42:43", "done", 2)
    assert ranges(capsys) == {"0:42": "one", "42:43": "two", "43:100": "one", "100:200": "two"}
    rows = run_json(capsys, "fan-out", "select name from blog")["rows"]
    assert sorted((row[0], Path(row[1]).stem) for row in rows) == [
        ("a", "one"),
        ("b", "two"),
        ("c", "two"),
    ]


@pytest.mark.parametrize("key", ["0", "99"])
def test_move_of_a_key_at_an_end_splits_once(fleet: Path, capsys: Capture, key: str) -> None:
    run(capsys, "move", key, "--to", "two")

    assert len(ranges(capsys)) == 3
    assert ranges(capsys)[f"{key}:{int(key) + 1}"] == "two"


def test_move_of_a_key_of_a_hash_map_moves_its_bucket(capsys: Capture) -> None:
    tables = ("--sharded", "blog=tenant_id", *SCHEMA)
    run(capsys, "init")
    run(capsys, "create-map", "t", "--key-type", "int", "--kind", "hash", "--buckets", "8", *tables)
    run(capsys, "add-shard", "sqlite:///one.db", "--range", ":", *SCHEMA)
    run(capsys, "add-shard", "sqlite:///two.db", *SCHEMA)
    run_sql("sqlite:///one.db", "insert into blog values (42, 1, 'a')")
    bucket = run_json(capsys, "lookup", "42")["bucket"]

    (planned,) = run_json(capsys, "move", "42", "--to", "two", "--dry-run")["moves"]
    run(capsys, "move", "42", "--to", "two")

    assert (planned["keys"], planned["rows"]) == (1, 1)
    assert ranges(capsys)[f"{bucket}:{bucket + 1}"] == "two"
    assert Path(run_json(capsys, "lookup", "42")["mapping"]["shard"]).stem == "two"


def test_a_dry_run_of_a_move_counts_keys_and_rows(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///one.db", "insert into blog values (1, 1, 'a'), (1, 2, 'b'), (7, 1, 'c')")

    shown = run(capsys, "move", "0:100", "--to", "two", "--dry-run")

    assert shown == "0:100 from one to two: 2 keys with 3 rows would be moved.\n"


@pytest.mark.parametrize(("answer", "status", "shard"), [("y", 0, "two"), ("n", 130, "one")])
def test_a_move_of_several_keys_asks_on_a_terminal(
    fleet: Path, capsys: Capture, answer: str, status: int, shard: str
) -> None:
    run_sql("sqlite:///one.db", "insert into blog values (1, 1, 'a'), (7, 1, 'c')")
    command = [sys.executable, "-m", "partita.cli.main", "shards", "move", "0:100", "--to", "two"]
    done = run_on_terminal(command, answer=f"{answer}\n")

    assert "Move 2 keys with 2 rows to two?" in done.drawn
    assert done.status == status
    assert ranges(capsys)["0:100"] == shard


def test_yes_answers_the_question_in_advance(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///one.db", "insert into blog values (1, 1, 'a'), (7, 1, 'c')")
    command = [sys.executable, "-m", "partita.cli.main", "shards", "move", "0:100", "--to", "two"]
    done = run_on_terminal([*command, "--yes"], answer="")

    assert done.status == 0
    assert "?" not in done.drawn.replace("?25", "")
    assert ranges(capsys)["0:100"] == "two"


# old names


def test_old_names_work_and_print_a_note(
    fleet: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PARTITA_CONNECT")
    catalog_flag = ("--catalog", "sqlite:///catalog.db")
    cases = {
        ("shards", "--connect", "sqlite:///catalog.db"): "`partita shards list`",
        ("list", *catalog_flag): "`--connect URL`",
        ("init", "sqlite:///catalog.db"): "`--connect URL`",
    }

    for arguments, new in cases.items():
        capsys.readouterr()
        assert main(["shards", *arguments, "--json"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)
        assert captured.err.startswith("partita: note: ")
        assert captured.err.endswith(f"use {new}.\n")
        assert captured.err.count("\n") == 1

    monkeypatch.setenv("PARTITA_CATALOG", "sqlite:///catalog.db")
    assert main(["shards", "list", "--json"]) == 0
    assert "PARTITA_CATALOG is an old form" in capsys.readouterr().err


# short names


def test_shards_of_one_name_are_told_apart_by_their_folder(fleet: Path, capsys: Capture) -> None:
    (fleet / "eu").mkdir()
    run(capsys, "add-shard", "sqlite:///eu/one.db", "--range", "200:300", *SCHEMA)

    names = [one["name"] for one in run_json(capsys, "list")["shards"]]

    assert sorted(names) == ["eu/one", f"{fleet.name}/one", "two"]
    for name in names:
        assert len(run_json(capsys, "mappings", "--shard", name)["mappings"]) == 1
    assert "2 shards are called 'one'" in refusal(capsys, "mappings", "--shard", "one")


def test_move_carries_rows_to_another_shard(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///one.db", "insert into blog values (42, 1, 'a'), (1, 1, 'b')")
    run(capsys, "split", "--at", "40")

    shown = run(capsys, "move", "40:100", "--to", f"sqlite:///{fleet}/two.db", "--rate", "100000")

    assert re.fullmatch(
        r"40:100 from one to two: 1 row in \d+\.\d s, offline for \d+\.\d\d s\.\n", shown
    )
    rows = run_json(capsys, "fan-out", "select name from blog order by 1")["rows"]
    assert {(row[0], Path(row[1]).stem) for row in rows} == {("a", "two"), ("b", "one")}
    assert ranges(capsys) == {"0:40": "one", "40:100": "two", "100:200": "two"}


def test_move_names_a_blocker_and_ends_it_on_request(fleet: Path, capsys: Capture) -> None:
    hold = (
        "import sqlite3, time; c = sqlite3.connect('one.db', isolation_level=None);"
        "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold], cwd=fleet, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        asked = ["move", "0:100", "--to", "two", "--grace", "0", "--terminate-blockers"]
        capsys.readouterr()

        assert main(["shards", *asked]) == 0

        assert holder.wait() == -signal.SIGTERM
    assert f"one.db, held by pid {holder.pid}," in capsys.readouterr().err
    assert ranges(capsys)["0:100"] == "two"


def test_move_of_a_range_carries_every_mapping_in_it(fleet: Path, capsys: Capture) -> None:
    run(capsys, "split", "--at", "40")

    facts = run_json(capsys, "move", ":", "--to", "two")

    assert [(one["range"], one["state"]) for one in facts["moves"]] == [
        ("0:40", "done"),
        ("40:100", "done"),
    ]
    assert set(ranges(capsys).values()) == {"two"}
    assert run(capsys, "move", ":", "--to", "two") == "There is nothing to move.\n"


@pytest.fixture
def stopped(fleet: Path) -> str:
    """Stop a move on its way, and give the id of its job."""
    run_sql("sqlite:///one.db", "insert into blog values (42, 1, 'a')")

    def stop(progress: Any) -> None:
        if progress.step == "catch_up":
            raise StopMove

    with catalog() as manager:
        tenants = manager.get_map("tenants")
        target = tenants.get(150).shard
        report = Fleet(manager).move(tenants.get(42), to=target, on_progress=stop)
    assert report.state == "paused"
    return report.job_id


def test_jobs_lists_what_is_not_finished(fleet: Path, capsys: Capture, stopped: str) -> None:
    (heading, line) = run(capsys, "jobs").splitlines()
    (job,) = run_json(capsys, "jobs")["jobs"]

    assert heading.split()[:5] == ["job", "map", "kind", "state", "step"]
    assert line.split()[:5] == [stopped, "tenants", "move", "paused", "catch_up"]
    assert job["subject"].startswith("0:100 from sqlite:")
    assert (job["rows"], job["rows_total"]) == (1, 1)
    assert job["changed_at"] >= job["made_at"]
    assert "1 job unfinished" in run(capsys, "status")


def test_resume_goes_on_with_a_stopped_move(fleet: Path, capsys: Capture, stopped: str) -> None:
    (moved,) = run_json(capsys, "resume")["moves"]

    assert (moved["job"], moved["state"], moved["rows"]) == (stopped, "done", 1)
    assert run(capsys, "jobs") == "There are no jobs.\n"
    finished = run_json(capsys, "jobs", "--all")["jobs"]
    assert [job["state"] for job in finished if job["kind"] == "move"] == ["done"]
    assert ranges(capsys)["0:100"] == "two"
    assert run(capsys, "resume") == "There is nothing to move.\n"
    assert "There is only forward" not in refusal(capsys, "cancel", stopped)


def test_cancel_takes_a_stopped_move_back(fleet: Path, capsys: Capture, stopped: str) -> None:
    shown = run(capsys, "cancel", stopped)

    assert "cancelled" in shown
    assert ranges(capsys)["0:100"] == "one"
    rows = run_json(capsys, "fan-out", "select name from blog")["rows"]
    assert [(row[0], Path(row[1]).stem) for row in rows] == [("a", "one")]


# upgrade, status, drift


def test_upgrade_brings_every_shard_to_the_newest_revision(folder: Path, capsys: Capture) -> None:
    project = str(a_project_and_shards(folder, 3))
    add_revision(
        Path(project), "four", "three", "op.create_table('more', sa.Column('id', sa.Integer))"
    )
    wanted = ("upgrade", "--alembic", project)

    planned = run_json(capsys, *wanted, "--dry-run")
    status = run_json(capsys, "status", "--alembic", project, status=1)
    done = run(capsys, *wanted, "--canary", "shard2", "--stop-after", "2")

    assert [one["pending"] for one in planned["shards"]] == [["revision four"]] * 3
    assert not any(one["is_current"] for one in status["shards"])
    assert [line.split()[1:4] for line in done.splitlines()[1:]] == [
        ["upgraded", "three", "four"]
    ] * 3
    assert done.splitlines()[1].split()[0] == "shard2"
    again = run_json(capsys, *wanted)
    assert {one["state"] for one in again["shards"]} == {"current"}


def test_downgrade_undoes_revisions_on_every_shard(folder: Path, capsys: Capture) -> None:
    project = str(a_project_and_shards(folder, 2))

    facts = run_json(capsys, "downgrade", "one", "--alembic", project)

    states = [(one["state"], one["before"], one["after"]) for one in facts["shards"]]
    assert states == [("downgraded", "three", "one")] * 2


def test_execute_reports_on_each_shard_and_continues_by_name(folder: Path, capsys: Capture) -> None:
    a_project_and_shards(folder, 2)
    statement = ("execute", "CREATE TABLE later (id INTEGER)", "--name", "later")

    first = run_json(capsys, *statement)
    again = run(capsys, *statement)
    failed = run(capsys, "execute", "CREATE TABLE later (id INTEGER)", status=1)

    assert [one["state"] for one in first["shards"]] == ["executed"] * 2
    assert again.count("executed before") == 2
    assert failed.splitlines()[-1].startswith("Not all shards have executed it")
    assert run_json(capsys, "execute", "VACUUM", "--autocommit")["is_complete"]


def test_a_database_is_created_and_dropped(fleet: Path, capsys: Capture) -> None:
    assert "exists" not in run(capsys, "create-database", "sqlite:///three.db")
    assert "exists" in run(capsys, "create-database", "sqlite:///three.db")
    assert "does not exist" not in run(capsys, "drop-database", "sqlite:///three.db")
    assert not (fleet / "three.db").exists()


def test_upgrade_writes_the_pending_sql_instead(folder: Path, capsys: Capture) -> None:
    project = str(a_project_and_shards(folder, 2))
    add_revision(
        Path(project), "four", "three", "op.create_table('more', sa.Column('id', sa.Integer))"
    )

    facts = run_json(capsys, "upgrade", "--alembic", project, "--sql-folder", "sql")

    assert {one["state"] for one in facts["shards"]} == {"written"}
    for one in facts["shards"]:
        assert "CREATE TABLE more" in Path(one["script"]).read_text()
    run(capsys, "status", "--alembic", project, status=1)


def test_an_upgrade_that_fails_says_where_and_what_was_not_tried(
    folder: Path, capsys: Capture
) -> None:
    project = str(a_project_and_shards(folder, 2))
    add_revision(Path(project), "four", "three", "op.execute('select * from nowhere')")

    facts = run_json(capsys, "upgrade", "--alembic", project, status=1)
    shown = run(capsys, "upgrade", "--alembic", project, "--stop-after", "0", status=1)

    assert [one["state"] for one in facts["shards"]] == ["failed", "not tried"]
    assert "no such table: nowhere" in facts["shards"][0]["error"]
    assert shown.count("no such table: nowhere") == 2
    assert shown.splitlines()[-1].startswith("The upgrade is not complete")


def test_status_is_1_for_a_shard_that_cannot_be_asked(fleet: Path, capsys: Capture) -> None:
    assert run(capsys, "status", *SCHEMA).splitlines()[1].split()[2:6] == ["-", "yes", "0", "1"]
    (fleet / "two.db").write_bytes(b"this is no database" * 100)
    for beside in fleet.glob("two.db-*"):
        beside.unlink()

    facts = run_json(capsys, "status", *SCHEMA, status=1)
    shown = run(capsys, "status", status=1)

    assert [bool(one["error"]) for one in facts["shards"]] == [False, True]
    assert "file is not a database" in shown
    run(capsys, "drift", *SCHEMA, status=1)


def test_drift_names_what_differs_though_the_stamp_is_right(folder: Path, capsys: Capture) -> None:
    project = str(a_project_and_shards(folder, 2))
    assert run(capsys, "drift", "--alembic", project) == "All shards have the schema.\n"
    run_sql("sqlite:///shard1.db", "alter table blog add column secret text")

    facts = run_json(capsys, "drift", "--alembic", project, status=1)
    shown = run(capsys, "drift", "--alembic", project, "--map", "tenants", status=1)

    assert [one["drift"] for one in facts["shards"]] == [["extra column blog.secret"]]
    assert shown == "shard1: extra column blog.secret\n"
    run(capsys, "status", "--alembic", project, status=1)


def test_a_declarative_base_stands_for_its_metadata(fleet: Path, capsys: Capture) -> None:
    run(capsys, "drift", "--metadata", "command_models:Base")
    run(capsys, "status", "--credentials", "command_models:credentials")


def test_metadata_without_alembic_creates_missing_tables(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///two.db", "drop table region")

    planned = run(capsys, "upgrade", *SCHEMA, "--dry-run")
    facts = run_json(capsys, "upgrade", *SCHEMA)

    assert "two: create table region" in planned
    assert [one["state"] for one in facts["shards"]] == ["current", "upgraded"]


# fan-out


def test_fan_out_shows_the_rows_of_all_shards(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///one.db", "insert into blog values (1, 1, '10:30')")
    run_sql("sqlite:///two.db", "insert into blog values (101, 1, 'x')")

    facts = run_json(capsys, "fan-out", "select tenant_id from blog where name = '10:30';")
    shown = run(capsys, "fan-out", "select tenant_id, id from blog", "--shard", "two")

    assert facts["columns"] == ["tenant_id", "shard"]
    assert [row[0] for row in facts["rows"]] == [1]
    assert shown.splitlines() == [
        "tenant_id  id  shard",
        "101        1   two",
    ]


def test_fan_out_says_when_there_is_more(fleet: Path, capsys: Capture) -> None:
    facts = run_json(capsys, "fan-out", "select 1 as shard", "--limit", "1")

    assert facts["columns"] == ["shard", "partita_shard"]
    assert len(facts["rows"]) == 1
    assert facts["is_cut"]
    assert "--limit asks for more" in run(capsys, "fan-out", "select 1 as n", "--limit", "1")


def test_fan_out_writes_what_json_has_not_as_text(fleet: Path, capsys: Capture) -> None:
    facts = run_json(capsys, "fan-out", "select x'00ff' as b, null as n, 1.5 as f -- of each")

    assert facts["rows"][0][:3] == ["AP8=", None, 1.5]


def test_a_partial_fan_out_shows_what_came_and_who_failed(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///one.db", "drop table blog")

    facts = run_json(capsys, "fan-out", "select count(*) as n from blog", "--partial", status=1)

    assert [row[0] for row in facts["rows"]] == [0]
    assert list(facts["errors"]) == [f"sqlite:///{fleet}/one.db"]
    assert "no such table" in refusal(capsys, "fan-out", "select count(*) as n from blog")


def test_a_fan_out_cannot_write(fleet: Path, capsys: Capture) -> None:
    before = content_of(fleet)

    refusal(capsys, "fan-out", "insert into region values (1) returning id")
    refusal(capsys, "fan-out", "select 1) as a; commit; delete from blog; select (1")

    assert content_of(fleet) == before


# recover


def test_recover_shows_differences_and_resolves_them(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///one.db", "delete from partita_local_mappings")

    shown = run(capsys, "recover", status=1)
    (found,) = run_json(capsys, "recover", "one", status=1)["differences"]
    planned = run(capsys, "recover", "one", "--keep", "global", "--dry-run", status=1)

    assert "recover SHARD --keep global" in shown
    assert (found["range"], found["where"], found["in_local"]) == ("0:100", "global", None)
    assert found["in_global"] == f"sqlite:///{fleet}/one.db"
    assert "The global side would be kept." in planned
    run(capsys, "recover", "two")
    assert "The global side was kept." in run(capsys, "recover", "one", "--keep", "global")
    assert run(capsys, "recover") == "The catalogs agree.\n"
    assert ranges(capsys) == {"0:100": "one", "100:200": "two"}


def test_recover_can_keep_what_the_shard_says(fleet: Path, capsys: Capture) -> None:
    run_sql("sqlite:///one.db", "delete from partita_local_mappings")

    facts = run_json(capsys, "recover", "one", "--keep", "local")

    assert facts["kept"] == "local"
    assert ranges(capsys) == {"100:200": "two"}


def test_recover_names_a_shard_that_cannot_be_asked(fleet: Path, capsys: Capture) -> None:
    (fleet / "two.db").write_bytes(b"this is no database" * 100)
    for beside in fleet.glob("two.db-*"):
        beside.unlink()

    facts = run_json(capsys, "recover", status=1)

    assert list(facts["errors"]) == [f"sqlite:///{fleet}/two.db"]
    assert facts["differences"] == []


class Crash(BaseException):
    pass


def test_recover_ends_the_changes_of_processes_that_are_gone(fleet: Path, capsys: Capture) -> None:
    def crash(point: str) -> None:
        if point == "local 0 applied":
            raise Crash

    with catalog() as manager, pytest.raises(Crash):  # noqa: PT012 - the block is what crashes
        manager.executor.fault = crash
        tenants = manager.get_map("tenants")
        tenants.set_online(tenants.set_offline(tenants.get(42)))
    before = content_of(fleet)

    planned = run_json(capsys, "recover", "--dry-run", status=1)
    assert content_of(fleet) == before
    done = run_json(capsys, "recover")

    assert list(planned["ended"].values()) == ["would be ended"]
    assert list(done["ended"].values()) == ["finished"]
    assert run(capsys, "recover") == "The catalogs agree.\n"


# Secrets, wrong URLs, terminals


@pytest.mark.parametrize(
    "arguments",
    [
        ("maps", "--connect", "postgresql+psycopg://bob:hunter2@127.0.0.1:1/catalog"),
        ("maps", "postgresql+psycopg://bob:hunter2@127.0.0.1:1/catalog"),
        (
            "init",
            "--connect",
            "postgresql+psycopg://bob:hunter2@127.0.0.1:1/catalog?password=hunter2",
        ),
        ("init", "--connect", "nonsense://bob:hunter2@host/catalog"),
        ("init", "--connect", "postgresql+nodriver://bob:hunter2@host/catalog"),
        ("init", "--connect", "postgresql+psycopg://bob:hunter2@host:port/catalog"),
        ("init", "--connect", "mysql+pymysql://bob:hunter2@host/catalog"),
        ("lookup", "bob:hunter2", "--connect", "sqlite://bob:hunter2@host/file.db"),
    ],
)
def test_no_user_and_no_password_is_ever_printed(
    capsys: Capture, arguments: tuple[str, ...]
) -> None:
    said = refusal(capsys, *arguments)

    assert "hunter2" not in said
    assert "bob" not in said


def test_a_shard_s_login_is_not_printed_either(fleet: Path, capsys: Capture) -> None:
    url = "postgresql+psycopg://bob:hunter2@127.0.0.1:1/shard"
    for arguments in (
        ("add-shard", url, "--range", "200:300", *SCHEMA),
        ("add-shard", url, "--range", "200:300", *SCHEMA, "--dry-run"),
        ("move", "42", "--to", url),
        ("mappings", "--shard", url),
        ("upgrade", *SCHEMA, "--canary", url),
    ):
        said = refusal(capsys, *arguments)

        assert "127.0.0.1:1/shard" in said
        assert "hunter2" not in said
        assert "bob" not in said


def test_a_driver_that_names_the_user_is_not_repeated(
    fleet: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        error = RuntimeError('login of user "bob" failed, password hunter2')
        raise ExceptionGroup("all failed", [error, error])

    monkeypatch.setattr(shards_fleet, "fan_out", fail)

    said = refusal(
        capsys, "fan-out", "select 1", "--shard", "postgresql://bob:hunter2@host/database"
    )

    assert said.startswith("partita: login of the user failed, password ***")
    assert "1 more shards failed" in said


def test_every_verb_has_help_with_an_example(capsys: Capture) -> None:
    assert main(["shards", "--help"]) == 0
    verbs = re.findall(r"^  ([a-z][a-z-]*)", capsys.readouterr().out, re.MULTILINE)

    assert {"init", "add-shard", "move", "upgrade", "recover", "fan-out"} <= set(verbs)
    for verb in verbs:
        assert main(["shards", verb, "--help"]) == 0
        assert f"example: partita shards {verb}" in capsys.readouterr().out


def test_a_move_draws_progress_on_terminals_only(fleet: Path) -> None:
    run_sql("sqlite:///one.db", "insert into blog values (42, 1, 'a')")
    command = [sys.executable, "-m", "partita.cli.main", "shards", "move", "0:100", "--to", "two"]
    done = run_on_terminal(command)

    assert done.status == 0
    assert "of 10)" in done.drawn
    assert "1 row in" in done.out

    quiet = subprocess.run(
        [*command[:-1], "one", "--json"], capture_output=True, check=True, env=dict(os.environ)
    )

    assert quiet.stderr == b""
    assert json.loads(quiet.stdout)["moves"][0]["state"] == "done"
