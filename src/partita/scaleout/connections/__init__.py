"""Connections to PostgreSQL: checks, time limits, gathering."""
