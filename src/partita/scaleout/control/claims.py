"""Which ranges a table has after a restore or a failover: decided by epochs. Pure.

Shards claim ranges (`range_own`), and so does the catalog. Epochs are never used twice, and each
change of a range takes later ones, so that of two claims with a common key the later epoch is the
newer state. A shard that was restored may have an earlier state of its own ranges, for example from
before a split: it then serves the newer ranges with the entities that it has.
"""

from collections.abc import Sequence

import msgspec


class RangeClaim(msgspec.Struct, frozen=True, order=True):
    """A range of one table, as the catalog lists it or a shard serves it."""

    lo: str
    hi: str | None
    epoch: int
    id: int
    shard: int

    def overlaps(self, other: "RangeClaim") -> bool:
        """Return whether both have a common key."""
        return (self.hi is None or other.lo < self.hi) and (other.hi is None or self.lo < other.hi)


class Resolution(msgspec.Struct, frozen=True):
    """What to do for one table."""

    ranges: tuple[RangeClaim, ...]
    """All ranges, in key order."""
    missing: tuple[RangeClaim, ...]
    """Those of them that their shard cannot serve: it does not have all of their keys."""
    contested: bool = False
    """Whether the claims do not fit together; nothing is changed then."""


def resolve(
    listed: Sequence[RangeClaim], served: Sequence[RangeClaim], away: Sequence[int]
) -> Resolution:
    """Choose the ranges of a table from what the catalog lists and what shards serve.

    Shards in `away` did not answer: what the catalog lists for them is believed.

    >>> old, new = RangeClaim("", None, 4, 1, 0), RangeClaim("", None, 7, 1, 1)
    >>> resolve([new], [old, new], []).ranges == (new,)
    True
    """
    chosen: list[RangeClaim] = []
    # The catalog's first: a shard that serves the same range is not another claim.
    for claim in sorted([*listed, *served], key=lambda each: -each.epoch):
        if not any(claim.overlaps(each) for each in chosen):
            chosen.append(claim)
    chosen.sort()
    if not _covers(chosen):
        return Resolution(tuple(sorted(listed)), (), contested=True)
    missing = [
        claim
        for claim in chosen
        if claim.shard not in away
        and not _covers([each for each in served if each.shard == claim.shard], claim)
    ]
    return Resolution(tuple(chosen), tuple(missing))


def _covers(claims: Sequence[RangeClaim], of: RangeClaim | None = None) -> bool:
    """Return whether claims have all keys of a range, or all there are."""
    reached = "" if of is None else of.lo
    for claim in sorted(claims):
        if claim.lo > reached:
            break
        if claim.hi is None:
            return True
        reached = max(reached, claim.hi)
    return of is not None and of.hi is not None and reached >= of.hi
