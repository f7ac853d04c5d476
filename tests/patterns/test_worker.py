"""The worker: messages twice, late, out of order, lost, strange and poisonous.

A hint only says where to look: whatever happens to it, what follows comes to agree with the
entities, and nothing is deleted that was not done.
"""

import json
from functools import cache
from typing import Any

import pytest

from partita.errors import PartitaError, UnavailableError
from partita.patterns import connect, entity, eventual, evolve, idempotent, index, view
from partita.patterns.following import index_lifecycle as lifecycle
from partita.patterns.following import worker
from partita.patterns.following.worker import Report
from partita.patterns.operations import verbs
from partita.patterns.protocol.calls import (
    DeleteMessage,
    Invoke,
    PutMessage,
    QueryRows,
    RenewMessage,
    Steps,
)
from partita.patterns.protocol.values import Row, RowKey
from partita.patterns.types.decorators import entity_type
from partita.patterns.types.row_layout import SWEPT_KEY
from partita.patterns.writing.context import Context, OutboxReference
from partita.patterns.writing.outbox_entry import hint
from partita.queues.limits import MESSAGE_BYTES_MAX
from partita.service.hosting.in_process import LocalAccount
from support.fake_world import Crashed, FakeWorld, Fault
from support.simulated import (
    OFFICE,
    PERSON,
    Person,
    begin,
    check_settled,
    company,
    drain,
    drift,
    encoded,
    fork,
    ignore,
    load,
    outbox_rows,
    put_text,
    recover,
)

QUEUE, POISON = "partita-outbox", "partita-poison"


@cache
def _changed() -> FakeWorld:
    """A company after a hire, a change and a dismissal that nobody has followed yet."""
    world = company()
    context = begin(world)
    new = Person(dept="Sales", id=3, last="Roth", email="ann@x", photo=b"ann")
    world.run(verbs.save(context, PERSON, new))
    ken = load(world, context, "Sales", 2)
    world.run(verbs.save(context, PERSON, evolve(ken, last="Li", email="ken@y", city="Rome")))
    world.run(verbs.delete(context, PERSON, load(world, context, "Legal", 1)))
    assert len(world.queues[QUEUE]) == len(outbox_rows(world)) == 3
    assert drift(world) != []
    return world


def changed(seed: int | None = None) -> FakeWorld:
    return seeded(fork(_changed()), seed)


def seeded(world: FakeWorld, seed: int | None) -> FakeWorld:
    """Return the same world, in which everything that has no order comes in any order."""
    other = FakeWorld(seed=seed, clock=world.clock)
    other.tables, other.queues, other.containers = world.tables, world.queues, world.containers
    other.table_names = world.table_names
    other.continue_etags(world)
    return other


def work(world: FakeWorld, context: Context, queue: str = QUEUE, count: int = 16) -> Report:
    report = Report()
    world.run(worker.work(context, queue, report, count))
    return report


def texts(world: FakeWorld, queue: str = QUEUE) -> list[str]:
    return [message.text for message in world.queues.get(queue, [])]


# ---------------------------------------------------------------------------------------------
# Hints


def test_a_hint_is_deleted_after_its_work_is_done() -> None:
    world = changed()

    report = work(world, begin(world))

    assert (report.entries, report.failures) == (3, 0)
    assert texts(world) == []
    check_settled(world, begin(world), "after the work")


def test_hints_that_come_twice_do_no_harm() -> None:
    world = changed()
    for text in texts(world):
        put_text(world, QUEUE, text)

    report = work(world, begin(world))

    assert report.entries == 3
    check_settled(world, begin(world), "after the work")


@pytest.mark.parametrize("seed", range(20))
def test_hints_in_any_order_lead_to_the_same(seed: int) -> None:
    world = changed(seed)
    context = begin(world)

    while texts(world):
        work(world, context, count=1)

    check_settled(world, context, f"seed {seed}")


def sweep(world: FakeWorld, context: Context, every: float) -> Report:
    """Sweep as one of several workers, and say what that did."""
    report = Report()
    world.run(worker.sweep(context, report, unless_within=every))
    return report


def scans(world: FakeWorld) -> int:
    return sum(isinstance(call, QueryRows) for call in world.history)


def test_many_workers_scan_as_often_as_one() -> None:
    world = changed()
    world.queues.clear()
    world.clock.advance(61)
    first, second = begin(world), begin(world)
    assert sweep(world, first, 300).entries == 3

    before = scans(world)
    assert sweep(world, second, 300).is_idle
    assert scans(world) == before
    world.clock.advance(299)
    assert sweep(world, second, 300).is_idle
    assert scans(world) == before
    world.clock.advance(1)
    assert sweep(world, second, 300).is_idle
    assert scans(world) > before


def test_entries_that_came_after_a_clean_sweep_are_found_by_the_next() -> None:
    world = changed()
    context = begin(world)
    assert sweep(world, context, 300).is_idle  # they are too young
    world.queues.clear()

    world.clock.advance(300)

    assert sweep(world, begin(world), 300).entries == 3


def test_a_sweep_that_left_something_keeps_no_other_worker_from_sweeping() -> None:
    world = changed()
    world.queues.clear()
    world.clock.advance(61)
    stranger = begin(world, models=(entity_type(Errand), OFFICE))
    stranger.models.pop("Person")
    stranger.models["People"] = PERSON  # so that it sweeps their table, and cannot do the work
    assert sweep(world, stranger, 300).left == 3

    assert sweep(world, begin(world), 300).entries == 3


def test_the_mark_of_a_clock_that_is_far_ahead_is_not_believed() -> None:
    world = changed()
    world.queues.clear()
    world.clock.advance(61)
    ahead = fork(world)
    ahead.clock.advance(3600)
    sweep(ahead, begin(ahead), 300)
    for table, rows in ahead.tables.items():
        if SWEPT_KEY in rows:
            world.tables[table][SWEPT_KEY] = rows[SWEPT_KEY]

    assert sweep(world, begin(world), 300).entries == 3


def test_lost_hints_are_made_up_for_by_a_sweep() -> None:
    world = changed()
    world.queues.clear()
    world.clock.advance(61)
    context = begin(world)
    report = Report()

    world.run(worker.sweep(context, report))

    assert report.entries == 3
    check_settled(world, context, "after the sweep")


def test_a_sweep_leaves_young_entries_to_their_hints() -> None:
    world = changed()
    world.clock.advance(59)
    report = Report()

    world.run(worker.sweep(begin(world), report))

    assert report.is_idle
    assert len(outbox_rows(world)) == 3


def test_a_hint_that_cannot_be_put_is_not_a_failure_of_the_save() -> None:
    world = company()
    context = begin(world)

    def refuse(call: Any) -> PartitaError | None:
        is_put = type(call).__name__ == "PutMessage"
        return UnavailableError("OperationTimedOut", "No queue today.") if is_put else None

    world.refuse = refuse
    world.run(verbs.save(context, PERSON, Person(dept="Sales", id=3, last="Li", email="ann@x")))
    world.refuse = None

    assert texts(world) == []
    check_settled(world, recover(world), "after the sweep")


def test_a_missing_queue_is_made() -> None:
    world = company()
    world.queues.clear()
    context = begin(world)
    world.run(verbs.save(context, PERSON, Person(dept="Sales", id=3, last="Li", email="ann@x")))
    assert len(texts(world)) == 1

    world.queues.clear()
    assert work(world, context).is_idle
    assert texts(world) == []


def test_partitions_keep_to_their_queue_and_all_queues_are_worked_on() -> None:
    queues = ("one", "two", "three")
    world = company(queues=queues)
    context = begin(world, queues=queues)
    for number in range(12):
        person = Person(dept=f"D{number % 6}", id=number, last="Li", email=f"{number}@x")
        world.run(verbs.save(context, PERSON, person))
    told = {
        queue: {json.loads(text)["key"]["partition"] for text in texts(world, queue)}
        for queue in queues
    }
    assert set().union(*told.values()) == {f"D{number}" for number in range(6)}
    assert sum(map(len, told.values())) == 6
    assert all(told.values())

    drain(world, begin(world, queues=queues))

    check_settled(world, begin(world, queues=queues), "after the work")


@entity(table="pets", partition="{home}", row="{number:04d}", abstract=True)
class Pet:
    home: str
    number: int
    name: str


@entity()
class Dog(Pet):
    breed: str = ""


@entity()
class Cat(Pet):
    lives: int = 9


pets_by_name = index(Pet, table="petsbyname", partition="{name}", row="{number:04d}_{home}")
dogs_by_breed = index(Dog, table="dogsbybreed", partition="{breed}", row="{number:04d}_{home}")
PET, DOG, CAT = entity_type(Pet), entity_type(Dog), entity_type(Cat)


def test_an_entity_that_became_another_type_is_gone_for_the_indexes_of_the_first() -> None:
    world = FakeWorld()
    context = begin(world, models=(PET,))
    rex = world.run(verbs.save(context, DOG, Dog(home="a", number=1, name="Rex", breed="pug")))
    drain(world, context)
    assert len(world.rows("dogsbybreed")) == len(world.rows("petsbyname")) == 1

    world.run(verbs.delete(context, DOG, rex))
    world.run(verbs.save(context, CAT, Cat(home="a", number=1, name="Tom")))
    drain(world, context)

    assert world.rows("dogsbybreed") == []
    assert [row.key.partition for row in world.rows("petsbyname")] == ["Tom"]
    for model in (PET, DOG, CAT):
        assert world.run(lifecycle.verify(context, model, ignore)) == []


# ---------------------------------------------------------------------------------------------
# Claims


def claimed_twice(seed: int) -> tuple[FakeWorld, list[Any]]:
    """Let three workers take the same messages, because the claims of the first two ended."""
    world = changed(seed)
    contexts = [begin(world) for _ in range(3)]
    taken = []
    for context in contexts:
        taken.append(world.run(worker.receive(context, QUEUE, 16)))
        world.clock.advance(31)
    assert [len(messages) for messages in taken] == [3, 3, 3]
    reports = [Report() for _ in contexts]
    outcomes = world.run_all(
        *(
            worker.do_messages(context, QUEUE, messages, report)
            for context, messages, report in zip(contexts, taken, reports, strict=True)
        )
    )
    assert outcomes == [None, None, None]
    return world, reports


@pytest.mark.parametrize("seed", range(30))
def test_workers_whose_claims_ended_may_do_the_same_at_once(seed: int) -> None:
    world, reports = claimed_twice(seed)

    assert sum(report.failures for report in reports) == 0
    check_settled(world, recover(world), f"seed {seed}")


def test_a_claim_is_renewed_while_the_work_goes_on() -> None:
    world, deliveries = slow_work()

    assert world.requests(RenewMessage) > 0
    assert deliveries == [1, 1, 1]
    check_settled(world, begin(world), "after the slow work")


def test_without_renewal_another_worker_gets_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sibling of the test above, with the rule broken: it must be caught."""

    def rest(*_: object) -> Steps[None]:
        yield from ()

    monkeypatch.setattr(worker, "_renew_claims", rest)

    _, deliveries = slow_work()

    assert max(deliveries) > 1


def slow_work() -> tuple[FakeWorld, list[int]]:
    """Let one worker work so slowly that its claims would end, and another one look for work."""
    world = seeded(changed(), None)
    world.latency = 1.0
    slow, idle = begin(world), begin(world)
    deliveries: list[int] = []

    def look() -> Steps[None]:
        for _ in range(200):
            found = yield from worker.receive(idle, QUEUE, 16)
            deliveries.extend(message.dequeue_count for message in found)

    first = world.run(worker.receive(slow, QUEUE, 16))
    deliveries.extend(message.dequeue_count for message in first)
    world.run_all(worker.do_messages(slow, QUEUE, first, Report()), look())
    return world, deliveries


def test_a_worker_that_dies_leaves_its_messages_to_others() -> None:
    world = changed()
    context = begin(world)
    messages = world.run(worker.receive(context, QUEUE, 16))
    world.fail(3, Fault.CRASH_BEFORE)
    with pytest.raises(Crashed):
        world.run(worker.do_messages(context, QUEUE, messages, Report()))
    world.restart()
    assert work(world, begin(world)).is_idle

    world.clock.advance(31)

    assert work(world, begin(world)).entries == 3
    check_settled(world, begin(world), "after the second worker")


# ---------------------------------------------------------------------------------------------
# Poison


def fail(*_: object) -> None:
    raise UnavailableError("OperationTimedOut", "The search index does not answer.")


def blow_up(*_: object) -> None:
    raise ValueError("not a number")


failing = eventual("failing", idempotent(fail))
broken = eventual("broken", idempotent(blow_up))


def knowing(world: FakeWorld, **options: Any) -> Context:
    context = begin(world, **options)
    for transaction in (failing, broken, good):
        context.transactions[transaction.name] = transaction
    return context


def start_text(name: str, arguments: dict[str, Any]) -> str:
    return encoded({"transaction": name, "arguments": encoded(arguments)})


def test_work_that_keeps_failing_goes_to_the_poison_queue_with_its_reason() -> None:
    world = company()
    context = knowing(world, deliveries_max=3)
    text = start_text("failing", {"id": 7})
    put_text(world, QUEUE, text)

    reports = []
    for _ in range(3):
        reports.append(work(world, context))
        world.clock.advance(31)

    assert [(each.failures, each.poisoned) for each in reports] == [(1, 0), (1, 0), (1, 1)]
    assert texts(world) == []
    (poison,) = texts(world, POISON)
    told = json.loads(poison)
    assert (told["text"], told["deliveries"]) == (text, 3)
    assert "The search index does not answer." in told["reason"]


def test_a_message_that_kills_its_workers_goes_to_the_poison_queue_untried() -> None:
    world = company()
    context = knowing(world, deliveries_max=2)
    put_text(world, QUEUE, start_text("failing", {}))
    for _ in range(2):
        world.run(worker.receive(context, QUEUE, 1))
        world.clock.advance(31)

    report = work(world, context)

    assert (report.poisoned, texts(world)) == (1, [])
    assert "DeliveriesExceeded" in json.loads(texts(world, POISON)[0])["reason"]


def test_an_error_of_the_users_code_is_raised_until_it_counts_as_poison() -> None:
    world = company()
    context = knowing(world, deliveries_max=2)
    put_text(world, QUEUE, start_text("broken", {}))

    with pytest.raises(ValueError, match="not a number"):
        work(world, context)
    world.clock.advance(31)
    report = work(world, context)

    assert report.poisoned == 1
    assert "ValueError: not a number" in json.loads(texts(world, POISON)[0])["reason"]


calls: list[str] = []
good = eventual("good", idempotent(lambda _db, arguments: calls.append(arguments["id"])))


@pytest.mark.parametrize("failing_name", ["failing", "broken"])
@pytest.mark.parametrize("do", [worker.work_queues, worker.drain])
def test_a_good_message_beside_failing_ones_is_done_at_once(do: Any, failing_name: str) -> None:
    calls.clear()
    world = company(queues=("one", "two"))
    context = knowing(world, deliveries_max=3, queues=("one", "two"))
    for queue in ("one", "two"):
        for _ in range(3):
            put_text(world, queue, start_text(failing_name, {}))
        put_text(world, queue, start_text("good", {"id": queue}))
    report = Report()

    arguments = (("one", "two"), report) if do is worker.work_queues else (report,)
    try:
        world.run(do(context, *arguments))
    except ValueError as error:
        outcome: Exception | None = error
    else:
        outcome = None

    assert calls == ["one", "two"]
    assert (report.transactions, report.failures, report.poisoned) == (2, 6, 0)
    assert isinstance(outcome, ValueError) == (failing_name == "broken")


def test_each_message_is_poison_by_its_own_deliveries() -> None:
    world = company()
    context = knowing(world, deliveries_max=3)
    put_text(world, QUEUE, start_text("broken", {"id": 1}))
    for number in (2, 3):
        with pytest.raises(ValueError, match="not a number"):
            work(world, context)
        put_text(world, QUEUE, start_text("broken", {"id": number}))
        world.clock.advance(31)

    with pytest.raises(ValueError, match="not a number"):
        work(world, context)

    assert [json.loads(text)["deliveries"] for text in texts(world, POISON)] == [3]
    assert [message.dequeue_count for message in world.queues[QUEUE]] == [2, 1]


def test_a_message_that_was_not_tried_when_its_worker_died_has_no_delivery_counted() -> None:
    calls.clear()
    world = company()
    context = knowing(world, deliveries_max=2)
    put_text(world, QUEUE, start_text("failing", {}))
    put_text(world, QUEUE, start_text("good", {"id": "good"}))
    for _ in range(2):
        world.fail_when(lambda call: isinstance(call, Invoke), Fault.CRASH_BEFORE)
        with pytest.raises(Crashed):
            work(world, context, count=2)
        world.queues[QUEUE].sort(key=lambda message: "good" in message.text)
        world.clock.advance(31)
        assert [message.dequeue_count for message in world.queues[QUEUE]][1] == 0

    report = work(world, context)

    assert calls == ["good"]
    assert (report.transactions, report.poisoned) == (1, 1)
    assert "DeliveriesExceeded" in json.loads(texts(world, POISON)[0])["reason"]


def test_a_service_that_refuses_one_outcome_keeps_no_other_message_from_being_done() -> None:
    calls.clear()
    world = company()
    context = knowing(world, deliveries_max=1)
    put_text(world, QUEUE, start_text("failing", {}))
    for name in ("a", "b"):
        put_text(world, QUEUE, start_text("good", {"id": name}))
    refused = iter([True, True])

    def refuse(call: Any) -> PartitaError | None:
        is_meant = isinstance(call, PutMessage | DeleteMessage) and next(refused, False)
        return UnavailableError("OperationTimedOut", "No queue today.") if is_meant else None

    world.refuse = refuse
    messages = world.run(worker.receive(context, QUEUE, 16))
    report = Report()
    world.run(worker.do_messages(context, QUEUE, messages, report))

    assert calls == ["a", "b"]
    assert (report.transactions, report.poisoned, len(texts(world))) == (2, 0, 2)


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "",
        "[]",
        "{}",
        '{"table":"people"}',
        '{"transaction":"failing"}',
        encoded(OutboxReference("people", RowKey("Sales", "p_0001"))),
        encoded(OutboxReference("people", RowKey("Sales", "team"))),
    ],
)
def test_a_message_of_a_stranger_is_put_aside_and_changes_nothing(text: str) -> None:
    world = company()
    context = begin(world, deliveries_max=2)
    before = {name: dict(rows) for name, rows in world.tables.items()}
    put_text(world, QUEUE, text)

    for _ in range(2):
        work(world, context)
        world.clock.advance(31)

    told = json.loads(texts(world, POISON)[0])
    assert told["text"] == text
    assert "MessageNotUnderstood" in told["reason"]
    assert world.tables == before


def test_a_hint_to_an_entry_that_is_done_is_just_deleted() -> None:
    world = company()
    gone = OutboxReference("people", RowKey("Sales", "~o_0017000000000000000_0123456789abcdef"))
    put_text(world, QUEUE, hint(gone))

    report = work(world, begin(world))

    assert report.is_idle
    assert texts(world) == []


def test_a_hint_to_a_table_that_is_gone_is_put_aside() -> None:
    world = company()
    context = begin(world, deliveries_max=1)
    gone = OutboxReference("nowhere", RowKey("a", "~o_0017000000000000000_0123456789abcdef"))
    put_text(world, QUEUE, hint(gone))

    work(world, context)

    assert "TableNotFound" in json.loads(texts(world, POISON)[0])["reason"]


def test_a_transaction_that_this_worker_does_not_know_is_left_to_one_that_does() -> None:
    world = company()
    put_text(world, QUEUE, start_text("failing", {}))

    report = work(world, begin(world))

    assert "TransactionUnknown" in report.troubles[0].reason
    assert len(texts(world)) == 1


def test_a_type_that_this_worker_does_not_know_is_left_to_one_that_does() -> None:
    world = changed()
    stranger = begin(world, models=(entity_type(Errand),))

    assert work(world, stranger).left == 3
    assert len(outbox_rows(world)) == 3

    world.clock.advance(31)
    assert work(world, begin(world)).entries == 3


def test_an_entry_that_is_damaged_is_reported_and_not_removed() -> None:
    world = changed()
    table, key = outbox_rows(world)[0]
    world.tables[table][key] = Row(key, {"EntityType": "~outbox", "Entry0": "{"}, 'W/"x"')

    report = work(world, begin(world))

    assert (report.entries, report.failures) == (2, 1)
    assert "OutboxDamaged" in report.troubles[0].reason
    assert (table, key) in outbox_rows(world)


def test_a_poisonous_message_leaves_room_for_its_reason() -> None:
    world = company()
    context = begin(world, deliveries_max=1)
    text = '"' * (MESSAGE_BYTES_MAX - 10)
    put_text(world, QUEUE, text)

    work(world, context)

    (poison,) = texts(world, POISON)
    assert len(poison.encode()) <= MESSAGE_BYTES_MAX
    told = json.loads(poison)
    assert told["is_cut"] is True
    assert text.startswith(told["text"])


def test_an_entry_that_fails_keeps_no_other_from_being_swept_or_drained() -> None:
    for do in (worker.sweep, worker.drain):
        world = changed()
        world.queues.clear()
        world.clock.advance(61)
        table, key = outbox_rows(world)[0]
        world.tables[table][key] = Row(key, {"EntityType": "~outbox", "Entry0": "{"}, 'W/"x"')
        report = Report()

        outcome = run(world, do(begin(world), report))

        assert (report.entries, report.failures) == (2, 1)
        assert isinstance(outcome, PartitaError) == (do is worker.drain)


def run(world: FakeWorld, steps: Steps[Any]) -> object:
    try:
        return world.run(steps)
    except PartitaError as error:
        return error


# ---------------------------------------------------------------------------------------------
# Once on a real account


@entity(table="errands", partition="{who}", row="{number:04d}")
class Errand:
    who: str
    number: int
    what: str


by_what = index(Errand, table="errandsbywhat", partition="{what}", row="{number:04d}_{who}")
seen: list[str] = []


@view(Errand)
def note(_: object, key: dict[str, Any], errand: Errand | None) -> None:
    if errand is not None and errand.what == "trouble":
        raise UnavailableError("OperationTimedOut", "Not today.")
    seen.append(f"{key['number']}: {None if errand is None else errand.what}")


async def test_a_worker_works_sweeps_and_puts_aside_on_a_real_account(
    partita_account: LocalAccount,
) -> None:
    seen.clear()
    async with connect(partita_account, deliveries_max=1) as db:
        errands = db.table(Errand)
        await db.create_tables()
        await errands.save(Errand(who="Jun", number=1, what="shop"))
        bad = await errands.save(Errand(who="Jun", number=2, what="trouble"))

        report = await db.work_once()

        assert (report.entries, report.poisoned) == (1, 1)
        assert seen == ["1: shop"]
        received = [message.text for message in await poisoned(db)]
        assert "Not today." in json.loads(received[0])["reason"]
        await errands.save(evolve(bad, what="cook"))
        report = await db.sweep(age=-1)
        assert report.entries == 2
        assert await db.verify(Errand) == []


async def poisoned(db: Any) -> Any:
    return await db.run(worker.receive(db.context, "partita-poison", 16))
