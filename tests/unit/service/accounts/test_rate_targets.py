"""The scalability targets, on a clock that stands still until it is moved."""

from collections.abc import AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.clock import ManualClock
from partita.errors import EntityExistsError, EntityNotFoundError, GroupRuleError, StoreBusyError
from partita.service.accounts import rate_targets as module
from partita.service.accounts.account import DEVELOPMENT_ACCOUNT, DEVELOPMENT_KEY
from partita.service.accounts.rate_targets import Excess, RateTarget, Targets, counted
from partita.tables.engine import TableEngine
from partita.tables.entity import EntityKey
from partita.tables.filters import parse
from partita.tables.operations import Delete, EntityGroup, Insert, InsertOrReplace
from partita.tables.paging import KeyRange
from support.accounts import open_folder_account

KIB = 1024


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def targets(clock: ManualClock) -> Targets:
    return Targets(clock)


# The buckets


def test_a_partition_takes_two_thousand_entities_at_once_and_no_more(targets: Targets) -> None:
    answers = [targets.charge("acc", "Staff", "Sales", 100) for _ in range(20)]

    assert answers == [None] * 20
    assert targets.charge("acc", "Staff", "Sales", 1) == Excess(RateTarget.PARTITION, 0.0005)


def test_an_account_takes_twenty_thousand_entities_over_all_its_partitions(
    targets: Targets,
) -> None:
    for number in range(10):
        assert targets.charge("acc", "Staff", f"p{number}", 2_000) is None

    assert targets.charge("acc", "Other", "fresh", 1) == Excess(RateTarget.ACCOUNT, 0.00005)


def test_time_gives_the_rate_back(targets: Targets, clock: ManualClock) -> None:
    targets.charge("acc", "Staff", "Sales", 2_000)

    clock.advance(0.25)

    assert targets.charge("acc", "Staff", "Sales", 500) is None
    assert targets.charge("acc", "Staff", "Sales", 1) is not None


def test_idle_time_is_not_saved_up_beyond_one_second(targets: Targets, clock: ManualClock) -> None:
    targets.charge("acc", "Staff", "Sales", 1)

    clock.advance(3_600)

    assert targets.charge("acc", "Staff", "Sales", 2_000) is None
    assert targets.charge("acc", "Staff", "Sales", 1) is not None


def test_waiting_as_long_as_was_said_is_enough(targets: Targets, clock: ManualClock) -> None:
    targets.charge("acc", "Staff", "Sales", 1_950)
    excess = targets.charge("acc", "Staff", "Sales", 100)
    assert excess is not None

    clock.advance(excess.seconds)

    assert targets.charge("acc", "Staff", "Sales", 100) is None


def test_what_is_refused_takes_nothing(targets: Targets) -> None:
    targets.charge("acc", "Staff", "Sales", 1_950)

    for _ in range(1_000):
        assert targets.charge("acc", "Staff", "Sales", 100) is not None

    assert targets.charge("acc", "Staff", "Sales", 50) is None
    for number in range(9):
        assert targets.charge("acc", "Staff", f"p{number}", 2_000) is None


@pytest.mark.parametrize(
    "other",
    [("acc", "Staff", "Marketing"), ("acc", "Contractors", "Sales"), ("second", "Staff", "Sales")],
)
def test_each_partition_of_each_table_of_each_account_has_its_own(
    targets: Targets, other: tuple[str, str, str]
) -> None:
    targets.charge("acc", "Staff", "Sales", 2_000)

    assert targets.charge(*other, 2_000) is None


def test_a_table_is_the_same_in_any_case_of_its_letters(targets: Targets) -> None:
    targets.charge("acc", "Staff", "Sales", 2_000)

    assert targets.charge("acc", "sTAFF", "Sales", 1) is not None


def test_more_than_a_whole_bucket_passes_when_it_is_full_and_leaves_a_debt(
    targets: Targets, clock: ManualClock
) -> None:
    assert targets.charge("acc", "Staff", "Sales", 5_000) is None

    assert targets.charge("acc", "Staff", "Sales", 1) == Excess(RateTarget.PARTITION, 1.5005)
    clock.advance(1.5005)
    assert targets.charge("acc", "Staff", "Sales", 1) is None


def test_what_was_handed_out_already_is_owed(targets: Targets, clock: ManualClock) -> None:
    targets.charge("acc", "Staff", "Sales", 2_000)
    targets.owe("acc", "Staff", "Sales", 1_000)

    assert targets.charge("acc", "Staff", "Sales", 1) == Excess(RateTarget.PARTITION, 0.5005)
    clock.advance(0.5005)
    assert targets.charge("acc", "Staff", "Sales", 1) is None


def test_nothing_passes_where_one_would_and_is_never_counted(targets: Targets) -> None:
    for _ in range(100):
        assert targets.charge("acc", "Staff", "Sales", 0) is None
    assert targets.charge("acc", "Staff", "Sales", 2_000) is None

    assert targets.charge("acc", "Staff", "Sales", 0) == Excess(RateTarget.PARTITION, 0.0005)


def test_without_a_partition_only_the_account_is_asked(targets: Targets) -> None:
    targets.charge("acc", "Staff", "Sales", 2_000)

    assert targets.charge("acc", "Staff", None, 18_000) is None
    assert targets.charge("acc", "Staff", None, 1) == Excess(RateTarget.ACCOUNT, 0.00005)


def test_partitions_that_are_full_again_are_forgotten(targets: Targets, clock: ManualClock) -> None:
    for number in range(1_000):
        targets.charge("acc", "Staff", f"p{number}", 1)
    targets.owe("acc", "Staff", "indebted", 20_000)

    clock.advance(module.SWEEP_SECONDS)
    targets.charge("acc", "Staff", "fresh", 1)

    assert targets.partitions == 2
    assert targets.charge("acc", "Staff", "indebted", 1) is not None


def test_no_more_partitions_are_watched_than_the_limit(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WATCHED_PARTITIONS_MAX", 3)
    targets = Targets(clock)
    for name in ("a", "b", "c", "d"):
        targets.charge("acc", "Staff", name, 2_000)

    assert targets.partitions == 3
    assert targets.charge("acc", "Staff", "b", 1) is not None
    assert targets.charge("acc", "Staff", "a", 1) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from([0.0, 0.01, 0.1, 0.3, 1.0])), max_size=60
    )
)
def test_no_window_of_time_holds_more_than_its_rate_and_one_burst(
    asked: list[tuple[int, float]],
) -> None:
    clock = ManualClock()
    targets = Targets(clock, partition_rate=1_000)
    passed: list[tuple[float, int]] = []
    for entities, pause in asked:
        clock.advance(pause)
        if targets.charge("acc", "Staff", "Sales", entities) is None:
            passed.append((clock.monotonic(), entities))

    for first in range(len(passed)):
        for last in range(first, len(passed)):
            seconds = passed[last][0] - passed[first][0]
            together = sum(entities for _, entities in passed[first : last + 1])
            assert together <= 1_000 * (seconds + 1) + 1e-3


@pytest.mark.parametrize(("size", "count"), [(0, 1), (1, 1), (1024, 1), (1025, 2), (1024**2, 1024)])
def test_an_entity_counts_once_for_each_kibibyte_that_it_begins(size: int, count: int) -> None:
    assert counted(size) == count


def test_front_ends_divide_the_targets_by_their_present_number(clock: ManualClock) -> None:
    running = [4]
    targets = Targets(clock, front_ends=lambda: running[0])

    assert targets.charge("acc", "Staff", "Sales", 500) is None
    assert targets.charge("acc", "Staff", "Sales", 1) == Excess(RateTarget.PARTITION, 0.002)
    clock.advance(1)
    running[0] = 1
    assert targets.charge("acc", "Staff", "Sales", 2_000) is None


# The tables that keep to them


@pytest.fixture
async def tables(clock: ManualClock) -> AsyncIterator[TableEngine]:
    account = await open_folder_account(
        DEVELOPMENT_ACCOUNT, [DEVELOPMENT_KEY], root=None, clock=clock, targets=Targets(clock)
    )
    await account.tables.create_table("Staff")
    yield account.tables
    await account.close()


def inserts(partition_key: str, rows: range, size: int = 10) -> EntityGroup:
    return EntityGroup(
        [Insert(EntityKey(partition_key, f"{row:05}"), {"Name": "x" * (size // 2)}) for row in rows]
    )


async def fill(tables: TableEngine, partition_key: str = "Sales", count: int = 2_000) -> None:
    for row in range(0, count, 100):
        await tables.run("Staff", inserts(partition_key, range(row, row + 100)))


async def refusal(tables: TableEngine, partition_key: str = "Sales") -> StoreBusyError:
    with pytest.raises(StoreBusyError) as refused:
        await tables.get("Staff", EntityKey(partition_key, "00000"))
    return refused.value


async def test_a_group_above_the_target_is_refused_whole(
    tables: TableEngine, clock: ManualClock
) -> None:
    await fill(tables, count=1_900)
    await tables.run("Staff", inserts("Sales", range(1_900, 1_950)))

    with pytest.raises(StoreBusyError) as refused:
        await tables.run("Staff", inserts("Sales", range(1_950, 2_050)))

    assert refused.value.code == "ServerBusy"
    assert refused.value.facts == {"target": "partition", "retry_after": 1}
    clock.advance(1)
    with pytest.raises(EntityNotFoundError):
        await tables.get("Staff", EntityKey("Sales", "01950"))


async def test_another_partition_goes_on(tables: TableEngine) -> None:
    await fill(tables)
    await refusal(tables)

    await fill(tables, "Marketing")


async def test_above_the_target_of_the_account_every_partition_is_refused(
    tables: TableEngine,
) -> None:
    for number in range(10):
        await fill(tables, f"p{number}")

    error = await refusal(tables, "fresh")

    assert error.facts["target"] == "account"


async def test_a_failed_write_counts_as_well(tables: TableEngine) -> None:
    await fill(tables, count=1_900)
    with pytest.raises(EntityExistsError):
        await tables.run("Staff", inserts("Sales", range(100)))

    await refusal(tables)


async def test_deletes_count_one_each(tables: TableEngine, clock: ManualClock) -> None:
    await fill(tables, count=1_000)
    clock.advance(10)
    for row in range(0, 1_000, 100):
        keys = [EntityKey("Sales", f"{row + each:05}") for each in range(100)]
        await tables.run("Staff", EntityGroup([Delete(key) for key in keys]))

    await fill(tables, count=1_000)
    await refusal(tables)


async def test_a_point_read_counts_one_also_when_it_finds_nothing(
    tables: TableEngine, clock: ManualClock
) -> None:
    await tables.run("Staff", inserts("Sales", range(1)))
    clock.advance(10)
    for row in range(2_000):
        if row == 0:
            await tables.get("Staff", EntityKey("Sales", "00000"))
            continue
        with pytest.raises(EntityNotFoundError):
            await tables.get("Staff", EntityKey("Sales", "absent"))

    await refusal(tables)


async def test_a_large_entity_counts_for_several_when_written_and_when_read(
    tables: TableEngine, clock: ManualClock
) -> None:
    large = InsertOrReplace(EntityKey("Sales", "00000"), {"A": "x" * 20_000, "B": "x" * 20_000})
    for _ in range(25):
        await tables.run("Staff", EntityGroup([large]))
    with pytest.raises(StoreBusyError):
        await tables.run("Staff", EntityGroup([large]))

    clock.advance(10)
    for _ in range(26):
        await tables.get("Staff", large.key)
    error = await refusal(tables)

    assert error.facts == {"target": "partition", "retry_after": 1}


async def test_what_a_query_returns_is_a_debt_that_the_next_request_meets(
    tables: TableEngine, clock: ManualClock
) -> None:
    await fill(tables, count=1_000)
    clock.advance(10)
    in_sales = parse("PartitionKey eq 'Sales'")
    for _ in range(2):
        _, page = await tables.query("Staff", in_sales, within=KeyRange())
        assert len(page.entities) == 1_000

    with pytest.raises(StoreBusyError):
        await tables.query("Staff", in_sales, within=KeyRange())

    clock.advance(0.5)
    await tables.query("Staff", in_sales, within=KeyRange())


async def test_a_table_scan_is_charged_to_the_partitions_that_it_returns(
    tables: TableEngine, clock: ManualClock
) -> None:
    await fill(tables, "a", count=500)
    await fill(tables, "b", count=500)
    clock.advance(10)
    for _ in range(4):
        await tables.query("Staff", None, within=KeyRange())

    await tables.query("Staff", None, within=KeyRange())
    assert (await refusal(tables, "a")).facts["target"] == "partition"
    assert (await refusal(tables, "b")).facts["target"] == "partition"


async def test_a_query_that_finds_nothing_counts_one(tables: TableEngine) -> None:
    nobody = parse("PartitionKey eq 'Sales' and Name eq 'nobody'")
    for _ in range(2_000):
        await tables.query("Staff", nobody, within=KeyRange())

    await refusal(tables)


async def test_a_group_that_breaks_a_rule_is_told_so_and_counts_nothing(
    tables: TableEngine,
) -> None:
    await fill(tables)
    twice = [Delete(EntityKey("Sales", "00000"))] * 2

    for operations in (twice, []):
        with pytest.raises(GroupRuleError):
            await tables.run("Staff", EntityGroup(operations))


async def test_without_targets_the_tables_are_the_plain_ones(clock: ManualClock) -> None:
    account = await open_folder_account(
        DEVELOPMENT_ACCOUNT, [DEVELOPMENT_KEY], root=None, clock=clock
    )

    assert type(account.tables) is TableEngine
    await account.close()
