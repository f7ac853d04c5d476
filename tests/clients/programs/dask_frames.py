import os

import dask.dataframe
import fsspec
import pandas

if __name__ == "__main__":
    options = {"connection_string": os.environ["AZURE_STORAGE_CONNECTION_STRING"]}
    fsspec.filesystem("abfs", **options).mkdir("dask")
    frame = pandas.DataFrame({"dept": ["Sales", "Ops"] * 500, "age": range(1000)})
    parts = dask.dataframe.from_pandas(frame, npartitions=8)
    parts.to_parquet("abfs://dask/staff", storage_options=options)
    read = dask.dataframe.read_parquet("abfs://dask/staff", storage_options=options)
    assert read.npartitions == 8
    assert read.groupby("dept").age.sum().compute().to_dict() == {"Sales": 249500, "Ops": 250000}
