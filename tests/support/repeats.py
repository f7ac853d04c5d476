"""How often a test repeats itself: few times in `make test`, more in `make proof` and `make soak`.

A test that uses `repeat` and takes seconds is marked `repeated`, so that `make proof` runs it
again with more repetitions. A test that is too slow for `make test` altogether is marked `proof`.
"""

import itertools
import os
from collections.abc import Iterable
from typing import TypeVar

import pytest
from _pytest.mark import ParameterSet

T = TypeVar("T")

IS_SOAK = bool(os.environ.get("PARTITA_SOAK"))
IS_PROOF = IS_SOAK or bool(os.environ.get("PARTITA_PROOF"))


def repeat(quick: T, proof: T, soak: T) -> T:
    """Return the count, the step or the sizes for the run that is under way."""
    if IS_SOAK:
        return soak
    return proof if IS_PROOF else quick


def sample(values: Iterable[object], step: int) -> list[ParameterSet]:
    """Return all values as parameters; `make test` runs every `step`th, `make proof` the others."""
    marks = itertools.cycle([(), *[(pytest.mark.proof,)] * (step - 1)])
    return [pytest.param(value, marks=mark) for value, mark in zip(values, marks, strict=False)]


def sample_pairs(pairs: Iterable[tuple[object, ...]], step: int) -> list[ParameterSet]:
    """Like `sample`, for values of several parameters."""
    sampled = zip(pairs, sample(range(10_000), step), strict=False)
    return [pytest.param(*values, marks=each.marks) for values, each in sampled]
