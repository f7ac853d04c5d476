"""The keys and values that every benchmark of reliable state writes, and its clocks.

A write never repeats a value: a store may skip what changes nothing.
"""

import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import msgspec

_numbers = count()


class Item(msgspec.Struct, frozen=True, gc=False):
    """A small value: 52 to 58 bytes of MessagePack."""

    owner: str
    price: int
    version: int


encode_item = msgspec.msgpack.Encoder().encode
decode_item = msgspec.msgpack.Decoder(Item).decode


def key_of(number: int) -> str:
    return f"item-{number:09d}"


def new_item() -> Item:
    number = next(_numbers)
    return Item("someone@example.org", 1_000_000 + number, number)


def items(keys: int) -> Iterator[tuple[str, Item]]:
    return ((key_of(number), new_item()) for number in range(keys))


def payload_bytes(keys: int) -> int:
    """Return what keys and values take by themselves: UTF-8 and MessagePack."""
    return keys * (len(key_of(0)) + len(encode_item(new_item())))


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


class Syncs:
    """Appends to a file of its own and syncs it: what one commit cannot be quicker than."""

    def __init__(self, path: Path, size: int = 160) -> None:
        self._descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
        self._chunk = bytes(size)

    def seconds(self) -> float:
        started = time.perf_counter()
        os.write(self._descriptor, self._chunk)
        os.fdatasync(self._descriptor)
        return time.perf_counter() - started

    def close(self) -> None:
        os.close(self._descriptor)
