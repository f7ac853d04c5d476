import os

import obstore
from azure.storage.blob import BlobServiceClient
from obstore.store import AzureStore

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("obstore")
parts = dict(part.split("=", 1) for part in text.split(";"))
store = AzureStore(
    "obstore",
    account_name=parts["AccountName"],
    account_key=parts["AccountKey"],
    endpoint=parts["BlobEndpoint"],
    client_options={"allow_http": True},
)
obstore.put(store, "a/one", b"1" * 6_000_000, chunk_size=1024 * 1024)
assert obstore.get_range(store, "a/one", start=0, length=3) == b"111"
obstore.put(store, "a/two", b"2", mode="create")
try:
    obstore.put(store, "a/two", b"3", mode="create")
    raise SystemExit("a second create is refused")
except obstore.exceptions.AlreadyExistsError:
    pass
obstore.rename(store, "a/two", "b/two")
assert [each["path"] for each in obstore.list(store).collect()] == ["a/one", "b/two"]
