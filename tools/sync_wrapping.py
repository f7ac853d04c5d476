"""Write classes whose methods run those of an asynchronous class on an event loop in a thread.

A generated method has the signature and the docstring of the asynchronous one. How it calls it
follows from the signature:

    has a transaction `tx`        self._perform(tx, ...): one thread at a time uses a transaction
    yields rows                   self._pages(tx, ...): an iterator that fetches rows in pages
    is a coroutine function       self._thread.run(...)
    is an ordinary function       self._thread.call(...)
    is a property                 read directly
"""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst
from libcst import matchers as m


@dataclass(frozen=True)
class Wrapper:
    """A synchronous class and the asynchronous one that it is generated from."""

    module: str
    name: str
    bases: str
    methods: tuple[str, ...]
    """The public methods; anything else in the class is for other parts of the package."""
    inner: str = "inner"
    """The attribute that holds the asynchronous object."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Paragraphs to add to docstrings, by method."""
    bodies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The statements of methods that no rule fits."""


def wrap(wrapper: Wrapper, source: cst.Module, wrapped: set[str]) -> str:
    """Return the code of a class, still to be translated.

    `wrapped` names the classes whose objects hold an asynchronous one in `inner`.
    """
    found = m.findall(source, m.ClassDef(m.Name(wrapper.name)))
    defined = [each for each in found[0].body.body if isinstance(each, cst.FunctionDef)]
    missing = set(wrapper.methods) - {each.name.value for each in defined}
    if missing:
        raise LookupError(wrapper.module, wrapper.name, sorted(missing))
    overloaded = {each.name.value for each in defined if _is_overload(each)}
    members = [_docstring(found[0], wrapper.notes.get(wrapper.name, ""))]
    for each in defined:
        if each.name.value not in wrapper.methods:
            continue
        if _is_overload(each):
            members.append(each)
            continue
        body = _Body(each, wrapper, wrapped, is_overloaded=each.name.value in overloaded)
        lines = wrapper.bodies.get(each.name.value) or body.lines()
        members.append(_with_body(each, lines, wrapper.notes.get(each.name.value, "")))
    made = cst.parse_statement(f"class {wrapper.name}({wrapper.bases}): ...")
    made = made.with_changes(body=cst.IndentedBlock([each for each in members if each]))
    return cst.Module([made]).code


def wrap_opening(source: cst.Module, name: str, result: str, note: str) -> str:
    """Return the code of a function that opens what an asynchronous context manager opens."""
    function, given = _opening(source, name, ["on_data_loss"])
    lines = (
        f"block = functools.partial(opening.{name}, {given})",
        f"return open_block({result}, block, on_data_loss)",
    )
    return _opened(function, lines, result, note)


def wrap_service(source: cst.Module, name: str, result: str, note: str) -> str:
    """Return the code of a function that joins a service, whose states are of a class."""
    function, given = _opening(source, name, ["opened", "handle"])
    lines = (
        f"block = functools.partial(service.{name}, {given})",
        f"return open_service_block({result}, block, opened, handle)",
    )
    return _opened(function, lines, f"Service[{result}]", note)


def _opening(source: cst.Module, name: str, converted: list[str]) -> tuple[cst.FunctionDef, str]:
    """Return a function and its arguments, except those that are converted."""
    function = m.findall(source, m.FunctionDef(m.Name(name)))[0]
    parameters = function.params
    given = [each.name.value for each in parameters.params]
    keywords = (each.name.value for each in parameters.kwonly_params)
    given += [f"{each}={each}" for each in keywords if each not in converted]
    return function, ", ".join(given)


def _opened(function: cst.FunctionDef, lines: Iterable[str], result: str, note: str) -> str:
    made = _with_body(function, lines, note)
    returns = cst.Annotation(cst.parse_expression(result))
    return cst.Module([made.with_changes(decorators=[], returns=returns)]).code


def _with_body(function: cst.FunctionDef, lines: Iterable[str], note: str) -> cst.FunctionDef:
    docstring = _docstring(function, note)
    code = cst.parse_module("\n".join(lines)).body
    body = cst.IndentedBlock([docstring, *code] if docstring else code)
    return function.with_changes(body=body)


class _Body:
    """The statements of one method."""

    def __init__(
        self,
        source: cst.FunctionDef,
        wrapper: Wrapper,
        wrapped: set[str],
        *,
        is_overloaded: bool,
    ) -> None:
        self._source = source
        self._wrapped = wrapped
        self._is_overloaded = is_overloaded
        self._method = f"self.{wrapper.inner}.{source.name.value}"
        self._returned = cst.Module([]).code_for_node(source.returns.annotation).strip('"')
        annotated = {each.name.value: _annotation(each) for each in self._parameters()}
        self._tx = annotated.get("tx")

    def lines(self) -> Iterator[str]:
        if any(m.matches(each.decorator, m.Name("property")) for each in self._source.decorators):
            made = self._returned.split("[")[0]
            is_wrapped = made in self._wrapped
            yield (
                f"return {made}(self._thread, {self._method})"
                if is_wrapped
                else (f"return {self._method}")
            )
        elif self._returned.startswith("AsyncIterator["):
            yield f"return self._pages(tx, {self._arguments()})"
        elif self._tx is None:
            is_async = self._source.asynchronous is not None
            yield from self._handed_over("run" if is_async else "call")
        elif "None" in self._tx.split(" | "):
            yield "if tx is None:"
            yield f"    self._thread.run({self._call(None)})"
            yield "else:"
            yield f"    self._perform(tx, {self._arguments()})"
        else:
            yield self._return(f"self._perform(tx, {self._arguments()})")

    def _handed_over(self, way: str) -> Iterator[str]:
        work = self._call()
        if way == "call":
            work = work.removesuffix("()") if work.endswith("()") else f"lambda: {work}"
        made = self._returned.split("[")[0]
        if made in self._wrapped:
            yield f"inner = self._thread.{way}({work})"
            yield f"return {made}(self._thread, inner)"
        else:
            yield self._return(f"self._thread.{way}({work})")

    def _return(self, expression: str) -> str:
        if self._returned == "None":
            return expression
        if self._is_overloaded:
            return f'return cast("{self._returned}", {expression})'
        return f"return {expression}"

    def _call(self, *first: None) -> str:
        return f"{self._method}({', '.join([*map(str, first), *self._given()])})"

    def _arguments(self) -> str:
        return ", ".join([self._method, *self._given()])

    def _given(self) -> Iterator[str]:
        parameters = self._source.params
        for each in parameters.params[1:]:
            if each.name.value != "tx":
                yield self._argument(each)
        if isinstance(parameters.star_arg, cst.Param):
            yield f"*{parameters.star_arg.name.value}"
        for each in parameters.kwonly_params:
            yield f"{each.name.value}={self._argument(each)}"
        if parameters.star_kwarg is not None:
            yield f"**{parameters.star_kwarg.name.value}"

    def _argument(self, parameter: cst.Param) -> str:
        name, annotation = parameter.name.value, _annotation(parameter)
        if annotation.startswith("Iterable["):
            return f"list({name})"  # iterated here, not in the thread of the loop
        if annotation.split("[")[0] in self._wrapped:
            return f"{name}.inner"
        return name

    def _parameters(self) -> Iterator[cst.Param]:
        yield from self._source.params.params[1:]
        yield from self._source.params.kwonly_params


def _annotation(parameter: cst.Param) -> str:
    assert parameter.annotation is not None
    return cst.Module([]).code_for_node(parameter.annotation.annotation)


def _is_overload(function: cst.FunctionDef) -> bool:
    return any(m.matches(each.decorator, m.Name("overload")) for each in function.decorators)


def _docstring(node: cst.ClassDef | cst.FunctionDef, note: str) -> cst.SimpleStatementLine | None:
    text = node.get_docstring(clean=False)
    if text is None:
        return None
    if note:
        indent = "    " if "\n    " not in text else text.rpartition("\n")[2]
        added = textwrap.fill(note, 100, initial_indent=indent, subsequent_indent=indent)
        text = f"{text.rstrip()}\n\n{added}\n{indent}"
    return cst.SimpleStatementLine([cst.Expr(cst.SimpleString(f'"""{text}"""'))])


def imports_of(module: str, source: cst.Module, replaced: set[str]) -> str:
    """Return imports of all that a module imports or defines, but for `replaced` names."""
    lines: list[str] = []
    for statement in source.body:
        match statement:
            case cst.SimpleStatementLine(body=[cst.Import() as imported]):
                lines.append(cst.Module([]).code_for_node(imported))
            case cst.SimpleStatementLine(body=[cst.ImportFrom(names=names) as imported]):
                kept = [each for each in names if _bound(each) not in replaced]
                origin = cst.Module([]).code_for_node(imported.module)
                lines += [f"from {origin} import {_imported(each)}" for each in kept]
            case cst.ClassDef(name=name) if name.value not in replaced:
                lines.append(f"from {module} import {name.value}")
            case cst.SimpleStatementLine(
                body=[
                    cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))])
                    | cst.AnnAssign(target=cst.Name(value=name))
                ]
            ) if name not in replaced:
                lines.append(f"from {module} import {name}")
    return "\n".join(lines) + "\n"


def _bound(alias: cst.ImportAlias) -> str:
    return alias.evaluated_alias or alias.evaluated_name


def _imported(alias: cst.ImportAlias) -> str:
    name = alias.evaluated_name
    return name if alias.evaluated_alias is None else f"{name} as {alias.evaluated_alias}"
