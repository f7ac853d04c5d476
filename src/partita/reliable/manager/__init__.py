"""The open state: its collections, housekeeping and backups."""
