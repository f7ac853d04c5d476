"""Entity types and their declarations: indexes, views, derived fields, layout of rows."""
