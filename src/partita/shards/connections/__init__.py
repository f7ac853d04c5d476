"""SQLAlchemy engines of shards, and connections that can be revoked."""
