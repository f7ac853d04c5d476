"""The rules of blobs: names, conditions, leases, tags, blocks; pure."""
