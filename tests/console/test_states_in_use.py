"""States that programs have open, in a real browser: on a NATS cluster, and in the own process."""

import contextlib
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from playwright.sync_api import Page, expect

from console.consoles import live_console
from partita.console import show_state
from partita.reliable.sync import ReliableDictionary, StateManager, open_state
from support.browser import THEMES, Watch, picture, use_theme, violations
from support.cluster import Cluster, running_cluster

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]
T = TypeVar("T")


class Program:
    """A program that has a state open; in threads, because Playwright's loop runs in this one."""

    def __init__(self, where: object, **options: object) -> None:
        self._threads = ThreadPoolExecutor(4)
        self.state: StateManager = self.do(lambda: open_state(where, **options))  # type: ignore[arg-type]
        self._opened: ReliableDictionary[str, int] | None = None

    @property
    def visits(self) -> ReliableDictionary[str, int]:
        if self._opened is None:
            self._opened = self.do(lambda: self.state.dictionary("visits", key=str, value=int))
        return self._opened

    def begin(self, work: Callable[[], T]) -> "Future[T]":
        return self._threads.submit(work)

    def do(self, work: Callable[[], T]) -> T:
        return self.begin(work).result()

    def set(self, key: str, value: int) -> None:
        with self.state.transaction(timeout=120) as tx:
            self.visits.set(tx, key, value)

    @contextlib.contextmanager
    def waited_for(self, key: str) -> Iterator[None]:
        """Hold the lock of a key while another transaction waits for it."""
        tx = self.do(lambda: self.state.transaction(timeout=120))
        self.do(lambda: self.visits.set(tx, key, 1))
        waiting = self.begin(lambda: self.set(key, 2))
        try:
            yield
        finally:
            self.do(tx.commit)
            waiting.result()

    def close(self) -> None:
        self.do(self.state.close)
        self._threads.shutdown()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("nats")) as started:
        yield started


@contextlib.contextmanager
def replica(cluster: Cluster, partition: str, address: str) -> Iterator[Program]:
    program = Program(cluster.url, partition=partition, address=address)
    yield program
    program.close()


def look(page: Page, axe: str, name: str, theme: str) -> None:
    assert violations(page, axe) == []
    picture(page, f"console-{name}-{theme}")


@pytest.mark.parametrize("theme", THEMES)
def test_a_partition_on_nats_is_followed_with_its_replicas_and_locks(
    watch: Watch, cluster: Cluster, axe: str, tmp_path: Path, theme: str
) -> None:
    page, partition = watch.page, f"shop-{uuid.uuid4().hex[:6]}"
    use_theme(page, theme)
    with (
        replica(cluster, partition, "app1:8000") as first,
        replica(cluster, partition, "app2:8000"),
        live_console(tmp_path, "--state", cluster.url) as address,
    ):
        first.do(lambda: first.set("ada", 1))
        page.goto(address)
        page.get_by_label("Partition").select_option(partition)
        expect(page.get_by_role("cell", name="ada", exact=True)).to_be_visible()
        first.do(lambda: first.set("ken", 7))
        expect(page.get_by_role("cell", name="ken", exact=True)).to_be_visible()
        look(page, axe, "nats-rows", theme)

        page.get_by_role("link", name="Replicas and log").click()
        expect(page.get_by_role("row").filter(has_text="app1:8000")).to_contain_text("primary")
        expect(page.get_by_role("row").filter(has_text="app2:8000")).to_contain_text("secondary")
        expect(page.get_by_text("node3", exact=True)).to_be_visible()
        look(page, axe, "nats-replicas", theme)

        with first.waited_for("ada"):
            page.get_by_role("link", name="Locks").click()
            row = page.get_by_role("row").filter(has_text="ada")
            expect(row).to_contain_text("waits")
            look(page, axe, "nats-locks", theme)
        expect(page.get_by_text("No key is locked")).to_be_visible()


@pytest.mark.parametrize("theme", THEMES)
def test_a_program_shows_its_own_state_while_it_works(
    watch: Watch, axe: str, tmp_path: Path, theme: str
) -> None:
    page = watch.page
    use_theme(page, theme)
    program = Program(tmp_path)
    program.do(lambda: program.set("ada", 1))
    console = show_state(program.state, port=0)
    page.goto(program.do(console.__enter__))
    expect(page.get_by_role("cell", name="ada", exact=True)).to_be_visible()
    program.do(lambda: program.set("ken", 7))
    expect(page.get_by_role("cell", name="ken", exact=True)).to_be_visible()

    with program.waited_for("ken"):
        page.get_by_role("link", name="Locks").click()
        row = page.get_by_role("row").filter(has_text="ken")
        expect(row).to_contain_text("waits")
        expect(row).to_contain_text(Path(__file__).name)
        look(page, axe, "locks", theme)
    page.get_by_role("link", name="Replicas and log").click()
    expect(page.get_by_text("A program has this state open")).to_be_visible()
    assert violations(page, axe) == []

    page.goto("about:blank")
    program.do(lambda: console.__exit__(None, None, None))
    program.close()
