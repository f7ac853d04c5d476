import os

import chdb
from azure.storage.blob import BlobServiceClient

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
BlobServiceClient.from_connection_string(text).create_container("clickhouse")
source = f"azureBlobStorage('{text}', 'clickhouse', '%s', 'Parquet')"
rows = "SELECT number AS id, if(number % 2, 'Ops', 'Sales') AS dept FROM numbers(100000)"
chdb.query(f"INSERT INTO FUNCTION {source % 'staff.parquet'} {rows}")
chdb.query(f"INSERT INTO FUNCTION {source % 'more.parquet'} {rows}")
count = "SELECT dept, count(), max(id) FROM %s GROUP BY dept ORDER BY dept"
found = str(chdb.query(count % (source % "*.parquet"), "CSV"))
assert found.split() == ['"Ops",100000,99999', '"Sales",100000,99998'], found
