"""Programs of two ages at one outbox: what the older does not know waits for the newer."""

from typing import Annotated, Any

import msgspec
import pytest

from partita.errors import NewerVersionError, UnknownTypeError
from partita.patterns import CountOf, entity, eventual, idempotent, index, view
from partita.patterns.following import worker
from partita.patterns.following.eventual_transactions import start_message
from partita.patterns.following.worker import Report
from partita.patterns.operations.groups import Collected
from partita.patterns.types.decorators import EntityType, entity_type
from partita.patterns.writing.context import Context
from partita.patterns.writing.outbox_entry import names_in, read_entry
from partita.queues.limits import MESSAGE_BYTES_MAX
from support.fake_world import FakeWorld, each_fault
from support.simulated import begin, drain, outbox_rows, put_text

QUEUE, POISON = "partita-outbox", "partita-poison"


class Shop:
    """One version of a program: an order, and what of it this version knows."""

    def __init__(self, *, is_new: bool) -> None:
        self.shown: list[int] = []
        self.counted: list[int] = []

        @entity(table="orders", partition="{shop}", row="{number:04d}")
        class Order:
            shop: str
            number: int
            code: str = ""

        self.order = Order
        index(
            Order, table="bycode", partition="{code}", row="{shop:esc}_{number:04d}", name="by_code"
        )

        @view(Order)
        def count(_db: Any, key: Any, _order: Any) -> None:
            self.counted.append(key["number"])

        if is_new:

            @view(Order)
            def show(_db: Any, key: Any, _order: Any) -> None:
                self.shown.append(key["number"])

    @property
    def model(self) -> EntityType[Any]:
        return entity_type(self.order)

    def begin(self, world: FakeWorld) -> Context:
        return begin(world, models=(self.model,))

    def save(self, world: FakeWorld, number: int, code: str = "a") -> Context:
        context = self.begin(world)
        group = Collected(context, self.model, "s")
        group.save(self.order(shop="s", number=number, code=code))
        world.run(group.commit())
        return context


def work(world: FakeWorld, context: Context) -> Report:
    report = Report()
    world.run(worker.work(context, QUEUE, report))
    return report


def sweep(world: FakeWorld, context: Context) -> Report:
    world.clock.advance(61)
    report = Report()
    world.run(worker.sweep(context, report))
    return report


def named(world: FakeWorld) -> set[str]:
    """Return what the entries that wait name."""
    return {
        name
        for table, key in outbox_rows(world)
        for name in names_in(read_entry(world.tables[table][key]))
    }


def copied(world: FakeWorld) -> list[str]:
    return [key.partition for key in world.tables["bycode"]]


def test_an_older_worker_does_what_it_knows_and_leaves_the_rest_in_the_entry() -> None:
    world, old, new = FakeWorld(), Shop(is_new=False), Shop(is_new=True)
    new.save(world, 1)

    report = work(world, old.begin(world))

    assert (report.entries, report.failures, report.left) == (0, 0, 1)
    assert "EntryUnknown: " in report.troubles[0].reason
    assert "view:Order@show" in report.troubles[0].reason
    assert (copied(world), old.counted) == (["a"], [1])
    assert named(world) == {"type:Order", "view:Order@show"}


def test_what_an_older_worker_has_done_is_not_done_again_at_each_look() -> None:
    world, old, new = FakeWorld(), Shop(is_new=False), Shop(is_new=True)
    new.save(world, 1)
    context = old.begin(world)

    for _ in range(5):
        assert sweep(world, context).left == 1

    assert old.counted == [1]


def test_a_newer_worker_does_what_an_older_one_left() -> None:
    world, old, new = FakeWorld(), Shop(is_new=False), Shop(is_new=True)
    new.save(world, 1)
    work(world, old.begin(world))
    world.clock.advance(31)

    report = work(world, new.begin(world))

    assert (report.entries, new.shown) == (1, [1])
    assert outbox_rows(world) == []
    assert world.queues[QUEUE] == []


def test_a_hint_that_was_left_comes_back_ever_later_and_is_never_poison() -> None:
    world, old, new = FakeWorld(), Shop(is_new=False), Shop(is_new=True)
    new.save(world, 1)
    context, looks = old.begin(world), 0

    for _ in range(24 * 60):
        looks += work(world, context).left
        world.clock.advance(60)

    # 1, 2, 4, ... minutes, then every hour of the day.
    assert 24 <= looks <= 32
    assert len(world.queues[QUEUE]) == 1
    assert POISON not in world.queues


def test_what_is_left_keeps_no_other_entry_from_being_done() -> None:
    world, old, new = FakeWorld(), Shop(is_new=False), Shop(is_new=True)
    new.save(world, 1)
    old.save(world, 2)

    report = sweep(world, old.begin(world))

    assert (report.entries, report.left) == (1, 1)


def test_draining_says_what_was_left() -> None:
    world, old, new = FakeWorld(), Shop(is_new=False), Shop(is_new=True)
    new.save(world, 1)

    with pytest.raises(UnknownTypeError, match="view:Order@show"):
        drain(world, old.begin(world))


def test_who_says_so_forgets_what_is_declared_no_more() -> None:
    world, old, new = FakeWorld(), Shop(is_new=False), Shop(is_new=True)
    new.save(world, 1)
    context = old.begin(world)
    rows = world.run(worker.entry_rows("orders"))
    assert world.run(worker.count_unknown(context, rows)) == {"view:Order@show": 1}

    assert world.run(worker.forget(context, ["view:Order@show"])) == 1

    assert named(world) == {"type:Order", "index:Order@by_code", "view:Order@count"}
    assert drain(world, context).entries == 1
    assert (copied(world), outbox_rows(world)) == (["a"], [])


def test_an_entry_that_says_nothing_more_goes() -> None:
    world, old, new = FakeWorld(), Shop(is_new=False), Shop(is_new=True)
    new.save(world, 1)
    context = old.begin(world)
    work(world, context)

    assert world.run(worker.forget(context, ["view:Order@show"])) == 1

    assert outbox_rows(world) == []
    world.clock.advance(120)
    assert work(world, context).is_idle
    assert world.queues[QUEUE] == []


def test_what_is_known_is_not_forgotten() -> None:
    world, new = FakeWorld(), Shop(is_new=True)
    context = new.save(world, 1)
    before = named(world)

    assert world.run(worker.forget(context, before)) == 0

    assert named(world) == before


def test_a_worker_that_stops_before_it_shortens_an_entry_loses_nothing() -> None:
    base, old, new = FakeWorld(), Shop(is_new=False), Shop(is_new=True)
    new.save(base, 1)
    row = base.tables["orders"][outbox_rows(base)[0][1]]
    context = old.begin(base)
    assert work(base, context).left == 1  # it shortened the entry
    base.tables["orders"][row.key] = row  # as it was before

    drain(base, new.begin(base))

    assert new.shown == [1]
    assert outbox_rows(base) == []


def test_a_derived_field_and_a_transaction_that_are_new_are_left() -> None:
    world = FakeWorld()
    ran: list[Any] = []

    def declared(*, is_new: bool) -> tuple[EntityType[Any], Any]:
        @entity(table="members", partition="{club}", row="{id:04d}")
        class Member:
            club: str
            id: int

        if is_new:

            @entity(table="clubs", partition="{club}", row="club")
            class Club:
                club: str
                members: Annotated[int, CountOf(Member, where={"club": "club"})] = 0

        return entity_type(Member), Member

    @idempotent
    def greet(_db: Any, arguments: Any) -> None:
        ran.append(arguments)

    greeting = eventual("greet", greet)
    model, member = declared(is_new=True)
    context = begin(world, models=(model,))
    group = Collected(context, model, "c")
    group.save(member(club="c", id=1))
    group.start(greeting, {"id": 1})
    world.run(group.commit())

    report = work(world, begin(world, models=(declared(is_new=False)[0],)))

    assert (report.left, ran) == (1, [])
    assert named(world) == {"type:Member", "field:Club.members", "transaction:greet"}
    context.transactions["greet"] = greeting
    assert drain(world, context).entries == 1
    assert ran == [{"id": 1}]


# ---------------------------------------------------------------------------------------------
# Transactions that were started by a message


def start(world: FakeWorld, **arguments: Any) -> None:
    """Start a transaction as `db.start` does."""
    started = start_message(GREETING, arguments)
    put_text(world, QUEUE, msgspec.json.encode(started).decode())


GREETED: list[Any] = []


@idempotent
def greet(_db: Any, arguments: Any) -> None:
    GREETED.append(arguments)


GREETING = eventual("greet", greet)


def greeter(world: FakeWorld) -> Context:
    """Start a process that knows the transaction."""
    context = Shop(is_new=True).begin(world)
    context.transactions["greet"] = GREETING
    return context


def test_a_started_transaction_waits_for_a_worker_that_knows_it_and_is_not_poison() -> None:
    world = FakeWorld()
    GREETED.clear()
    start(world, id=7)
    old, left = Shop(is_new=False).begin(world), 0

    for _ in range(24 * 60):
        left += work(world, old).left
        world.clock.advance(60)

    # After 1, 2, 4, ... minutes, then every hour of the day.
    assert 24 <= left <= 32
    assert POISON not in world.queues
    world.clock.advance(3600)
    report = work(world, greeter(world))
    assert (report.transactions, report.failures, GREETED) == (1, 0, [{"id": 7}])
    assert world.queues[QUEUE] == []


def test_a_started_transaction_that_waited_too_long_is_poison_and_reported() -> None:
    world = FakeWorld()
    GREETED.clear()
    start(world, id=7)
    old = Shop(is_new=False).begin(world)
    work(world, old)
    world.clock.advance(worker.STARTED_SECONDS_MAX - 1)
    assert work(world, old).left == 1
    world.clock.advance(3600)

    report = work(world, old)

    assert (report.left, report.failures, report.poisoned) == (0, 1, 1)
    assert report.troubles[0].is_poison
    [poison] = world.queues[POISON]
    assert msgspec.json.decode(poison.text) == {
        "text": '{"transaction":"greet","arguments":"{\\"id\\":7}"}',
        "deliveries": 1,
        "reason": "TransactionUnknown: The transaction 'greet' is not registered with this worker. "
        "It waited 7 days for a worker that can run it. Run a worker of the program that declares "
        "it, or register it with this one: db.know(transaction), or name its module in partita "
        "patterns worker.",
    }
    assert world.queues[QUEUE] == []


def test_a_step_that_meets_an_entity_of_a_newer_version_waits_for_a_newer_worker() -> None:
    world = FakeWorld()

    @idempotent
    def read(_db: Any, _arguments: Any) -> None:
        raise NewerVersionError("NewerVersion", "Version 2 is newer than 1.")

    start(world)
    old = Shop(is_new=False).begin(world)
    old.transactions["greet"] = eventual("greet", read)

    report = work(world, old)

    assert (report.left, report.failures, len(world.queues[QUEUE])) == (1, 0, 1)


def test_a_worker_that_stops_while_it_leaves_a_started_transaction_does_not_lose_it() -> None:
    def leave(world: FakeWorld) -> None:
        start(world, id=7)
        work(world, Shop(is_new=False).begin(world))

    for world, told in each_fault(leave):
        GREETED.clear()
        world.clock.advance(3600)
        report = work(world, greeter(world))
        assert report.transactions in (1, 2), told  # 2: put back, and not deleted any more
        assert [{"id": 7}] * report.transactions == GREETED, told


def test_a_started_transaction_that_is_too_long_for_the_time_waits_all_the_same() -> None:
    world = FakeWorld()
    length = MESSAGE_BYTES_MAX - len('{"transaction":"greet","arguments":"{\\"id\\":\\"\\"}"}')
    start(world, id="x" * length)

    report = work(world, Shop(is_new=False).begin(world))

    assert (report.left, report.failures, len(world.queues[QUEUE])) == (1, 0, 1)
