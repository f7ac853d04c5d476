"""Rebuild, verify and repair work on the entities of a page side by side.

However the steps of a page interleave, and wherever they are stopped: what is stored as done is
done, those that share an index entity or a counter do not lose each other, every request is one
that is needed, and progress is told of one after the other.
"""

import json
import random
from functools import cache
from typing import Any

import pytest

from partita.patterns import evolve, list_index
from partita.patterns import sync as synchronous
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following.index_lifecycle import Drift
from partita.patterns.following.progress_counter import ProgressCounter
from partita.patterns.operations import verbs
from partita.patterns.protocol.calls import Call, GetBlob, GetRow, PutBlob, QueryRows, WriteRows
from partita.patterns.protocol.values import Row, Value
from partita.patterns.types.decorators import entity
from partita.patterns.types.indexes import AnyIndex
from partita.patterns.writing.context import Context
from partita.service.hosting.in_process import LocalAccount
from support.fake_world import Crashed, FakeWorld, Fault
from support.repeats import repeat
from support.simulated import (
    MODELS,
    PERSON,
    Person,
    StallingWorld,
    anywhere,
    begin,
    by_city,
    by_email,
    by_last,
    by_last_anywhere,
    check_settled,
    company,
    drain,
    fork,
    ignore,
    in_city,
    in_city_blob,
    recover,
    rows_of,
)

pytestmark = pytest.mark.timeout(300)
INDEXES = {
    each.name: each
    for each in (by_email, anywhere, by_last, by_city, by_last_anywhere, in_city, in_city_blob)
}
every_index = pytest.mark.parametrize("name", INDEXES)
PEOPLE = 13
"""Three of the beginning, and ten who share the city and the name of one of them."""


@cache
def crowd() -> FakeWorld:
    world = company()
    context = begin(world)
    for number in range(10, 20):
        dept = "Sales" if number % 2 else "Legal"
        person = Person(dept=dept, id=number, last="Cao", email=f"{number}@x", city="Rome")
        world.run(verbs.save(context, PERSON, person))
    drain(world, context)
    check_settled(world, context, "the crowd")
    return world


def empty(world: FakeWorld, made: AnyIndex) -> None:
    """Remove the rows of an index behind its back."""
    for row in rows_of(world, made.table, f"Person@{made.name}"):
        del world.tables[made.table][row.key]
    if made is in_city_blob:
        world.containers["partita-indexes"].clear()


def before(made: AnyIndex, seed: int | None = None) -> StallingWorld:
    """Return the crowd as it was before an index was declared."""
    world = StallingWorld(crowd(), seed)
    world.page_size = 6
    empty(world, made)
    del world.tables["people"][lifecycle.state_key(made)]
    return world


# ---------------------------------------------------------------------------------------------
# Rebuilding


@pytest.mark.repeated
@every_index
@pytest.mark.parametrize("parallel", [1, 3, 64])
def test_entities_of_a_page_that_share_a_follower_are_all_brought_in(
    name: str, parallel: int
) -> None:
    for seed in range(repeat(2, 8, 8)):
        world = before(INDEXES[name], seed)
        context = begin(world, parallel=parallel)
        done: list[int] = []

        world.run(lifecycle.rebuild(context, INDEXES[name], done.append))

        assert done == list(range(1, PEOPLE + 1))
        check_settled(world, context, f"seed {seed}")


@pytest.mark.repeated
@every_index
def test_a_rebuild_at_once_that_is_stopped_anywhere_goes_on_and_misses_nobody(name: str) -> None:
    made = INDEXES[name]
    whole = before(made, 0)
    context, calls = begin(whole), whole.attempts
    whole.run(lifecycle.rebuild(context, made, ignore))

    for number in range(1, whole.attempts - calls + 1, repeat(11, 2, 2)):
        world = before(made, number)
        context = begin(world)
        world.fail(number, Fault.CRASH_AFTER)
        with pytest.raises(Crashed):
            world.run(lifecycle.rebuild(context, made, ignore))
        context = recover(world)
        world.run(lifecycle.rebuild(context, made, ignore))
        drain(world, context)

        check_settled(world, context, f"stopped at call {number}")


def test_progress_is_stored_behind_everything_that_is_done() -> None:
    checked: list[int] = []
    for seed in range(10):
        world = before(anywhere, seed)
        context = begin(world)
        people = sorted(row.key for row in rows_of(world, "people", "Person"))

        def look(call: Call[Any], world: FakeWorld = world, people: Any = people) -> None:
            if isinstance(call, WriteRows) and call.operations[0].row.key == STATE:
                stored = str(call.operations[0].row.properties["Progress"])
                done = json.loads(stored)["done"] if stored else 0
                there = rows_of(world, "peoplebyemail", "Person@anywhere")
                members = {(row.properties["_Partition"], row.properties["_Row"]) for row in there}
                assert {(key.partition, key.row) for key in people[:done]} <= members
                checked.append(done)

        world.before = look
        world.run(lifecycle.rebuild(context, anywhere, ignore))

    assert {6, 12} <= set(checked)


STATE = lifecycle.state_key(anywhere)


def test_an_error_of_one_entity_ends_the_rebuild_and_keeps_the_progress_before_its_page() -> None:
    world = before(anywhere, 3)
    context = begin(world)

    def stop(done: int) -> None:
        if done == 9:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        world.run(lifecycle.rebuild(context, anywhere, stop))

    stored = str(world.tables["people"][STATE].properties["Progress"])
    assert json.loads(stored)["done"] == 6
    done: list[int] = []
    world.run(lifecycle.rebuild(begin(world), anywhere, done.append))
    assert done == list(range(7, PEOPLE + 1))
    check_settled(world, context, "after all")


def test_a_rebuild_has_as_many_requests_under_way_as_the_database_allows() -> None:
    for parallel in (1, 4):
        world = before(anywhere)
        context = begin(world, parallel=parallel)
        world.latency = 1.0
        world.in_flight_max = 0

        world.run(lifecycle.rebuild(context, anywhere, ignore))

        assert world.in_flight_max == parallel


@pytest.mark.parametrize(
    ("made", "reads", "writes"),
    [
        # The entity, the row that is inserted, the entity again.
        (anywhere, 2, 1),
        (by_last_anywhere, 2, 1),
        # A look to know with whom it shares its list; the list, the entity, and that again.
        (in_city, 4, 1),
        (in_city_blob, 4, 1),
        (by_email, 2, 1),
        (by_last, 2, 1),
        (by_city, 3, 1),
    ],
    ids=lambda given: given.name if hasattr(given, "name") else None,
)
def test_a_rebuild_at_once_costs_the_same_few_requests_for_each_entity(
    made: AnyIndex, reads: int, writes: int
) -> None:
    for seed in (None, 1, 2):
        world = before(made, seed)
        context = begin(world, parallel=64)
        if made is in_city_blob:
            world.containers.setdefault("partita-indexes", {})
        world.history.clear()

        world.run(lifecycle.rebuild(context, made, ignore))

        pages = 3
        assert world.requests(QueryRows) == pages
        assert world.requests(GetRow) + world.requests(GetBlob) == 1 + PEOPLE * reads
        written = world.requests(WriteRows) + world.requests(PutBlob)
        assert written == 1 + pages + PEOPLE * writes


@pytest.mark.parametrize("made", [anywhere, by_last_anywhere], ids=["copies", "members"])
def test_a_rebuild_over_rows_that_are_there_already_leaves_them_or_puts_them_right(
    made: AnyIndex,
) -> None:
    world = StallingWorld(crowd(), 5)
    stale = rows_of(world, made.table, f"Person@{made.name}")[0]
    world.tables[made.table][stale.key] = Row(
        stale.key, stale.properties | {"_Row": "p_0099"}, stale.etag
    )
    context = begin(world)

    world.run(lifecycle.rebuild(context, made, ignore))

    check_settled(world, context, made.name)


def test_an_entity_that_changes_while_it_is_brought_in_leaves_no_row_behind() -> None:
    """The change is made between the look at the entity and the insert of what it said."""
    world = before(anywhere)
    context, writer = begin(world), begin(world)
    changed: list[Call[Any]] = []

    def change(call: Call[Any]) -> None:
        if isinstance(call, WriteRows) and call.table == "peoplebyemail" and not changed:
            changed.append(call)
            member = call.operations[0].row.properties
            dept, row = str(member["_Partition"]), str(member["_Row"])
            key = PERSON.key({"dept": dept, "id": int(row[2:])})
            world.run(verbs.update(writer, PERSON, key, lambda one: evolve(one, email="new@x")))
            drain(world, writer)

    world.before = change
    world.run(lifecycle.rebuild(context, anywhere, ignore))

    assert len(changed) == 1
    drain(world, context)
    check_settled(world, context, "after both")


# ---------------------------------------------------------------------------------------------
# Verifying and repairing


def spoil(world: FakeWorld) -> None:
    """Put everything wrong at once that can be."""
    for made in (anywhere, in_city, in_city_blob, by_city, by_last):
        empty(world, made)
    for row in rows_of(world, "people", "Person@by_email"):
        key = type(row.key)(row.key.partition, f"{row.key.row}-old")
        world.tables["people"][key] = Row(key, row.properties | {"_Row": "p_0099"}, row.etag)
    wrong: tuple[tuple[str, str, dict[str, Value]], ...] = (
        ("people", "Team", {"Headcount": 99, "InFavourite": 99, "LeadEmail": "?"}),
        ("offices", "Office", {"Desks": 99}),
        ("badges", "Badge", {"Email": "?"}),
    )
    for table, kind, properties in wrong:
        for row in rows_of(world, table, kind):
            spoilt: dict[str, Value] = {**row.properties, **properties}
            world.tables[table][row.key] = Row(row.key, spoilt, row.etag)


def verify_all(world: FakeWorld, context: Context) -> dict[str, list[Drift]]:
    return {model.name: world.run(lifecycle.verify(context, model, ignore)) for model in MODELS}


def repair_all(world: FakeWorld, context: Context, found: dict[str, list[Drift]]) -> None:
    for model in MODELS:
        world.run(lifecycle.repair(context, model, found[model.name], ignore))


def test_verify_at_once_says_the_same_in_the_same_order_as_one_by_one() -> None:
    said = []
    for parallel, seed in ((1, None), (8, 1), (8, 2), (64, 3)):
        world = StallingWorld(crowd(), seed)
        spoil(world)
        context = begin(world, parallel=parallel)

        said.append(verify_all(world, context))

    assert len(said[0]["Person"]) == PEOPLE * 6
    assert said[1:] == said[:1] * 3


def test_verify_asks_as_much_at_once_as_one_by_one() -> None:
    asked = []
    for parallel, seed in ((1, None), (8, 1)):
        world = StallingWorld(crowd(), seed)
        context = begin(world, parallel=parallel)
        world.history.clear()
        world.run(lifecycle.verify(context, PERSON, ignore))
        asked.append(world.requests())

    assert asked[0] == asked[1]


@pytest.mark.repeated
@pytest.mark.parametrize("parallel", [1, 8, 64])
def test_everything_that_is_wrong_is_put_right_in_one_repair(parallel: int) -> None:
    for seed in range(repeat(2, 6, 6)):
        world = StallingWorld(crowd(), seed)
        spoil(world)
        context = begin(world, parallel=parallel)
        found = verify_all(world, context)
        done: list[int] = []

        world.run(lifecycle.repair(context, PERSON, found["Person"], done.append))
        repair_all(world, context, found)
        drain(world, context)

        assert done == list(range(1, len(found["Person"]) + 1))
        check_settled(world, context, f"seed {seed}")


@pytest.mark.repeated
def test_a_repair_of_everything_that_is_stopped_anywhere_does_no_harm() -> None:
    first = fork(crowd())
    spoil(first)
    context = begin(first)
    found = verify_all(first, context)
    before_it = first.attempts
    repair_all(first, context, found)
    chance = random.Random(7)

    for seed, number in enumerate(
        chance.sample(range(1, first.attempts - before_it), repeat(8, 40, 40))
    ):
        world = StallingWorld(crowd(), seed)
        spoil(world)
        context = begin(world)
        world.fail(number, Fault.CRASH_AFTER)
        with pytest.raises(Crashed):
            repair_all(world, context, found)
        context = recover(world)
        repair_all(world, context, verify_all(world, context))
        drain(world, context)

        check_settled(world, context, f"seed {seed}, stopped at call {number}")


def test_lists_that_name_the_same_strangers_are_put_right_together() -> None:
    """Two lists of one index with the same member too many, who belongs into a third."""
    for seed in range(10):
        world = StallingWorld(crowd(), seed)
        lists = rows_of(world, "peopleincity", "Person@in_city")
        rome = next(row for row in lists if row.key.partition == "Rome")
        for city in ("Oslo", "Paris", "Bonn", "Kiev"):
            key = type(rome.key)(city, "all")
            world.tables["peopleincity"][key] = Row(key, rome.properties, rome.etag)
        del world.tables["peopleincity"][rome.key]
        context = begin(world, parallel=64)

        world.run(
            lifecycle.repair(
                context, PERSON, world.run(lifecycle.verify(context, PERSON, ignore)), ignore
            )
        )

        check_settled(world, context, f"seed {seed}")


# ---------------------------------------------------------------------------------------------
# Threads, and a real account


@entity(table="coins", partition="{mint}", row="coin_{number:04d}", name="Coin")
class OldCoin:
    mint: str
    number: int
    metal: str


@entity(table="coins", partition="{mint}", row="coin_{number:04d}", name="Coin")
class Coin:
    mint: str
    number: int
    metal: str


of_metal = list_index(Coin, table="coinsofmetal", partition="{metal}", row="all", store="table")


def test_threads_count_together_and_their_costs_are_summed(partita_account: LocalAccount) -> None:
    with synchronous.connect(partita_account) as db:
        coins = db.table(OldCoin)
        db.create_tables()
        coins.save_all(
            [
                OldCoin(mint=f"m{number % 3}", number=number, metal=("tin", "zinc")[number % 2])
                for number in range(60)
            ]
        )
    with synchronous.connect(partita_account, parallel=8) as db:
        db.table(Coin)
        db.create_tables()
        done: list[int] = []

        with db.measuring() as cost:
            assert db.rebuild(of_metal, progress=done.append) == 60

        assert done == list(range(1, 61))
        assert cost.requests == 60 * 5 + 1 + 1 + 2
        assert db.verify(Coin) == []
        found = db.table(Coin).via(of_metal).range(metal="tin").list()
        assert len(found) == 30
        assert db.disable(of_metal, progress=done.append) == 2
        assert done[60:] == [1, 2]


def test_a_tally_tells_one_number_at_a_time() -> None:
    told: list[int] = []
    tally = ProgressCounter(told.append, 4)

    tally.add()
    tally.add(3)

    assert told == [5, 8]
    assert tally.done == 8
