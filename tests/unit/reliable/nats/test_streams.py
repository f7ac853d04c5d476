"""Opening a stream, by what the cluster answers: what passes is asked again, the rest is said.

A cluster says for moments only that a node is offline, while that node restarts; so its answers
are given here one by one. tests/replicated restarts real nodes.
"""

import asyncio
from typing import Any, cast

import pytest

from partita.errors import QuorumLostError
from partita.reliable.nats.api import (
    NAME_IN_USE,
    NO_PEERS,
    STREAM_NOT_FOUND,
    Api,
    Failed,
    Failure,
    StreamAnswer,
)
from partita.reliable.nats.streams import file_settings, open_stream
from partita.simulation.loop import run

OFFLINE = Failure(err_code=NO_PEERS, description="no suitable peers for placement, peer offline")
TOO_FEW = Failure(err_code=NO_PEERS, description="no suitable peers for placement")
TAKEN = Failure(err_code=NAME_IN_USE, description="stream name already in use")
SILENCE = Failure(description="no answer at all")
MISSING = Failure(err_code=STREAM_NOT_FOUND, description="stream not found")


class Answers:
    """A cluster that has no such stream and answers its creation as it is told, the last again."""

    def __init__(self, *failures: Failure | None) -> None:
        self.failures = list(failures)
        self.creations = 0

    async def call(self, verb: str, asked: Any, _type: Any, _timeout: float) -> StreamAnswer:
        if verb.startswith("STREAM.INFO."):
            raise Failed(MISSING)
        failure = self.failures[min(self.creations, len(self.failures) - 1)]
        self.creations += 1
        if failure is SILENCE:
            await asyncio.sleep(3600)
        if failure is not None:
            raise Failed(failure)
        return StreamAnswer(config=asked)


def open_with(answers: Answers) -> float:
    """Open a stream within ten seconds of a simulated loop; return how many of them it took."""
    settings = file_settings("S", ["s.>"])
    api = cast("Api", answers)
    opening = open_stream(api, "files", "p", settings, replicas=3, timeout=10.0)
    return run(opening, seed=0).seconds


@pytest.mark.parametrize("failure", [OFFLINE, TAKEN])
def test_what_passes_is_asked_again(failure: Failure) -> None:
    answers = Answers(failure, failure, None)

    assert open_with(answers) < 1
    assert answers.creations == 3


def test_a_node_that_stays_offline_is_said_at_the_end() -> None:
    answers = Answers(OFFLINE)

    with pytest.raises(QuorumLostError) as caught:
        open_with(answers)
    assert caught.value.code == "TooFewNodes"
    assert answers.creations > 50


def test_a_cluster_that_falls_silent_is_told_by_what_it_said_last() -> None:
    answers = Answers(OFFLINE, SILENCE)

    with pytest.raises(QuorumLostError) as caught:
        open_with(answers)
    assert caught.value.code == "TooFewNodes"
    assert answers.creations == 2


def test_a_cluster_that_is_silent_from_the_start_is_told_as_such() -> None:
    with pytest.raises(QuorumLostError) as caught:
        open_with(Answers(SILENCE))
    assert caught.value.code == "QuorumLost"


def test_a_cluster_that_is_too_small_is_said_at_once() -> None:
    answers = Answers(TOO_FEW)

    with pytest.raises(QuorumLostError) as caught:
        open_with(answers)
    assert caught.value.code == "TooFewNodes"
    assert answers.creations == 1
