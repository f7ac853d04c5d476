"""The tutorial "from a folder to PostgreSQL": its commands are typed, its answers compared."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs.sources import PROJECT
from docs.test_shards_documents import MARK, as_script
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from support.cluster import free_port

DOCUMENT = PROJECT / "docs" / "tutorial-postgresql.md"
FOLDER = "/srv/tutorial"
"""The folder of the reader, as the document shows it."""
PORTS = [f"10{instance}0{service}" for instance in range(3) for service in range(3)]
"""Those of the tutorial: of the clients, and of two front ends; blobs, queues, tables."""
PATIENCE_SECONDS = 250
END_SERVERS = "trap 'kill -9 $(jobs -p) 2> /dev/null || true' EXIT"
"""Also when a command fails: a server that goes on would keep the output open."""


def with_ports(text: str) -> str:
    """Give every server a free port, and the clients their connection string."""
    found = {port: str(free_port()) for port in PORTS}
    text = re.sub("|".join(PORTS), lambda port: found[port[0]], text)
    endpoints = "".join(
        f";{service}Endpoint=http://127.0.0.1:{found[port]}/{DEVELOPMENT_ACCOUNT}"
        for service, port in zip(("Blob", "Queue", "Table"), PORTS, strict=False)
    )
    served = f"--blob-port {found['10000']} --queue-port {found['10001']} --table-port"
    text = re.sub(r"(partita serve --path \S+)", rf"\1 {served} {found['10002']}", text)
    account = f"AccountName={DEVELOPMENT_ACCOUNT};AccountKey={DEVELOPMENT_KEY}"
    return text.replace(
        "UseDevelopmentStorage=true", f"DefaultEndpointsProtocol=http;{account}{endpoints}"
    )


def alike(text: str, folder: Path) -> str:
    """What may differ from run to run taken out: times, ports, users, bytes of rows, the folder."""
    text = text.replace(str(folder.resolve()), FOLDER)
    text = re.sub(r"\d+\.\d+ s|about [\d,]+ bytes|127\.0\.0\.1:\d+", "0", text)
    text = text.replace("//***@", "//")
    return re.sub(r"[ \t]+", " ", text).strip()


@pytest.mark.proof
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_the_tutorial_of_postgresql_goes_as_it_says(tmp_path: Path) -> None:
    document = tmp_path / "tutorial.md"
    document.write_text(with_ports(DOCUMENT.read_text("utf-8")), "utf-8")
    script, expected = as_script(document)
    commands = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}

    shell = subprocess.Popen(
        ["bash", "-e"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env=environment,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = shell.communicate(f"{END_SERVERS}\n{script}", timeout=PATIENCE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(shell.pid, signal.SIGKILL)

    assert shell.returncode == 0, output + errors
    answers = output.split(MARK + "\n")[1:]
    assert len(answers) == len(expected) > 20
    for (command, wanted), answer in zip(expected, answers, strict=True):
        if wanted:
            assert alike(answer, tmp_path) == alike(wanted, tmp_path), command
