"""The calls that the core makes to storage, and the values they carry: rows, keys, JSON. Pure."""
