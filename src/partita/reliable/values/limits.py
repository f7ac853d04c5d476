"""Every limit of reliable state, named."""

KEY_BYTES_MAX = 4 * 1024
"""Of an encoded key."""
VALUE_BYTES_MAX = 4 * 1024 * 1024
"""Of one encoded value; keep values below 80 KB where you can."""
TRANSACTION_BYTES_MAX = 7 * 1024 * 1024
"""Of all keys and values that one transaction writes."""
TRANSACTION_OPERATIONS_MAX = 50_000
RECORD_BYTES_MAX = 8 * 1024 * 1024
"""Of one record of the log, which may hold many transactions."""
COLLECTIONS_MAX = 1_000
"""In one state, with the indexes."""
COLLECTION_NAME_CHARACTERS_MAX = 128
RESULT_BYTES_MAX = 64 * 1024
"""Of the encoded result that is kept with an idempotency key."""
IDEMPOTENCY_KEY_CHARACTERS_MAX = 256
LOCK_TIMEOUT_SECONDS = 4.0
"""How long an operation waits for its lock unless it says otherwise."""
OUTCOME_SECONDS_KEPT = 24 * 3600.0
"""How long an idempotency key and its result are remembered."""
TTL_SECONDS_MAX = 100 * 365 * 24 * 3600.0
"""The longest time to live of a value."""
HANDED_OUT_MAX = 1_024
"""Keys whose values a transaction handed out by enumerations and checks when it commits."""
