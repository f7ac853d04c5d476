"""A Disk in memory, for states that end with their process: `open_state(":memory:")`."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FREE_BYTES = 1 << 50


class MemoryDisk:
    """Files as byte arrays; syncs have nothing to do."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}

    def names(self) -> list[str]:
        return sorted(self._files)

    def size(self, name: str) -> int:
        return len(self._files[name])

    def read(self, name: str, start: int = 0, count: int = -1) -> bytes:
        content = self._files[name]
        return bytes(memoryview(content)[start : len(content) if count < 0 else start + count])

    def create(self, name: str, *, is_apart: bool = False) -> "MemoryFile":
        del is_apart
        self._files[name] = bytearray()
        return MemoryFile(name, self._files[name])

    def grow(self, name: str, size: int) -> "MemoryFile":
        content = self._files[name]
        del content[size:]
        return MemoryFile(name, content)

    def rename(self, name: str, new_name: str) -> None:
        self._files[new_name] = self._files.pop(name)

    def remove(self, name: str) -> None:
        del self._files[name]

    async def sync_folder(self) -> None:
        pass

    async def aside(self, call: Callable[[], T]) -> T:
        return call()

    def free_bytes(self) -> int:
        return FREE_BYTES

    def close(self) -> None:
        self._files.clear()


class MemoryFile:
    """A file that grows; see `GrowingFile`."""

    def __init__(self, name: str, content: bytearray) -> None:
        self.name = name
        self._content = content
        self.size = len(content)

    def write(self, chunk: bytes) -> None:
        self._content += chunk
        self.size += len(chunk)

    async def sync(self) -> None:
        pass

    def sync_now(self) -> None:
        pass

    def renew(self, start: int) -> None:
        pass

    def close(self) -> None:
        pass
