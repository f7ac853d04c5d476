"""Types, keys and values: which types can be stored, and their encodings; pure."""
