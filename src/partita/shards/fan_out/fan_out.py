"""One statement on many shards: rows stream in while slower shards still work.

`fan_out` is a method of every shard map; `afan_out` is its async twin. What is asked of which
shards is decided in fan_out_plan, who is where in gathering, the threads are in fan_out_threads.
"""

from typing import Any, Self, Unpack

from sqlalchemy import Executable

from partita.errors import ShardError
from partita.shards.fan_out.plan import (
    REPLANS_MAX,
    FannedMap,
    FanOutOptions,
    ReplanError,
    changes_too_fast,
    fan_out_plan,
)
from partita.shards.fan_out.shard_reader import AnyRow
from partita.shards.fan_out.threads import ThreadRun
from partita.shards.keys.mapping import Shard


def fan_out(
    shard_map: FannedMap, statement: Executable, **options: Unpack[FanOutOptions]
) -> "FanOutResult":
    """Run a SELECT on all shards (or those of `shards=`, `keys=`) and return their rows.

    `policy="complete"`: the first failure cancels the rest and is raised while iterating, as
    an ExceptionGroup of ShardError. `"partial"`: failed shards are in `errors`; only when all
    fail is the group raised. Without `order_by=` rows come as shards deliver them. Entities
    (`select(Blog)`) come detached, with the shard's location as identity token: load what you
    need of their relationships in the statement.
    """
    return FanOutResult(shard_map, statement, options)


class FanOutResult:
    """The rows of all shards; iterate it once, and close it (or use `with`) when you stop early."""

    def __init__(self, shard_map: FannedMap, statement: Executable, options: FanOutOptions) -> None:
        self._asked = (shard_map, statement, options)
        self._rows = iter(list[AnyRow]())
        self._is_over = False
        self._run = ThreadRun(fan_out_plan(shard_map, statement, options))
        shard_map.counters.fan_outs += 1

    @property
    def errors(self) -> dict[Shard, ShardError]:
        """The shards that failed, so far or at the end."""
        return dict(self._run.gathering.errors)

    def raise_if_incomplete(self) -> None:
        """Raise the errors of the shards that failed, if any did."""
        if self._run.gathering.errors:
            raise self._run.gathering.group()

    def all(self) -> list[AnyRow]:
        """Return the rows that are left."""
        self._run.is_patient = self._run.plan.limit is None
        return list(self)

    def scalar(self) -> Any:
        """Return the first value of the next row, or None, and close."""
        with self:
            row = next(self, None)
        return None if row is None else row[0]

    def close(self) -> None:
        """Cancel what still runs and end the threads; more than once does no harm."""
        self._is_over = True
        self._rows = iter(list[AnyRow]())
        self._run.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> AnyRow:
        row = next(self._rows, None)
        while row is None:
            self._rows = iter(self._next_batch())
            row = next(self._rows, None)
        return row

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        run = getattr(self, "_run", None)
        if run is not None:
            run.cancel()

    def _next_batch(self) -> list[AnyRow]:
        if self._is_over:
            raise StopIteration
        for _ in range(REPLANS_MAX):
            try:
                rows = self._run.next_rows()
            except ReplanError:
                self._run.close()
                is_patient = self._run.is_patient
                self._run = ThreadRun(fan_out_plan(*self._asked))
                self._run.is_patient = is_patient
                continue
            except BaseException:
                # KeyboardInterrupt too: nothing may go on running behind the caller's back.
                self.close()
                raise
            if not rows:
                self.close()
                raise StopIteration
            return rows
        raise changes_too_fast(self._asked[0])
