import base64
import json
from pathlib import Path

import pytest

import partita
from partita.cli.main import main

KEY = base64.b64encode(b"a key of our own").decode()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])

    assert caught.value.code == 0
    assert capsys.readouterr().out == f"partita {partita.__version__}\n"


def test_config_show_names_each_value_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.key").write_text(KEY)

    own_account = ["--account", "mine", "--account-key-file", "mine.key"]
    status = main(["config", "show", "--table-port", "0", "--request-log", *own_account])

    out = capsys.readouterr().out
    rows = {line.split()[0]: line.split(maxsplit=1)[1] for line in out.splitlines()}
    assert status == 0
    assert rows["table_port"].split() == ["0", "flag", "--table-port"]
    assert rows["host"].split() == ["127.0.0.1", "default"]
    assert rows["request_log"].split() == ["true", "flag", "--request-log"]
    assert rows["accounts"].startswith("mine (1 key)")
    assert KEY not in out


def test_config_show_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_IN_MEMORY", "1")

    assert main(["config", "show", "--json"]) == 0

    shown = json.loads(capsys.readouterr().out)
    assert shown["in_memory"] == {"value": True, "source": "variable PARTITA_IN_MEMORY"}
    assert shown["durability"] == {"value": "full", "source": "default"}
    assert shown["tls_cert"] == {"value": None, "source": "default"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--table-port", "many"],
        ["serve", "--host", "0.0.0.0"],
        ["serve", "--account", "mine"],
        ["serve", "--account", "mine", "--account-key-file", "missing"],
        ["serve", "--config", "missing.toml"],
        ["serve", "--tls-key", "key.pem"],
        ["serve", "--tabel-port", "1"],
        ["serve", "--table", "1"],
        ["sing"],
        [],
    ],
)
def test_a_refused_start_says_so_in_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(arguments)

    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.startswith("partita: ")
    assert captured.err.count("\n") == 1
