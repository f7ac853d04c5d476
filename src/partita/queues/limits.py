"""The limits of the queue service, from the REST reference."""

KIB = 1024
DAY_SECONDS = 24 * 3600

QUEUE_NAME_CHARACTERS_MIN = 3
QUEUE_NAME_CHARACTERS_MAX = 63
PAGE_QUEUES_MAX = 5000
MESSAGE_BYTES_MAX = 64 * KIB
"""Of the text in UTF-8, not of its XML."""
GET_MESSAGES_MAX = 32
VISIBILITY_SECONDS_MAX = 7 * DAY_SECONDS
VISIBILITY_SECONDS_DEFAULT = 30
"""How long a received message is hidden."""
LIFETIME_SECONDS_DEFAULT = 7 * DAY_SECONDS
LIFETIME_SECONDS_MAX = 2**31 - 1
POLICIES_MAX = 5

NEVER = 2_534_023_007_990_000_000
"""The ticks of 9999-12-31T23:59:59: the expiry of messages that do not expire."""
