import os

import duckdb
import fsspec

store = fsspec.filesystem("abfs", connection_string=os.environ["AZURE_STORAGE_CONNECTION_STRING"])
store.mkdir("duck")
db = duckdb.connect()
db.register_filesystem(store)
db.sql("COPY (SELECT range AS id FROM range(100000)) TO 'abfs://duck/ids.parquet' (FORMAT parquet)")
found = db.sql(
    "SELECT count(*), max(id) FROM read_parquet('abfs://duck/*.parquet') WHERE id >= 500"
)
assert found.fetchall() == [(99_500, 99_999)]
