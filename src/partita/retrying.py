"""RetryPolicy: how often work is tried again, and after which delay.

Delays have full jitter: each is random between 0 and a bound that doubles with every failure, so
that clients that failed together do not come back together.
"""

import msgspec

from partita.errors import UsageError
from partita.ticks import Clock

ATTEMPTS = 8
FIRST_DELAY_SECONDS = 0.05
DELAY_SECONDS_MAX = 2.0
DEADLINE_SECONDS = 60.0


class RetryPolicy(msgspec.Struct, frozen=True):
    """The limits of retries; the delay before attempt n is random, below first_delay * 2**n.

    No attempt begins later than `deadline` seconds after the first one.
    """

    attempts: int = ATTEMPTS
    first_delay: float = FIRST_DELAY_SECONDS
    max_delay: float = DELAY_SECONDS_MAX
    deadline: float = DEADLINE_SECONDS

    def checked(self) -> "RetryPolicy":
        """Return the policy; UsageError for invalid numbers."""
        if type(self.attempts) is not int or self.attempts < 1:
            raise UsageError(
                "InvalidLimit",
                f"attempts= must be an integer of at least 1, not {self.attempts!r}.",
            )
        delays: tuple[object, ...] = (self.first_delay, self.max_delay, self.deadline)
        for seconds in delays:
            if (
                not isinstance(seconds, int | float)
                or isinstance(seconds, bool)
                or not seconds >= 0
            ):
                raise UsageError(
                    "InvalidTimeout",
                    f"A delay must be a number of seconds of at least 0, not {seconds!r}.",
                    hint="Omit it for the default.",
                )
        return self

    def delay(self, failures: int, clock: Clock) -> float:
        """Return the seconds to wait after this many failures."""
        ceiling = min(self.max_delay, self.first_delay * 2 ** min(failures - 1, 60))
        return float(ceiling * int.from_bytes(clock.random_bytes(4)) / 2**32)

    def is_last(self, failures: int, spent: float) -> bool:
        """Return whether no attempt follows after this many failures and seconds."""
        return failures >= self.attempts or spent > self.deadline
