"""Upgrade the shards in order: canaries first, several in parallel, stopped by failures.

The upgrade of one shard is passed in and never raises.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from partita.errors import ShardError
from partita.shards.keys.mapping import Shard

UpgradeState = Literal["upgraded", "current", "written", "failed", "not tried"]
ProgressOption = Literal["auto", "bar", "none"] | Callable[["ShardUpgrade"], None]
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


class UpgradeReport(msgspec.Struct, frozen=True):
    """The outcome of each shard, in the order of the upgrade."""

    target: str
    shards: list[ShardUpgrade]

    @property
    def errors(self) -> dict[Shard, Exception]:
        return {each.shard: each.error for each in self.shards if each.error is not None}

    @property
    def is_complete(self) -> bool:
        return all(each.state not in ("failed", "not tried") for each in self.shards)

    def raise_if_incomplete(self) -> None:
        """Raise the errors of all shards as an ExceptionGroup, if there are any."""
        if self.errors:
            raise ExceptionGroup("The upgrade failed on some shards.", list(self.errors.values()))


def roll_out(
    waves: Sequence[Sequence[Shard]],
    upgrade: Callable[[Shard], ShardUpgrade],
    *,
    parallel: int = 1,
    stop_after: int | None = 1,
    on_done: Callable[[ShardUpgrade], None] = lambda _done: None,
) -> list[ShardUpgrade]:
    """Upgrade the canaries of the first wave, then the rest if no canary failed."""
    canaries, rest = waves
    done = _run_wave(canaries, upgrade, parallel=parallel, stop_after=1, on_done=on_done)
    if any(each.state == "failed" for each in done):
        return done + [ShardUpgrade(shard, "not tried") for shard in rest]
    return done + _run_wave(
        rest, upgrade, parallel=parallel, stop_after=stop_after, on_done=on_done
    )


def _run_wave(
    shards: Sequence[Shard],
    upgrade: Callable[[Shard], ShardUpgrade],
    *,
    parallel: int,
    stop_after: int | None,
    on_done: Callable[[ShardUpgrade], None],
) -> list[ShardUpgrade]:
    failures = 0
    lock = threading.Lock()

    def run(shard: Shard) -> ShardUpgrade:
        nonlocal failures
        if stop_after is not None and failures >= stop_after:
            return ShardUpgrade(shard, "not tried")
        done = upgrade(shard)
        with lock:
            failures += done.state == "failed"
            on_done(done)
        return done

    if parallel == 1:
        return [run(shard) for shard in shards]
    with ThreadPoolExecutor(parallel, "partita-upgrade") as pool:
        return list(pool.map(run, shards))


@contextmanager
def show_progress(progress: ProgressOption, total: int) -> Iterator[Callable[[ShardUpgrade], None]]:
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
        task = bar.add_task("upgrade", total=total)
        failed = 0

        def show(done: ShardUpgrade) -> None:
            nonlocal failed
            failed += done.state == "failed"
            title = f"upgrade, {failed} failed" if failed else "upgrade"
            bar.update(task, advance=1, description=title, refresh=True)

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
