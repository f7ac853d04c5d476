"""A dict by key in parts of bounded size: Python copies a large dict at once when it grows.

Adding the 350,000th key to one dict holds the event loop for 20 ms. A key is looked up in every
part, so this is for dicts that are seldom large.
"""

from collections.abc import Iterator, MutableMapping
from itertools import chain
from typing import Any, TypeVar

PART_KEYS = 1 << 16
"""Keys of a part that was filled."""

V = TypeVar("V")


class PartedDict(MutableMapping[bytes, V]):
    """Keys are in the part where they were added; new ones are added to the last part."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[dict[bytes, V]] = [{}]

    def __getitem__(self, key: bytes) -> V:
        return self._part_of(key)[key]

    def get(self, key: bytes, default: Any = None) -> Any:
        for part in self._parts:
            if key in part:
                return part[key]
        return default

    def __contains__(self, key: object) -> bool:
        return any(key in part for part in self._parts)

    def __setitem__(self, key: bytes, value: V) -> None:
        part = self._part_of(key)
        if len(part) >= PART_KEYS and key not in part:
            part = {}
            self._parts.append(part)
        part[key] = value

    def __delitem__(self, key: bytes) -> None:
        part = self._part_of(key)
        del part[key]
        if not part and len(self._parts) > 1:
            self._parts = [one for one in self._parts if one]

    def __bool__(self) -> bool:
        return bool(self._parts[0]) or len(self._parts) > 1

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def __iter__(self) -> Iterator[bytes]:
        return chain.from_iterable(self._parts)

    def pairs(self) -> Iterator[tuple[bytes, V]]:
        """Yield the items; the dict must not be changed meanwhile."""
        return chain.from_iterable(part.items() for part in self._parts)

    def among(self, keys: dict[bytes, Any]) -> set[bytes]:
        """Return those of some keys that are in here."""
        return set().union(*(keys.keys() & part.keys() for part in self._parts))

    def _part_of(self, key: bytes) -> dict[bytes, V]:
        """Return the part that has a key, otherwise the last one."""
        for part in self._parts:
            if key in part:
                return part
        return self._parts[-1]
