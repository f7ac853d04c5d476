"""Key locks: shared, update and exclusive claims, their queues, and the circles among them.

The table decides who holds and who waits; how a wait is spent (a future, a time-out) is the
caller's business. The one rule: a request that starts to wait is the only thing that can close
a circle of waits, so circles are looked for there, at once, and nowhere else.
"""

import enum
from collections import deque
from collections.abc import Callable
from itertools import islice

import msgspec


class LockMode(enum.IntEnum):
    """What is claimed; a greater mode includes the lesser ones."""

    SHARED = 1
    """With other readers."""
    UPDATE = 2
    """Read now, write later: joins readers, and lets no new one in."""
    EXCLUSIVE = 3
    """Alone."""


SHARED = LockMode.SHARED
EXCLUSIVE = LockMode.EXCLUSIVE

Resource = tuple[int, bytes | None]
"""Collection and encoded key; None instead of a key is the whole collection."""


class Waiter(msgspec.Struct, eq=False):
    """One request that waits, or has waited."""

    owner: str
    resource: Resource
    mode: LockMode
    is_upgrade: bool
    """The owner holds the resource already, in a lesser mode."""
    wake: Callable[["Waiter"], None] | None = None
    """Called once when the wait ends by anything but `give_up`; it must not raise."""
    is_waiting: bool = True
    granted: bool = False
    deadlock_with: str = ""
    """Whom it waited for in the circle that was broken here; empty if there was none."""


class _Lock(msgspec.Struct, eq=False):
    """One resource that somebody holds; it leaves the table with its last holder."""

    resource: Resource
    holders: dict[str, LockMode]
    """By age: the owner that has held it longest comes first."""
    guard: str
    """The one holder in update or exclusive mode; empty if all are readers."""
    queue: deque[Waiter] | None = None
    """Upgrades first, then the others, each by arrival; made by the first that waits."""

    def admits(self, owner: str, mode: LockMode) -> bool:
        """Tell whether the other holders allow what the owner does not hold yet."""
        if mode is EXCLUSIVE:
            return len(self.holders) - (owner in self.holders) == 0
        return not self.guard

    def blockers(self, waiter: Waiter) -> list[str]:
        """Return whom a request waits for, as far as a search for circles must know.

        It waits for all it conflicts with, holders and requests ahead. Left out are requests
        ahead that are blocked by nobody but those named here: no circle needs them.
        """
        if waiter.mode is EXCLUSIVE:
            return [owner for owner in self.holders if owner != waiter.owner]
        assert self.queue is not None
        ahead = islice(self.queue, self.queue.index(waiter))
        blockers = [other.owner for other in ahead if other.mode is EXCLUSIVE]
        return [self.guard, *blockers] if self.guard else blockers


class _Owner(msgspec.Struct, eq=False):
    """One transaction, from its first request until `release_all`."""

    age: int
    """Counts up: the youngest has the greatest."""
    held: list[_Lock]
    waiter: Waiter | None = None


class LockTable:
    """All locks of one state, used by one event loop.

    Callbacks run inside the call that ended the wait, when the table is in order again, so they
    may call the table. An owner is known until `release_all`, whatever became of its requests.
    """

    def __init__(self) -> None:
        self._locks: dict[Resource, _Lock] = {}
        self._owners: dict[str, _Owner] = {}
        self._owners_seen = 0
        self._ended: deque[Waiter] = deque()
        """Waits that are over and whose callbacks are still to be called."""

    def acquire(self, owner: str, resource: Resource, mode: LockMode) -> Waiter | None:
        """Return None if the lock is granted, else the request that waits.

        A request that closed a circle and is its youngest member comes back already ended, with
        `deadlock_with` set; it holds nothing new, and all that the owner held before.
        """
        if self.try_acquire(owner, resource, mode):
            return None
        waiter = self._enqueue(owner, resource, mode)
        if self._may_close_a_circle(waiter):
            self._break_circles(waiter)
            self._call_back()
        return None if waiter.granted else waiter

    def try_acquire(self, owner: str, resource: Resource, mode: LockMode) -> bool:
        """Take the lock if that needs no wait; nobody else's wait is touched either way."""
        party = self._owners.get(owner)
        if party is None:
            self._owners_seen += 1
            self._owners[owner] = party = _Owner(self._owners_seen, [])
        assert party.waiter is None, "an owner has one request at a time"
        lock = self._locks.get(resource)
        if lock is None:
            lock = _Lock(resource, {owner: mode}, "" if mode is SHARED else owner)
            self._locks[resource] = lock
            party.held.append(lock)
            return True
        held = lock.holders.get(owner)
        if held is None:
            if lock.queue or not lock.admits(owner, mode):
                return False
            party.held.append(lock)
        elif held >= mode:
            return True
        elif not lock.admits(owner, mode):
            return False
        lock.holders[owner] = mode
        if mode is not SHARED:
            lock.guard = owner
        return True

    def give_up(self, waiter: Waiter) -> None:
        """End a wait without the lock; nothing happens if it has ended, perhaps with the lock."""
        if not waiter.is_waiting:
            return
        self._withdraw(waiter)
        self._call_back()

    def release_shared(self, owner: str) -> None:
        """Release what the owner holds in shared or update mode: it reads no more."""
        party = self._owners.get(owner)
        if party is None:
            return
        assert party.waiter is None, "an owner that waits still reads"
        held, party.held = party.held, []
        for lock in held:
            if lock.holders[owner] is EXCLUSIVE:
                party.held.append(lock)
            else:
                self._leave(lock, owner)
        self._call_back()

    def release_all(self, owner: str) -> None:
        """Forget the owner: its locks, its age, and its request if one waits, which is woken."""
        party = self._owners.get(owner)
        if party is None:
            return
        if party.waiter is not None:
            self._ended.append(party.waiter)
            self._withdraw(party.waiter)
        del self._owners[owner]
        locks = self._locks
        for lock in party.held:
            if lock.queue or len(lock.holders) > 1:
                self._leave(lock, owner)
            else:
                del locks[lock.resource]
        if self._ended:
            self._call_back()

    def mode_of(self, owner: str, resource: Resource) -> LockMode | None:
        """Return the mode in which the owner holds the resource."""
        lock = self._locks.get(resource)
        return None if lock is None else lock.holders.get(owner)

    def holders(self, resource: Resource) -> dict[str, LockMode]:
        """Return who holds the resource, the one that has held it longest first."""
        lock = self._locks.get(resource)
        return {} if lock is None else dict(lock.holders)

    def oldest_holder(self, resource: Resource, but_for: str = "") -> str:
        """Return who has held the resource longest; empty if nobody else does."""
        return next((owner for owner in self.holders(resource) if owner != but_for), "")

    def queue(self, resource: Resource) -> list[Waiter]:
        """Return who waits for the resource, the next one first."""
        lock = self._locks.get(resource)
        return list(lock.queue or ()) if lock is not None else []

    def held_count(self, owner: str) -> int:
        """Return how many resources the owner holds."""
        party = self._owners.get(owner)
        return 0 if party is None else len(party.held)

    def waiting_count(self) -> int:
        """Return how many requests wait."""
        return sum(party.waiter is not None for party in self._owners.values())

    def is_empty(self) -> bool:
        """Tell whether no lock, no request and no owner is left."""
        return not self._locks and not self._owners and not self._ended

    def _enqueue(self, owner: str, resource: Resource, mode: LockMode) -> Waiter:
        lock = self._locks[resource]
        if lock.queue is None:
            lock.queue = deque()
        waiter = Waiter(owner, resource, mode, is_upgrade=owner in lock.holders)
        place = len(lock.queue)
        if waiter.is_upgrade:
            place = sum(other.is_upgrade for other in lock.queue)
        lock.queue.insert(place, waiter)
        self._owners[owner].waiter = waiter
        return waiter

    def _withdraw(self, waiter: Waiter) -> None:
        lock = self._locks[waiter.resource]
        assert lock.queue is not None
        lock.queue.remove(waiter)
        waiter.is_waiting = False
        self._owners[waiter.owner].waiter = None
        self._examine(lock)

    def _leave(self, lock: _Lock, owner: str) -> None:
        del lock.holders[owner]
        if lock.guard == owner:
            lock.guard = ""
        self._examine(lock)

    def _examine(self, lock: _Lock) -> None:
        """Grant from the front of the queue until one cannot be granted."""
        queue = lock.queue or deque()
        while queue and lock.admits(queue[0].owner, queue[0].mode):
            self._grant(lock, queue.popleft())
        if not lock.holders:
            del self._locks[lock.resource]

    def _grant(self, lock: _Lock, waiter: Waiter) -> None:
        party = self._owners[waiter.owner]
        party.waiter = None
        if not waiter.is_upgrade:
            party.held.append(lock)
        lock.holders[waiter.owner] = waiter.mode
        if waiter.mode is not SHARED:
            lock.guard = waiter.owner
        waiter.is_waiting = False
        waiter.granted = True
        self._ended.append(waiter)

    def _call_back(self) -> None:
        while self._ended:
            waiter = self._ended.popleft()
            if waiter.wake is not None:
                waiter.wake(waiter)

    def _may_close_a_circle(self, waiter: Waiter) -> bool:
        """Spare the search when nobody can be waiting for the owner: most waits end here."""
        return any(lock.queue for lock in self._owners[waiter.owner].held)

    def _break_circles(self, waiter: Waiter) -> None:
        """End the wait of the youngest of each circle until the request is in none.

        One request can close several circles, each with its own youngest.
        """
        while waiter.is_waiting:
            circle = self._find_circle(waiter.owner)
            if not circle:
                return
            place = self._choose_victim(circle)
            victim = self._owners[circle[place]].waiter
            assert victim is not None, "all members of a circle wait"
            victim.deadlock_with = circle[(place + 1) % len(circle)]
            self._ended.append(victim)
            self._withdraw(victim)

    def _choose_victim(self, circle: list[str]) -> int:
        ages = [self._owners[owner].age for owner in circle]
        return ages.index(max(ages))

    def _find_circle(self, start: str) -> list[str]:
        """Return the shortest circle through `start`, each member waiting for the next."""
        reached = {start: ""}  # and who waits for it
        listed: dict[Resource, None] = {}
        for owner in (frontier := [start]):
            waiter = self._owners[owner].waiter
            if waiter is None or waiter.resource in listed:
                continue
            if waiter.mode is EXCLUSIVE and owner != start:
                # All holders are reached now, and they are all that can block here.
                listed[waiter.resource] = None
            for blocker in self._locks[waiter.resource].blockers(waiter):
                if blocker == start:
                    return _path_to(owner, reached)
                if blocker not in reached:
                    reached[blocker] = owner
                    frontier.append(blocker)
        return []


def _path_to(owner: str, reached: dict[str, str]) -> list[str]:
    path = []
    while owner:
        path.append(owner)
        owner = reached[owner]
    return path[::-1]
