import os

import pyarrow
import pyarrow.fs
import pyarrow.parquet

parts = dict(
    part.split("=", 1) for part in os.environ["AZURE_STORAGE_CONNECTION_STRING"].split(";")
)
authority = parts["BlobEndpoint"].removeprefix("http://").split("/")[0]
store = pyarrow.fs.AzureFileSystem(
    account_name=parts["AccountName"],
    account_key=parts["AccountKey"],
    blob_storage_authority=authority,
    blob_storage_scheme="http",
    dfs_storage_authority=authority,
    dfs_storage_scheme="http",
)
store.create_dir("arrow")
table = pyarrow.table({"id": list(range(10_000))})
pyarrow.parquet.write_table(table, "arrow/ids.parquet", filesystem=store)
assert pyarrow.parquet.read_table("arrow/ids.parquet", filesystem=store).num_rows == 10_000
assert [each.base_name for each in store.get_file_info(pyarrow.fs.FileSelector("arrow"))] == [
    "ids.parquet"
]
store.delete_file("arrow/ids.parquet")
