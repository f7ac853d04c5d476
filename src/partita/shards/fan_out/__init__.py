"""One statement on many shards."""
