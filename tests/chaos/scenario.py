"""What every scenario is given and returns."""

import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from chaos.report import Outcome

RECOVERY_SECONDS_MAX = 60.0
"""Longer than this after the end of a fault is a violation."""


@dataclass(frozen=True)
class Run:
    """One run of a scenario. Everything that it chooses comes from `chance`."""

    folder: Path
    chance: random.Random
    seconds: float
    """For how long faults are injected."""
    is_broken: bool = False
    """Run the broken sibling, and return as soon as it is caught."""

    def faults(self, names: Sequence[str]) -> Iterator[str]:
        """Yield the names in a random order, while time is left, and each at least once."""
        end = time.monotonic() + self.seconds
        order = self.chance.sample(names, len(names))
        for number in itertools.count():
            if time.monotonic() >= end and number >= (1 if self.is_broken else len(names)):
                return
            yield order[number % len(order)]


class Scenario(NamedTuple):
    name: str
    sibling: str
    """What is broken in the sibling."""
    run: Callable[[Run], Outcome]
    share: float = 1.0
    """The part of the usual time that it needs."""
