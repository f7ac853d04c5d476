"""A token bucket that limits the rate of writes, so that a spike is spread over time.

Time is passed in and must be monotonic. In any window of w seconds, at most `burst + per_second *
w` is admitted, over all writers that share the rate.
"""

import math
from threading import Lock

from partita.errors import ConfigurationError, LimitExceededError
from partita.tables import limits


class Rate:
    """Admit `per_second` on average and `burst` at once; callers wait, nothing is dropped.

    The bucket starts full. The default `burst` is one second's amount, and at least the size of a
    group. Several writers and threads may share one rate.
    """

    def __init__(self, per_second: float, burst: float | None = None) -> None:
        burst = max(per_second, limits.GROUP_OPERATIONS_MAX) if burst is None else burst
        if not (0 < per_second < math.inf and 0 < burst < math.inf):
            raise ConfigurationError(
                "InvalidRate",
                "per_second and burst must be finite numbers above zero.",
                facts={"per_second": per_second, "burst": burst},
            )
        self.per_second = per_second
        self.burst = burst
        self._empty_at = -math.inf
        """When the bucket was, or will be, empty. Only `reserve` and `pause` change it; it never
        decreases."""
        self._lock = Lock()

    def reserve(self, now: float, amount: float = 1) -> float:
        """Reserve `amount` and return how many seconds to wait before using it.

        A reservation is spent even if the caller does not wait; later callers wait longer. An
        amount above the burst is refused (LimitExceededError), because it could never be admitted
        at once.
        """
        if not 0 <= amount <= self.burst:
            raise LimitExceededError(
                "RateBurstExceeded",
                "The amount is larger than the burst of the rate.",
                facts={"amount": amount, "burst": self.burst},
                hint="Increase burst=, or reserve less at a time.",
            )
        with self._lock:
            filled_from = max(self._empty_at, now - self.burst / self.per_second)
            self._empty_at = filled_from + amount / self.per_second
            return max(self._empty_at - now, 0.0)

    def pause(self, now: float, seconds: float) -> None:
        """Admit nothing for some seconds, because the service asked for it.

        Earlier reservations stay valid.
        """
        with self._lock:
            self._empty_at = max(self._empty_at, now + seconds)
