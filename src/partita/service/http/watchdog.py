"""The longest turn of the event loop: measured, exported, logged with the request that took it.

While a request runs on the loop, all others wait. The one rule: a step is measured in wall-clock
time, because that is how long the others wait; on a busy machine it contains the time of other
processes.
"""

import logging

from partita.service.http.message_bytes import redact_query
from partita.service.http.request import Request
from partita.ticks import Clock

TURN_SECONDS_MAX = 0.05
"""A longer turn is counted and logged."""
LOGGED_EVERY_SECONDS = 10
"""How often long turns are logged, unless one is the longest so far."""

logger = logging.getLogger("partita.service.watchdog")


class LoopWatchdog:
    """The turns of the loop in which one server answers requests."""

    def __init__(self, clock: Clock) -> None:
        self.longest_seconds = 0.0
        """Of all turns since the start. The turn sets it, too: a short step costs no call."""
        self.long_turns = 0
        """How many turns took longer than TURN_SECONDS_MAX."""
        self._now = clock.monotonic
        self._log_again_at = self._now()

    def note(self, request: Request, seconds: float) -> None:
        """Record a long turn that a request took."""
        is_longest = seconds > self.longest_seconds
        self.longest_seconds = max(self.longest_seconds, seconds)
        self.long_turns += 1
        now = self._now()
        if not is_longest and now < self._log_again_at:
            return
        self._log_again_at = now + LOGGED_EVERY_SECONDS
        query = f"?{redact_query(request.query)}" if request.query else ""
        logger.warning(
            "the event loop was held for %.0f ms by %s %s%s from %s",
            seconds * 1000,
            request.method,
            request.path,
            query,
            request.peer or "this process",
        )

    def metrics(self) -> bytes:
        """Print the measurements in the text format of Prometheus."""
        return (
            "# HELP partita_loop_turn_seconds_max The longest turn of the event loop.\n"
            "# TYPE partita_loop_turn_seconds_max gauge\n"
            f"partita_loop_turn_seconds_max {self.longest_seconds:.6f}\n"
            "# HELP partita_loop_long_turns_total Turns of more than"
            f" {TURN_SECONDS_MAX * 1000:.0f} ms.\n"
            "# TYPE partita_loop_long_turns_total counter\n"
            f"partita_loop_long_turns_total {self.long_turns}\n"
        ).encode()
