"""Uploads in progress: the hash of the whole blob, computed from its blocks as they arrive.

A browser cannot compute MD5; the page sends the SHA-256 of each block, which is checked, and the
MD5 of all of them is stored with the blob. An upload whose blocks arrive in another order has none.
"""

import hashlib
from typing import Final

from partita.console.errors import invalid

UPLOADS_MAX: Final = 64
"""The uploads whose hash is kept; an older one ends without it."""
BLOCK_BYTES_MAX: Final = 8 * 1024 * 1024


class Uploads:
    """By identity: the number of blocks and the hash of their bytes."""

    def __init__(self) -> None:
        self._hashes: dict[str, tuple[int, hashlib._Hash]] = {}

    def add(self, identity: str, number: int, block: bytes, sha256: str) -> None:
        """Check a block and add it; raise if it is not what the page sent."""
        if len(block) > BLOCK_BYTES_MAX:
            message = f"A block has at most {BLOCK_BYTES_MAX} bytes."
            raise invalid(message)
        if hashlib.sha256(block).hexdigest() != sha256.lower():
            raise invalid("The block was changed on its way.", "Send it again.")
        if number == 0:
            while len(self._hashes) >= UPLOADS_MAX:
                del self._hashes[next(iter(self._hashes))]
            self._hashes[identity] = 0, hashlib.md5(usedforsecurity=False)
        expected, whole = self._hashes.get(identity, (-1, None))
        if whole is None or number != expected:
            self._hashes.pop(identity, None)
            return
        whole.update(block)
        self._hashes[identity] = number + 1, whole

    def finish(self, identity: str, count: int) -> bytes | None:
        """Return the MD5 of an upload of so many blocks, if it is known."""
        seen, whole = self._hashes.pop(identity, (0, None))
        return whole.digest() if whole is not None and seen == count else None
