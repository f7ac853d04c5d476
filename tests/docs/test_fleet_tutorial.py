"""The tutorial "from one folder to four shards": its commands are typed, its answers compared."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs.sources import PROJECT
from docs.test_postgresql_tutorial import END_SERVERS
from docs.test_shards_documents import MARK, as_script
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from support.cluster import free_port

DOCUMENT = PROJECT / "docs" / "tutorial-fleet.md"
PATIENCE_SECONDS = 250


def with_ports(text: str) -> str:
    """Give the server of the folder free ports, and its clients their connection string."""
    found = {name: free_port() for name in ("blob", "queue", "table")}
    flags = " ".join(f"--{name}-port {port}" for name, port in found.items())
    text = text.replace("partita serve --path", f"partita serve {flags} --path")
    text = text.replace("127.0.0.1:10002", f"127.0.0.1:{found['table']}")
    account = f"AccountName={DEVELOPMENT_ACCOUNT};AccountKey={DEVELOPMENT_KEY}"
    endpoint = f"TableEndpoint=http://127.0.0.1:{found['table']}/{DEVELOPMENT_ACCOUNT}"
    whole = f"DefaultEndpointsProtocol=http;{account};{endpoint}"
    return text.replace("UseDevelopmentStorage=true", whole)


def alike(text: str) -> str:
    """What may differ from run to run taken out: columns, loads of the last seconds."""
    text = re.sub(r"(shard-\d|catalog) +(\d+) +[\d,]+ +\d+%", r"\1 \2 0 0%", text)
    return re.sub(r"[ \t]+", " ", text).strip()


@pytest.mark.proof
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_the_tutorial_of_fleets_goes_as_it_says(tmp_path: Path) -> None:
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
            assert alike(answer) == alike(wanted), command
