"""Accounts, service properties, rate targets, and the path of every request."""
