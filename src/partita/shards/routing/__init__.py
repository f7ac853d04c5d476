"""From a sharding key to a validated connection or session."""
