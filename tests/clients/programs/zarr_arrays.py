import os

import zarr
from azure.storage.blob import BlobServiceClient
from obstore.store import AzureStore
from zarr.storage import ObjectStore

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("zarr")
parts = dict(part.split("=", 1) for part in text.split(";"))
blobs = AzureStore(
    "zarr",
    account_name=parts["AccountName"],
    account_key=parts["AccountKey"],
    endpoint=parts["BlobEndpoint"],
    client_options={"allow_http": True},
)
group = zarr.open_group(ObjectStore(blobs), mode="w")
array = group.create_array("heat", shape=(1000, 1000), chunks=(100, 1000), dtype="int32")
array[:] = 7
array[10:20, 5] = 8
again = zarr.open_group(ObjectStore(blobs), mode="r")
assert list(again) == ["heat"]
assert int(again["heat"][:].sum()) == 7 * 1_000_000 + 10
