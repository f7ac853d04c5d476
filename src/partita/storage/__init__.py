"""One SQLite file and its folder: group commit, reader threads, checkpoints, the lock."""
