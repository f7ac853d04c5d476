"""Outbox entries that name work which the program does not know."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest

from partita.errors import PartitaError
from partita.patterns import CountOf, entity, view
from partita.patterns.following import worker
from partita.patterns.following.worker import Report
from partita.patterns.operations import verbs
from partita.patterns.operations.groups import Collected
from partita.patterns.protocol.calls import Call, Steps, WriteRows
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.writing.context import Context
from partita.patterns.writing.outbox_entry import names_in, read_entry
from support.fake_world import FakeWorld
from support.simulated import begin, drain, outbox_rows


class Post:
    """A version of a program that knows some of the views of its letters."""

    def __init__(self, *views: str) -> None:
        self.seen: dict[str, list[int]] = {name: [] for name in views}

        @entity(table="letters", partition="{town}", row="{id:04d}")
        class Letter:
            town: str
            id: int

        self.letter = Letter
        for name in views:
            view(Letter, name=name)(self._watch(name))

    def _watch(self, name: str) -> Callable[[Any, Any, Any], None]:
        def watch(_db: Any, key: Any, _letter: Any) -> None:
            self.seen[name].append(key["id"])

        return watch

    @property
    def model(self) -> EntityType[Any]:
        return entity_type(self.letter)

    def begin(self, world: FakeWorld) -> Context:
        return begin(world, models=(self.model,))

    def send(self, world: FakeWorld, number: int) -> None:
        group = Collected(self.begin(world), self.model, "t")
        group.save(self.letter(town="t", id=number))
        world.run(group.commit())


def named(world: FakeWorld) -> set[str]:
    return {
        name
        for table, key in outbox_rows(world)
        for name in names_in(read_entry(world.tables[table][key]))
    }


def before_writing(steps: Steps[Any], act: Callable[[], object]) -> Steps[Any]:
    """Let something happen just before the first write of some steps."""
    is_due, answer = True, None
    try:
        call: Call[Any] = next(steps)
        while True:
            if is_due and isinstance(call, WriteRows):
                is_due = False
                act()
            try:
                answer = yield call
            except PartitaError as error:
                call = steps.throw(error)
            else:
                call = steps.send(answer)
    except StopIteration as end:
        return end.value


def test_what_is_forgotten_goes_though_a_worker_cuts_the_entry_down_meanwhile() -> None:
    world, new, old = FakeWorld(), Post("kept", "gone"), Post("kept")
    new.send(world, 1)
    context = old.begin(world)

    def cut_down() -> None:
        world.run(worker.work(old.begin(world), "partita-outbox", Report()))
        assert named(world) == {"type:Letter", "view:Letter@gone"}

    forgetting = worker.forget(context, ["view:Letter@gone"])
    count = world.run(before_writing(forgetting, cut_down))

    assert (count, outbox_rows(world)) == (1, [])
    assert old.seen == {"kept": [1]}


def test_what_a_newer_worker_has_done_meanwhile_was_not_forgotten() -> None:
    world, new, old = FakeWorld(), Post("kept", "gone"), Post("kept")
    new.send(world, 1)
    forgetting = worker.forget(old.begin(world), ["view:Letter@gone"])

    count = world.run(before_writing(forgetting, lambda: drain(world, new.begin(world))))

    assert (count, outbox_rows(world)) == (0, [])
    assert new.seen == {"kept": [1], "gone": [1]}


@pytest.mark.parametrize("seed", range(30))
def test_workers_of_programs_that_know_different_halves_do_all_of_it_between_them(
    seed: int,
) -> None:
    world = FakeWorld(seed=seed)
    whole, left, right = Post("a", "b"), Post("a"), Post("b")
    for number in range(3):
        whole.send(world, number)
    halves = (left.begin(world), right.begin(world))

    for _ in range(6):
        world.clock.advance(61)
        world.run_all(*(worker.sweep(context, Report()) for context in halves))

    assert outbox_rows(world) == []
    assert (set(left.seen["a"]), set(right.seen["b"])) == ({0, 1, 2}, {0, 1, 2})


def test_an_owner_that_was_declared_after_its_source_was_in_use_is_known() -> None:
    @entity(table="guests", partition="{inn}", row="{id:04d}")
    class Guest:
        inn: str
        id: int

    world = FakeWorld()
    context = begin(world, models=(entity_type(Guest),))

    @entity(table="guests", partition="{inn}", row="inn")
    class Inn:
        inn: str
        guests: Annotated[int, CountOf(Guest, where={"inn": "inn"})] = 0

    @entity(table="guests", partition="all", row="{inn}")
    class Listed:
        inn: str
        guests: Annotated[int, CountOf(Guest, where={"inn": "inn"})] = 0

    world.run(verbs.save(context, entity_type(Guest), Guest(inn="i", id=1)))

    assert drain(world, context).left == 0
    assert outbox_rows(world) == []
