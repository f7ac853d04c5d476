"""The SQL of tables and functions, and its installation."""
