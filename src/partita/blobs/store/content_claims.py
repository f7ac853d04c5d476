"""Who holds which content: uploads and the collector never the same file, readers what they read.

An upload claims its hash before it puts a file under it, and lets go when its row is in the
transaction. The collector takes a hash only while nobody claims it and, in the same turn of the
loop, no row names it; uploads of that hash then wait until the file is gone. Readers pin the
content that they read: it is not purged before they end. Only the loop's thread comes here.
"""

import asyncio
from collections import Counter
from collections.abc import Callable

Tell = Callable[[], None]


class Claims:
    """The claims of one store."""

    def __init__(self) -> None:
        self.on_free: Tell | None = None
        """Called when something goes free that the collector was refused."""
        self._claimed: Counter[bytes] = Counter()
        self._leaving: dict[bytes, asyncio.Future[None]] = {}
        self._pinned: Counter[int] = Counter()
        self._awaited: set[bytes | int] = set()

    # Uploads

    async def claim(self, digest: bytes) -> None:
        """Return when the hash is claimed; many uploads may claim the same."""
        while (leaving := self._leaving.get(digest)) is not None:
            await asyncio.shield(leaving)
        self._claimed[digest] += 1

    def release(self, digest: bytes) -> None:
        self._claimed[digest] -= 1
        if not self._claimed[digest]:
            del self._claimed[digest]
            self._tell_of(digest)

    # Readers

    def pin(self, content: int) -> None:
        self._pinned[content] += 1

    def unpin(self, content: int) -> None:
        self._pinned[content] -= 1
        if not self._pinned[content]:
            del self._pinned[content]
            self._tell_of(content)

    # The collector

    def begin_leaving(self, digest: bytes) -> bool:
        """Take a hash whose file will go; False if somebody claims it."""
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

    def _tell_of(self, thing: bytes | int) -> None:
        if thing in self._awaited:
            self._awaited.discard(thing)
            if self.on_free is not None:
                self.on_free()
