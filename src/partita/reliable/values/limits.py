"""All limits of reliable state, and those that a state can be opened with."""

import msgspec

from partita.errors import UsageError

KEY_BYTES_MAX = 4 * 1024
"""The size of an encoded key."""
VALUE_BYTES_MAX = 4 * 1024 * 1024
"""The size of an encoded value; values below 80 KB are recommended."""
TRANSACTION_BYTES_MAX = 7 * 1024 * 1024
"""The size of all keys and values that one transaction writes."""
TRANSACTION_OPERATIONS_MAX = 50_000
RECORD_BYTES_MAX = 8 * 1024 * 1024
"""The size of a record of the log, which may contain many transactions."""
RECORD_BYTES_SETTING_MAX = 48 * 1024 * 1024
"""The largest record that a state can be opened with; what reads records accepts that many."""
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


class Sizes(msgspec.Struct, frozen=True):
    """The sizes that can be set when a state is opened: `open_state(..., sizes=Sizes(...))`.

    They limit what this process writes; records of any size that a state was opened with can be
    read. On NATS, RECORD_BYTES_MAX and `max_payload` of the servers limit a record too.
    """

    record_bytes_max: int = RECORD_BYTES_MAX
    """The size of a record of the log, which may contain many transactions."""
    transaction_bytes_max: int = TRANSACTION_BYTES_MAX
    """The size of all keys and values that one transaction writes."""
    transaction_operations_max: int = TRANSACTION_OPERATIONS_MAX
    """The number of writes of one transaction."""

    def checked(self) -> "Sizes":
        """Return the sizes; UsageError if they are not possible."""
        numbers = (
            self.record_bytes_max,
            self.transaction_bytes_max,
            self.transaction_operations_max,
        )
        if (
            any(type(number) is not int or number < 1 for number in numbers)
            or not 1024 <= self.transaction_bytes_max <= self.record_bytes_max
            or self.record_bytes_max > RECORD_BYTES_SETTING_MAX
        ):
            raise UsageError(
                "InvalidLimit",
                f"These sizes are not possible: {self}.",
                hint="Use integers: transaction_bytes_max from 1024 to record_bytes_max, and "
                f"record_bytes_max up to {RECORD_BYTES_SETTING_MAX}.",
            )
        return self
