"""Visit the shards in order: canaries first, several in parallel, stopped by failures.

The work on one shard is passed in and never raises.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import msgspec

from partita.errors import ShardError
from partita.shards.keys.mapping import Shard

UpgradeState = Literal["upgraded", "downgraded", "current", "written", "failed", "not tried"]
ExecutionState = Literal["executed", "executed before", "failed", "not tried"]
ProgressOption = Literal["auto", "bar", "none"] | Callable[[Any], None]
"""A bar on terminals, a bar always, nothing, or a function called after each shard."""


class ShardUpgrade(msgspec.Struct, frozen=True):
    """The outcome of one shard."""

    shard: Shard
    state: UpgradeState
    before: str | None = None
    after: str | None = None
    error: Exception | None = None
    seconds: float = 0.0
    script: Path | None = None


class ShardExecution(msgspec.Struct, frozen=True):
    """The outcome of a statement on one shard."""

    shard: Shard
    state: ExecutionState
    rows: int | None = None
    """The number of rows that the statement changed or returned, if the database tells it."""
    error: Exception | None = None
    seconds: float = 0.0


Done = TypeVar("Done", ShardUpgrade, ShardExecution)


class ShardsReport(msgspec.Struct, Generic[Done], frozen=True):
    """The outcome of each shard, in the order in which they were visited."""

    shards: list[Done]

    @property
    def errors(self) -> dict[Shard, Exception]:
        return {each.shard: each.error for each in self.shards if each.error is not None}

    @property
    def is_complete(self) -> bool:
        return all(each.state not in ("failed", "not tried") for each in self.shards)

    def raise_if_incomplete(self) -> None:
        """Raise the errors of all shards as an ExceptionGroup, if there are any."""
        if self.errors:
            raise ExceptionGroup("Some shards failed.", list(self.errors.values()))


class UpgradeReport(ShardsReport[ShardUpgrade], frozen=True):
    """The outcome of an upgrade or a downgrade."""

    target: str


class ExecutionReport(ShardsReport[ShardExecution], frozen=True):
    """The outcome of `execute_on_all`."""


def roll_out(
    waves: Sequence[Sequence[Shard]],
    work: Callable[[Shard], Done],
    *,
    not_tried: Callable[[Shard], Done],
    parallel: int = 1,
    stop_after: int | None = 1,
    on_done: Callable[[Done], None] = lambda _done: None,
) -> list[Done]:
    """Visit the canaries of the first wave, then the rest if no canary failed."""
    canaries, rest = waves
    done = _run_wave(canaries, work, not_tried, parallel=parallel, stop_after=1, on_done=on_done)
    if any(each.state == "failed" for each in done):
        return done + [not_tried(shard) for shard in rest]
    return done + _run_wave(
        rest, work, not_tried, parallel=parallel, stop_after=stop_after, on_done=on_done
    )


def _run_wave(
    shards: Sequence[Shard],
    work: Callable[[Shard], Done],
    not_tried: Callable[[Shard], Done],
    *,
    parallel: int,
    stop_after: int | None,
    on_done: Callable[[Done], None],
) -> list[Done]:
    failures = 0
    lock = threading.Lock()

    def run(shard: Shard) -> Done:
        nonlocal failures
        if stop_after is not None and failures >= stop_after:
            return not_tried(shard)
        done = work(shard)
        with lock:
            failures += done.state == "failed"
            on_done(done)
        return done

    if parallel == 1:
        return [run(shard) for shard in shards]
    with ThreadPoolExecutor(parallel, "partita-upgrade") as pool:
        return list(pool.map(run, shards))


@contextmanager
def show_progress(
    progress: ProgressOption, total: int, title: str = "upgrade"
) -> Iterator[Callable[[Any], None]]:
    """Yield the function to call after each shard."""
    if callable(progress):
        yield progress
        return
    if progress == "none" or (progress == "auto" and not sys.stderr.isatty()):
        yield lambda _done: None
        return
    from rich.console import Console  # noqa: PLC0415 - only where a bar is drawn
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn  # noqa: PLC0415
    from rich.progress import Progress as Bar  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    # Without a thread of its own: a bar changes only when a shard is done.
    with Bar(*columns, console=Console(stderr=True), auto_refresh=False) as bar:
        task = bar.add_task(title, total=total)
        failed = 0

        def show(done: Any) -> None:
            nonlocal failed
            failed += done.state == "failed"
            shown = f"{title}, {failed} failed" if failed else title
            bar.update(task, advance=1, description=shown, refresh=True)

        yield show


def shard_error(shard: Shard, cause: Exception) -> ShardError:
    """Return the error with its shard."""
    if isinstance(cause, ShardError) and cause.shard is not None:
        return cause
    code = cause.code if isinstance(cause, ShardError) else "ShardFailed"
    error = ShardError(
        code,
        f"{shard.location.text}: {cause}",
        facts={"shard": shard.location.text},
        hint="See the cause.",
    )
    error.shard, error.cause = shard, cause
    error.__cause__ = cause
    return error
