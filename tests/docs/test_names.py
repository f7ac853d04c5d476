import ast
import re
from collections.abc import Iterator

from docs.sources import SOURCES, trees

FORBIDDEN = {
    "manager",
    "helper",
    "util",
    "utils",
    "handler",
    "base",
    "common",
    "impl",
    "data",
    "info",
}
ALLOWED = {
    ("http.py", "data_received"),  # asyncio.Protocol calls it so
    ("http.py", "data"),  # and so its argument
}


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def defined_names() -> Iterator[tuple[str, str]]:
    for path, tree in trees():
        yield path.name, path.stem
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    yield path.name, name
                case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                    yield path.name, name
                case ast.Name(id=name, ctx=ast.Store()):
                    yield path.name, name
                case _:
                    pass


def test_words_of_a_name_are_told_apart() -> None:
    assert words("parse_baseData2") == {"parse", "base", "data2"}
    assert words("HTTPHandler") == {"http", "handler"}
    assert words("database") == {"database"}


def test_no_name_holds_a_word_that_says_nothing() -> None:
    found = [
        (file, name)
        for file, name in defined_names()
        if (file, name) not in ALLOWED and not FORBIDDEN.isdisjoint(words(name))
    ]

    assert found == []


def test_every_module_says_what_lives_in_it() -> None:
    for path in SOURCES:
        docstring = ast.get_docstring(ast.parse(path.read_text("utf-8")))
        assert docstring, path
