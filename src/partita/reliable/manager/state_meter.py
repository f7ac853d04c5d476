"""The metrics of one open state, for `partita.metrics.render()`.

Everything is read when it is asked for, in the thread that asks; no path of a transaction waits.
"""

import contextlib
from collections.abc import Iterator
from typing import Protocol

from partita.metrics.families import Family, Kind, Sample
from partita.metrics.names import claim_name, release_name
from partita.metrics.sources import register, unregister
from partita.reliable.collections.transaction import Core
from partita.reliable.manager.backup import Backups
from partita.reliable.manager.housekeeping import CheckpointWriter
from partita.reliable.storage.checkpoint import Checkpoints
from partita.reliable.storage.log import Log
from partita.ticks import TICKS_PER_SECOND, Clock

LABEL = "state"
"""The partition on NATS, or the folder."""


class MeasuredReplica(Protocol):
    """What is measured of a replica on NATS."""

    copies: int
    log_last: int
    promotions: int


class MeasuredState(Protocol):
    """What is measured of a state, which is a StateManager."""

    backups: Backups
    checkpoint_writer: CheckpointWriter

    @property
    def core(self) -> Core: ...

    @property
    def log(self) -> Log: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def checkpoints(self) -> Checkpoints: ...

    @property
    def log_bytes(self) -> int | None: ...

    @property
    def log_bytes_since_checkpoint(self) -> int: ...

    @property
    def replica(self) -> MeasuredReplica | None: ...


class StateMeter:
    """Registers the metrics of a state until `close`."""

    def __init__(self, state: MeasuredState, name: str) -> None:
        self._state = state
        self._name = claim_name(LABEL, name, self)
        self._labels = {LABEL: self._name}
        register(self)

    def close(self) -> None:
        unregister(self)
        release_name(LABEL, self._name)

    def families(self) -> Iterator[Family]:
        yield from self._transactions()
        yield from self._role()
        yield from self._files()

    def _transactions(self) -> Iterator[Family]:
        core, counts = self._state.core, self._state.core.counts
        yield self._counter("commits_total", "Transactions that were committed.", counts.commits)
        yield self._counter("records_total", "Records that they were written in.", counts.records)
        yield Family(
            "partita_state_commit_duration_seconds",
            "histogram",
            "Time until a record was durable.",
            counts.commit_seconds.samples(self._labels),
        )
        yield Family(
            "partita_state_lock_wait_seconds",
            "histogram",
            "Time of requests that had to wait for a lock.",
            counts.lock_wait_seconds.samples(self._labels),
        )
        yield self._counter("deadlocks_total", "Waits that a deadlock ended.", counts.deadlocks)
        yield self._counter(
            "lock_timeouts_total", "Waits for a lock that timed out.", counts.lock_timeouts
        )
        yield self._gauge("locks", "Keys that are locked now.", core.locks.count())
        yield self._gauge("transactions_open", "Transactions that are open.", len(core.active))

    def _role(self) -> Iterator[Family]:
        core, log, replica = self._state.core, self._state.log, self._state.replica
        sequence = core.state.sequence
        yield self._gauge(
            "replica_role", "1 on the primary, 0 on a secondary.", int(core.role_error is None)
        )
        yield self._gauge("epoch", "The epoch of the newest record.", core.state.epoch)
        yield self._gauge("sequence", "The last record that was applied here.", sequence)
        last = log.last if replica is None else max(log.last, replica.log_last)
        yield self._gauge(
            "replica_lag_records",
            "Records of the log that were not applied here.",
            max(last - sequence, 0),
        )
        if replica is not None:
            yield self._counter(
                "promotions_total", "How often this replica became primary.", replica.promotions
            )
            yield self._counter(
                "full_copies_total", "Full copies that this replica loaded.", replica.copies
            )

    def _files(self) -> Iterator[Family]:
        state, log = self._state, self._state.log
        yield self._gauge("log_records", "Records in the log.", max(log.last - log.first + 1, 0))
        with contextlib.suppress(OSError):  # a file was removed just now
            size = state.log_bytes
            if size is not None:
                yield self._gauge("log_bytes", "Size of the files of the log.", size)
        yield self._gauge(
            "log_since_checkpoint_bytes",
            "Bytes of log that a start would apply.",
            state.log_bytes_since_checkpoint,
        )
        yield Family(
            "partita_state_checkpoint_duration_seconds",
            "histogram",
            "Time of a checkpoint.",
            state.checkpoint_writer.seconds.samples(self._labels),
        )
        newest, backup = state.checkpoints.newest, state.backups.newest
        if newest is not None:
            yield self._gauge(
                "checkpoint_sequence", "The record of the newest checkpoint.", newest.sequence
            )
            yield self._gauge("checkpoint_bytes", "Size of the newest checkpoint.", newest.size)
        if backup is not None:
            age = max(state.clock.ticks() - backup.made_at, 0) / TICKS_PER_SECOND
            yield self._gauge(
                "backup_age_seconds", "Age of the newest backup that this process took.", age
            )

    def _counter(self, name: str, text: str, value: float) -> Family:
        return self._family(name, "counter", text, value)

    def _gauge(self, name: str, text: str, value: float) -> Family:
        return self._family(name, "gauge", text, value)

    def _family(self, name: str, kind: Kind, text: str, value: float) -> Family:
        return Family(f"partita_state_{name}", kind, text, [Sample(value, self._labels)])
