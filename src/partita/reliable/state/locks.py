"""Key locks: shared, update and exclusive modes, their queues, and deadlock detection.

The table decides which transactions hold a lock and which wait; the caller implements the wait
itself (a future, a time-out). Only a request that starts to wait can close a cycle of waits, so
deadlocks are searched for at that moment and nowhere else.
"""

import enum
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec


class LockMode(enum.IntEnum):
    """The mode of a lock; a higher mode includes the lower ones."""

    SHARED = 1
    """Compatible with other readers."""
    UPDATE = 2
    """Read now, write later: compatible with existing readers, blocks new ones."""
    EXCLUSIVE = 3
    """Compatible with no other holder."""


SHARED = LockMode.SHARED
EXCLUSIVE = LockMode.EXCLUSIVE

Resource = tuple[int, bytes | None]
"""Collection and encoded key; None instead of a key means the whole collection."""


class Waiter(msgspec.Struct, eq=False):
    """One request for a lock that was not free."""

    owner: str
    resource: Resource
    mode: LockMode
    is_upgrade: bool
    """Whether the owner holds the resource already, in a lower mode."""
    wake: Callable[["Waiter"], None] | None = None
    """Called once when the wait ends, except by `give_up`; it must not raise."""
    is_waiting: bool = True
    granted: bool = False
    since: float = 0.0
    """When the wait began, by the caller's monotonic clock; 0 before that."""
    deadlock_with: str = ""
    """The owner it waited for in a deadlock that was resolved by ending this wait, or empty."""


class _Lock(msgspec.Struct, eq=False):
    """One locked resource; removed from the table with its last holder."""

    resource: Resource
    holders: dict[str, LockMode]
    """Modes by owner; the owner that has held it longest comes first."""
    guard: str
    """The single holder in update or exclusive mode; empty if all are readers."""
    queue: deque[Waiter] | None = None
    """Upgrades first, then the others, each by arrival; created by the first that waits."""

    def admits(self, owner: str, mode: LockMode) -> bool:
        """Return whether the other holders are compatible with a request."""
        if mode is EXCLUSIVE:
            return len(self.holders) - (owner in self.holders) == 0
        return not self.guard

    def blockers(self, waiter: Waiter) -> list[str]:
        """Return the owners that a request waits for, as far as deadlock detection needs them.

        A request waits for all holders and earlier requests that it conflicts with. Earlier
        requests that are only blocked by owners listed here are left out: no cycle needs them.
        """
        if waiter.mode is EXCLUSIVE:
            return [owner for owner in self.holders if owner != waiter.owner]
        assert self.queue is not None
        ahead = islice(self.queue, self.queue.index(waiter))
        blockers = [other.owner for other in ahead if other.mode is EXCLUSIVE]
        return [self.guard, *blockers] if self.guard else blockers


class _LockOwner(msgspec.Struct, eq=False):
    """One transaction, from its first request until `release_all`."""

    age: int
    """An increasing number: the youngest owner has the highest."""
    held: list[_Lock]
    waiter: Waiter | None = None


class LockTable:
    """All locks of one state, used by one event loop.

    Callbacks run inside the call that ended the wait, when the table is consistent, so they may
    call the table. An owner is known until `release_all`, whatever happened to its requests.
    """

    def __init__(self) -> None:
        self._locks: dict[Resource, _Lock] = {}
        self._owners: dict[str, _LockOwner] = {}
        self._owners_seen = 0
        self._ended: deque[Waiter] = deque()
        """Ended waits whose callbacks have not been called yet."""

    def acquire(self, owner: str, resource: Resource, mode: LockMode) -> Waiter | None:
        """Return None if the lock is granted, otherwise the request that waits.

        A request that caused a deadlock and is its youngest member is returned already ended,
        with `deadlock_with` set; its owner keeps the locks that it held before.
        """
        if self.try_acquire(owner, resource, mode):
            return None
        waiter = self._enqueue(owner, resource, mode)
        if self._may_close_cycle(waiter):
            self._resolve_deadlocks(waiter)
            self._call_back()
        return None if waiter.granted else waiter

    def try_acquire(self, owner: str, resource: Resource, mode: LockMode) -> bool:
        """Take the lock if that needs no wait; the waits of other owners are not changed."""
        party = self._owners.get(owner)
        if party is None:
            self._owners_seen += 1
            self._owners[owner] = party = _LockOwner(self._owners_seen, [])
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
        """End a wait without the lock; does nothing if it has ended, perhaps with the lock."""
        if not waiter.is_waiting:
            return
        self._withdraw(waiter)
        self._call_back()

    def release_shared(self, owner: str) -> None:
        """Release the owner's shared and update locks: it will not read any more."""
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
        """Remove the owner with its locks; a waiting request of it is woken."""
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
        """Return the holders of the resource, the one that has held it longest first."""
        lock = self._locks.get(resource)
        return {} if lock is None else dict(lock.holders)

    def oldest_holder(self, resource: Resource, but_for: str = "") -> str:
        """Return the other owner that has held the resource longest; empty if there is none."""
        return next((owner for owner in self.holders(resource) if owner != but_for), "")

    def queue(self, resource: Resource) -> list[Waiter]:
        """Return the requests that wait for the resource, the next one first."""
        lock = self._locks.get(resource)
        return list(lock.queue or ()) if lock is not None else []

    def resources(self) -> Iterator[Resource]:
        """Yield the locked resources, those that are waited for first."""
        waited = dict.fromkeys(
            party.waiter.resource for party in self._owners.values() if party.waiter is not None
        )
        yield from waited
        yield from (resource for resource in list(self._locks) if resource not in waited)

    def count(self) -> int:
        """Return the number of locked resources."""
        return len(self._locks)

    def held_count(self, owner: str) -> int:
        """Return the number of resources that the owner holds."""
        party = self._owners.get(owner)
        return 0 if party is None else len(party.held)

    def waiting_count(self) -> int:
        """Return the number of waiting requests."""
        return sum(party.waiter is not None for party in self._owners.values())

    def is_empty(self) -> bool:
        """Return whether there is no lock, no request and no owner."""
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
        """Grant requests from the front of the queue until one must wait."""
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

    def _may_close_cycle(self, waiter: Waiter) -> bool:
        """Return whether another request may wait for the owner, which is rare."""
        return any(lock.queue for lock in self._owners[waiter.owner].held)

    def _resolve_deadlocks(self, waiter: Waiter) -> None:
        """End the wait of the youngest owner of each cycle until the request is in none.

        One request can close several cycles, each with its own youngest owner.
        """
        while waiter.is_waiting:
            cycle = self._find_cycle(waiter.owner)
            if not cycle:
                return
            place = self._choose_victim(cycle)
            victim = self._owners[cycle[place]].waiter
            assert victim is not None, "all members of a cycle wait"
            victim.deadlock_with = cycle[(place + 1) % len(cycle)]
            self._ended.append(victim)
            self._withdraw(victim)

    def _choose_victim(self, cycle: list[str]) -> int:
        ages = [self._owners[owner].age for owner in cycle]
        return ages.index(max(ages))

    def _find_cycle(self, start: str) -> list[str]:
        """Return the shortest cycle through `start`, in which each owner waits for the next."""
        reached = {start: ""}  # each with the owner that waits for it
        listed: dict[Resource, None] = {}
        for owner in (frontier := [start]):
            waiter = self._owners[owner].waiter
            if waiter is None or waiter.resource in listed:
                continue
            if waiter.mode is EXCLUSIVE and owner != start:
                # All holders are reached now, and only holders can block here.
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
