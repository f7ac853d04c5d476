"""Services that do not sort, and writes whose answer is lost."""

from types import SimpleNamespace
from typing import Any

import pytest

from partita.errors import PartitaError, UnavailableError
from partita.patterns import ETagMismatchError, evolve
from partita.patterns.operations import verbs
from partita.patterns.ports.sdk_calls import metered
from partita.patterns.ports.sdk_port_sync import MeteredTransport
from partita.patterns.protocol.calls import Cost, WriteRows
from partita.patterns.types.decorators import entity_type
from support.entities import ScoreV2, Todo, Wide
from support.fake_world import FakeWorld
from support.simulated import begin

WIDE, TODO, SCORE = entity_type(Wide), entity_type(Todo), entity_type(ScoreV2)


def test_a_wide_entity_is_read_whole_from_a_service_that_does_not_sort() -> None:
    for seed in range(20):
        world = FakeWorld(seed=seed, is_ordered=False)
        context = begin(world, models=(WIDE,))
        minutes = dict.fromkeys(range(0, 3000, 11), 1)
        world.run(verbs.save(context, WIDE, Wide(site="s", id=1, minutes=minutes, name="a")))

        loaded = world.run(verbs.get(context, WIDE, {"site": "s", "id": 1}))

        assert loaded.minutes == minutes
        world.run(verbs.save(context, WIDE, evolve(loaded, minutes={5: 5})))
        world.run(verbs.delete_key(context, WIDE, WIDE.key({"site": "s", "id": 1})))
        assert world.rows("wide") == [
            row for row in world.rows("wide") if row.key.partition[0] == "~"
        ]


@pytest.mark.parametrize("others", range(8))
@pytest.mark.parametrize("verb", ["increment", "update"])
def test_a_write_whose_answer_was_lost_is_not_made_twice(verb: str, others: int) -> None:
    """Others write in between: either it is seen that it was done, or it is in doubt."""
    world = FakeWorld()
    context = begin(world, models=(SCORE,))
    saved = world.run(verbs.save(context, SCORE, ScoreV2(game="g", id=1)))
    for _ in range(4):
        world.run(verbs.increment(context, SCORE, saved, verbs.Addition("total", None, 1)))
    key = SCORE.key({"game": "g", "id": 1})
    lost: list[Any] = []

    def refuse(call: Any) -> PartitaError | None:
        if not isinstance(call, WriteRows) or lost:
            return None
        lost.append(call)
        world.perform(call)  # the answer is lost, and the client asks again after the others
        for _ in range(others):
            world.run(verbs.increment(context, SCORE, saved, verbs.Addition("total", None, 1)))
        return ETagMismatchError("UpdateConditionNotSatisfied", "No.", facts={"answer_lost": True})

    world.refuse = refuse
    told: Any = None
    try:
        if verb == "increment":
            world.run(verbs.increment(context, SCORE, saved, verbs.Addition("total", None, 1)))
        else:
            world.run(
                verbs.update(context, SCORE, key, lambda old: evolve(old, total=old.total + 1))
            )
    except UnavailableError as error:
        told = error.code

    stored = world.run(verbs.get(context, SCORE, {"game": "g", "id": 1}))
    assert stored.total == 4 + 1 + others, told
    assert told in (None, "WriteInDoubt")


@pytest.mark.parametrize("status", [500, 502, 504])
def test_a_repeated_request_that_timed_out_in_the_service_is_in_doubt(status: int) -> None:
    class Answering:
        def __init__(self) -> None:
            self.statuses = [status, 409]

        def send(self, _request: Any, **_options: Any) -> Any:
            return SimpleNamespace(status_code=self.statuses.pop(0))

    transport = MeteredTransport(Answering(), is_whole=False)  # type: ignore[arg-type]
    with metered(Cost()) as meter:
        transport.send(None)
        transport.send(None)

    assert meter.is_in_doubt
