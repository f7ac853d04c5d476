"""The tutorial of patterns and the README: programs are saved, commands typed, answers compared."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from docs.sources import PROJECT
from docs.test_shards_documents import FENCED, MARK, SETTING_UP, run_code
from support.live import LiveServer

SERVED = "http://127.0.0.1:10002/devstoreaccount1"
"""Where `partita serve` says it is, if nobody tells it another port."""


def as_script(text: str) -> tuple[str, list[tuple[str, str]]]:
    """Return what the reader saves and types, and what each command is said to answer."""
    lines: list[str] = []
    expected: list[tuple[str, str]] = []
    for language, name, body in FENCED.findall(text):
        if language == "python" and name:
            lines.append(f"cat > {shlex.quote(name)} <<'SAVED'\n{body}SAVED")
        elif language == "console":
            for command, answer in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
                if not command.startswith((*SETTING_UP, "export ")):
                    lines += [f"echo {shlex.quote(MARK)}", command]
                    expected.append((command, answer))
    return "\n".join(lines), expected


def alike(text: str, endpoint: str = SERVED) -> str:
    """What may differ from run to run taken out: times, processes, columns."""
    text = text.replace(endpoint, SERVED)
    text = re.sub(r"\d+(\.\d+)? s\b|process \d+", "0", text)
    return re.sub(r"[ \t]+", " ", text).strip()


def test_the_tutorial_of_patterns_goes_as_it_says(tmp_path: Path) -> None:
    text = (PROJECT / "docs" / "patterns" / "tutorial.md").read_text("utf-8")
    script, expected = as_script(text)
    server = LiveServer(tmp_path, "--in-memory")
    try:
        done = subprocess.run(
            ["bash", "-e"],
            input=script,
            cwd=tmp_path,
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "PARTITA_CONNECT": server.connection_string,
            },
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        endpoint = server.endpoint
    finally:
        server.stop()

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    answers = done.stdout.split(MARK + "\n")[1:]
    assert len(answers) == len(expected) > 5
    for (command, wanted), answer in zip(expected, answers, strict=True):
        assert alike(answer, endpoint) == alike(wanted), command


def test_the_typed_entities_of_the_readme_go_as_it_says(tmp_path: Path) -> None:
    text = (PROJECT / "README.md").read_text("utf-8")
    blocks = {name: body for language, name, body in FENCED.findall(text) if language == "python"}
    (wanted,) = re.findall(r"^\$ python staff.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    assert run_code(blocks["staff.py"], tmp_path).strip() == wanted.strip()


def test_the_example_of_patterns_runs(tmp_path: Path) -> None:
    program = (PROJECT / "examples" / "patterns.py").read_text("utf-8")

    assert run_code(program, tmp_path).startswith(
        "TABLE SCAN   staff   residual (EntityType eq 'Employee' and "
    )
