import ast
import re
from collections.abc import Iterator

from docs.sources import path_in_package, trees

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
    ("service/http/protocol.py", "data_received"),  # asyncio.Protocol calls it so
    ("service/http/protocol.py", "data"),  # and so its argument
    ("patterns/series/log_handler.py", "log_handler"),  # as logging.handlers names them
    ("patterns/series/log_handler.py", "LogHandler"),
    ("bulk/http_client.py", "data_received"),
    ("bulk/http_client.py", "data"),
    ("reliable/nats/link.py", "_pending_data_size"),  # of nats-py
    ("scaleout/connections/checks.py", "data_sync_retry"),  # of PostgreSQL
}
DOMAIN_TERMS = {
    "StateManager",
    "state_manager",
    "ShardMapManager",
    "OnDataLoss",
    "on_data_loss",
}
"""What readers who know the originals look for: StateManager, ShardMapManager, OnDataLoss."""
MANAGER = {"manager", "_manager"}
"""A StateManager, where `state` is what it manages, or a ShardMapManager: only in their parts."""


def words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", name)}


def is_allowed(file: str, name: str) -> bool:
    if (
        file.startswith(("reliable/", "shards/", "cli/shards", "console/sources/"))
        and name in MANAGER
    ):
        return True
    return name in DOMAIN_TERMS or (file, name) in ALLOWED


def defined_names() -> Iterator[tuple[str, str]]:
    for path, tree in trees():
        file = path_in_package(path)
        yield file, path.stem
        for node in ast.walk(tree):
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    yield file, name
                case ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                    yield file, name
                case ast.Name(id=name, ctx=ast.Store()):
                    yield file, name
                case ast.Attribute(attr=name, ctx=ast.Store()):
                    yield file, name
                case _:
                    pass


def test_words_of_a_name_are_told_apart() -> None:
    assert words("parse_baseData2") == {"parse", "base", "data2"}
    assert words("HTTPHandler") == {"http", "handler"}
    assert words("database") == {"database"}


def test_the_exceptions_are_narrow() -> None:
    assert is_allowed("reliable/replication/replica.py", "manager")
    assert not is_allowed("tables/engine.py", "manager")
    assert not is_allowed("reliable/state/state.py", "data")
    assert not is_allowed("service/accounts/respond.py", "data")


def test_no_name_holds_a_word_that_says_nothing() -> None:
    found = [
        (file, name)
        for file, name in defined_names()
        if not is_allowed(file, name) and not FORBIDDEN.isdisjoint(words(name))
    ]

    assert found == []


def test_every_module_says_what_lives_in_it() -> None:
    for path, tree in trees():
        assert ast.get_docstring(tree), path
