"""Sphinx extension: the reference of names, verbs and settings, generated from the code.

A page of docs/reference has a comment, such as `<!-- names of partita.shards -->`, and the site has
there what the code says: the names that the package exports, with their docstrings; the verbs of
the command line, with their flags; the settings of a server.
"""

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
from sphinx.application import Sphinx

from partita.cli import settings as setting_flags
from partita.cli.config import SETTINGS
from partita.cli.main import command

MARK = re.compile(r"^<!-- (names|verbs|settings|fixtures)(?: of ([\w.]+))? -->$", re.MULTILINE)
TWICE = {"partita.shards.RetryPolicy"}
"""Exported by two packages: the reference of the first one is the target of links."""


def names_of(package: str) -> str:
    """Return the names that a package exports, in groups, as directives of autodoc."""
    module = importlib.import_module(package)
    groups: dict[str, list[str]] = {"Functions": [], "Classes": [], "Errors": [], "Others": []}
    exported = [name for name in vars(module).get("__all__", ()) if not name.startswith("__")]
    for name in exported or own_classes(module):
        groups[group_of(getattr(module, name))].append(name)
    return "\n".join(
        line
        for title, names in groups.items()
        if names
        for line in (f"## {title}\n", *(documented(module, package, name) for name in names))
    )


def own_classes(module: Any) -> list[str]:
    """Return the classes that a module defines, those that others derive from first."""
    return [
        name
        for name, each in vars(module).items()
        if inspect.isclass(each) and each.__module__ == module.__name__ and name[0] != "_"
    ]


def group_of(exported: object) -> str:
    if inspect.isclass(exported):
        return "Errors" if issubclass(exported, BaseException) else "Classes"
    return "Functions" if inspect.isroutine(exported) else "Others"


def documented(module: Any, package: str, name: str) -> str:
    exported = getattr(module, name)
    kind, options = "data", ["   :no-value:"]
    if inspect.isclass(exported):
        is_error = issubclass(exported, BaseException)
        kind = "exception" if is_error else "class"
        options = ["   :show-inheritance:"] if is_error else ["   :members:"]
    elif inspect.isroutine(exported):
        kind, options = "function", []
    if f"{package}.{name}" in TWICE:
        options.append("   :no-index:")
    lines = [f".. auto{kind}:: {package}.{name}", *options]
    return "```{eval-rst}\n" + "\n".join(lines) + "\n```\n"


def verbs_of(_: str) -> str:
    return "\n".join(described(command(), "partita", 1))


def described(verb: click.Command, path: str, depth: int) -> Iterator[str]:
    """Describe a verb, or a family and its verbs, each with its flags."""
    context = click.Context(verb, info_name=path)
    if depth > 1:
        yield f"{'#' * min(depth, 4)} {path}\n\n{verb.help or ''}\n"
    if isinstance(verb, click.Group):
        for name in verb.list_commands(context):
            inner = verb.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from described(inner, f"{path} {name}", depth + 1)
        return
    pieces = verb.collect_usage_pieces(context)
    yield f"```text\n{path} {' '.join(pieces)}\n```\n"
    example = getattr(verb, "example", "")
    if example:
        yield f"```console\n$ {example.removeprefix('$ ')}\n```\n"
    rows = [
        f"| `{cell(record[0])}` | {cell(record[1])} |"
        for param in verb.get_params(context)
        if (record := param.get_help_record(context)) is not None
    ]
    if rows:
        yield "\n".join(["| Flag | Meaning |", "|---|---|", *rows, ""])


def cell(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", r"\|")


def settings_of(_: str) -> str:
    """Return the table of the settings: file, variable, flag, meaning with the default."""
    flags = {option.name: option for option in setting_flags.SETTINGS}
    rows = ["| In the file | Variable | Flag | Meaning |", "|---|---|---|---|"]
    for name in SETTINGS:
        option = flags.get("account" if name == "accounts" else name)
        meaning = "" if option is None else option.help
        spelled = [] if option is None else [*option.opts, *option.secondary_opts]
        flag = ", ".join(f"`{each}`" for each in spelled)
        rows.append(f"| `{name}` | `PARTITA_{name.upper()}` | {flag} | {cell(meaning or '')} |")
    return "\n".join([*rows, ""])


def fixtures_of(package: str) -> str:
    """Return the fixtures of the pytest plugin with their docstrings."""
    module = importlib.import_module(package)
    rows = ["| Fixture | Meaning |", "|---|---|"]
    for name, fixture in vars(module).items():
        if type(fixture).__name__ == "FixtureFunctionDefinition" and name[0] != "_":
            text = " ".join((inspect.getdoc(fixture) or "").split())
            rows.append(f"| `{name}` | {cell(text)} |")
    return "\n".join([*rows, ""])


GENERATED: dict[str, Callable[[str], str]] = {
    "names": names_of,
    "verbs": verbs_of,
    "settings": settings_of,
    "fixtures": fixtures_of,
}


def fill(_app: Sphinx, page: str, source: list[str]) -> None:
    if page.startswith("docs/reference/"):
        source[0] = MARK.sub(lambda found: GENERATED[found[1]](found[2] or ""), source[0])


def as_restructured_text(
    _app: Sphinx, _what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Indent the examples of a docstring that stand without a mark: they would become text."""
    text: list[str] = []
    for number, line in enumerate(lines):
        before = lines[number - 1] if number else ""
        if re.match(r"^( {4,}|\t)\S", line) and not before.strip() and not is_literal(text):
            text += ["::", ""]
        text.append(line.replace("**", r"\*\*") if line.lstrip().startswith("**") else line)
    lines[:] = text


def is_literal(text: list[str]) -> bool:
    """Return whether the last paragraph already begins a block of code or is inside of one."""
    said = [line for line in text if line.strip()]
    return bool(said) and (said[-1].rstrip().endswith("::") or said[-1].startswith((" ", ">>>")))


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("source-read", fill)
    app.connect("autodoc-process-docstring", as_restructured_text)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
