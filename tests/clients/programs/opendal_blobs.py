import os

import opendal
from azure.storage.blob import BlobServiceClient

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("opendal")
parts = dict(part.split("=", 1) for part in text.split(";"))
store = opendal.Operator(
    "azblob",
    container="opendal",
    endpoint=parts["BlobEndpoint"],
    account_name=parts["AccountName"],
    account_key=parts["AccountKey"],
)
store.write("a/one", b"one")
store.write("a/two", b"two")
assert store.read("a/one") == b"one"
assert sorted(each.path for each in store.list("a/")) in (
    ["a/", "a/one", "a/two"],
    ["a/one", "a/two"],
)
store.delete("a/one")
assert store.stat("a/two").content_length == 3
