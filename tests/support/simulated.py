"""A company in a world in memory, for tests of what takes several steps.

`Person` is followed by everything that can follow an entity: copies and lists in its own
partition and elsewhere, in rows, in index entities and in blobs; counts and copied fields of
owners beside it and elsewhere; a photo in a blob. `drift` compares all of it with the people
themselves, by plain loops over the stored rows: it shares no line with what it judges.
"""

import copy
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

import msgspec

from partita.patterns import CopiedFrom, CountOf, InBlob, entity, index, list_index
from partita.patterns.encryption.keyring import Keyring
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following import worker
from partita.patterns.following.worker import Report
from partita.patterns.operations import verbs
from partita.patterns.protocol.calls import Call, Steps, WriteRows
from partita.patterns.protocol.capabilities import ORDERED
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import entity_type
from partita.patterns.writing.context import Context, Options
from support.fake_world import Crashed, FakeWorld, Fault, StoredMessage

CONTAINER = "partita-large"


@entity(table="people", partition="{name}", row="team")
class Team:
    """An owner in the partition of its people: kept in their groups."""

    name: str
    lead_id: int = 1
    favourite: str = "Rome"
    lead_email: Annotated[
        str | None, CopiedFrom("Person", "email", where={"dept": "name", "id": "lead_id"})
    ] = None
    headcount: Annotated[int, CountOf("Person", where={"dept": "name"})] = 0
    in_favourite: Annotated[int, CountOf("Person", where={"dept": "name", "city": "favourite"})] = 0


@entity(table="offices", partition="{dept}", row="office")
class Office:
    """An owner elsewhere: it follows by the outbox."""

    dept: str
    desks: Annotated[int, CountOf("Person", where={"dept": "dept"})] = 0


@entity(table="badges", partition="{dept}", row="badge_{id:04d}")
class Badge:
    dept: str
    id: int
    email: Annotated[
        str | None, CopiedFrom("Person", "email", where={"dept": "dept", "id": "id"})
    ] = None


@entity(table="people", partition="{dept}", row="p_{id:04d}")
class Person:
    dept: str
    id: int
    last: str
    email: str
    city: str = "Rome"
    photo: Annotated[bytes | None, InBlob] = None


by_email = index(Person, row="email_{email}", unique=True, name="by_email")
anywhere = index(Person, table="peoplebyemail", partition="{email}", row="{dept}", name="anywhere")
by_last = list_index(Person, row="last_{last}", name="by_last")
by_city = list_index(Person, row="city_{city}", store="partition", name="by_city")
by_last_anywhere = list_index(
    Person, table="peoplebylast", partition="{last}", row="all", name="by_last_anywhere"
)
in_city = list_index(
    Person, table="peopleincity", partition="{city}", row="all", store="table", name="in_city"
)
in_city_blob = list_index(
    Person, partition="{city}", row="people", store="blob", name="in_city_blob"
)

PERSON, TEAM = entity_type(Person), entity_type(Team)
OFFICE, BADGE = entity_type(Office), entity_type(Badge)
MODELS = (PERSON, TEAM, OFFICE, BADGE)

Facts = dict[tuple[str, int], dict[str, Any]]
"""The people by department and number: what a model of the tests predicts."""


# ---------------------------------------------------------------------------------------------
# Processes


def begin(
    world: FakeWorld,
    *,
    models: tuple[Any, ...] = MODELS,
    keyring: Keyring | None = None,
    **options: Any,
) -> Context:
    """Start a process: it knows the types, and what is stored of the states of indexes."""
    context = Context(world.clock, ORDERED, keyring=keyring, options=Options(**options))
    context.database = Face(world, context)
    for model in models:
        context.know(model)
    world.run(lifecycle.create_tables(context))
    return context


class Face:
    """What functions of users are given in place of a database."""

    def __init__(self, world: FakeWorld, context: Context) -> None:
        self.world = world
        self.context = context

    def run(self, steps: Steps[Any]) -> Any:
        return self.world.run(steps)


def drain(world: FakeWorld, context: Context) -> Report:
    report = Report()
    world.run(worker.drain(context, report))
    return report


def recover(world: FakeWorld, **options: Any) -> Context:
    """Do what happens after a crash: another process comes, claims end, everything is done."""
    world.restart()
    world.clock.advance(120)
    context = begin(world, **options)
    drain(world, context)
    return context


def ignore(_: int) -> None:
    """Be told of progress, and do nothing."""


def fork(world: FakeWorld) -> FakeWorld:
    """Return a world of its own that stands where this one stands."""
    other = FakeWorld(clock=copy.deepcopy(world.clock), page_size=world.page_size)
    other.tables = {name: dict(rows) for name, rows in world.tables.items()}
    other.table_names = dict(world.table_names)
    other.queues = {
        name: [copy.copy(message) for message in queue] for name, queue in world.queues.items()
    }
    other.containers = {
        name: {blob: copy.copy(stored) for blob, stored in blobs.items()}
        for name, blobs in world.containers.items()
    }
    other.continue_etags(world)
    return other


Operation = Callable[[FakeWorld, Context], object]
"""What a process does in a world."""


def each_stop(
    base: FakeWorld,
    operation: Operation,
    faults: tuple[Fault, ...] = (Fault.CRASH_AFTER,),
    start: Callable[[FakeWorld], Context] = begin,
) -> Iterator[tuple[FakeWorld, object, str]]:
    """Do an operation once for every call in it and every fault; yield the world after it.

    With it comes what the operation returned or raised.
    """
    whole = fork(base)
    context = start(whole)
    before, seen = whole.attempts, len(whole.history)
    operation(whole, context)
    names = [type(call).__name__ for call in whole.history[seen:]]
    for number in range(1, whole.attempts - before + 1):
        for fault in faults:
            world = fork(base)
            context = start(world)
            world.fail(number, fault)
            try:
                outcome: object = operation(world, context)
            except Crashed as crash:
                outcome = crash
            except Exception as error:  # noqa: BLE001 - what it raised is its answer
                outcome = error
            world.restart()
            yield (
                world,
                outcome,
                f"{fault.name} at call {number} of {len(names)}: {names[number - 1]}",
            )


# ---------------------------------------------------------------------------------------------
# What is stored


def rows_of(world: FakeWorld, table: str, type_name: str) -> list[Row]:
    return [row for row in world.rows(table) if row.properties.get("EntityType") == type_name]


def people(world: FakeWorld) -> Facts:
    """Return the people as they are stored, with the content of their blobs."""
    found: Facts = {}
    for row in rows_of(world, "people", "Person"):
        photo = row.properties.get("Photo")
        found[row.key.partition, int(row.key.row[2:])] = {
            "last": row.properties["Last"],
            "email": row.properties["Email"],
            "city": row.properties["City"],
            "photo": None if photo is None else _blob(world, str(photo)),
        }
    return found


def _blob(world: FakeWorld, reference: str) -> bytes:
    told = json.loads(reference)
    content = world.containers[told["container"]][told["name"]].content
    assert hashlib.sha256(content).hexdigest() == told["sha256"]
    assert len(content) == told["length"]
    return content


def named_blobs(world: FakeWorld) -> set[str]:
    return {
        json.loads(str(photo))["name"]
        for row in rows_of(world, "people", "Person")
        if (photo := row.properties.get("Photo")) is not None
    }


def orphan_blobs(world: FakeWorld) -> set[str]:
    return set(world.containers.get(CONTAINER, {})) - named_blobs(world)


def outbox_rows(world: FakeWorld) -> list[tuple[str, RowKey]]:
    return [
        (table, key)
        for table, rows in world.tables.items()
        for key in rows
        if key.row.startswith("~o_")
    ]


def drift(world: FakeWorld) -> list[str]:
    """Say everything that does not follow from the people who are stored."""
    stored = {
        (row.key.partition, row.key.row): row.properties
        for row in rows_of(world, "people", "Person")
    }
    wanted: dict[str, dict[Any, Any]] = defaultdict(dict)
    lists: dict[str, dict[Any, list[list[str]]]] = {
        name: defaultdict(list) for name in ("by_city", "in_city", "in_city_blob")
    }
    for (dept, row), person in sorted(stored.items()):
        kept = {name: person.get(name) for name in ("Last", "Email", "City", "Photo")}
        last, email, city = (str(kept[name]) for name in ("Last", "Email", "City"))
        wanted["by_email"][dept, f"email_{email}"] = (dept, row, kept)
        wanted["anywhere"][email, dept] = (dept, row, kept)
        wanted["by_last"][dept, f"last_{last}~{row}"] = (dept, row, None)
        wanted["by_last_anywhere"][last, f"all~{dept}~{row}"] = (dept, row, None)
        lists["by_city"][dept, f"city_{city}"].append([row])
        lists["in_city"][city, "all"].append([dept, row])
        lists["in_city_blob"][city].append([dept, row])
    found: list[str] = []
    for name, table, is_local in (
        ("by_email", "people", True),
        ("anywhere", "peoplebyemail", False),
        ("by_last", "people", True),
        ("by_last_anywhere", "peoplebylast", False),
    ):
        has_fields = name in ("by_email", "anywhere")
        there = {
            (row.key.partition, row.key.row): _seen(row, is_local=is_local, fields=has_fields)
            for row in rows_of(world, table, f"Person@{name}")
        }
        found += _differences(name, wanted[name], there)
    for name, table in (("by_city", "people"), ("in_city", "peopleincity")):
        listed = {
            (row.key.partition, row.key.row): json.loads(str(row.properties["Ids0"]))
            for row in rows_of(world, table, f"Person@{name}")
        }
        found += _differences(name, lists[name], listed)
    blobs = {
        name.split("/")[2]: json.loads(blob.content)
        for name, blob in world.containers.get("partita-indexes", {}).items()
    }
    found += _differences("in_city_blob", lists["in_city_blob"], blobs)
    return found + _owner_drift(world, stored)


def _seen(row: Row, *, is_local: bool, fields: bool) -> tuple[str, str, dict[str, Any] | None]:
    properties = row.properties
    partition = row.key.partition if is_local else str(properties["_Partition"])
    kept = None
    if fields:
        kept = {name: properties.get(name) for name in ("Last", "City", "Photo")}
        # The field in the key of the copy is not a property of it.
        kept["Email"] = properties.get("Email") or (
            row.key.row.removeprefix("email_") if is_local else row.key.partition
        )
    return partition, str(properties["_Row"]), kept


def _owner_drift(
    world: FakeWorld, stored: Mapping[tuple[str, str], Mapping[str, Any]]
) -> list[str]:
    found: list[str] = []

    def email(dept: str, number: int) -> object:
        person = stored.get((dept, f"p_{number:04d}"))
        return None if person is None else person["Email"]

    for row in rows_of(world, "people", "Team"):
        dept, told = row.key.partition, row.properties
        cities = [person["City"] for (partition, _), person in stored.items() if partition == dept]
        found += _differences(
            f"team {dept}",
            {
                "lead_email": email(dept, int(str(told["LeadId"]))),
                "headcount": len(cities),
                "in_favourite": cities.count(told["Favourite"]),
            },
            {
                "lead_email": told.get("LeadEmail"),
                "headcount": told.get("Headcount"),
                "in_favourite": told.get("InFavourite"),
            },
        )
    for row in rows_of(world, "offices", "Office"):
        count = sum(partition == row.key.partition for partition, _ in stored)
        found += _differences(
            f"office {row.key.partition}", {"desks": count}, {"desks": row.properties["Desks"]}
        )
    for row in rows_of(world, "badges", "Badge"):
        dept, number = row.key.partition, int(row.key.row.removeprefix("badge_"))
        found += _differences(
            f"badge {dept} {number}",
            {"email": email(dept, number)},
            {"email": row.properties.get("Email")},
        )
    return found


def _differences(name: str, wanted: Mapping[Any, Any], there: Mapping[Any, Any]) -> list[str]:
    return [
        f"{name}: {key} should be {wanted.get(key)}, is {there.get(key)}"
        for key in {**wanted, **there}
        if wanted.get(key) != there.get(key)
    ]


def check_settled(world: FakeWorld, context: Context, told: str) -> None:
    """Assert that nothing waits, that everything agrees, and that `verify` says so too."""
    assert drift(world) == [], told
    assert outbox_rows(world) == [], told
    waiting = {name: [each.text for each in queue] for name, queue in world.queues.items() if queue}
    assert waiting == {}, told
    for model in context.models.values():
        assert world.run(lifecycle.verify(context, model, ignore)) == [], told


def check_blobs(world: FakeWorld, context: Context, told: str) -> None:
    """Assert that what no entity names is collected, and nothing else."""
    world.clock.advance(2 * context.options.blob_grace)
    world.run(lifecycle.collect_blobs(context, CONTAINER, ignore))
    assert orphan_blobs(world) == set(), told
    people(world)  # reads every blob that is named


# ---------------------------------------------------------------------------------------------
# Watching

LOCAL = ("by_email", "by_last:", "by_city", "team")
"""What is written in the groups of the people themselves, as `drift` begins to tell of it."""
STALLS = 0.02
"""How often a process stalls, of all turns."""
_SAID = ("_Generation", "Last", "City", "Photo")


class StallingWorld(FakeWorld):
    """A world in which a process stalls now and then, between any two calls, and others go on."""

    def __init__(self, base: FakeWorld, seed: int | None = None) -> None:
        super().__init__(seed=seed, clock=copy.deepcopy(base.clock))
        begun = fork(base)
        self.tables, self.queues, self.containers = begun.tables, begun.queues, begun.containers
        self.table_names = begun.table_names
        self.continue_etags(base)
        self._stalled: dict[int, int] = {}
        self._turn = 0

    def _next(self, live: list[Any]) -> Any:
        if self._random is None:
            return super()._next(live)
        self._turn += 1
        if self._random.random() < STALLS:
            stalled = self._random.choice(live)
            self._stalled[id(stalled)] = self._turn + self._random.randrange(200)
        awake = [task for task in live if self._stalled.get(id(task), 0) <= self._turn]
        now = self.clock.monotonic()
        is_any_ready = any(not task.is_parent and task.wake_at <= now for task in awake)
        return super()._next(awake if is_any_ready else live)


class WatchedWorld(StallingWorld):
    """A world that looks after every group whether a rule was broken, not only at the end.

    What lies in the partition of the people agrees with them always. A copy elsewhere may be
    late, but says what was true once: it is never newer than its entity, and never made up.
    """

    def __init__(self, base: FakeWorld, seed: int | None = None) -> None:
        super().__init__(base, seed)
        self.versions: dict[tuple[str, str], set[tuple[object, ...]]] = defaultdict(set)
        self._note_people()

    def perform(self, call: Call[Any]) -> Any:
        answer = super().perform(call)
        if isinstance(call, WriteRows) and call.table == "people":
            self._note_people()
            assert [each for each in drift(self) if each.startswith(LOCAL)] == [], call
        elif isinstance(call, WriteRows) and call.table == "peoplebyemail":
            self._check_copies()
        return answer

    def _note_people(self) -> None:
        for row in rows_of(self, "people", "Person"):
            said = (row.properties["Email"], *map(row.properties.get, _SAID))
            self.versions[row.key.partition, row.key.row].add(said)

    def _check_copies(self) -> None:
        for row in rows_of(self, "peoplebyemail", "Person@anywhere"):
            person = str(row.properties["_Partition"]), str(row.properties["_Row"])
            said = (row.key.partition, *map(row.properties.get, _SAID))
            assert said in self.versions[person], f"{row} was never true"


# ---------------------------------------------------------------------------------------------
# The beginning


def company(**options: Any) -> FakeWorld:
    """Return a world with two departments, three people, and nothing left to do."""
    world = FakeWorld()
    context = begin(world, **options)
    for dept in ("Sales", "Legal"):
        world.run(verbs.save(context, TEAM, Team(name=dept)))
        world.run(verbs.save(context, OFFICE, Office(dept=dept)))
    for person in (
        Person(dept="Sales", id=1, last="Cao", email="jun@x", city="Rome", photo=b"jun"),
        Person(dept="Sales", id=2, last="Cao", email="ken@x", city="Oslo"),
        Person(dept="Legal", id=1, last="Roth", email="dan@x", city="Rome", photo=b"dan"),
    ):
        world.run(verbs.save(context, PERSON, person))
        world.run(verbs.save(context, BADGE, Badge(dept=person.dept, id=person.id)))
    drain(world, context)
    check_settled(world, context, "the beginning")
    return world


def load(world: FakeWorld, context: Context, dept: str, number: int) -> Any:
    return world.run(verbs.get(context, PERSON, {"dept": dept, "id": number}))


def put_text(world: FakeWorld, queue: str, text: str) -> None:
    """Put a message as a stranger would."""
    world.queues.setdefault(queue, []).append(
        StoredMessage(world.clock.new_id(), text, world.clock.monotonic())
    )


def encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()
