"""The advisory locks of blobs. Pure.

A lock is a number. Transactions take several locks in the order of their numbers, so that they
never wait for each other in a circle: first names of containers, then containers, then blobs, then
objects. Different things may have the same number by chance; then one waits for the other without
need.
"""

from hashlib import blake2b
from typing import NamedTuple

_HASH_BITS = 62
_SMALLEST = -(2**63)


def name_lock(account: int, container: str) -> int:
    """Return the lock of those who create, change or drop a container."""
    return _lock(0, account, container)


def container_lock(account: int, container: str) -> int:
    """Return the lock that changes of blobs share, and that a drop takes alone."""
    return _lock(1, account, container)


def blob_lock(account: int, container: str, name: str) -> int:
    """Return the lock of a blob with its snapshots and staged blocks."""
    return _lock(2, account, container, name)


def object_lock(digest: bytes) -> int:
    """Return the lock of who claims or removes an object with this content."""
    return _lock(3, digest)


class Held(NamedTuple):
    """The locks that a transaction has, or needs from its start."""

    shared: frozenset[int] = frozenset()
    exclusive: frozenset[int] = frozenset()

    def also(self, shared: int, exclusive: int) -> "Held":
        return Held(self.shared | {shared}, self.exclusive | {exclusive})

    def may_wait_for(self, shared: int, exclusive: int) -> bool:
        """Return whether both locks are held already, or come after all that are held."""
        last = max((*self.shared, *self.exclusive), default=_SMALLEST)
        needed = {shared} - self.shared | {exclusive} - self.exclusive
        return all(lock > last for lock in needed)


def _lock(kind: int, *parts: int | str | bytes) -> int:
    found = blake2b(digest_size=8)
    for part in parts:
        raw = part if isinstance(part, bytes) else str(part).encode(errors="surrogatepass")
        found.update(len(raw).to_bytes(4))
        found.update(raw)
    number = int.from_bytes(found.digest()) >> (64 - _HASH_BITS)
    return _SMALLEST + (kind << _HASH_BITS) + number
