import os

import fsspec
import pandas
import pyarrow.dataset

options = {"connection_string": os.environ["AZURE_STORAGE_CONNECTION_STRING"]}
store = fsspec.filesystem("abfs", **options)
store.mkdir("pandas")
frame = pandas.DataFrame({"dept": ["Sales", "Ops", "Sales"], "age": [47, 31, 29]})
frame.to_parquet("abfs://pandas/staff", partition_cols=["dept"], storage_options=options)
read = pandas.read_parquet(
    "abfs://pandas/staff", storage_options=options, filters=[("dept", "==", "Sales")]
)
assert sorted(read["age"]) == [29, 47]
data = pyarrow.dataset.dataset("pandas/staff", filesystem=store, partitioning="hive")
assert data.count_rows() == 3
frame.to_csv("abfs://pandas/staff.csv", index=False, storage_options=options)
assert len(pandas.read_csv("abfs://pandas/staff.csv", storage_options=options)) == 3
