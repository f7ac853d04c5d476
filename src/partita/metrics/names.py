"""Distinct label values for objects of one kind in a process."""

import itertools
import threading
import weakref

_owners: "weakref.WeakValueDictionary[tuple[str, str], object]" = weakref.WeakValueDictionary()
_lock = threading.Lock()


def claim_name(label: str, name: str, owner: object) -> str:
    """Return a value of a label that no other living object has: the name, or name#2.

    Two samples with equal labels would make the whole text unreadable for Prometheus.

    >>> class Thing: ...
    >>> one, two = Thing(), Thing()
    >>> claim_name("example", "orders", one), claim_name("example", "orders", two)
    ('orders', 'orders#2')
    """
    with _lock:
        for number in itertools.count(1):
            found = name if number == 1 else f"{name}#{number}"
            if _owners.setdefault((label, found), owner) is owner:
                return found
    raise AssertionError("a number is free")


def release_name(label: str, name: str) -> None:
    """Let other objects have a value, when its owner is closed."""
    with _lock:
        _owners.pop((label, name), None)
