import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import partita
from partita.cli.main import command, main
from support.terminal import run_on_terminal

KEY = base64.b64encode(b"a key of our own").decode()


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--version", "-V"):
        assert main([flag]) == 0
        assert capsys.readouterr().out == f"partita {partita.__version__}\n"


def test_config_show_names_each_value_and_its_source(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.key").write_text(KEY)
    Path("mine.key").chmod(0o600)

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


@pytest.mark.parametrize("family", ["", "account", "state", "shards", "patterns", "nats", "config"])
def test_a_family_without_a_verb_prints_its_help(
    family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([family] if family else []) == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"Usage: partita {family}".rstrip())
    assert "\nCommands:\n" in captured.err


@pytest.mark.parametrize(
    ("arguments", "suggested"),
    [
        (["serv"], "Did you mean 'serve'?"),
        (["shard"], "Did you mean 'shards'?"),
        (["shards", "mapings"], "'mappings'"),
        (["serve", "--tabel-port", "1"], "'--table-port'"),
        (["state", "verify", "--jsn"], "Did you mean '--json'?"),
    ],
)
def test_a_misspelt_name_is_refused_with_the_nearest(
    arguments: list[str], suggested: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2

    assert suggested in capsys.readouterr().err


def verbs_of(group: click.Group, *path: str) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        inner = group.get_command(context, name)
        assert inner is not None
        if isinstance(inner, click.Group):
            found += verbs_of(inner, *path, name)
        else:
            found.append(((*path, name), inner))
    return found


def test_every_verb_has_a_sentence_an_example_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    verbs = verbs_of(command())

    assert len(verbs) > 50
    for path, verb in verbs:
        assert main([*path, "--help"]) == 0
        text = capsys.readouterr().out
        assert verb.help is not None
        assert verb.help.endswith("."), path
        assert f"\nexample: partita {' '.join(path)}" in text, path
        assert "--json" in text, path


def test_help_needs_no_rich_and_no_driver() -> None:
    code = (
        "import sys; from partita.cli.main import main; main(['--help']); main(['-V']);"
        "print(sorted({'rich', 'sqlalchemy', 'azure', 'nats', 'apsw'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("shell", "script"), [("bash", "complete "), ("zsh", "compdef "), ("fish", "complete ")]
)
def test_completion_scripts_are_printed(
    shell: str,
    script: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_PARTITA_COMPLETE", f"{shell}_source")

    assert main([]) == 0

    out = capsys.readouterr().out
    assert script in out
    assert "_PARTITA_COMPLETE" in out


def test_a_shell_completes_verbs_and_flags(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_PARTITA_COMPLETE", "bash_complete")
    found = {}
    for words in ("partita sh", "partita shards mo", "partita shards move --dry"):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        main([])
        found[words] = capsys.readouterr().out.split()

    assert found == {
        "partita sh": ["plain,shards"],
        "partita shards mo": ["plain,move"],
        "partita shards move --dry": ["plain,--dry-run"],
    }


def on_a_terminal(*arguments: str, **variables: str) -> str:
    """What a command draws on a terminal that has its output and its errors."""
    words = [sys.executable, "-m", "partita.cli.main", *arguments]
    return run_on_terminal(words, is_output_drawn=True, variables=variables).drawn


def test_colours_are_for_terminals_and_no_color_turns_them_off() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "partita.cli.main", "config", "show"]
    piped = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)

    assert "\x1b[" not in piped.stdout
    assert "\x1b[1m" in on_a_terminal("config", "show", NO_COLOR="")
    assert "\x1b[3" not in on_a_terminal("config", "show", NO_COLOR="1")
    assert "\x1b[1;31mpartita:" in on_a_terminal("sing", NO_COLOR="")
    assert "\x1b[" not in on_a_terminal("sing", NO_COLOR="1")
