"""The contract of queue stores on PostgreSQL, with a clock moved by hand as that of the database."""

import pytest

from conformance.queue_store import QueueStoreConformance, texts_of
from partita.errors import ChecksumError, MessageNotFoundError
from partita.scaleout.queues import sweep
from partita.scaleout.queues.postgres_store import PostgresQueueStore
from support.queue_databases import OpenQueues


class TestPostgres(QueueStoreConformance):
    queues: OpenQueues
    account_id = 0

    async def open_store(self) -> PostgresQueueStore:
        self.queues = OpenQueues(self.clock, account_id=self.account_id)
        await self.queues.open()
        self.account_id = self.queues.account_id
        return self.queues.store

    async def close_store(self) -> None:
        await self.queues.close()
