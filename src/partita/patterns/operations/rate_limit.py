"""A token bucket: how fast writers may go, so that a spike reaches the service as a plain.

Time is handed in and must be monotonic. The one rule: in any window of w seconds at most
`burst + per_second * w` is let through, by whichever writers share the rate.
"""

import math
from threading import Lock

from partita.errors import ConfigurationError, LimitExceededError
from partita.tables import limits


class Rate:
    """Let through `per_second` on average and `burst` at once; waits, never drops.

    The bucket starts full. Without `burst` it holds what one second brings, and at least a
    group of operations. One rate may be shared by several writers, also by threads.
    """

    def __init__(self, per_second: float, burst: float | None = None) -> None:
        burst = max(per_second, limits.GROUP_OPERATIONS_MAX) if burst is None else burst
        if not (0 < per_second < math.inf and 0 < burst < math.inf):
            raise ConfigurationError(
                "InvalidRate",
                "A rate needs a finite number above zero for each second and for a burst.",
                facts={"per_second": per_second, "burst": burst},
            )
        self.per_second = per_second
        self.burst = burst
        self._empty_at = -math.inf
        """When the bucket was, or will be, empty. Only `reserve` and `pause` move it, forwards."""
        self._lock = Lock()

    def reserve(self, now: float, amount: float = 1) -> float:
        """Take `amount` and return how many seconds to wait before using it.

        What is taken is spent, waited for or not: those who come later wait behind it. An amount
        above the burst is refused (LimitExceededError), because it could never pass at once.
        """
        if not 0 <= amount <= self.burst:
            raise LimitExceededError(
                "RateBurstExceeded",
                "More was asked for at once than the rate ever lets through at once.",
                facts={"amount": amount, "burst": self.burst},
                hint="Give the rate a larger burst, or ask for less at a time.",
            )
        with self._lock:
            filled_from = max(self._empty_at, now - self.burst / self.per_second)
            self._empty_at = filled_from + amount / self.per_second
            return max(self._empty_at - now, 0.0)

    def pause(self, now: float, seconds: float) -> None:
        """Let nothing more through for some seconds: the service asked for it.

        What was reserved already is not called back.
        """
        with self._lock:
            self._empty_at = max(self._empty_at, now + seconds)
