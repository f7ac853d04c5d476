"""`partita shards`: administer shard maps, their shards and moves between them."""
