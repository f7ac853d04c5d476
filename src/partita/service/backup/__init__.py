"""Backups of whole accounts while they are served; no request depends on this."""
