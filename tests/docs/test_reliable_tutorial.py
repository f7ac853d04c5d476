"""The programs of docs/reliable, saved under their names and run as their readers run them."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from docs.sources import PROJECT, code_blocks
from support.cluster import free_port

DOCUMENTS = PROJECT / "docs" / "reliable"
EXAMPLES = PROJECT / "examples"
PATIENCE_SECONDS = 200.0
"""A lease runs out after 3 seconds, NATS elects within 9; a busy machine takes its time."""


def programs(document: str) -> dict[str, str]:
    """The blocks that have a file name, those of one name joined."""
    pattern = r"^```python (\S+\.py)\n(.*?)^```$"
    text = (DOCUMENTS / document).resolve().read_text("utf-8")
    found: dict[str, str] = {}
    for name, block in re.findall(pattern, text, flags=re.MULTILINE | re.DOTALL):
        found[name] = found.get(name, "") + "\n\n" * (name in found) + block
    return found


def save(document: str, folder: Path) -> None:
    for name, text in programs(document).items():
        (folder / name).write_text(text, "utf-8")


def run(*arguments: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def running(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *arguments], cwd=folder, stdout=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str], pattern: str) -> "re.Match[str]":
    """Read what a program prints until a line is like this."""
    assert process.stdout is not None
    deadline = time.monotonic() + PATIENCE_SECONDS
    for line in process.stdout:
        assert time.monotonic() < deadline, line
        if found := re.fullmatch(pattern, line.strip()):
            return found
    raise AssertionError("the program has ended")


def visits(folder: Path) -> int:
    said = re.match(r"visit (\d+) of ada is record \d+ of the log", run("visits.py", folder=folder))
    assert said is not None
    return int(said[1])


def test_the_readme_s_program_finds_what_it_committed_before_it_killed_itself(
    tmp_path: Path,
) -> None:
    save("../../README.md", tmp_path)
    command = [sys.executable, "kill_me.py"]

    for number in (1, 2, 3):
        done = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stdout) == (-signal.SIGKILL, f"visit {number}\n")


def test_the_first_program_finds_what_it_committed(tmp_path: Path) -> None:
    save("tutorial.md", tmp_path)

    assert [visits(tmp_path), visits(tmp_path)] == [1, 2]


def test_what_was_printed_is_there_after_a_kill(tmp_path: Path) -> None:
    save("tutorial.md", tmp_path)
    with running("busy.py", folder=tmp_path) as process:
        first_line(process, "20")
        process.kill()
        rest, _ = process.communicate()
    printed = int(rest.split()[-1]) if rest.split() else 20

    assert visits(tmp_path) - 1 in (printed, printed + 1)


def test_the_auction_runs(tmp_path: Path) -> None:
    save("tutorial.md", tmp_path)

    run("auction.py", folder=tmp_path)


def test_the_tutorial_shows_the_replicated_example() -> None:
    shown = programs("tutorial.md")["replicated.py"]

    assert shown == (EXAMPLES / "replicated.py").read_text("utf-8")


@pytest.mark.parametrize("document", ["semantics.md", "versioning.md"])
def test_the_blocks_of_a_document_are_one_program_that_runs(document: str, tmp_path: Path) -> None:
    blocks = code_blocks(DOCUMENTS / document, "python")

    assert blocks
    run("-c", "\n\n".join(blocks), folder=tmp_path)


def test_the_tests_of_the_testing_document_pass(tmp_path: Path) -> None:
    save("testing.md", tmp_path)

    said = run(
        *("-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio"), folder=tmp_path
    )

    assert re.search(r"^[4-9] passed", said, flags=re.MULTILINE), said


@pytest.mark.parametrize("example", ["reliable.py", "reliable_sync.py"])
def test_an_example_of_reliable_collections_runs(example: str, tmp_path: Path) -> None:
    run(str(EXAMPLES / example), "./state", folder=tmp_path)


@contextlib.contextmanager
def local_cluster(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """What the reader has in the first terminal: its address, and its nodes' processes."""
    arguments = ("-m", "partita.cli.main", "nats", "up", "--json", "--port", str(free_port()))
    with running(*arguments, folder=folder) as process:
        assert process.stdout is not None
        started = json.loads(process.stdout.readline())
        try:
            yield started["url"], [node["pid"] for node in started["nodes"]]
        finally:
            process.terminate()
            process.wait(60)


class Replica:
    """One of the reader's terminals."""

    def __init__(self, url: str, folder: Path, number: int) -> None:
        self.output = folder / f"replica-{number}.txt"
        with self.output.open("w", encoding="utf-8") as output:
            command = [sys.executable, "replicated.py", url]
            self.process = subprocess.Popen(command, cwd=folder, stdout=output)

    def counted(self) -> list[int]:
        """What it has acknowledged so far, in the order of its lines."""
        said = self.output.read_text("utf-8")
        return [int(number) for number in re.findall(r" counted (\d+)\n", said)]

    def follows(self) -> bool:
        """Say whether it has told what it sees, and who the primary is."""
        said = self.output.read_text("utf-8")
        return " sees " in said and "The primary is process" in said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def wait_until_counted(replicas: list[Replica], target: int) -> Replica:
    """Wait for one of them to count so far; return it."""

    def ahead() -> list[Replica]:
        return [each for each in replicas if each.counted() and each.counted()[-1] >= target]

    wait_until(lambda: bool(ahead()))
    return ahead()[0]


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "it never became so"
        time.sleep(0.1)


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_the_work_goes_on_at_another_replica_with_nothing_lost(tmp_path: Path) -> None:
    save("tutorial.md", tmp_path)
    with local_cluster(tmp_path) as (url, nodes), contextlib.ExitStack() as stack:
        three = [Replica(url, tmp_path, number) for number in range(3)]
        for replica in three:
            stack.callback(replica.kill)

        primary = wait_until_counted(three, 3)
        others = [replica for replica in three if replica is not primary]
        for replica in others:
            wait_until(replica.follows)
        primary.kill()
        before = primary.counted()[-1]
        successor = wait_until_counted(others, before + 2)
        os.kill(nodes[0], signal.SIGKILL)
        wait_until_counted(others, successor.counted()[-1] + 4)

        numbers = [number for replica in three for number in replica.counted()]
    # The count is what is stored: a number that was lost would be counted once more.
    assert sorted(set(numbers)) == sorted(numbers)
    assert min(successor.counted()) in (before + 1, before + 2)  # one stored, perhaps, and not said


def test_the_cluster_of_the_testing_document_starts_and_ends(tmp_path: Path) -> None:
    [block] = code_blocks(DOCUMENTS / "testing.md", "python")

    assert "port=14222" in block
    said = run("-c", block.replace("port=14222", f"port={free_port()}"), folder=tmp_path)

    assert said.startswith("nats://127.0.0.1:")


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_backup_becomes_a_new_partition_and_a_service_counts(tmp_path: Path) -> None:
    save("nats.md", tmp_path)
    with local_cluster(tmp_path) as (url, _):
        assert run("orders.py", url, "orders", folder=tmp_path) == "7 orders, epoch 1\n"
        restore = ("state", "restore", "./backups", "--to", url, "--partition", "orders-2")
        run("-m", "partita.cli.main", *restore, folder=tmp_path)
        (tmp_path / "backups").rename(tmp_path / "older")
        again = run("orders.py", url, "orders-2", folder=tmp_path)

        run("service.py", url, folder=tmp_path)
        counted = run("service.py", url, folder=tmp_path)

    assert re.fullmatch(r"7 orders, epoch [2-9]\n", again)
    assert re.findall(r"is counted (\d) times", counted) == ["2", "2", "2"]
