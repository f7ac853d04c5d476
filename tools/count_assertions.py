"""Count the tests and the assertions of one tree, or list what a second tree has no more.

    python tools/count_assertions.py                     # the files on disk
    python tools/count_assertions.py ee76365             # a commit
    python tools/count_assertions.py ee76365 .           # what a commit has and the disk has not

An assertion is an `assert` statement or a call of `pytest.raises` or `pytest.warns`, written
without regard to its place, its layout and its comments: one that moves to another file is the
same assertion. The second form prints each assertion and each test function that is missing, and
ends with status 1 if there is any.
"""

import ast
import io
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDER = "tests"
CHECKS = ("pytest.raises", "pytest.warns")


@dataclass
class Tree:
    """What one tree holds: how often each assertion and each name of a test is written."""

    files: int = 0
    tests: Counter[str] = field(default_factory=Counter)
    assertions: Counter[str] = field(default_factory=Counter)


def read_sources(tree: str) -> Iterator[str]:
    """Yield the Python files of the tests of a folder or of a commit."""
    root = Path(tree)
    if root.is_dir():
        for path in sorted((root / FOLDER).rglob("*.py")):
            if "node_modules" not in path.parts:
                yield path.read_text("utf-8")
        return
    packed = subprocess.run(["git", "archive", tree, FOLDER], check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name.endswith(".py") else None
            if content is not None:
                yield content.read().decode()


def count(sources: Iterator[str]) -> Tree:
    tree = Tree()
    for source in sources:
        tree.files += 1
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                tree.tests[node.name] += node.name.startswith("test_")
            elif isinstance(node, ast.Assert):
                tree.assertions[f"assert {ast.unparse(node.test)}"] += 1
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in CHECKS:
                tree.assertions[ast.unparse(node)] += 1
    tree.tests = +tree.tests
    return tree


def print_counts(name: str, tree: Tree) -> None:
    print(
        f"{name}: {tree.tests.total()} test functions and {tree.assertions.total()} assertions"
        f" in {tree.files} files"
    )


def print_missing(kind: str, before: Counter[str], after: Counter[str]) -> int:
    missing = before - after
    for text, times in sorted(missing.items()):
        print(f"missing {kind}{f' ({times} times)' if times > 1 else ''}: {text}")
    return missing.total()


def main(arguments: list[str]) -> int:
    names = arguments or ["."]
    trees = [count(read_sources(name)) for name in names]
    missing = 0
    if len(trees) > 1:
        missing += print_missing("test", trees[0].tests, trees[1].tests)
        missing += print_missing("assertion", trees[0].assertions, trees[1].assertions)
    for name, tree in zip(names, trees, strict=True):
        print_counts(name, tree)
    return int(missing > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
