"""The one write path: from changed entities to one group of operations."""
