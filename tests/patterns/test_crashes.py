"""Every operation of several steps, stopped after each of its calls.

Afterwards another process comes, drains and sweeps. What is one group must have happened wholly
or not at all; what was acknowledged is there; everything that follows agrees with the entities;
blobs that nobody names are collected, those that are named are there. The same is asked of
answers that are lost, and of requests that the client library sends twice.
"""

import contextlib
from collections.abc import Callable
from dataclasses import field
from functools import cache
from typing import Annotated, Any

import pytest

from partita.errors import ConflictError, EntityNotFoundError, PartitaError, UnavailableError
from partita.patterns import Encrypted, InBlob, Keyring, Series, connect, entity, evolve, index
from partita.patterns.encryption.keyring import AesKey
from partita.patterns.faults import Faults
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following import rotate_keys as rotating
from partita.patterns.operations import bulk, verbs
from partita.patterns.operations.groups import Collected
from partita.patterns.protocol.calls import PutBlob, Steps, WriteRows
from partita.patterns.types.decorators import entity_type
from partita.patterns.writing import write as changes
from partita.patterns.writing.context import Context
from partita.service.hosting.in_process import LocalAccount
from support.fake_world import Crashed, FakeWorld, Fault
from support.repeats import IS_SOAK, repeat
from support.simulated import (
    CONTAINER,
    PERSON,
    TEAM,
    Facts,
    Person,
    Team,
    begin,
    check_blobs,
    check_settled,
    company,
    drain,
    each_stop,
    fork,
    ignore,
    load,
    people,
    recover,
)

SECOND_CRASHES = repeat(range(1, 200, 67), range(1, 200, 17), range(1, 200))
pytestmark = pytest.mark.timeout(1200 if IS_SOAK else 300)


# ---------------------------------------------------------------------------------------------
# The operations


def insert(world: FakeWorld, context: Context) -> object:
    new = Person(dept="Sales", id=3, last="Roth", email="ann@x", city="Oslo", photo=b"ann")
    return world.run(verbs.save(context, PERSON, new))


def rename(world: FakeWorld, context: Context) -> object:
    jun = load(world, context, "Sales", 1)
    changed = evolve(jun, last="Li", email="jun@y", city="Oslo", photo=b"jun, older")
    return world.run(verbs.save(context, PERSON, changed))


def patch(world: FakeWorld, context: Context) -> object:
    ken = load(world, context, "Sales", 2)
    return world.run(verbs.patch(context, PERSON, ken, {"city": "Rome", "photo": b"ken"}))


def upsert(world: FakeWorld, context: Context) -> object:
    dan = Person(dept="Legal", id=1, last="Li", email="dan@y", city="Lima", photo=b"dan 2")
    return world.run(verbs.upsert(context, PERSON, dan))


def delete(world: FakeWorld, context: Context) -> object:
    jun = load(world, context, "Sales", 1)
    world.run(verbs.delete(context, PERSON, jun))
    return True


def delete_by_key(world: FakeWorld, context: Context) -> object:
    key = PERSON.key({"dept": "Sales", "id": 1})
    return world.run(verbs.delete_key(context, PERSON, key))


def move_within(world: FakeWorld, context: Context) -> object:
    jun = load(world, context, "Sales", 1)
    return world.run(verbs.move(context, PERSON, jun, {"id": 9}))


def move_across(world: FakeWorld, context: Context) -> object:
    jun = load(world, context, "Sales", 1)
    return world.run(verbs.move(context, PERSON, jun, {"dept": "Legal", "id": 7}))


def group(world: FakeWorld, context: Context) -> object:
    """Swap the addresses of two, hire a third and dismiss nobody, all in one group."""
    jun, ken = load(world, context, "Sales", 1), load(world, context, "Sales", 2)
    collected = Collected(context, PERSON, "Sales")
    collected.save(evolve(jun, email="ken@x", photo=None))
    collected.save(evolve(ken, email="jun@x", city="Lima"))
    collected.save(Person(dept="Sales", id=4, last="Cao", email="eve@x", photo=b"eve"))
    collected.remove(PERSON, PERSON.key({"dept": "Sales", "id": 5}))
    return world.run(collected.commit())


def after(change: Callable[[Facts], None]) -> Callable[[Facts], Facts]:
    def changed(facts: Facts) -> Facts:
        copied = {key: dict(fields) for key, fields in facts.items()}
        change(copied)
        return copied

    return changed


def person(last: str, email: str, city: str, photo: bytes | None) -> dict[str, Any]:
    return {"last": last, "email": email, "city": city, "photo": photo}


def inserted(facts: Facts) -> None:
    facts["Sales", 3] = person("Roth", "ann@x", "Oslo", b"ann")


def renamed(facts: Facts) -> None:
    facts["Sales", 1] = person("Li", "jun@y", "Oslo", b"jun, older")


def patched(facts: Facts) -> None:
    facts["Sales", 2] |= {"city": "Rome", "photo": b"ken"}


def upserted(facts: Facts) -> None:
    facts["Legal", 1] = person("Li", "dan@y", "Lima", b"dan 2")


def deleted(facts: Facts) -> None:
    del facts["Sales", 1]


def moved_within(facts: Facts) -> None:
    facts["Sales", 9] = facts.pop(("Sales", 1))


def moved_across(facts: Facts) -> None:
    facts["Legal", 7] = facts.pop(("Sales", 1))


def grouped(facts: Facts) -> None:
    facts["Sales", 1] |= {"email": "ken@x", "photo": None}
    facts["Sales", 2] |= {"email": "jun@x", "city": "Lima"}
    facts["Sales", 4] = person("Cao", "eve@x", "Rome", b"eve")


OPERATIONS: dict[str, tuple[Callable[[FakeWorld, Context], object], Callable[[Facts], None]]] = {
    "insert": (insert, inserted),
    "rename": (rename, renamed),
    "patch": (patch, patched),
    "upsert": (upsert, upserted),
    "delete": (delete, deleted),
    "delete by key": (delete_by_key, deleted),
    "move within": (move_within, moved_within),
    "move across": (move_across, moved_across),
    "group": (group, grouped),
}
named = pytest.mark.parametrize("name", OPERATIONS)


@cache
def beginning() -> tuple[FakeWorld, Facts]:
    world = company()
    return world, people(world)


# ---------------------------------------------------------------------------------------------
# Crashes


@named
def test_a_crash_after_any_call_leaves_all_of_it_or_nothing(name: str) -> None:
    operation, change = OPERATIONS[name]
    base, before = beginning()
    wanted = after(change)(before)
    outcomes = set()

    for world, outcome, told in each_stop(base, operation):
        assert isinstance(outcome, Crashed), told
        context = recover(world)
        found = people(world)
        assert found in (before, wanted), told
        outcomes.add(found == wanted)
        check_settled(world, context, told)
        check_blobs(world, context, told)

    assert outcomes == {True, False}


@pytest.mark.repeated
@named
def test_a_crash_of_the_recovery_too_changes_nothing_of_that(name: str) -> None:
    operation, change = OPERATIONS[name]
    base, before = beginning()
    wanted = after(change)(before)

    for world, _, told in each_stop(base, operation):
        for second in SECOND_CRASHES:
            again = fork(world)
            context = begin(again)
            again.fail(second, Fault.CRASH_AFTER)
            try:
                drain(again, context)
            except Crashed:
                pass
            else:
                break
            context = recover(again)
            assert people(again) in (before, wanted), told
            check_settled(again, context, f"{told}, then at call {second} of the recovery")


@named
def test_what_was_acknowledged_is_there(name: str) -> None:
    operation, change = OPERATIONS[name]
    base, before = beginning()
    world = fork(base)

    operation(world, begin(world))

    assert people(world) == after(change)(before)
    context = recover(world)
    assert people(world) == after(change)(before)
    check_settled(world, context, name)
    check_blobs(world, context, name)


# ---------------------------------------------------------------------------------------------
# Lost answers


@named
@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.LOST, Fault.REPEATED])
def test_an_answer_says_what_happened_whatever_was_lost(name: str, fault: Fault) -> None:
    operation, change = OPERATIONS[name]
    base, before = beginning()
    wanted = after(change)(before)

    for world, outcome, told in each_stop(base, operation, (fault,)):
        assert not isinstance(outcome, Exception) or isinstance(outcome, PartitaError), told
        context = recover(world)
        found = people(world)
        if isinstance(outcome, ConflictError):
            assert found == before, f"{told}: refused, and yet done: {outcome}"
        elif isinstance(outcome, UnavailableError):
            assert found in (before, wanted), told
        else:
            assert found == wanted, told
        check_settled(world, context, told)
        check_blobs(world, context, told)


def is_group(call: object) -> bool:
    return isinstance(call, WriteRows)


@pytest.mark.parametrize("fault", [Fault.LOST, Fault.REPEATED])
def test_an_entity_whose_answer_was_lost_can_be_saved_again(fault: Fault) -> None:
    world = fork(beginning()[0])
    context = begin(world)
    world.fail_when(is_group, fault)
    new = Person(dept="Sales", id=3, last="Li", email="ann@x")

    saved = world.run(verbs.save(context, PERSON, new))
    again = world.run(verbs.save(context, PERSON, evolve(saved, city="Lima")))

    assert again.city == people(world)["Sales", 3]["city"] == "Lima"


def test_a_save_that_another_one_followed_at_once_is_still_recognised() -> None:
    world = fork(beginning()[0])
    context, other = begin(world), begin(world)
    jun = load(world, context, "Sales", 1)

    def rename_jun(_: object) -> None:
        seen = load(world, other, "Sales", 1)
        world.run(verbs.save(other, PERSON, evolve(seen, last="Li")))

    world.between = rename_jun
    world.fail_when(is_group, Fault.REPEATED)
    saved = world.run(verbs.save(context, PERSON, evolve(jun, city="Lima")))

    assert people(world)["Sales", 1] == person("Li", "jun@x", "Lima", b"jun")
    with pytest.raises(ConflictError, match="UpdateConditionNotSatisfied"):
        world.run(verbs.save(context, PERSON, evolve(saved, city="Oslo")))


def test_a_counter_that_changed_behind_a_lost_answer_is_not_written_over() -> None:
    world = fork(beginning()[0])
    context, other = begin(world), begin(world)
    sales = world.run(verbs.get(context, TEAM, {"name": "Sales"}))

    def hire(_: object) -> None:
        new = Person(dept="Sales", id=3, last="Li", email="ann@x")
        world.run(verbs.save(other, PERSON, new))

    world.between = hire
    world.fail_when(is_group, Fault.REPEATED)
    saved = world.run(verbs.save(context, TEAM, evolve(sales, lead_id=2)))
    with pytest.raises(ConflictError):
        world.run(verbs.save(context, TEAM, evolve(saved, lead_id=1)))

    context = recover(world)
    check_settled(world, context, "after the hire")
    assert world.run(verbs.get(context, TEAM, {"name": "Sales"})).headcount == 3


def test_an_insert_of_the_same_values_by_another_is_refused_all_the_same() -> None:
    world = fork(beginning()[0])
    context, other = begin(world), begin(world)
    world.run(verbs.save(other, TEAM, Team(name="Research")))

    with pytest.raises(ConflictError, match="EntityAlreadyExists"):
        world.run(verbs.save(context, TEAM, Team(name="Research")))


@entity(table="hits", partition="{site}", row="hits")
class Hits:
    site: str
    total: int = 0
    hours: Annotated[dict[int, int], Series("h{:02d}", slots=24)] = field(default_factory=dict)


HITS = entity_type(Hits)


def hits_world() -> tuple[FakeWorld, Context, Hits]:
    world = FakeWorld()
    context = begin(world, models=(HITS,))
    saved: Hits = world.run(verbs.save(context, HITS, Hits(site="x")))
    return world, context, saved


@pytest.mark.parametrize(("name", "slot"), [("total", None), ("hours", 7)])
@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.LOST, Fault.REPEATED])
def test_an_increment_is_never_doubled(fault: Fault, name: str, slot: int | None) -> None:
    world, context, hits = hits_world()
    done = 0
    for call in range(1, 8):
        world.fail(call % 2 + 1, fault)
        try:
            world.run(verbs.increment(context, HITS, hits, verbs.Addition(name, slot, 1)))
        except UnavailableError:
            assert fault is not Fault.LOST or call % 2 == 0  # only a lost read says nothing
        else:
            done += 1
        world.restart()

    stored = world.run(verbs.get(context, HITS, {"site": "x"}))
    assert (stored.total if slot is None else stored.hours.get(7, 0)) == done


def test_an_increment_that_others_followed_is_not_doubled() -> None:
    world, context, hits = hits_world()
    other = begin(world, models=(HITS,))

    def others(_: object) -> None:
        for _again in range(3):
            world.run(verbs.increment(other, HITS, hits, verbs.Addition("total", None, 10)))

    world.between = others
    world.fail_when(is_group, Fault.REPEATED)
    world.run(verbs.increment(context, HITS, hits, verbs.Addition("total", None, 1)))

    assert world.run(verbs.get(context, HITS, {"site": "x"})).total == 31


def test_increments_are_doubled_if_writes_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The sibling of the test above, with the rule broken: it must be caught."""
    monkeypatch.setattr(verbs, "is_noted", lambda *_: False)

    with pytest.raises(AssertionError):
        test_an_increment_that_others_followed_is_not_doubled()


def test_a_lost_answer_that_nobody_looks_into_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sibling of the tests above, with the rule broken."""

    def no(*_: object) -> Steps[bool]:
        yield from ()
        return False

    monkeypatch.setattr(changes, "_is_applied", no)

    with pytest.raises(AssertionError, match="refused, and yet done"):
        test_an_answer_says_what_happened_whatever_was_lost("insert", Fault.REPEATED)


# ---------------------------------------------------------------------------------------------
# Many entities, blobs, keys


def save_many(world: FakeWorld, context: Context) -> bulk.BulkOutcome:
    jun = load(world, context, "Sales", 1)
    entities = [
        evolve(jun, city="Lima", photo=b"jun in Lima"),
        Person(dept="Sales", id=6, last="Cao", email="f@x"),
        Person(dept="Legal", id=6, last="Roth", email="g@x", photo=b"g"),
    ]
    steps = bulk.write_all(
        context, PERSON, entities, "save", rate=None, concurrency=2, progress=ignore
    )
    return world.run(steps)


def saved_sales(facts: Facts) -> None:
    facts["Sales", 1] |= {"city": "Lima", "photo": b"jun in Lima"}
    facts["Sales", 6] = person("Cao", "f@x", "Rome", None)


def saved_legal(facts: Facts) -> None:
    facts["Legal", 6] = person("Roth", "g@x", "Rome", b"g")


def test_of_many_entities_each_group_is_there_or_not() -> None:
    base, before = beginning()
    sales, legal = after(saved_sales)(before), after(saved_legal)(before)
    both = after(saved_legal)(sales)
    seen = []

    for world, _, told in each_stop(base, save_many):
        context = recover(world)
        found = people(world)
        assert found in (before, sales, legal, both), told
        seen.append(found)
        check_settled(world, context, told)
        check_blobs(world, context, told)

    assert before in seen
    assert both in seen


@pytest.mark.parametrize("fault", [Fault.BUSY, Fault.LOST, Fault.REPEATED])
def test_of_many_entities_the_outcome_names_those_that_are_there(fault: Fault) -> None:
    base, before = beginning()

    for world, outcome, told in each_stop(base, save_many, (fault,)):
        context = recover(world)
        found = people(world)
        if isinstance(outcome, bulk.BulkOutcome):
            written = {(each.dept, each.id) for each in outcome.entities}
            changed = {key for key in found if found[key] != before.get(key)}
            assert written <= changed, told
            for failure in outcome.failures:
                is_refused = isinstance(failure.error, ConflictError)
                key = failure.entity.dept, failure.entity.id
                assert not is_refused or key not in changed, told
        check_settled(world, context, told)


def test_a_collection_of_blobs_that_is_stopped_has_removed_no_named_one() -> None:
    world = fork(beginning()[0])
    for number in range(3):
        metadata = {"table": "people", "partition": "Sales", "row": f"p_000{number}"}
        world.perform(PutBlob(CONTAINER, f"people/Sales/p_000{number}/Photo/x", b"?", metadata))
    world.clock.advance(7200)
    before = people(world)

    def collect(world: FakeWorld, context: Context) -> object:
        return world.run(lifecycle.collect_blobs(context, CONTAINER, ignore))

    for stopped, _, told in each_stop(world, collect):
        assert people(stopped) == before, told
        context = recover(stopped)
        check_blobs(stopped, context, told)


def test_a_blob_is_left_alone_while_its_writer_may_still_name_it() -> None:
    world = fork(beginning()[0])
    context, collector = begin(world), begin(world)
    new = Person(dept="Sales", id=3, last="Li", email="ann@x", photo=b"ann")

    def collect(call: object) -> None:
        if isinstance(call, WriteRows):
            world.before = None
            world.clock.advance(collector.options.blob_grace / 2)
            world.run(lifecycle.collect_blobs(collector, CONTAINER, ignore))

    world.before = collect
    world.run(verbs.save(context, PERSON, new))

    assert people(world)["Sales", 3]["photo"] == b"ann"


def test_a_collection_without_the_grace_takes_a_blob_from_its_writer() -> None:
    """The sibling of the test above, with the rule broken: it must be caught."""
    world = fork(beginning()[0])
    context, collector = begin(world), begin(world, blob_grace=-1.0)
    new = Person(dept="Sales", id=3, last="Li", email="ann@x", photo=b"ann")

    def collect(call: object) -> None:
        if isinstance(call, WriteRows):
            world.before = None
            world.run(lifecycle.collect_blobs(collector, CONTAINER, ignore))

    world.before = collect
    world.run(verbs.save(context, PERSON, new))

    with pytest.raises(KeyError):
        people(world)


@entity(table="vault", partition="{box}", row="{number:04d}")
class Secret:
    box: str
    number: int
    word: Annotated[str | None, Encrypted] = None


by_number = index(Secret, table="vaultbynumber", partition="{number:04d}", row="{box}")
SECRET = entity_type(Secret)
OLD, NEW = bytes(range(32)), bytes(range(1, 33))


def test_a_rotation_of_keys_that_is_stopped_leaves_everything_readable() -> None:
    world = FakeWorld()
    context = begin(world, models=(SECRET,), keyring=Keyring.from_bytes("old", OLD))
    for number in range(3):
        secret = Secret(box="a", number=number, word=f"word {number}")
        world.run(verbs.save(context, SECRET, secret))
    drain(world, context)

    def start(world: FakeWorld) -> Context:
        keyring = Keyring.from_bytes("new", NEW).add(AesKey("old", OLD))
        return begin(world, models=(SECRET,), keyring=keyring)

    def rotate(world: FakeWorld, context: Context) -> object:
        return world.run(rotating.rotate(context, SECRET, ignore))

    for stopped, _, told in each_stop(world, rotate, start=start):
        context = start(stopped)
        words = [
            stopped.run(verbs.get(context, SECRET, {"box": "a", "number": number})).word
            for number in range(3)
        ]
        assert words == ["word 0", "word 1", "word 2"], told
        rotate(stopped, context)
        assert rotate(stopped, context) == 0, told
        assert stopped.run(lifecycle.verify(context, SECRET, ignore)) == [], told


# ---------------------------------------------------------------------------------------------
# Once on a real account


@entity(table="parcels", partition="{town}", row="parcel_{number:04d}")
class Parcel:
    town: str
    number: int
    label: str
    picture: Annotated[bytes | None, InBlob] = None


by_label = index(Parcel, table="parcelsbylabel", partition="{label}", row="{number:04d}_{town}")


class Stopped(Exception):  # noqa: N818 - it is no error
    """The process ends here."""


async def test_a_save_that_is_stopped_at_any_request_is_there_whole_or_not_at_all(
    partita_account: LocalAccount, partita_faults: Faults
) -> None:
    async with connect(partita_account) as db:
        db.table(Parcel)
        await db.create_tables()
    outcomes = set()
    for number in range(1, 20):
        async with connect(partita_account) as db:
            parcels = db.table(Parcel)
            await db.create_tables()
            last = partita_faults.count + number

            def is_due(_: str, last: int = last) -> bool:
                return partita_faults.count > last

            partita_faults.fail_next(is_due, error=Stopped())
            parcel = Parcel(town="Oslo", number=number, label=f"x{number}", picture=b"?")
            is_acknowledged = False
            with contextlib.suppress(Stopped):
                await parcels.save(parcel)
                is_acknowledged = True
            partita_faults.stop()
        async with connect(partita_account) as db:
            parcels = db.table(Parcel)
            await db.create_tables()
            await db.drain()
            found = await parcels.get_or_none(town="Oslo", number=number)
            copies = await parcels.via(by_label).range(label=f"x{number}").list()
            assert (found is not None) or not is_acknowledged
            assert [each.number for each in copies] == ([] if found is None else [number])
            assert found is None or found.picture == b"?"
            assert await db.verify(Parcel) == []
            outcomes.add((found is not None, is_acknowledged))
        if is_acknowledged:
            break
    assert outcomes == {(False, False), (True, False), (True, True)}


async def test_an_answer_lost_after_commit_is_found_by_the_official_client_too(
    partita_account: LocalAccount, partita_faults: Faults
) -> None:
    async with connect(partita_account) as db:
        parcels = db.table(Parcel)
        await db.create_tables()
        partita_faults.lose_answers(1, match="$batch")

        saved = await parcels.save(Parcel(town="Oslo", number=1, label="x"))

        await parcels.save(evolve(saved, label="y"))
        await parcels.delete(await parcels.get(town="Oslo", number=1))
        await db.drain()
        assert await db.verify(Parcel) == []
        with pytest.raises(EntityNotFoundError):
            await parcels.get(town="Oslo", number=1)
