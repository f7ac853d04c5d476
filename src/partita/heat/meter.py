"""Meter: samples the entities that the requests of one account read and write.

On the request path a point read or write is counted inline, because a call would cost more than
the measurement:

    meter.left -= 1
    if meter.left <= 0:
        meter.take(table, key, kind, size)

A random one in `stride` entities is sampled and counts for `stride`, so that loads in turn do not
hide between the samples. With a stride of 1 every request is sampled and the counts are exact.
"""

import math
from array import array

from partita.heat.limits import KEY_CHARACTERS_MAX, SAMPLES_MAX, SAMPLES_PER_SECOND
from partita.ticks import Clock

READ, SCAN, WRITE = 0, 1, 2
"""Kinds of requests: a read in one partition, a query over several, a write."""

_DRAWN_AT_ONCE = 1024

Key = tuple[str, str]
"""A partition key and a row key."""

END: Key = ("\U0010ffff", "")
"""The end of a range of which no last key is known; see `partita.heat.axes.END`."""

Sample = tuple[str, Key, Key, int, int, int]
"""A table; the first and the last key that a request touched; the kind of the request; the entities
and the bytes that the sample stands for."""


class Meter:
    """The samples of one account. One thread uses it; `Meter(None)` never samples."""

    __slots__ = ("_clock", "_drawn", "_random", "_since", "left", "marked", "samples", "stride")

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._random: array[int] = array("I")
        self._since = 0.0 if clock is None else clock.monotonic()
        self._drawn = 0
        """Entities counted since `_since`, and those of `left`."""
        self.stride = 1
        self.left: float = math.inf
        """Entities until the next sample; infinite if nothing is measured."""
        self.samples: list[Sample] = []
        """Those of the open minute."""
        self.marked = 0
        """How many of them `fresh` has returned."""
        if clock is not None:
            self.left = 0
            self._draw()

    def take(self, table: str, key: Key, kind: int, size: int) -> None:
        """Sample the entity for which `left` became 0; `size` is in bytes."""
        if len(key[0]) + len(key[1]) > KEY_CHARACTERS_MAX:
            key = cut_key(key)
        stride = self.stride
        self.samples.append((table, key, key, kind, stride, size * stride))
        if stride == 1:
            self.left = 1
            self._drawn += 1
        else:
            self._draw()
        if len(self.samples) > SAMPLES_MAX:
            self._thin()

    def count(self, table: str, key: Key, kind: int) -> None:
        """Count an entity without bytes, such as one that was not found."""
        self.left -= 1
        if self.left <= 0:
            self.take(table, key, kind, 0)

    def span(self, table: str, first: Key, last: Key, kind: int, entities: int, size: int) -> None:
        """Count `entities` in a range of keys: a group or a page.

        A range of more entities than the stride is always sampled, so that few large requests are
        measured as exactly as many small ones.
        """
        if self.left == math.inf:
            return
        entities = max(1, entities)
        if entities >= self.stride:
            weight = entities
            self._drawn += entities
        else:
            self.left -= entities
            weight = 0
            while self.left <= 0:
                weight += self.stride
                self._draw()
            if not weight:
                return
        size = size * weight // entities
        self.samples.append((table, cut_key(first), cut_key(last), kind, weight, size))
        if len(self.samples) > SAMPLES_MAX:
            self._thin()

    def adapt(self) -> None:
        """Choose the stride from the rate since the last call; called once a second."""
        if self._clock is None or self.left == math.inf:
            return
        now = self._clock.monotonic()
        seconds = now - self._since
        if seconds <= 0:
            return
        counted = self._drawn - self.left
        previous, self.stride = self.stride, max(1, int(counted / seconds) // SAMPLES_PER_SECOND)
        self._since = now
        if self.stride * 4 < previous:
            self.left = 0
            self._draw()  # the next sample would come too late
        self._drawn = int(self.left)

    def cut(self) -> list[Sample]:
        """Return the samples of the open minute and begin the next one."""
        samples, self.samples, self.marked = self.samples, [], 0
        return samples

    def fresh(self) -> list[Sample]:
        """Return the samples of the open minute since the last call."""
        start, self.marked = self.marked, len(self.samples)
        return self.samples[start:]

    def stop(self) -> None:
        """Measure nothing from now on."""
        self.left = math.inf
        self.cut()

    def _thin(self) -> None:
        """Drop every second sample of little weight, and let the others stand for it."""
        fresh = len(self.samples) - self.marked
        while len(self.samples) > SAMPLES_MAX * 3 // 4:
            self.stride *= 2
            is_kept = self._next_random() % 2 == 0
            kept: list[Sample] = []
            for sample in self.samples:
                table, first, last, kind, entities, size = sample
                if entities >= self.stride:
                    kept.append(sample)
                    continue
                if is_kept:
                    kept.append((table, first, last, kind, 2 * entities, 2 * size))
                is_kept = not is_kept
            fresh = fresh * len(kept) // len(self.samples)
            self.samples = kept
        self.marked = len(self.samples) - fresh

    def _draw(self) -> None:
        gap = 1 if self.stride == 1 else 1 + self._next_random() % (2 * self.stride - 1)
        self.left += gap
        self._drawn += gap

    def _next_random(self) -> int:
        if not self._random:
            assert self._clock is not None
            self._random.frombytes(self._clock.random_bytes(_DRAWN_AT_ONCE * self._random.itemsize))
        return self._random.pop()


def cut_key(key: Key) -> Key:
    """Return a key without what is beyond `KEY_CHARACTERS_MAX`."""
    partition_key = key[0][:KEY_CHARACTERS_MAX]
    return partition_key, key[1][: KEY_CHARACTERS_MAX - len(partition_key)]


def text_of(key: Key) -> str:
    """Return one text for a key, in the order of keys: U+0000 is not allowed in them."""
    return f"{key[0]}\0{key[1]}"
