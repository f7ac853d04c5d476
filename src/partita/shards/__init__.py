"""Elastic shards: shard maps, validated routing, fan-out, migrations and moves for SQLAlchemy."""
