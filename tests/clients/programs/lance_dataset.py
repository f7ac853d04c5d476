import os

import lance
import pyarrow
from azure.storage.blob import BlobServiceClient

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("lance")
parts = dict(part.split("=", 1) for part in text.split(";"))
options = {
    "azure_storage_account_name": parts["AccountName"],
    "azure_storage_account_key": parts["AccountKey"],
    "azure_storage_endpoint": parts["BlobEndpoint"],
    "allow_http": "true",
}
where = "az://lance/staff.lance"
lance.write_dataset(pyarrow.table({"age": [47, 31]}), where, storage_options=options)
more = pyarrow.table({"age": [29]})
written = lance.write_dataset(more, where, mode="append", storage_options=options)
written.delete("age = 31")
read = lance.dataset(where, storage_options=options)
assert sorted(read.to_table()["age"].to_pylist()) == [29, 47]
first = lance.dataset(where, version=1, storage_options=options)
assert sorted(first.to_table()["age"].to_pylist()) == [31, 47]
