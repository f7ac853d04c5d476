"""What the blob stores of all accounts in one front end share."""

from partita.blobs.store.content_claims import Claims
from partita.blobs.store.download import Source
from partita.blobs.store.garbage_collector import Pause, no_pause
from partita.blobs.store.threads import ContentThreads
from partita.scaleout.blobs.collector import DROPPED_SECONDS_KEPT, Collector
from partita.scaleout.blobs.downloads import fetch_from
from partita.scaleout.blobs.objects import Objects, files_of, open_objects, unfit
from partita.scaleout.blobs.shared import Numbers, Rooms, Shared
from partita.scaleout.catalog.fleet_clock import FleetClock
from partita.scaleout.connections.pool import Pool

WRITING_THREADS = 8
READING_THREADS = 8
"""They wait for the object store most of the time."""

_FIRST_OWNER = """
INSERT INTO partita.object_store (id, owner, swept_at) VALUES (1, $1, $2) ON CONFLICT DO NOTHING
"""
_OWNER = "SELECT owner FROM partita.object_store WHERE id = 1"
_HAS_OBJECTS = "SELECT 1 FROM partita.extent WHERE object IS NOT NULL LIMIT 1"


class Contents:
    """Connections, clock, object store, pins and collector of a front end; build it with `open`."""

    def __init__(
        self,
        pool: Pool,
        clock: FleetClock,
        objects: Objects | None,
    ) -> None:
        self.pool = pool
        self.clock = clock
        self.objects = objects
        """None if the server was started without an object store."""
        self.pause: Pause = no_pause
        self.files = files_of(objects)
        self.shared = Shared(clock, Numbers(), Rooms())
        self.pins = Claims()
        """The contents that this front end reads."""
        self.threads = ContentThreads(WRITING_THREADS, "partita-content")
        self._reading = ContentThreads(READING_THREADS, "partita-download")
        self.downloads = Source(fetch_from(pool), self.files, self._reading, self.pins)
        self.collector = Collector(pool, self.shared, objects, self.threads, self.pins)

    @classmethod
    async def open(
        cls,
        pool: Pool,
        clock: FleetClock,
        blob_store: str | None = None,
        *,
        seconds_kept: float = DROPPED_SECONDS_KEPT,
        pause: Pause = no_pause,
    ) -> "Contents":
        """Open the object store of a URL; `start` the rest.

        Refuse an object store that belongs to another database: each would remove the objects of
        the other one.
        """
        objects = open_objects(blob_store)
        contents = cls(pool, clock, objects)
        contents.pause = contents.collector.pause = pause
        contents.collector.seconds_kept = seconds_kept
        try:
            if objects is not None:
                await contents.check_owner(objects)
        except BaseException:
            await contents.close()
            raise
        return contents

    def start(self) -> None:
        """Reclaim space in the background."""
        self.collector.start()

    async def close(self) -> None:
        """Finish the work in the background. The pool belongs to the fleet."""
        await self.collector.close()
        await self.threads.close()
        await self._reading.close()

    async def check_owner(self, objects: Objects) -> None:
        """Raise if the object store belongs to another database; without owner, it is ours."""
        await self.pool.write(_FIRST_OWNER, self.clock.clock.new_id(), self.clock.now())
        ((owner,),) = await self.pool.read(_OWNER)
        found = await self.threads.run(objects.find_owner)
        if found == owner:
            return
        if found is not None:
            raise unfit("It belongs to another database.")
        if await self.pool.read(_HAS_OBJECTS):
            raise unfit("It does not have the blobs of this database.")
        await self.threads.run(objects.set_owner, owner)
