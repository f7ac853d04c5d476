"""The advisory locks of a database: the first number names the kind, the second the thing.

Locks of ranges are transaction locks: a writer has the shared lock of its range, and a change of
the range itself (fence, drop) takes the exclusive one. `connections.checks.LOCK_KEYS` is one more.
"""

RANGE_LOCKS = 0x50617275
"""With the id of a range."""
JOB_LOCKS = 0x50617276
"""With the number of a job that only one front end may run, or one of the numbers below."""
RECORDED_JOB_LOCKS = 0x50617277
"""With the number of a job in the table `job`: in the catalog, by the process that runs it, ..."""
WRITING_JOB_LOCKS = 0x50617278
"""... and on each shard, by its session that writes there."""
LOCK_NUMBERS = 2**31
"""A job has the same lock as the one so many jobs before it."""

INSTALL_JOB = 1
SLOT_JOB = 2
PURGE_TABLES_JOB = 3
PURGE_QUEUES_JOB = 4
PURGE_BLOBS_JOB = 5
HEAT_JOB = 6
FOLD_REMOVED_JOB = 7
CONTROL_JOB = 8
"""For the moment in which a job is recorded."""
MARK_JOB = 9
"""Shared while the owner of a range changes; exclusive while restore points are made."""
BALANCE_JOB = 10
"""Of the process that balances the fleet, as long as its session lives."""
