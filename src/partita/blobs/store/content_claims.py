"""Claims of uploads, readers and the collector on content.

An upload claims its hash before it places the file, and releases it when its row is in the
transaction. The collector takes a hash only while it is not claimed and, in the same turn of the
loop, no row refers to it; uploads of that hash then wait until the file is removed. Readers pin
the content that they read: it is not purged before they end. Use it only in the loop's thread.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

OnFree = Callable[[], None]


class Claims:
    """The claims of one store."""

    def __init__(self) -> None:
        self.on_free: OnFree | None = None
        """Called when a hash or content is released that the collector was refused."""
        self._claimed: Counter[bytes] = Counter()
        self._leaving: dict[bytes, asyncio.Future[None]] = {}
        self._pinned: Counter[int] = Counter()
        self._awaited: set[bytes | int] = set()

    # Uploads

    async def claim(self, digest: bytes) -> None:
        """Claim a hash; several uploads may claim the same one."""
        while (leaving := self._leaving.get(digest)) is not None:
            await asyncio.shield(leaving)
        self._claimed[digest] += 1

    def release(self, digest: bytes) -> None:
        self._claimed[digest] -= 1
        if not self._claimed[digest]:
            del self._claimed[digest]
            self._notify_free(digest)

    # Readers

    def pin(self, content: int) -> None:
        self._pinned[content] += 1

    def unpin(self, content: int) -> None:
        self._pinned[content] -= 1
        if not self._pinned[content]:
            del self._pinned[content]
            self._notify_free(content)

    # The collector

    def begin_leaving(self, digest: bytes) -> bool:
        """Take a hash whose file will be removed; return False if it is claimed."""
        if digest in self._claimed or digest in self._leaving:
            self._awaited.add(digest)
            return False
        self._leaving[digest] = asyncio.get_running_loop().create_future()
        return True

    def end_leaving(self, digest: bytes) -> None:
        self._leaving.pop(digest).set_result(None)
        self._awaited.discard(digest)

    def is_claimed(self, digest: bytes) -> bool:
        return digest in self._claimed

    def is_pinned(self, content: int) -> bool:
        if content not in self._pinned:
            return False
        self._awaited.add(content)
        return True

    def pinned(self) -> list[int]:
        """Return the contents that are being read."""
        return list(self._pinned)

    def _notify_free(self, thing: bytes | int) -> None:
        if thing in self._awaited:
            self._awaited.discard(thing)
            if self.on_free is not None:
                self.on_free()
