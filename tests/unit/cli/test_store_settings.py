"""The settings that choose the store of a server: how they are read, refused and shown."""

from pathlib import Path

import msgspec
import pytest

from partita.addresses import without_secrets
from partita.cli.config import SQLITE, Config, check, load
from partita.cli.local_store import local_store_warnings
from partita.cli.main import main
from partita.cli.serve import as_line, as_text, start_of
from partita.errors import ConfigurationError
from partita.service.hosting.in_process import open_account

URL = "postgresql://ada:hush-hush@db.internal:5432/orders?sslpassword=hush-hush"
SHOWN = "postgresql://***@db.internal:5432/orders"
PORTS = {"tables": 10002}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def checked(flags: dict[str, object], environ: dict[str, str] | None = None) -> Config:
    config = load(flags, environ or {})
    check(config)
    return config


def test_accounts_are_in_a_folder_by_default() -> None:
    config = checked({})

    assert config.store == SQLITE
    assert not config.is_on_postgresql
    assert config.folder == Path("partita-data")


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_a_database_is_named_by_its_url(scheme: str) -> None:
    config = checked({}, {"PARTITA_STORE": f"{scheme}://db.internal/orders"})

    assert config.is_on_postgresql
    assert config.folder is None
    assert config.clock_check


def test_a_local_database_is_in_the_folder() -> None:
    config = checked({"store": "postgres", "local": True, "path": "data"})

    assert config.is_on_postgresql
    assert config.folder == Path("data")


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"store": "postgres"}, "--local"),
        ({"local": True}, "--store postgres"),
        ({"store": URL, "local": True}, "--store postgres"),
        ({"store": URL, "in_memory": True}, "--in-memory"),
        ({"store": "postgres", "local": True, "in_memory": True}, "--in-memory"),
        ({"store": URL, "path": "data"}, "--path"),
        ({"store": URL, "scrub_days": "3"}, "--scrub-days does not apply to PostgreSQL"),
        ({"blob_store": "s3://bucket"}, "--blob-store does not apply to SQLite"),
        ({"clock_check": False}, "--clock-check does not apply to SQLite"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    flags: dict[str, object], told: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        checked(flags)

    assert told in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.hint
    assert "hush-hush" not in str(caught.value)


def test_a_folder_that_is_set_for_every_server_does_not_refuse_a_database() -> None:
    config = checked({"store": URL}, {"PARTITA_PATH": "/data", "PARTITA_SCRUB_DAYS": "3"})

    assert config.folder is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("store", "mysql://ada:hush-hush@db/orders"),
        ("store", "postgresql+psycopg://ada:hush-hush@db/orders"),
        ("store", ""),
        ("blob_store", "http://ada:hush-hush@bucket"),
        ("blob_store", "file://relative"),
        ("blob_store", "/a/folder"),
        ("path", URL),
    ],
)
def test_an_address_of_another_kind_is_refused_and_not_repeated(name: str, text: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load({name: text}, {})

    assert name in caught.value.message
    assert "hush-hush" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["file:///var/blobs", "s3://b/p", "az://b", "gs://b"])
def test_an_object_store_is_named_by_its_url(scheme: str) -> None:
    config = checked({"store": URL, "blob_store": scheme})

    assert config.blob_store is not None
    assert config.blob_store.text == scheme


def test_no_password_of_a_store_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    config = load({"store": URL}, {})

    assert config.shown()["store"] == SHOWN
    assert "hush-hush" not in repr(config)
    assert main(["config", "show", "--store", URL]) == 0
    printed = capsys.readouterr().out
    assert "hush-hush" not in printed
    assert SHOWN in printed


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hush@db/orders",
        "postgresql://ada:hush@hush@db/orders",
        "postgresql://ada:hush?hush@db/orders",
        "postgresql://db/orders?password=hush",
        "postgresql://db/orders?password=hush@hush",
        "postgresql://ada:hush",
    ],
)
def test_a_password_is_hidden_wherever_it_is_in_a_url(url: str) -> None:
    assert "hush" not in without_secrets(url)


@pytest.mark.parametrize("is_json", [False, True])
def test_the_start_names_the_database_without_its_login(is_json: bool) -> None:
    start = start_of(load({"store": URL}, {}), PORTS)

    printed = as_line(start) if is_json else as_text(start)

    assert (start.store, start.path) == (SHOWN, None)
    assert SHOWN in printed
    assert "hush-hush" not in printed
    assert "partita-data" not in printed


def test_the_start_names_the_folder_of_a_local_database(tmp_path: Path) -> None:
    start = start_of(load({"store": "postgres", "local": True}, {}), PORTS)

    assert (start.store, start.path) == ("postgres", str(tmp_path / "partita-data"))
    assert f"PostgreSQL in {tmp_path / 'partita-data'} " in as_text(start)


def test_a_file_with_the_login_of_a_store_is_private_on_a_network() -> None:
    path = Path("partita.toml")
    path.write_text(f'store = "{URL}"\nhost = "0.0.0.0"\n')
    path.chmod(0o644)

    with pytest.raises(ConfigurationError, match="Other users can read"):
        load({}, {})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["account", "backup", "--connect", URL, "--to", "x"], "pg_basebackup"),
        (["account", "backup", "--connect", "data", "--to", URL], "Give --to a folder"),
        (["account", "restore", "x", "--to", URL], "partita account copy"),
        (["account", "verify", URL], "partita account copy"),
        (["verify", "--connect", URL], "partita account copy"),
        (["verify", "--connect", f"partita:{URL}"], "partita account copy"),
        (["reload", "--connect", URL], "SIGHUP"),
    ],
)
def test_verbs_on_files_refuse_a_database(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2

    printed = capsys.readouterr().err
    assert "must be a folder here, not a PostgreSQL database" in printed
    assert told in printed
    assert "hush-hush" not in printed


def test_an_object_store_of_an_account_in_a_folder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="blob_store applies to PostgreSQL"):
        open_account(None, blob_store="file:///tmp")


def test_the_database_of_a_local_store_is_told_for_other_verbs() -> None:
    start = start_of(load({"store": "postgres", "local": True}, {}), PORTS)
    url = "postgresql://ada@127.0.0.1:5432/postgres"

    told = msgspec.structs.replace(start, database=url)

    assert f"\n  database           {url}\n" in as_text(told)
    assert "  database  " not in as_text(start)


def test_a_folder_with_a_local_database_that_is_not_served_is_told(tmp_path: Path) -> None:
    (tmp_path / "partita-data" / "postgres" / "cluster").mkdir(parents=True)

    assert "--store postgres --local" in local_store_warnings(load({}, {}))[0]
    assert local_store_warnings(load({"store": "postgres", "local": True}, {})) == []
    assert local_store_warnings(load({"path": "elsewhere"}, {})) == []
    assert local_store_warnings(load({"in_memory": True}, {})) == []
