"""The limits of heat: what bounds its memory, its files and its cost."""

SAMPLES_PER_SECOND = 256
"""Entities that are sampled per second and account; below this rate, all are counted."""
SAMPLES_MAX = 30_720
"""Samples of one account in memory: two minutes of them. With more, every second one is dropped."""
BUCKETS_MAX = 256
"""Ranges of keys of one table in one minute."""
TABLES_MAX = 64
"""Tables of an account with an axis of their own in one minute: those with the most load."""
KEY_CHARACTERS_MAX = 256
"""Characters of a partition key and a row key together; the rest of a longer key is cut off."""
MINUTE_SECONDS, TEN_SECONDS = 60, 600
"""The time that one axis covers: a minute, and later ten minutes."""
MINUTES_KEPT_SECONDS = 6 * 3600
TENS_KEPT_SECONDS = 7 * 86_400
LIVE_SECONDS = 5
"""How often a front end on PostgreSQL stores the load since the last time, ..."""
LIVE_KEPT_SECONDS = 300
"""... and how long this is kept."""
UNPACKED_BYTES_MAX = 2 * 1024 * 1024
"""The size of an axis that is read; a longer one is refused as damaged."""
MINUTES_IN_MEMORY_SECONDS, TENS_IN_MEMORY_SECONDS = 3600, 86_400
"""How long minutes and tens of an account in memory are kept."""
