"""The files and commands of docs/recipes: their syntax, and the flags of every command."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

import click
import pytest
import yaml

from docs.sources import PROJECT, code_blocks
from partita.cli.main import command

PAGES = sorted((PROJECT / "docs" / "recipes").glob("*.md"))


def commands_of(text: str) -> Iterator[list[str]]:
    """Every command line of Partita in the blocks of a page, as words without the program."""
    blocks = re.findall(r"^```(?:sh|console|yaml)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    for block in blocks:
        for line in re.findall(
            r"(?:^|\|\| |- )[ $]*partita ([a-z].*?)(?: &)?$", block, re.MULTILINE
        ):
            yield shlex.split(line.partition("   #")[0])


def parse(words: list[str]) -> None:
    verb: click.Command = command()
    while isinstance(verb, click.Group):
        found = verb.get_command(click.Context(verb), words[0])
        assert found is not None, words
        verb, words = found, words[1:]
    verb.make_context("partita", words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_recipe_exists(page: Any) -> None:
    for words in commands_of(page.read_text("utf-8")):
        parse(words)


def test_commands_are_found() -> None:
    text = "\n".join(page.read_text("utf-8") for page in PAGES)

    found = [" ".join(words) for words in commands_of(text)]

    assert found.count("serve --in-memory") == 2
    assert "reload --connect ./partita-data" in found
    assert "account restore ./before-the-upgrade --to ./partita-data-restored" in found


def test_the_files_for_runners_and_compose_are_yaml() -> None:
    page = PROJECT / "docs" / "recipes" / "continuous-integration.md"

    actions, gitlab, compose = map(yaml.safe_load, code_blocks(page, "yaml"))

    assert [step["run"] for step in actions["jobs"]["tests"]["steps"] if "run" in step]
    assert "partita serve --in-memory &" in gitlab["tests"]["before_script"]
    parse(["serve", *compose["services"]["storage"]["command"]])
    text = compose["services"]["app"]["environment"]["AZURE_STORAGE_CONNECTION_STRING"]
    parts = dict(part.split("=", 1) for part in text.split(";"))
    assert parts["TableEndpoint"] == "http://storage:10002/devstoreaccount1"
    assert parts["AccountKey"].endswith("==")


def test_the_program_for_containers_is_python() -> None:
    (block,) = code_blocks(
        PROJECT / "docs" / "recipes" / "continuous-integration.md", "python skip"
    )

    compile(block, "testcontainers", "exec")


def test_the_unit_is_given_the_key_that_it_reads() -> None:
    unit = (PROJECT / "deploy" / "partita.service").read_text("utf-8")

    (name, file) = re.findall(r"^LoadCredential=(\S+):(\S+)$", unit, re.MULTILINE)[0]

    assert f"--account-key-file ${{CREDENTIALS_DIRECTORY}}/{name}" in unit
    assert file in (PROJECT / "docs" / "recipes" / "server.md").read_text("utf-8")
