import os

import polars
from azure.storage.blob import BlobServiceClient

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("polars")
parts = dict(part.split("=", 1) for part in text.split(";"))
os.environ["AZURITE_BLOB_STORAGE_URL"] = parts["BlobEndpoint"].rpartition("/")[0]
options = {"azure_storage_use_emulator": "true"}
frame = polars.DataFrame({"id": [1, 2, 3], "name": ["a", "b", "c"]})
frame.write_parquet("az://polars/names.parquet", storage_options=options)
read = polars.scan_parquet("az://polars/*.parquet", storage_options=options)
assert read.filter(polars.col("id") > 1).collect().height == 2
