"""`partita heat`: the load of a table by ranges of keys and minutes."""
