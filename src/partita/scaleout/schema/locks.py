"""The advisory locks of a database: the first number names the kind, the second the thing.

Locks of ranges are transaction locks: a writer has the shared lock of its range, and a change of
the range itself (fence, drop) takes the exclusive one. `connections.checks.LOCK_KEYS` is one more.
"""

RANGE_LOCKS = 0x50617275
"""With the id of a range."""
JOB_LOCKS = 0x50617276
"""With the number of a job that only one front end may run, or one of the numbers below."""

INSTALL_JOB = 1
SLOT_JOB = 2
PURGE_TABLES_JOB = 3
PURGE_QUEUES_JOB = 4
PURGE_BLOBS_JOB = 5
HEAT_JOB = 6
FOLD_REMOVED_JOB = 7
