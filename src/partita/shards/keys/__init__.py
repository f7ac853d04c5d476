"""Sharding keys, ranges, mappings and their cache; pure."""
