"""Faster ways to read filters, and pages of entities; tests compare them with the general ones."""
