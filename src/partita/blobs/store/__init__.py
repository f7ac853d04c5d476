"""Where blobs are kept: rows in SQLite, content in files."""
