import os

import pyarrow
from azure.storage.blob import BlobServiceClient
from datafusion import SessionContext
from datafusion.object_store import MicrosoftAzure

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("datafusion")
parts = dict(part.split("=", 1) for part in text.split(";"))
os.environ["AZURITE_BLOB_STORAGE_URL"] = parts["BlobEndpoint"].rpartition("/")[0]
store = MicrosoftAzure("datafusion", use_emulator=True, allow_http=True)
context = SessionContext()
context.register_object_store("az://datafusion", store)
rows = pyarrow.table({"dept": ["Sales", "Ops", "Sales"], "age": [47, 31, 29]})
context.from_arrow(rows).write_parquet("az://datafusion/staff/")
context.register_parquet("staff", "az://datafusion/staff/")
found = context.sql("SELECT dept, sum(age) AS s FROM staff GROUP BY dept ORDER BY dept")
assert found.to_pydict() == {"dept": ["Ops", "Sales"], "s": [31, 76]}
