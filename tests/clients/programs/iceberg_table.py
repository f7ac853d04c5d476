import os

import fsspec
import pyarrow
from pyiceberg.catalog.sql import SqlCatalog

text = os.environ["AZURE_STORAGE_CONNECTION_STRING"]
fsspec.filesystem("abfs", connection_string=text).mkdir("iceberg")
catalog = SqlCatalog(
    "here",
    uri="sqlite:///catalog.db",
    warehouse="abfs://iceberg/warehouse",
    **{"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO", "adls.connection-string": text},
)
catalog.create_namespace("staff")
rows = pyarrow.table({"dept": ["Sales", "Ops"], "age": [47, 31]})
table = catalog.create_table("staff.people", rows.schema)
table.append(rows)
first = table.current_snapshot().snapshot_id
table.append(pyarrow.table({"dept": ["Sales"], "age": [29]}))
table.delete("dept = 'Ops'")
assert sorted(table.scan().to_arrow()["age"].to_pylist()) == [29, 47]
assert table.scan(snapshot_id=first).to_arrow().num_rows == 2
catalog.purge_table("staff.people")
