"""The public shard maps and their manager."""
