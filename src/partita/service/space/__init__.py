"""How much space an account takes, and compaction of its database."""
