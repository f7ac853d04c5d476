"""The API of the console: one module for each area."""
