import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from docs.sources import (
    DOCUMENTS,
    PROJECT,
    anchor_of,
    headings,
    name_of,
    own_files,
    path_in_package,
    trees,
)
from partita.blobs.rules import limits as blob_limits
from partita.cli.config import SETTINGS
from partita.cli.main import command
from partita.heat import limits as heat_limits
from partita.queues import limits as queue_limits
from partita.reliable.values import limits as reliable_limits
from partita.service.http.message_bytes import HttpLimits
from partita.tables import limits

# In pieces, so that this file does not name them either.
MACHINE_FOLDERS = ("work/", "opt/", "root/", "home/", "tmp/", "Users/")
MACHINE_PATHS = re.compile(rf"(?<![\w.\])])/(?:{'|'.join(MACHINE_FOLDERS)})")

LOCK_LINE = re.compile(
    r"|#.*| +# .*"
    r"|[a-z0-9-]+==[\w.]+( ; .*)? \\"
    r"|    --hash=sha256:[0-9a-f]{64}( \\)?"
)


def flags_of(verb: click.Command) -> Iterator[str]:
    """Every flag of a verb and of the verbs below it that is not hidden."""
    context = click.Context(verb)
    if isinstance(verb, click.Group):
        for name in verb.list_commands(context):
            inner = verb.get_command(context, name)
            assert inner is not None
            yield from flags_of(inner)
    for param in verb.get_params(context):
        if isinstance(param, click.Option) and not param.hidden:
            flags = (*param.opts, *param.secondary_opts)
            yield from (flag for flag in flags if flag.startswith("--"))


def verbs_of(verb: click.Command, path: str) -> Iterator[str]:
    """The path of every verb, such as `partita shards split`."""
    if not isinstance(verb, click.Group):
        yield path
        return
    context = click.Context(verb)
    for name in verb.list_commands(context):
        inner = verb.get_command(context, name)
        assert inner is not None
        yield from verbs_of(inner, f"{path} {name}")


def spellings(value: float) -> list[str]:
    """How documents may write a limit."""
    year = 365 * 24 * 3600
    units = {"KiB": 1024, "MiB": 1024**2, "s": 1, "h": 3600, "years": year}
    return [f"{value:,}", *(f"{value / size:g} {unit}" for unit, size in units.items())]


def constants(tree: ast.Module) -> Iterator[str]:
    """The public constants of a module, in classes too, also those that share a line."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                if name.isupper() and not name.startswith("_"):
                    yield name
            case ast.Assign(targets=[ast.Tuple(elts=several)]):
                for each in several:
                    if name_of(each).isupper() and not name_of(each).startswith("_"):
                        yield name_of(each)
            case _:
                pass


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: path.relative_to(PROJECT).as_posix()
)
def test_links_inside_the_project_resolve(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text("utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = (document.parent / name).resolve() if name else document
        assert linked.exists(), target
        if anchor:
            assert anchor in {anchor_of(heading) for heading in headings(linked)}, target


def operations_text() -> str:
    pages = [
        PROJECT / "docs" / "operations.md",
        *sorted((PROJECT / "docs/operations").glob("*.md")),
    ]
    return "\n".join(page.read_text("utf-8") for page in pages)


def test_every_flag_is_in_the_operations_document() -> None:
    text = operations_text()

    flags = set(flags_of(command())) - {"--help"}

    assert "--table-port" in flags
    assert {flag for flag in flags if not re.search(rf"`(partita )?{flag}\b", text)} == set()


def test_every_verb_is_in_the_documents_and_no_planned_one_exists() -> None:
    grammar = (PROJECT / "docs" / "cli.md").read_text("utf-8")
    text = grammar + operations_text()

    verbs = set(verbs_of(command(), "partita"))
    rows = re.findall(r"^\| (`partita .*) \| \*planned\*", grammar, re.MULTILINE)
    planned = {name for row in rows for name in re.findall(r"`(partita(?: [a-z][a-z-]*)+)", row)}

    assert {verb for verb in verbs if f"`{verb}" not in text and f"$ {verb}" not in text} == set()
    assert {name for name in planned if any(verb.startswith(name) for verb in verbs)} == set()


def test_every_setting_and_its_variable_are_in_the_operations_document() -> None:
    text = (PROJECT / "docs" / "operations.md").read_text("utf-8")

    assert {name for name in SETTINGS if f"`PARTITA_{name.upper()}`" not in text} == set()


def test_every_limit_is_in_the_limits_document() -> None:
    text = (PROJECT / "docs" / "limits.md").read_text("utf-8")
    units = {"KIB", "MIB"}

    names = {name for name in vars(limits) if name.isupper()} - units

    assert {name for name in names if f"`{name}`" not in text} == set()
    for bound in ("request_line_bytes_max", "connections_max", "keep_alive_seconds"):
        assert bound in HttpLimits.__struct_fields__
        assert f"`{bound}`" in text


def test_every_limit_of_queues_and_blobs_is_in_the_limits_document() -> None:
    text = (PROJECT / "docs" / "limits.md").read_text("utf-8")
    units = {"KIB", "MIB", "DAY_SECONDS", "TICKS_PER_SECOND", "NEVER"}

    names = {name for name in vars(queue_limits) | vars(blob_limits) if name.isupper()} - units

    assert {"MESSAGE_BYTES_MAX", "BLOCKS_COMMITTED_MAX"} <= names
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_every_limit_of_heat_is_in_the_limits_document() -> None:
    text = (PROJECT / "docs" / "limits.md").read_text("utf-8")
    section = text[text.index("## Heat (") :].split("\n## ")[0]
    names = {name for name in vars(heat_limits) if name.isupper()}

    assert {"BUCKETS_MAX", "TENS_KEPT_SECONDS"} <= names
    assert {name for name in names if f"`{name}`" not in section} == set()


def test_every_limit_of_reliable_state_is_in_the_limits_document() -> None:
    text = (PROJECT / "docs" / "limits.md").read_text("utf-8")
    names = {name for name in vars(reliable_limits) if name.isupper()}
    for path, tree in trees():
        if path_in_package(path).startswith("reliable/"):
            names |= {name for name in constants(tree) if name.endswith(("_MAX", "_MIN"))}

    assert {"KEY_BYTES_MAX", "PARTITIONS_MAX", "FEED_BUFFER_MAX"} <= names
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_every_limit_of_shards_is_in_the_limits_document() -> None:
    text = (PROJECT / "docs" / "limits.md").read_text("utf-8")
    shards = text[text.index("## Shards") : text.index("## Patterns")]
    names = {
        name
        for path, tree in trees()
        if path_in_package(path).startswith("shards/")
        for name in constants(tree)
        if name.endswith(("_MAX", "_MIN"))
    }

    assert {"KEY_BYTES_MAX", "ENGINES_MAX", "ASK_SECONDS_MIN", "FENCE_SECONDS_MAX"} <= names
    assert {name for name in names if f"`{name}`" not in shards} == set()


def module_in_patterns(path: Path) -> str:
    return path_in_package(path).removeprefix("patterns/").removesuffix(".py").replace("/", ".")


def test_every_limit_of_patterns_is_in_the_limits_document() -> None:
    text = (PROJECT / "docs" / "limits.md").read_text("utf-8")
    patterns = text[text.index("## Patterns") :]
    names = {
        (name, module_in_patterns(path))
        for path, tree in trees()
        if path_in_package(path).startswith("patterns/")
        for name in constants(tree)
        if name.endswith(("_MAX", "_MIN", "_LIMIT", "_SECONDS"))
    }

    assert {("POINTS_MAX", "planning.requests"), ("ROUNDS_MAX", "following.moving")} <= names
    assert {
        (name, module) for name, module in names if f"`{name}` (`{module}`)" not in patterns
    } == set()


@pytest.mark.parametrize("package", ["shards", "patterns"])
def test_limits_have_the_values_that_the_document_says(package: str) -> None:
    text = (PROJECT / "docs" / "limits.md").read_text("utf-8")
    section = text[text.index(f"\n## {package.title()}\n") + 1 :].split("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \(`([\w.]+)`\) \| (.*)$", section, re.MULTILINE)

    assert len(rows) > 30
    for name, module, row in rows:
        value = getattr(importlib.import_module(f"partita.{package}.{module}"), name)
        assert any(row.startswith(spelled) for spelled in spellings(value)), (name, row)


def test_limits_of_reliable_state_have_the_values_that_the_document_says() -> None:
    text = (PROJECT / "docs" / "limits.md").read_text("utf-8")

    for name, value in vars(reliable_limits).items():
        if name.isupper():
            (row,) = re.findall(rf"^\| `{name}` \| (.*)$", text, re.MULTILINE)
            assert any(spelled in row for spelled in spellings(value)), (name, row)


def test_every_limit_that_the_document_names_exists() -> None:
    text = (PROJECT / "docs" / "limits.md").read_text("utf-8")
    defined = {name for _, tree in trees() for name in constants(tree)}

    assert set(re.findall(r"`([A-Z][A-Z_]+)`", text)) - defined == set()


def test_every_format_is_linked_from_the_architecture() -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text("utf-8")

    for document in (PROJECT / "docs" / "formats").glob("*.md"):
        assert f"formats/{document.name}" in text


def test_every_decision_is_linked_from_the_architecture() -> None:
    text = (PROJECT / "docs" / "architecture.md").read_text("utf-8")

    for decision in (PROJECT / "docs" / "decisions").glob("*.md"):
        assert f"decisions/{decision.name}" in text


def test_every_dependency_has_its_reason() -> None:
    import tomllib

    project = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"].values()
    wanted = [*project["dependencies"], *(line for extra in extras for line in extra)]
    names = {re.match(r"[\w-]+", line)[0] for line in wanted} - {"partita"}  # type: ignore[index]
    text = (PROJECT / "docs" / "decisions" / "0005-every-dependency-and-why.md").read_text("utf-8")

    assert {
        name for name in names if not re.search(rf"(^\| |, ){name}\b", text, re.MULTILINE)
    } == set()


def test_no_file_names_a_path_of_somebody_s_machine() -> None:
    found = []
    for path in own_files():
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        found += [(path.name, match[0]) for match in MACHINE_PATHS.finditer(text)]

    assert found == []


def test_the_locks_name_packages_versions_and_hashes_only() -> None:
    for lock in (PROJECT / "requirements").glob("*.txt"):
        for line in lock.read_text("utf-8").splitlines():
            assert LOCK_LINE.fullmatch(line), line
            assert "://" not in line


def test_the_readme_shows_its_promise_on_one_screen() -> None:
    screen = "\n".join((PROJECT / "README.md").read_text("utf-8").splitlines()[:40])

    assert "make serve" in screen
    assert "from_connection_string" in screen
    assert "open_state" in screen
    assert "fan_out" in screen


def test_containers_publish_their_ports_on_this_machine_only() -> None:
    """A published port without an address is reachable from every machine, past the firewall."""
    files = [PROJECT / "README.md", *sorted(PROJECT.glob("docs/**/*.md"))]
    files += [file for file in sorted(PROJECT.glob("deploy/*")) if file.is_file()]
    published = re.compile(r"""(?:-p |--publish[ =]|ports: \[")([\d.-]+:[^\s"]+)""")

    mappings = [each for file in files for each in published.findall(file.read_text("utf-8"))]

    assert len(mappings) >= 2
    assert [mapping for mapping in mappings if not mapping.startswith("127.0.0.1:")] == []
