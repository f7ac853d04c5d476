import pytest

from partita.reliable.state.locks import LockMode, LockTable, Resource, Waiter

S, U, X = LockMode.SHARED, LockMode.UPDATE, LockMode.EXCLUSIVE
KEY: Resource = (1, b"key")
OTHER: Resource = (1, b"other")
THIRD: Resource = (2, b"key")


def waits(table: LockTable, owner: str, resource: Resource, mode: LockMode) -> Waiter:
    waiter = table.acquire(owner, resource, mode)
    assert waiter is not None
    assert waiter.is_waiting
    return waiter


def holds(table: LockTable, owner: str, resource: Resource, mode: LockMode) -> None:
    assert table.acquire(owner, resource, mode) is None
    held = table.mode_of(owner, resource)
    assert held is not None
    assert held >= mode


def queue(table: LockTable, resource: Resource = KEY) -> list[str]:
    return [waiter.owner for waiter in table.queue(resource)]


# The matrix


@pytest.mark.parametrize("mode", [S, U, X])
def test_a_free_resource_is_granted_in_any_mode(mode: LockMode) -> None:
    table = LockTable()

    assert table.acquire("a", KEY, mode) is None

    assert table.holders(KEY) == {"a": mode}


@pytest.mark.parametrize(
    ("granted", "requested", "is_compatible"),
    [
        (S, S, True),
        (S, U, True),
        (S, X, False),
        (U, S, False),
        (U, U, False),
        (U, X, False),
        (X, S, False),
        (X, U, False),
        (X, X, False),
    ],
)
def test_the_matrix_decides_between_two_owners(
    granted: LockMode, requested: LockMode, is_compatible: bool
) -> None:
    table = LockTable()
    holds(table, "a", KEY, granted)

    waiter = table.acquire("b", KEY, requested)

    assert (waiter is None) == is_compatible
    assert table.mode_of("b", KEY) == (requested if is_compatible else None)
    assert table.mode_of("a", KEY) == granted


@pytest.mark.parametrize("requested", [S, U, X])
def test_readers_with_an_update_among_them_let_nobody_in(requested: LockMode) -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    holds(table, "b", KEY, U)

    waits(table, "c", KEY, requested)

    assert table.holders(KEY) == {"a": S, "b": U}


def test_resources_differ_by_key_by_collection_and_from_the_whole_collection() -> None:
    table = LockTable()

    holds(table, "a", (1, b"k"), X)
    holds(table, "b", (2, b"k"), X)
    holds(table, "c", (1, b""), X)
    holds(table, "d", (1, None), X)

    waits(table, "e", (1, None), S)


# The same owner again


@pytest.mark.parametrize("held", [S, U, X])
@pytest.mark.parametrize("requested", [S, U, X])
def test_an_owner_alone_gets_every_mode_and_loses_none(held: LockMode, requested: LockMode) -> None:
    table = LockTable()
    holds(table, "a", KEY, held)

    assert table.acquire("a", KEY, requested) is None

    assert table.mode_of("a", KEY) == max(held, requested)
    assert table.held_count("a") == 1


def test_a_lesser_request_passes_those_who_wait() -> None:
    table = LockTable()
    holds(table, "a", KEY, U)
    waits(table, "b", KEY, X)

    assert table.acquire("a", KEY, S) is None

    assert table.mode_of("a", KEY) == U


@pytest.mark.parametrize(
    ("held", "requested", "is_granted"), [(S, U, True), (S, X, False), (U, X, False)]
)
def test_an_upgrade_beside_a_reader_follows_the_matrix(
    held: LockMode, requested: LockMode, is_granted: bool
) -> None:
    table = LockTable()
    holds(table, "reader", KEY, S)
    holds(table, "a", KEY, held)

    waiter = table.acquire("a", KEY, requested)

    assert (waiter is None) == is_granted


def test_an_upgrade_to_update_waits_for_another_update() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    holds(table, "b", KEY, U)

    waiter = waits(table, "a", KEY, U)
    table.release_all("b")

    assert waiter.granted
    assert table.holders(KEY) == {"a": U}


@pytest.mark.parametrize("held", [S, U])
def test_an_upgrade_to_exclusive_is_granted_when_the_readers_have_gone(held: LockMode) -> None:
    table = LockTable()
    holds(table, "reader", KEY, S)
    holds(table, "other reader", KEY, S)
    holds(table, "a", KEY, held)
    waiter = waits(table, "a", KEY, X)

    table.release_all("reader")
    assert table.holders(KEY) == {"other reader": S, "a": held}
    table.release_all("other reader")

    assert waiter.granted
    assert table.holders(KEY) == {"a": X}


@pytest.mark.parametrize(("held", "requested"), [(S, U), (S, X), (U, X)])
def test_an_upgrade_of_the_only_holder_passes_those_who_wait(
    held: LockMode, requested: LockMode
) -> None:
    table = LockTable()
    holds(table, "a", KEY, held)
    waits(table, "b", KEY, X)

    assert table.acquire("a", KEY, requested) is None

    assert queue(table) == ["b"]


def test_a_compatible_upgrade_passes_those_who_wait() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    holds(table, "reader", KEY, S)
    waits(table, "b", KEY, X)

    assert table.acquire("a", KEY, U) is None


def test_a_time_out_of_an_upgrade_leaves_what_was_held() -> None:
    table = LockTable()
    holds(table, "reader", KEY, S)
    holds(table, "a", KEY, U)
    waiter = waits(table, "a", KEY, X)

    table.give_up(waiter)

    assert table.holders(KEY) == {"reader": S, "a": U}
    waits(table, "late", KEY, S)


# The queue


def test_a_compatible_newcomer_waits_behind_those_who_wait() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    waits(table, "b", KEY, X)

    waits(table, "c", KEY, S)

    assert queue(table) == ["b", "c"]


def test_those_who_wait_are_granted_in_order_as_far_as_the_matrix_goes() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    waiters = [
        waits(table, owner, KEY, mode)
        for owner, mode in [("b", S), ("c", S), ("d", U), ("e", S), ("f", X), ("g", S)]
    ]

    table.release_all("a")

    assert [waiter.granted for waiter in waiters] == [True, True, True, False, False, False]
    assert table.holders(KEY) == {"b": S, "c": S, "d": U}
    assert queue(table) == ["e", "f", "g"]


def test_one_who_cannot_be_granted_holds_up_those_behind() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    holds(table, "b", KEY, U)
    waits(table, "c", KEY, X)
    waits(table, "d", KEY, S)

    table.release_all("b")

    assert queue(table) == ["c", "d"]


def test_upgrades_wait_before_the_others_and_behind_earlier_upgrades() -> None:
    table = LockTable()
    holds(table, "guard", KEY, S)
    for reader in ("a", "b"):
        holds(table, reader, KEY, S)
    holds(table, "guard", KEY, U)
    waits(table, "c", KEY, S)
    waits(table, "d", KEY, X)

    waits(table, "a", KEY, U)
    waits(table, "b", KEY, U)

    assert queue(table) == ["a", "b", "c", "d"]


def test_giving_up_lets_those_behind_in() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    blocked = waits(table, "b", KEY, X)
    behind = [waits(table, owner, KEY, S) for owner in ("c", "d")]

    table.give_up(blocked)

    assert not blocked.granted
    assert not blocked.deadlock_with
    assert all(waiter.granted for waiter in behind)
    assert table.holders(KEY) == {"a": S, "c": S, "d": S}


def test_giving_up_from_the_middle_changes_nothing_for_the_others() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    first, middle, last = (waits(table, owner, KEY, S) for owner in ("b", "c", "d"))

    table.give_up(middle)

    assert first.is_waiting
    assert last.is_waiting
    assert queue(table) == ["b", "d"]


def test_giving_up_after_the_end_changes_nothing() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    waiter = waits(table, "b", KEY, X)
    table.release_all("a")

    table.give_up(waiter)

    assert waiter.granted
    assert table.mode_of("b", KEY) == X


def test_an_owner_who_gave_up_may_ask_again_at_the_end_of_the_queue() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    waiter = waits(table, "b", KEY, X)
    waits(table, "c", KEY, X)
    table.give_up(waiter)

    waits(table, "b", KEY, X)

    assert queue(table) == ["c", "b"]


def test_two_requests_of_one_owner_at_once_are_a_programming_error() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    waits(table, "b", KEY, X)

    with pytest.raises(AssertionError):
        table.acquire("b", OTHER, S)


def test_trying_takes_what_is_free_and_never_waits() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)

    assert table.try_acquire("b", KEY, S)
    assert not table.try_acquire("b", KEY, X)

    assert table.waiting_count() == 0
    assert table.mode_of("b", KEY) == S


def test_trying_ends_nobodys_wait_where_waiting_would_close_a_circle() -> None:
    table = LockTable()
    holds(table, "old", KEY, X)
    holds(table, "young", OTHER, X)
    waiter = waits(table, "young", KEY, X)

    assert not table.try_acquire("old", OTHER, X)

    assert waiter.is_waiting


# Release


def test_release_shared_keeps_what_is_exclusive() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    holds(table, "a", OTHER, U)
    holds(table, "a", THIRD, X)
    readers = [waits(table, "b", OTHER, S), waits(table, "c", THIRD, S)]

    table.release_shared("a")

    assert [table.mode_of("a", resource) for resource in (KEY, OTHER, THIRD)] == [None, None, X]
    assert [waiter.granted for waiter in readers] == [True, False]
    assert table.held_count("a") == 1


def test_release_shared_keeps_an_upgraded_lock() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    holds(table, "a", KEY, X)

    table.release_shared("a")

    assert table.mode_of("a", KEY) == X


def test_release_shared_keeps_the_age_of_the_owner() -> None:
    table = LockTable()
    holds(table, "old", THIRD, S)
    holds(table, "young", OTHER, X)
    table.release_shared("old")
    holds(table, "old", KEY, X)
    waiter = waits(table, "young", KEY, X)

    assert waits(table, "old", OTHER, X).is_waiting

    assert waiter.deadlock_with == "old"


def test_release_all_of_a_stranger_changes_nothing() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)

    table.release_all("b")
    table.release_shared("b")

    assert table.holders(KEY) == {"a": X}


def test_release_all_withdraws_what_waits_and_wakes_it() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    blocked, behind = waits(table, "b", KEY, X), waits(table, "c", KEY, S)
    woken: list[Waiter] = []
    blocked.wake = woken.append

    table.release_all("b")

    assert woken == [blocked]
    assert not blocked.granted
    assert not blocked.is_waiting
    assert behind.granted


def test_release_all_of_an_upgrade_that_waits_leaves_nothing_of_the_owner() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)
    holds(table, "b", KEY, S)
    waits(table, "b", KEY, X)

    table.release_all("b")

    assert table.holders(KEY) == {"a": S}
    assert table.queue(KEY) == []


def test_the_table_is_empty_when_all_owners_are_released() -> None:
    table = LockTable()
    assert table.is_empty()
    for owner in ("a", "b", "c"):
        holds(table, owner, KEY, S)
        holds(table, owner, (7, owner.encode()), X)
    waits(table, "b", KEY, X)
    waits(table, "d", KEY, X)
    table.give_up(waits(table, "e", KEY, S))

    for owner in ("a", "b", "c", "d"):
        table.release_all(owner)
        assert not table.is_empty()
    table.release_all("e")

    assert table.is_empty()


def test_a_lock_granted_from_the_queue_is_released_like_any_other() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    waits(table, "b", KEY, X)
    table.release_all("a")

    table.release_all("b")

    assert table.is_empty()


# Callbacks and questions


def test_each_wait_is_woken_once_in_order() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    woken: list[str] = []
    for owner in ("b", "c"):
        waits(table, owner, KEY, S).wake = lambda waiter: woken.append(waiter.owner)

    table.release_all("a")
    table.release_all("b")
    table.release_all("c")

    assert woken == ["b", "c"]


def test_who_gives_up_is_not_woken() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    waiter = waits(table, "b", KEY, X)
    woken: list[Waiter] = []
    waiter.wake = woken.append

    table.give_up(waiter)
    table.release_all("a")

    assert woken == []


def test_a_callback_finds_the_table_in_order_and_may_use_it() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    holds(table, "a", OTHER, X)
    seen: list[tuple[str, dict[str, LockMode]]] = []

    def pass_on(waiter: Waiter) -> None:
        seen.append((waiter.owner, table.holders(OTHER)))
        table.release_all(waiter.owner)

    for owner, resource in [("b", KEY), ("c", KEY), ("d", OTHER)]:
        waits(table, owner, resource, X).wake = pass_on

    table.release_all("a")

    assert seen == [("b", {"d": X}), ("d", {"d": X}), ("c", {})]
    assert table.is_empty()


def test_a_request_granted_by_the_callback_of_its_victim_does_not_wait() -> None:
    table = LockTable()
    holds(table, "old", KEY, X)
    holds(table, "young", OTHER, X)
    waits(table, "young", KEY, X).wake = lambda waiter: table.release_all(waiter.owner)

    assert table.acquire("old", OTHER, X) is None

    assert table.holders(OTHER) == {"old": X}


def test_the_oldest_holder_is_the_one_that_has_held_longest() -> None:
    table = LockTable()
    holds(table, "first", OTHER, S)
    for owner in ("b", "first", "c"):
        holds(table, owner, KEY, S)
    holds(table, "first", KEY, U)

    assert table.oldest_holder(KEY) == "b"
    assert table.oldest_holder(KEY, but_for="b") == "first"
    assert table.oldest_holder(THIRD) == ""
    assert table.oldest_holder(OTHER, but_for="first") == ""


def test_the_holders_given_out_are_a_copy() -> None:
    table = LockTable()
    holds(table, "a", KEY, S)

    table.holders(KEY).clear()
    table.queue(KEY).append(waits(table, "b", KEY, X))

    assert table.holders(KEY) == {"a": S}
    assert queue(table) == ["b"]


# Circles


def test_two_readers_who_both_want_to_write_are_a_deadlock_of_the_younger() -> None:
    table = LockTable()
    holds(table, "old", KEY, S)
    holds(table, "young", KEY, S)
    first = waits(table, "old", KEY, X)

    second = table.acquire("young", KEY, X)

    assert second is not None
    assert second.deadlock_with == "old"
    assert not second.is_waiting
    assert not second.granted
    assert first.is_waiting
    assert table.mode_of("young", KEY) == S
    table.release_all("young")
    assert first.granted


def test_the_younger_is_the_victim_though_it_waited_first() -> None:
    table = LockTable()
    holds(table, "old", KEY, S)
    holds(table, "young", KEY, S)
    first = waits(table, "young", KEY, X)
    woken: list[tuple[str, str]] = []
    first.wake = lambda waiter: woken.append((waiter.owner, waiter.deadlock_with))

    second = waits(table, "old", KEY, X)

    assert woken == [("young", "old")]
    assert not first.granted
    table.release_all("young")
    assert second.granted


def test_two_keys_taken_in_opposite_order_are_a_deadlock() -> None:
    table = LockTable()
    holds(table, "a", KEY, X)
    holds(table, "b", OTHER, X)
    waits(table, "a", OTHER, S)

    waiter = table.acquire("b", KEY, S)

    assert waiter is not None
    assert waiter.deadlock_with == "a"


def test_three_in_a_circle_are_a_deadlock_of_the_youngest() -> None:
    table = LockTable()
    holds(table, "old", KEY, X)
    holds(table, "youngest", THIRD, X)
    table.release_all("youngest")
    holds(table, "middle", OTHER, X)
    holds(table, "youngest", THIRD, X)
    waits(table, "old", OTHER, X)
    victim = waits(table, "youngest", KEY, X)

    waiter = waits(table, "middle", THIRD, X)

    assert victim.deadlock_with == "old"
    assert not victim.is_waiting
    table.release_all("youngest")
    assert waiter.granted


def test_age_counts_from_the_first_request_of_the_transaction() -> None:
    table = LockTable()
    holds(table, "a", THIRD, S)
    holds(table, "b", OTHER, X)
    holds(table, "a", KEY, X)
    waiter = waits(table, "b", KEY, X)

    waits(table, "a", OTHER, X)

    assert waiter.deadlock_with == "a"


def test_a_long_chain_of_waits_is_not_a_deadlock() -> None:
    table = LockTable()
    for place in range(50):
        holds(table, f"t{place}", (1, b"%d" % place), X)

    waiters = [waits(table, f"t{place}", (1, b"%d" % (place + 1)), X) for place in range(49)]

    assert all(waiter.is_waiting for waiter in waiters)
    for place in reversed(range(50)):
        table.release_all(f"t{place}")
        assert place == 0 or waiters[place - 1].granted
    assert table.is_empty()


def test_two_ways_to_the_same_holder_are_no_deadlock() -> None:
    table = LockTable()
    holds(table, "d", KEY, X)
    holds(table, "b", OTHER, S)
    holds(table, "c", OTHER, S)
    waits(table, "b", KEY, X)
    waits(table, "c", KEY, X)

    waits(table, "a", OTHER, X)

    assert table.waiting_count() == 3


def test_a_circle_through_a_place_in_the_queue_is_found() -> None:
    table = LockTable()
    holds(table, "reader", KEY, S)
    holds(table, "late", OTHER, X)
    writer = waits(table, "writer", KEY, X)
    late = waits(table, "late", KEY, S)

    # late waits only for writer, who stands before it, and writer for reader.
    waits(table, "reader", OTHER, X)

    assert writer.deadlock_with == "reader"
    assert late.granted


def test_an_upgrade_that_goes_before_others_can_close_a_circle_with_them() -> None:
    table = LockTable()
    for owner in ("a", "reader", "guard"):
        holds(table, owner, KEY, S)
    holds(table, "guard", KEY, U)
    holds(table, "late", OTHER, X)
    late = waits(table, "late", KEY, S)
    reader = waits(table, "reader", OTHER, S)

    upgrade = waits(table, "a", KEY, X)

    # a waits for reader, reader for late, and late for a since a went before it.
    assert late.deadlock_with == "a"
    assert reader.is_waiting
    assert upgrade.is_waiting


def test_the_end_of_a_victims_wait_lets_those_behind_it_in() -> None:
    table = LockTable()
    holds(table, "old", KEY, S)
    holds(table, "young", OTHER, X)
    holds(table, "bystander", THIRD, S)
    victim = waits(table, "young", KEY, X)
    behind = waits(table, "bystander", KEY, S)

    waiter = waits(table, "old", OTHER, X)

    assert victim.deadlock_with == "old"
    assert behind.granted
    assert waiter.is_waiting


def test_one_request_that_closes_two_circles_breaks_both() -> None:
    table = LockTable()
    holds(table, "old", KEY, X)
    holds(table, "b", OTHER, S)
    holds(table, "c", OTHER, S)
    victims = [waits(table, "b", KEY, S), waits(table, "c", KEY, S)]

    waiter = waits(table, "old", OTHER, X)

    assert [victim.deadlock_with for victim in victims] == ["old", "old"]
    assert waiter.is_waiting


def test_a_victim_may_ask_again_and_is_a_victim_again() -> None:
    table = LockTable()
    holds(table, "old", KEY, S)
    holds(table, "young", KEY, S)
    waits(table, "old", KEY, X)
    table.acquire("young", KEY, X)

    again = table.acquire("young", KEY, X)

    assert again is not None
    assert again.deadlock_with == "old"


def test_a_circle_through_a_long_queue_is_found_once() -> None:
    table = LockTable()
    holds(table, "first", KEY, X)
    holds(table, "last", OTHER, X)
    crowd = [waits(table, f"t{place}", KEY, X) for place in range(300)]
    victim = waits(table, "last", KEY, X)

    waits(table, "first", OTHER, X)

    assert victim.deadlock_with == "first"
    assert all(waiter.is_waiting for waiter in crowd)
