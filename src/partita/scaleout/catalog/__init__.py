"""Accounts, tables, key ranges, slots and the clock of a fleet."""
