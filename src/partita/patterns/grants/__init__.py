"""Grants: SAS tokens restricted to the keys of given entities."""
