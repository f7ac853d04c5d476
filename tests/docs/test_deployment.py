"""The files of `deploy`: they can be read, and their commands exist and work."""

import importlib.util
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from docs.sources import PROJECT
from partita.cli.main import command
from partita.local_postgres import HOST, INSTALLATION, WHEEL, LocalPostgres
from support.live import ANY_PORTS, PATIENCE_SECONDS

DEPLOY = PROJECT / "deploy"
SECRETS = "/run/secrets"
ACCESS = f"""
host  all partita {HOST}/32 scram-sha-256
host  all all {HOST}/32 trust
"""
"""The role of the front ends needs its password."""


def compose(file: str = "compose.postgresql.yml") -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / file).read_text("utf-8"))
    return read


def script_of(service: str, file: str = "compose.postgresql.yml") -> str:
    """What the shell of a container runs: Compose writes a dollar sign as two."""
    (script,) = compose(file)["services"][service]["command"]
    return str(script).replace("$$", "$")


def commands_of(text: str) -> Iterator[list[str]]:
    """Every command line of Partita in a text, as words without the program."""
    for line in re.findall(r"^.*?\bpartita ((?:serve|fleet)\b.*)$", text, re.MULTILINE):
        yield shlex.split(line)


def parse(words: list[str]) -> None:
    """Let the command line read its flags and arguments; nothing is run."""
    verb: click.Command = command()
    words = list(words)
    while isinstance(verb, click.Group):
        found = verb.get_command(click.Context(verb), words[0])
        assert found is not None, words
        verb = found
        words.pop(0)
    verb.make_context("partita", words)


UNITS = ["partita.service", "partita@.service", "partita-worker@.service"]


@pytest.mark.parametrize("unit", [*UNITS, "partita-control.service"])
def test_a_unit_starts_a_command_that_exists(unit: str) -> None:
    text = (DEPLOY / unit).read_text("utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, *words = shlex.split(line.replace("%i", "1"))

    parse(words)

    assert program.endswith("/bin/partita")
    assert "Restart=on-failure" in text


def test_front_ends_of_one_machine_have_ports_of_their_own() -> None:
    text = (DEPLOY / "partita@.service").read_text("utf-8")
    ports = re.findall(r"--(?:blob|queue|table)-port (\S+)", text)

    several = {port.replace("%i", str(number)) for port in ports for number in range(1, 10)}

    assert len(several) == 27
    assert several.isdisjoint({"10000", "10001", "10002"})


def test_the_commands_of_the_containers_exist() -> None:
    for service in ("init", "front-1", "front-2"):
        (words,) = commands_of(script_of(service))
        parse(words)


def test_the_commands_of_the_containers_of_a_fleet_exist() -> None:
    for service in ("init", "control", "front-1", "front-2"):
        (words,) = commands_of(script_of(service, "compose.fleet.yml"))
        parse(words)


def test_a_fleet_of_containers_differs_in_its_databases_only() -> None:
    one, fleet = compose(), compose("compose.fleet.yml")

    assert fleet["services"].keys() - one["services"].keys() == {
        *("catalog", "shard-1", "shard-2", "control"),
    }
    assert fleet["secrets"] == one["secrets"]
    assert fleet["services"]["balancer"] == one["services"]["balancer"]


def test_a_wrong_flag_of_a_container_would_be_found() -> None:
    with pytest.raises(click.UsageError):
        parse(["serve", "--stor", "postgresql://partita@database/partita"])


def test_containers_have_passwords_from_files_only() -> None:
    text = (DEPLOY / "compose.postgresql.yml").read_text("utf-8")
    services, secrets = compose()["services"], compose()["secrets"]

    used = {secret for service in services.values() for secret in service.get("secrets", ())}

    assert used == secrets.keys()
    assert all(secret["file"].startswith("./secrets/") for secret in secrets.values())
    assert not re.search(r"(?i)password=(?!\"\$\$\(cat )|AccountKey=", text)
    assert "deploy/secrets/" in (PROJECT / ".gitignore").read_text("utf-8")


def test_only_the_balancer_is_reached_from_outside_and_from_this_machine() -> None:
    published = {name: service.get("ports") for name, service in compose()["services"].items()}

    assert published.pop("balancer") == ["127.0.0.1:10000-10002:10000-10002"]
    assert set(published.values()) == {None}


def test_the_balancer_asks_every_front_end_for_its_readiness() -> None:
    text = (DEPLOY / "haproxy.cfg").read_text("utf-8")
    servers = set(re.findall(r"^    server (\S+) \1:(\d+)$", text, re.MULTILINE))
    front_ends = {name for name in compose()["services"] if name.startswith("front-")}

    assert servers == {(name, port) for name in front_ends for port in ("10000", "10001", "10002")}
    assert re.findall(r"^    bind :(\d+)$", text, re.MULTILINE) == ["10000", "10001", "10002"]
    assert "option httpchk GET /readyz" in text
    assert re.search(r"^    default-server check ", text, re.MULTILINE)
    assert "retry-on conn-failure" in text  # a request that was sent is not sent again


def test_the_image_has_a_lock_for_each_way_to_build_it() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text("utf-8")
    wanted = compose()["x-front-end"]["build"]["args"]["REQUIREMENTS"]
    default = re.findall(r"^ARG REQUIREMENTS=(\w+)$", dockerfile, re.MULTILINE)

    for name in (wanted, *default):
        lock = (PROJECT / "requirements" / f"{name}.txt").read_text("utf-8")
        assert ("\nasyncpg==" in lock) == (name == wanted)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[LocalPostgres]:
    server = LocalPostgres(tmp_path / "postgres", access=ACCESS)
    server.start()
    try:
        yield server
    finally:
        server.stop(immediately=True)


@pytest.mark.proof
def test_the_scripts_of_the_containers_work(database: LocalPostgres, tmp_path: Path) -> None:
    """Role, schema and two front ends, as the containers start them, on a real PostgreSQL."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "postgres_password").write_text("unused\n")
    (secrets / "partita_password").write_text('it\'s a "secret" \\ $x\n')
    (secrets / "account_key").write_text("dGhlIGtleSBvZiB0aGUgYWNjb3VudCwgMzIgYnl0ZXMgb3IgbW9yZQ==")
    wheel = importlib.util.find_spec(WHEEL)
    assert wheel is not None
    assert wheel.origin is not None
    programs = f"{Path(wheel.origin).parent}/{INSTALLATION}/bin:{Path(sys.executable).parent}"
    environment = os.environ | {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PGHOST": HOST,
        "PGPORT": str(database.port),
        "POSTGRES_USER": database.superuser,
        "POSTGRES_DB": "postgres",
        "PARTITA_PASSWORD_FILE": str(secrets / "partita_password"),
    }

    def here(script: str) -> list[str]:
        replaced = {
            SECRETS: str(secrets),
            "postgres@database/partita": f"{database.superuser}@{HOST}:{database.port}/postgres",
            "partita@database/partita": f"partita@{HOST}:{database.port}/postgres",
            "/var/lib/partita": str(tmp_path),
            "--host 0.0.0.0": " ".join(ANY_PORTS) + " --json",
        }
        for written, ours in replaced.items():
            script = script.replace(written, ours)
        return ["sh", "-ec", script]

    subprocess.run([DEPLOY / "postgresql-role.sh"], env=environment, check=True, timeout=60)
    done = subprocess.run(
        here(script_of("init")),
        env=environment,
        check=True,
        timeout=60,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "The role partita may do what front ends need, and nothing else." in done.stdout
    for service in ("front-1", "front-2"):
        with subprocess.Popen(
            here(script_of(service)), env=environment, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            try:
                start = json.loads(server.stdout.readline())
                origin = start["table_endpoint"].removesuffix("/app")
                with urllib.request.urlopen(f"{origin}/readyz", timeout=PATIENCE_SECONDS) as ready:
                    assert ready.read() == b"ready\n"
                server.send_signal(signal.SIGTERM)
                assert server.wait(PATIENCE_SECONDS) == 0
            finally:
                server.kill()
