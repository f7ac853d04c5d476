import os

import pandas
from azure.storage.blob import BlobServiceClient
from deltalake import DeltaTable, write_deltalake

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("delta")
parts = dict(part.split("=", 1) for part in text.split(";"))
os.environ["AZURITE_BLOB_STORAGE_URL"] = parts["BlobEndpoint"].rpartition("/")[0]
options = {"azure_storage_use_emulator": "true"}
for number in range(3):
    rows = pandas.DataFrame({"batch": [number] * 100, "id": range(100)})
    write_deltalake("az://delta/rows", rows, mode="append", storage_options=options)
table = DeltaTable("az://delta/rows", storage_options=options)
assert table.version() == 2
assert table.to_pyarrow_table().num_rows == 300
table.delete("batch = 1")
assert DeltaTable("az://delta/rows", storage_options=options).to_pyarrow_table().num_rows == 200
assert (
    DeltaTable("az://delta/rows", version=0, storage_options=options).to_pyarrow_table().num_rows
    == 100
)
