"""Moves between partitions while programs of two ages run: an older one leaves them to a newer.

The newer program declares everything that can follow an entity; an older one is the same program
without one of these declarations. Wherever a process of the newer program stops in a move, and
wherever the older worker stops after it, the stored rows are those of the newer program alone.
"""

import contextlib
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any

import msgspec
import pytest

from partita.errors import PartitaError, UnavailableError, UnknownTypeError
from partita.patterns import CountOf, entity, evolve, index, list_index, view
from partita.patterns.following import worker
from partita.patterns.following.moving import ADOPTED
from partita.patterns.following.worker import Report
from partita.patterns.operations import verbs
from partita.patterns.protocol.calls import Verb
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.types.row_layout import state_key
from partita.patterns.writing.context import Context
from partita.patterns.writing.outbox_entry import names_in, read_entry
from support.fake_world import Crashed, FakeWorld, Fault
from support.simulated import begin, drain, each_stop, fork, outbox_rows

FOLLOWERS = (
    "copy",
    "unique copy",
    "member rows",
    "index entity",
    "copy elsewhere",
    "members elsewhere",
    "view",
    "count here",
    "count elsewhere",
    "index of an owner",
    "version",
)


class Program:
    """One version of a program: guests of hotels, with the given followers."""

    def __init__(self, *followers: str) -> None:
        self._declare_guest(followers)
        guest = self.guest
        if "copy" in followers:
            index(guest, row="code_{code:esc}_{id:04d}", name="by_code")
        if "unique copy" in followers:
            index(guest, row="mail_{mail}", unique=True, name="by_mail")
        if "member rows" in followers:
            list_index(guest, row="room_{code}", name="in_room")
        if "index entity" in followers:
            list_index(guest, row="list_{code}", store="partition", name="listed")
        if "copy elsewhere" in followers:
            index(
                guest, table="mails", partition="{mail}", row="{hotel:esc}_{id:04d}", name="mails"
            )
        if "members elsewhere" in followers:
            list_index(guest, table="codes", partition="{code}", row="all", name="codes")
        if "view" in followers:

            @view(guest)
            def show(db: Any, key: Any, entity: Any) -> None:
                shown = db.world.tables.setdefault("shown", {})
                place = RowKey(key["hotel"], str(key["id"]))
                shown[place] = Row(place, {"IsThere": entity is not None})

        self.models = [entity_type(guest), *self._owners(guest, followers)]

    def _declare_guest(self, followers: tuple[str, ...]) -> None:
        if "version" not in followers:

            @entity(table="guests", partition="{hotel}", row="g_{id:04d}", name="Guest")
            class OldGuest:
                hotel: str
                id: int
                mail: str
                code: str = "c"

            self.guest: Any = OldGuest
            return

        @entity(table="guests", partition="{hotel}", row="g_{id:04d}", name="Guest", version=2)
        class NewGuest:
            hotel: str
            id: int
            mail: str
            code: str = "c"
            note: str = "late"

        self.guest = NewGuest

    def _owners(self, guest: Any, followers: tuple[str, ...]) -> list[EntityType[Any]]:
        owners: list[Any] = []
        if "count here" in followers:

            @entity(table="guests", partition="{hotel}", row="desk")
            class Desk:
                hotel: str
                guests: Annotated[int, CountOf(guest, where={"hotel": "hotel"})] = 0

            owners.append(Desk)
        if "count elsewhere" in followers:

            @entity(table="offices", partition="{hotel}", row="office")
            class Office:
                hotel: str
                guests: Annotated[int, CountOf(guest, where={"hotel": "hotel"})] = 0

            if "index of an owner" in followers:
                index(Office, row="full_{guests:03d}_{hotel:esc}", name="by_guests")
            owners.append(Office)
        return [entity_type(each) for each in owners]

    def begin(self, world: FakeWorld) -> Context:
        return begin(world, models=tuple(self.models))


NEW = Program(*FOLLOWERS)


@cache
def older_without(follower: str) -> Program:
    return Program(*(each for each in FOLLOWERS if each != follower))


@cache
def beginning() -> FakeWorld:
    world = FakeWorld()
    context = NEW.begin(world)
    for owner in NEW.models[1:]:
        for hotel in ("Astor", "Plaza"):
            world.run(verbs.save(context, owner, owner.cls(hotel=hotel)))
    guest = NEW.guest(hotel="Astor", id=1, mail="jun@x")
    world.run(verbs.save(context, NEW.models[0], guest))
    drain(world, context)
    return world


def move(world: FakeWorld, context: Context) -> Any:
    guests = NEW.models[0]
    guest = world.run(verbs.get(context, guests, {"hotel": "Astor", "id": 1}))
    return world.run(verbs.move(context, guests, guest, {"hotel": "Plaza", "id": 7}))


def stored(world: FakeWorld) -> dict[str, dict[tuple[str, str], dict[str, Any]]]:
    """Return everything that is stored, without what differs from write to write."""
    return {
        table: {
            (key.partition, key.row): {
                name: value
                for name, value in row.properties.items()
                if name not in ("_Write", "_Generation", "Generation", "Ticks", "Before")
            }
            for key, row in rows.items()
            if not key.row.startswith(("~g_", "~sw"))
        }
        for table, rows in world.tables.items()
    }


@cache
def at_target() -> dict[str, Any]:
    world = fork(beginning())
    context = NEW.begin(world)
    move(world, context)
    drain(world, context)
    return stored(world)


def work_to_the_end(world: FakeWorld, context: Context) -> None:
    """Do everything that a process can do, and leave the rest."""
    with contextlib.suppress(PartitaError):
        drain(world, context)


def later(world: FakeWorld, program: Program) -> Context:
    """Start a process of a program when the claims of earlier ones have ended."""
    world.restart()
    world.clock.advance(120)
    return program.begin(world)


def stops_of_a_move() -> Iterator[tuple[FakeWorld, str]]:
    """Stop the newer program after every write of a move."""
    for world, outcome, told in each_stop(beginning(), move, start=NEW.begin):
        assert isinstance(outcome, Crashed)
        if told.endswith("WriteRows"):
            yield world, told


def check_moved(world: FakeWorld, told: str) -> None:
    """Let the newer program finish; nothing may differ from what it does alone."""
    work_to_the_end(world, later(world, NEW))
    assert outbox_rows(world) == [], told
    assert stored(world) in (stored(beginning()), at_target()), told


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_an_older_worker_leaves_a_move_whose_followers_it_does_not_know(follower: str) -> None:
    for world, told in stops_of_a_move():
        work_to_the_end(world, later(world, older_without(follower)))
        check_moved(world, told)


@pytest.mark.proof
@pytest.mark.parametrize("follower", FOLLOWERS)
def test_an_older_worker_may_stop_anywhere_beside_a_move_of_a_newer_program(follower: str) -> None:
    older = older_without(follower)
    for base, told in stops_of_a_move():
        for world, _, also in each_stop(
            base, work_to_the_end, start=lambda world: later(world, older)
        ):
            check_moved(world, f"{told}, then {also}")


def started(world: FakeWorld) -> None:
    """Start a move in the newer program, and nothing more."""
    context = NEW.begin(world)
    world.fail_when(lambda call: len(getattr(call, "operations", ())) == 2, Fault.CRASH_AFTER)
    with pytest.raises(Crashed):
        move(world, context)


def test_the_entry_of_a_move_names_everything_that_follows_the_entity() -> None:
    world = fork(beginning())

    started(world)

    [(table, key)] = outbox_rows(world)
    assert names_in(read_entry(world.tables[table][key])) == {
        "type:Guest",
        "index:Guest@by_code",
        "index:Guest@by_mail",
        "index:Guest@in_room",
        "index:Guest@listed",
        "index:Guest@mails",
        "index:Guest@codes",
        "index:Office@by_guests",
        "view:Guest@show",
        "field:Desk.guests",
        "field:Office.guests",
    }


def test_an_older_writer_does_not_complete_a_move_whose_followers_it_does_not_know() -> None:
    world, older = fork(beginning()), older_without("unique copy")
    started(world)
    before, context = stored(world), older.begin(world)
    guests = older.models[0]
    guest = world.run(verbs.get(context, guests, {"hotel": "Astor", "id": 1}))

    with pytest.raises(UnavailableError, match=r"MovedByNewerProgram.*index:Guest@by_mail"):
        world.run(verbs.save(context, guests, evolve(guest, code="d")))

    assert stored(world) == before
    work_to_the_end(world, later(world, NEW))
    arrived = world.run(verbs.get(context, guests, {"hotel": "Plaza", "id": 7}))
    world.run(verbs.save(context, guests, evolve(arrived, code="d")))


def test_an_older_writer_does_not_complete_a_move_that_it_meets_at_the_target() -> None:
    world, older = fork(beginning()), older_without("copy elsewhere")
    context = NEW.begin(world)
    world.fail_when(is_insert_of_target, Fault.CRASH_AFTER)
    with pytest.raises(Crashed):
        move(world, context)
    before, context = stored(world), older.begin(world)
    key = older.models[0].key({"hotel": "Plaza", "id": 7})

    with pytest.raises(UnavailableError, match=r"MovedByNewerProgram.*index:Guest@mails"):
        world.run(verbs.delete_key(context, older.models[0], key))

    assert stored(world) == before


def is_insert_of_target(call: Any) -> bool:
    keys = [operation.row.key for operation in getattr(call, "operations", ())]
    return any((key.partition, key.row) == ("Plaza", "g_0007") for key in keys)


def test_what_is_forgotten_holds_up_a_move_no_more() -> None:
    world, older = fork(beginning()), older_without("view")
    started(world)
    context = older.begin(world)
    with pytest.raises(UnknownTypeError, match="view:Guest@show"):
        drain(world, context)

    assert world.run(worker.forget(context, ["view:Guest@show"])) == 1

    drain(world, context)
    assert stored(world) == at_target() | {"shown": stored(beginning())["shown"]}


def test_an_entry_keeps_the_note_of_a_move_when_a_name_is_forgotten() -> None:
    world, older = fork(beginning()), older_without("view")
    context = NEW.begin(world)
    world.fail_when(is_deletion_of_source, Fault.CRASH_AFTER)
    with pytest.raises(Crashed):
        move(world, context)
    [noted] = [row for row in world.tables["guests"].values() if ADOPTED in row.properties]

    world.run(worker.forget(older.begin(world), ["view:Guest@show"]))

    kept = world.tables["guests"][noted.key]
    assert kept.properties[ADOPTED] == noted.properties[ADOPTED]
    assert "view:Guest@show" not in names_in(read_entry(kept))


def is_deletion_of_source(call: Any) -> bool:
    return any(
        operation.verb is Verb.DELETE and operation.row.key.row == "g_0001"
        for operation in getattr(call, "operations", ())
    )


def test_an_older_worker_leaves_an_owner_whose_index_it_does_not_know() -> None:
    world, older = fork(beginning()), older_without("index of an owner")
    context = NEW.begin(world)
    world.run(verbs.save(context, NEW.models[0], NEW.guest(hotel="Astor", id=2, mail="ken@x")))
    report = Report()

    world.run(worker.work(later(world, older), "partita-outbox", report))

    assert (report.entries, report.left) == (0, 1)
    assert stored(world)["offices"] == stored(beginning())["offices"]
    work_to_the_end(world, later(world, NEW))
    assert ("Astor", "full_002_Astor") in stored(world)["offices"]


def test_an_index_without_a_state_is_not_taken_for_a_removed_one() -> None:
    world, older = fork(beginning()), older_without("copy")
    started(world)
    del world.tables["guests"][state_key("Guest", "by_code")]

    with pytest.raises(UnknownTypeError, match="index:Guest@by_code"):
        drain(world, older.begin(world))


def test_a_worker_leaves_an_entry_with_a_kind_of_name_that_it_does_not_know() -> None:
    world = fork(beginning())
    started(world)
    [(table, key)] = outbox_rows(world)
    row = world.tables[table][key]
    text = str(row.properties["Entry0"]).replace("view:Guest@show", "trigger:Guest@show")
    world.tables[table][key] = Row(key, {**row.properties, "Entry0": text}, row.etag)

    with pytest.raises(UnknownTypeError, match="trigger:Guest@show"):
        drain(world, NEW.begin(world))


@pytest.mark.parametrize("place", ["entry", "move"])
def test_a_worker_leaves_an_entry_with_a_member_that_it_does_not_know(place: str) -> None:
    world = fork(beginning())
    started(world)
    [(table, key)] = outbox_rows(world)
    row = world.tables[table][key]
    entry = msgspec.json.decode(str(row.properties["Entry0"]))
    (entry if place == "entry" else entry["moves"][0])["deadline"] = 1
    text = msgspec.json.encode(entry).decode()
    world.tables[table][key] = Row(key, {**row.properties, "Entry0": text}, row.etag)
    before, context = stored(world), NEW.begin(world)

    with pytest.raises(UnknownTypeError, match=r"EntryUnknown.*deadline"):
        drain(world, context)

    assert world.run(worker.forget(context, ["view:Guest@show"])) == 0
    assert world.run(worker.count_unknown(context, [world.tables[table][key]])) == {}
    assert stored(world) == before
