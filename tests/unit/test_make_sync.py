"""tools/make_sync.py: generated modules are fresh, and the translation keeps what it must."""

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(PROJECT / "tools"))
    return importlib.import_module("make_sync")


def translated(tools: Any, source: str, **renames: Any) -> str:
    source = '"""Doc."""\n' + textwrap.dedent(source)
    text: str = tools.translate(source, "Doc.", tools.Renames(**renames))
    return text.removeprefix('"""Doc."""').strip()


def test_generated_files_are_up_to_date() -> None:
    command = [sys.executable, str(PROJECT / "tools/make_sync.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_stale_file_fails_the_check_and_is_not_written(
    tools: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "aio.py").write_text('"""Doc."""\n\n\nasync def f() -> int:\n    return 1\n')
    monkeypatch.setattr(tools, "PACKAGE", tmp_path)
    monkeypatch.setattr(tools, "PROJECT", tmp_path)
    monkeypatch.setattr(tools, "GENERATED", (tools.Twin("aio.py", "sync.py", "The twin."),))

    monkeypatch.setattr(sys, "argv", ["make_sync.py", "--check"])
    assert tools.main() == 1
    assert capsys.readouterr().out.startswith("stale: sync.py\n")
    assert not (tmp_path / "sync.py").exists()

    monkeypatch.setattr(sys, "argv", ["make_sync.py"])
    assert tools.main() == 0
    made = (tmp_path / "sync.py").read_text()
    assert made.startswith('"""The twin.\n\nGenerated from aio.py by tools/make_sync.py.')
    assert made.endswith("def f() -> int:\n    return 1\n")

    monkeypatch.setattr(sys, "argv", ["make_sync.py", "--check"])
    assert tools.main() == 0


@pytest.mark.parametrize(
    ("source", "made"),
    [
        ("async def f(): await g()  # why", "def f(): g()  # why"),
        ("x = (await f()).y", "x = f().y"),
        ("x = await (f() if c else g())", "x = (f() if c else g())"),
        ("x = await x", ""),
        ("x = [y async for y in z]", "x = list(z)"),
        ("x = [y + 1 async for y in z]", "x = [y + 1 for y in z]"),
        ("await asyncio.to_thread(f, 1, k=2)", "f(1, k=2)"),
        ("await asyncio.shield(asyncio.wrap_future(f(1)))", "f(1).result()"),
        ("f(is_async=True)", "f(is_async=False)"),
        ("async def __aenter__(self): ...", "def __enter__(self): ..."),
        ("raise E('Use async with f(), then await it.')", "raise E('Use with f(), then it.')"),
    ],
)
def test_waiting_is_removed(tools: Any, source: str, made: str) -> None:
    assert translated(tools, source) == made


def test_an_iteration_that_only_yields_delegates(tools: Any) -> None:
    source = """
        async def f():
            async for x in g():
                yield x
        """

    assert translated(tools, source) == "def f():\n    yield from g()"


def test_imports_follow_the_table(tools: Any) -> None:
    made = translated(
        tools,
        "from a.aio import AsyncX, y\nfrom b import c, d\n",
        names={"AsyncX": "X"},
        modules={"a.aio": "a.sync", "b.c": "b.sync"},
    )

    assert made == "from a.sync import X, y\nfrom b import d\nfrom b.sync import c"


def test_examples_in_docstrings_are_translated_as_code(tools: Any) -> None:
    source = '''
        def f():
            """Return it.

            >>> import asyncio
            >>> async def main():
            ...     return (await f()).x
            >>> asyncio.run(main())
            'x'
            """
        '''

    assert (
        translated(tools, source)
        == textwrap.dedent(
            '''
        def f():
            """Return it.

            >>> def main():
            ...     return f().x
            >>> main()
            'x'
            """
        '''
        ).strip()
    )
