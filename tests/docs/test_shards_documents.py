"""The documents of shards: their programs are saved, their commands typed, their words compared."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import partita.shards
from docs.sources import PROJECT, code_blocks, missing_tests
from partita.shards.maps.recovery import Recovery

DOCUMENTS = PROJECT / "docs" / "shards"
FENCED = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SETTING_UP = ("python3.11 -m venv", "pip install")
FOLDER = "/srv/blogs"
"""The folder of the reader, as the documents show it."""
MARK = "-- next command --"
PATIENCE = {"sleep 2": "until [ -s busy.txt ]; do sleep 0.1; done"}
"""What takes longer on a busy machine: the writer must have written something."""
INSIDE = {
    *("adopt_schema", "mapping_of", "shard_of", "row", "row_keys"),
    *("current_shards", "forget_shards"),
    *("executor", "cache", "fault", "clock"),
}
"""What the parts of the package call of each other."""


def as_script(document: Path) -> tuple[str, list[tuple[str, str]]]:
    """Return what the reader saves and types, and what each command is said to answer."""
    lines: list[str] = []
    expected: list[tuple[str, str]] = []
    for language, name, body in FENCED.findall(document.read_text("utf-8")):
        if language == "python" and name:
            folder = shlex.quote(str(Path(name).parent))
            lines.append(f"mkdir -p {folder} && cat > {shlex.quote(name)} <<'SAVED'\n{body}SAVED")
        elif language == "console":
            for command, answer in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", body, re.MULTILINE):
                if not command.startswith(SETTING_UP):
                    lines += [f"echo {shlex.quote(MARK)}", PATIENCE.get(command, command)]
                    expected.append((command, answer))
    return "\n".join(lines), expected


def alike(text: str, folder: Path) -> str:
    """What may differ from run to run taken out: figures, columns, where the folder is."""
    text = text.replace(str(folder.resolve()), FOLDER)
    return re.sub(r"[ \t]+", " ", re.sub(r"\d+\.\d+|[\d,]+ rows", "0", text)).strip()


@pytest.mark.timeout(600)
def test_the_tutorial_of_shards_goes_as_it_says(tmp_path: Path) -> None:
    script, expected = as_script(DOCUMENTS / "tutorial.md")
    commands = str(Path(sys.executable).parent)
    environment = {**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"}

    done = subprocess.run(
        ["bash", "-e"],
        input=script,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    answers = done.stdout.split(MARK + "\n")[1:]
    assert len(answers) == len(expected) > 8
    for (command, wanted), answer in zip(expected, answers, strict=True):
        if wanted:
            assert alike(answer, tmp_path) == alike(wanted, tmp_path), command


def test_the_shards_of_the_readme_go_as_it_says(tmp_path: Path) -> None:
    text = (PROJECT / "README.md").read_text("utf-8")
    blocks = {name: body for language, name, body in FENCED.findall(text) if language == "python"}
    (wanted,) = re.findall(r"^\$ python blogs.py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)

    assert alike(run_code(blocks["blogs.py"], tmp_path), tmp_path) == alike(wanted, tmp_path)


def test_the_first_words_of_the_readme_about_shards_are_true(tmp_path: Path) -> None:
    text = (PROJECT / "README.md").read_text("utf-8")
    blocks = {name: body for language, name, body in FENCED.findall(text) if language == "python"}
    before, session, _ = blocks["blogs.py"].partition("Session = tenants.sessionmaker()\n")
    told = "print(*rows, tenants.get(42).shard == second)\nmanager.close()\n"

    assert (
        run_code(before + session + blocks["shards"] + told, tmp_path) == "(42, 'Answers') True\n"
    )


def run_code(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "document",
    [path for path in sorted(DOCUMENTS.glob("*.md")) if code_blocks(path, "python")],
    ids=lambda path: path.name,
)
def test_the_blocks_of_a_document_of_shards_are_one_program_that_runs(
    document: Path, tmp_path: Path
) -> None:
    run_code("\n\n".join(code_blocks(document, "python")), tmp_path)


def test_every_public_name_of_shards_is_documented() -> None:
    text = "\n".join(path.read_text("utf-8") for path in DOCUMENTS.glob("*.md"))
    shards = partita.shards
    methods = {
        name
        for offered in (
            *(shards.ShardMapManager, shards.Fleet, Recovery, shards.Retry),
            *(shards.RangeShardMap, shards.ListShardMap, shards.HashShardMap),
        )
        for name in dir(offered)
        if not name.startswith(("_", "encode_", "decode_", "find_encoded"))
    }

    assert {"split", "add_shard", "resolve"} <= methods
    assert {name for name in {*shards.__all__, *methods - INSIDE} if name not in text} == set()


@pytest.mark.parametrize(("system", "rows_min"), [("shards", 200), ("reliable", 150)])
def test_every_behaviour_names_tests_that_exist(system: str, rows_min: int) -> None:
    text = (PROJECT / "docs" / system / "behaviours.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if re.match(r"\| (?!Behaviour|-)", line)]
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)

    assert len(rows) > rows_min
    assert [row for row in rows if "::test_" not in row] == []
    assert missing_tests(named) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    here = "tests/docs/test_shards_documents.py"
    wrong = [("tests/docs/test_nothing.py", "test_nothing"), (here, "test_nothing")]

    found = missing_tests([*wrong, (here, "test_a_test_that_does_not_exist_is_found")])

    assert found == wrong
