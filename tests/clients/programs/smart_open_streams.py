import os

import smart_open
from azure.storage.blob import BlobServiceClient

service = BlobServiceClient.from_connection_string(os.environ["AZURE_STORAGE_CONNECTION_STRING"])
service.create_container("streams")
options = {"client": service}
with smart_open.open("azure://streams/lines.txt.gz", "w", transport_params=options) as file:
    file.writelines(f"line {number}\n" for number in range(100_000))
with smart_open.open("azure://streams/lines.txt.gz", transport_params=options) as file:
    assert sum(1 for _ in file) == 100_000
