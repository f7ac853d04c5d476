"""Verbs and families of verbs on Click: examples, negative numbers, old names, lazy families.

A verb is declared without importing what it needs: `runs` names a function as `module:name`, and
the function is imported when the verb runs. Old names and flags are hidden; they print a note.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import click

from partita.cli.kit.target import CONNECT_VARIABLE

Given = SimpleNamespace
"""What was given on the command line, by the names of parameters."""

_NEGATIVE = re.compile(r"-\d")
_ESCAPE = "\ue000"


class Argument(click.Argument):
    """A positional argument with a help text."""

    def __init__(self, metavar: str, text: str, *, name: str = "", **more: Any) -> None:
        super().__init__([name or metavar.strip("[]").lower()], metavar=metavar, **more)
        self.text = text

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.make_metavar(ctx), self.text


class OldOption(click.Option):
    """A hidden flag that stands for another one and prints a note."""

    def __init__(self, flag: str, stands_for: str, new: str, **more: Any) -> None:
        super().__init__([f"old_{stands_for}", flag], hidden=True, **more)
        self.stands_for, self.old, self.new = stands_for, flag, new


class OldArgument(click.Argument):
    """A hidden positional argument that stands for a flag and prints a note."""

    def __init__(self, stands_for: str, new: str) -> None:
        super().__init__([f"old_argument_{stands_for}"], required=False)
        self.stands_for, self.old, self.new = stands_for, "an argument", new

    def get_usage_pieces(self, _ctx: click.Context) -> list[str]:
        return []


class Verb(click.Command):
    """A command with an example that takes `-7` as an argument, not as a flag."""

    def __init__(
        self,
        name: str,
        text: str,
        *params: click.Parameter,
        runs: Callable[[Given], int],
        example: str,
    ) -> None:
        super().__init__(
            name,
            help=text,
            short_help=text,
            params=list(params),
            callback=lambda **given: runs(Given(verb=name, **given)),
        )
        self.example = example

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, [*self._escaped(args)])
        ctx.params = {name: _unescaped(value) for name, value in ctx.params.items()}
        return rest

    def _escaped(self, words: Sequence[str]) -> Sequence[str]:
        """Hide negative numbers from the parser, except where a flag takes them as its value."""
        taking = {
            name
            for param in self.params
            if isinstance(param, click.Option) and not param.is_flag
            for name in param.opts
        }
        before = ["", *words]
        return [
            _ESCAPE + word if _NEGATIVE.match(word) and last not in taking else word
            for last, word in zip(before, words, strict=False)
        ]

    def invoke(self, ctx: click.Context) -> Any:
        for param in self.params:
            if isinstance(param, OldOption | OldArgument):
                value = ctx.params.pop(param.name)
                ctx.params.setdefault(param.stands_for, None)
                if value:
                    note(f"{param.old} of `{ctx.command_path}`", param.new)
                    ctx.params[param.stands_for] = value
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        shown = [each for each in self.params if isinstance(each, Argument)]
        if shown:
            with formatter.section("Arguments"):
                formatter.write_dl([each.get_help_record(ctx) for each in shown])
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = [record for each in options if (record := each.get_help_record(ctx))]
        with formatter.section("Options"):
            formatter.write_dl(records)

    def format_epilog(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\nexample: {self.example}\n")


class Family(click.Group):
    """A group of verbs that suggests the nearest name and knows old names.

    `lazy` maps names to `module:name`, imported when the name is used; `old` maps a name of the
    past to the words that replace it.
    """

    def __init__(
        self,
        name: str,
        text: str,
        *verbs: click.Command,
        lazy: Mapping[str, str] | None = None,
        old: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        super().__init__(
            name,
            help=text,
            short_help=text,
            commands=list(verbs),
            subcommand_metavar="VERB ...",
            **more,
        )
        self.lazy = dict(lazy or {})
        self.old = dict(old or {})

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return [*self.lazy, *self.commands]

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.lazy and cmd_name not in self.commands:
            self.commands[cmd_name] = load(self.lazy[cmd_name])
        return self.commands.get(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.old:
            new = self.old[args[0]]
            if not ctx.resilient_parsing:
                note(f"`{ctx.command_path} {args[0]}`", f"`{ctx.command_path} {new}`")
            command: click.Command | None = self
            for word in new.split():
                assert isinstance(command, click.Group)
                command = command.get_command(ctx, word)
            return new, command, args[1:]
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            names = self.list_commands(ctx)
            raise click.NoSuchCommand(args[0], possibilities=names, ctx=ctx) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, _in_list(command.short_help or "")) for name, command in found if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def option(form: str, text: str, **more: Any) -> click.Option:
    """Return a flag with a value, such as `--to SHARD`; `multiple=True` lets it be repeated."""
    name, _, metavar = form.partition(" ")
    return click.Option(
        [name], metavar=metavar or None, help=text, show_default="default" in more, **more
    )


def flag(name: str, text: str, **more: Any) -> click.Option:
    return click.Option([name], is_flag=True, help=text, **more)


def load(name: str) -> Any:
    """Import what is called `module:name`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def lazily(name: str) -> Callable[[Given], int]:
    """Return a function that imports `module:name` and calls it."""

    def run(given: Given) -> int:
        status: int = load(name)(given)
        return status

    return run


def note(old: str, new: str) -> None:
    """Print which form replaces one of the past."""
    print(f"partita: note: {old} is an old form and will be removed: use {new}.", file=sys.stderr)


def given_texts(given: Given) -> list[str]:
    """Return every text that was given, by flags, arguments and variables."""
    texts: list[object] = [os.environ.get(name) for name in (CONNECT_VARIABLE, "PARTITA_CATALOG")]
    for value in vars(given).values():
        texts += value if isinstance(value, tuple) else [value]
    return [text for text in texts if isinstance(text, str)]


JSON = flag("--json", "Print the result as one JSON line.")
QUIET = flag("--quiet", "Draw no progress.")


def _unescaped(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_unescaped(each) for each in value)
    return value.removeprefix(_ESCAPE) if isinstance(value, str) else value


def _in_list(text: str) -> str:
    """Write a sentence as it is written in a list of verbs."""
    return (text[:1].lower() + text[1:]).rstrip(".")
