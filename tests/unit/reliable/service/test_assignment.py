from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.reliable.service.assignment import Placement, assign

names = st.text("abcdefgh0123456789", min_size=1, max_size=4)
member_sets = st.sets(names, min_size=1, max_size=12)
partition_counts = st.integers(1, 40)
copy_counts = st.sampled_from([1, 2, 3, 5])


def spread(loads: Counter[str]) -> int:
    return max(loads.values()) - min(loads.values())


def replicas_of(placement: Placement, members: set[str]) -> Counter[str]:
    counted = Counter(dict.fromkeys(members, 0))
    counted.update(member for group in placement for member in group)
    return counted


def primaries_of(placement: Placement, members: set[str]) -> Counter[str]:
    counted = Counter(dict.fromkeys(members, 0))
    counted.update(group[0] for group in placement)
    return counted


def placed_anew(before: Placement, after: Placement) -> list[str]:
    return [
        member
        for old, new in zip(before, after, strict=True)
        for member in new
        if member not in old
    ]


@given(member_sets, partition_counts, copy_counts)
def test_every_partition_has_its_copies_on_different_members(
    members: set[str], partitions: int, copies: int
) -> None:
    placement = assign(members, partitions, copies)

    assert len(placement) == partitions
    for group in placement:
        assert len(set(group)) == len(group) == min(copies, len(members))
        assert set(group) <= members


@given(member_sets, partition_counts, copy_counts, st.lists(names, max_size=8))
def test_shares_differ_by_one_at_most_through_every_change(
    members: set[str], partitions: int, copies: int, changes: list[str]
) -> None:
    placement: Placement = ()
    for change in ["", *changes]:
        if change:
            members = members ^ {change} or members
        placement = assign(members, partitions, copies, placement)

        assert spread(replicas_of(placement, members)) <= 1
        assert spread(primaries_of(placement, members)) <= 1
        assert all(len(set(group)) == min(copies, len(members)) for group in placement)


@given(member_sets, partition_counts, copy_counts, st.randoms(use_true_random=False))
def test_the_order_of_the_members_does_not_matter(
    members: set[str], partitions: int, copies: int, chance: object
) -> None:
    shuffled = sorted(members)
    getattr(chance, "shuffle")(shuffled)  # noqa: B009 - hypothesis' Random has no type

    assert assign(shuffled, partitions, copies) == assign(members, partitions, copies)


@given(member_sets, partition_counts, copy_counts)
def test_nothing_moves_while_the_members_stay(
    members: set[str], partitions: int, copies: int
) -> None:
    placement = assign(members, partitions, copies)

    assert assign(members, partitions, copies, placement) == placement


@given(member_sets, names, partition_counts, copy_counts)
def test_who_joins_takes_its_share_and_nobody_else_takes_anything(
    members: set[str], newcomer: str, partitions: int, copies: int
) -> None:
    members = members - {newcomer} or {newcomer + "-"}
    before = assign(members, partitions, copies)
    after = assign({*members, newcomer}, partitions, copies, before)
    moved = placed_anew(before, after)
    total = sum(map(len, after))

    assert set(moved) <= {newcomer}
    assert len(moved) == total // (len(members) + 1)


@given(member_sets, partition_counts, copy_counts, st.data())
def test_who_leaves_moves_little_more_than_what_it_held(
    members: set[str], partitions: int, copies: int, draw: st.DataObject
) -> None:
    gone = draw.draw(st.sampled_from(sorted(members)))
    before = assign(members, partitions, copies)
    after = assign(members - {gone}, partitions, copies, before)
    moved = placed_anew(before, after)
    left_behind = sum(gone in group for group in before)

    # A chain of two moves is needed where who has room holds the partition already.
    assert len(moved) <= 2 * left_behind


@given(member_sets, partition_counts, copy_counts, st.data())
def test_a_primary_moves_only_for_the_sake_of_equal_shares(
    members: set[str], partitions: int, copies: int, draw: st.DataObject
) -> None:
    gone = draw.draw(st.sampled_from(sorted(members)))
    before = assign(members, partitions, copies)
    after = assign(members - {gone} or members, partitions, copies, before)
    kept = sum(old[0] == new[0] for old, new in zip(before, after, strict=True))
    orphans = sum(old[0] == gone for old in before)

    assert kept >= partitions - 3 * orphans


def test_without_members_nobody_holds_anything() -> None:
    assert assign([], 2, 3) == ((), ())


@pytest.mark.parametrize(("members", "copies"), [(2, 3), (3, 3), (4, 3), (7, 5)])
def test_six_partitions_are_shared_evenly(members: int, copies: int) -> None:
    everybody = {f"member-{n}" for n in range(members)}
    placement = assign(everybody, 6, copies)

    assert set(primaries_of(placement, everybody).values()) <= {6 // members, -(-6 // members)}
