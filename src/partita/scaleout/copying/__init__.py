"""Copies of whole accounts between folders and PostgreSQL: resumable, verified."""
