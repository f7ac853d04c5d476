"""Claims of uploads on objects, in the database: no upload of any front end loses its object.

An object is named by the SHA-256 of its content and random bytes: many uploads of one content may
share an object, and the name of a removed object is never used again.

    upload                                        collector
    1. lock the hash; choose an object that an    1. remove unused extents; note their objects as
       extent or a claim has, or a new name;         dropped objects (one transaction)
       add a claim; commit                        2. remove claims that were abandoned or expired,
    2. store the object, durably                     note their objects; commit
    3. remove the claim and add the extent, in    3. lock the hash; mark a dropped object as leaving
       the transaction of the blob's record          if no extent and no claim has it; commit
       (or, if it is refused: abandon the claim)  4. remove the object, then its row

An object may be removed only after step 3 has seen neither an extent nor a claim of it. From then
on no front end can come to need it:

- A new upload chooses only what an extent or a claim has, under the same lock of the hash. If it
  came first, step 3 sees its claim. If it came later, it sees neither and makes a new name.
- An upload under way has a claim from before it stores the object until its record commits. If the
  claim has expired (the front end slept), step 3 of the upload removes no claim and is refused: the
  client gets 503 and tries again. It cannot commit a record of an object that was removed.
- A copy, a snapshot or a block list refers to extents that other records have, under the lock of
  the blob that has them; the collector removes an extent only if nothing refers to it, and a
  content only some time after it was dropped.

A removal that arrives late, of a front end that died or was slow, hits a name that no longer means
anything. An upload that arrives late leaves an object that nothing knows: the sweep lists all
objects, and passes old ones that no row names to step 3.
"""

from partita.blobs.store.upload import StoredContent
from partita.errors import StoreBusyError
from partita.scaleout.blobs.locks import object_lock
from partita.scaleout.connections.pool import Pool
from partita.scaleout.connections.session import RETRY_SECONDS

HASH_BYTES = 32
SALT_BYTES = 8
"""The name of an object: a SHA-256 and random bytes."""

_CLAIM = "SELECT claim, object FROM partita.claim_object_1($1, $2, $3, $4)"
_ABANDON = "UPDATE partita.upload_claim SET claimed_at = 0 WHERE id = $1"


class ClaimedContent:
    """Content that has arrived complete, and the claim on its object."""

    claim: int | None = None
    """Set when the object is claimed; None for content in a row."""
    is_recorded = False
    """Whether a committed record took the place of the claim."""

    def __init__(self, stored: StoredContent) -> None:
        self.stored = stored
        self.size = stored.size
        self.sums = stored.sums


async def claim_object(pool: Pool, digest: bytes, salt: bytes, now: int) -> tuple[int, bytes]:
    """Claim an object for a content; return the claim and the name of the object."""
    ((claim, name),) = await pool.write(_CLAIM, digest, salt, object_lock(digest), now)
    return claim, name


async def abandon(pool: Pool, claim: int) -> None:
    """Give up a claim; the collector removes the object if nothing else needs it."""
    await pool.write(_ABANDON, claim)


def claim_lost() -> StoreBusyError:
    """Return the refusal of an upload whose claim has expired."""
    return StoreBusyError(
        "ServerBusy",
        "The server is busy.",
        facts={"retry_after": RETRY_SECONDS, "reason": "claim"},
        hint="The upload took too long after its content had arrived. Send it again.",
    )
