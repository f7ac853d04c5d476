"""Translate an asynchronous module into its synchronous twin, on the syntax tree.

`async` and `await` are removed, names and imports are replaced by a table, and the few calls of
asyncio that have a plain equivalent become that. Comments and layout are kept. Examples in
docstrings are translated as code.
"""

import doctest
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import libcst as cst
from libcst import matchers as m
from libcst.helpers import get_full_name_for_node

NAMES = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "anext": "next",
    "AsyncIterable": "Iterable",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
}
"""Renamed in every module."""

PROSE = (
    (re.compile(r"\basync (?=with\b|for\b|def\b)"), ""),
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\basynchronous"), "synchronous"),
)
"""Replaced in docstrings and messages."""


@dataclass(frozen=True)
class Renames:
    """What the twin calls differently, beyond NAMES."""

    names: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    """Modules to import from. A key `module.name` moves the import of one name only."""
    text: Mapping[str, str] = field(default_factory=dict)
    """Replaced in docstrings and messages."""


def translate(source: str, docstring: str, renames: Renames) -> str:
    """Return the synchronous twin of a module, with this docstring in place of its own."""
    module = cst.parse_module(source).visit(_Translator(renames))
    return module.with_changes(body=[_statement(docstring), *module.body[1:]]).code


class _Translator(cst.CSTTransformer):
    def __init__(self, renames: Renames) -> None:
        super().__init__()
        self._renames = renames
        self._names = NAMES | dict(renames.names)

    # --- what is awaited --------------------------------------------------------------------

    def leave_FunctionDef(self, _: cst.FunctionDef, node: cst.FunctionDef) -> cst.FunctionDef:
        return node.with_changes(asynchronous=None)

    def leave_With(self, _: cst.With, node: cst.With) -> cst.With:
        return node.with_changes(asynchronous=None)

    def leave_CompFor(self, _: cst.CompFor, node: cst.CompFor) -> cst.CompFor:
        return node.with_changes(asynchronous=None)

    def leave_For(self, _: cst.For, node: cst.For) -> cst.BaseStatement:
        node = node.with_changes(asynchronous=None)
        only_yields = m.IndentedBlock([m.SimpleStatementLine([m.Expr(m.Yield())])])
        if not m.matches(node.body, only_yields) or node.orelse is not None:
            return node
        yielded = node.body.body[0].body[0].value.value
        if yielded is None or not yielded.deep_equals(node.target):
            return node
        delegated = cst.Yield(cst.From(node.iter))
        return cst.SimpleStatementLine([cst.Expr(delegated)], leading_lines=node.leading_lines)

    def leave_Await(self, _: cst.Await, node: cst.Await) -> cst.BaseExpression:
        inner = node.expression
        needs_none = isinstance(inner, cst.Call | cst.Name | cst.Attribute | cst.Subscript)
        if needs_none or not node.lpar:
            return inner
        return inner.with_changes(lpar=node.lpar, rpar=node.rpar)

    def leave_Call(self, _: cst.Call, node: cst.Call) -> cst.BaseExpression:
        name = get_full_name_for_node(node.func)
        first = node.args[0].value if node.args else None
        match name:
            case "asyncio.to_thread":
                return node.with_changes(func=first, args=node.args[1:])
            case "asyncio.wrap_future":
                return cst.Call(cst.Attribute(first, cst.Name("result")))
            case "asyncio.run" | "asyncio.shield":
                return first
        return node

    def leave_Arg(self, _: cst.Arg, node: cst.Arg) -> cst.Arg:
        if m.matches(node, m.Arg(keyword=m.Name("is_async"))):
            return node.with_changes(value=cst.Name("False"))
        return node

    def leave_ListComp(self, _: cst.ListComp, node: cst.ListComp) -> cst.BaseExpression:
        loop = node.for_in
        if loop.ifs or loop.inner_for_in or not node.elt.deep_equals(loop.target):
            return node
        return cst.Call(cst.Name("list"), [cst.Arg(loop.iter)])

    # --- names ------------------------------------------------------------------------------

    def leave_Name(self, _: cst.Name, node: cst.Name) -> cst.Name:
        return node.with_changes(value=self._names.get(node.value, node.value))

    def leave_SimpleStatementLine(
        self, original: cst.SimpleStatementLine, node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel | cst.RemovalSentinel:
        match original.body[0], node.body[0]:
            case cst.ImportFrom(), cst.ImportFrom() as imported:
                split = self._imports(original.body[0])
                first = node.with_changes(body=[imported.with_changes(**_imported(*split[0]))])
                more = [
                    cst.SimpleStatementLine([imported.with_changes(**_imported(*one))])
                    for one in split[1:]
                ]
                return cst.FlattenSentinel([first, *more])
            case _, cst.Assign(targets=[target], value=value) if target.target.deep_equals(value):
                return cst.RemoveFromParent()
        return node

    def _imports(self, original: cst.ImportFrom) -> list[tuple[str, list[cst.ImportAlias]]]:
        module = get_full_name_for_node(original.module)
        moved: dict[str, list[cst.ImportAlias]] = {}
        for alias in original.names:
            name = alias.name.value
            place = self._renames.modules.get(f"{module}.{name}")
            place = place or self._renames.modules.get(module, module)
            renamed = cst.ImportAlias(cst.Name(self._names.get(name, name)), alias.asname)
            moved.setdefault(place, []).append(renamed)
        return sorted(moved.items())

    # --- text -------------------------------------------------------------------------------

    def leave_SimpleString(self, _: cst.SimpleString, node: cst.SimpleString) -> cst.SimpleString:
        text = self._text(node.raw_value)
        return node.with_changes(value=f"{node.prefix}{node.quote}{text}{node.quote}")

    def leave_FormattedStringText(
        self, _: cst.FormattedStringText, node: cst.FormattedStringText
    ) -> cst.FormattedStringText:
        return node.with_changes(value=self._text(node.value))

    def _text(self, text: str) -> str:
        if ">>>" in text:
            text = self._examples(text)
        for pattern, replacement in PROSE:
            text = pattern.sub(replacement, text)
        for old, new in self._renames.text.items():
            text = text.replace(old, new)
        return text

    def _examples(self, text: str) -> str:
        made: list[str] = []
        for part in doctest.DocTestParser().parse(text):
            if isinstance(part, str):
                made.append(part)
                continue
            code = cst.parse_module(part.source).visit(self).code.rstrip("\n")
            if code == "import asyncio":
                continue
            for statement in cst.parse_module(code).body:
                lines = cst.Module([statement]).code.rstrip("\n").split("\n")
                marked = [">>> " + lines[0], *("... " + line for line in lines[1:])]
                made += [f"{' ' * part.indent}{line}\n" for line in marked]
            made += [f"{' ' * part.indent}{line}\n" for line in part.want.splitlines()]
        return "".join(made)


def _imported(module: str, names: Sequence[cst.ImportAlias]) -> dict[str, object]:
    return {"module": cst.parse_expression(module), "names": names, "lpar": None, "rpar": None}


def _statement(docstring: str) -> cst.SimpleStatementLine:
    text = cst.SimpleString(f'"""{docstring}"""')
    return cst.SimpleStatementLine([cst.Expr(text)])
