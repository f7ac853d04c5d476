"""Backups of whole accounts, taken while they run; never on the way of a request."""
