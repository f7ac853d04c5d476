"""Types, keys and values: what may be stored, and as which bytes; pure."""
