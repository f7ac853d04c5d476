"""A service of many partitions: assignment, membership, requests."""
