"""`partita import`, `export`, `copy`, `query`, `count`, `delete-where` and `sas`."""
