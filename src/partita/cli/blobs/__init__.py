"""`partita blobs`: list, copy and synchronize blobs with files."""
