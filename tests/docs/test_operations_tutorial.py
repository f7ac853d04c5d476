"""The tutorial of operations: its commands are typed with fewer rows, its answers compared."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs.sources import PROJECT
from docs.test_postgresql_tutorial import END_SERVERS, FOLDER
from docs.test_shards_documents import MARK, as_script
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from support.cluster import free_port

DOCUMENT = PROJECT / "docs" / "tutorial-operations.md"
ROWS = int(os.environ.get("PARTITA_TUTORIAL_ROWS", "20000"))
"""The document has 200,000: to try those, set the variable."""
PORTS = ["10000", "10001", "10002", "10003", "10004"]
PATIENCE_SECONDS = 280


def with_fewer_rows(text: str) -> str:
    """Divide what depends on the rows of the file, and one order in 1,000 that is lost."""
    text = re.sub(r"\b200,000\b", f"{ROWS:,}", text)
    text = re.sub(r"\b200000\b", str(ROWS), text)
    text = text.replace("--slow-ms 20", f"--slow-ms {max(1, ROWS // 10_000)}")
    return re.sub(r"\b200\b", str(ROWS // 1000), text)


def with_ports(text: str) -> str:
    """Give every service a free port, and the verbs their connection string."""
    found = {port: str(free_port()) for port in PORTS}
    text = re.sub("|".join(PORTS), lambda port: found[port[0]], text)
    endpoints = "".join(
        f";{service}Endpoint=http://127.0.0.1:{found[port]}/{DEVELOPMENT_ACCOUNT}"
        for service, port in zip(("Blob", "Queue", "Table"), PORTS, strict=False)
    )
    flags = [
        f"--{service}-port {found[port]}"
        for service, port in zip(("blob", "queue", "table", "console"), PORTS, strict=False)
    ]
    text = text.replace("partita serve --console", f"partita serve {' '.join(flags)} --console")
    text = text.replace("partita top", f"partita top --metrics http://127.0.0.1:{found['10004']}")
    account = f"AccountName={DEVELOPMENT_ACCOUNT};AccountKey={DEVELOPMENT_KEY}"
    whole = f'"DefaultEndpointsProtocol=http;{account}{endpoints}"'
    return re.sub('"?UseDevelopmentStorage=true"?', lambda _: whole, text)


def alike(text: str, folder: Path) -> str:
    """What may differ from run to run taken out: times, rates, sizes, ids, the folder.

    Entities that were examined, too: the entities of a scan that takes a few ms are not counted.
    """
    text = text.replace(str(folder.resolve()), FOLDER)
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z (?!open|paid|sent|lost)", "", text)
    text = re.sub(r"of \d{4}-\d\d-\d\dT[\d:.]+Z", "", text)
    text = re.sub(r"[\d,.]+ (s|ms|entities per second)\b", r"0 \1", text)
    text = re.sub(r"[\d,.]+ (kB|MB|bytes)\b", "0 bytes", text)
    text = re.sub(r"; examined .*", "", text)
    return re.sub(r"[ \t]+", " ", text).strip()


@pytest.mark.proof
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_the_tutorial_of_operations_goes_as_it_says(tmp_path: Path) -> None:
    document = tmp_path / "tutorial.md"
    text = with_ports(with_fewer_rows(DOCUMENT.read_text("utf-8")))
    document.write_text(text, "utf-8")
    script, expected = as_script(document)
    commands = str(Path(sys.executable).parent)
    path = f"{commands}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}

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
    compared = [
        (command, alike(answer, tmp_path), alike(wanted, tmp_path))
        for (command, wanted), answer in zip(expected, answers, strict=True)
        if wanted
    ]
    wrong = [each for each in compared if each[1] != each[2]]
    assert not wrong, "\n".join(line for each in wrong for line in each)
