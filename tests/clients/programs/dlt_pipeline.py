import os
import tempfile

import dlt
import fsspec
from dlt.destinations import filesystem

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
parts = dict(part.split("=", 1) for part in text.split(";"))
store = fsspec.filesystem("abfs", connection_string=text)
store.mkdir("dlt")
os.environ["DLT_TELEMETRY_DISABLED"] = "1"
target = filesystem(
    bucket_url="az://dlt/loads",
    credentials={
        "azure_storage_account_name": parts["AccountName"],
        "azure_storage_account_key": parts["AccountKey"],
    },
    kwargs={"connection_string": text},
)
with tempfile.TemporaryDirectory() as folder:
    pipeline = dlt.pipeline("staff", destination=target, dataset_name="hr", pipelines_dir=folder)
    pipeline.run([{"id": 1, "name": "Ken"}, {"id": 2, "name": "Jun"}], table_name="staff")
assert any("/staff/" in path for path in store.find("dlt/loads/hr"))
