"""Files of entities: JSON lines, CSV with types, Parquet, and JSON documents such as AzCopy's."""
