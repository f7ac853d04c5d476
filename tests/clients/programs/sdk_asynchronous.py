import asyncio
import os

from azure.data.tables.aio import TableServiceClient
from azure.storage.blob.aio import BlobServiceClient
from azure.storage.queue.aio import QueueServiceClient

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]


async def main() -> None:
    async with TableServiceClient.from_connection_string(text) as tables:
        staff = await tables.create_table("SdkStaff")
        await staff.submit_transaction(
            [("upsert", {"PartitionKey": "Sales", "RowKey": str(n), "Age": n}) for n in range(100)]
        )
        assert len([each async for each in staff.query_entities("Age ge 90")]) == 10
    async with QueueServiceClient.from_connection_string(text) as queues:
        work = await queues.create_queue("sdk-work")
        await work.send_message("archive")
        message = await work.receive_message()
        assert message is not None
        await work.delete_message(message)
        assert await work.receive_message() is None
    async with BlobServiceClient.from_connection_string(text) as blobs:
        photos = await blobs.create_container("sdk-photos")
        await photos.upload_blob("a", b"1" * 9_000_000)
        loaded = await photos.download_blob("a")
        assert await loaded.readall() == b"1" * 9_000_000
        lease = await photos.get_blob_client("a").acquire_lease(15)
        await lease.release()


asyncio.run(main())
