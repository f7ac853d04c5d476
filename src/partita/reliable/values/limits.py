"""All limits of reliable state."""

KEY_BYTES_MAX = 4 * 1024
"""The size of an encoded key."""
VALUE_BYTES_MAX = 4 * 1024 * 1024
"""The size of an encoded value; values below 80 KB are recommended."""
TRANSACTION_BYTES_MAX = 7 * 1024 * 1024
"""The size of all keys and values that one transaction writes."""
TRANSACTION_OPERATIONS_MAX = 50_000
RECORD_BYTES_MAX = 8 * 1024 * 1024
"""The size of a record of the log, which may contain many transactions."""
COLLECTIONS_MAX = 1_000
"""Collections of one state, including indexes."""
COLLECTION_NAME_CHARACTERS_MAX = 128
RESULT_BYTES_MAX = 64 * 1024
"""The size of the encoded result that is stored with an idempotency key."""
IDEMPOTENCY_KEY_CHARACTERS_MAX = 256
LOCK_TIMEOUT_SECONDS = 4.0
"""How long an operation waits for its lock by default."""
OUTCOME_SECONDS_KEPT = 24 * 3600.0
"""How long an idempotency key and its result are stored."""
TTL_SECONDS_MAX = 100 * 365 * 24 * 3600.0
"""The longest time to live of a value."""
HANDED_OUT_MAX = 1_024
"""Keys of mutable values from enumerations that a transaction checks when it commits."""
