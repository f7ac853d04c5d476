"""Opening a stream, by what the cluster answers: what passes is asked again, the rest is said.

A cluster says for moments only that a node is offline, while that node restarts; so its answers
are given here one by one. tests/replicated restarts real nodes.
"""

from typing import Any, cast

import pytest

from partita.errors import QuorumLostError
from partita.reliable.nats_api import (
    NAME_IN_USE,
    NO_PEERS,
    STREAM_NOT_FOUND,
    Api,
    Failed,
    Failure,
    StreamAnswer,
)
from partita.reliable.nats_streams import file_settings, open_stream

OFFLINE = Failure(err_code=NO_PEERS, description="no suitable peers for placement, peer offline")
TOO_FEW = Failure(err_code=NO_PEERS, description="no suitable peers for placement")
TAKEN = Failure(err_code=NAME_IN_USE, description="stream name already in use")
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
        if failure is not None:
            raise Failed(failure)
        return StreamAnswer(config=asked)


async def open_with(answers: Answers, timeout: float) -> None:
    settings = file_settings("S", ["s.>"])
    await open_stream(cast("Api", answers), "files", "p", settings, replicas=3, timeout=timeout)


@pytest.mark.parametrize("failure", [OFFLINE, TAKEN])
async def test_what_passes_is_asked_again(failure: Failure) -> None:
    answers = Answers(failure, failure, None)
    await open_with(answers, timeout=10.0)
    assert answers.creations == 3


async def test_a_node_that_stays_offline_is_said_at_the_end() -> None:
    answers = Answers(OFFLINE)
    with pytest.raises(QuorumLostError) as caught:
        await open_with(answers, timeout=0.7)
    assert caught.value.code == "TooFewNodes"
    assert answers.creations > 1


async def test_a_cluster_that_is_too_small_is_said_at_once() -> None:
    answers = Answers(TOO_FEW)
    with pytest.raises(QuorumLostError) as caught:
        await open_with(answers, timeout=10.0)
    assert caught.value.code == "TooFewNodes"
    assert answers.creations == 1
