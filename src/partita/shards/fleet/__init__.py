"""The shards as a set: schema deployment, drift, status."""
