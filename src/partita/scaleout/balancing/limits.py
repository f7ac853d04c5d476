"""The limits of balancing; parts are of the capacity of a shard."""

READ_COST, SCANNED_COST, WRITE_COST = 1.0, 0.1, 3.0
"""The load of an entity that is read by its key, read by a scan, or written: one is a point read.
A gathered write costs PostgreSQL three to five times as much as a gathered read."""
CAPACITY = 20_000.0
"""What a shard can do per second, in point reads: one processor at 50 us each."""

SPLIT_LOAD = 0.5
"""A range with more load is split."""
SPLIT_BYTES = 4 * 1024**3
"""A range with more bytes is split, too, so that each can be moved in minutes."""
HOT_KEY_SHARE = 0.6
"""A range of which one partition key has more of the load is not split: it would help nothing."""
HOT_KEY_LOAD = 0.1
"""A partition with less load than this is not reported as hot."""

BUSY_LOAD = 0.75
"""A shard with more load in `BUSY_ROUNDS` rounds gives ranges away, ..."""
BUSY_ROUNDS = 2
TARGET_LOAD = 0.7
"""... to a shard that has at most this much load afterwards, ..."""
GAIN_LOAD = 0.2
"""... and at least this much less than the source has now."""
FULL_LOAD = 1.0
"""Above this, the rules for the target, the gain, the rounds and the rest do not count: a move is
good if the busier of both shards has less load than before."""
REST_SECONDS = 600.0
"""How long a range stays where it is after it was moved, or split by another process."""
MOVES_MIN = 2
SHARDS_PER_MOVE = 20
"""At most one move for so many shards runs at a time, and `MOVES_MIN` in a small fleet."""

COLD_LOAD = 0.05
"""Neighbours with less load for `COLD_SECONDS` are merged, ..."""
COLD_SECONDS = 3600.0
MERGED_BYTES = SPLIT_BYTES // 2
"""... unless they have more bytes together, so that they are not split again soon."""
MERGES_MAX = 8
"""Merges of one round."""

ROUND_SECONDS = 15.0
"""How often `partita fleet control` decides."""
WINDOW_SECONDS = 30
"""The time whose load one round looks at."""
