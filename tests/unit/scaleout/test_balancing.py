"""What one round of the balancer decides, and why."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from partita.scaleout.balancing import limits
from partita.scaleout.balancing.deciding import (
    Decision,
    Memory,
    MergeRanges,
    MoveRange,
    SplitRange,
    decide,
)
from partita.scaleout.balancing.picture import Picture, RangeLoad, ShardLoad

HOUR = limits.COLD_SECONDS


def a_range(identity: int, shard: str = "a", load: float = 0.0, **more: object) -> RangeLoad:
    """Return a range of a table of its own, with a load in parts of a shard."""
    plain = RangeLoad(identity, "account", f"T{identity}", "", None, shard, load=load)
    return msgspec.structs.replace(plain, **more)


def a_picture(*ranges: RangeLoad, shards: str = "ab", running: int = 0) -> Picture:
    return Picture([ShardLoad(name) for name in shards], [*ranges], 1.0, running)


def decided(picture: Picture, rounds: int = limits.BUSY_ROUNDS, now: float = 0.0) -> Decision:
    memory = Memory()
    for _ in range(rounds):
        memory.note(picture, now)
    return decide(picture, memory, now)


def test_a_range_with_more_than_half_a_shard_is_split_at_its_middle() -> None:
    (split,) = decided(a_picture(a_range(1, load=0.51, middle="m"))).actions

    assert split == SplitRange(1, "account", "T1", "m", "51% of the capacity of a shard")


def test_a_range_with_more_than_4_gib_is_split() -> None:
    (split,) = decided(a_picture(a_range(1, bytes=5 * 1024**3, middle="m"))).actions

    assert isinstance(split, SplitRange)
    assert split.reason == "5.0 GiB"


def test_a_hot_partition_is_reported_and_not_split() -> None:
    hot = a_range(1, load=0.6, middle="m", hot_key="Sales", hot_share=0.61)

    found = decided(a_picture(hot))

    assert found.actions == []
    assert found.notices[0].kind == "hot-partition"
    assert "61% of it in partition 'Sales'" in found.notices[0].text


def test_an_append_only_range_is_advised_and_not_split() -> None:
    found = decided(a_picture(a_range(1, load=0.6, middle="m", is_appending=True)))

    assert found.actions == []
    assert found.notices[0].kind == "append-only"


def test_a_busy_shard_gives_a_range_away_in_the_second_round_only() -> None:
    picture = a_picture(a_range(1, load=0.4), a_range(2, load=0.4))

    assert decided(picture, rounds=1).actions == []
    assert decided(picture, rounds=1).notices[0].kind == "waiting"
    (move,) = decided(picture, rounds=2).actions
    assert move == MoveRange(
        1, "a", "b", "a has 80% of its capacity; the range has 40%; b has 40% then"
    )


def test_of_the_ranges_that_are_enough_the_one_with_the_fewest_bytes_moves() -> None:
    ranges = [
        a_range(1, load=0.35, bytes=900),
        a_range(2, load=0.3, bytes=100),
        a_range(3, load=0.3, bytes=500),
    ]

    (move,) = decided(a_picture(*ranges)).actions

    assert isinstance(move, MoveRange)
    assert move.range_id == 2


def test_a_target_has_at_most_70_percent_afterwards() -> None:
    picture = a_picture(a_range(1, load=0.4), a_range(2, load=0.4), a_range(3, "b", load=0.31))

    found = decided(picture)

    assert found.actions == []
    assert "no other shard has room" in found.notices[0].text


def test_a_range_that_was_moved_a_short_time_ago_stays() -> None:
    ranges = [a_range(n, load=0.4, rested_seconds=limits.REST_SECONDS - 1) for n in (1, 2)]

    assert decided(a_picture(*ranges)).actions == []


def test_a_shard_above_its_capacity_overrides_rounds_rest_target_and_gain() -> None:
    ranges = [a_range(n, load=0.36, rested_seconds=1.0) for n in (1, 2, 3)]
    picture = a_picture(*ranges, a_range(4, "b", load=0.65))

    (move,) = decided(picture, rounds=1).actions

    assert isinstance(move, MoveRange)
    assert move.to == "b"


def test_the_moves_of_small_fleets_are_two_at_a_time() -> None:
    ranges = [a_range(n, "abc"[n % 3], load=0.4) for n in range(6)]
    picture = a_picture(*ranges, shards="abcdef")

    assert len(decided(picture).actions) == 2
    running = msgspec.structs.replace(picture, moves_running=1)
    assert len(decided(running).actions) == 1


def test_a_drained_shard_gives_everything_away() -> None:
    picture = Picture([ShardLoad("a", is_open=False), ShardLoad("b")], [a_range(1)], 1.0)

    (move,) = decided(picture, rounds=1).actions

    assert isinstance(move, MoveRange)
    assert move.reason.startswith("a is drained")


def test_a_shard_that_does_not_answer_takes_part_in_nothing() -> None:
    shards = [ShardLoad("a", is_reachable=False), ShardLoad("b")]
    ranges = [a_range(1, load=2.0, middle="m"), a_range(2, "b", 0.45), a_range(3, "b", 0.45)]
    picture = Picture(shards, ranges, 1.0)

    found = decided(picture)

    assert found.actions == []
    assert [each.kind for each in found.notices] == ["unreachable", "waiting"]


def test_neighbours_are_merged_after_an_hour_without_load() -> None:
    one = msgspec.structs.replace(a_range(1), table="T", upper="m")
    other = msgspec.structs.replace(a_range(2), table="T", lower="m")
    picture, memory = a_picture(one, other), Memory()

    memory.note(picture, 0.0)
    assert decide(picture, memory, HOUR - 1).actions == []
    (merge,) = decide(picture, memory, HOUR).actions
    assert merge == MergeRanges(1, 2, "both had less than 5% of a shard for 1 h")

    apart = a_picture(one, msgspec.structs.replace(other, shard="b"))
    assert decide(apart, memory, HOUR).actions == []


@given(
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.floats(0, 1.5), st.integers(0, 9), st.booleans()),
        max_size=12,
    ),
    st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_a_round_never_makes_the_busiest_shard_busier(
    found: list[tuple[str, float, int, bool]], are_open: list[bool]
) -> None:
    ranges = [
        a_range(n, shard, load, bytes=size, middle="m", is_busy=is_busy)
        for n, (shard, load, size, is_busy) in enumerate(found)
    ]
    shards = [ShardLoad(*each) for each in zip("abcd", are_open, strict=True)]
    picture = Picture(shards, ranges, 1.0)

    actions = decided(picture).actions

    touched = [each.range_id for each in actions if not isinstance(each, MergeRanges)]
    assert len(touched) == len(set(touched))
    assert not any(ranges[identity].is_busy for identity in touched)
    moves = [each for each in actions if isinstance(each, MoveRange)]
    ends = [shard for each in moves for shard in (each.source, each.to)]
    assert len(ends) == len(set(ends))
    loads = {name: sum(each.load for each in ranges if each.shard == name) for name in "abcd"}
    for move in moves:
        assert dict(zip("abcd", are_open, strict=True))[move.to]
        if dict(zip("abcd", are_open, strict=True))[move.source]:
            assert loads[move.to] + ranges[move.range_id].load < loads[move.source]
