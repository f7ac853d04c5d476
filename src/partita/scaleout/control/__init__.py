"""Split, merge and move ranges between shards; add and remove shards."""
