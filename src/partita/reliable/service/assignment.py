"""Which members of a service hold which partitions, and which of them should be primary.

Pure: equal members and an equal previous placement give an equal placement. The shares of
replicas and of primaries differ by at most one, and as few replicas as possible are moved.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence

Placement = tuple[tuple[str, ...], ...]
"""The members of every partition, the preferred primary first."""


def assign(
    members: Iterable[str], partitions: int, copies: int, before: Sequence[Sequence[str]] = ()
) -> Placement:
    """Assign `copies` replicas of every partition, or as many as there are members.

    >>> assign(["a", "b"], 2, 1)
    (('a',), ('b',))
    >>> assign(["a", "b", "c"], 2, 1, before=(("c",), ("b",)))
    (('c',), ('b',))
    """
    names = sorted(set(members))
    if not names:
        return ((),) * partitions
    copies = min(copies, len(names))
    held = _previous_placement(names, partitions, copies, before)
    _share_replicas(held, names, copies)
    primaries = _share_primaries(held, names)
    return tuple(
        (primary, *(member for member in group if member != primary))
        for primary, group in zip(primaries, held, strict=True)
    )


def _previous_placement(
    names: Sequence[str], partitions: int, copies: int, before: Sequence[Sequence[str]]
) -> list[list[str]]:
    """Return the part of the previous placement that is still valid, in its order."""
    held = [[name for name in group if name in names][:copies] for group in before[:partitions]]
    return held + [[] for _ in range(partitions - len(held))]


def _share_replicas(held: list[list[str]], names: Sequence[str], copies: int) -> None:
    """Fill every partition up to `copies`, with equal shares of the members."""
    loads = Counter(dict.fromkeys(names, 0))
    loads.update(member for group in held for member in group)
    share, left_over = divmod(len(held) * copies, len(names))
    fullest_first = sorted(names, key=lambda name: (-loads[name], name))
    # The members with most replicas may keep one more, so that the fewest are moved.
    targets = {name: share + (n < left_over) for n, name in enumerate(fullest_first)}
    while any(loads[name] < targets[name] for name in names):
        taker, giver = _move(held, names, copies, (loads, targets))
        loads[taker] += 1
        loads[giver] -= 1


def _move(
    held: list[list[str]],
    names: Sequence[str],
    copies: int,
    shares: tuple[Counter[str], dict[str, int]],
) -> tuple[str, str]:
    """Give one more replica to a member below its share, by the shortest chain of moves.

    Returns the member with one more and the member with one less ("": a free place was used). In
    a chain each member takes from the next; it ends with a free place or a member above its share.
    """
    loads, targets = shares
    waiting = deque(name for name in names if loads[name] < targets[name])
    takers: dict[str, tuple[str, int]] = {}
    seen = set(waiting)
    while waiting:
        taker = waiting.popleft()
        for partition, group in enumerate(held):
            if taker in group:
                continue
            if len(group) < copies:
                group.append(taker)
                return _follow(held, takers, taker), ""
            for giver in reversed(group):  # the primary is moved last
                if giver in seen:
                    continue
                seen.add(giver)
                takers[giver] = taker, partition
                if loads[giver] > targets[giver]:
                    return _follow(held, takers, giver), giver
                waiting.append(giver)
    raise AssertionError("equal shares can always be reached")


def _follow(held: list[list[str]], takers: dict[str, tuple[str, int]], last: str) -> str:
    """Do the moves of a chain from its last giver on; return its first taker."""
    member = last
    while member in takers:
        taker, partition = takers[member]
        group = held[partition]
        group[group.index(member)] = taker
        member = taker
    return member


def _share_primaries(held: list[list[str]], names: Sequence[str]) -> list[str]:
    """Choose one member of each partition as primary, if possible the previous one."""
    chosen = [group[0] for group in held]
    loads = Counter(dict.fromkeys(names, 0))
    loads.update(chosen)
    least, left_over = divmod(len(held), len(names))
    most = least + (left_over > 0)
    while True:
        above = [name for name in names if loads[name] > most]
        below = [name for name in names if loads[name] < least]
        if above:
            below = [name for name in names if loads[name] < most]
        elif below:
            above = [name for name in names if loads[name] > least]
        else:
            return chosen
        giver, taker = _hand_over(held, chosen, above, below)
        loads[giver] -= 1
        loads[taker] += 1


def _hand_over(
    held: list[list[str]], chosen: list[str], above: Sequence[str], below: Sequence[str]
) -> tuple[str, str]:
    """Move one primary from a member above to one below, by the shortest chain."""
    waiting = deque(above)
    givers: dict[str, tuple[str, int]] = {}
    while waiting:
        giver = waiting.popleft()
        for partition, group in enumerate(held):
            if chosen[partition] != giver:
                continue
            for taker in group:
                if taker in givers or taker in above:
                    continue
                givers[taker] = giver, partition
                if taker in below:
                    return _follow_back(chosen, givers, taker), taker
                waiting.append(taker)
    raise AssertionError("equal shares of primaries can always be reached")


def _follow_back(chosen: list[str], givers: dict[str, tuple[str, int]], last: str) -> str:
    member = last
    while member in givers:
        giver, partition = givers[member]
        chosen[partition] = member
        member = giver
    return member
