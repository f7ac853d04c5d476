"""SAS tokens for exactly the keys of some entities."""
