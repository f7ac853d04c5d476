"""How often a test repeats itself: few times in `make test`, more in `make proof` and `make soak`.

A test that uses `repeat` and takes seconds is marked `repeated`, so that `make proof` runs it
again with more repetitions. A test that is too slow for `make test` altogether is marked `proof`.
"""

import os
from typing import TypeVar

T = TypeVar("T")

IS_SOAK = bool(os.environ.get("PARTITA_SOAK"))
IS_PROOF = IS_SOAK or bool(os.environ.get("PARTITA_PROOF"))


def repeat(quick: T, proof: T, soak: T) -> T:
    """Return the count, the step or the sizes for the run that is under way."""
    if IS_SOAK:
        return soak
    return proof if IS_PROOF else quick
