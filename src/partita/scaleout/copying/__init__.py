"""Copies of whole accounts between a folder and PostgreSQL: resumable, verified, kept closed until complete."""
