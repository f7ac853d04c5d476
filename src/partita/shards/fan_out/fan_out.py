"""Run one statement on many shards; rows arrive while slower shards are still working.

`fan_out` is a method of shard maps, `afan_out` (tasks.py) its async variant. plan.py chooses the
shards, run_state.py decides, gathering.py collects the rows, threads.py reads the shards.
"""

from typing import Any, Unpack

from sqlalchemy import Executable, RowMapping

from partita.errors import ShardError
from partita.shards.fan_out.plan import (
    REPLANS_MAX,
    FannedMap,
    FanOutOptions,
    ReplanError,
    changes_too_fast,
    fan_out_plan,
)
from partita.shards.fan_out.results import Converted, Taken, column_of, mapping_of
from partita.shards.fan_out.shard_reader import AnyRow
from partita.shards.fan_out.threads import ThreadRun
from partita.shards.keys.mapping import Shard


def fan_out(
    shard_map: FannedMap, statement: Executable, **options: Unpack[FanOutOptions]
) -> "FanOutResult":
    """Run a SELECT on all shards (or those of `shards=` or `keys=`) and return their rows.

    `policy="complete"`: the first failure cancels the other shards and is raised by the iteration,
    as an ExceptionGroup of ShardError. `"partial"`: failed shards are in `errors`; the group is
    raised only if all fail. Without `order_by=` rows come in the order in which shards deliver
    them. Entities (`select(Blog)`) are detached and have the location of the shard as identity
    token: load the relationships that you need in the statement.
    """
    return FanOutResult(shard_map, statement, options)


class FanOutResult(Taken[AnyRow]):
    """The rows of all shards; iterate once, and close it (or use `with`) if you stop early.

    `all`, `first`, `one`, `one_or_none`, `scalar`, `scalars` and `mappings` are those of
    SQLAlchemy's Result.
    """

    def __init__(self, shard_map: FannedMap, statement: Executable, options: FanOutOptions) -> None:
        self._asked = (shard_map, statement, options)
        self._rows = iter(list[AnyRow]())
        self._is_over = False
        self._run = ThreadRun(fan_out_plan(shard_map, statement, options))
        shard_map.counters.fan_outs += 1

    @property
    def errors(self) -> dict[Shard, ShardError]:
        """The shards that have failed so far."""
        return dict(self._run.gathering.errors)

    def raise_if_incomplete(self) -> None:
        """Raise the errors of the shards that failed, if any did."""
        if self._run.gathering.errors:
            raise self._run.gathering.group()

    def all(self) -> list[AnyRow]:
        """Return the remaining rows."""
        self._run.is_patient = self._run.plan.limit is None
        return list(self)

    def scalar(self) -> Any:
        """Return the first value of the next row, or None, and close."""
        with self:
            row = next(self, None)
        return None if row is None else row[0]

    def scalars(self, index: int = 0) -> Converted[AnyRow, Any]:
        """Return the values of one column instead of rows."""
        return Converted(self, column_of(index))

    def mappings(self) -> Converted[AnyRow, RowMapping]:
        """Return rows as mappings of names to values."""
        return Converted(self, mapping_of)

    def close(self) -> None:
        """Cancel what is still running and end the threads; further calls do nothing."""
        self._is_over = True
        self._rows = iter(list[AnyRow]())
        self._run.close()

    def __next__(self) -> AnyRow:
        row = next(self._rows, None)
        while row is None:
            self._rows = iter(self._next_batch())
            row = next(self._rows, None)
        return row

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
                # Including KeyboardInterrupt: nothing may continue in the background.
                self.close()
                raise
            if not rows:
                self.close()
                raise StopIteration
            return rows
        raise changes_too_fast(self._asked[0])
